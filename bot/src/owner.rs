//! Whom files on this machine belong to, in words: one start as the wrong user locks the service out of its own data.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Uid, User};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

/// The user that this process acts as.
pub fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A user's name, or the number where there is none.
pub fn name(uid: u32) -> String {
    let known = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    known.map_or_else(|| uid.to_string(), |user| user.name)
}

/// A user as `sudo -u` and its like take one: a number has a mark.
fn for_sudo(uid: u32) -> String {
    let known = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    known.map_or_else(|| format!("'#{uid}'"), |user| user.name)
}

/// How this command is run as another user.
pub fn as_user(uid: u32) -> String {
    format!("`sudo -u {} hyla ...`", for_sudo(uid))
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
    unwritable(folder)
}

/// Why nothing can be written in a folder, and what to do about it; nothing where it can be.
pub fn unwritable(folder: &Path) -> Option<String> {
    if may_write(folder) {
        return None;
    }
    let is_read_only =
        statvfs(folder).is_ok_and(|mounted| mounted.f_flag.contains(StatVfsMountFlags::RDONLY));
    Some(obstacle(folder, &std::fs::metadata(folder).ok()?, own(), is_read_only))
}

fn obstacle(folder: &Path, found: &Metadata, me: u32, is_read_only: bool) -> String {
    let (shown, theirs) = (folder.display(), found.uid());
    if is_read_only {
        return format!(
            "`{shown}` cannot be written: it is mounted read-only; mount it for writing, such as with `sudo mount -o remount,rw MOUNT`"
        );
    }
    if theirs == me {
        let mode = found.mode() & 0o7777;
        return format!(
            "`{shown}` cannot be written: its mode is {mode:03o}; run `chmod u+rwx {shown}`"
        );
    }
    format!(
        "`{shown}` belongs to `{}`, and this runs as `{}`; run it as that user: {}",
        name(theirs),
        name(me),
        as_user(theirs)
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_keeps_from_writing_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o500)).unwrap();
        let found = std::fs::metadata(path).unwrap();
        let chmod = format!("its mode is 500; run `chmod u+rwx {}`", path.display());
        for (me, is_read_only, words) in [
            (found.uid(), false, chmod.as_str()),
            (found.uid(), true, "it is mounted read-only; mount it for writing"),
            (found.uid() + 1, false, "run it as that user: `sudo -u "),
        ] {
            let told = obstacle(path, &found, me, is_read_only);
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn a_user_without_a_name_is_written_as_sudo_takes_it() {
        assert_eq!(as_user(64_900), "`sudo -u '#64900' hyla ...`");
        assert_eq!(as_user(0), "`sudo -u root hyla ...`");
    }
}
