//! Check A: every delivery once, twice, and fifty times at once in any order, the service killed at every named stage and
//! started again: one run, one comment, one draft, and nothing left.

use bot::job::{Outcome, State};
use nix::sys::signal::Signal;
use tests::forge::{Delivered, Fault, Matcher};
use tests::house::demo_recording;
use tests::model::{Recording, Turn};
use tests::outside::{Outside, send, until};

const API: &str = "/api/v1/repos/acme/hours";

/// Where the service is killed: the request that it never gets an answer to, and how many of the same kind go well before.
struct Kill {
    stage: &'static str,
    request: (&'static str, &'static str),
    n_before: usize,
    /// Whether the forge does what the request asks.
    has_effect: bool,
}

const fn kill(
    stage: &'static str,
    request: (&'static str, &'static str),
    n_before: usize,
    has_effect: bool,
) -> Kill {
    Kill { stage, request, n_before, has_effect }
}

const COMMENT: (&str, &str) = ("POST", "/issues/*/comments");
const EDIT: (&str, &str) = ("PATCH", "/issues/comments/*");
const FETCH: (&str, &str) = ("POST", ".git/git-upload-pack");
const PUSH: (&str, &str) = ("POST", ".git/git-receive-pack");
const OPEN: (&str, &str) = ("POST", "/pulls");

/// The status comment is edited as each stage is entered.
const KILLS: [Kill; 14] = [
    kill("ask", ("GET", "/issues/*"), 0, false),
    kill("ask, reacted", ("POST", "/issues/*/reactions"), 0, true),
    kill("checkout", COMMENT, 0, false),
    kill("checkout, commented", COMMENT, 0, true),
    kill("checkout, fetching", FETCH, 0, false),
    kill("session", EDIT, 0, false),
    kill("gate", EDIT, 1, true),
    kill("evidence", EDIT, 2, true),
    kill("publish", EDIT, 3, true),
    kill("publish, pushing", PUSH, 0, false),
    kill("publish, pushed", PUSH, 0, true),
    kill("publish, opening", OPEN, 0, false),
    kill("publish, opened", OPEN, 0, true),
    kill("ended", EDIT, 4, true),
];

impl Kill {
    fn arm(&self, outside: &Outside) {
        let (method, path) = self.request;
        let whole = match path.starts_with(".git") {
            true => format!("/acme/hours{path}"),
            false => format!("{API}{path}"),
        };
        let matcher = || Matcher::new(method, &whole);
        outside.forge.fault(matcher(), Fault::Pass, self.n_before);
        let hang = if self.has_effect { Fault::HangAfterEffect } else { Fault::Hang };
        outside.forge.fault(matcher(), hang, 1);
    }
}

#[tokio::test]
async fn check_a_each_delivery_once_and_a_kill_at_each_stage() {
    some(0, 1).await;
}

#[tokio::test]
async fn check_a_each_delivery_twice_and_a_kill_at_each_stage() {
    some(1, 2).await;
}

#[tokio::test]
async fn check_a_each_delivery_fifty_times_and_a_kill_at_each_stage() {
    some(2, 50).await;
}

/// Every third kill, so that three tests share them.
async fn some(first: usize, n_copies: usize) {
    for (number, at) in KILLS.iter().enumerate().skip(first).step_by(3) {
        killed_at(at, n_copies, number as u64).await;
    }
}

async fn killed_at(at: &Kill, n_copies: usize, seed: u64) {
    let stage = at.stage;
    let words = format!("sleep {}", 200_000 + u64::from(std::process::id()) * 100 + seed);
    let outside = outside(&words).await;
    let mut first = outside.serve_logged();
    outside.is_heard().await;
    outside.forge.hold_hooks(true);
    at.arm(&outside);
    let issue = outside.open_issue(&[]).await;
    let ann = outside.forge.person("ann");
    ann.add_label(&outside.repo, issue, "bug").await;
    ann.add_label(&outside.repo, issue, "hyla").await;
    ann.comment(&outside.repo, issue, "Please.").await;
    let deliveries = outside.forge.deliveries();
    sent(&outside, &deliveries, n_copies, seed).await;
    until(stage, || outside.forge.n_hung() == 1).await;

    send(&first, Signal::SIGKILL);
    first.wait().await.expect("it is ours");
    outside.forge.clear_faults();
    outside.forge.hold_hooks(false);
    let mut second = outside.serve_logged();
    outside.listens().await;
    sent(&outside, &deliveries, n_copies, seed + 1).await;
    outside.is_done(stage).await;
    // Once more, when everything is over.
    sent(&outside, &deliveries, n_copies, seed + 2).await;
    outside.is_done(stage).await;

    send(&second, Signal::SIGTERM);
    assert!(second.wait().await.expect("it is ours").success(), "{stage}");
    let jobs = outside.jobs().await;
    assert_eq!(jobs.len(), 1, "{stage}: {jobs:?}");
    let State::Ended { end } = &jobs[0].job.state else { panic!("{stage}: {jobs:?}") };
    assert_eq!(end.outcome, Outcome::DraftPr, "{stage}: {}", end.operator);
    assert_eq!(outside.forge.pulls(&outside.repo).len(), 1, "{stage}");
    let comments = outside.forge.comments(&outside.repo, issue);
    let own: Vec<&str> = comments
        .iter()
        .filter(|each| each.author == "hyla")
        .map(|each| each.body.as_str())
        .collect();
    assert!(own.len() == 1 && own[0].contains("draft ready"), "{stage}: {own:?}");
    assert_eq!(outside.forge.branches(&outside.repo).len(), 2, "{stage}");
    outside.assert_nothing_is_left(&words, stage);
    outside.forge.assert_clean();
}

/// A service whose agent leaves a process behind in each session, and whose leases are short.
async fn outside(words: &str) -> Outside {
    let stays = Turn::bash(&format!("setsid {words} >/dev/null 2>&1 &"));
    let recording = Recording { each_conversation: true, ..demo_recording().begun_by(stays) };
    let short =
        "[queue]\nlease = \"3s\"\nheartbeat = \"1s\"\nbackoff = \"200ms\"\nsettle = \"100ms\"\n";
    Outside::start(recording, short).await
}

/// Sends copies of each delivery, under ids of their own, at once and in an order that follows from the seed.
async fn sent(outside: &Outside, deliveries: &[Delivered], n_copies: usize, seed: u64) {
    let mut ids: Vec<&str> = Vec::new();
    for _ in 0..n_copies {
        ids.extend(deliveries.iter().map(|each| each.id.as_str()));
    }
    fastrand::Rng::with_seed(seed).shuffle(&mut ids);
    let sent = ids.iter().map(|id| outside.forge.redeliver(id));
    for each in futures_util::future::join_all(sent).await {
        assert_eq!(each.status, Some(202), "{}", each.answer);
    }
}
