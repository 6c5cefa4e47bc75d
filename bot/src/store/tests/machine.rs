//! The job's states under random histories: several workers, crashes, lost leases, a clock that jumps, deliveries that
//! repeat, labels that come and go; on the real store. What each verb may do is written down here once more, as a rule.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sqlx::SqlitePool;

use super::*;
use crate::audit;
use crate::input::Input;

const LEASE: i64 = 60;
const ISSUES: u64 = 3;
const WORKERS: usize = 3;

/// One thing that happens.
#[derive(Debug, Clone)]
enum Happens {
    Delivery {
        id: u8,
        issue: u64,
    },
    Label {
        issue: u64,
    },
    Unlabel {
        issue: u64,
    },
    Command {
        issue: u64,
        key: u8,
    },
    Claim {
        worker: usize,
    },
    Verb {
        worker: usize,
        verb: Verb,
    },
    Crash {
        worker: usize,
    },
    /// A worker that was thought dead writes under a lease of long ago.
    Ghost {
        lease: usize,
        verb: Verb,
    },
    Clock {
        by: i64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Renew,
    Identify,
    Drop,
    Enter(Stage),
    Comment,
    Ready,
    Session,
    Words,
    Input,
    Pull,
    End,
    Retry(i64),
    Wait(i64),
    Owe(i64),
    Park,
}

fn verb() -> impl Strategy<Value = Verb> {
    use Verb::{
        Comment, Drop, End, Enter, Identify, Input, Owe, Park, Pull, Ready, Renew, Retry, Session,
        Wait, Words,
    };
    prop_oneof![
        Just(Renew),
        Just(Identify),
        Just(Identify),
        Just(Drop),
        proptest::sample::select(&Stage::ALL[..]).prop_map(Enter),
        Just(Comment),
        Just(Ready),
        Just(Session),
        Just(Words),
        Just(Input),
        Just(Pull),
        Just(End),
        (0..900_i64).prop_map(Retry),
        (0..900_i64).prop_map(Wait),
        (0..900_i64).prop_map(Owe),
        Just(Park),
    ]
}

fn happens() -> impl Strategy<Value = Happens> {
    let issue = 1..=ISSUES;
    let worker = 0..WORKERS;
    prop_oneof![
        3 => (0..12_u8, issue.clone()).prop_map(|(id, issue)| Happens::Delivery { id, issue }),
        2 => issue.clone().prop_map(|issue| Happens::Label { issue }),
        1 => issue.clone().prop_map(|issue| Happens::Unlabel { issue }),
        1 => (issue, 0..3_u8).prop_map(|(issue, key)| Happens::Command { issue, key }),
        6 => worker.clone().prop_map(|worker| Happens::Claim { worker }),
        9 => (worker.clone(), verb()).prop_map(|(worker, verb)| Happens::Verb { worker, verb }),
        1 => worker.prop_map(|worker| Happens::Crash { worker }),
        3 => (0..20_usize, verb()).prop_map(|(lease, verb)| Happens::Ghost { lease, verb }),
        2 => prop_oneof![0..200_i64, Just(3600), Just(-3600), Just(86_400), Just(-86_400)]
            .prop_map(|by| Happens::Clock { by }),
    ]
}

/// One job as the database has it.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
struct Kept {
    id: i64,
    issue: i64,
    key: Option<String>,
    phase: String,
    state: String,
    attempt: i64,
    lease_token: Option<String>,
    lease_until: Option<i64>,
    rest: String,
}

/// The store, the world around it, and who holds what.
struct World {
    store: Arc<dyn Store>,
    pool: SqlitePool,
    now: i64,
    /// Which ask stands on each issue.
    asks: BTreeMap<u64, u32>,
    n_asks: u32,
    held: Vec<Option<(Job, Lease)>>,
    leases: Vec<(Job, Lease)>,
    delivered: BTreeSet<u8>,
}

impl World {
    async fn new(folder: &Path) -> Self {
        let store = open(folder).await;
        let path = folder.join("hyla.db");
        let pool = SqlitePool::connect(&format!("sqlite://{}", path.display())).await.unwrap();
        Self {
            store,
            pool,
            now: 0,
            asks: BTreeMap::new(),
            n_asks: 0,
            held: vec![None; WORKERS],
            leases: vec![],
            delivered: BTreeSet::new(),
        }
    }

    async fn jobs(&self) -> Vec<Kept> {
        sqlx::query_as(
            "SELECT id, issue, key, phase, json_extract(state_json, '$.state') AS state, attempt,
                    lease_token, lease_until,
                    json_array(state_json, due_at, comment, ready_json, pull, end_json, input_json,
                        base_commit, input_digest, last_error, waiting_since, ask_number, asked_by,
                        created_at, updated_at) AS rest
             FROM jobs ORDER BY id",
        )
        .fetch_all(&self.pool)
        .await
        .unwrap()
    }

    async fn n_steps(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM steps").fetch_one(&self.pool).await.unwrap()
    }

    async fn happen(&mut self, event: &Happens) {
        let before = self.jobs().await;
        let n_steps = self.n_steps().await;
        let now = at(self.now);
        match event {
            Happens::Delivery { id, issue } => {
                let kept = self.store.accept(&delivery(&format!("d{id}"), Some(*issue)), now).await;
                let is_new = self.delivered.insert(*id);
                assert_eq!(kept.unwrap() == super::Kept::Repeated, !is_new);
            }
            Happens::Label { issue } => {
                self.n_asks += 1;
                self.asks.insert(*issue, self.n_asks);
            }
            Happens::Unlabel { issue } => drop(self.asks.remove(issue)),
            Happens::Command { issue, key } => {
                let key = format!("command-{issue}-{key}");
                let job = self.store.ask(&subject(*issue), &key, now).await.unwrap();
                assert_eq!(self.store.ask(&subject(*issue), &key, now).await.unwrap(), job);
            }
            Happens::Claim { worker } => {
                if self.held[*worker].is_none()
                    && let Some(claimed) = claim(&*self.store, self.now).await
                {
                    self.leases.push(claimed.clone());
                    self.held[*worker] = Some(claimed);
                }
            }
            Happens::Verb { worker, verb } => {
                if let Some((job, lease)) = self.held[*worker].clone() {
                    let gave_up = self.act(&before, &job, &lease, *verb).await;
                    if gave_up {
                        self.held[*worker] = None;
                    }
                }
            }
            Happens::Crash { worker } => self.held[*worker] = None,
            Happens::Ghost { lease, verb } => {
                if let Some((job, lease)) = self.leases.get(*lease).cloned() {
                    self.act(&before, &job, &lease, *verb).await;
                }
            }
            Happens::Clock { by } => self.now += by,
        }
        let after = self.jobs().await;
        check_all(&after);
        check_change(&before, &after);
        let changed = before.iter().filter(|old| moved(old, &after)).count()
            + after.iter().filter(|new| before.iter().all(|old| old.id != new.id)).count();
        assert!(self.n_steps().await - n_steps >= i64::try_from(changed).unwrap(), "{event:?}");
    }

    /// Uses a lease. It works if, and only if, the database has it; otherwise nothing changes. Returns whether the
    /// worker has nothing to hold any more.
    async fn act(&self, before: &[Kept], job: &Job, lease: &Lease, verb: Verb) -> bool {
        let holds = before.iter().any(|kept| {
            kept.id == job.id.0 && kept.lease_token.as_deref() == Some(lease.token.as_str())
        });
        match self.try_to(job, lease, verb).await {
            Ok(gives_up) => {
                assert!(holds, "{verb:?} worked under a lost lease");
                gives_up
            }
            Err(Error::LostLease { job: lost }) => {
                assert!(!holds && lost == job.id, "{verb:?} refused a lease that holds");
                assert_eq!(self.jobs().await, before, "{verb:?} wrote under a lost lease");
                true
            }
            Err(error) => panic!("{verb:?}: {error}"),
        }
    }

    async fn try_to(&self, job: &Job, lease: &Lease, verb: Verb) -> Result<bool, Error> {
        let (store, now) = (&*self.store, at(self.now));
        let due = |wait: i64| at(self.now + wait);
        let (base, words) =
            (CommitId("a".into()), Input::of("t", "b", &crate::redact::Redactor::default()));
        let ready = Ready {
            commit: base.clone(),
            branch: "b".into(),
            base_branch: "main".into(),
            title: "t".into(),
            body: "b".into(),
        };
        match verb {
            Verb::Renew => store.renew(lease, at(self.now + LEASE)).await?,
            Verb::Identify => {
                let known = store.job(job.id).await?.and_then(|row| row.job.key);
                let Some(key) = known.or_else(|| self.asked(job)) else {
                    return self.still(lease).await;
                };
                let identified = store.identify(lease, &key, Some("ann"), now).await?;
                return Ok(matches!(identified, Identified::Other(_)));
            }
            // As the story does: only a look that found no ask is dropped.
            Verb::Drop => {
                let row = store.job(job.id).await?;
                if row.is_some_and(|row| row.job.key.is_some()) {
                    return self.still(lease).await;
                }
                store.drop_job(lease, "x", now).await?;
                return Ok(true);
            }
            Verb::Enter(stage) => store.enter(lease, stage, now).await?,
            Verb::Comment => store.note_comment(lease, 1).await?,
            Verb::Ready => store.note_ready(lease, &ready, now).await?,
            Verb::Session => store.note_session(lease, 1, "s", now).await?,
            Verb::Words => store.note_words(lease, &words).await?,
            Verb::Input => store.note_input(lease, &base, "d", "m", now).await?,
            Verb::Pull => store.note_pull(lease, 4, now).await?,
            Verb::End => {
                store.end(lease, &end(), now).await?;
                return Ok(true);
            }
            Verb::Retry(wait) => {
                store.retry(lease, due(wait), "x", now).await?;
                return Ok(true);
            }
            Verb::Wait(wait) => {
                store.wait(lease, due(wait), "x", now).await?;
                return Ok(true);
            }
            Verb::Owe(wait) => {
                store.owe(lease, &end(), due(wait), "x", now).await?;
                return Ok(true);
            }
            Verb::Park => {
                store.park(lease, now).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Nothing but the question whether the lease holds.
    async fn still(&self, lease: &Lease) -> Result<bool, Error> {
        self.store.renew(lease, at(self.now + LEASE)).await?;
        Ok(false)
    }

    /// The key of the ask that a look at the job's issue finds now.
    fn asked(&self, job: &Job) -> Option<String> {
        self.asks.get(&job.subject.issue).map(|ask| format!("label-{ask}"))
    }

    /// All workers die, and kind ones carry on: every job ends.
    async fn drain(&mut self) {
        self.held = vec![None; WORKERS];
        for _ in 0..1000 {
            let Some(due) = self.store.next_due().await.unwrap() else { return };
            self.now = self.now.max(due.timestamp() - at(0).timestamp() + 1);
            let Some((job, lease)) = claim(&*self.store, self.now).await else {
                // What is due waits for another job of its issue.
                self.now += 10;
                continue;
            };
            let now = at(self.now);
            let Some(key) = job.key.clone().or_else(|| self.asked(&job)) else {
                self.store.drop_job(&lease, "nobody asks", now).await.unwrap();
                continue;
            };
            match self.store.identify(&lease, &key, None, now).await.unwrap() {
                Identified::Other(_) => {}
                Identified::Mine { .. } => self.store.end(&lease, &end(), now).await.unwrap(),
            }
        }
        panic!("the queue never empties");
    }
}

fn moved(old: &Kept, after: &[Kept]) -> bool {
    let new = after.iter().find(|new| new.id == old.id);
    new.is_none_or(|new| (&new.phase, &new.lease_token) != (&old.phase, &old.lease_token))
}

/// What holds of every database.
fn check_all(jobs: &[Kept]) {
    let keys: Vec<&String> = jobs.iter().filter_map(|job| job.key.as_ref()).collect();
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "a key has two jobs");
    for job in jobs {
        assert_eq!(job.phase, job.state, "{job:?}");
        let is_running = job.phase == "running";
        assert_eq!(job.lease_token.is_some(), is_running, "{job:?}");
        assert_eq!(job.lease_until.is_some(), is_running, "{job:?}");
        assert!(job.attempt >= 0, "{job:?}");
    }
}

/// What holds of every change.
fn check_change(before: &[Kept], after: &[Kept]) {
    for old in before {
        match after.iter().find(|new| new.id == old.id) {
            // Only a look that found nothing of its own goes away, and only out of a worker's hands.
            None => assert!(old.phase == "running" && old.key.is_none(), "{old:?} is gone"),
            Some(new) => {
                let is_legal = match (old.phase.as_str(), new.phase.as_str()) {
                    ("ended", "ended") => old == new,
                    ("queued" | "running", "running") | ("running", "queued" | "ended") => true,
                    ("queued", "queued") => old.attempt == new.attempt,
                    _ => false,
                };
                assert!(is_legal, "{old:?} became {new:?}");
                assert!(old.key.is_none() || old.key == new.key, "{old:?} became {new:?}");
                assert!((new.attempt - old.attempt).abs() <= 1, "{old:?} became {new:?}");
            }
        }
    }
    // A second job of an issue is claimed only where no lease on another one holds.
    for new in after.iter().filter(|new| new.phase == "running") {
        let taken =
            before.iter().find(|old| old.id == new.id && old.lease_token != new.lease_token);
        let Some(until) = taken.and(new.lease_until) else { continue };
        let now = until - LEASE * 1_000_000;
        for other in after.iter().filter(|other| other.id != new.id && other.issue == new.issue) {
            assert!(other.lease_until.is_none_or(|until| until <= now), "{other:?} beside {new:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_history_leads_to_an_illegal_state_and_every_history_ends(
        events in proptest::collection::vec(happens(), 1..70)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let mut world = World::new(folder.path()).await;
            for event in &events {
                world.happen(event).await;
            }
            // The world is kind from here on: what is asked for is delivered once more.
            for (issue, _) in world.asks.clone() {
                let id = format!("last-{issue}");
                world.store.accept(&delivery(&id, Some(issue)), at(world.now)).await.unwrap();
            }
            world.drain().await;
            let jobs = world.jobs().await;
            check_all(&jobs);
            assert!(jobs.iter().all(|job| job.phase == "ended"), "{jobs:?}");
            let verified = audit::verify(world.store.as_ref(), vec![], &mut |_| Ok(())).await.unwrap();
            assert_eq!(verified.head, world.store.audit_head().await.unwrap());
            for ask in world.asks.values() {
                let key = format!("label-{ask}");
                assert_eq!(jobs.iter().filter(|job| job.key.as_ref() == Some(&key)).count(), 1);
            }
        });
    }
}
