//! Everything that must survive a restart, seen as a dozen verbs. SQL stays in this folder.
//!
//! Each verb is one transaction, and each change of a job's state leaves a step in it. A verb that takes a [`Lease`] writes
//! nothing when the lease has been lost.

mod commands;
mod history;
pub mod sqlite;
mod sweeps;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

pub use commands::{Effect, Halt, NewCommand, Order};
pub use history::{Delivered, Heard, History, Step, Stepped};
pub use sweeps::{Drafted, Fate, SweepAsk, SweepState, Swept, Taken};

use crate::audit::Head;
use crate::input::Input;
use crate::job::{CommitId, End, Job, JobId, Ready, RepoName, Stage, Subject};

/// The ledger of deliveries and jobs.
#[async_trait]
pub trait Store: Send + Sync {
    /// Keeps a delivery and, if it names a subject, a job for it: the queued job of that subject that has no key yet,
    /// or a further one that is due at `due`. One transaction.
    async fn accept(&self, delivery: &NewDelivery, now: DateTime<Utc>) -> Result<Kept, Error>;

    /// Queues a job that a person or a schedule asked for, under its key. The job that has the key already is returned
    /// instead of a second.
    async fn ask(&self, subject: &Subject, key: &str, now: DateTime<Utc>) -> Result<JobId, Error>;

    /// Takes the oldest due job for a worker: queued, or running under a lease that has expired.
    async fn claim(
        &self,
        worker: &str,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Result<Option<(Job, Lease)>, Error>;

    /// Prolongs a lease.
    async fn renew(&self, lease: &Lease, until: DateTime<Utc>) -> Result<(), Error>;

    /// Gives a job its semantic key, its ask number and the login of who asked, or, if another job has the key, removes
    /// this job and names that one. What went wrong before it had its key is forgotten.
    async fn identify(
        &self,
        lease: &Lease,
        key: &str,
        asked_by: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Identified, Error>;

    /// Removes a job whose issue asks for nothing, and notes why on its deliveries.
    async fn drop_job(&self, lease: &Lease, why: &str, now: DateTime<Utc>) -> Result<(), Error>;

    /// Notes the stage that a job has reached.
    async fn enter(&self, lease: &Lease, stage: Stage, now: DateTime<Utc>) -> Result<(), Error>;

    /// Notes the status comment's id.
    async fn note_comment(&self, lease: &Lease, comment: i64) -> Result<(), Error>;

    /// Notes what stands ready to be published.
    async fn note_ready(
        &self,
        lease: &Lease,
        ready: &Ready,
        now: DateTime<Utc>,
    ) -> Result<(), Error>;

    /// Notes that a session has ended, with the length of its transcript so far and the SHA-256 of that.
    async fn note_session(
        &self,
        lease: &Lease,
        bytes: u64,
        sha256: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error>;

    /// Notes what people say on the issue, which from then on steers the job whatever becomes of the issue.
    async fn note_words(&self, lease: &Lease, words: &Input) -> Result<(), Error>;

    /// How a job's deliveries showed its issue, in the order in which they came; of very many the newest.
    async fn sightings(&self, id: JobId) -> Result<Vec<Sighting>, Error>;

    /// Notes the base commit, the digest of the frozen input, and the model that is asked.
    async fn note_input(
        &self,
        lease: &Lease,
        base: &CommitId,
        digest: &str,
        model: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error>;

    /// Notes the draft pull request's number.
    async fn note_pull(&self, lease: &Lease, pull: u64, now: DateTime<Utc>) -> Result<(), Error>;

    /// Ends a job.
    async fn end(&self, lease: &Lease, end: &End, now: DateTime<Utc>) -> Result<(), Error>;

    /// Gives a job back to be claimed again at `due`, with a sentence for the operator.
    async fn retry(
        &self,
        lease: &Lease,
        due: DateTime<Utc>,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error>;

    /// Gives a job back to be claimed again at `due` and does not count the attempt: its forge is out of reach.
    async fn wait(
        &self,
        lease: &Lease,
        due: DateTime<Utc>,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error>;

    /// Keeps how a job ended, and gives it back to be claimed again at `due`, so that people are told.
    async fn owe(
        &self,
        lease: &Lease,
        end: &End,
        due: DateTime<Utc>,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error>;

    /// Gives a job back at once and does not count the attempt: the service stops, or its lease is handed over.
    async fn park(&self, lease: &Lease, now: DateTime<Utc>) -> Result<(), Error>;

    /// Empties the text of deliveries from before an instant whose job has ended, or that have none. Returns how many.
    async fn forget_payloads(&self, before: DateTime<Utc>) -> Result<u64, Error>;

    /// Jobs that ended before an instant and whose files are still there, by number, from the one after `after`.
    async fn uncleared(
        &self,
        before: DateTime<Utc>,
        after: JobId,
        limit: u32,
    ) -> Result<Vec<(JobId, Subject)>, Error>;

    /// Notes that the files of an ended job are gone.
    async fn note_cleared(&self, id: JobId) -> Result<(), Error>;

    /// One job.
    async fn job(&self, id: JobId) -> Result<Option<Row>, Error>;

    /// The newest jobs first, at most `limit`.
    async fn jobs(&self, limit: u32) -> Result<Vec<Row>, Error>;

    /// When the next queued job is due, if there is one.
    async fn next_due(&self) -> Result<Option<DateTime<Utc>>, Error>;

    /// The jobs that have not ended.
    async fn tally(&self, now: DateTime<Utc>) -> Result<Tally, Error>;

    /// All that is known of one issue, for people.
    async fn history(&self, subject: &Subject) -> Result<History, Error>;

    /// The deliveries with this id: one, unless two forges have used it.
    async fn deliveries(&self, id: &str) -> Result<Vec<KeptDelivery>, Error>;

    /// The look at an issue that waits already, to which a further delivery would be joined.
    async fn waiting_look(&self, subject: &Subject) -> Result<Option<JobId>, Error>;

    /// Queues a look at an issue whose webhook never came: the queued job of that subject that has no key yet, or a
    /// further one that is due at `due`. `Repeated` if a job has the key of what asks there.
    async fn look_for(
        &self,
        subject: &Subject,
        key: &str,
        due: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Kept, Error>;

    /// Where a sweep stands; none before it was first seen.
    async fn sweep(&self, name: &str) -> Result<Option<SweepState>, Error>;

    /// Notes that a sweep works on an instant, or, where that is over at once, that it has come so far. False where it has
    /// come as far already.
    async fn begin_sweep(
        &self,
        name: &str,
        instant: DateTime<Utc>,
        is_over: bool,
    ) -> Result<bool, Error>;

    /// Notes the schedule of a sweep that is known. Where it had another one, what that one had due is nobody's.
    async fn follow_schedule(
        &self,
        name: &str,
        schedule: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error>;

    /// Notes that nothing is left to do for a sweep's instant.
    async fn finish_sweep(&self, name: &str, instant: DateTime<Utc>) -> Result<(), Error>;

    /// Pauses a sweep. False where it is paused already.
    async fn pause_sweep(&self, name: &str, why: &str, now: DateTime<Utc>) -> Result<bool, Error>;

    /// Ends a sweep's pause. False where it is not paused.
    async fn resume_sweep(&self, name: &str, now: DateTime<Utc>) -> Result<bool, Error>;

    /// The jobs of a sweep that were queued since an instant, the oldest first.
    async fn swept(
        &self,
        name: &str,
        since: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Vec<Swept>, Error>;

    /// Queues a job of a sweep, where nothing speaks against it.
    async fn ask_by_sweep(&self, ask: &SweepAsk<'_>, now: DateTime<Utc>) -> Result<Taken, Error>;

    /// How many drafts of a repository are open or may yet come of a job that has not ended.
    async fn pending(&self, forge: &str, repo: &RepoName) -> Result<usize, Error>;

    /// The lines of the audit record after a number, in their order; a part of them, and none where there is no further one.
    async fn audit(&self, after: u64) -> Result<Vec<String>, Error>;

    /// How far the audit record goes.
    async fn audit_head(&self) -> Result<Option<Head>, Error>;

    /// The issues of a forge that have ever been asked about.
    async fn asked(&self, forge: &str) -> Result<Vec<Subject>, Error>;

    /// The newest drafts first, at most `limit`.
    async fn drafts(&self, limit: u32) -> Result<Vec<Drafted>, Error>;

    /// The drafts of which it is not known what became of them, the newest first, at most `limit`.
    async fn open_drafts(&self, limit: u32) -> Result<Vec<Drafted>, Error>;

    /// Takes the oldest due command until an instant: queued, or left by somebody who died. Those on one issue go one after
    /// another. None is due later than `latest`, whatever became of the clock.
    async fn claim_order(
        &self,
        now: DateTime<Utc>,
        (until, latest): (DateTime<Utc>, DateTime<Utc>),
    ) -> Result<Option<Order>, Error>;

    /// Queues the job that a command asks for, once, unless a job with an ask has not ended on its issue. None where
    /// somebody else carries the command out by now.
    async fn ask_by_order(
        &self,
        order: &Order,
        by: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<Effect>, Error>;

    /// Marks the jobs of a command's issue as to be stopped, but for those that publish already. None where somebody else
    /// carries the command out by now.
    async fn halt_by_order(
        &self,
        order: &Order,
        by: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<Effect>, Error>;

    /// Ends a command, with the comment that answers it. False where somebody else carries it out by now.
    async fn end_order(
        &self,
        order: &Order,
        answer: Option<i64>,
        note: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error>;

    /// Gives a command back to be claimed again at `due`. False where somebody else carries it out by now.
    async fn defer_order(
        &self,
        order: &Order,
        due: DateTime<Utc>,
        why: &str,
    ) -> Result<bool, Error>;

    /// When the next command is due, if there is one.
    async fn next_order_due(&self) -> Result<Option<DateTime<Utc>>, Error>;

    /// Who wants a job stopped, once it has its key.
    async fn halt_of(&self, job: JobId) -> Result<Option<Halt>, Error>;

    /// Takes a queued job that somebody wants stopped, or one whose lease has run out, whatever else goes on.
    async fn claim_halted(
        &self,
        worker: &str,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Result<Option<(Job, Lease)>, Error>;

    /// Notes that a job publishes, which nobody can stop any more, or says who wants it stopped.
    async fn publish(&self, lease: &Lease, now: DateTime<Utc>) -> Result<Option<Halt>, Error>;

    /// Notes what became of a draft. What was noted first stays.
    async fn note_fate(&self, job: JobId, fate: &Fate, at: DateTime<Utc>) -> Result<(), Error>;
}

/// A worker's right to write to one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The job.
    pub job: JobId,
    /// A value that is new with each claim.
    pub token: String,
}

/// A delivery to keep.
#[derive(Debug, Clone)]
pub struct NewDelivery {
    /// The forge's name in the configuration.
    pub forge: String,
    /// The forge's id of the delivery.
    pub id: String,
    /// The event's name.
    pub event: String,
    /// The verified JSON text.
    pub payload: Vec<u8>,
    /// What it asks to look at; none if it asks for nothing.
    pub subject: Option<Subject>,
    /// What it is about, where that is known though it asks for nothing.
    pub about: Option<Subject>,
    /// When that look is due.
    pub due: DateTime<Utc>,
    /// Why nothing follows, for the operator.
    pub note: Option<String>,
    /// What it shows of its issue, where it may ask for something.
    pub sighting: Option<Sighting>,
    /// The command that it tells of.
    pub command: Option<NewCommand>,
}

/// An issue as one delivery shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// Whether the label that asks for a draft was on it.
    pub has_label: bool,
    /// SHA-256 of its title and text, as hex.
    pub words: String,
}

/// A delivery as it was kept, to be read again.
#[derive(Debug, Clone)]
pub struct KeptDelivery {
    /// The forge's name in the configuration.
    pub forge: String,
    /// The event's name.
    pub event: String,
    /// The verified JSON text; empty once it has been forgotten.
    pub payload: Vec<u8>,
    /// When it came.
    pub at: DateTime<Utc>,
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It made a job.
    Queued(JobId),
    /// It was joined to a job that has not looked yet.
    Joined(JobId),
    /// It tells of a command that nobody has told of.
    Ordered,
    /// It asks for nothing.
    Ignored,
    /// It is known, or what it tells of is.
    Repeated,
}

/// What became of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identified {
    /// The key is this job's.
    Mine {
        /// Which ask on this issue it is, from 1.
        ask_number: u32,
    },
    /// Another job has it; this one is removed.
    Other(JobId),
}

/// A job with its history, for people.
#[derive(Debug, Clone)]
pub struct Row {
    /// The job.
    pub job: Job,
    /// The commit that the work was based on.
    pub base: Option<CommitId>,
    /// SHA-256 of the frozen input, as hex.
    pub digest: Option<String>,
    /// When it was queued.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
    /// When it is due, while it is queued.
    pub due_at: DateTime<Utc>,
    /// Until when it belongs to its worker, while it runs. Past, that worker is gone.
    pub held_until: Option<DateTime<Utc>>,
    /// The sentence of the last retry.
    pub last_error: Option<String>,
}

#[cfg(test)]
impl Row {
    /// A job of `main:acme/app#7` that nobody has looked at, from the instant 1,800,000,000.
    pub(crate) fn example(id: i64, state: crate::job::State) -> Self {
        let at = DateTime::from_timestamp(1_800_000_000, 0).expect("that is an instant");
        let subject = Subject {
            forge: "main".into(),
            repo: "acme/app".parse().expect("that is a name"),
            issue: 7,
        };
        Self {
            job: Job {
                id: JobId(id),
                subject,
                key: None,
                ask_number: None,
                asked_by: None,
                attempt: 1,
                state,
                comment: None,
                input: None,
                ready: None,
                pull: None,
                waiting_since: None,
                untold: None,
            },
            base: None,
            digest: None,
            created_at: at,
            updated_at: at,
            due_at: at,
            held_until: None,
            last_error: None,
        }
    }
}

/// The jobs that have not ended, for whoever watches the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Those that wait.
    pub n_queued: u64,
    /// Those among them that a worker may take.
    pub n_due: u64,
    /// When the oldest of these became due.
    pub oldest_due: Option<DateTime<Utc>>,
    /// What each running job is doing.
    pub running: Vec<Stage>,
}

/// Why a verb did nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another worker has the job, or it has ended.
    #[error("lost the lease on job {job}")]
    LostLease {
        /// The job.
        job: JobId,
    },
    /// The database refused.
    #[error("cannot {action} in the database")]
    Database {
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// The database file cannot be made or opened.
    #[error("cannot open the database `{}`", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// The database was written by a later version of this program.
    #[error("cannot open the database `{}`: a later version of Hyla wrote it (schema {version})", path.display())]
    Later {
        /// The file.
        path: PathBuf,
        /// The schema's version.
        version: i64,
    },
    /// A command that this program did not write.
    #[error("cannot read command {comment} from the database: {reason}")]
    Command {
        /// The comment's id.
        comment: i64,
        /// What is wrong.
        reason: String,
    },
    /// A row that this program did not write.
    #[error("cannot read job {job} from the database: {reason}")]
    Row {
        /// The job.
        job: JobId,
        /// What is wrong.
        reason: String,
    },
}
