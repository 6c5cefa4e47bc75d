//! `/metrics` of `hyla serve`, as Prometheus reads it: the real service, from a job that must wait to the draft.

use std::collections::BTreeMap;

use nix::sys::signal::Signal;
use tests::house::{WEBHOOK_SECRET, demo_recording};
use tests::model::{Fault, Recording, Turn};
use tests::outside::{Outside, send, until};

/// What the service tells at a moment: each row with its value.
struct Page {
    text: String,
    rows: BTreeMap<String, f64>,
}

impl Page {
    async fn of(outside: &Outside) -> Self {
        let answer = reqwest::get(format!("http://{}/metrics", outside.address)).await;
        let answer = answer.expect("the service answers");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
        let text = answer.text().await.expect("it is text");
        let rows = rows(&text);
        Self { text, rows }
    }

    #[track_caller]
    fn says(&self, row: &str, value: f64) {
        assert_eq!(self.rows.get(row), Some(&value), "{row}:\n{}", self.text);
    }

    /// No word that belongs to somebody.
    fn assert_discreet(&self, outside: &Outside) {
        let forge = outside.forge.url();
        for word in [&outside.token, WEBHOOK_SECRET, "acme", "hours", "ann", forge.as_str()] {
            assert!(!self.text.contains(word), "{word}:\n{}", self.text);
        }
        assert!(self.rows.len() < 120, "{} rows:\n{}", self.rows.len(), self.text);
    }
}

/// The rows of a page that is written as the format wants it: each metric is described once, before its rows.
fn rows(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'));
    let (mut rows, mut kinds) = (BTreeMap::new(), BTreeMap::new());
    let mut current = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("a help has words");
            assert!(!words.is_empty() && !kinds.contains_key(name), "{line}");
            current = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type has a kind");
            assert_eq!(name, current);
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            kinds.insert(name.to_owned(), kind.to_owned());
        } else {
            let (row, value) = line.rsplit_once(' ').expect("a row has a value");
            let name = row.split('{').next().expect("a row has a name");
            let is_histogram = kinds[&current] == "histogram";
            let rest = name.strip_prefix(&current).expect("a row follows its head");
            assert!(rest.is_empty() || (is_histogram && !rest.is_empty()), "{line}");
            let value = value.parse().expect("a value is a number");
            assert!(rows.insert(row.to_owned(), value).is_none(), "{line} is there twice");
        }
    }
    rows
}

/// A delivery that nobody signed.
async fn forge_a_delivery(outside: &Outside) {
    let hook = format!("http://{}/hooks/main", outside.address);
    let sent = reqwest::Client::new()
        .post(hook)
        .header("content-type", "application/json")
        .header("x-forgejo-delivery", "forged")
        .header("x-forgejo-event", "issues")
        .header("x-forgejo-signature", "0".repeat(64))
        .body("{}")
        .send();
    assert_eq!(sent.await.expect("the service answers").status(), 401);
}

/// What a service that has done nothing counts.
const FRESH: [&str; 10] = [
    "hyla_sandbox_holds",
    "hyla_jobs_queued",
    "hyla_jobs_due",
    "hyla_jobs_oldest_due_seconds",
    "hyla_jobs_running{stage=\"session\"}",
    "hyla_jobs_ended_total{outcome=\"draft_pr\"}",
    "hyla_jobs_failed_total{why=\"forge_auth\"}",
    "hyla_deliveries_total{status=\"queued\"}",
    "hyla_sessions_total{reason=\"finished\"}",
    "hyla_session_seconds_count",
];

#[tokio::test]
async fn what_is_counted_follows_a_job_from_its_wait_to_its_draft() {
    let missing = "[sandbox]\nbwrap = \"/usr/bin/no-such-bwrap\"\n[queue]\nsettle = \"100ms\"\n";
    let outside = Outside::start(demo_recording(), missing).await;
    let mut first = outside.serve_logged();
    outside.is_heard().await;
    let page = Page::of(&outside).await;
    page.says("hyla_build_info{version=\"0.1.0\"}", 1.0);
    page.says("hyla_sandbox_info{backend=\"none\"}", 1.0);
    for row in FRESH {
        page.says(row, 0.0);
    }

    outside.open_issue(&["hyla"]).await;
    forge_a_delivery(&outside).await;
    let known = outside.forge.deliveries().remove(0).id;
    outside.forge.redeliver(&known).await;
    let store = outside.store().await;
    let due = bot::store::Store::next_due(&store).await.expect("the store answers");
    let due = due.expect("a job waits");
    until("it is due", || chrono::Utc::now() > due).await;
    let waits = Page::of(&outside).await;
    waits.says("hyla_jobs_queued", 1.0);
    waits.says("hyla_jobs_due", 1.0);
    assert!(waits.rows["hyla_jobs_oldest_due_seconds"] > 0.0, "{}", waits.text);
    waits.says("hyla_deliveries_total{status=\"refused\"}", 1.0);
    waits.says("hyla_deliveries_total{status=\"not_kept\"}", 0.0);
    let sum = |page: &Page, statuses: &[&str]| -> f64 {
        let row =
            |status: &&str| page.rows[&format!("hyla_deliveries_total{{status=\"{status}\"}}")];
        statuses.iter().map(row).sum()
    };
    let n_deliveries = outside.forge.deliveries().len() as f64;
    assert!(sum(&waits, &["queued"]) >= 1.0, "{}", waits.text);
    let all = ["queued", "joined", "ignored", "repeated"];
    assert_eq!(sum(&waits, &all), n_deliveries, "{}", waits.text);
    waits.assert_discreet(&outside);
    send(&first, Signal::SIGTERM);
    assert!(first.wait().await.expect("it is ours").success());

    let text = std::fs::read_to_string(&outside.file).expect("it is ours");
    std::fs::write(&outside.file, text.replace("no-such-bwrap", "bwrap")).expect("it is ours");
    let _second = outside.serve_logged();
    outside.listens().await;
    until("the draft is open", || !outside.forge.pulls(&outside.repo).is_empty()).await;
    outside.is_done("at the end").await;
    let done = Page::of(&outside).await;
    done.says("hyla_sandbox_holds", 1.0);
    assert!(done.text.contains("\nhyla_sandbox_info{backend=\"bubblewrap "), "{}", done.text);
    for (row, value) in [
        ("hyla_jobs_queued", 0.0),
        ("hyla_jobs_due", 0.0),
        ("hyla_jobs_oldest_due_seconds", 0.0),
        ("hyla_attempts_total{verdict=\"ended\"}", 1.0),
        ("hyla_jobs_ended_total{outcome=\"draft_pr\"}", 1.0),
        ("hyla_jobs_ended_total{outcome=\"failed\"}", 0.0),
        ("hyla_sessions_total{reason=\"finished\"}", 1.0),
        ("hyla_session_seconds_count", 1.0),
    ] {
        done.says(row, value);
    }
    let n_turns = outside.model.requests().len() as f64;
    done.says("hyla_session_turns_total", n_turns);
    // So many the recording's server counts for each turn.
    done.says("hyla_session_generated_tokens_total", 100.0 * n_turns);
    assert!(done.rows["hyla_session_calls_total"] > 0.0, "{}", done.text);
    done.assert_discreet(&outside);
}

#[tokio::test]
async fn a_job_at_work_is_seen_in_its_stage_and_a_failure_by_what_broke() {
    let refused = Fault::Status { status: 400, message: "no such thing".into(), retry_after: None };
    let turns = [Fault::Hang, refused].map(|fault| Turn { fault: Some(fault), ..Turn::default() });
    let more = "[queue]\nsettle = \"100ms\"\n";
    let outside = Outside::start(Recording::of(turns.into()), more).await;
    let mut first = outside.serve_logged();
    outside.is_heard().await;
    outside.open_issue(&["hyla"]).await;
    until("the model is asked", || !outside.model.requests().is_empty()).await;
    let page = Page::of(&outside).await;
    page.says("hyla_jobs_running{stage=\"session\"}", 1.0);
    page.says("hyla_jobs_running{stage=\"ask\"}", 0.0);
    page.says("hyla_jobs_due", 0.0);
    send(&first, Signal::SIGTERM);
    assert!(first.wait().await.expect("it is ours").success());

    let _second = outside.serve_logged();
    outside.listens().await;
    outside.is_done("at the end").await;
    let page = Page::of(&outside).await;
    page.says("hyla_jobs_running{stage=\"session\"}", 0.0);
    page.says("hyla_jobs_ended_total{outcome=\"failed\"}", 1.0);
    page.says("hyla_jobs_failed_total{why=\"model_answer\"}", 1.0);
    page.says("hyla_session_seconds_count", 0.0);
}
