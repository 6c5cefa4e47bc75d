//! Walking a folder: every entry below it, folders before what they hold, names in the order of their bytes, links
//! shown and never followed. It keeps no folder open between two steps and calls nothing recursively, so neither depth
//! nor breadth of a hostile tree costs more than the limits allow.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::vec;

use rustix::fs::{AtFlags, Dir, OFlags};
use rustix::io::Errno;

use super::{Error, Kind, Metadata, Workspace};

/// How much a walk may meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Entries at most, over the whole walk. Beyond it the walk ends with [`Error::TooMany`].
    pub entries: usize,
    /// Levels below the start at most; 1 is what the folder itself holds. A folder whose content would be deeper yields
    /// [`Error::TooDeep`] after itself, and the walk goes on beside it.
    pub depth: usize,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the workspace, any bytes.
    pub path: PathBuf,
    /// What it is.
    pub metadata: Metadata,
    /// Levels below the start; 1 is directly in it.
    pub depth: usize,
}

/// An iterator over everything beneath a folder. An error about one folder is yielded in its place; only
/// [`Error::TooMany`] ends the walk. What vanishes meanwhile is left out.
#[derive(Debug)]
pub struct Walk<'a> {
    workspace: &'a Workspace,
    limits: Limits,
    seen: usize,
    /// The folder that the last step yielded.
    pending: Option<PathBuf>,
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    folder: PathBuf,
    entries: vec::IntoIter<(OsString, Metadata)>,
}

impl<'a> Walk<'a> {
    pub(super) fn start(
        workspace: &'a Workspace,
        folder: &Path,
        limits: Limits,
    ) -> Result<Self, Error> {
        let mut walk = Self { workspace, limits, seen: 0, pending: None, levels: Vec::new() };
        walk.enter(folder.to_owned())?;
        Ok(walk)
    }

    /// Leaves out what the folder holds that the last step yielded.
    pub fn skip_folder(&mut self) {
        self.pending = None;
    }

    fn enter(&mut self, folder: PathBuf) -> Result<(), Error> {
        if self.levels.len() >= self.limits.depth {
            return Err(Error::TooDeep { path: folder, limit: self.limits.depth });
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = self.workspace.open_beneath(&folder, flags).and_then(Dir::new);
        let mut dir = opened.map_err(|errno| Error::of(errno, &folder))?;
        let mut entries = Vec::new();
        while let Some(entry) = dir.read() {
            let entry = entry.map_err(|errno| Error::of(errno, &folder))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            self.seen += 1;
            if self.seen > self.limits.entries {
                return Err(Error::TooMany { path: folder, limit: self.limits.entries });
            }
            let status =
                dir.fd().and_then(|fd| rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW));
            match status {
                Ok(status) => entries.push((name.to_owned(), Metadata::of(&status))),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(Error::of(errno, &folder.join(name))),
            }
        }
        entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        self.levels.push(Level { folder, entries: entries.into_iter() });
        Ok(())
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(folder) = self.pending.take() {
            match self.enter(folder) {
                Ok(()) | Err(Error::Missing { .. }) => {}
                Err(error) => {
                    if matches!(error, Error::TooMany { .. }) {
                        self.levels.clear();
                    }
                    return Some(Err(error));
                }
            }
        }
        loop {
            let level = self.levels.last_mut()?;
            let Some((name, metadata)) = level.entries.next() else {
                self.levels.pop();
                continue;
            };
            let path = level.folder.join(name);
            if metadata.kind == Kind::Folder {
                self.pending = Some(path.clone());
            }
            return Some(Ok(Entry { path, metadata, depth: self.levels.len() }));
        }
    }
}
