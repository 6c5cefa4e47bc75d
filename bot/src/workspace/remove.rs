//! Removing a workspace whatever the agent left in it: any depth, any modes, a handful of open folders. Each folder is
//! emptied by unlinking its files and moving its folders up into the workspace's own, where they wait their turn; so
//! nothing is ever deeper than two levels. It does not defend against a process that keeps adding files.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::{Error, Workspace, open_at, set_mode};

/// Attempts at one name. More than one is needed only when something else changes the folder meanwhile.
const ATTEMPTS: usize = 16;

impl Workspace {
    /// Removes the folder and everything in it. Everything may be repeated after an error.
    ///
    /// # Errors
    /// Something in it belongs to another user or is in use as a mount, or the kernel has no `openat2`.
    pub fn remove(self) -> Result<(), Error> {
        rustix::fs::fchmod(self.dir(), Mode::RWXU)
            .map_err(|errno| Error::of(errno, Path::new(".")))?;
        let mut removal = Removal { root: self.dir(), waiting: Vec::new(), n_moved: 0 };
        for _ in 0..ATTEMPTS {
            removal.empty(self.dir())?;
            while let Some(name) = removal.waiting.pop() {
                removal.remove_folder(&name)?;
            }
            match std::fs::remove_dir(self.root()) {
                Ok(()) => return Ok(()),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTEMPTY) => {}
                Err(source) => return Err(Error::Io { path: ".".into(), source }),
            }
        }
        Err(Error::Io { path: ".".into(), source: Errno::NOTEMPTY.into() })
    }
}

struct Removal<'a> {
    root: BorrowedFd<'a>,
    /// Names in the root of folders that are still to be removed.
    waiting: Vec<OsString>,
    n_moved: u64,
}

impl Removal<'_> {
    /// Empties one folder: its files go, its folders wait in the root.
    fn empty(&mut self, folder: BorrowedFd<'_>) -> Result<(), Error> {
        let opened =
            open_at(folder, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY).and_then(Dir::new);
        let mut dir = opened.map_err(|errno| Error::of(errno, Path::new(".")))?;
        while let Some(entry) = dir.read() {
            let entry = entry.map_err(|errno| Error::of(errno, Path::new(".")))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                self.take(folder, name).map_err(|errno| Error::of(errno, Path::new(name)))?;
            }
        }
        Ok(())
    }

    fn take(&mut self, folder: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
        for _ in 0..ATTEMPTS {
            match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // Linux says `ISDIR` for a folder, POSIX allows `PERM`.
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(errno) => return Err(errno),
            }
            match self.put_aside(folder, name) {
                // No longer a folder.
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                answer => return answer,
            }
        }
        Err(Errno::BUSY)
    }

    fn put_aside(&mut self, folder: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        // Moving a folder rewrites its `..`, so the folder itself must be writable.
        match open_at(folder, Path::new(name), flags) {
            Err(Errno::NOENT) => return Ok(()),
            answer => set_mode(answer?, 0o700)?,
        }
        // It is in its place, and a rename could show it to the running listing again, and again.
        if folder.as_raw_fd() == self.root.as_raw_fd() {
            self.waiting.push(name.to_owned());
            return Ok(());
        }
        loop {
            self.n_moved += 1;
            let place = OsString::from(format!(".hyla-removed-{}", self.n_moved));
            match rustix::fs::renameat(folder, name, self.root, &place) {
                Ok(()) => {
                    self.waiting.push(place);
                    return Ok(());
                }
                Err(Errno::NOENT) => return Ok(()),
                // The agent has used the name, for something.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn remove_folder(&mut self, name: &OsStr) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let folder = match open_at(self.root, Path::new(name), flags) {
                Err(Errno::NOENT) => return Ok(()),
                answer => answer.map_err(|errno| Error::of(errno, Path::new(name)))?,
            };
            self.empty(folder.as_fd())?;
            match rustix::fs::unlinkat(self.root, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::NOTEMPTY) => {}
                Err(errno) => return Err(Error::of(errno, Path::new(name))),
            }
        }
        Err(Error::Io { path: name.into(), source: Errno::NOTEMPTY.into() })
    }
}
