//! A worker that dies at any stage: the next one finishes the job, and there is still one comment and one draft.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bot::bot::Bot;
use bot::clock::{Clock, System};
use bot::job::{Failure, Outcome, Stage, State};
use bot::reconcile::Memory;
use bot::serve;
use bot::worker::Stop;
use chrono::{DateTime, Utc};
use tests::forge::{Fault, Matcher};
use tests::house::{House, Setup};
use tests::story::swept;

/// Works until the job has reached a stage, and then drops the work as a kill would.
pub(crate) async fn killed_at(house: &House, stage: Stage) {
    house.clock.advance(house.bot.config.queue.settle);
    if stage == Stage::Publish {
        // The last stage is short: on a busy machine it might be over before anybody looks.
        house.forge.fault(Matcher::new("POST", "*/pulls"), Fault::Hang, 1);
    }
    let reached = async {
        loop {
            if let Some(row) = house.jobs().await.first()
                && row.job.state == (State::Running { stage })
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = reached => {}
        _ = house.step() => panic!("the job ended before {stage:?}"),
    }
    house.forge.clear_faults();
}

#[tokio::test]
async fn a_worker_that_dies_at_any_stage_leaves_one_comment_and_one_draft() {
    for stage in Stage::ALL {
        let mut setup = Setup::default();
        // The session begins anew after a crash before its patch was ready.
        setup.recording.each_conversation = true;
        let house = House::start(setup).await;
        let issue = house.open_issue().await;
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        killed_at(&house, stage).await;
        assert!(!house.step().await, "{stage:?}: the lease still holds");
        house.clock.advance(house.bot.config.queue.lease);
        house.work_through_retries().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{stage:?}: {}", end.operator);
        house.assert_one_of_each(issue, stage).await;
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_job_that_is_ready_is_published_without_another_session() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    let push = Matcher::new("POST", "/acme/hours.git/git-receive-pack");
    house.forge.fault(push, Fault::status(500, "down"), 1);
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work().await;
    let asked = house.model.requests().len();
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    assert_eq!(house.model.requests().len(), asked, "no second session");
    house.assert_clean().await;
}

#[tokio::test]
async fn a_label_that_goes_while_the_job_runs_stops_it_before_the_draft() {
    for (act, outcome) in [("unlabel", "cancelled"), ("close", "refused(issue_closed)")] {
        let house = House::usual().await;
        let issue = house.open_issue().await;
        let ann = house.forge.person("ann");
        ann.add_label(&house.repo, issue, "hyla").await;
        house.clock.advance(house.bot.config.queue.settle);
        let meddle = async {
            while house.model.requests().is_empty() {
                tokio::task::yield_now().await;
            }
            match act {
                "close" => drop(ann.close(&house.repo, issue).await),
                _ => drop(ann.remove_label(&house.repo, issue, "hyla").await),
            }
        };
        tokio::join!(house.step(), meddle);
        house.work().await;
        let jobs = house.jobs().await;
        let State::Ended { end } = &jobs.last().expect("there is a job").job.state else {
            panic!("{act}")
        };
        assert_eq!(end.outcome.to_string(), outcome, "{}", end.operator);
        assert!(house.forge.pulls(&house.repo).is_empty());
        assert!(house.forge.branches(&house.repo).len() == 1, "nothing was pushed");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_branch_that_was_pushed_before_the_label_went_is_named() {
    for (act, outcome) in [("unlabel", "cancelled"), ("close", "refused(issue_closed)")] {
        let house = House::usual().await;
        let issue = house.pushed_without_a_draft().await;
        let ann = house.forge.person("ann");
        match act {
            "close" => drop(ann.close(&house.repo, issue).await),
            _ => drop(ann.remove_label(&house.repo, issue, "hyla").await),
        }
        house.work_through_retries().await;
        assert_eq!(house.first_end().await.outcome.to_string(), outcome);
        let comment = house.status_comments(issue).concat();
        let branch = format!("`hyla/issue-{issue}-1`");
        assert!(comment.contains(&format!("pushed my branch {branch}")), "{comment}");
        assert!(comment.contains("Delete the branch"), "{comment}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn two_bots_on_one_ledger_share_the_work_and_repeat_none_of_it() {
    let mut setup = Setup::default();
    setup.recording.each_conversation = true;
    let house = House::start(setup).await;
    let second = house.second_bot().await;
    let mut issues = Vec::new();
    for _ in 0..4 {
        let issue = house.open_issue().await;
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        issues.push(issue);
    }
    house.clock.advance(house.bot.config.queue.settle);
    let stop = Stop::default();
    let workers = [house.bot.worker("one".into()), second.worker("two".into())];
    let bots: [&Bot; 2] = [&house.bot, &second];
    let both = workers.iter().zip(bots).map(|(worker, bot)| async {
        while worker.step(bot, &stop).await.expect("the store answers") {}
    });
    futures_util::future::join_all(both).await;
    let heads: Vec<String> =
        house.forge.pulls(&house.repo).into_iter().map(|pull| pull.head).collect();
    assert_eq!(heads.len(), 4, "{heads:?}");
    for issue in issues {
        assert_eq!(house.status_comments(issue).len(), 1, "issue {issue}");
        assert!(heads.contains(&format!("hyla/issue-{issue}-1")), "{heads:?}");
    }
    house.assert_clean().await;
}

/// Works until the forge has the draft, and then drops the work as a kill would.
async fn killed_with_the_draft_open(house: &House) {
    house.clock.advance(house.bot.config.queue.settle);
    let opened = async {
        while house.forge.pulls(&house.repo).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = opened => {}
        _ = house.step() => panic!("the job ended before it was killed"),
    }
    house.clock.advance(house.bot.config.queue.lease);
}

#[tokio::test]
async fn a_draft_that_is_open_is_announced_whatever_became_of_it_and_of_its_issue() {
    for act in ["nothing", "merge", "close", "unlabel"] {
        let house = House::usual().await;
        let issue = house.open_issue().await;
        let ann = house.forge.person("ann");
        ann.add_label(&house.repo, issue, "hyla").await;
        killed_with_the_draft_open(&house).await;
        let pull = house.forge.pulls(&house.repo)[0].number;
        match act {
            "merge" => {
                ann.merge(&house.repo, pull).await;
                // The draft's body says so.
                ann.close(&house.repo, issue).await;
            }
            "close" => drop(ann.close(&house.repo, pull).await),
            "unlabel" => drop(ann.remove_label(&house.repo, issue, "hyla").await),
            _ => {}
        }
        house.work_through_retries().await;
        let end = house.first_end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{act}: {}", end.operator);
        let comments = house.status_comments(issue);
        assert_eq!(comments.len(), 1, "{act}: {comments:?}");
        assert!(comments[0].contains(&end.person), "{act}: {}", comments[0]);
        assert!(comments[0].contains("Asked by `ann`"), "{act}: {}", comments[0]);
        assert_eq!(house.forge.pulls(&house.repo).len(), 1, "{act}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_lost_database_leads_to_no_pull_request_of_an_earlier_job() {
    for act in ["merge", "close"] {
        let house = House::usual().await;
        let issue = house.open_issue().await;
        let ann = house.forge.person("ann");
        // What the job of another database left: its pull request is done with, and its branch is deleted.
        let head = format!("hyla/issue-{issue}-1");
        ann.commit(&house.repo, &head, [("a.txt", "a\n")]);
        let earlier =
            house.forge.person("hyla").open_pull(&house.repo, "WIP: x", &head, "main").await;
        match act {
            "merge" => drop(ann.merge(&house.repo, earlier).await),
            _ => drop(ann.close(&house.repo, earlier).await),
        }
        ann.delete_branch(&house.repo, &head);
        ann.add_label(&house.repo, issue, "hyla").await;
        house.work().await;
        let pulls = house.forge.pulls(&house.repo);
        let heads: Vec<&str> = pulls.iter().map(|pull| pull.head.as_str()).collect();
        assert_eq!(heads, ["hyla/issue-1-1", "hyla/issue-1-2"], "{act}");
        assert!(pulls[1].is_open && pulls[1].is_draft, "{act}");
        let link = format!("pull request #{}", pulls[1].number);
        assert!(house.status_comments(issue)[0].contains(&link), "{act}");
        house.assert_clean().await;
    }
}

/// A clock that breaks whoever asks it, for so many times.
struct Broken {
    clock: Arc<dyn Clock>,
    times: AtomicU32,
}

impl Broken {
    fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, times: AtomicU32::new(0) })
    }
}

impl Clock for Broken {
    fn now(&self) -> DateTime<Utc> {
        let left =
            self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "the clock is broken on purpose");
        self.clock.now()
    }
}

#[tokio::test]
async fn a_service_whose_worker_dies_ends_as_an_error() {
    let setup = Setup {
        change: Box::new(|config| config.server.listen = ([127, 0, 0, 1], 0).into()),
        ..Setup::default()
    };
    let house = House::start(setup).await;
    let clock = Broken::new(Arc::new(System));
    let bot = house.second_bot_at(Arc::clone(&clock) as Arc<dyn Clock>).await;
    // Between two jobs, where nothing catches it.
    clock.times.store(u32::MAX, Ordering::SeqCst);
    let hangups = serve::hangups().expect("signals can be listened to");
    let served =
        serve::serve(Arc::new(bot), &house.secrets(), hangups, std::future::pending()).await;
    let error = served.expect_err("a dead worker is no success").to_string();
    assert!(error.contains("ended by itself"), "{error}");
    house.assert_clean().await;
}

#[tokio::test]
async fn a_job_that_panics_each_time_ends_with_a_word_to_people() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    killed_at(&house, Stage::Session).await;
    house.clock.advance(house.bot.config.queue.lease);
    let clock = Broken::new(Arc::clone(&house.clock) as Arc<dyn Clock>);
    let bot = house.second_bot_at(Arc::clone(&clock) as Arc<dyn Clock>).await;
    let worker = house.bot.worker("test".into());
    while house.bot.store.next_due().await.expect("the store answers").is_some() {
        clock.times.store(1, Ordering::SeqCst);
        assert!(worker.step(&bot, &Stop::default()).await.expect("the store answers"));
        house.clock.advance(house.bot.config.queue.backoff_limit);
    }
    let end = house.end().await;
    assert_eq!(end.outcome, Outcome::Failed(Failure::Internal), "{}", end.operator);
    let comments = house.status_comments(issue);
    assert!(comments.len() == 1 && comments[0].contains("could not finish"), "{comments:?}");
    house.assert_clean().await;
}

#[tokio::test]
async fn a_worker_that_dies_each_time_after_the_draft_is_open_has_done_its_job() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    killed_with_the_draft_open(&house).await;
    for _ in 1..house.bot.config.queue.attempts {
        let (now, lease) = (house.clock.now(), house.bot.config.queue.lease);
        house.bot.store.claim("dies", now, now + lease).await.expect("the store answers");
        house.clock.advance(lease);
    }
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert!(house.status_comments(issue)[0].contains("The draft is ready"));
    house.assert_clean().await;
}

#[tokio::test]
async fn a_look_whose_workers_died_each_time_is_taken_up_again() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.clock.advance(house.bot.config.queue.settle);
    let queue = &house.bot.config.queue;
    for _ in 0..queue.attempts {
        let now = house.clock.now();
        let until = now + queue.lease;
        let claimed = house.bot.store.claim("dead", now, until).await;
        assert!(claimed.expect("the store answers").is_some(), "the job is due again");
        house.clock.advance(queue.lease + Duration::from_secs(1));
    }
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    house.assert_one_of_each(issue, "at the end").await;
    house.assert_clean().await;
}

#[tokio::test]
async fn an_issue_that_is_gone_is_not_asked_for_a_day_long() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    let read = Matcher::new("GET", "/api/v1/repos/acme/hours/issues/1");
    house.forge.fault(read, Fault::status(404, "The target couldn't be found."), usize::MAX);
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work_through_retries().await;
    assert!(house.jobs().await.is_empty(), "{:?}", house.jobs().await);
    house.forge.clear_faults();
    // It was only hidden for a while, and its label is still on.
    swept(&house, &mut Memory::default()).await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    house.assert_one_of_each(issue, "at the end").await;
}
