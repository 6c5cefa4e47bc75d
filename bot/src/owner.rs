//! Whom files on this machine belong to, in words: one start as the wrong user locks the service out of its own data.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Uid, User};
use rustix::fs::{Access, access};

/// The user that this process acts as.
pub fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A user's name, or the number where there is none.
pub fn name(uid: u32) -> String {
    let known = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    known.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Whether this process may write there.
pub fn may_write(path: &Path) -> bool {
    access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// What in a folder belongs to another user than the folder, and what to do about it.
pub fn stray(folder: &Path) -> Option<String> {
    let owner = std::fs::metadata(folder).ok()?.uid();
    let mut entries: Vec<_> = std::fs::read_dir(folder).ok()?.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let (path, uid) = entries
        .iter()
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.uid())))
        .find(|(_, uid)| *uid != owner)?;
    let (shown, theirs, owner) = (path.display(), name(uid), name(owner));
    Some(format!(
        "`{shown}` belongs to `{theirs}`, and the folder to `{owner}`; run `sudo chown -R {owner} {}`",
        folder.display()
    ))
}

/// What to do when something cannot be read or written in a folder, where its ownership is the reason.
pub fn advice(folder: &Path) -> Option<String> {
    if let Some(stray) = stray(folder) {
        return Some(stray);
    }
    if may_write(folder) {
        return None;
    }
    let theirs = name(std::fs::metadata(folder).ok()?.uid());
    let (shown, me) = (folder.display(), name(own()));
    Some(format!(
        "`{shown}` belongs to `{theirs}`, and this runs as `{me}`; run it as that user: `sudo -u {theirs} hyla ...`"
    ))
}
