//! `Edit`: replaces one string, or each of many, and leaves every other byte as it is, whatever its encoding.
//!
//! `Read` shows no line ends, so the model writes `\n` for each of them. In a file of CRLF lines that means CRLF.

use std::borrow::Cow;

use crate::workspace::Workspace;

use super::arguments::Arguments;
use super::{FILE_BYTES, Failure, Limits, Target, fits};

pub(super) fn edit(
    workspace: &Workspace,
    _: &Limits,
    arguments: &Arguments,
) -> Result<String, Failure> {
    let target = Target::of(arguments, workspace)?;
    let (old, new) = (arguments.required("old_string")?, arguments.required("new_string")?);
    if old.is_empty() {
        return Err(Failure::value("old_string must not be empty; use Write to make a file"));
    }
    let bytes = workspace
        .read(&target.beneath, FILE_BYTES)
        .map_err(|error| Failure::access(&error, workspace))?;
    let change = Change::find(&bytes, old, new);
    let count = match change.count {
        0 => return Err(Failure::value(format!("old_string was not found in {}", target.shown))),
        count if count > 1 && !arguments.truth("replace_all") => {
            let advice = "set replace_all to true, or give a longer string that matches once";
            return Err(Failure::value(format!(
                "old_string matched {count} times in {}; {advice}",
                target.shown
            )));
        }
        count => count,
    };
    fits(change.size_bytes(&bytes), &target)?;
    let written = workspace.write(&target.beneath, &change.apply(&bytes));
    written.map_err(|error| Failure::access(&error, workspace))?;
    let plural = if count == 1 { "" } else { "s" };
    Ok(format!("Edited {} ({count} replacement{plural}).", target.shown))
}

struct Change<'a> {
    old: Cow<'a, str>,
    new: Cow<'a, str>,
    count: usize,
}

impl<'a> Change<'a> {
    /// The strings as given, unless the file's lines all end with CRLF, or only the CRLF form is found.
    fn find(bytes: &[u8], old: &'a str, new: &'a str) -> Self {
        let exact = Self { old: old.into(), new: new.into(), count: count(bytes, old) };
        let uniform = is_crlf(bytes);
        if !uniform && (exact.count > 0 || !old.contains('\n')) {
            return exact;
        }
        let (old, new) = (crlf(old), crlf(new));
        let translated = Self { count: count(bytes, &old), old: old.into(), new: new.into() };
        if uniform || translated.count > 0 { translated } else { exact }
    }

    /// Bytes of the file once changed; known before they are made, because a short call can ask for very many.
    fn size_bytes(&self, bytes: &[u8]) -> u64 {
        let (kept, new) = (bytes.len() - self.count * self.old.len(), self.new.len() as u64);
        (kept as u64).saturating_add(new.saturating_mul(self.count as u64))
    }

    fn apply(&self, bytes: &[u8]) -> Vec<u8> {
        let mut changed = Vec::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            changed.extend_from_slice(chunk.valid().replace(&*self.old, &self.new).as_bytes());
            changed.extend_from_slice(chunk.invalid());
        }
        changed
    }
}

/// How often a string occurs, without overlap. UTF-8 synchronises itself, so no match lies across invalid bytes.
fn count(bytes: &[u8], string: &str) -> usize {
    bytes.utf8_chunks().map(|chunk| chunk.valid().matches(string).count()).sum()
}

/// Whether there are lines and each ends with CRLF.
pub(super) fn is_crlf(bytes: &[u8]) -> bool {
    let mut previous = 0;
    let mut n_lines = 0_usize;
    for byte in bytes {
        if *byte == b'\n' {
            if previous != b'\r' {
                return false;
            }
            n_lines += 1;
        }
        previous = *byte;
    }
    n_lines > 0
}

pub(super) fn crlf(string: &str) -> String {
    string.replace("\r\n", "\n").replace('\n', "\r\n")
}
