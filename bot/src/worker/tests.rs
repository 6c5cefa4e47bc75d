//! The worker on a real store, with work that a test writes down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::DateTime;
use tokio::sync::Notify;

use super::{Stop, Verdict, Work, Worker};
use crate::clock::{Clock, Manual};
use crate::job::{Failure, Job, NoFix, Outcome, Stage, State, Subject};
use crate::reply;
use crate::store::sqlite::Sqlite;
use crate::store::{Lease, NewDelivery, Store};

struct Bench {
    worker: Worker,
    clock: Arc<Manual>,
    stop: Stop,
    _folder: tempfile::TempDir,
}

async fn bench() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Sqlite::open(&folder.path().join("hyla.db")).await.unwrap());
    let clock = Arc::new(Manual::new(DateTime::from_timestamp(1_800_000_000, 0).unwrap()));
    let worker = Worker {
        store,
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        queue: config::Queue { heartbeat: Duration::from_millis(5), ..config::Queue::default() },
        name: "w".into(),
        wake: Arc::new(Notify::new()),
    };
    let delivery = NewDelivery {
        forge: "main".into(),
        id: "d".into(),
        event: "issues".into(),
        payload: vec![],
        subject: Some(Subject { forge: "main".into(), repo: "a/b".parse().unwrap(), issue: 7 }),
        about: None,
        due: clock.now(),
        note: None,
        sighting: None,
        command: None,
    };
    worker.store.accept(&delivery, clock.now()).await.unwrap();
    Bench { worker, clock, stop: Stop::default(), _folder: folder }
}

/// Work that gives the same verdict each time, and counts.
struct Same<F>(F, AtomicU32, AtomicU32);

fn same<F: Fn() -> Verdict + Send + Sync>(verdict: F) -> Same<F> {
    Same(verdict, AtomicU32::new(0), AtomicU32::new(0))
}

#[async_trait]
impl<F: Fn() -> Verdict + Send + Sync> Work for Same<F> {
    async fn job(&self, _: &Job, _: &Lease, _: &Stop) -> Verdict {
        self.1.fetch_add(1, Ordering::Relaxed);
        (self.0)()
    }

    async fn close(&self, _: &Job, _: &Lease, verdict: Verdict) -> Verdict {
        self.2.fetch_add(1, Ordering::Relaxed);
        verdict
    }
}

fn retry(after: Option<Duration>) -> Verdict {
    let end = reply::failed(Failure::ModelDown, "no answer".into());
    Verdict::Retry { why: "no answer".into(), end, after }
}

fn unreachable() -> Verdict {
    let end = reply::failed(Failure::ForgeDown, "no answer".into());
    Verdict::Unreachable { why: "no answer".into(), end, after: None }
}

impl Bench {
    async fn state(&self) -> State {
        self.worker.store.jobs(1).await.unwrap()[0].job.state.clone()
    }
}

#[tokio::test]
async fn attempts_back_off_and_end_with_the_last_failure() {
    let bench = bench().await;
    let work = same(|| retry(None));
    for wait in [30, 60] {
        assert!(bench.worker.step(&work, &bench.stop).await.unwrap());
        bench.clock.advance(Duration::from_secs(wait - 1));
        assert!(!bench.worker.step(&work, &bench.stop).await.unwrap(), "before {wait} s");
        bench.clock.advance(Duration::from_secs(1));
    }
    assert!(bench.worker.step(&work, &bench.stop).await.unwrap());
    let State::Ended { end } = bench.state().await else { panic!() };
    assert_eq!(end.outcome, Outcome::Failed(Failure::ModelDown));
    assert_eq!(work.1.into_inner(), 3);
}

#[tokio::test]
async fn a_forge_that_is_out_of_reach_is_waited_for_through_the_day() {
    let bench = bench().await;
    let work = same(unreachable);
    let start = bench.clock.now();
    let mut waits = Vec::new();
    while let Some(due) = bench.worker.store.next_due().await.unwrap() {
        let wait = (due - bench.clock.now()).to_std().unwrap();
        waits.push(wait.as_secs());
        bench.clock.advance(wait);
        assert!(bench.worker.step(&work, &bench.stop).await.unwrap());
    }
    assert_eq!(waits[..8], [0, 30, 30, 60, 120, 240, 480, 600]);
    let State::Ended { end } = bench.state().await else { panic!() };
    assert_eq!(end.outcome, Outcome::Failed(Failure::ForgeDown));
    let lasted = (bench.clock.now() - start).to_std().unwrap();
    let patience = bench.worker.queue.forge_patience;
    assert!(lasted >= patience && lasted <= patience + bench.worker.queue.backoff_limit);
}

#[tokio::test]
async fn a_panic_on_the_last_attempt_is_told_like_any_end() {
    let bench = bench().await;
    let work = same(|| panic!("on purpose"));
    for _ in 0..3 {
        assert!(bench.worker.step(&work, &bench.stop).await.unwrap());
        bench.clock.advance(bench.worker.queue.backoff_limit);
    }
    let State::Ended { end } = bench.state().await else { panic!() };
    assert_eq!(end.outcome, Outcome::Failed(Failure::Internal));
    assert_eq!(work.2.into_inner(), 3);
}

#[tokio::test]
async fn a_wait_that_was_asked_for_is_kept() {
    let bench = bench().await;
    let work = same(|| retry(Some(Duration::from_secs(500))));
    assert!(bench.worker.step(&work, &bench.stop).await.unwrap());
    bench.clock.advance(Duration::from_secs(499));
    assert!(!bench.worker.step(&work, &bench.stop).await.unwrap());
    bench.clock.advance(Duration::from_secs(1));
    assert!(bench.worker.step(&work, &bench.stop).await.unwrap());
}

#[tokio::test]
async fn no_wait_that_was_asked_for_is_longer_than_the_longest() {
    for asked in [86_400 * 30, u64::MAX] {
        let bench = bench().await;
        let work = same(|| retry(Some(Duration::from_secs(asked))));
        assert!(bench.worker.step(&work, &bench.stop).await.unwrap());
        bench.clock.advance(bench.worker.queue.backoff_limit);
        assert!(bench.worker.step(&work, &bench.stop).await.unwrap(), "{asked}");
    }
}

#[tokio::test]
async fn a_panic_fails_one_attempt_of_one_job() {
    let bench = bench().await;
    let work = same(|| panic!("on purpose"));
    assert!(bench.worker.step(&work, &bench.stop).await.unwrap());
    assert_eq!(bench.state().await, State::Queued);
}

#[tokio::test]
async fn a_worker_that_dies_each_time_is_given_up_by_the_next() {
    let bench = bench().await;
    let work = same(|| Verdict::Ended(reply::no_fix(NoFix::NoChange)));
    for _ in 0..3 {
        let now = bench.clock.now();
        bench
            .worker
            .store
            .claim("dies", now, now + bench.worker.queue.lease)
            .await
            .unwrap()
            .unwrap();
        bench.clock.advance(bench.worker.queue.lease);
    }
    assert!(bench.worker.step(&work, &bench.stop).await.unwrap());
    let State::Ended { end } = bench.state().await else { panic!() };
    assert_eq!(end.outcome, Outcome::Failed(Failure::Internal));
    assert_eq!((work.1.into_inner(), work.2.into_inner()), (0, 1));
}

/// Work that ends only when it is told to.
struct Endless;

#[async_trait]
impl Work for Endless {
    async fn job(&self, _: &Job, _: &Lease, stop: &Stop) -> Verdict {
        stop.stopped().await;
        Verdict::Parked
    }

    async fn close(&self, _: &Job, _: &Lease, verdict: Verdict) -> Verdict {
        verdict
    }
}

#[tokio::test]
async fn a_stop_parks_the_job_and_does_not_count_it() {
    let bench = bench().await;
    let running = bench.worker.run(&Endless, &bench.stop);
    let stopping = async {
        while !matches!(bench.state().await, State::Running { .. }) {
            tokio::task::yield_now().await;
        }
        bench.stop.stop();
    };
    tokio::join!(running, stopping);
    let row = bench.worker.store.jobs(1).await.unwrap().remove(0);
    assert_eq!((row.job.state, row.job.attempt), (State::Queued, 0));
}

#[tokio::test]
async fn a_worker_whose_lease_was_taken_writes_nothing() {
    let bench = bench().await;
    let losing = bench.worker.step(&Endless, &bench.stop);
    let taking = async {
        while !matches!(bench.state().await, State::Running { .. }) {
            tokio::task::yield_now().await;
        }
        // The other one's clock is ahead, so that it finds the lease expired.
        let later = bench.clock.now() + chrono::TimeDelta::hours(1);
        loop {
            if let Some((_, lease)) = bench.worker.store.claim("other", later, later).await.unwrap()
            {
                return lease;
            }
        }
    };
    let (stepped, lease) = tokio::join!(losing, taking);
    assert!(stepped.unwrap());
    let end = reply::no_fix(NoFix::NoChange);
    bench.worker.store.end(&lease, &end, bench.clock.now()).await.unwrap();
    assert_eq!(bench.state().await, State::Ended { end });
}

#[test]
fn a_verdict_reads_as_words_in_the_log() {
    let end = || reply::failed(Failure::ForgeDown, "cannot read issue 7: no answer".into());
    let why = || "no answer".to_owned();
    for (verdict, words) in [
        (Verdict::Ended(end()), "failed(forge_down): cannot read issue 7: no answer"),
        (Verdict::Untold { end: end(), why: why() }, "failed(forge_down), not told yet: no answer"),
        (Verdict::Retry { why: why(), end: end(), after: None }, "to be tried again: no answer"),
        (
            Verdict::Unreachable { why: why(), end: end(), after: None },
            "the forge is out of reach: no answer",
        ),
    ] {
        assert_eq!(verdict.to_string(), words);
    }
}

/// Work that writes to the ledger all the time.
struct Writes(Arc<dyn Store>);

#[async_trait]
impl Work for Writes {
    async fn job(&self, _: &Job, lease: &Lease, _: &Stop) -> Verdict {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        for _ in 0..300 {
            self.0.enter(lease, Stage::Session, now).await.unwrap();
        }
        Verdict::Ended(reply::no_fix(NoFix::NoChange))
    }

    async fn close(&self, _: &Job, _: &Lease, verdict: Verdict) -> Verdict {
        verdict
    }
}

#[tokio::test]
async fn a_heartbeat_does_not_hold_up_what_the_job_is_writing() {
    let mut bench = bench().await;
    bench.worker.queue.heartbeat = Duration::from_millis(1);
    let work = Writes(Arc::clone(&bench.worker.store));
    // Each of the two would wait for the other until the database gives up, after a quarter of a minute.
    let step = bench.worker.step(&work, &bench.stop);
    assert!(tokio::time::timeout(Duration::from_secs(12), step).await.unwrap().unwrap());
    let State::Ended { end } = bench.state().await else { panic!() };
    assert_eq!(end.outcome, Outcome::NoFix(NoFix::NoChange));
}
