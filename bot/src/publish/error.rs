//! Why nothing was published, and what it means for the job.

use std::path::PathBuf;

use super::sign;
use crate::checkout::{self, RemoteError};
use crate::job::{CommitId, Failure, JobId};

/// Why nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to publish.
    #[error("cannot commit a patch that changes nothing")]
    Empty,
    /// The commit could not be made.
    #[error("cannot commit on `{base}`")]
    Commit {
        /// The base commit.
        base: CommitId,
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// The commit could not be signed.
    #[error(transparent)]
    Sign(#[from] sign::Error),
    /// The commit could not be kept.
    #[error("cannot keep the commit of job {job}")]
    Keep {
        /// The job.
        job: JobId,
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// Two commits could not be compared.
    #[error("cannot look for commit `{commit}` below another one")]
    Compare {
        /// The one that was looked for.
        commit: CommitId,
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// The mirror cannot be used.
    #[error("cannot use the mirror")]
    Mirror(#[from] checkout::Error),
    /// The bot pushes only below its own prefix.
    #[error("cannot push to `{branch}`: the bot's branches start with `{prefix}`")]
    NotOurs {
        /// The branch.
        branch: String,
        /// The prefix.
        prefix: String,
    },
    /// Someone has a branch of that name.
    #[error(
        "cannot push to `{branch}`: it, or a branch that leaves no room for it, points to `{theirs}`"
    )]
    BranchTaken {
        /// The branch.
        branch: String,
        /// What it points to.
        theirs: CommitId,
    },
    /// A rule or a hook of the server said no.
    #[error("cannot push to `{branch}`: the server rejected it: {words}")]
    Rejected {
        /// The branch.
        branch: String,
        /// The server's words, cut.
        words: String,
    },
    /// The server did not say what became of the branch.
    #[error("cannot push to `{branch}`: the server did not confirm it")]
    Unconfirmed {
        /// The branch.
        branch: String,
    },
    /// The remote did not take it.
    #[error("cannot push to `{branch}`")]
    Remote {
        /// The branch.
        branch: String,
        /// Why.
        #[source]
        source: RemoteError,
    },
    /// The local repository has a branch of that name.
    #[error(
        "cannot make the branch `{branch}`: it exists already; choose another name, or delete it with `git branch -D {branch}`"
    )]
    BranchExists {
        /// The branch.
        branch: String,
    },
    /// No branch can have that name.
    #[error(
        "cannot make the branch `{branch}`: git allows no such name; choose one such as `hyla/fix`"
    )]
    BranchName {
        /// The branch.
        branch: String,
    },
    /// A branch above or below that name is in the way.
    #[error(
        "cannot make the branch `{branch}`: git allows none of that name beside `{other}`; choose another name"
    )]
    BranchBeside {
        /// The branch.
        branch: String,
        /// The one that is there.
        other: String,
    },
    /// The local repository does not take the commit.
    #[error("cannot write to the repository in `{}`", dir.display())]
    Local {
        /// The folder.
        dir: PathBuf,
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
}

impl Error {
    /// What broke, for the job's end.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Remote { source, .. } => source.failure(),
            Self::Mirror(source) => source.failure(),
            Self::Rejected { .. } => Failure::ForgeDenied,
            Self::Unconfirmed { .. } => Failure::ForgeAnswer,
            Self::Empty | Self::Sign(_) | Self::NotOurs { .. } => Failure::Internal,
            Self::BranchTaken { .. } => Failure::BranchTaken,
            Self::Commit { .. }
            | Self::Keep { .. }
            | Self::Compare { .. }
            | Self::BranchExists { .. }
            | Self::BranchName { .. }
            | Self::BranchBeside { .. }
            | Self::Local { .. } => Failure::Git,
        }
    }

    /// Whether the same call may succeed later without anyone changing anything.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Remote { source, .. } => source.may_retry(),
            Self::Mirror(source) => source.may_retry(),
            // The branch is looked at again first, so a second push does no harm.
            Self::Unconfirmed { .. } => true,
            Self::Empty
            | Self::Sign(_)
            | Self::Commit { .. }
            | Self::Keep { .. }
            | Self::Compare { .. }
            | Self::NotOurs { .. }
            | Self::BranchTaken { .. }
            | Self::Rejected { .. }
            | Self::BranchExists { .. }
            | Self::BranchName { .. }
            | Self::BranchBeside { .. }
            | Self::Local { .. } => false,
        }
    }
}
