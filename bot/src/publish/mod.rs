//! From a patch to a branch: a commit on the recorded base, kept in the mirror, pushed under the bot's own prefix.
//!
//! Each step may be taken twice; only a signed commit may come out as another one each time, so whoever has made one keeps
//! to it, by `keep` and by its id. Nothing here forces a push, moves a branch that exists, merges, or knows what a pull
//! request is.

mod error;
mod push;
mod sign;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use git2::{ObjectType, Oid, Signature, Time};

pub use error::Error;
pub use push::{Pushed, push};
pub use sign::{Error as SignError, Signer};
pub use write::{check_branch, write_branch};

use crate::checkout::{Locks, Mirror, blocking};
use crate::job::{CommitId, JobId};
use crate::patch::Patch;

/// Who the bot's commits are from, and how that is shown.
#[derive(Debug, Clone)]
pub struct Author {
    /// The name.
    pub name: String,
    /// The address.
    pub email: String,
    /// Whether the message says that the author may submit the change (developercertificate.org).
    pub signs_off: bool,
    /// What the commits are signed with.
    pub signer: Option<Arc<Signer>>,
}

impl Author {
    /// The operator's author. `own_email` is the forge's address for the bot, for where the operator sets none.
    pub fn new(
        settings: &config::Publish,
        own_email: Option<&str>,
        signer: Option<Arc<Signer>>,
    ) -> Self {
        let email = settings.author_email.as_deref().or(own_email);
        Self {
            name: settings.author_name.clone(),
            email: email.unwrap_or(config::Publish::EMAIL).to_owned(),
            signs_off: settings.sign_off,
            signer,
        }
    }

    /// A message as a commit keeps it. It must not end in trailers.
    fn message(&self, words: &str) -> String {
        let words = words.replace('\0', "");
        let words = words.trim_end();
        match self.signs_off {
            true => format!("{words}\n\nSigned-off-by: {} <{}>\n", self.name, self.email),
            false => format!("{words}\n"),
        }
    }
}

/// Makes the commit of a patch on its base commit. Without a signature, the same arguments make the same commit.
///
/// # Errors
/// The patch is empty, the mirror does not take it, or the key signs nothing any more.
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
    let message = author.message(message);
    blocking(move || {
        let repository = mirror.open()?;
        let written = || -> Result<git2::Buf, git2::Error> {
            let parent = repository.find_commit(Oid::from_str(&base.0)?)?;
            let tree = repository.find_tree(Oid::from_str(&tree.0)?)?;
            let time = Time::new(at.timestamp(), 0);
            let who = Signature::new(&author.name, &author.email, &time)?;
            repository.commit_create_buffer(&who, &who, &message, &tree, &[&parent])
        };
        let named = |source| Error::Commit { base: base.clone(), source };
        let content = written().map_err(named)?;
        let content = std::str::from_utf8(&content).map_err(|_| named(not_text()))?;
        let id = match &author.signer {
            Some(signer) => {
                let signature = signer.sign(content.as_bytes(), at)?;
                repository.commit_signed(content, &signature, None)
            }
            None => {
                repository.odb().and_then(|odb| odb.write(ObjectType::Commit, content.as_bytes()))
            }
        };
        Ok(CommitId(id.map_err(named)?.to_string()))
    })
    .await
}

fn not_text() -> git2::Error {
    git2::Error::from_str("a commit of text came out as something else")
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
