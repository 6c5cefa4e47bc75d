//! What a change is: its lines, its bytes, its line ends. All from objects in the mirror, never from the workspace.

use git2::{DiffFormat, DiffOptions, Oid, Repository};

use super::import::Entry;
use super::{Barred, Change, Encoding, Endings, Kind, Lfs, Mode};

/// git looks at this many bytes for a NUL to tell a binary from a text.
const BINARY_PROBE_BYTES: usize = 8000;

/// What some editors begin a text in UTF-8 with.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A pointer has three short lines; git-lfs itself takes no larger file for one.
const POINTER_BYTES: usize = 1024;

/// Describes one path that differs. `old` and `new` are not both none.
pub(super) fn change(
    repository: &Repository,
    path: &str,
    old: Option<Entry>,
    new: Option<Entry>,
    is_lfs_path: bool,
) -> Result<Change, git2::Error> {
    let (before, after) = (content(repository, old)?, content(repository, new)?);
    let is_binary = is_binary(&before) || is_binary(&after);
    let kind = match (old, new) {
        (None, _) => Kind::Added,
        (Some(_), None) => Kind::Deleted,
        (Some(_), Some(_)) => Kind::Modified,
    };
    let is_link = new.is_some_and(|new| new.mode == Mode::Link);
    let mut change = Change {
        path: path.to_owned(),
        kind,
        old_mode: old.map(|old| old.mode),
        new_mode: new.map(|new| new.mode),
        added: 0,
        removed: 0,
        is_binary,
        size_bytes: after.len() as u64,
        added_bytes: Vec::new(),
        removed_bytes: Vec::new(),
        encoding: Encoding::Kept,
        old_endings: endings(&before),
        new_endings: endings(&after),
        lfs: lfs(&before, &after, kind, is_lfs_path && !is_link),
        collides_with: None,
        has_interpreter: after.starts_with(b"#!"),
    };
    if !is_binary {
        count_lines(&before, &after, &mut change)?;
        if kind == Kind::Modified && !is_link {
            change.encoding = encoding(&before, &after);
        }
    }
    if is_binary || is_link {
        change.added_bytes = after;
    }
    Ok(change)
}

fn content(repository: &Repository, entry: Option<Entry>) -> Result<Vec<u8>, git2::Error> {
    match entry {
        Some(entry) if entry.mode != Mode::Submodule => {
            Ok(repository.find_blob(entry.id)?.content().to_vec())
        }
        Some(_) | None => Ok(Vec::new()),
    }
}

fn count_lines(before: &[u8], after: &[u8], change: &mut Change) -> Result<(), git2::Error> {
    let mut options = DiffOptions::new();
    options.context_lines(0).force_text(true);
    let patch = git2::Patch::from_buffers(before, None, after, None, Some(&mut options))?;
    let (_context, added, removed) = patch.line_stats()?;
    (change.added, change.removed) = (added, removed);
    for hunk in 0..patch.num_hunks() {
        for line in 0..patch.num_lines_in_hunk(hunk)? {
            let line = patch.line_in_hunk(hunk, line)?;
            match line.origin() {
                '+' => change.added_bytes.extend_from_slice(line.content()),
                '-' => change.removed_bytes.extend_from_slice(line.content()),
                _ => {}
            }
        }
    }
    Ok(())
}

fn is_binary(content: &[u8]) -> bool {
    content.iter().take(BINARY_PROBE_BYTES).any(|byte| *byte == 0)
}

/// Compares how two texts are encoded. One that has only ASCII characters tells nothing.
fn encoding(before: &[u8], after: &[u8]) -> Encoding {
    let is_marked = |text: &[u8]| text.starts_with(BYTE_ORDER_MARK);
    let n_replaced = |text: &[u8]| {
        let mark = "\u{fffd}".as_bytes();
        text.windows(mark.len()).filter(|window| *window == mark).count()
    };
    let is_utf8 = |text: &[u8]| match text.is_ascii() {
        true => None,
        false => Some(std::str::from_utf8(text).is_ok()),
    };
    match (is_utf8(before), is_utf8(after)) {
        (Some(false), _) if n_replaced(after) > n_replaced(before) => Encoding::Lost,
        (Some(old), Some(new)) if old != new => Encoding::Changed,
        _ if after.is_empty() || before.is_empty() => Encoding::Kept,
        _ if is_marked(before) != is_marked(after) => Encoding::Mark,
        _ => Encoding::Kept,
    }
}

fn lfs(before: &[u8], after: &[u8], kind: Kind, is_lfs_path: bool) -> Lfs {
    if kind == Kind::Deleted {
        return Lfs::Nothing;
    }
    if is_pointer(before) || is_pointer(after) {
        return Lfs::Pointer;
    }
    if is_lfs_path { Lfs::Content } else { Lfs::Nothing }
}

fn is_pointer(content: &[u8]) -> bool {
    content.len() <= POINTER_BYTES
        && content.starts_with(b"version https://git-lfs.github.com/spec/")
}

/// Counts how lines end; a last line without an end counts for nothing.
pub(super) fn endings(content: &[u8]) -> Endings {
    let mut endings = Endings::default();
    for (index, byte) in content.iter().enumerate() {
        match byte {
            b'\n' if index > 0 && content[index - 1] == b'\r' => endings.crlf += 1,
            b'\n' => endings.lf += 1,
            b'\r' if content.get(index + 1) != Some(&b'\n') => endings.cr += 1,
            _ => {}
        }
    }
    endings
}

/// The diff between two trees as text, cut to a limit with a note, and after it what could be no part of a tree. Bytes that
/// are not UTF-8 are shown as replacement characters; the commit holds them as they are.
pub(super) fn text(
    repository: &Repository,
    old: Oid,
    new: Oid,
    barred: &[Barred],
    limit_bytes: usize,
) -> Result<String, git2::Error> {
    let (old, new) = (repository.find_tree(old)?, repository.find_tree(new)?);
    let mut options = DiffOptions::new();
    options.context_lines(3).include_typechange(true).show_binary(true).id_abbrev(40);
    let diff = repository.diff_tree_to_tree(Some(&old), Some(&new), Some(&mut options))?;
    let mut bytes: Vec<u8> = Vec::new();
    let mut is_cut = false;
    let printed = diff.print(DiffFormat::Patch, |_delta, _hunk, line| {
        let origin = matches!(line.origin(), '+' | '-' | ' ');
        if bytes.len() + line.content().len() + 1 > limit_bytes {
            is_cut = true;
            return false;
        }
        if origin {
            bytes.push(line.origin() as u8);
        }
        bytes.extend_from_slice(line.content());
        true
    });
    if !is_cut {
        printed?;
    }
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if is_cut {
        text.push_str(&format!("[the diff is longer than {limit_bytes} bytes and cut here]\n"));
    }
    for Barred { path, detail, .. } in barred {
        text.push_str(&format!("[not in this diff: {path:?}: {detail}]\n"));
    }
    Ok(text)
}
