//! What all workspaces of one job are made from: the base commit and its history, packed once, in a folder that only the bot
//! can reach. A workspace gets copies of the pack; what its commit adds to the base commit comes in a second one.

use std::path::{Path, PathBuf};

use git2::{Oid, Repository, RepositoryInitOptions};

use super::history;
use super::pack::Lasting;
use super::{HISTORY, workspace};
use crate::checkout::mirror::{create_private, remove_if_there};
use crate::checkout::{Base, Error, Mirror, blocking};
use crate::job::CommitId;
use crate::workspace::{Owner, Workspace};

/// The objects that the workspaces of one job begin with.
#[derive(Debug, Clone)]
pub struct Stock {
    mirror: Mirror,
    base: CommitId,
    folder: PathBuf,
}

impl Base {
    /// The stock of a job that works on this base, in a folder that is the job's own and goes with it. The folder need not
    /// exist, and nothing is written before the first workspace is made.
    pub fn stock(&self, folder: PathBuf) -> Stock {
        Stock { mirror: self.mirror.clone(), base: self.commit.clone(), folder }
    }
}

impl Stock {
    /// The mirror that it is made from.
    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Makes a workspace at `root`, which must not exist, and checks the commit out there, byte for byte. The commit is the
    /// base commit or a child of it. The workspace's `.git` is a repository of its own with copies of the objects, the newest
    /// 500 commits of history or as many as 128 MiB hold, and a branch `main` at the commit; it has no remote, no hook and
    /// no credential.
    ///
    /// # Errors
    /// The commit cannot be read, its tree cannot be put on a disk safely, or the disk does not take it. Nothing is
    /// left at `root` then.
    pub async fn workspace(
        &self,
        commit: &CommitId,
        root: &Path,
        owner: Owner,
    ) -> Result<Workspace, Error> {
        let (stock, commit, root) = (self.clone(), commit.clone(), root.to_owned());
        blocking(move || workspace(&stock, &stock.mirror.open()?, &commit, &root, owner)).await
    }

    /// Puts the commit, and what it needs, into the bare layout at `into`.
    pub(super) fn give(&self, mirror: &Repository, commit: Oid, into: &Path) -> Result<(), Error> {
        let stock = self.ready(mirror)?;
        copy_files(&stock.path().join("objects/pack"), &into.join("objects/pack"))?;
        if stock.is_shallow() {
            copy_file(&stock.path().join("shallow"), &into.join("shallow"))?;
        }
        let odb = stock
            .odb()
            .map_err(|source| Error::Mirror { path: stock.path().to_owned(), source })?;
        history::copy_one(mirror, commit, &odb, into)
    }

    /// The bare repository with the base commit. One that is there is whole: it grows beside its place.
    fn ready(&self, mirror: &Repository) -> Result<Repository, Error> {
        let path = self.folder.join(format!("{}.git", self.base.0));
        if !path.is_dir() {
            self.fill(mirror, &path)?;
        }
        Repository::open_bare(&path).map_err(|source| Error::Mirror { path, source })
    }

    fn fill(&self, mirror: &Repository, path: &Path) -> Result<(), Error> {
        let growing = path.with_extension("new");
        let failed = |source| Error::Disk { path: growing.clone(), source };
        create_private(&self.folder).map_err(failed)?;
        remove_if_there(&growing).map_err(failed)?;
        let mut options = RepositoryInitOptions::new();
        options.bare(true).no_reinit(true).mkdir(true).external_template(false);
        let made =
            Repository::init_opts(&growing, &options).and_then(|_made| Oid::from_str(&self.base.0));
        let base = made.map_err(|source| Error::Mirror { path: growing.clone(), source })?;
        history::copy(mirror, base, &growing, HISTORY, Lasting::No)?;
        std::fs::rename(&growing, path).map_err(failed)
    }
}

/// Copies the files of a folder. The copies share nothing with them that writing to one could change.
fn copy_files(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = |source| Error::Disk { path: from.to_owned(), source };
    for entry in std::fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        copy_file(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = |source| Error::Disk { path: to.to_owned(), source };
    std::fs::copy(from, to).map(drop).map_err(failed)
}
