//! A disk that is full, a database that takes nothing, a clock that jumps, an upgrade in the middle, a signal at any
//! moment: what was accepted is finished once, and what was not was never said to be.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bot::bot::Bot;
use bot::clock::Clock;
use bot::job::{NoFix, Outcome, Stage, State};
use bot::worker::Stop;
use nix::sys::signal::Signal;
use sqlx::SqlitePool;
use tests::forge::{Fault, Matcher};
use tests::house::{House, Setup, demo_issue, demo_recording, hyla_binary};
use tests::model::{PATIENCE, Recording, Turn};
use tests::outside::{LOOK, Outside, lives, send, until};
use tokio::process::{Child, Command};

use super::commands::hyla;
use super::crashes::killed_at;

const HOUR: Duration = Duration::from_secs(3600);

/// The demonstration's recording, for as many sessions as there are.
fn again_and_again() -> Setup {
    let mut setup = Setup::default();
    setup.recording.each_conversation = true;
    setup
}

pub(crate) async fn database(folder: &std::path::Path) -> SqlitePool {
    let file = folder.join("hyla.db");
    SqlitePool::connect(&format!("sqlite://{}", file.display())).await.expect("it is there")
}

/// Makes the database refuse every write, as a disk that has become read-only does.
async fn refuse(pool: &SqlitePool) {
    for table in ["deliveries", "jobs", "steps"] {
        for act in ["INSERT", "UPDATE", "DELETE"] {
            let trigger = format!(
                "CREATE TRIGGER refuse_{act}_{table} BEFORE {act} ON {table}
                 BEGIN SELECT raise(ABORT, 'attempt to write a readonly database'); END"
            );
            sqlx::query(sqlx::AssertSqlSafe(trigger)).execute(pool).await.expect("it is new");
        }
    }
}

async fn allow(pool: &SqlitePool) {
    for table in ["deliveries", "jobs", "steps"] {
        for act in ["INSERT", "UPDATE", "DELETE"] {
            let trigger = format!("DROP TRIGGER refuse_{act}_{table}");
            sqlx::query(sqlx::AssertSqlSafe(trigger)).execute(pool).await.expect("it is there");
        }
    }
}

#[tokio::test]
async fn a_delivery_that_cannot_be_kept_is_answered_so_and_comes_again() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    house.work().await;
    let pool = database(&house.bot.config.data_dir).await;
    refuse(&pool).await;
    let delivered = house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    assert_eq!(delivered[0].status, Some(503), "{}", delivered[0].answer);
    assert!(house.jobs().await.is_empty());
    allow(&pool).await;
    house.forge.redeliver(&delivered[0].id).await;
    house.work().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    assert_eq!(house.forge.pulls(&house.repo).len(), 1);
    house.assert_clean().await;
}

#[tokio::test]
async fn a_database_that_takes_nothing_at_any_stage_costs_no_job_and_makes_no_second_draft() {
    for stage in Stage::ALL {
        let house = House::start(again_and_again()).await;
        let issue = house.open_issue().await;
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        let pool = database(&house.bot.config.data_dir).await;
        house.clock.advance(house.bot.config.queue.settle);
        let worker = house.bot.worker("test".into());
        let stop = Stop::default();
        let spoil = async {
            loop {
                let jobs = house.jobs().await;
                if jobs.first().is_some_and(|row| row.job.state == (State::Running { stage })) {
                    return refuse(&pool).await;
                }
                tokio::task::yield_now().await;
            }
        };
        let (stepped, ()) = tokio::join!(worker.step(house.bot.as_ref(), &stop), spoil);
        assert!(stepped.is_err(), "{stage:?}: the worker rests after that");
        house.clock.advance(house.bot.config.queue.lease);
        assert!(worker.step(house.bot.as_ref(), &stop).await.is_err(), "{stage:?}: no claim");
        allow(&pool).await;
        house.work_through_retries().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{stage:?}: {}", end.operator);
        house.assert_one_of_each(issue, stage).await;
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_an_hour_holds_no_job_up_for_an_hour() {
    for stage in [Stage::Ask, Stage::Session, Stage::Publish] {
        let house = House::start(again_and_again()).await;
        let issue = house.open_issue().await;
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        killed_at(&house, stage).await;
        house.clock.rewind(HOUR);
        assert!(!house.step().await, "{stage:?}: whoever has it may be alive");
        house.clock.advance(house.bot.config.queue.lease);
        house.work_through_retries().await;
        assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{stage:?}");
        assert_eq!(house.forge.pulls(&house.repo).len(), 1, "{stage:?}");
        assert_eq!(house.status_comments(issue).len(), 1, "{stage:?}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_while_a_job_waits_makes_it_wait_no_longer() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    house.forge.fault(Matcher::new("*", "*"), Fault::down(503, "back soon"), 1);
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work().await;
    assert!(house.bot.store.next_due().await.expect("the store answers").is_some());
    house.clock.rewind(24 * HOUR);
    house.work_for(HOUR).await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    house.assert_clean().await;
}

#[tokio::test]
async fn a_clock_that_jumps_a_day_ahead_leads_to_no_second_draft() {
    for stage in Stage::ALL {
        let house = House::start(again_and_again()).await;
        let second = house.second_bot().await;
        let issue = house.open_issue().await;
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        house.clock.advance(house.bot.config.queue.settle);
        let (one, two) = (house.bot.worker("one".into()), second.worker("two".into()));
        let stop = Stop::default();
        let jump = async {
            loop {
                // On a busy machine a short stage is over before anybody looks.
                match house.jobs().await.first().map(|row| &row.job.state) {
                    Some(State::Running { stage: reached }) if *reached >= stage => break,
                    Some(State::Ended { .. }) => break,
                    Some(State::Queued | State::Running { .. }) | None => {}
                }
                tokio::task::yield_now().await;
            }
            house.clock.advance(24 * HOUR);
            two.step(&second, &stop).await
        };
        let (first, other) = tokio::join!(one.step(house.bot.as_ref(), &stop), jump);
        assert!(first.is_ok() && other.is_ok(), "{stage:?}: {first:?} {other:?}");
        house.work_through_retries().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{stage:?}: {}", end.operator);
        assert_eq!(house.forge.pulls(&house.repo).len(), 1, "{stage:?}");
        assert_eq!(house.status_comments(issue).len(), 1, "{stage:?}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn an_upgrade_finishes_what_the_release_before_has_begun() {
    let house = House::start(again_and_again()).await;
    let (title, body) = demo_issue();
    let ann = house.forge.person("ann");
    for _ in 0..3 {
        ann.open_issue(&house.repo, title, body, &["hyla"]).await;
    }
    // The data folder of the former release has a database of its own.
    let data = house.folder().join("former");
    std::fs::create_dir(&data).expect("it is ours");
    std::fs::write(data.join("hyla.db"), "").expect("it is ours");
    let pool = database(&data).await;
    let former = include_str!("fixtures/ledger_0005.sql");
    sqlx::raw_sql(former).execute(&pool).await.expect("it is SQL");
    pool.close().await;
    let config = config::Config { data_dir: data, ..house.bot.config.clone() };
    let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
    let bot = Bot::open(config, &house.secrets(), hyla_binary(), clock).await;
    let bot = bot.expect("a database of the release before opens");
    let worker = bot.worker("test".into());
    let stop = Stop::default();
    while worker.step(&bot, &stop).await.expect("the store answers") {}

    let rows = bot.store.jobs(10).await.expect("the store answers");
    let ends: BTreeMap<u64, Outcome> = rows
        .iter()
        .map(|row| match &row.job.state {
            State::Ended { end } => (row.job.subject.issue, end.outcome),
            other => panic!("job {} is {other:?}: {:?}", row.job.id, row.last_error),
        })
        .collect();
    let expected =
        [(1, Outcome::DraftPr), (2, Outcome::DraftPr), (3, Outcome::NoFix(NoFix::NoChange))];
    assert_eq!(ends, BTreeMap::from(expected));
    let mut heads: Vec<String> =
        house.forge.pulls(&house.repo).into_iter().map(|pull| pull.head).collect();
    heads.sort();
    assert_eq!(heads, ["hyla/issue-1-1", "hyla/issue-2-1"]);
    for issue in 1..=3 {
        assert_eq!(house.status_comments(issue).len(), 1, "issue {issue}");
        let subject = rows.iter().find(|row| row.job.subject.issue == issue).expect("it is there");
        let history = bot.store.history(&subject.job.subject).await.expect("the store answers");
        assert!(!history.steps.is_empty(), "issue {issue}");
        assert_eq!(history.deliveries.len(), usize::from(issue < 3), "issue {issue}");
    }
    house.forge.assert_clean();
}

/// A recording whose first call is a long sleep, by which a test knows that the agent works.
fn sleepy(words: &str) -> Recording {
    Recording { each_conversation: true, ..demo_recording().begun_by(Turn::bash(words)) }
}

async fn announced(outside: &Outside, issue: u64) {
    let repo = &outside.repo;
    until("the draft is announced", || {
        let comments = outside.forge.comments(repo, issue);
        comments.iter().any(|comment| comment.body.contains("Hyla: draft ready"))
    })
    .await;
    assert_eq!(outside.forge.comments(repo, issue).len(), 1);
    assert_eq!(outside.forge.pulls(repo).len(), 1);
}

/// A service whose files cannot grow any more once `limit` says so.
fn confined(outside: &Outside) -> Child {
    Command::new("env")
        .arg("--ignore-signal=XFSZ")
        .arg(hyla_binary())
        .args(["serve", "--config", &outside.file])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts")
}

/// Sets the largest size that a file of the service may grow to, in bytes or `unlimited`.
async fn limit(service: &Child, size: &str) {
    let pid = service.id().expect("it runs").to_string();
    let fsize = format!("--fsize={size}:unlimited");
    let done = Command::new("prlimit").args(["--pid", &pid, &fsize]).status().await;
    assert!(done.expect("util-linux is there").success());
}

#[tokio::test]
async fn a_full_disk_refuses_deliveries_and_loses_no_job() {
    let words = format!("sleep {}.5", 2);
    let marker = format!("{words}; : {}", 200_000 + std::process::id());
    let short = "[queue]\nlease = \"3s\"\nheartbeat = \"1s\"\n";
    let outside = Outside::start(sleepy(&marker), short).await;
    let repo = outside.repo.clone();
    let mut service = confined(&outside);
    outside.is_heard().await;
    let ann = outside.forge.person("ann");
    let issue = outside.open_issue(&["hyla"]).await;
    until("the agent works", || lives(&marker)).await;

    // Nothing can be added to the log of the database, which grows with each transaction.
    let log = outside.data().join("hyla.db-wal");
    let n_bytes = std::fs::metadata(&log).expect("it is there").len();
    limit(&service, &n_bytes.to_string()).await;
    let other = ann.open_issue(&repo, "Another", "one", &[]).await;
    outside.forge.settle().await;
    let delivered = outside.forge.deliveries();
    let refused = delivered.last().expect("it was sent");
    assert_eq!(refused.status, Some(503), "{}", refused.answer);
    until("the agent has done its work", || !lives(&marker)).await;
    assert!(outside.forge.pulls(&repo).is_empty());
    limit(&service, "unlimited").await;

    announced(&outside, issue).await;
    outside.forge.redeliver(&refused.id).await;
    let explained =
        hyla(&["explain", &format!("acme/hours#{other}"), "--config", &outside.file]).await;
    assert!(explained.stdout.contains("(issues) came"), "{}{}", explained.stdout, explained.stderr);
    send(&service, Signal::SIGTERM);
    let status = tokio::time::timeout(PATIENCE, service.wait()).await.expect("it stops");
    assert!(status.expect("it is ours").success());
    outside.forge.assert_clean();
}

/// Where a service is when it is told to stop.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// It waits for this request, which is never answered.
    Asking(&'static str, &'static str),
    /// The agent sleeps.
    AgentSleeps,
    /// Its job has reached this stage, or one after it.
    Reached(Stage),
}

#[tokio::test]
async fn a_service_that_is_told_to_stop_at_any_stage_parks_and_the_next_one_finishes() {
    for moment in [
        Moment::Asking("GET", "/api/v1/repos/acme/hours/issues/1"),
        Moment::Asking("POST", "/acme/hours.git/git-upload-pack"),
        Moment::AgentSleeps,
        Moment::Reached(Stage::Gate),
        Moment::Reached(Stage::Evidence),
        Moment::Asking("POST", "/acme/hours.git/git-receive-pack"),
        Moment::Asking("POST", "/api/v1/repos/acme/hours/pulls"),
    ] {
        told_to_stop(moment).await;
    }
}

async fn told_to_stop(moment: Moment) {
    let words = format!("sleep {}", 300_000 + std::process::id());
    let recording = match moment {
        Moment::AgentSleeps => {
            let mut recording = sleepy(&words);
            // The second session has no reason to sleep.
            recording.each_conversation = false;
            recording
        }
        Moment::Asking(..) | Moment::Reached(_) => sleepy("true"),
    };
    let slow = "[evidence.test_commands]\n\"acme/hours\" = \"sleep 0.5; python3 -m unittest discover -s tests\"\n";
    let outside = Outside::start(recording, slow).await;
    if let Moment::Asking(method, path) = moment {
        outside.forge.fault(Matcher::new(method, path), Fault::Hang, 1);
    }
    let mut first = outside.serve_logged();
    outside.is_heard().await;
    let issue = outside.open_issue(&["hyla"]).await;
    match moment {
        Moment::Asking(method, path) => {
            until("it asks", || {
                let asked = outside.forge.requests();
                asked.iter().any(|request| request.method == method && request.path.ends_with(path))
            })
            .await;
        }
        Moment::AgentSleeps => until("the agent sleeps", || lives(&words)).await,
        Moment::Reached(stage) => reached(&outside, stage).await,
    }
    send(&first, Signal::SIGTERM);
    let status = tokio::time::timeout(PATIENCE, first.wait()).await.expect("it stops");
    assert!(status.expect("it is ours").success(), "{moment:?}");
    assert!(!lives(&words), "{moment:?}");
    let jobs = hyla(&["jobs", "--config", &outside.file, "--json"]).await;
    let jobs: serde_json::Value = serde_json::from_str(&jobs.stdout).expect("it is JSON");
    let (state, attempt) = (&jobs[0]["state"], &jobs[0]["attempt"]);
    assert!(state == "queued" && attempt == 0 || state == "draft_pr", "{moment:?}: {jobs:#}");

    let mut second = outside.serve_logged();
    announced(&outside, issue).await;
    send(&second, Signal::SIGTERM);
    let status = tokio::time::timeout(PATIENCE, second.wait()).await.expect("it stops");
    assert!(status.expect("it is ours").success(), "{moment:?}");
    outside.forge.assert_clean();
}

/// Waits until a job has entered a stage, as the ledger's steps tell.
async fn reached(outside: &Outside, stage: Stage) {
    let pool = database(&outside.data()).await;
    let begun = std::time::Instant::now();
    let wanted = format!("%\"entered\"%\"{}\"%", stage.name());
    loop {
        let steps: i64 = sqlx::query_scalar("SELECT count(*) FROM steps WHERE step_json LIKE ?")
            .bind(&wanted)
            .fetch_one(&pool)
            .await
            .expect("the database answers");
        if steps > 0 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {stage:?}");
        tokio::time::sleep(LOOK / 4).await;
    }
}
