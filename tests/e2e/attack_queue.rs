//! What a forge may say about waiting, a worker that comes back late, a repository by another name: what is left of an
//! accepted ask then.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bot::bot::Bot;
use bot::clock::Clock;
use bot::forge::Permission;
use bot::job::{Failure, Outcome};
use bot::reconcile::{self, Memory};
use bot::worker::Stop;
use futures_util::FutureExt;
use tests::forge::{Fault, Matcher, Request};
use tests::house::{House, Setup, WEBHOOK_SECRET, demo_issue, hyla_binary};
use tests::story::{meddled, short, short_house};
use tokio::sync::Notify;

/// The forge answers every look at the issue by "later", once.
async fn told_to_wait(retry_after: &str) -> (House, u64) {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    let later = Fault::Status {
        status: 503,
        body: r#"{"message":"maintenance"}"#.into(),
        headers: vec![("retry-after".into(), retry_after.into())],
    };
    house.forge.fault(Matcher::new("GET", "/api/v1/repos/acme/hours/issues/1"), later, 1);
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    (house, issue)
}

#[tokio::test]
async fn no_retry_after_of_a_forge_makes_a_worker_panic() {
    for header in ["18446744073709551615", "9223372036854775", "100000000000000"] {
        let (house, _) = told_to_wait(header).await;
        let worked = AssertUnwindSafe(house.work()).catch_unwind().await;
        assert!(worked.is_ok(), "the worker panicked by `Retry-After: {header}`");
    }
}

#[tokio::test]
async fn a_forge_cannot_put_a_job_off_for_years() {
    let (house, issue) = told_to_wait("315360000").await;
    house.work().await;
    // Whatever is asked later joins the job that sleeps.
    let ann = house.forge.person("ann");
    ann.remove_label(&house.repo, issue, "hyla").await;
    ann.add_label(&house.repo, issue, "hyla").await;
    let due = house.bot.store.next_due().await.expect("the store answers").expect("it waits");
    let wait = (due - house.clock.now()).to_std().unwrap_or_default();
    assert!(wait <= Duration::from_secs(24 * 3600), "nobody works on the issue for {wait:?}");
}

/// A worker whose first request of this kind reaches the forge only after another one has finished the job.
async fn overtaken(method: &str, pattern: &str) -> (House, u64) {
    let patient = |config: &mut config::Config| {
        config.forges.values_mut().for_each(|forge| forge.timeout = Duration::from_secs(120));
    };
    let house = House::start(Setup { change: Box::new(patient), ..short() }).await;
    let second = house.second_bot().await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.clock.advance(house.bot.config.queue.settle);
    let gate = Arc::new(Notify::new());
    house.forge.fault(Matcher::new(method, pattern), Fault::Waits(Arc::clone(&gate)), 1);
    let (one, two) = (house.bot.worker("one".into()), second.worker("two".into()));
    let stop = Stop::default();
    let is_it = |asked: &Request| asked.method == method && asked.path.contains("comments");
    let other = async {
        while !house.forge.requests().iter().any(is_it) {
            tokio::task::yield_now().await;
        }
        house.clock.advance(house.bot.config.queue.lease);
        assert!(two.step(&second, &stop).await.expect("the store answers"));
        assert_eq!(house.end().await.outcome, Outcome::DraftPr);
        gate.notify_one();
    };
    let (first, ()) = tokio::join!(one.step(house.bot.as_ref(), &stop), other);
    assert!(first.expect("the store answers"));
    (house, issue)
}

#[tokio::test]
async fn what_a_worker_says_after_another_one_has_finished_does_not_stay() {
    for (method, pattern) in [
        ("PATCH", "/api/v1/repos/acme/hours/issues/comments/*"),
        ("POST", "/api/v1/repos/acme/hours/issues/*/comments"),
    ] {
        let (house, issue) = overtaken(method, pattern).await;
        house.assert_one_of_each(issue, method).await;
        let comment = house.status_comments(issue).join("\n");
        assert!(comment.contains("draft ready"), "{method}: {comment}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn an_issue_of_a_repository_that_was_made_anew_is_another_issue() {
    let house = short_house().await;
    let (title, body) = demo_issue();
    let ann = house.forge.person("ann");
    ann.open_issue(&house.repo, title, body, &["hyla"]).await;
    house.work().await;
    assert_eq!(house.forge.pulls(&house.repo).len(), 1);
    house.forge.delete_repository(&house.repo);
    house.forge.add_repository("acme", "hours", short().files);
    for (login, permission) in [("ann", Permission::Write), ("hyla", Permission::Admin)] {
        house.forge.set_permission(&house.repo, login, permission);
    }
    house.forge.register_hook(&house.repo, &house.hook, WEBHOOK_SECRET);
    let issue = ann.open_issue(&house.repo, title, body, &["hyla"]).await;
    assert_eq!(issue, 1, "it has the number of the former one");
    house.work().await;
    assert_eq!(house.forge.pulls(&house.repo).len(), 1, "{:?}", house.status_comments(issue));
    assert_eq!(house.status_comments(issue).len(), 1);
    house.assert_clean().await;
}

/// Sweeps and works as a service does whose configuration has the repository's present name.
async fn swept_under(house: &House, present: &str) {
    let mut config = house.bot.config.clone();
    for forge in config.forges.values_mut() {
        forge.repositories = vec![present.to_owned()];
    }
    let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
    let bot = Bot::open(config, &house.secrets(), hyla_binary(), clock).await;
    let bot = bot.expect("the bot opens");
    reconcile::once(&bot, &mut Memory::default()).await;
    house.clock.advance(bot.config.queue.settle);
    let worker = bot.worker("renamed".into());
    while worker.step(&bot, &Stop::default()).await.expect("the store answers") {}
}

#[tokio::test]
async fn a_renamed_repository_brings_no_answered_ask_along_as_a_new_one() {
    for is_set_at_creation in [false, true] {
        let house = short_house().await;
        let issue = if is_set_at_creation {
            let (title, body) = demo_issue();
            let issue =
                house.forge.person("ann").open_issue(&house.repo, title, body, &["hyla"]).await;
            house.work().await;
            issue
        } else {
            house.labelled_and_worked().await
        };
        let pull = house.forge.pulls(&house.repo)[0].number;
        // Somebody did not like it, and left the label where it was.
        house.forge.person("ann").close(&house.repo, pull).await;
        let present = house.forge.rename_repository(&house.repo, "days");
        let n_asked = house.model.requests().len();
        swept_under(&house, &present.to_string()).await;
        assert_eq!(house.model.requests().len(), n_asked, "a second session");
        assert_eq!(house.forge.pulls(&present).len(), 1);
        assert_eq!(house.forge.comments(&present, issue).len(), 1);
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn an_ask_that_broke_by_the_repositorys_new_name_is_answered_under_that() {
    let hasty = |config: &mut config::Config| config.queue.forge_patience = Duration::from_secs(60);
    let house = House::start(Setup { change: Box::new(hasty), ..short() }).await;
    meddled(&house, async |house, _| {
        house.forge.rename_repository(&house.repo, "days");
    })
    .await;
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::Failed(Failure::RepositoryMoved));
    swept_under(&house, "acme/days").await;
    let present = "acme/days".parse().expect("that is a name");
    assert_eq!(house.forge.pulls(&present).len(), 1, "{:?}", house.end().await);
}
