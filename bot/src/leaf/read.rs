//! `Read`: the path, then the lines of a file with their numbers. What is not UTF-8 shows as U+FFFD.

use crate::workspace::Workspace;

use super::arguments::Arguments;
use super::text::{Cut, lines};
use super::{FILE_BYTES, Failure, Limits, Target};

pub(super) fn read(
    workspace: &Workspace,
    limits: &Limits,
    arguments: &Arguments,
) -> Result<String, Failure> {
    let target = Target::of(arguments, workspace)?;
    let first = usize::try_from(arguments.integer("offset")?.unwrap_or(1)).unwrap_or(1).max(1);
    let n_lines = usize::try_from(arguments.integer("limit")?.unwrap_or(0)).unwrap_or(0);
    let n_lines = if n_lines == 0 { usize::MAX } else { n_lines };
    let bytes = workspace
        .read(&target.beneath, FILE_BYTES)
        .map_err(|error| Failure::access(&error, workspace))?;
    let content = String::from_utf8_lossy(&bytes);
    let mut text = Cut::new(limits.read_chars);
    text.push(&target.shown);
    text.push("\n");
    let numbered = lines(&content).zip(1_usize..).skip(first - 1).take(n_lines);
    for (line, number) in numbered {
        if number > first {
            text.push("\n");
        }
        text.push(&format!("{number}. "));
        text.push(line);
    }
    Ok(text.finish())
}
