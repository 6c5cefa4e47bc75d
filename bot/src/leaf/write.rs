//! `Write`: a whole file.

use crate::workspace::Workspace;

use super::arguments::Arguments;
use super::{Failure, Limits, Target, fits};

pub(super) fn write(
    workspace: &Workspace,
    _: &Limits,
    arguments: &Arguments,
) -> Result<String, Failure> {
    let target = Target::of(arguments, workspace)?;
    let content = arguments.required("content")?;
    fits(content.len() as u64, &target)?;
    let written = workspace.write(&target.beneath, content.as_bytes());
    written.map_err(|error| Failure::access(&error, workspace))?;
    // The original counts characters and calls them bytes.
    Ok(format!("Wrote {} ({} bytes).", target.shown, content.chars().count()))
}
