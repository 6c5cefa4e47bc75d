//! Programs that confine commands: whoever could change one could undo all that it promises.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::SetupError;

/// The binary itself, behind any links: one that only root can change, and that gives nobody root's rights. `key` is the
/// setting that names it, `package` what installs it.
///
/// # Errors
/// It is not there, or it is none of that.
pub(super) fn binary(program: &Path, key: &str, package: &str) -> Result<PathBuf, SetupError> {
    let shown = program.display();
    let unusable = |reason: String, remedy: String| Err(SetupError::Unusable { reason, remedy });
    if !program.is_absolute() {
        let reason = format!("`{shown}` is no absolute path");
        return unusable(reason, format!("name the whole path in `{key}`"));
    }
    let real = match std::fs::canonicalize(program) {
        Ok(real) => real,
        Err(error) => {
            return unusable(
                format!("there is no `{shown}`: {error}"),
                format!("install the package `{package}`, or set `{key}`"),
            );
        }
    };
    for path in real.ancestors() {
        let Ok(metadata) = std::fs::metadata(path) else { continue };
        if metadata.uid() != 0 || metadata.permissions().mode() & 0o022 != 0 {
            let reason = format!("`{}` can be changed by others than root", path.display());
            return unusable(reason, format!("install {package} from your distribution"));
        }
    }
    let mode = std::fs::metadata(&real).map(|metadata| metadata.permissions().mode()).unwrap_or(0);
    if mode & 0o6000 != 0 {
        return unusable(
            format!("`{shown}` is setuid"),
            format!("install a {package} that is not setuid, and allow user namespaces"),
        );
    }
    Ok(real)
}
