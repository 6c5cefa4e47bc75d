//! Why there is no checkout, and what it means for the job.

use std::path::PathBuf;

use super::RemoteError;
use crate::job::{CommitId, Failure};

/// Why there is no checkout.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The remote did not give it.
    #[error("cannot fetch `{branch}` of `{repo}`")]
    Remote {
        /// The repository.
        repo: String,
        /// The branch.
        branch: String,
        /// Why.
        source: RemoteError,
    },
    /// The repository has no such branch.
    #[error("cannot fetch `{branch}` of `{repo}`: there is no such branch")]
    BranchMissing {
        /// The repository.
        repo: String,
        /// The branch.
        branch: String,
    },
    /// The mirror does not work, even after it has been made again.
    #[error("cannot use the mirror `{}`", path.display())]
    Mirror {
        /// The mirror's folder.
        path: PathBuf,
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// There is no mirror of that repository yet.
    #[error("cannot find a mirror at `{}`: the repository has not been fetched", path.display())]
    NoMirror {
        /// Where it would be.
        path: PathBuf,
    },
    /// The disk said no.
    #[error("cannot write `{}`", path.display())]
    Disk {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A commit that must be there is not, or is not a commit.
    #[error("cannot read commit `{commit}`")]
    Commit {
        /// Its id.
        commit: CommitId,
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// A file at a commit is larger than the caller takes.
    #[error(
        "cannot read `{path}` at the base commit: it has {size_bytes} bytes, more than {limit_bytes}"
    )]
    FileTooLarge {
        /// Its path.
        path: String,
        /// Its size.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The commit's tree cannot be put on a disk safely.
    #[error("cannot check out `{path}`: {reason}")]
    UnsafeTree {
        /// The entry.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The commit's tree is larger than the bot works on.
    #[error("cannot check out the commit: it has more than {limit}")]
    TreeTooLarge {
        /// Which limit, in words.
        limit: &'static str,
    },
    /// A folder given on the command line is not there.
    #[error("cannot open the folder `{}`", dir.display())]
    NoFolder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A folder given on the command line is no repository.
    #[error("cannot find a git repository in `{}`; name its top folder, or run `git init` and commit there", dir.display())]
    NotARepository {
        /// The folder.
        dir: PathBuf,
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// A folder given on the command line belongs to someone else.
    #[error("cannot trust the repository in `{}`: another user owns it; run this as its owner", dir.display())]
    OtherOwner {
        /// The folder.
        dir: PathBuf,
    },
    /// A repository given on the command line has no commit.
    #[error("cannot work on `{}`: it has no commit yet; commit something first", dir.display())]
    NoCommit {
        /// The folder.
        dir: PathBuf,
    },
}

impl Error {
    /// What broke, for the job's end.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Remote { source, .. } => source.failure(),
            Self::BranchMissing { .. } => Failure::ForgeMissing,
            Self::Mirror { .. }
            | Self::NoMirror { .. }
            | Self::Commit { .. }
            | Self::FileTooLarge { .. }
            | Self::UnsafeTree { .. }
            | Self::TreeTooLarge { .. }
            | Self::NoFolder { .. }
            | Self::NotARepository { .. }
            | Self::OtherOwner { .. }
            | Self::NoCommit { .. } => Failure::Git,
            Self::Disk { .. } => Failure::Internal,
        }
    }

    /// Whether the same call may succeed later without anyone changing anything.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Remote { source, .. } => source.may_retry(),
            Self::Disk { .. } => true,
            Self::BranchMissing { .. }
            | Self::Mirror { .. }
            | Self::NoMirror { .. }
            | Self::Commit { .. }
            | Self::FileTooLarge { .. }
            | Self::UnsafeTree { .. }
            | Self::TreeTooLarge { .. }
            | Self::NoFolder { .. }
            | Self::NotARepository { .. }
            | Self::OtherOwner { .. }
            | Self::NoCommit { .. } => false,
        }
    }
}
