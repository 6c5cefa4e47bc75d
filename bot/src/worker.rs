//! The queue's mechanics around one job at a time: claim, heartbeat, end, retry with backoff, park. What a job does is
//! none of its business.
//!
//! A job whose lease is lost is stopped and writes nothing more; a job that panics fails alone.

#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::clock::{Clock, doubled, later, shown};
use crate::halt::chain;
use crate::job::{End, Failure, Job, JobId, Outcome};
use crate::reply;
use crate::store::{self, Lease, Store};

/// How long the worker rests after the database failed.
const DATABASE_REST: Duration = Duration::from_secs(5);
/// How long it sleeps at most: another process on this machine may have queued a job.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);

const SHORTEST_SLEEP: Duration = Duration::from_millis(500);

/// Says to stop: the service ends, or the lease is lost.
#[derive(Debug, Clone, Default)]
pub struct Stop(CancellationToken);

impl Stop {
    /// Stops all who listen.
    pub fn stop(&self) {
        self.0.cancel();
    }

    /// Ready once it is time to stop.
    pub async fn stopped(&self) {
        self.0.cancelled().await;
    }

    /// Whether it is time to stop.
    pub fn is_stopped(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Ready after a time, or once it is time to stop.
    pub async fn rest(&self, time: Duration) {
        tokio::select! {
            () = self.stopped() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    fn child(&self) -> Self {
        Self(self.0.child_token())
    }
}

/// What a job's work came to.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// It ended.
    Ended(End),
    /// It ended, and people have yet to be told.
    Untold {
        /// How.
        end: End,
        /// Why they could not be told, for the operator.
        why: String,
    },
    /// Nobody asked for anything.
    Dropped {
        /// Why, for the operator.
        why: String,
    },
    /// Another job has its key; this one is gone.
    Joined(JobId),
    /// Something broke that may pass.
    Retry {
        /// For the operator.
        why: String,
        /// How the job ends if this was the last attempt.
        end: End,
        /// How long somebody asked to wait.
        after: Option<Duration>,
    },
    /// The forge is out of reach. That uses up no attempt.
    Unreachable {
        /// For the operator.
        why: String,
        /// How the job ends if it has waited long enough.
        end: End,
        /// How long the forge asked to wait.
        after: Option<Duration>,
    },
    /// It was stopped and can be claimed again.
    Parked,
    /// Another worker has it.
    LeaseLost,
}

impl std::fmt::Display for Verdict {
    /// For the log, in one line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(end) => write!(f, "{}: {}", end.outcome, end.operator),
            Self::Untold { end, why } => write!(f, "{}, not told yet: {why}", end.outcome),
            Self::Dropped { why } => write!(f, "nothing to do: {why}"),
            Self::Joined(other) => write!(f, "job {other} answers this already"),
            Self::Retry { why, .. } => write!(f, "to be tried again: {why}"),
            Self::Unreachable { why, .. } => write!(f, "the forge is out of reach: {why}"),
            Self::Parked => f.write_str("parked"),
            Self::LeaseLost => f.write_str("another worker has the job"),
        }
    }
}

impl Verdict {
    /// The same, with every text that may hold somebody else's words passed through `change`.
    pub fn map_text(self, change: &dyn Fn(&str) -> String) -> Self {
        let end = |end: End| End {
            person: change(&end.person),
            operator: change(&end.operator),
            next: change(&end.next),
            ..end
        };
        match self {
            Self::Ended(own) => Self::Ended(end(own)),
            Self::Untold { end: own, why } => Self::Untold { end: end(own), why: change(&why) },
            Self::Dropped { why } => Self::Dropped { why: change(&why) },
            Self::Retry { why, end: own, after } => {
                Self::Retry { why: change(&why), end: end(own), after }
            }
            Self::Unreachable { why, end: own, after } => {
                Self::Unreachable { why: change(&why), end: end(own), after }
            }
            Self::Joined(_) | Self::Parked | Self::LeaseLost => self,
        }
    }
}

/// What is done with a job.
#[async_trait]
pub trait Work: Send + Sync {
    /// Carries one job as far as it goes.
    async fn job(&self, job: &Job, lease: &Lease, stop: &Stop) -> Verdict;
    /// Whether a job may be claimed at all; otherwise all wait, and none uses up an attempt.
    fn may_claim(&self) -> bool {
        true
    }
    /// Clears up after an attempt, whatever became of it, and tells people how the job stands. The verdict comes back
    /// changed where they could not be told of an end.
    async fn close(&self, job: &Job, lease: &Lease, verdict: Verdict) -> Verdict;
    /// Told what an attempt came to, once that is written down.
    fn settled(&self, _: &Verdict) {}
}

/// One worker of the queue.
#[derive(Clone)]
pub struct Worker {
    /// The jobs.
    pub store: Arc<dyn Store>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Leases, attempts and waits.
    pub queue: config::Queue,
    /// A name for the log.
    pub name: String,
    /// Told when there may be something to claim.
    pub wake: Arc<Notify>,
}

impl Worker {
    /// Claims one due job and carries it to its end, a retry or a park. Returns false if nothing was due or may be claimed.
    ///
    /// # Errors
    /// The database failed.
    pub async fn step(&self, work: &dyn Work, stop: &Stop) -> Result<bool, store::Error> {
        if !work.may_claim() {
            return Ok(false);
        }
        let now = self.clock.now();
        let Some((job, lease)) =
            self.store.claim(&self.name, now, later(now, self.queue.lease)).await?
        else {
            return Ok(false);
        };
        self.carry(work, (&job, &lease), stop).await?;
        Ok(true)
    }

    /// The same for a job that somebody wants stopped, even where none may be worked on.
    ///
    /// # Errors
    /// The database failed.
    pub async fn step_halted(&self, work: &dyn Work, stop: &Stop) -> Result<bool, store::Error> {
        let now = self.clock.now();
        let until = later(now, self.queue.lease);
        let Some((job, lease)) = self.store.claim_halted(&self.name, now, until).await? else {
            return Ok(false);
        };
        self.carry(work, (&job, &lease), stop).await?;
        Ok(true)
    }

    async fn carry(
        &self,
        work: &dyn Work,
        (job, lease): (&Job, &Lease),
        stop: &Stop,
    ) -> Result<(), store::Error> {
        let span = tracing::info_span!("job", job.id = %job.id, issue = %job.subject, attempt = job.attempt);
        async {
            let verdict = self.held(work, job, lease, stop).await;
            work.settled(&self.settle(job, lease, verdict).await?);
            Ok(())
        }
        .instrument(span)
        .await
    }

    /// Steps until told to stop; then the running job has parked.
    pub async fn run(&self, work: &dyn Work, stop: &Stop) {
        while !stop.is_stopped() {
            let rest = match self.step(work, stop).await {
                Ok(true) => continue,
                Ok(false) => self.until_due().await,
                Err(error) => {
                    tracing::error!(error = %chain(&error), "the database failed");
                    DATABASE_REST
                }
            };
            tokio::select! {
                () = stop.stopped() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    async fn until_due(&self) -> Duration {
        match self.store.next_due().await {
            Ok(Some(due)) => {
                let wait = (due - self.clock.now()).to_std().unwrap_or(Duration::ZERO);
                // A due job that cannot be claimed waits for another job of its issue.
                wait.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)
            }
            Ok(None) | Err(_) => LONGEST_SLEEP,
        }
    }

    /// Runs the job under a heartbeat. Both go on side by side: the job may be in the middle of a transaction, and then a
    /// heartbeat that held it up would wait for the database that the job has.
    async fn held(&self, work: &dyn Work, job: &Job, lease: &Lease, stop: &Stop) -> Verdict {
        let stop = stop.child();
        tokio::select! {
            biased;
            verdict = self.attempt(work, job, lease, &stop) => verdict,
            () = self.beat(lease) => Verdict::LeaseLost,
        }
    }

    /// Renews a lease from time to time, until it is lost.
    async fn beat(&self, lease: &Lease) {
        let mut beat = tokio::time::interval(self.queue.heartbeat);
        beat.tick().await;
        // Counted from the last renewal that worked: without one, another worker may have the job.
        let mut held_until = tokio::time::Instant::now() + self.queue.lease;
        loop {
            beat.tick().await;
            match self.store.renew(lease, later(self.clock.now(), self.queue.lease)).await {
                Ok(()) => held_until = tokio::time::Instant::now() + self.queue.lease,
                Err(store::Error::LostLease { .. }) => return,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "a heartbeat failed");
                    if tokio::time::Instant::now() >= held_until {
                        return;
                    }
                }
            }
        }
    }

    /// One attempt and what is said of it. A panic in either is caught.
    async fn attempt(&self, work: &dyn Work, job: &Job, lease: &Lease, stop: &Stop) -> Verdict {
        // A look that could not be told of is a look again.
        let is_owed = job.untold.is_some();
        let verdict = if job.attempt > self.queue.attempts && !is_owed {
            // Its worker died each time before it could say how the attempt ended.
            let why = "every attempt ended without a word";
            Verdict::Ended(reply::failed(Failure::Internal, why.into()))
        } else {
            let worked = AssertUnwindSafe(work.job(job, lease, stop)).catch_unwind().await;
            worked.unwrap_or_else(|_| {
                let why = "the job panicked; the log has the place".to_owned();
                let end = reply::failed(Failure::Internal, why.clone());
                Verdict::Retry { why, end, after: None }
            })
        };
        let verdict = self.decided(job, verdict);
        let closed = AssertUnwindSafe(work.close(job, lease, verdict.clone())).catch_unwind().await;
        closed.unwrap_or(verdict)
    }

    /// The verdict, or the end where nothing is left to try.
    fn decided(&self, job: &Job, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Retry { end, .. } if job.attempt >= self.queue.attempts => Verdict::Ended(end),
            Verdict::Unreachable { end, .. } if !job.is_patient(&self.queue, self.clock.now()) => {
                Verdict::Ended(end)
            }
            verdict => verdict,
        }
    }

    /// Writes a verdict down, and returns what came of it: the lease may be lost by now.
    async fn settle(
        &self,
        job: &Job,
        lease: &Lease,
        verdict: Verdict,
    ) -> Result<Verdict, store::Error> {
        let now = self.clock.now();
        let written = match &verdict {
            Verdict::Ended(end) => self.end(lease, end).await,
            Verdict::Dropped { why } => {
                tracing::info!(why, "nothing to do");
                self.store.drop_job(lease, why, now).await
            }
            Verdict::Joined(other) => {
                tracing::info!(other = %other, "another job answers this already");
                Ok(())
            }
            Verdict::Untold { end, why } => {
                let wait = self.wait(self.outage(job), None);
                let outcome = end.outcome.to_string();
                tracing::warn!(outcome, why, wait = %shown(wait), "ended, and people will be told later");
                self.store.owe(lease, end, later(now, wait), why, now).await
            }
            Verdict::Retry { why, after, .. } => {
                let wait = self.wait(self.backoff(job.attempt), *after);
                tracing::warn!(why, wait = %shown(wait), "will be tried again");
                self.store.retry(lease, later(now, wait), why, now).await
            }
            Verdict::Unreachable { why, after, .. } => {
                let wait = self.wait(self.outage(job), *after);
                tracing::warn!(why, wait = %shown(wait), "waits for the forge");
                self.store.wait(lease, later(now, wait), why, now).await
            }
            Verdict::Parked => {
                tracing::info!("parked");
                self.store.park(lease, now).await
            }
            Verdict::LeaseLost => Err(store::Error::LostLease { job: lease.job }),
        };
        match written {
            Err(store::Error::LostLease { .. }) => {
                tracing::warn!("lost the lease; another worker has the job");
                Ok(Verdict::LeaseLost)
            }
            other => other.map(|()| verdict),
        }
    }

    async fn end(&self, lease: &Lease, end: &End) -> Result<(), store::Error> {
        let outcome = end.outcome.to_string();
        match end.outcome {
            Outcome::Failed(_) => tracing::error!(outcome, reason = end.operator, "ended"),
            Outcome::DraftPr | Outcome::NoFix(_) | Outcome::Refused(_) | Outcome::Cancelled => {
                tracing::info!(outcome, reason = end.operator, "ended");
            }
        }
        self.store.end(lease, end, self.clock.now()).await?;
        // For whoever keeps the log on another machine.
        if let Ok(Some(head)) = self.store.audit_head().await {
            tracing::info!(audit_head = %head, "the audit record goes as far");
        }
        Ok(())
    }

    /// At least so long, or as long as somebody asked for; nobody outside decides for how long a job lies still.
    fn wait(&self, least: Duration, asked: Option<Duration>) -> Duration {
        least.max(asked.unwrap_or_default()).min(self.queue.backoff_limit)
    }

    /// Doubles with each attempt.
    fn backoff(&self, attempt: u32) -> Duration {
        doubled(self.queue.backoff, attempt.saturating_sub(1))
    }

    /// As long as the forge has been out of reach, which doubles the wait each time.
    fn outage(&self, job: &Job) -> Duration {
        let since = job.waiting_since.and_then(|since| (self.clock.now() - since).to_std().ok());
        since.unwrap_or_default().max(self.queue.backoff)
    }
}
