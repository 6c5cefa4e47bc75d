//! The `hyla` binary that a benchmark measures: built with optimisations before it is used, so that no figure is of an
//! earlier one.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

use crate::house::hyla_binary;

/// Builds `hyla` with optimisations and returns where it is.
///
/// # Errors
/// It does not build.
pub fn build() -> anyhow::Result<PathBuf> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--release", "--package", "bot"]).current_dir(root);
    if !command.status().context("cannot start cargo")?.success() {
        bail!("cannot build `hyla`; cargo has said why")
    }
    Ok(hyla_binary())
}
