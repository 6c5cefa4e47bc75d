//! `Write`: a whole file. `Read` shows neither line ends nor a byte order mark, so what replaces a file keeps the file's.

use std::borrow::Cow;

use crate::workspace::Workspace;

use super::arguments::Arguments;
use super::edit::{crlf, is_crlf};
use super::{FILE_BYTES, Failure, Limits, Target, fits};

const BYTE_ORDER_MARK: &str = "\u{feff}";

pub(super) fn write(
    workspace: &Workspace,
    _: &Limits,
    arguments: &Arguments,
) -> Result<String, Failure> {
    let target = Target::of(arguments, workspace)?;
    let content = arguments.required("content")?;
    // What cannot be read has nothing to keep; whether it can be replaced is told below.
    let replaced = workspace.read(&target.beneath, FILE_BYTES).unwrap_or_default();
    if content.contains(char::REPLACEMENT_CHARACTER) && std::str::from_utf8(&replaced).is_err() {
        return Err(Failure::value(format!(
            "{} is not UTF-8, and the content would lose the bytes that are shown as U+FFFD; use Edit, which keeps them",
            target.shown
        )));
    }
    let bytes = as_before(content, &replaced);
    fits(bytes.len() as u64, &target)?;
    let written = workspace.write(&target.beneath, bytes.as_bytes());
    written.map_err(|error| Failure::access(&error, workspace))?;
    // The original counts characters and calls them bytes.
    Ok(format!("Wrote {} ({} bytes).", target.shown, content.chars().count()))
}

/// The content with the line ends and the byte order mark of the file that it replaces.
fn as_before<'c>(content: &'c str, replaced: &[u8]) -> Cow<'c, str> {
    let mut content = Cow::Borrowed(content);
    if is_crlf(replaced) && !content.contains('\r') {
        content = crlf(&content).into();
    }
    if replaced.starts_with(BYTE_ORDER_MARK.as_bytes()) && !content.starts_with(BYTE_ORDER_MARK) {
        content = format!("{BYTE_ORDER_MARK}{content}").into();
    }
    content
}
