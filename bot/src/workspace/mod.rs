//! A workspace: the one folder that the agent may write. Every access from the host goes through here and stays
//! beneath it: opened by `openat2` without following any symbolic link, special files refused, removal without limits
//! of depth. Nothing here starts a process or trusts a path.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// An open workspace. The folder outlives the value unless [`Workspace::remove`] is called.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
    dir: OwnedFd,
    owner: Owner,
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
        let dir = rustix::fs::open(root, flags, Mode::empty())?;
        Ok(Self { root: root.to_owned(), dir, owner })
    }

    /// The folder's path on the host.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The open folder.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Who owns what is made here.
    pub fn owner(&self) -> Owner {
        self.owner
    }
}
