//! How much of the disk a workspace takes, looked at while a command runs.
//!
//! Between two looks a command can still write; the limit of one file and the free space that must stay bound what.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

/// Folders within folders that are looked into; deeper ones take an open file each.
const DEPTH: usize = 200;
/// Entries of one look at most.
const ENTRIES: usize = 1_000_000;
/// Bytes of the file system that must stay free for everybody else.
const FREE_BYTES: u64 = 256 << 20;

/// Whether the workspace holds more than it may, or its file system is nearly full.
pub(super) fn is_over(workspace: impl AsFd, limit_bytes: u64) -> io::Result<bool> {
    let system = rustix::fs::fstatvfs(&workspace)?;
    if system.f_bavail.saturating_mul(system.f_frsize) < FREE_BYTES {
        return Ok(true);
    }
    let open = |at: &dyn AsFd, name: &CString| -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(at.as_fd(), name, flags, Mode::empty())?)
    };
    let top = open(&workspace, &c".".to_owned())?;
    let mut stack = vec![(names(&top)?, top)];
    let (mut n_bytes, mut n_entries) = (0_u64, 0_usize);
    while let Some((waiting, folder)) = stack.last_mut() {
        let Some(name) = waiting.pop() else {
            stack.pop();
            continue;
        };
        n_entries += 1;
        let Ok(stat) = rustix::fs::statat(&*folder, &name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        n_bytes =
            n_bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        if n_bytes > limit_bytes || n_entries > ENTRIES {
            return Ok(true);
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stack.len() < DEPTH {
            let Some((_, folder)) = stack.last() else { break };
            if let Ok(inner) = open(folder, &name) {
                stack.push((names(&inner)?, inner));
            }
        }
    }
    Ok(false)
}

fn names(folder: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for item in Dir::read_from(folder)? {
        let name = item?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
    }
    Ok(names)
}
