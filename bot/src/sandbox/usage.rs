//! How much of the disk a workspace takes, looked at while a command runs.
//!
//! Between two looks a command can still write. The whole file system is cheap to look at, so what must stay free of it is
//! looked at often; a walk takes longer the more there is.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Access, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::workspace::{let_owner_in, set_mode};

/// Folders within folders that may be; each takes an open file, and what lies deeper would not be seen.
const DEPTH: usize = 200;
/// Files and folders that the file system must still have room for.
const FREE_FILES: u64 = 10_000;
/// Attempts at the workspace's own folder, which a command may close as fast as it is opened.
const ATTEMPTS: usize = 16;
/// What an owner needs to look into a folder.
const LOOK: u32 = 0o500;

/// Whether the workspace's file system is nearly full, of bytes or of files.
pub(super) fn is_full(workspace: &OwnedFd, free_bytes: u64) -> io::Result<bool> {
    let system = rustix::fs::fstatvfs(workspace)?;
    // Some file systems make room for files as they are needed, and count none.
    let has_no_files = system.f_files > 0 && system.f_favail < FREE_FILES;
    Ok(has_no_files || system.f_bavail.saturating_mul(system.f_frsize) < free_bytes)
}

/// Whether the workspace holds more than it may, or so deep that it cannot be seen.
pub(super) fn is_over(workspace: &OwnedFd, limit_bytes: u64, limit_files: u64) -> io::Result<bool> {
    // Without the first folder there is nothing to be seen this time; the next look comes soon.
    let Some(top) = top(workspace)? else { return Ok(false) };
    let mut stack = vec![top];
    let (mut n_bytes, mut n_entries) = (0_u64, 0_u64);
    while let Some(folder) = stack.last_mut() {
        let Some(name) = folder.waiting.pop() else {
            stack.pop();
            continue;
        };
        n_entries += 1;
        let Ok(stat) = rustix::fs::statat(&folder.dir, &name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        n_bytes =
            n_bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        if n_bytes > limit_bytes || n_entries > limit_files {
            return Ok(true);
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            if stack.len() == DEPTH {
                return Ok(true);
            }
            let Some(folder) = stack.last() else { break };
            // What is gone by now takes no room.
            if let Ok(inner) = Folder::open(&folder.dir, &name) {
                stack.push(inner);
            }
        }
    }
    Ok(false)
}

/// The workspace's own folder; none if the command closes it again and again.
fn top(workspace: &OwnedFd) -> io::Result<Option<Folder>> {
    for _ in 0..ATTEMPTS {
        let_owner_in(workspace)?;
        match Folder::open(workspace, c".") {
            Err(Errno::ACCESS) => {}
            answer => return Ok(Some(answer?)),
        }
    }
    Ok(None)
}

/// A folder that is being looked into.
struct Folder {
    dir: OwnedFd,
    waiting: Vec<CString>,
    _lent: Option<Lent>,
}

impl Folder {
    fn open(at: &OwnedFd, name: &CStr) -> Result<Self, Errno> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = rustix::fs::openat(at, name, flags | OFlags::PATH, Mode::empty())?;
        let needed = Access::READ_OK | Access::EXEC_OK;
        let lent = match rustix::fs::accessat(at, name, needed, AtFlags::empty()) {
            Err(Errno::ACCESS) => Lent::of(&node)?,
            Ok(()) | Err(_) => None,
        };
        let dir = rustix::fs::openat(&node, c".", flags, Mode::empty())?;
        Ok(Self { waiting: names(&dir)?, dir, _lent: lent })
    }
}

/// A folder that its owner closed to himself, open to him for as long as this lives: a program may well test what it does
/// where it may not look.
struct Lent {
    node: OwnedFd,
    lent: u32,
    closed: u32,
}

impl Lent {
    fn of(node: &OwnedFd) -> Result<Option<Self>, Errno> {
        let closed = mode(node)?;
        let lent = closed | LOOK;
        if lent == closed {
            return Ok(None);
        }
        let lent = Self { node: rustix::io::dup(node)?, lent, closed };
        set_mode(node, lent.lent)?;
        Ok(Some(lent))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Whoever has set another mode meanwhile means that one.
        if mode(&self.node) == Ok(self.lent) {
            // A folder that is gone needs none.
            let _ = set_mode(&self.node, self.closed);
        }
    }
}

fn mode(node: &OwnedFd) -> Result<u32, Errno> {
    Ok(rustix::fs::fstat(node)?.st_mode & 0o7777)
}

fn names(folder: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for item in Dir::read_from(folder)? {
        let name = item?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use super::*;
    use crate::workspace::testing::as_ordinary_user;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_lies_in_closed_folders_counts_and_they_stay_closed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/big"), vec![1; 3 << 20]).unwrap();
        for (of_root, of_outer, of_inner) in
            [(0o700, 0o755, 0o755), (0o644, 0o755, 0o755), (0o000, 0o644, 0o300), (0o700, 0, 0)]
        {
            set(root, 0o700);
            set(&root.join("a"), 0o700);
            let held = fs::File::open(root).unwrap().into();
            set(&root.join("a/b"), of_inner);
            set(&root.join("a"), of_outer);
            set(root, of_root);
            let (over, within) = as_ordinary_user(|| {
                (is_over(&held, 2 << 20, 10).unwrap(), is_over(&held, 8 << 20, 10).unwrap())
            });
            assert!(over && !within, "{of_root:o} {of_outer:o} {of_inner:o}");
            let mode = |path: &str| fs::metadata(root.join(path)).unwrap().mode() & 0o777;
            if rustix::process::geteuid().is_root() {
                assert_eq!((mode("a"), mode("a/b")), (of_outer, of_inner));
            }
            set(&root.join("a"), 0o700);
            set(&root.join("a/b"), 0o700);
        }
    }

    #[test]
    fn empty_files_and_folders_count_too() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..7 {
            fs::create_dir(place.path().join(number.to_string())).unwrap();
            fs::write(place.path().join(format!("{number}/empty")), "").unwrap();
        }
        let held = fs::File::open(place.path()).unwrap().into();
        assert!(is_over(&held, u64::MAX, 13).unwrap() && !is_over(&held, u64::MAX, 14).unwrap());
    }

    #[test]
    fn nothing_hides_in_depth() {
        let place = tempfile::tempdir().unwrap();
        let held = fs::File::open(place.path()).unwrap().into();
        let folders = |n: usize| place.path().join("d/".repeat(n));
        fs::create_dir_all(folders(DEPTH - 1)).unwrap();
        assert!(!is_over(&held, u64::MAX, u64::MAX).unwrap());
        fs::create_dir(folders(DEPTH)).unwrap();
        assert!(is_over(&held, u64::MAX, u64::MAX).unwrap());
    }

    #[test]
    fn a_file_system_is_full_when_less_is_free_than_must_stay() {
        let place = tempfile::tempdir().unwrap();
        let held = fs::File::open(place.path()).unwrap().into();
        assert!(is_full(&held, u64::MAX).unwrap() && !is_full(&held, 1).unwrap());
    }
}
