//! What a forge may say about waiting, and what is left of an accepted ask then.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bot::clock::Clock;
use futures_util::FutureExt;
use tests::forge::{Fault, Matcher};
use tests::house::House;

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
