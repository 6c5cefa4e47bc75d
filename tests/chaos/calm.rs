//! The calm after a storm, and what must hold in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bot::audit;
use bot::job::{JobId, Outcome, State};
use bot::store::{Row, Store};
use serde_json::Value;
use tests::model::PATIENCE;
use tests::outside::LOOK;

use crate::storm::World;

/// Sweeps for lost webhooks that begin in a calm before it is looked at: the one that was under way does not count, and
/// the last has only begun.
const SWEEPS: usize = 3;
/// How long the bot may take to answer all that a storm has left: several rounds of everything.
const LONGEST: std::time::Duration = PATIENCE.saturating_mul(5);

/// Lets the storm subside, waits until the bot has nothing to do, and looks.
pub(crate) async fn comes(world: &mut World) {
    world.subsides();
    let begun = Instant::now();
    let n_before = n_sweeps(world);
    while n_sweeps(world) < n_before + SWEEPS {
        assert!(begun.elapsed() < LONGEST, "no sweep came");
        tokio::time::sleep(LOOK).await;
    }
    let store = world.outside.store().await;
    while let Some(due) = store.next_due().await.expect("the store answers") {
        assert!(
            begun.elapsed() < LONGEST,
            "a job is due at {due}: {:?}",
            world.outside.jobs().await
        );
        tokio::time::sleep(LOOK).await;
    }
    looks_right(world).await;
}

/// The end: the service stops, and nothing is left.
pub(crate) async fn ends(mut world: World) {
    world.stopped().await;
    assert!(!world.outside.forge.pulls(&world.outside.repo).is_empty(), "not one draft was made");
    is_on_record(&world).await;
    world.outside.assert_nothing_is_left(&world.words, "at the end");
    world.outside.forge.assert_clean();
}

/// Whatever was killed when, the audit record is whole, the transcripts are what was written, and each draft's job is told
/// of from ask to end.
async fn is_on_record(world: &World) {
    let store = world.outside.store().await;
    let mut told: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    let mut note = |line: &str| {
        let record: Value = serde_json::from_str(line)?;
        if let (Some(job), Some(event)) = (record["job"].as_i64(), record["event"].as_str()) {
            told.entry(job).or_default().insert(event.to_owned());
        }
        Ok(())
    };
    let verified = audit::verify(&store, vec![], &mut note).await;
    let verified = verified.expect("the audit record is whole");
    let data = world.outside.data();
    let file = |job| data.join("jobs").join(JobId(job).to_string()).join("transcript.jsonl");
    let transcripts = audit::transcripts(&verified.spoken, file).expect("they can be read");
    assert_eq!(transcripts.changed, Vec::<i64>::new());
    for row in world.outside.jobs().await.iter().filter(|row| row.job.pull.is_some()) {
        let events = told.get(&row.job.id.0).cloned().unwrap_or_default();
        for event in ["asked", "given", "spoke", "ready", "drafted", "ended"] {
            assert!(events.contains(event), "no `{event}` of {row:?}");
        }
    }
}

fn n_sweeps(world: &World) -> usize {
    let lists = |request: &&tests::forge::Request| {
        request.method == "GET" && request.path.ends_with("/repos/acme/hours/issues")
    };
    world.outside.forge.requests().iter().filter(lists).count()
}

async fn looks_right(world: &World) {
    let (forge, repo) = (&world.outside.forge, &world.outside.repo);
    let jobs = world.outside.jobs().await;
    let mut keys = BTreeSet::new();
    let mut of_issue: BTreeMap<u64, Vec<&Row>> = BTreeMap::new();
    for row in &jobs {
        assert!(matches!(row.job.state, State::Ended { .. }), "not ended: {row:?}");
        if let Some(key) = &row.job.key {
            assert!(keys.insert(key.clone()), "two jobs have the key {key}");
            of_issue.entry(row.job.subject.issue).or_default().push(row);
        }
    }
    let pulls = forge.pulls(repo);
    for (&issue, &n_asks) in &world.n_asks {
        let rows = of_issue.remove(&issue).unwrap_or_default();
        let what = format!("#{issue}, asked for {n_asks} times: {rows:#?}");
        assert!(rows.len() <= n_asks, "more jobs than asks. {what}");
        if forge.is_open(repo, issue) && forge.labels(repo, issue).iter().any(|each| each == "hyla")
        {
            let newest = match forge.label_event(repo, issue, "hyla") {
                Some(event) => format!("@label:{event}"),
                None => "@opened:".to_owned(),
            };
            let is_its = |row: &&Row| row.job.key.as_ref().is_some_and(|key| key.contains(&newest));
            assert!(rows.iter().any(is_its), "nobody answered {newest}. {what}");
        }
        drafts_are_right(&rows, issue, &pulls, &what);
        let comments: Vec<String> = forge
            .comments(repo, issue)
            .into_iter()
            .filter_map(|each| (each.author == "hyla").then_some(each.body))
            .collect();
        comments_are_right(&comments, &rows, &what);
    }
    assert!(of_issue.is_empty(), "jobs that nobody asked for: {of_issue:#?}");
}

/// Each job that ended with a draft has one, no other has, and one of them is open at most.
fn drafts_are_right(rows: &[&Row], issue: u64, pulls: &[tests::forge::SeenPull], what: &str) {
    let branch = format!("hyla/issue-{issue}-");
    let own: Vec<_> = pulls.iter().filter(|pull| pull.head.starts_with(&branch)).collect();
    let heads: BTreeSet<&str> = own.iter().map(|pull| pull.head.as_str()).collect();
    assert_eq!(heads.len(), own.len(), "two pull requests from one branch: {own:#?} {what}");
    let n_ready = rows.iter().filter(|row| outcome(row) == Outcome::DraftPr).count();
    assert_eq!(n_ready, own.len(), "jobs with a draft, and drafts: {own:#?} {what}");
    let n_open = own.iter().filter(|pull| pull.is_open).count();
    assert!(n_open <= 1, "two open drafts: {own:#?} {what}");
}

/// One comment for each job at most, each with the last word.
fn comments_are_right(comments: &[String], rows: &[&Row], what: &str) {
    let markers: BTreeSet<&str> = comments.iter().filter_map(|body| body.lines().next()).collect();
    assert_eq!(markers.len(), comments.len(), "two comments of one job: {comments:#?} {what}");
    assert!(comments.len() <= rows.len(), "comments without a job: {comments:#?} {what}");
    for body in comments {
        let is_over = !body.contains("Hyla: working") && !body.contains("Hyla: waiting");
        assert!(is_over, "a comment still promises something: {body} {what}");
    }
    for row in rows {
        let key = row.job.key.as_deref().expect("only such jobs are given");
        let marker = bot::reply::marker(key);
        let is_told = comments.iter().any(|body| body.contains(&marker));
        let wants = outcome(row) != Outcome::Cancelled;
        assert!(is_told || !wants, "no comment of {key}: {comments:#?} {what}");
    }
}

fn outcome(row: &Row) -> Outcome {
    match &row.job.state {
        State::Ended { end } => end.outcome,
        other => panic!("not ended: {other:?}"),
    }
}
