//! What the ledger knows of commands in comments. Plain values.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::job::{JobId, Subject};

/// A command that a delivery tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCommand {
    /// Where.
    pub subject: Subject,
    /// The forge's id of the comment.
    pub comment: i64,
    /// The forge's id of who wrote it.
    pub author: i64,
    /// Its name, as the delivery shows it: what stops goes ahead of what asks.
    pub name_seen: &'static str,
}

/// A command that is being carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Where.
    pub subject: Subject,
    /// The forge's id of the comment.
    pub comment: i64,
    /// The forge's id of who wrote it, as the delivery said.
    pub author: i64,
    /// How often it has been claimed.
    pub attempt: u32,
    /// When it came.
    pub received_at: DateTime<Utc>,
    /// What an earlier attempt has changed.
    pub effect: Option<Effect>,
    /// New with each claim.
    pub token: String,
}

/// What a command has changed, once and for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum Effect {
    /// It asked for a job.
    Asked {
        /// Which.
        job: JobId,
    },
    /// It asked for a job while another one had not ended.
    Busy {
        /// The other one.
        job: JobId,
    },
    /// It asked for nothing: a later command that stops was carried out before it.
    CalledOff,
    /// It stopped jobs.
    Halted {
        /// Those that had an ask and will end as cancelled.
        jobs: Vec<JobId>,
        /// Looks that had not found an ask yet, and will end so where there is one.
        n_looks: u32,
        /// Earlier commands that ask for a job and were not carried out yet: they will ask for nothing.
        n_called_off: u32,
        /// Those that were publishing already.
        too_late: Vec<JobId>,
    },
}

/// Who wants a job stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    /// The login.
    pub by: String,
    /// The comment that says so.
    pub comment: i64,
}
