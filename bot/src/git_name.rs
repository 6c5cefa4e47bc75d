//! Names that some file system takes for `.git`: the one rule for the model's tools, for what is checked out, for what is
//! imported and for what is published. It covers what git's own `core.protectNTFS` and `core.protectHFS` guard, and a
//! little more; it does not say whether a name can be used at all.

/// Code points that HFS+ skips when it compares names, and those that reorder text on a screen.
const INVISIBLE: [std::ops::RangeInclusive<char>; 6] = [
    '\u{200b}'..='\u{200f}',
    '\u{202a}'..='\u{202e}',
    '\u{2060}'..='\u{2060}',
    '\u{2066}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
    '\u{ad}'..='\u{ad}',
];

/// Whether a character is skipped by a file system or not seen by a reader.
pub(crate) fn is_invisible(letter: char) -> bool {
    INVISIBLE.iter().any(|range| range.contains(&letter))
}

/// Whether some file system takes a name for `.git`: by case, by ignored code points, by dropped trailing dots and
/// spaces, by a stream's name after a colon, by its short name, or because a backslash separates folders there.
pub(crate) fn is_dot_git(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name);
    let visible: String = name.chars().filter(|letter| !is_invisible(*letter)).collect();
    visible.split('\\').any(|part| {
        let base = part.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
        let base = base.to_ascii_lowercase();
        base == ".git" || base.strip_prefix("git~").is_some_and(is_number)
    })
}

/// NTFS counts its short names: `GIT~1` is the usual one, and a higher number follows where that is taken.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_the_repositorys_folder_is_seen() {
        for name in [
            ".git",
            ".GIT",
            ".Git",
            ".git.",
            ".git ",
            ".git . .",
            ".git:stream",
            ".git::$INDEX_ALLOCATION",
            ".git .:x",
            "git~1",
            "GIT~1",
            "git~1 .",
            "git~2",
            "git~10",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".gi\u{206f}t",
            ".gi\u{ad}t",
            ".git\\config",
            "a\\.git",
            "a\\GIT~1\\hooks",
        ] {
            assert!(is_dot_git(name.as_bytes()), "{name:?}");
        }
        for name in [
            "",
            ".",
            "..",
            "...",
            "git",
            ".gitignore",
            ".gitmodules",
            ".git2",
            ".git-keep",
            "a.git",
            " .git",
            "git~",
            "git~a",
            "git~1a",
            "a\\b",
        ] {
            assert!(!is_dot_git(name.as_bytes()), "{name:?}");
        }
        assert!(!is_dot_git(b".git\xff"));
    }
}
