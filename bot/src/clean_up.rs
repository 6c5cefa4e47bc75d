//! What the service forgets after a while: the text of deliveries, and the files and the kept commit of jobs that have
//! ended. Nothing that an unfinished job needs is touched, and every row stays, so that no delivery counts twice.
//!
//! The objects of mirrors stay. libgit2 can neither repack a repository nor tell which objects a running checkout still
//! reads; `git gc` does both, while the service is stopped.

use std::time::Duration;

use crate::bot::Bot;
use crate::clock::before;
use crate::halt::chain;
use crate::job::{JobId, Subject};
use crate::store;
use crate::worker::Stop;
use crate::{checkout, publish};

/// Jobs that are cleared in one go.
const JOBS_AT_ONCE: u32 = 100;

/// Why something was not forgotten.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database failed.
    #[error("cannot find out what may be forgotten")]
    Store(#[from] store::Error),
    /// The files of a job cannot be removed.
    #[error("cannot remove the files of job {job}")]
    Files {
        /// The job.
        job: JobId,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The commit of a job cannot be let go.
    #[error("cannot let go of the commit of job {job}")]
    Commit {
        /// The job.
        job: JobId,
        /// Why.
        #[source]
        source: publish::Error,
    },
}

/// Forgets what is old enough, now and from time to time, until it is time to stop.
pub async fn run(bot: &Bot, stop: &Stop) {
    let every: Duration = bot.config.clean_up.every;
    while !stop.is_stopped() {
        if let Err(error) = once(bot).await {
            tracing::error!(error = %chain(&error), "the clean-up failed");
        }
        stop.rest(every).await;
    }
}

/// Forgets what is old enough.
///
/// # Errors
/// The database failed. A job whose files or commit resist is logged and tried again the next time.
pub async fn once(bot: &Bot) -> Result<(), Error> {
    let (now, ages) = (bot.clock.now(), &bot.config.clean_up);
    let n_deliveries = bot.store.forget_payloads(before(now, ages.deliveries)).await?;
    let (mut n_jobs, mut after) = (0, JobId(0));
    loop {
        let old = bot.store.uncleared(before(now, ages.jobs), after, JOBS_AT_ONCE).await?;
        let Some((last, _)) = old.last() else { break };
        after = *last;
        for (job, subject) in &old {
            match clear(bot, *job, subject).await {
                Ok(()) => n_jobs += 1,
                Err(error) => tracing::error!(job.id = %job, error = %chain(&error), "kept a job"),
            }
        }
    }
    if n_deliveries > 0 || n_jobs > 0 {
        tracing::info!(n_deliveries, n_jobs, "forgot what is old");
    }
    Ok(())
}

async fn clear(bot: &Bot, job: JobId, subject: &Subject) -> Result<(), Error> {
    bot.folder(job).remove().await.map_err(|source| Error::Files { job, source })?;
    let commit = |source| Error::Commit { job, source };
    match bot.mirrors.existing(&subject.forge, &subject.repo) {
        Ok(mirror) => publish::let_go(&mirror, job).await.map_err(commit)?,
        Err(checkout::Error::NoMirror { .. }) => {}
        Err(error) => return Err(commit(error.into())),
    }
    Ok(bot.store.note_cleared(job).await?)
}
