//! Path names that mean something else, or nothing, on another file system than the bot's. Only added paths are judged:
//! what the base commit holds is in every clone already.

use crate::git_name::{is_dot_git, is_invisible};
use crate::patch::{Change, Kind};

/// Names that Windows keeps for devices, whatever their extension.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];

pub(super) fn problem(change: &Change) -> Option<String> {
    if change.kind != Kind::Added {
        return None;
    }
    if let Some(other) = &change.collides_with {
        return Some(format!("it differs from `{other}` only in upper and lower case"));
    }
    // 4096 bytes with the final NUL are the longest path of Linux.
    if change.path.len() > 4000 {
        return Some("its path is longer than 4000 bytes".to_owned());
    }
    change.path.split('/').find_map(problem_of_part).map(str::to_owned)
}

fn problem_of_part(part: &str) -> Option<&'static str> {
    if part.is_empty() || part == "." || part == ".." {
        return Some("its path is not a plain path");
    }
    if is_dot_git(part.as_bytes()) {
        return Some("some file systems take its name for `.git`");
    }
    if part.chars().any(char::is_control) {
        return Some("its name holds a control character");
    }
    if part.chars().any(is_invisible) {
        return Some("its name holds an invisible character");
    }
    if part.contains('\\') {
        return Some("its name holds a backslash");
    }
    if part.ends_with(['.', ' ']) {
        return Some("its name ends in a dot or a space, which Windows drops");
    }
    if is_device(part) {
        return Some("its name is a device on Windows");
    }
    // 255 bytes is the limit of a name on Linux.
    (part.len() > 255).then_some("its name is longer than 255 bytes")
}

fn is_device(part: &str) -> bool {
    let stem = part.split(['.', ':']).next().unwrap_or_default().trim_end_matches(' ');
    let stem = stem.to_lowercase();
    let numbered = |prefix: &str| {
        let number = stem.strip_prefix(prefix).unwrap_or_default();
        let mut letters = number.chars();
        matches!((letters.next(), letters.next()), (Some('1'..='9' | '¹' | '²' | '³'), None))
    };
    DEVICES.contains(&stem.as_str()) || numbered("com") || numbered("lpt")
}
