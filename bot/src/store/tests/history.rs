//! What is remembered of an issue, whatever becomes of its jobs.

use super::*;
use crate::store::{History, Step};

async fn history(store: &dyn Store, issue: u64) -> History {
    store.history(&subject(issue)).await.unwrap()
}

/// The names of an issue's steps, in order.
async fn steps(store: &dyn Store, issue: u64) -> Vec<String> {
    let steps = history(store, issue).await.steps;
    let name =
        |step: &Step| serde_json::to_value(step).unwrap()["step"].as_str().unwrap().to_owned();
    steps.iter().map(|stepped| name(&stepped.step)).collect()
}

#[tokio::test]
async fn a_delivery_of_which_nothing_follows_says_what_it_was_about() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let note = Some("this change alone asks for nothing".to_owned());
    let ignored =
        NewDelivery { about: Some(subject(7)), note: note.clone(), ..delivery("a", None) };
    assert_eq!(store.accept(&ignored, at(0)).await.unwrap(), Kept::Ignored);
    store.accept(&delivery("b", None), at(1)).await.unwrap();
    let found = history(&*store, 7).await;
    assert_eq!(found.deliveries.len(), 1);
    assert_eq!((&found.deliveries[0].id[..], &found.deliveries[0].note), ("a", &note));
    assert_eq!((found.heard.forge, found.heard.repository), (Some(at(1)), Some(at(0))));
    // Forges do not tell letters' case in names apart.
    let other = Subject { repo: "Acme/APP".parse().unwrap(), ..subject(7) };
    assert_eq!(store.history(&other).await.unwrap().deliveries.len(), 1);
    let nothing = history(&*store, 8).await;
    assert!(nothing.deliveries.is_empty() && nothing.heard.repository.is_some());
}

#[tokio::test]
async fn a_job_leaves_a_step_for_each_change_of_its_state() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (job, lease) = identified(&*store, 7, "k1").await;
    store.enter(&lease, Stage::Checkout, at(3)).await.unwrap();
    store.retry(&lease, at(10), "no answer", at(4)).await.unwrap();
    let (_, lease) = claim(&*store, 10).await.unwrap();
    store.wait(&lease, at(20), "down", at(11)).await.unwrap();
    let (_, lease) = claim(&*store, 20).await.unwrap();
    store.park(&lease, at(21)).await.unwrap();
    let (_, dead) = claim(&*store, 22).await.unwrap();
    let (_, lease) = claim(&*store, 100).await.unwrap();
    store.owe(&lease, &end(), at(120), "down", at(101)).await.unwrap();
    let (_, lease) = claim(&*store, 120).await.unwrap();
    store.end(&lease, &end(), at(121)).await.unwrap();
    let lost = store.end(&dead, &end(), at(122)).await;
    assert!(matches!(lost, Err(Error::LostLease { .. })));
    let expected = [
        "queued",
        "claimed",
        "identified",
        "entered",
        "retried",
        "claimed",
        "waits",
        "claimed",
        "parked",
        "claimed",
        "taken_over",
        "owed",
        "claimed",
        "ended",
    ];
    assert_eq!(steps(&*store, 7).await, expected);
    let found = history(&*store, 7).await;
    assert!(found.steps.iter().all(|stepped| stepped.job == job.id));
    assert_eq!(
        found.steps.iter().map(|each| each.number).collect::<Vec<_>>(),
        (1..=14).collect::<Vec<_>>()
    );
    assert_eq!((found.steps[3].at, found.jobs.len()), (at(3), 1));
    let key = Step::Identified { key: "k1".into(), ask_number: 1, asked_by: Some("ann".into()) };
    assert_eq!(found.steps[2].step, key);
}

#[tokio::test]
async fn looks_that_came_to_nothing_stay_in_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (first, lease) = identified(&*store, 7, "k1").await;
    store.end(&lease, &end(), at(3)).await.unwrap();
    store.accept(&delivery("again", Some(7)), at(4)).await.unwrap();
    let (_, lease) = claim(&*store, 5).await.unwrap();
    store.identify(&lease, "k1", None, at(5)).await.unwrap();
    store.accept(&delivery("closed", Some(7)), at(6)).await.unwrap();
    let (dropped, lease) = claim(&*store, 7).await.unwrap();
    store.drop_job(&lease, "the issue is closed", at(7)).await.unwrap();
    let found = history(&*store, 7).await;
    assert_eq!(found.jobs.len(), 1);
    let kept = |wanted: &Step| found.steps.iter().any(|stepped| stepped.step == *wanted);
    assert!(kept(&Step::Joined { job: first.id }));
    let last = found.steps.last().unwrap();
    assert_eq!(
        (last.job, &last.step),
        (dropped.id, &Step::Dropped { why: "the issue is closed".into() })
    );
    let delivered: Vec<_> = found
        .deliveries
        .iter()
        .map(|each| (&each.id[..], each.job, each.note.as_deref()))
        .collect();
    let expected = [
        ("d-k1", Some(first.id), None),
        ("again", Some(first.id), None),
        ("closed", None, Some("the issue is closed")),
    ];
    assert_eq!(delivered, expected);
}

#[tokio::test]
async fn a_long_story_keeps_its_beginning_and_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (_, mut lease) = identified(&*store, 7, "k1").await;
    for second in 0..150 {
        store.wait(&lease, at(10 + second), "down", at(10 + second)).await.unwrap();
        lease = claim(&*store, 10 + second).await.unwrap().1;
    }
    store.end(&lease, &end(), at(500)).await.unwrap();
    let found = history(&*store, 7).await;
    let numbers: Vec<u64> = found.steps.iter().map(|stepped| stepped.number).collect();
    let expected: Vec<u64> = (1..=20).chain(125..=304).collect();
    assert_eq!(numbers, expected);
    assert!(matches!(found.steps.last().unwrap().step, Step::Ended { .. }));
}

#[tokio::test]
async fn a_step_is_written_with_the_change_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (job, lease) = identified(&*store, 7, "k1").await;
    let path = folder.path().join("hyla.db");
    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    let full = "CREATE TRIGGER full BEFORE INSERT ON steps BEGIN SELECT raise(ABORT, 'full'); END";
    sqlx::query(full).execute(&pool).await.unwrap();
    let refused = [
        store.enter(&lease, Stage::Session, at(3)).await.is_err(),
        store.retry(&lease, at(9), "x", at(3)).await.is_err(),
        store.end(&lease, &end(), at(3)).await.is_err(),
        store.accept(&delivery("more", Some(8)), at(3)).await.is_err(),
    ];
    assert_eq!(refused, [true; 4]);
    let row = store.job(job.id).await.unwrap().unwrap();
    assert_eq!(row.job.state, State::Running { stage: Stage::Ask });
    assert!(history(&*store, 8).await.deliveries.is_empty());
}

#[tokio::test]
async fn a_kept_delivery_can_be_read_again_until_it_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    store.accept(&delivery("a", None), at(0)).await.unwrap();
    let other = NewDelivery { forge: "other".into(), ..delivery("a", None) };
    store.accept(&other, at(1)).await.unwrap();
    let found = store.deliveries("a").await.unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!((&found[0].event[..], &found[0].payload[..]), ("issue_label", &b"{}"[..]));
    assert!(store.deliveries("b").await.unwrap().is_empty());
    store.forget_payloads(at(9)).await.unwrap();
    assert!(store.deliveries("a").await.unwrap()[0].payload.is_empty());
}
