//! Names that some file system takes for `.git`.

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
/// spaces, by a stream's name after a colon, or by its short name.
pub(crate) fn is_dot_git(name: &str) -> bool {
    let visible: String = name.chars().filter(|letter| !is_invisible(*letter)).collect();
    let base = visible.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
    let base = base.to_lowercase();
    base == ".git" || (base.len() == 5 && base.starts_with("git~"))
}
