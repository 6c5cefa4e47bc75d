//! What may be published. Pure: a patch and rules in, the first rule that says no out, with the path and the reason.
//!
//! The gate does not look at what the change means, and a patch that passes is still only a draft for people to read. What it
//! takes away from the tests is no reason to refuse it, because an issue may ask for that; `remarks` names it for them.
//! Order of judgement: how much it is, what could not be imported, then each file by path, then the lines together.

mod names;
#[cfg(test)]
mod property;
mod remarks;
mod secrets;
#[cfg(test)]
mod tests;

pub use config::BadPattern;
use config::Protected;
pub use remarks::{Remark, remarks};

use crate::git_name::is_dot_git;
use crate::job::Rule;
use crate::patch::{Change, Encoding, Endings, Kind, Lfs, Mode, Patch};

/// Why a patch may not be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{detail}", path.as_ref().map(|path| format!("`{path}`: ")).unwrap_or_default())]
pub struct Refusal {
    /// The rule that says no.
    pub rule: Rule,
    /// The path that breaks it, if one does.
    pub path: Option<String>,
    /// The reason, for people. Never holds a secret.
    pub detail: String,
}

/// What patches are judged by.
#[derive(Debug)]
pub struct Rules {
    protected: Protected,
    files: usize,
    file_bytes: u64,
    lines: usize,
    allow_binary: bool,
    own_secrets: Vec<config::Secret>,
}

impl Rules {
    /// The server's rules, with the repository's own protected paths on top. `own_secrets` are the values that the bot
    /// holds: tokens, webhook secrets, keys.
    ///
    /// # Errors
    /// Names the pattern that cannot be understood.
    pub fn new(
        gate: &config::Gate,
        repo_file: &config::RepoFile,
        own_secrets: Vec<config::Secret>,
    ) -> Result<Self, BadPattern> {
        let patterns = gate.protected_paths.iter().chain(&repo_file.protected_paths);
        Ok(Self {
            protected: Protected::new(patterns)?,
            files: gate.files,
            file_bytes: gate.file_bytes,
            lines: gate.lines,
            allow_binary: gate.allow_binary,
            own_secrets,
        })
    }
}

/// Judges a patch.
///
/// # Errors
/// The first rule that says no.
pub fn check(patch: &Patch, rules: &Rules) -> Result<(), Refusal> {
    let n_files = patch.changes.len() + patch.barred.len();
    if n_files > rules.files {
        let detail = format!("{n_files} files are changed, more than {}", rules.files);
        return Err(Refusal { rule: Rule::TooLarge, path: None, detail });
    }
    if let Some(barred) = patch.barred.first() {
        return Err(Refusal {
            rule: barred.rule,
            path: Some(barred.path.clone()),
            detail: barred.detail.clone(),
        });
    }
    for change in &patch.changes {
        check_change(change, rules)?;
    }
    let n_lines = patch.n_lines();
    if n_lines > rules.lines {
        let detail = format!("{n_lines} lines are changed, more than {}", rules.lines);
        return Err(Refusal { rule: Rule::TooLarge, path: None, detail });
    }
    Ok(())
}

fn check_change(change: &Change, rules: &Rules) -> Result<(), Refusal> {
    let verdicts = [
        (Rule::PathName, names::problem(change)),
        (Rule::ProtectedPath, protected(change, rules)),
        (Rule::Submodule, submodule(change)),
        (Rule::Symlink, symlink(change)),
        (Rule::FileMode, mode(change)),
        (Rule::LfsPointer, lfs(change)),
        (Rule::TooLarge, too_large(change, rules)),
        (Rule::Binary, binary(change, rules)),
        (Rule::LineEndings, line_endings(change)),
        (Rule::Encoding, encoding(change)),
        (Rule::Secret, secrets::problem(change, &rules.own_secrets)),
    ];
    for (rule, problem) in verdicts {
        if let Some(detail) = problem {
            return Err(Refusal { rule, path: Some(change.path.clone()), detail });
        }
    }
    Ok(())
}

fn protected(change: &Change, rules: &Rules) -> Option<String> {
    let pattern = rules.protected.pattern_of(&change.path)?;
    Some(format!("it is protected by the pattern `{pattern}`"))
}

fn submodule(change: &Change) -> Option<String> {
    let touches =
        change.old_mode == Some(Mode::Submodule) || change.new_mode == Some(Mode::Submodule);
    touches.then(|| "it changes a submodule".to_owned())
}

/// A link may point to its own folder's neighbours and below, and upwards only by leading `..`: with a name before a
/// `..`, where it leads depends on what that name is on the reader's disk.
fn symlink(change: &Change) -> Option<String> {
    if change.new_mode != Some(Mode::Link) {
        return None;
    }
    let Ok(target) = std::str::from_utf8(&change.added_bytes) else {
        return Some("its target is not UTF-8".to_owned());
    };
    if target.starts_with('/') || target.contains('\\') || target.contains('\0') {
        return Some(format!("it is a symbolic link out of the repository, to {target:?}"));
    }
    let mut depth = change.path.matches('/').count();
    let mut has_descended = false;
    for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            if has_descended || depth == 0 {
                return Some(format!("it is a symbolic link out of the repository, to {target:?}"));
            }
            depth -= 1;
        } else if is_dot_git(part.as_bytes()) {
            return Some("it is a symbolic link into `.git`".to_owned());
        } else {
            has_descended = true;
        }
    }
    None
}

fn mode(change: &Change) -> Option<String> {
    match (change.old_mode?, change.new_mode?) {
        (old, new) if old == new => None,
        (Mode::Regular, Mode::Executable) if change.has_interpreter => None,
        (Mode::Regular, Mode::Executable) => {
            Some("it becomes executable and does not begin with `#!`".to_owned())
        }
        (Mode::Executable, Mode::Regular) => Some("it is executable no longer".to_owned()),
        (_, Mode::Link) => Some("a file becomes a symbolic link".to_owned()),
        (Mode::Link, _) => Some("a symbolic link becomes a file".to_owned()),
        (Mode::Submodule, _) | (_, Mode::Submodule) => None,
        (Mode::Regular, Mode::Regular) | (Mode::Executable, Mode::Executable) => None,
    }
}

fn lfs(change: &Change) -> Option<String> {
    match change.lfs {
        Lfs::Nothing => None,
        Lfs::Pointer => {
            Some("it is a Git LFS pointer, and its object cannot be uploaded".to_owned())
        }
        Lfs::Content => {
            Some("Git LFS keeps this path, and its content is not a pointer".to_owned())
        }
    }
}

fn too_large(change: &Change, rules: &Rules) -> Option<String> {
    let (size, limit) = (change.size_bytes, rules.file_bytes);
    (size > limit).then(|| format!("it has {size} bytes, more than {limit}"))
}

fn binary(change: &Change, rules: &Rules) -> Option<String> {
    let holds = change.is_binary && change.kind != Kind::Deleted && !rules.allow_binary;
    holds.then(|| "it is a binary file".to_owned())
}

/// Refuses what no diff shows: the same letters in other bytes, or letters that were lost on the way.
fn encoding(change: &Change) -> Option<String> {
    let problem = match change.encoding {
        Encoding::Kept => return None,
        Encoding::Lost => "it is not UTF-8, and characters of it were lost",
        Encoding::Changed => "its encoding changes",
        Encoding::Mark => "its byte order mark comes or goes",
    };
    Some(problem.to_owned())
}

/// Refuses a file whose lines mostly end in another way than before: every line of it would show as changed.
fn line_endings(change: &Change) -> Option<String> {
    if change.kind != Kind::Modified || change.is_binary {
        return None;
    }
    let old = prevailing(&change.old_endings)?;
    let new = prevailing(&change.new_endings)?;
    (old != new).then(|| format!("its line endings change from {old} to {new}"))
}

/// The ends that more than half of the lines have, in a file of at least two lines.
fn prevailing(endings: &Endings) -> Option<&'static str> {
    let total = endings.lf + endings.crlf + endings.cr;
    let kinds = [(endings.lf, "LF"), (endings.crlf, "CRLF"), (endings.cr, "CR")];
    let (_, name) = kinds.into_iter().find(|(count, _)| *count * 2 > total)?;
    (total >= 2).then_some(name)
}
