//! From a patch to a branch: a commit on the recorded base, kept in the mirror, pushed under the bot's own prefix.
//!
//! Each step may be taken twice. Nothing here forces a push, moves a branch that exists, merges, or knows what a pull
//! request is.

mod error;
mod push;
#[cfg(test)]
mod tests;
mod write;

use chrono::{DateTime, Utc};
use git2::{Oid, Signature, Time};

pub use error::Error;
pub use push::{Pushed, push};
pub use write::{check_branch, write_branch};

use crate::checkout::{Locks, Mirror, blocking};
use crate::job::{CommitId, JobId};
use crate::patch::Patch;

/// Who the bot's commits are from.
#[derive(Debug, Clone)]
pub struct Author {
    /// The name.
    pub name: String,
    /// The address.
    pub email: String,
}

/// Makes the commit of a patch on its base commit. The same arguments make the same commit.
///
/// # Errors
/// The patch is empty, or the mirror does not take it.
pub async fn commit(
    mirror: &Mirror,
    patch: &Patch,
    message: &str,
    author: &Author,
    at: DateTime<Utc>,
) -> Result<CommitId, Error> {
    if patch.is_empty() {
        return Err(Error::Empty);
    }
    let (mirror, author) = (mirror.clone(), author.clone());
    let (base, tree) = (patch.base.clone(), patch.tree.clone());
    let message = format!("{}\n", message.replace('\0', "").trim_end());
    blocking(move || {
        let repository = mirror.open()?;
        let made = || -> Result<Oid, git2::Error> {
            let parent = repository.find_commit(Oid::from_str(&base.0)?)?;
            let tree = repository.find_tree(Oid::from_str(&tree.0)?)?;
            let time = Time::new(at.timestamp(), 0);
            let signature = Signature::new(&author.name, &author.email, &time)?;
            repository.commit(None, &signature, &signature, &message, &tree, &[&parent])
        };
        let id = made().map_err(|source| Error::Commit { base, source })?;
        Ok(CommitId(id.to_string()))
    })
    .await
}

/// Keeps a commit alive in the mirror, under a ref of its job, so that it can be published after a crash.
///
/// # Errors
/// The mirror does not take it.
pub async fn keep(mirror: &Mirror, job: JobId, commit: &CommitId) -> Result<(), Error> {
    let (mirror, commit) = (mirror.clone(), commit.clone());
    blocking(move || {
        let _held = Locks::hold_blocking(mirror.path())?;
        let repository = mirror.open()?;
        let name = ref_of(job);
        Oid::from_str(&commit.0)
            .and_then(|id| repository.reference(&name, id, true, "ready to be published"))
            .map(drop)
            .map_err(|source| Error::Keep { job, source })
    })
    .await
}

/// Whether a commit of the mirror has another one among its ancestors.
///
/// # Errors
/// The mirror cannot be read.
pub async fn is_on_top(mirror: &Mirror, above: &CommitId, below: &CommitId) -> Result<bool, Error> {
    let (mirror, above, below) = (mirror.clone(), above.clone(), below.clone());
    blocking(move || {
        let repository = mirror.open()?;
        Oid::from_str(&above.0)
            .and_then(|top| repository.graph_descendant_of(top, Oid::from_str(&below.0)?))
            .map_err(|source| Error::Compare { commit: below, source })
    })
    .await
}

/// Lets go of a job's commit, if the mirror has one. The commit itself stays until somebody tidies the mirror.
///
/// # Errors
/// The mirror does not let go.
pub async fn let_go(mirror: &Mirror, job: JobId) -> Result<(), Error> {
    let mirror = mirror.clone();
    blocking(move || {
        let _held = Locks::hold_blocking(mirror.path())?;
        let repository = mirror.open()?;
        let deleted = repository.find_reference(&ref_of(job)).and_then(|mut kept| kept.delete());
        match deleted {
            Err(error) if error.code() == git2::ErrorCode::NotFound => Ok(()),
            deleted => deleted.map_err(|source| Error::Keep { job, source }),
        }
    })
    .await
}

fn ref_of(job: JobId) -> String {
    format!("refs/hyla/jobs/{job}")
}
