//! The data folder: may the service write there, and does everything in it belong to one user?

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Line, line};
use crate::owner;
use crate::sandbox::Verdict;

/// Looks at the data folder.
pub fn data(folder: &Path) -> Line {
    let (verdict, detail) = seen(folder);
    line("data folder".into(), verdict, detail)
}

fn seen(folder: &Path) -> (Verdict, String) {
    let (shown, me) = (folder.display(), owner::name(owner::own()));
    let metadata = match std::fs::metadata(folder) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = folder.parent().unwrap_or(Path::new("/"));
            return if owner::may_write(parent) {
                (Verdict::Holds, format!("`{shown}` is not there yet; `hyla serve` makes it"))
            } else {
                let next = format!("make it: `sudo install -d -o {me} {shown}`");
                (
                    Verdict::Fails,
                    format!("`{shown}` is not there, and user `{me}` may not make it; {next}"),
                )
            };
        }
        Err(error) => {
            let next = "run this as the service's user";
            return (Verdict::Fails, format!("cannot look at `{shown}`: {error}; {next}"));
        }
    };
    if !metadata.is_dir() {
        return (Verdict::Fails, format!("`{shown}` is no folder; set `data_dir` to one"));
    }
    if let Some(why) = owner::unwritable(folder) {
        return (Verdict::Fails, why);
    }
    if let Some(advice) = owner::stray(folder) {
        return (Verdict::Fails, advice);
    }
    if metadata.uid() != owner::own() {
        let theirs = owner::name(metadata.uid());
        let next = format!("run this as the service's user: {}", owner::as_user(metadata.uid()));
        return (
            Verdict::Warns,
            format!("`{shown}` belongs to `{theirs}`, and this runs as `{me}`; {next}"),
        );
    }
    (Verdict::Holds, format!("`{shown}` belongs to `{me}`"))
}
