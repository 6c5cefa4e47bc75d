//! The queue's mechanics around one job at a time: claim, heartbeat, end, retry with backoff, park. What a job does is
//! none of its business.
//!
//! A job whose lease is lost is stopped and writes nothing more; a job that panics fails alone.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::clock::{Clock, later};
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

    fn child(&self) -> Self {
        Self(self.0.child_token())
    }
}

/// What a job's work came to.
#[derive(Debug)]
pub enum Verdict {
    /// It ended.
    Ended(End),
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
    /// It was stopped and can be claimed again.
    Parked,
    /// Another worker has it.
    LeaseLost,
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
            Self::Dropped { why } => Self::Dropped { why: change(&why) },
            Self::Retry { why, end: own, after } => {
                Self::Retry { why: change(&why), end: end(own), after }
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
    /// Tells people of an end that the worker decided on by itself.
    async fn gave_up(&self, job: &Job, lease: &Lease, end: &End);
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
    /// Claims one due job and carries it to its end, a retry or a park. Returns false if nothing was due.
    ///
    /// # Errors
    /// The database failed.
    pub async fn step(&self, work: &dyn Work, stop: &Stop) -> Result<bool, store::Error> {
        let now = self.clock.now();
        let Some((job, lease)) =
            self.store.claim(&self.name, now, later(now, self.queue.lease)).await?
        else {
            return Ok(false);
        };
        let span = tracing::info_span!("job", job.id = %job.id, issue = %job.subject, attempt = job.attempt);
        async {
            let verdict = if job.attempt > self.queue.attempts {
                // Its worker died each time before it could say how the attempt ended.
                let end =
                    reply::failed(Failure::Internal, "every attempt ended without a word".into());
                work.gave_up(&job, &lease, &end).await;
                Verdict::Ended(end)
            } else {
                self.attempt(work, &job, &lease, stop).await
            };
            self.settle(&job, &lease, verdict).await
        }
        .instrument(span)
        .await?;
        Ok(true)
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

    /// Runs the job under a heartbeat.
    async fn attempt(&self, work: &dyn Work, job: &Job, lease: &Lease, stop: &Stop) -> Verdict {
        let stop = stop.child();
        let job_done = std::panic::AssertUnwindSafe(work.job(job, lease, &stop)).catch_unwind();
        tokio::pin!(job_done);
        let mut beat = tokio::time::interval(self.queue.heartbeat);
        beat.tick().await;
        // Counted from the last renewal that worked: without one, another worker may have the job.
        let mut held_until = tokio::time::Instant::now() + self.queue.lease;
        loop {
            tokio::select! {
                biased;
                verdict = &mut job_done => {
                    return verdict.unwrap_or_else(|_| {
                        let end = reply::failed(Failure::Internal, "the job panicked; the log has the place".into());
                        Verdict::Retry { why: end.operator.clone(), end, after: None }
                    });
                }
                _ = beat.tick() => {
                    match self.store.renew(lease, later(self.clock.now(), self.queue.lease)).await {
                        Ok(()) => held_until = tokio::time::Instant::now() + self.queue.lease,
                        Err(store::Error::LostLease { .. }) => return Verdict::LeaseLost,
                        Err(error) => {
                            tracing::warn!(error = %chain(&error), "a heartbeat failed");
                            if tokio::time::Instant::now() >= held_until {
                                return Verdict::LeaseLost;
                            }
                        }
                    }
                }
            }
        }
    }

    async fn settle(&self, job: &Job, lease: &Lease, verdict: Verdict) -> Result<(), store::Error> {
        let now = self.clock.now();
        let written = match verdict {
            Verdict::Ended(end) => self.end(lease, &end).await,
            Verdict::Dropped { why } => {
                tracing::info!(why, "nothing to do");
                self.store.drop_job(lease, &why).await
            }
            Verdict::Joined(other) => {
                tracing::info!(other = %other, "another job answers this already");
                Ok(())
            }
            Verdict::Retry { end, .. } if job.attempt >= self.queue.attempts => {
                self.end(lease, &end).await
            }
            Verdict::Retry { why, after, .. } => {
                // Nobody outside decides how long a job lies still.
                let asked = after.unwrap_or_default().min(self.queue.backoff_limit);
                let wait = asked.max(self.backoff(job.attempt));
                tracing::warn!(why, wait = %humantime::format_duration(wait), "will be tried again");
                self.store.retry(lease, later(now, wait), &why).await
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
                Ok(())
            }
            other => other,
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
        self.store.end(lease, end, self.clock.now()).await
    }

    /// Doubles with each attempt, up to the limit.
    fn backoff(&self, attempt: u32) -> Duration {
        let factor = 1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        self.queue.backoff.saturating_mul(factor).min(self.queue.backoff_limit)
    }
}
