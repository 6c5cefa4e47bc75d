//! A clock that jumps: what a dead worker held comes free in time, and what a living one holds stays its own.

use super::*;

#[tokio::test]
async fn a_clock_that_is_set_back_frees_a_dead_workers_job_within_one_lease() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (job, _dead) = identified(&*store, 7, "k1").await;
    // An hour back. The lease now ends an hour and a minute from here.
    assert!(claim(&*store, -3600).await.is_none(), "whoever has it may be alive");
    assert_eq!(store.next_due().await.unwrap(), Some(at(-3540)));
    assert!(claim(&*store, -3541).await.is_none());
    assert_eq!(claim(&*store, -3540).await.unwrap().0.id, job.id);
}

#[tokio::test]
async fn a_clock_that_is_set_back_takes_no_job_from_a_worker_that_renews_its_lease() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (_, lease) = identified(&*store, 7, "k1").await;
    assert!(claim(&*store, -3600).await.is_none());
    store.renew(&lease, at(-3580 + 60)).await.unwrap();
    assert!(claim(&*store, -3540).await.is_none());
    store.end(&lease, &end(), at(-3530)).await.unwrap();
}

#[tokio::test]
async fn a_clock_that_is_set_back_makes_no_job_wait_longer_than_it_was_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (_, lease) = identified(&*store, 7, "k1").await;
    store.wait(&lease, at(40), "down", at(10)).await.unwrap();
    store.accept(&delivery("more", Some(8)), at(10)).await.unwrap();
    // The look was due at once.
    let (look, lease) = claim(&*store, -3600).await.unwrap();
    assert_eq!(look.subject, subject(8));
    store.end(&lease, &end(), at(-3600)).await.unwrap();
    assert_eq!(store.next_due().await.unwrap(), Some(at(-3570)), "thirty seconds, as before");
    assert_eq!(claim(&*store, -3570).await.unwrap().0.subject, subject(7));
}
