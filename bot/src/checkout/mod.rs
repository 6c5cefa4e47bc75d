//! The repository as the organisation has it: one bare mirror per repository, fetched under a lock, and from it a
//! workspace at the recorded base commit, without hardlinks, remotes or credentials.
//!
//! A mirror holds only what the bot fetched or made. Nothing here starts a process, reads a configuration that it did not
//! write, or opens a repository that an agent could write. Submodules are left empty and Git LFS pointers stay
//! pointers: both would need further addresses and credentials.

mod error;
mod id;
mod local;
mod lock;
mod mirror;
mod options;
mod provide;
mod remote;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use git2::{Direction, ErrorClass, Repository};

pub use error::Error;
pub use local::Local;
pub use mirror::Mirror;
pub(crate) use mirror::tree_of;
pub use provide::Stock;
pub use remote::RemoteError;

pub(crate) use id::object_id;
pub(crate) use local::open as open_local;
pub(crate) use lock::Locks;
pub(crate) use options::prepare;
pub(crate) use remote::{Conversation, refuse_redirect};

use crate::forge::Remote;
use crate::job::{CommitId, RepoName};

/// All mirrors of the bot, in one folder of its own.
#[derive(Debug, Clone)]
pub struct Mirrors {
    root: PathBuf,
    locks: Locks,
}

/// What a job works on: a commit, and the mirror that holds it.
#[derive(Debug, Clone)]
pub struct Base {
    /// The mirror.
    pub mirror: Mirror,
    /// The branch that the commit was the head of.
    pub branch: String,
    /// The base commit.
    pub commit: CommitId,
}

impl Mirrors {
    /// The mirrors in a folder, which is made when it is needed.
    pub fn new(root: PathBuf) -> Self {
        Self { root, locks: Locks::default() }
    }

    /// The mirror of a repository that has been fetched before; nothing is asked of the forge.
    ///
    /// # Errors
    /// There is none.
    pub fn existing(&self, forge: &str, repo: &RepoName) -> Result<Mirror, Error> {
        let path = self.path(forge, repo);
        if !path.join("HEAD").is_file() {
            return Err(Error::NoMirror { path });
        }
        Ok(Mirror::new(path))
    }

    /// Brings the head of a branch into the mirror of a repository. Fetches of one repository wait for each other, in
    /// this process and in others on the machine. A mirror that a crash left half made or damaged is made again; the
    /// damaged one is kept beside it, with the ending `.damaged`.
    ///
    /// # Errors
    /// The remote does not give it, or the disk does not take it.
    pub async fn fetch(
        &self,
        forge: &str,
        repo: &RepoName,
        remote: &Remote,
        branch: &str,
    ) -> Result<Base, Error> {
        let path = self.path(forge, repo);
        let held = self.locks.hold(&path).await;
        refuse_redirect(remote).await.map_err(|source| Error::Remote {
            repo: repo.to_string(),
            branch: branch.to_owned(),
            source,
        })?;
        let (remote, branch, repo) = (remote.clone(), branch.to_owned(), repo.to_string());
        blocking(move || {
            let _held = held.across_processes(&path)?;
            let commit =
                fetch_held(&path, &Wanted { remote: &remote, repo: &repo, branch: &branch })?;
            Ok(Base { mirror: Mirror::new(path), branch, commit })
        })
        .await
    }

    fn path(&self, forge: &str, repo: &RepoName) -> PathBuf {
        let name = format!("{}.git", folder_name(&repo.name));
        self.root.join(folder_name(forge)).join(folder_name(&repo.owner)).join(name)
    }
}

struct Wanted<'a> {
    remote: &'a Remote,
    repo: &'a str,
    branch: &'a str,
}

/// Fetches, and starts over with an empty mirror if this one turns out to be damaged.
fn fetch_held(path: &Path, wanted: &Wanted<'_>) -> Result<CommitId, Error> {
    let damage = match mirror::open_or_create(path).and_then(|mirror| fetch_into(&mirror, wanted)) {
        Err(error @ Error::Mirror { .. }) => error,
        done => return done,
    };
    tracing::warn!(mirror = %path.display(), error = %damage, "the mirror is damaged and is made again");
    mirror::set_aside(path)?;
    fetch_into(&mirror::open_or_create(path)?, wanted)
}

fn fetch_into(mirror: &Repository, wanted: &Wanted<'_>) -> Result<CommitId, Error> {
    let Wanted { remote, repo, branch } = *wanted;
    let named = |source| Error::Remote { repo: repo.to_owned(), branch: branch.to_owned(), source };
    let missing = || Error::BranchMissing { repo: repo.to_owned(), branch: branch.to_owned() };
    let theirs = format!("refs/heads/{branch}");
    if !git2::Reference::is_valid_name(&theirs) {
        return Err(missing());
    }

    let conversation = Conversation::new(remote).map_err(named)?;
    let mut anonymous =
        mirror.remote_anonymous(remote.url.as_str()).map_err(|e| named(conversation.name(e)))?;
    let mut connected = anonymous
        .connect_auth(Direction::Fetch, Some(conversation.callbacks()), Some(conversation.proxy()))
        .map_err(|e| named(conversation.name(e)))?;
    let heads = connected.list().map_err(|e| named(conversation.name(e)))?;
    if !heads.iter().any(|head| head.name() == theirs) {
        return Err(missing());
    }

    let ours = mirror::ref_of_branch(branch);
    let refspec = format!("+{theirs}:{ours}");
    connected.remote().fetch(&[&refspec], Some(&mut conversation.fetch_options()), None).map_err(
        |source| match source.class() {
            ErrorClass::Odb | ErrorClass::Object | ErrorClass::Zlib | ErrorClass::Reference => {
                Error::Mirror { path: mirror.path().to_owned(), source }
            }
            _ => named(conversation.name(source)),
        },
    )?;
    mirror::read_back(mirror, &ours)
}

/// Runs blocking work on its own thread. A panic there goes on here, where it fails the job.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that is shutting down cancels such work, and it drops this future as well.
            Err(_cancelled) => std::future::pending().await,
        },
    }
}

/// A folder name for a name that a forge or an operator chose: everything but plain letters, digits, `-`, `_` and inner
/// dots is written as `%` and two digits, so that no name leaves the folder and no two names meet.
fn folder_name(name: &str) -> String {
    let plain = |index: usize, byte: u8| {
        byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || (byte == b'.' && index > 0)
    };
    let mut folder = String::new();
    for (index, byte) in name.bytes().enumerate() {
        match plain(index, byte) {
            true => folder.push(char::from(byte)),
            false => folder.push_str(&format!("%{byte:02x}")),
        }
    }
    folder
}
