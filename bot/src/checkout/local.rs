//! A repository on this machine's disk, given on the command line: its `HEAD` is copied into a mirror of the bot's own.
//! Nothing in it is run or written, and what is not committed is not seen.

use std::path::Path;

use git2::{ErrorCode, Repository, StatusOptions};
use sha2::{Digest, Sha256};

use super::provide::{Lasting, Limits, copy_history};
use super::{Base, Error, Mirror, Mirrors, blocking, mirror, prepare};
use crate::job::CommitId;

/// History that is copied into the mirror: more than a workspace gets of it.
const HISTORY: Limits = Limits { n_commits: 2000, bytes: 256 << 20 };

/// A local repository as it was found.
#[derive(Debug, Clone)]
pub struct Local {
    /// Its `HEAD`, in a mirror of the bot's own. The branch is `HEAD` if none is checked out.
    pub base: Base,
    /// Whether its work tree differs from its `HEAD`; the bot does not see those changes.
    pub has_uncommitted_changes: bool,
}

impl Mirrors {
    /// Copies the `HEAD` of the repository in `dir` into a mirror.
    ///
    /// # Errors
    /// Says what to do when `dir` is no repository, has no commit, or belongs to another user.
    pub async fn adopt_local(&self, dir: &Path) -> Result<Local, Error> {
        let dir =
            dir.canonicalize().map_err(|source| Error::NoFolder { dir: dir.to_owned(), source })?;
        let name = hex::encode(&Sha256::digest(dir.as_os_str().as_encoded_bytes())[..16]);
        let path = self.root.join("%local").join(format!("{name}.git"));
        let turn = self.locks.hold(&path).await;
        blocking(move || {
            let _held = turn.across_processes(&path)?;
            adopt(&dir, Mirror::new(path))
        })
        .await
    }
}

/// Opens the repository that a person named, and none above it.
pub(crate) fn open(dir: &Path) -> Result<Repository, Error> {
    prepare().and_then(|()| Repository::open(dir)).map_err(|source| match source.code() {
        ErrorCode::Owner => Error::OtherOwner { dir: dir.to_owned() },
        _ => Error::NotARepository { dir: dir.to_owned(), source },
    })
}

fn adopt(dir: &Path, mirror: Mirror) -> Result<Local, Error> {
    let local = open(dir)?;
    let unreadable = |source| Error::Mirror { path: dir.to_owned(), source };
    let head = match local.head() {
        Ok(head) => head,
        Err(error) if [ErrorCode::UnbornBranch, ErrorCode::NotFound].contains(&error.code()) => {
            return Err(Error::NoCommit { dir: dir.to_owned() });
        }
        Err(error) => return Err(unreadable(error)),
    };
    let commit = head.peel_to_commit().map_err(unreadable)?.id();
    let branch = head.shorthand().unwrap_or("HEAD").to_owned();

    let ours = mirror::open_or_create(mirror.path())?;
    let kept = mirror::ref_of_branch(&commit.to_string());
    if ours.find_reference(&kept).is_err() {
        copy_history(&local, commit, mirror.path(), HISTORY, Lasting::Yes)?;
        let name = || {
            let ours = Repository::open_bare(mirror.path())?;
            ours.reference(&kept, commit, true, "adopted").map(drop)
        };
        name().map_err(unreadable)?;
    }
    let has_uncommitted_changes = has_uncommitted_changes(&local).map_err(unreadable)?;
    let base = Base { mirror, branch, commit: CommitId(commit.to_string()) };
    Ok(Local { base, has_uncommitted_changes })
}

fn has_uncommitted_changes(local: &Repository) -> Result<bool, git2::Error> {
    if local.is_bare() {
        return Ok(false);
    }
    let mut options = StatusOptions::new();
    options.include_untracked(true).include_ignored(false).exclude_submodules(true);
    Ok(!local.statuses(Some(&mut options))?.is_empty())
}
