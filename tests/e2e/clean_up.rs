//! What the service forgets, and what it never does while a job needs it.

use std::path::PathBuf;
use std::time::Duration;

use bot::job::Outcome;
use bot::{clean_up, publish};
use tests::forge::{Fault, Matcher};
use tests::house::House;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Bytes of all deliveries' texts, and how many deliveries there are.
async fn deliveries(house: &House) -> (i64, i64) {
    let file = house.bot.config.data_dir.join("hyla.db");
    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", file.display())).await;
    sqlx::query_as("SELECT coalesce(sum(length(payload)), 0), count(*) FROM deliveries")
        .fetch_one(&pool.expect("the database is there"))
        .await
        .expect("the database answers")
}

/// The refs by which the mirror keeps commits of jobs.
fn kept(house: &House) -> PathBuf {
    let mirror = house.bot.mirrors.existing("main", &house.repo).expect("it was fetched");
    mirror.path().join("refs/hyla/jobs")
}

#[tokio::test]
async fn an_old_job_is_forgotten_and_no_delivery_of_it_counts_twice() {
    let house = House::usual().await;
    let issue = house.labelled_and_worked().await;
    let job = house.jobs().await[0].job.id;
    let transcript = house.bot.folder(job).transcript();
    clean_up::once(&house.bot).await.expect("it works");
    assert!(transcript.exists() && kept(&house).join(job.to_string()).exists());
    assert!(deliveries(&house).await.0 > 0);

    house.clock.advance(31 * DAY);
    clean_up::once(&house.bot).await.expect("it works");
    let (n_bytes, n_deliveries) = deliveries(&house).await;
    assert!(n_bytes == 0 && n_deliveries > 0 && transcript.exists());

    house.clock.advance(60 * DAY);
    clean_up::once(&house.bot).await.expect("it works");
    assert!(!house.bot.folder(job).root().exists());
    assert!(!kept(&house).join(job.to_string()).exists());
    assert_eq!(house.jobs().await.len(), 1, "the row stays");
    for delivered in house.forge.deliveries() {
        house.forge.redeliver(&delivered.id).await;
    }
    house.work().await;
    assert_eq!((house.jobs().await.len(), house.status_comments(issue).len()), (1, 1));
    house.assert_clean().await;
}

#[tokio::test]
async fn a_job_that_is_not_finished_keeps_all_that_it_needs() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    let push = Matcher::new("POST", "/acme/hours.git/git-receive-pack");
    house.forge.fault(push, Fault::down(503, "back soon"), usize::MAX);
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work().await;
    let job = house.jobs().await[0].job.id;
    house.clock.advance(200 * DAY);
    clean_up::once(&house.bot).await.expect("it works");
    assert!(house.bot.folder(job).transcript().exists());
    assert!(kept(&house).join(job.to_string()).exists());
    house.forge.clear_faults();
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    // Twice does no harm.
    let mirror = house.bot.mirrors.existing("main", &house.repo).expect("it was fetched");
    publish::let_go(&mirror, job).await.expect("it is there");
    publish::let_go(&mirror, job).await.expect("it is gone");
    house.assert_clean().await;
}
