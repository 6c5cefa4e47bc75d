//! The rules of paths: a path is beneath the workspace by its text alone, before the disk is touched. It does not say
//! what is there, and it does not replace the kernel's own check.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::error::{Error, Refusal};

/// Where the sandbox shows the workspace.
pub const MOUNT: &str = "/workspace";

/// Bytes of a path at most: the kernel's `PATH_MAX` without its final zero.
pub(super) const PATH_BYTES: usize = 4095;

/// Bytes of one name at most: `NAME_MAX` of the usual file systems.
pub(super) const NAME_BYTES: usize = 255;

/// Components at most. Deeper trees exist only to wear out their readers.
pub(super) const DEPTH: usize = 128;

/// The path relative to the workspace, without `.` and `..`; empty for the workspace itself. Takes relative paths and
/// absolute ones under [`MOUNT`]. Since no link is ever followed, `a/..` is always the folder that holds `a`.
///
/// # Errors
/// [`Error::Refused`], with the rule that the path breaks.
pub fn relative(path: &Path) -> Result<PathBuf, Error> {
    normal(path).map_err(|reason| Error::Refused { path: shown(path), reason })
}

fn normal(path: &Path) -> Result<PathBuf, Refusal> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err(Refusal::Empty);
    }
    if bytes.contains(&0) {
        return Err(Refusal::Nul);
    }
    if bytes.len() > PATH_BYTES {
        return Err(Refusal::Long);
    }
    let mut names: Vec<&OsStr> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) if name.len() > NAME_BYTES => return Err(Refusal::LongName),
            Component::Normal(name) => names.push(name),
            // What leads out of the workspace is refused even when the rest leads back in.
            Component::ParentDir => drop(names.pop().ok_or(Refusal::Outside)?),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    let names = if path.is_absolute() { beneath_mount(&names)? } else { &names };
    if names.len() > DEPTH {
        return Err(Refusal::Deep);
    }
    Ok(names.iter().collect())
}

fn beneath_mount<'a, 'b>(names: &'b [&'a OsStr]) -> Result<&'b [&'a OsStr], Refusal> {
    match names.split_first() {
        Some((first, rest)) if *first == OsStr::new(&MOUNT[1..]) => Ok(rest),
        _ => Err(Refusal::Outside),
    }
}

/// The path for an error's text: a hostile one may be megabytes.
fn shown(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    match bytes.get(..NAME_BYTES) {
        Some(head) => PathBuf::from(format!("{}...", String::from_utf8_lossy(head))),
        None => path.to_owned(),
    }
}
