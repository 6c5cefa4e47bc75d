//! Where sweeps stand, what they may take, and what became of drafts.

use std::time::Duration;

use super::*;
use crate::job::RepoName;
use crate::store::{Fate, SweepAsk, Taken};

#[tokio::test]
async fn a_sweep_moves_on_to_later_instants_only_and_is_paused_and_resumed_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    assert_eq!(store.sweep("n").await.unwrap(), None);
    assert!(store.begin_sweep("n", at(10), true).await.unwrap());
    assert!(!store.begin_sweep("n", at(10), false).await.unwrap(), "it has come as far");
    assert!(!store.begin_sweep("n", at(5), false).await.unwrap());
    assert!(store.begin_sweep("n", at(20), false).await.unwrap());
    let state = store.sweep("n").await.unwrap().unwrap();
    assert_eq!((state.instant, state.is_over), (at(20), false));
    store.finish_sweep("n", at(10)).await.unwrap();
    assert!(!store.sweep("n").await.unwrap().unwrap().is_over, "that was another instant");
    store.finish_sweep("n", at(20)).await.unwrap();
    assert!(store.sweep("n").await.unwrap().unwrap().is_over);

    let since = async || store.sweep("n").await.unwrap().unwrap().since;
    store.follow_schedule("n", "0 1 * * *", at(25)).await.unwrap();
    assert_eq!(since().await, at(20), "an earlier release wrote no schedule");
    store.follow_schedule("n", "0 1 * * *", at(26)).await.unwrap();
    assert_eq!(since().await, at(20));
    store.follow_schedule("n", "0 2 * * *", at(27)).await.unwrap();
    assert_eq!(since().await, at(27));

    assert!(!store.resume_sweep("n", at(30)).await.unwrap(), "it was not paused");
    assert!(store.pause_sweep("n", "why", at(31)).await.unwrap());
    assert!(!store.pause_sweep("n", "another", at(32)).await.unwrap());
    let state = store.sweep("n").await.unwrap().unwrap();
    assert_eq!(state.paused, Some((at(31), "why".into())));
    assert!(store.resume_sweep("n", at(40)).await.unwrap());
    let state = store.sweep("n").await.unwrap().unwrap();
    assert_eq!((state.paused, state.resumed_at), (None, Some(at(40))));
}

#[tokio::test]
async fn a_sweep_takes_no_issue_that_was_asked_about_and_none_beside_another_planner() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let ask = async |issue, n_known, now| {
        let (subject, instant, since) = (&subject(issue), at(0), at(-86_400));
        let ask = SweepAsk { subject, name: "n", instant, n_known, since, cap: 3 };
        store.ask_by_sweep(&ask, at(now)).await.unwrap()
    };
    identified(store.as_ref(), 7, "main:acme/app#7@label:1").await;
    assert_eq!(ask(7, 0, 10).await, Taken::WasAsked);
    let Taken::Job(first) = ask(8, 0, 10).await else { panic!("nothing speaks against it") };
    assert_eq!(ask(8, 1, 11).await, Taken::WasAsked);
    assert_eq!(ask(9, 0, 11).await, Taken::Raced);
    assert!(matches!(ask(9, 1, 12).await, Taken::Job(_)));
    assert_eq!(ask(10, 2, 12).await, Taken::IsFull, "three may become drafts");
    let other: RepoName = "ACME/App".parse().unwrap();
    assert_eq!(store.pending("main", &other).await.unwrap(), 3);
    let asked = store.asked("main").await.unwrap();
    assert_eq!(asked.iter().map(|it| it.issue).collect::<Vec<_>>(), [7, 8, 9]);
    assert!(store.asked("other").await.unwrap().is_empty());

    let (job, lease) = claim(store.as_ref(), 20).await.unwrap();
    assert_eq!((job.id, job.key.as_deref()), (first, Some("main:acme/app#8@sweep:n:1800000000")));
    let swept = store.swept("n", at(-1), at(30)).await.unwrap();
    assert_eq!(
        (swept.len(), swept[0].took, swept[1].took),
        (2, Duration::from_secs(10), Duration::ZERO)
    );
    store.end(&lease, &end(), at(25)).await.unwrap();
    let swept = store.swept("n", at(-1), at(90)).await.unwrap();
    assert_eq!((swept[0].has_ended, swept[0].took), (true, Duration::from_secs(5)));
    assert!(store.swept("n", at(13), at(90)).await.unwrap().is_empty());
    assert!(store.swept("nn", at(-1), at(90)).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_became_of_a_draft_is_noted_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let (job, lease) = identified(store.as_ref(), 7, "main:acme/app#7@label:1").await;
    assert!(store.drafts(10).await.unwrap().is_empty());
    store.note_input(&lease, &CommitId("c".repeat(40)), "d", "tadpole", at(9)).await.unwrap();
    store.note_pull(&lease, 3, at(9)).await.unwrap();
    let open = store.open_drafts(10).await.unwrap();
    assert_eq!((open.len(), open[0].pull, open[0].model.as_deref()), (1, 3, Some("tadpole")));
    let closed = Fate::Closed { why: Some("no".into()) };
    store.note_fate(job.id, &closed, at(9)).await.unwrap();
    store.note_fate(job.id, &Fate::Gone, at(10)).await.unwrap();
    assert!(store.open_drafts(10).await.unwrap().is_empty());
    assert_eq!(store.drafts(10).await.unwrap()[0].fate, Some((closed, at(9))));
}
