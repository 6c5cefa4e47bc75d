//! The folders that an operator shows to commands, looked through before the first command: a socket in one would be a
//! door to whoever listens on the host, and that a folder is read-only closes no socket.
//!
//! It looks once. A socket that is made later in such a folder, which the agent cannot do, is not seen.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::SetupError;

/// Nothing, when none of the folders holds a socket.
///
/// # Errors
/// One does, or is not there.
pub(super) fn without_sockets(folders: &[PathBuf]) -> Result<(), SetupError> {
    for folder in folders {
        let shown = folder.display();
        // Bubblewrap follows a link at the source of a mount.
        let real = std::fs::canonicalize(folder).map_err(|error| SetupError::Unusable {
            reason: format!("there is no `{shown}`: {error}"),
            remedy: "install what it should hold, or take it out of `sandbox.read_only`".into(),
        })?;
        if let Some(socket) = socket_in(&real) {
            let reason = format!(
                "`{}` is a socket, by which commands would reach whoever listens there",
                socket.display()
            );
            let remedy = format!(
                "name a folder without sockets instead of `{shown}` in `sandbox.read_only`"
            );
            return Err(SetupError::Unusable { reason, remedy });
        }
    }
    Ok(())
}

/// A socket at or beneath a path. Links are not followed: inside, they lead to what is shown there. What cannot be listed
/// is passed over: the sandbox's user has no more rights than the service.
fn socket_in(path: &Path) -> Option<PathBuf> {
    let is_socket = |path: &Path| {
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
    };
    if is_socket(path) {
        return Some(path.to_owned());
    }
    let mut waiting = vec![path.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            match entry.file_type() {
                Ok(kind) if kind.is_socket() => return Some(entry.path()),
                Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                Ok(_) | Err(_) => {}
            }
        }
    }
    None
}
