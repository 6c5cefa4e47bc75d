//! A workspace from a commit: the tree byte for byte, and a repository of its own around it.
//!
//! The tree is written by the bot and not by libgit2's checkout, so that no attribute, filter or line-ending rule of the
//! repository takes part, each entry is made anew below an open folder without following any link, and owners and
//! modes are exact. The objects are copies in one pack: no hardlink, no alternate, nothing of other branches or jobs.

mod history;
mod pack;
mod stock;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use git2::{
    Index, IndexEntry, IndexTime, ObjectType, Odb, OdbObject, Oid, Repository,
    RepositoryInitOptions, Tree,
};
use rustix::fs::{AtFlags, Mode, OFlags};

pub(super) use history::{Limits, copy as copy_history};
pub(super) use pack::{GROWING, Lasting};
pub use stock::Stock;

use super::Error;
use super::mirror::tree_of;
use crate::git_name::is_dot_git;
use crate::job::CommitId;
use crate::workspace::{Owner, Workspace};

/// History in a workspace: enough for `git log` and `git blame` on what a fix touches. The whole history of a large
/// repository would make each workspace larger than the mirror. 500 commits of large repositories have some 50 MB of objects;
/// the bytes are there for histories with large files.
const HISTORY: Limits = Limits { n_commits: 500, bytes: 128 << 20 };

/// Bytes of file contents in one workspace.
const TREE_BYTES: u64 = 8 << 30;

/// Files and folders in one workspace: several times the largest public repositories.
const TREE_ENTRIES: usize = 1_000_000;

/// Bytes of one file; each is held in memory once.
const FILE_BYTES: u64 = 1 << 30;

/// Folders within folders: as deep as a workspace is looked into again. One descriptor is open per level.
const TREE_DEPTH: usize = 128;

/// Wins over every `.gitattributes` of the tree: the files are in the workspace as they are in the repository, and git
/// in the sandbox shall not look for a filter or see a difference.
const ATTRIBUTES: &str = "* -text !eol -filter -ident !working-tree-encoding\n";

/// Makes the workspace, or leaves nothing.
fn workspace(
    stock: &Stock,
    mirror: &Repository,
    commit: &CommitId,
    root: &Path,
    owner: Owner,
) -> Result<Workspace, Error> {
    let tree = tree_of(mirror, commit)?;
    let workspace = Workspace::create(root, owner)
        .map_err(|source| Error::Disk { path: root.to_owned(), source })?;
    let filled = check_out(mirror, &tree, &workspace)
        .and_then(|index| make_repository(stock, mirror, commit, root, &index))
        .and_then(|()| hand_over(&root.join(".git"), owner));
    match filled {
        Ok(()) => Ok(workspace),
        Err(error) => {
            // Nobody but the bot has written here yet, so there is nothing to be careful about.
            if let Err(left) = std::fs::remove_dir_all(root) {
                tracing::warn!(path = %root.display(), error = %left, "a half-made workspace was left");
            }
            Err(error)
        }
    }
}

struct Checkout<'r> {
    mirror: &'r Repository,
    odb: &'r Odb<'r>,
    owner: Owner,
    root: &'r Path,
    path: Vec<u8>,
    depth: usize,
    bytes: u64,
    index: Vec<IndexEntry>,
    n_entries: usize,
}

fn check_out(
    mirror: &Repository,
    tree: &Tree<'_>,
    workspace: &Workspace,
) -> Result<Vec<IndexEntry>, Error> {
    let odb =
        mirror.odb().map_err(|source| Error::Mirror { path: mirror.path().to_owned(), source })?;
    let mut checkout = Checkout {
        mirror,
        odb: &odb,
        owner: workspace.owner(),
        root: workspace.root(),
        path: Vec::new(),
        depth: 0,
        bytes: 0,
        index: Vec::new(),
        n_entries: 0,
    };
    checkout.folder(workspace.dir(), tree)?;
    Ok(checkout.index)
}

impl<'r> Checkout<'r> {
    fn folder(&mut self, dir: BorrowedFd<'_>, tree: &Tree<'_>) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > TREE_DEPTH {
            return Err(Error::TreeTooLarge { limit: "128 folders within each other" });
        }
        for entry in tree {
            let length = self.path.len();
            if length > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(entry.name_bytes());
            self.n_entries += 1;
            if self.n_entries > TREE_ENTRIES {
                return Err(Error::TreeTooLarge { limit: "1000000 files and folders" });
            }
            self.entry(dir, &entry)?;
            self.path.truncate(length);
        }
        self.depth -= 1;
        Ok(())
    }

    fn entry(&mut self, dir: BorrowedFd<'_>, entry: &git2::TreeEntry<'_>) -> Result<(), Error> {
        let name = OsStr::from_bytes(entry.name_bytes());
        if !is_safe_name(entry.name_bytes()) {
            return Err(self.refuse("its name could reach outside the tree or into `.git`"));
        }
        match (entry.kind(), entry.filemode()) {
            (Some(ObjectType::Tree), _) => {
                let tree = self.mirror.find_tree(entry.id()).map_err(|e| self.unreadable(e))?;
                let folder = self.make_folder(dir, name)?;
                self.folder(folder.as_fd(), &tree)
            }
            (Some(ObjectType::Blob), 0o120_000) => self.link(dir, name, entry.id()),
            (Some(ObjectType::Blob), 0o100_755) => self.file(dir, name, entry.id(), 0o755),
            (Some(ObjectType::Blob), _) => self.file(dir, name, entry.id(), 0o644),
            // A submodule: an empty folder, as a clone without its submodules has it.
            (Some(ObjectType::Commit), _) => {
                let folder = self.make_folder(dir, name)?;
                self.note(folder.as_fd(), entry.id(), 0o160_000)
            }
            (_, _) => Err(self.refuse("it is neither a file nor a folder")),
        }
    }

    fn make_folder(&self, dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Error> {
        let made = || -> std::io::Result<OwnedFd> {
            rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755))?;
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(dir, name, flags, Mode::empty())?;
            rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o755))?;
            own(folder.as_fd(), self.owner)?;
            Ok(folder)
        };
        made().map_err(|source| self.disk(source))
    }

    fn file(&mut self, dir: BorrowedFd<'_>, name: &OsStr, id: Oid, mode: u32) -> Result<(), Error> {
        let content = self.content(id)?;
        let made = || -> std::io::Result<File> {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
            let fd = rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, Mode::RUSR)?;
            let mut file = File::from(fd);
            file.write_all(content.data())?;
            file.set_permissions(PermissionsExt::from_mode(mode))?;
            own(file.as_fd(), self.owner)?;
            Ok(file)
        };
        let file = made().map_err(|source| self.disk(source))?;
        self.note(file.as_fd(), id, 0o100_000 | mode)
    }

    fn link(&mut self, dir: BorrowedFd<'_>, name: &OsStr, id: Oid) -> Result<(), Error> {
        let content = self.content(id)?;
        let target = content.data();
        // 4095 bytes are the most that Linux takes.
        if target.is_empty() || target.len() > 4095 || target.contains(&0) {
            return Err(self.refuse("no symbolic link can have its target"));
        }
        let made = || -> std::io::Result<OwnedFd> {
            rustix::fs::symlinkat(OsStr::from_bytes(target), dir, name)?;
            if let Owner::Sandbox { uid, gid } = self.owner {
                let (uid, gid) = ids(uid, gid);
                rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
        };
        let link = made().map_err(|source| self.disk(source))?;
        self.note(link.as_fd(), id, 0o120_000)
    }

    fn content(&mut self, id: Oid) -> Result<OdbObject<'r>, Error> {
        let (size, _kind) = self.odb.read_header(id).map_err(|e| self.unreadable(e))?;
        let size = size as u64;
        self.bytes += size;
        if size > FILE_BYTES {
            return Err(Error::TreeTooLarge { limit: "1 GiB in one file" });
        }
        if self.bytes > TREE_BYTES {
            return Err(Error::TreeTooLarge { limit: "8 GiB in its files" });
        }
        self.odb.read(id).map_err(|e| self.unreadable(e))
    }

    /// Remembers what git's index needs, so that `git status` in the sandbox need not read every file.
    fn note(&mut self, made: BorrowedFd<'_>, id: Oid, mode: u32) -> Result<(), Error> {
        let stat = rustix::fs::fstat(made).map_err(|e| self.disk(e.into()))?;
        // The index keeps the low 32 bits of each of these.
        let low = |value: i64| value as u32;
        self.index.push(IndexEntry {
            ctime: IndexTime::new(low(stat.st_ctime as i64) as i32, low(stat.st_ctime_nsec as i64)),
            mtime: IndexTime::new(low(stat.st_mtime as i64) as i32, low(stat.st_mtime_nsec as i64)),
            dev: stat.st_dev as u32,
            ino: stat.st_ino as u32,
            mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            file_size: stat.st_size as u32,
            id,
            flags: 0,
            flags_extended: 0,
            path: self.path.clone(),
        });
        Ok(())
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    fn refuse(&self, reason: &'static str) -> Error {
        Error::UnsafeTree { path: self.shown(), reason }
    }

    fn disk(&self, source: std::io::Error) -> Error {
        if source.kind() == std::io::ErrorKind::AlreadyExists {
            return self.refuse("the tree holds its name twice");
        }
        Error::Disk { path: self.root.join(OsStr::from_bytes(&self.path)), source }
    }

    fn unreadable(&self, source: git2::Error) -> Error {
        Error::Mirror { path: self.mirror.path().to_owned(), source }
    }
}

/// Whether an entry's name makes exactly one entry below its folder, and not a `.git`.
fn is_safe_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
        && !is_dot_git(name)
}

fn own(made: BorrowedFd<'_>, owner: Owner) -> std::io::Result<()> {
    if let Owner::Sandbox { uid, gid } = owner {
        let (uid, gid) = ids(uid, gid);
        rustix::fs::fchown(made, uid, gid)?;
    }
    Ok(())
}

fn ids(uid: u32, gid: u32) -> (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>) {
    (Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)))
}

/// The disposable repository around the files. It is made as a bare one, because its folder is not yet trusted to be
/// the bot's own, and becomes an ordinary one by its last setting.
fn make_repository(
    stock: &Stock,
    mirror: &Repository,
    commit: &CommitId,
    root: &Path,
    entries: &[IndexEntry],
) -> Result<(), Error> {
    let path = root.join(".git");
    let failed = |source| Error::Mirror { path: path.clone(), source };
    let mut options = RepositoryInitOptions::new();
    options.bare(true).no_reinit(true).mkdir(true).external_template(false);
    options.initial_head("main");
    let repository = Repository::init_opts(&path, &options).map_err(failed)?;
    let id = Oid::from_str(&commit.0).map_err(failed)?;
    stock.give(mirror, id, &path)?;
    let settle = || -> Result<(), git2::Error> {
        repository.reference("refs/heads/main", id, false, "the base commit")?;

        let mut index = Index::open(&path.join("index"))?;
        for entry in entries {
            index.add(entry)?;
        }
        index.write()?;

        let mut config = repository.config()?;
        config.set_str("user.name", "agent")?;
        config.set_str("user.email", "agent@localhost")?;
        config.set_bool("core.fileMode", true)?;
        config.set_bool("core.autocrlf", false)?;
        config.set_bool("core.symlinks", true)?;
        config.set_i64("gc.auto", 0)?;
        config.set_bool("core.bare", false)
    };
    settle().map_err(failed)?;
    let info = path.join("info");
    std::fs::remove_dir_all(path.join("hooks"))
        .and_then(|()| std::fs::create_dir_all(&info))
        .and_then(|()| std::fs::write(info.join("attributes"), ATTRIBUTES))
        .map_err(|source| Error::Disk { path: info, source })
}

/// Gives a folder that only the bot has written to its owner, and takes the write permission of everyone else away.
fn hand_over(folder: &Path, owner: Owner) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Disk { path, source }
    };
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = path.symlink_metadata().map_err(failed(&path))?;
        if metadata.is_dir() {
            for entry in std::fs::read_dir(&path).map_err(failed(&path))? {
                waiting.push(entry.map_err(failed(&path))?.path());
            }
        }
        let mode = metadata.mode() & 0o755;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).map_err(failed(&path))?;
        if let Owner::Sandbox { uid, gid } = owner {
            std::os::unix::fs::lchown(&path, Some(uid), Some(gid)).map_err(failed(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_safe_name;

    #[test]
    fn a_name_that_could_leave_its_folder_is_not_safe() {
        for name in ["a", ".gitignore", "...", "a b", "git", ".git2"] {
            assert!(is_safe_name(name.as_bytes()), "{name}");
        }
        for name in
            ["", ".", "..", "a/b", "/", "a\0", ".git", ".GIT", "git~1", ".git. ", ".g\u{200c}it"]
        {
            assert!(!is_safe_name(name.as_bytes()), "{name:?}");
        }
    }
}
