//! What the ledger remembers for people: the deliveries about an issue and every step of its jobs, also of those looks
//! that came to nothing. Plain values; what they mean in words is `explain`'s business.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::Row;
use crate::job::{CommitId, End, JobId, Stage, Subject};

/// One thing that happened to a job, written with the change itself. The names are those in the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// A delivery made it: the issue will be looked at.
    Queued,
    /// A person or a schedule asked for it under its key.
    Asked {
        /// The key.
        key: String,
    },
    /// A worker took it.
    Claimed {
        /// Counted from 1.
        attempt: u32,
        /// The worker's name.
        worker: String,
    },
    /// A worker took it from another one, whose lease had run out.
    TakenOver {
        /// Counted from 1.
        attempt: u32,
        /// The worker's name.
        worker: String,
    },
    /// It got its key.
    Identified {
        /// The key.
        key: String,
        /// Which ask on this issue it is, from 1.
        ask_number: u32,
        /// The login of who asked, where somebody is known to have.
        asked_by: Option<String>,
    },
    /// It entered a stage.
    Entered {
        /// Which.
        stage: Stage,
    },
    /// Somebody wants it stopped.
    Halted {
        /// The login.
        by: String,
    },
    /// Its model is about to be given this.
    Given {
        /// The base commit.
        base: CommitId,
        /// The digest of the frozen input.
        digest: String,
        /// The model's name.
        model: String,
    },
    /// Its session has ended.
    Spoke {
        /// How long the transcript was, in bytes.
        bytes: u64,
        /// The SHA-256 of those bytes.
        sha256: String,
    },
    /// This is about to be pushed.
    Ready {
        /// The branch.
        branch: String,
        /// The commit.
        commit: CommitId,
    },
    /// Its draft pull request is there.
    Drafted {
        /// The number.
        pull: u64,
    },
    /// Something broke, and it will be tried again.
    Retried {
        /// What broke.
        why: String,
        /// When it is due.
        due: DateTime<Utc>,
    },
    /// It waits for its forge.
    Waits {
        /// What the forge did.
        why: String,
        /// When it is due.
        due: DateTime<Utc>,
    },
    /// It ended, and people have yet to be told.
    Owed {
        /// How it ended.
        end: End,
        /// Why they could not be told.
        why: String,
        /// When that is tried again.
        due: DateTime<Utc>,
    },
    /// The service stopped, or gave it back.
    Parked,
    /// It ended.
    Ended {
        /// How.
        end: End,
    },
    /// Its issue asked for nothing; the job is gone.
    Dropped {
        /// Why.
        why: String,
    },
    /// Another job had done, or does, what the issue asks for; this one is gone.
    Joined {
        /// The other job.
        job: JobId,
    },
}

/// A step with its place and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stepped {
    /// The job, which may be gone.
    pub job: JobId,
    /// Counted from 1 for each job; where a number is missing, steps were left out.
    pub number: u64,
    /// When.
    pub at: DateTime<Utc>,
    /// What.
    pub step: Step,
}

/// A delivery as the ledger has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The forge's name in the configuration.
    pub forge: String,
    /// The forge's id of it.
    pub id: String,
    /// The event's name.
    pub event: String,
    /// When it came.
    pub at: DateTime<Utc>,
    /// The job that it led to or was joined to, while that is there.
    pub job: Option<JobId>,
    /// Why nothing followed.
    pub note: Option<String>,
    /// Whether it saw the label on the issue, where it says so.
    pub has_label: Option<bool>,
}

/// What came of one forge at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// When the newest delivery of the forge came, if there was one.
    pub forge: Option<DateTime<Utc>>,
    /// When the newest delivery about an issue of the repository came, if there was one.
    pub repository: Option<DateTime<Utc>>,
}

/// All that the ledger knows of one issue.
#[derive(Debug, Clone)]
pub struct History {
    /// The issue.
    pub subject: Subject,
    /// The newest deliveries about it, oldest first.
    pub deliveries: Vec<Delivered>,
    /// How many older ones are not among them.
    pub n_older_deliveries: u64,
    /// The newest steps of its jobs, oldest first.
    pub steps: Vec<Stepped>,
    /// How many older ones are not among them.
    pub n_older_steps: u64,
    /// The newest of its jobs that are there, oldest first.
    pub jobs: Vec<Row>,
    /// Whether the forge sends anything.
    pub heard: Heard,
}

impl History {
    /// That of an issue of which nothing is known.
    pub fn nothing(subject: Subject) -> Self {
        Self {
            subject,
            deliveries: Vec::new(),
            n_older_deliveries: 0,
            steps: Vec::new(),
            n_older_steps: 0,
            jobs: Vec::new(),
            heard: Heard { forge: None, repository: None },
        }
    }
}
