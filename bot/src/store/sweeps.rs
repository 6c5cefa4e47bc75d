//! What the ledger knows of sweeps and of what became of drafts. Plain values.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::Row;
use crate::job::{JobId, Subject};

/// Where a sweep stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepState {
    /// The scheduled instant that it works on or has worked on, or when it was first seen.
    pub instant: DateTime<Utc>,
    /// What was due before is nobody's: that instant, or when the schedule was changed.
    pub since: DateTime<Utc>,
    /// Whether nothing is left to do for that instant.
    pub is_over: bool,
    /// Since when and why it is paused, if it is.
    pub paused: Option<(DateTime<Utc>, String)>,
    /// When a person last resumed it.
    pub resumed_at: Option<DateTime<Utc>>,
}

/// What a sweep wants to take, and what it has seen.
#[derive(Debug, Clone)]
pub struct SweepAsk<'a> {
    /// The issue.
    pub subject: &'a Subject,
    /// The sweep's name.
    pub name: &'a str,
    /// Its scheduled instant.
    pub instant: DateTime<Utc>,
    /// How many jobs it has queued, as the plan has seen it.
    pub n_known: usize,
    /// Since when.
    pub since: DateTime<Utc>,
    /// How many drafts may be pending in the repository, with this one.
    pub cap: usize,
}

/// What came of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It is queued.
    Job(JobId),
    /// The issue was asked about before.
    WasAsked,
    /// Too many drafts are pending in its repository.
    IsFull,
    /// Another process has queued a job of the same sweep.
    Raced,
}

/// A job of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swept {
    /// The job.
    pub job: JobId,
    /// Its issue.
    pub subject: Subject,
    /// The scheduled instant that it belongs to.
    pub instant: DateTime<Utc>,
    /// When it was queued.
    pub queued_at: DateTime<Utc>,
    /// Whether it has ended.
    pub has_ended: bool,
    /// How long it has run or waited since a worker first took it.
    pub took: Duration,
}

/// What became of a draft.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// It was merged.
    Merged {
        /// Whether people had changed the branch before.
        is_edited: bool,
    },
    /// It was closed unmerged.
    Closed {
        /// What a person with write access said last on it, cut.
        why: Option<String>,
    },
    /// It is not there any more, though its repository is.
    Gone,
}

impl Fate {
    /// In a word or two, for tables and exports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Merged { is_edited: false } => "merged",
            Self::Merged { is_edited: true } => "merged_edited",
            Self::Closed { .. } => "closed",
            Self::Gone => "gone",
        }
    }
}

/// A draft and what became of it.
#[derive(Debug, Clone)]
pub struct Drafted {
    /// The job that made it.
    pub row: Row,
    /// The draft's number.
    pub pull: u64,
    /// The model that was asked, where that is known.
    pub model: Option<String>,
    /// What became of it and when that was seen; none while it is open.
    pub fate: Option<(Fate, DateTime<Utc>)>,
}
