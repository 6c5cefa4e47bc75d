//! The folders that an operator shows to commands, looked through before the first command: a socket in one would be a
//! door to whoever listens on the host, and that a folder is read-only closes no socket; and a link may lead anywhere.
//!
//! It looks once. A socket that is made later in such a folder, which the agent cannot do, is not seen.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::{Options, SetupError};

/// Nothing, when all of the folders may be shown.
///
/// # Errors
/// One is not there, holds a socket, or is the link to a folder that the configuration could not name.
pub(super) fn check(options: &Options) -> Result<(), SetupError> {
    let real = |path: &Path| std::fs::canonicalize(path);
    let data = real(&options.data).unwrap_or_else(|_| options.data.clone());
    for folder in &options.config.read_only {
        let shown = folder.display();
        let refuse = |reason: String, remedy: String| Err(SetupError::Unusable { reason, remedy });
        let instead = || format!("name another folder than `{shown}` in `sandbox.read_only`");
        // The backends follow a link at the source of a mount.
        let real = match real(folder) {
            Ok(real) => real,
            Err(error) => {
                let remedy = "install what it should hold, or take it out of `sandbox.read_only`";
                return refuse(format!("there is no `{shown}`: {error}"), remedy.into());
            }
        };
        if let Some(socket) = socket_in(&real) {
            let reason = format!(
                "`{}` is a socket, by which commands would reach whoever listens there",
                socket.display()
            );
            return refuse(reason, instead());
        }
        if real != *folder
            && let Err(reason) = config::showable(&real, &data)
        {
            return refuse(format!("`{shown}` leads elsewhere: {reason}"), instead());
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
