//! Writing a file whole: into a fresh file beside it, then renamed over it, so that a reader sees the one or the other
//! and a link planted at the name is replaced, never followed. It does not write into existing files.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{Error, Kind, Metadata, Owner, Workspace, open_at, relative};

/// What git and every editor give a file.
const FILE_MODE: u32 = 0o644;

/// What git and every editor give a folder.
const FOLDER_MODE: u32 = 0o755;

/// What the name of a file that is being written begins and ends with.
const PARTIAL: (&[u8], &[u8]) = (b".hyla-", b".partial");

/// Names tried for the fresh file. The agent may have taken some of them.
const NAMES: usize = 16;

impl Workspace {
    /// Writes a file, makes the folders above it, and keeps the permission bits of the file that it replaces. What was
    /// a symbolic link becomes a file.
    ///
    /// # Errors
    /// The path is refused, passes through a symbolic link, or is taken by something that is not a file of one name.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), Error> {
        let beneath = relative(path)?;
        let Some(name) = beneath.file_name() else {
            return Err(Error::Folder { path: path.to_owned() });
        };
        let parent = self.make_folders(beneath.parent().unwrap_or(Path::new("")), path)?;
        let mode = replaced_mode(parent.as_fd(), name, path)?;
        let (fresh, file) = fresh_file(parent.as_fd(), path)?;
        let done = self.fill(file, mode, bytes).and_then(|()| {
            rustix::fs::renameat(&parent, &fresh, &parent, name)?;
            Ok(())
        });
        done.map_err(|source: std::io::Error| {
            // What is left to say is why the write failed, not that its remains stay.
            let _ = rustix::fs::unlinkat(&parent, &fresh, AtFlags::empty());
            match Errno::from_io_error(&source) {
                Some(errno) => Error::of(errno, path),
                None => Error::Io { path: path.to_owned(), source },
            }
        })
    }

    /// Removes a file, a symbolic link or anything else but a folder. One that is not there is removed.
    ///
    /// # Errors
    /// The path is refused, passes through a symbolic link, or leads to a folder.
    pub fn remove_file(&self, path: &Path) -> Result<(), Error> {
        let beneath = relative(path)?;
        let Some(name) = beneath.file_name() else {
            return Err(Error::Folder { path: path.to_owned() });
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let removed = self
            .open_beneath(beneath.parent().unwrap_or(Path::new("")), flags)
            .and_then(|parent| rustix::fs::unlinkat(&parent, name, AtFlags::empty()));
        match removed {
            Err(Errno::NOENT) | Ok(()) => Ok(()),
            Err(errno) => Err(Error::of(errno, path)),
        }
    }

    fn fill(&self, file: OwnedFd, mode: u32, bytes: &[u8]) -> std::io::Result<()> {
        // The owner first: a change of owner clears bits of the mode.
        self.hand_over(file.as_fd())?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        let mut file = std::fs::File::from(file);
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn hand_over(&self, node: BorrowedFd<'_>) -> Result<(), Errno> {
        match self.owner() {
            Owner::Service => Ok(()),
            Owner::Sandbox { uid, gid } => {
                rustix::fs::fchown(node, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            }
        }
    }

    /// The folder at `beneath`, made where it is missing. `path` is for the error.
    fn make_folders(&self, beneath: &Path, path: &Path) -> Result<OwnedFd, Error> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open_beneath(beneath, flags) {
            Err(Errno::NOENT) => {}
            answer => return answer.map_err(|errno| Error::of(errno, path)),
        }
        let mut folder =
            self.open_beneath(Path::new(""), flags).map_err(|errno| Error::of(errno, path))?;
        for name in beneath {
            folder =
                self.make_folder(folder.as_fd(), name).map_err(|errno| Error::of(errno, path))?;
        }
        Ok(folder)
    }

    fn make_folder(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(FOLDER_MODE)) {
            Err(Errno::EXIST) => open_at(parent, Path::new(name), flags),
            Err(errno) => Err(errno),
            Ok(()) => {
                let made = open_at(parent, Path::new(name), OFlags::RDONLY | OFlags::DIRECTORY)?;
                self.hand_over(made.as_fd())?;
                // The service's own mask may be stricter.
                rustix::fs::fchmod(&made, Mode::from_raw_mode(FOLDER_MODE))?;
                Ok(made)
            }
        }
    }
}

/// The mode for the file that takes this name.
fn replaced_mode(parent: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<u32, Error> {
    let status = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(FILE_MODE),
        answer => answer.map_err(|errno| Error::of(errno, path))?,
    };
    let replaced = Metadata::of(&status);
    match replaced.kind {
        Kind::Symlink => Ok(FILE_MODE),
        Kind::File if replaced.links > 1 => {
            Err(Error::HardLinked { path: path.to_owned(), links: replaced.links })
        }
        Kind::File => Ok(replaced.mode & 0o777),
        Kind::Folder => Err(Error::Folder { path: path.to_owned() }),
        Kind::Other => Err(Error::Special { path: path.to_owned() }),
    }
}

/// Whether a file's name is one that [`Workspace::write`] gives while it writes. A crash can leave such a file.
pub fn is_partial(name: &[u8]) -> bool {
    let number = name.strip_prefix(PARTIAL.0).and_then(|rest| rest.strip_suffix(PARTIAL.1));
    let is_count = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    number.is_some_and(|number| {
        let mut parts = number.splitn(2, |byte| *byte == b'-');
        parts.next().is_some_and(is_count) && parts.next().is_some_and(is_count)
    })
}

/// An empty file with a name that nobody had.
pub(super) fn fresh_file(
    parent: BorrowedFd<'_>,
    path: &Path,
) -> Result<(OsString, OwnedFd), Error> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..NAMES {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let number = format!("{}-{number}", std::process::id());
        let name = OsString::from_vec([PARTIAL.0, number.as_bytes(), PARTIAL.1].concat());
        // `EXCL` creates or fails, and `name` has one component: there is nothing to resolve, so nothing to confine.
        match rustix::fs::openat(parent, &name, flags, Mode::from_raw_mode(0o600)) {
            Err(Errno::EXIST) => {}
            answer => return Ok((name, answer.map_err(|errno| Error::of(errno, path))?)),
        }
    }
    Err(Error::Io { path: path.to_owned(), source: Errno::EXIST.into() })
}
