//! A forge that is away for two minutes, and what people read afterwards.

use std::time::Duration;

use bot::clock::Clock;
use bot::job::Outcome;
use tests::forge::{Fault, Matcher};
use tests::house::{House, Setup};

/// As long as a restart of a forge takes.
const AWAY: Duration = Duration::from_secs(120);

#[tokio::test]
async fn an_ask_outlives_a_restart_of_the_forge_or_somebody_is_told() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.forge.fault(Matcher::new("*", "*"), Fault::status(502, "bad gateway"), usize::MAX);
    house.work_for(AWAY).await;
    let waited = house.clock.now() - house.jobs().await[0].created_at;
    house.forge.clear_faults();
    house.work_through_retries().await;
    let told = house.status_comments(issue);
    assert!(
        !told.is_empty() || !house.forge.pulls(&house.repo).is_empty(),
        "the forge was away for {waited}; the delivery was answered 202, and nobody hears of it again: {:?}",
        house.end().await
    );
}

#[tokio::test]
async fn the_comment_does_not_promise_an_attempt_that_never_comes() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.clock.advance(house.bot.config.queue.settle);
    let goes_away = async {
        while house.model.requests().is_empty() {
            tokio::task::yield_now().await;
        }
        house.forge.fault(Matcher::new("*", "*"), Fault::status(502, "bad gateway"), usize::MAX);
    };
    tokio::join!(house.step(), goes_away);
    house.work_for(AWAY).await;
    house.forge.clear_faults();
    house.work_through_retries().await;
    let end = house.end().await;
    let comments = house.status_comments(issue);
    assert_eq!(comments.len(), 1);
    assert!(comments[0].contains(&end.person), "{end:?}\n\n{}", comments[0]);
}

#[tokio::test]
async fn one_long_comment_of_a_reader_does_not_shut_the_bot_out() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    house.forge.hold_hooks(true);
    house.forge.person("rob").comment(&house.repo, issue, &"x".repeat(17 << 20)).await;
    house.forge.hold_hooks(false);
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work_through_retries().await;
    let end = house.end().await;
    assert!(
        end.outcome == Outcome::DraftPr || !house.status_comments(issue).is_empty(),
        "nobody is told: {end:?}"
    );
}

#[tokio::test]
async fn a_label_that_goes_and_comes_back_while_the_job_runs_makes_one_draft() {
    let mut setup = Setup::default();
    setup.recording.each_conversation = true;
    let house = House::start(setup).await;
    let issue = house.open_issue().await;
    let ann = house.forge.person("ann");
    ann.add_label(&house.repo, issue, "hyla").await;
    house.clock.advance(house.bot.config.queue.settle);
    let meddling = async {
        while house.model.requests().is_empty() {
            tokio::task::yield_now().await;
        }
        ann.remove_label(&house.repo, issue, "hyla").await;
        ann.add_label(&house.repo, issue, "hyla").await;
    };
    tokio::join!(house.step(), meddling);
    house.work_through_retries().await;
    assert_eq!(house.forge.pulls(&house.repo).len(), 1);
    assert_eq!(house.status_comments(issue).len(), 2);
    house.assert_clean().await;
}

#[tokio::test]
async fn folders_in_the_place_of_known_files_are_no_files() {
    let files = [
        ("a.txt", "a\n"),
        (".hyla.toml/x", "x\n"),
        ("AGENTS.md/x", "x\n"),
        ("package.json/x", "x\n"),
        ("Makefile/x", "x\n"),
        ("Cargo.toml/x", "x\n"),
    ];
    let house = House::start(Setup { files: files.into(), ..Setup::default() }).await;
    house.labelled_and_worked().await;
    house.work_through_retries().await;
    let end = house.end().await;
    assert!(!matches!(end.outcome, Outcome::Failed(_)), "{end:?}");
    house.assert_clean().await;
}

#[tokio::test]
async fn a_repository_that_is_renamed_while_the_job_runs_leaves_no_false_comment() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.clock.advance(house.bot.config.queue.settle);
    let renamed = async {
        while house.model.requests().is_empty() {
            tokio::task::yield_now().await;
        }
        let to = Fault::Status {
            status: 301,
            body: String::new(),
            headers: vec![("location".into(), "http://other.example/api/v1/x?token=1".into())],
        };
        house.forge.fault(Matcher::new("*", "*"), to, usize::MAX);
    };
    tokio::join!(house.step(), renamed);
    house.work_for(AWAY).await;
    house.forge.clear_faults();
    house.work_through_retries().await;
    let end = house.end().await;
    assert!(!end.operator.contains("token=1"), "{end:?}");
    assert!(!house.status_comments(issue)[0].contains("working, step"), "{end:?}");
}
