//! The contract of every store, on the embedded one.

mod arrivals;
mod clock;
mod history;
mod machine;
mod sweeps;

use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::sqlite::Sqlite;
use super::{Error, Identified, Kept, Lease, NewDelivery, Store};
use crate::job::{CommitId, End, Job, JobId, NoFix, Outcome, Ready, Stage, State, Subject};
use crate::reply;

fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
}

fn subject(issue: u64) -> Subject {
    Subject { forge: "main".into(), repo: "acme/app".parse().unwrap(), issue }
}

fn delivery(id: &str, issue: Option<u64>) -> NewDelivery {
    NewDelivery {
        forge: "main".into(),
        id: id.into(),
        event: "issue_label".into(),
        payload: b"{}".to_vec(),
        subject: issue.map(subject),
        about: None,
        due: at(1),
        note: None,
        sighting: None,
        command: None,
    }
}

fn end() -> End {
    reply::no_fix(NoFix::NoChange)
}

async fn open(folder: &Path) -> Arc<dyn Store> {
    Arc::new(Sqlite::open(&folder.join("hyla.db")).await.unwrap())
}

async fn claim(store: &dyn Store, second: i64) -> Option<(Job, Lease)> {
    store.claim("w", at(second), at(second + 60)).await.unwrap()
}

/// A job that has been claimed and has its key.
async fn identified(store: &dyn Store, issue: u64, key: &str) -> (Job, Lease) {
    store.accept(&delivery(&format!("d-{key}"), Some(issue)), at(0)).await.unwrap();
    let (job, lease) = claim(store, 2).await.unwrap();
    let identified = store.identify(&lease, key, Some("ann"), at(2)).await.unwrap();
    assert!(matches!(identified, Identified::Mine { .. }));
    (job, lease)
}

#[tokio::test]
async fn looks_at_one_issue_are_joined_until_one_is_claimed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let Kept::Queued(first) = store.accept(&delivery("a", Some(7)), at(0)).await.unwrap() else {
        panic!()
    };
    assert_eq!(store.accept(&delivery("b", Some(7)), at(0)).await.unwrap(), Kept::Joined(first));
    assert_eq!(store.accept(&delivery("b", Some(7)), at(0)).await.unwrap(), Kept::Repeated);
    assert_eq!(store.accept(&delivery("c", None), at(0)).await.unwrap(), Kept::Ignored);
    assert!(claim(&*store, 0).await.is_none(), "it is not due yet");
    assert_eq!(store.next_due().await.unwrap(), Some(at(1)));
    let (job, _) = claim(&*store, 1).await.unwrap();
    assert_eq!((job.id, job.attempt, job.subject), (first, 1, subject(7)));
    assert!(
        matches!(store.accept(&delivery("d", Some(7)), at(2)).await.unwrap(), Kept::Queued(id) if id != first)
    );
}

#[tokio::test]
async fn a_thousand_deliveries_at_once_make_one_job() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..1000 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            store.accept(&delivery(&format!("d{}", number % 500), Some(7)), at(0)).await.unwrap()
        });
    }
    let kept = tasks.join_all().await;
    let count = |wanted: fn(&Kept) -> bool| kept.iter().filter(|each| wanted(each)).count();
    assert_eq!(count(|kept| matches!(kept, Kept::Queued(_))), 1);
    assert_eq!(count(|kept| matches!(kept, Kept::Repeated)), 500);
    assert_eq!(store.jobs(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn sixteen_workers_claim_each_job_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    for issue in 1..=40 {
        store.accept(&delivery(&format!("d{issue}"), Some(issue)), at(0)).await.unwrap();
    }
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let mut mine = Vec::new();
            while let Some((job, _)) = claim(&*store, 5).await {
                mine.push(job.id);
            }
            mine
        });
    }
    let mut claimed: Vec<JobId> = tasks.join_all().await.concat();
    claimed.sort();
    assert_eq!(claimed, (1..=40).map(JobId).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_key_belongs_to_one_job() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (first, lease) = identified(&*store, 7, "k1").await;
    let again = store.identify(&lease, "k1", Some("ann"), at(3)).await.unwrap();
    assert_eq!(again, Identified::Mine { ask_number: 1 });
    store.end(&lease, &end(), at(3)).await.unwrap();

    store.accept(&delivery("replay", Some(7)), at(4)).await.unwrap();
    let (second, lease) = claim(&*store, 5).await.unwrap();
    assert_eq!(
        store.identify(&lease, "k1", Some("ann"), at(5)).await.unwrap(),
        Identified::Other(first.id)
    );
    assert!(store.job(second.id).await.unwrap().is_none());

    let (_, lease) = identified(&*store, 7, "k2").await;
    assert_eq!(
        store.identify(&lease, "k2", Some("ann"), at(6)).await.unwrap(),
        Identified::Mine { ask_number: 2 }
    );
    let asked = store.ask(&subject(8), "k3", at(6)).await.unwrap();
    assert_eq!(store.ask(&subject(8), "k3", at(7)).await.unwrap(), asked);
}

#[tokio::test]
async fn two_asks_on_one_issue_run_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (_, lease) = identified(&*store, 7, "k1").await;
    store.accept(&delivery("more", Some(7)), at(3)).await.unwrap();
    store.accept(&delivery("other", Some(8)), at(3)).await.unwrap();
    let (job, _) = claim(&*store, 4).await.unwrap();
    assert_eq!(job.subject, subject(8));
    assert!(claim(&*store, 4).await.is_none());
    store.end(&lease, &end(), at(5)).await.unwrap();
    assert_eq!(claim(&*store, 5).await.unwrap().0.subject, subject(7));
}

#[tokio::test]
async fn a_lost_lease_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (job, old) = identified(&*store, 7, "k1").await;
    assert!(claim(&*store, 30).await.is_none(), "the lease holds");
    store.renew(&old, at(100)).await.unwrap();
    assert!(claim(&*store, 99).await.is_none(), "it was renewed");
    let (again, lease) = claim(&*store, 100).await.unwrap();
    assert_eq!((again.id, again.attempt, again.key.as_deref()), (job.id, 2, Some("k1")));

    let ready = Ready {
        commit: CommitId("c".into()),
        branch: "b".into(),
        base_branch: "main".into(),
        title: "t".into(),
        body: "b".into(),
    };
    let base = CommitId("a".into());
    let lost: Vec<Result<(), Error>> = vec![
        store.renew(&old, at(200)).await,
        store.identify(&old, "k9", Some("ann"), at(101)).await.map(|_| ()),
        store.drop_job(&old, "x", at(101)).await,
        store.enter(&old, Stage::Session, at(101)).await,
        store.note_comment(&old, 1).await,
        store.note_ready(&old, &ready, at(9)).await,
        store.note_input(&old, &base, "d", "m", at(9)).await,
        store.note_pull(&old, 1, at(9)).await,
        store.end(&old, &end(), at(101)).await,
        store.retry(&old, at(101), "x", at(101)).await,
        store.wait(&old, at(101), "x", at(101)).await,
        store.owe(&old, &end(), at(101), "x", at(101)).await,
        store.park(&old, at(101)).await,
    ];
    for (verb, outcome) in lost.iter().enumerate() {
        assert!(
            matches!(outcome, Err(Error::LostLease { job: lost }) if *lost == job.id),
            "{verb}: {outcome:?}"
        );
    }
    let row = store.job(job.id).await.unwrap().unwrap();
    assert!(row.job.comment.is_none() && row.job.ready.is_none() && row.base.is_none());

    store.note_comment(&lease, 11).await.unwrap();
    store.note_ready(&lease, &ready, at(9)).await.unwrap();
    store.note_input(&lease, &base, "d", "m", at(9)).await.unwrap();
    store.note_pull(&lease, 4, at(9)).await.unwrap();
    store.end(&lease, &end(), at(102)).await.unwrap();
    let row = store.job(job.id).await.unwrap().unwrap();
    assert_eq!((row.job.comment, row.job.ready, row.job.pull), (Some(11), Some(ready), Some(4)));
    assert!(
        matches!(row.job.state, State::Ended { end } if end.outcome == Outcome::NoFix(NoFix::NoChange))
    );
    assert!(matches!(store.end(&lease, &end(), at(103)).await, Err(Error::LostLease { .. })));
    assert_eq!(store.next_due().await.unwrap(), None);
}

#[tokio::test]
async fn a_retry_counts_and_a_park_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (job, lease) = identified(&*store, 7, "k1").await;
    store.retry(&lease, at(50), "the forge is down", at(3)).await.unwrap();
    assert!(claim(&*store, 49).await.is_none());
    let row = store.job(job.id).await.unwrap().unwrap();
    assert_eq!(
        (row.job.state, row.last_error.as_deref()),
        (State::Queued, Some("the forge is down"))
    );
    let (job, lease) = claim(&*store, 50).await.unwrap();
    assert_eq!(job.attempt, 2);
    store.park(&lease, at(51)).await.unwrap();
    assert_eq!(claim(&*store, 51).await.unwrap().0.attempt, 2);
}

#[tokio::test]
async fn a_wait_for_the_forge_counts_no_attempt_and_an_end_is_kept_until_people_know() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (_, lease) = identified(&*store, 7, "k1").await;
    store.wait(&lease, at(50), "the forge is down", at(10)).await.unwrap();
    let (job, lease) = claim(&*store, 50).await.unwrap();
    assert_eq!((job.attempt, job.waiting_since, job.untold), (1, Some(at(10)), None));
    store.owe(&lease, &end(), at(70), "the forge is down", at(60)).await.unwrap();
    assert_eq!(store.next_due().await.unwrap(), Some(at(70)));
    let (job, lease) = claim(&*store, 70).await.unwrap();
    assert_eq!((job.attempt, job.waiting_since), (1, Some(at(10))));
    assert_eq!(job.untold, Some(end()));
    store.enter(&lease, Stage::Checkout, at(70)).await.unwrap();
    let since = async || store.job(job.id).await.unwrap().unwrap().job.waiting_since;
    assert_eq!(since().await, Some(at(10)), "the forge may yet refuse to be spoken in");
    store.enter(&lease, Stage::Session, at(70)).await.unwrap();
    assert_eq!(since().await, None, "the forge has answered everything");
    store.end(&lease, &end(), at(71)).await.unwrap();
    let row = store.job(job.id).await.unwrap().unwrap();
    assert_eq!((row.job.state, row.job.untold), (State::Ended { end: end() }, None));
}

#[tokio::test]
async fn a_dropped_job_leaves_its_reason_on_the_delivery() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hyla.db");
    let store = Sqlite::open(&path).await.unwrap();
    store.accept(&delivery("a", Some(7)), at(0)).await.unwrap();
    let (job, lease) = claim(&store, 2).await.unwrap();
    store.drop_job(&lease, "the issue is closed", at(2)).await.unwrap();
    assert!(store.job(job.id).await.unwrap().is_none());
    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    let note: String =
        sqlx::query_scalar("SELECT note FROM deliveries").fetch_one(&pool).await.unwrap();
    assert_eq!(note, "the issue is closed");
}

#[tokio::test]
async fn what_was_accepted_survives_a_reopening_and_a_senseless_row_ends_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hyla.db");
    {
        let store = open(folder.path()).await;
        store.accept(&delivery("a", Some(7)), at(0)).await.unwrap();
        store.accept(&delivery("b", Some(8)), at(0)).await.unwrap();
    }
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    sqlx::query("UPDATE jobs SET owner = '../..' WHERE issue = 7").execute(&pool).await.unwrap();
    let store = open(folder.path()).await;
    assert_eq!(claim(&*store, 5).await.unwrap().0.subject, subject(8));
    assert!(claim(&*store, 5).await.is_none());

    sqlx::query("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (99, 'x', 1, x'00', 0)")
        .execute(&pool)
        .await
        .unwrap();
    assert!(matches!(Sqlite::open(&path).await, Err(Error::Later { version: 99, .. })));
    assert!(matches!(Sqlite::open(folder.path()).await, Err(Error::Open { .. })));
}

#[tokio::test]
async fn a_look_without_a_delivery_is_queued_only_for_an_ask_that_no_job_knows() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let look_for = async |key: &str| store.look_for(&subject(7), key, at(1), at(0)).await.unwrap();
    let Kept::Queued(first) = look_for("k1").await else { panic!() };
    assert_eq!(look_for("k1").await, Kept::Joined(first));
    let (job, lease) = claim(store.as_ref(), 2).await.unwrap();
    assert_eq!((job.id, job.key), (first, None));
    store.identify(&lease, "k1", Some("ann"), at(2)).await.unwrap();
    assert_eq!(look_for("k1").await, Kept::Repeated);
    let Kept::Queued(second) = look_for("k2").await else { panic!() };
    // A webhook that comes late joins it.
    let late = store.accept(&delivery("late", Some(7)), at(3)).await.unwrap();
    assert_eq!(late, Kept::Joined(second));
}
