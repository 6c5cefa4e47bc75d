//! One bare mirror: how it is made so that a crash leaves a whole one or none, and what is read from it.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use git2::{Index, ObjectType, Oid, Repository, RepositoryInitOptions};
use sha2::{Digest, Sha256};

use super::{Error, blocking, provide};
use crate::job::CommitId;

/// The bot's own copy of a repository. Nothing that an agent writes is ever in it unless the bot put it there.
#[derive(Debug, Clone)]
pub struct Mirror {
    path: PathBuf,
}

impl Mirror {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The mirror's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A regular file at a commit, or none if there is no such file there. A symbolic link is no file.
    ///
    /// # Errors
    /// The commit cannot be read, or the file has more than `limit_bytes`.
    pub async fn file_at(
        &self,
        commit: &CommitId,
        path: &str,
        limit_bytes: u64,
    ) -> Result<Option<Vec<u8>>, Error> {
        let (mirror, commit, path) = (self.clone(), commit.clone(), path.to_owned());
        blocking(move || file_at(&mirror.open()?, &commit, &path, limit_bytes)).await
    }

    /// The names in the root folder at a commit, in git's order; folders end in `/`.
    ///
    /// # Errors
    /// The commit cannot be read.
    pub async fn root_entries(&self, commit: &CommitId) -> Result<Vec<String>, Error> {
        let (mirror, commit) = (self.clone(), commit.clone());
        blocking(move || {
            let repository = mirror.open()?;
            let tree = tree_of(&repository, &commit)?;
            Ok(tree
                .iter()
                .map(|entry| {
                    let slash = if entry.kind() == Some(ObjectType::Tree) { "/" } else { "" };
                    format!("{}{slash}", String::from_utf8_lossy(entry.name_bytes()))
                })
                .collect())
        })
        .await
    }

    /// The paths of all files at a commit, symbolic links and submodules among them.
    ///
    /// # Errors
    /// The commit cannot be read.
    pub(crate) async fn paths(&self, commit: &CommitId) -> Result<Vec<PathBuf>, Error> {
        let (mirror, commit) = (self.clone(), commit.clone());
        blocking(move || {
            let repository = mirror.open()?;
            let tree = tree_of(&repository, &commit)?;
            let listed = Index::new().and_then(|mut index| {
                index.read_tree(&tree)?;
                Ok(index)
            });
            let index = listed.map_err(|source| Error::Commit { commit, source })?;
            Ok(index.iter().map(|entry| PathBuf::from(OsString::from_vec(entry.path))).collect())
        })
        .await
    }

    /// Opens the mirror, and nothing above or beside it.
    pub(crate) fn open(&self) -> Result<Repository, Error> {
        if !self.path.join("HEAD").is_file() {
            return Err(Error::NoMirror { path: self.path.clone() });
        }
        open(&self.path)
    }
}

fn open(path: &Path) -> Result<Repository, Error> {
    super::prepare()
        .and_then(|()| Repository::open_bare(path))
        .map_err(|source| Error::Mirror { path: path.to_owned(), source })
}

/// Opens a mirror whose lock is held; makes it if it is not there, and clears what a crash left in it.
pub(super) fn open_or_create(path: &Path) -> Result<Repository, Error> {
    if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        create(path)?;
    }
    clear_leftovers(path)?;
    open(path)
}

/// Makes an empty mirror beside its place and moves it there, so that it is whole or absent.
fn create(path: &Path) -> Result<(), Error> {
    let growing = path.with_extension("git.new");
    let failed = |source| Error::Disk { path: growing.clone(), source };
    remove_if_there(&growing).map_err(failed)?;
    if let Some(parent) = path.parent() {
        create_private(parent).map_err(failed)?;
    }
    let made = || -> Result<(), git2::Error> {
        super::prepare()?;
        let mut options = RepositoryInitOptions::new();
        options.bare(true).no_reinit(true).mkdir(true).external_template(false);
        let mut config = Repository::init_opts(&growing, &options)?.config()?;
        // A commit that stands ready to be published must survive a power cut.
        config.set_bool("core.fsyncObjectFiles", true)?;
        // Connecting takes this from here only; fetch and push are also told directly.
        config.set_bool("http.followRedirects", false)
    };
    made().map_err(|source| Error::Mirror { path: growing.clone(), source })?;
    std::fs::set_permissions(&growing, std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .map_err(failed)?;
    std::fs::rename(&growing, path).map_err(failed)
}

/// Moves a damaged mirror out of the way; an earlier one there is deleted.
pub(super) fn set_aside(path: &Path) -> Result<(), Error> {
    let aside = path.with_extension("git.damaged");
    let failed = |source| Error::Disk { path: aside.clone(), source };
    remove_if_there(&aside).map_err(failed)?;
    std::fs::rename(path, &aside).map_err(failed)
}

/// Removes lock files and half-received packs of a process that died. The mirror's lock is held, so no living process
/// of the bot has made them.
fn clear_leftovers(path: &Path) -> Result<(), Error> {
    let mut folders = vec![path.join("refs/hyla"), path.join("objects/pack")];
    let mut leftovers = vec![path.join("packed-refs.lock"), path.join("config.lock")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.as_encoded_bytes();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else if name.ends_with(b".lock") || is_growing(name) {
                leftovers.push(entry.path());
            }
        }
    }
    for leftover in leftovers {
        remove_if_there(&leftover)
            .map_err(|source| Error::Disk { path: leftover.clone(), source })?;
    }
    Ok(())
}

/// Whether a file is a pack that is received or written: libgit2's, or the bot's own.
fn is_growing(name: &[u8]) -> bool {
    name.starts_with(b"pack_git2_") || name.starts_with(provide::GROWING.as_bytes())
}

pub(super) fn remove_if_there(path: &Path) -> std::io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes a folder, and those above it, for the service's user only.
pub(super) fn create_private(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The mirror's own ref for a branch of the forge. A digest stands for the name, so that `a` and `a/b`, which may have
/// lived one after the other, do not exclude each other.
pub(super) fn ref_of_branch(branch: &str) -> String {
    format!("refs/hyla/fetched/{}", hex::encode(&Sha256::digest(branch)[..16]))
}

/// The commit that a ref of the mirror names, after a proof that it and its tree are really there.
pub(super) fn read_back(mirror: &Repository, name: &str) -> Result<CommitId, Error> {
    let read = || -> Result<Oid, git2::Error> {
        let commit = mirror.find_reference(name)?.peel_to_commit()?;
        commit.tree()?;
        Ok(commit.id())
    };
    let id = read().map_err(|source| Error::Mirror { path: mirror.path().to_owned(), source })?;
    Ok(CommitId(id.to_string()))
}

/// The tree of a commit.
pub(crate) fn tree_of<'r>(
    repository: &'r Repository,
    commit: &CommitId,
) -> Result<git2::Tree<'r>, Error> {
    Oid::from_str(&commit.0)
        .and_then(|id| repository.find_commit(id)?.tree())
        .map_err(|source| Error::Commit { commit: commit.clone(), source })
}

fn file_at(
    repository: &Repository,
    commit: &CommitId,
    path: &str,
    limit_bytes: u64,
) -> Result<Option<Vec<u8>>, Error> {
    let failed = |source| Error::Commit { commit: commit.clone(), source };
    let tree = tree_of(repository, commit)?;
    let Ok(entry) = tree.get_path(Path::new(OsStr::new(path))) else { return Ok(None) };
    if entry.kind() != Some(ObjectType::Blob) || entry.filemode() == 0o120_000 {
        return Ok(None);
    }
    let (size, _kind) =
        repository.odb().and_then(|odb| odb.read_header(entry.id())).map_err(failed)?;
    let size_bytes = size as u64;
    if size_bytes > limit_bytes {
        return Err(Error::FileTooLarge { path: path.to_owned(), size_bytes, limit_bytes });
    }
    let blob = repository.find_blob(entry.id()).map_err(failed)?;
    Ok(Some(blob.content().to_vec()))
}
