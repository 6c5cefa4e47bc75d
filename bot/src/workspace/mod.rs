//! A workspace: the one folder that the agent may write. Every access from the host goes through here and stays
//! beneath it: opened by `openat2` without following any symbolic link, special files refused, removal without limits
//! of depth. Nothing here starts a process or trusts a path.
//!
//! It gives `.git` no meaning: who must not touch it, or must not see it, says so.

mod error;
mod path;
mod remove;
#[cfg(test)]
pub(crate) mod testing;
mod walk;
mod write;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

pub use error::{Error, Refusal};
pub use path::{MOUNT, relative};
pub use walk::{Entry, Limits, Walk};
pub use write::is_partial;

/// Attempts at an `openat2` that lost a race against a rename, which the kernel reports by `EAGAIN`.
const ATTEMPTS: usize = 32;

/// An open workspace. The folder outlives the value unless [`Workspace::remove`] is called.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
    dir: OwnedFd,
    owner: Owner,
    home: Option<Box<Workspace>>,
}

/// Who owns what is made in a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The service's own user, who is not root.
    Service,
    /// The sandbox's user; the service is root and hands over each file that it makes.
    Sandbox {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
}

impl Workspace {
    /// Makes an empty workspace at `root`, which must not exist; its parent must.
    ///
    /// # Errors
    /// The folder exists already, or cannot be made or handed to its owner.
    pub fn create(root: &Path, owner: Owner) -> std::io::Result<Self> {
        std::fs::DirBuilder::new().mode(0o700).create(root)?;
        if let Owner::Sandbox { uid, gid } = owner {
            std::os::unix::fs::lchown(root, Some(uid), Some(gid))?;
        }
        Self::open(root, owner)
    }

    /// Opens an existing workspace.
    ///
    /// # Errors
    /// The folder is not there, or is a symbolic link.
    pub fn open(root: &Path, owner: Owner) -> std::io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(root, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                let_owner_in(&rustix::fs::open(root, flags | OFlags::PATH, Mode::empty())?)?;
                rustix::fs::open(root, flags, Mode::empty())?
            }
            answer => answer?,
        };
        let_owner_in(&dir)?;
        Ok(Self { root: root.to_owned(), dir, owner, home: None })
    }

    /// The same, with a home folder that stays from one command to the next, instead of one that is empty for each. It is not
    /// removed with the workspace.
    pub fn with_home(self, home: Self) -> Self {
        Self { home: Some(Box::new(home)), ..self }
    }

    /// The home folder that commands share, if they share one.
    pub fn home(&self) -> Option<&Self> {
        self.home.as_deref()
    }

    /// The folder's path on the host.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The open folder. The agent may have closed it: its owner is let in first.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Who owns what is made here.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Reads a regular file, at most `limit_bytes` of it or nothing.
    ///
    /// # Errors
    /// The path is refused or leads nowhere, leads through a symbolic link, or is not a regular file of that size.
    pub fn read(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, Error> {
        let beneath = relative(path)?;
        // Without `NONBLOCK` a pipe would hold the caller until somebody writes to it.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open_beneath(&beneath, flags).map_err(|errno| Error::of(errno, path))?;
        let status = rustix::fs::fstat(&file).map_err(|errno| Error::of(errno, path))?;
        let size_bytes = Metadata::of(&status).file(path)?.size_bytes;
        if size_bytes > limit_bytes {
            return Err(Error::TooLarge { path: path.to_owned(), size_bytes, limit_bytes });
        }
        let mut bytes = Vec::new();
        // The file may grow while it is read.
        let copied =
            std::fs::File::from(file).take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes);
        copied.map_err(|source| Error::Io { path: path.to_owned(), source })?;
        match bytes.len() as u64 {
            size_bytes if size_bytes > limit_bytes => {
                Err(Error::TooLarge { path: path.to_owned(), size_bytes, limit_bytes })
            }
            _ => Ok(bytes),
        }
    }

    /// The text of a symbolic link, any bytes. Nothing says that it leads anywhere.
    ///
    /// # Errors
    /// The path is refused, passes through a symbolic link, or is not one.
    pub fn read_link(&self, path: &Path) -> Result<PathBuf, Error> {
        let beneath = relative(path)?;
        let inner = || {
            let node = self.open_beneath(&beneath, OFlags::PATH | OFlags::NOFOLLOW)?;
            rustix::fs::readlinkat(&node, "", Vec::new())
        };
        let text = inner().map_err(|errno| Error::of(errno, path))?;
        Ok(PathBuf::from(OsString::from_vec(text.into_bytes())))
    }

    /// Lets the owner read a file or a folder that was closed to him. Nobody may be writing the workspace meanwhile.
    ///
    /// # Errors
    /// The path is refused or leads nowhere, passes through a symbolic link, or the mode cannot be changed.
    pub fn unlock(&self, path: &Path) -> Result<(), Error> {
        let beneath = relative(path)?;
        let inner = || {
            let node = self.open_beneath(&beneath, OFlags::PATH | OFlags::NOFOLLOW)?;
            let found = Metadata::of(&rustix::fs::fstat(&node)?);
            match found.kind {
                Kind::File => set_mode(&node, found.mode | 0o400),
                Kind::Folder => set_mode(&node, found.mode | 0o700),
                Kind::Symlink | Kind::Other => Ok(()),
            }
        };
        inner().map_err(|errno| Error::of(errno, path))
    }

    /// Everything beneath a folder; see [`Walk`]. `Path::new(".")` is the workspace itself.
    ///
    /// # Errors
    /// The path is refused, or is not a folder.
    pub fn walk(&self, folder: &Path, limits: Limits) -> Result<Walk<'_>, Error> {
        Walk::start(self, &relative(folder)?, limits)
    }

    /// Opens what is beneath, without following any link at any place. `beneath` comes from [`relative`], or is made
    /// of names that the kernel gave.
    fn open_beneath(&self, beneath: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let beneath = if beneath.as_os_str().is_empty() { Path::new(".") } else { beneath };
        match open_at(self.dir(), beneath, flags) {
            Err(Errno::ACCESS) => {
                let_owner_in(self.dir())?;
                open_at(self.dir(), beneath, flags)
            }
            answer => answer,
        }
    }
}

/// The path of what a command writes besides the workspace of this path, where the sandbox has no place of its own for it.
pub(crate) fn scratch_beside(workspace: &Path) -> PathBuf {
    let mut path = workspace.as_os_str().to_owned();
    path.push("-scratch");
    path.into()
}

/// Lets the owner into a workspace's own folder again. The agent owns it, and may have closed it to its owner: then
/// nothing in it could be looked at, and no command could start there.
pub(crate) fn let_owner_in(dir: impl AsFd) -> Result<(), Errno> {
    let mode = rustix::fs::fstat(&dir)?.st_mode & 0o7777;
    if mode & 0o700 == 0o700 { Ok(()) } else { set_mode(dir, mode | 0o700) }
}

/// Sets the permission bits of an open node. It may be open by `O_PATH`, which is all that an owner who is shut out gets.
pub(crate) fn set_mode(node: impl AsFd, mode: u32) -> Result<(), Errno> {
    // The number leads to the open node itself, not to a name that could have been swapped; a mode cannot be changed
    // through an `O_PATH` descriptor in any other way before Linux 6.6.
    let door = format!("/proc/self/fd/{}", node.as_fd().as_raw_fd());
    rustix::fs::chmodat(CWD, door, Mode::from_raw_mode(mode), AtFlags::empty())
}

/// Opens beneath a folder: no link, no magic link, no other file system, nothing above.
fn open_at(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let mut answer = Err(Errno::AGAIN);
    for _ in 0..ATTEMPTS {
        answer = rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
        if !matches!(answer, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    // The kernel has no such answer to a mere look; a container's system call filter has.
    answer.map_err(|errno| if errno == Errno::PERM { Errno::NOSYS } else { errno })
}

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link, wherever it leads.
    Symlink,
    /// A pipe, socket or device.
    Other,
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub kind: Kind,
    /// Bytes of a file, or of a link's text.
    pub size_bytes: u64,
    /// The permission bits, with set-id and sticky.
    pub mode: u32,
    /// Names of the file.
    pub links: u64,
}

impl Metadata {
    fn of(status: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Folder,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Kind::Other,
        };
        #[expect(
            clippy::useless_conversion,
            reason = "the width of a link count differs between architectures"
        )]
        let links = u64::from(status.st_nlink);
        Self {
            kind,
            size_bytes: u64::try_from(status.st_size).unwrap_or(0),
            mode: status.st_mode & 0o7777,
            links,
        }
    }

    /// Whether it is a file that its owner may execute: the one bit that git keeps.
    pub fn is_executable(&self) -> bool {
        self.kind == Kind::File && self.mode & 0o100 != 0
    }

    /// Itself, when it is a regular file.
    fn file(self, path: &Path) -> Result<Self, Error> {
        let path = path.to_owned();
        match self.kind {
            Kind::File => Ok(self),
            Kind::Folder => Err(Error::Folder { path }),
            Kind::Symlink => Err(Error::Link { path }),
            Kind::Other => Err(Error::Special { path }),
        }
    }
}
