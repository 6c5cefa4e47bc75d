//! The `hyla` binary that a benchmark measures: built with optimisations before it is used, so that no figure is of an
//! earlier one.

use std::process::Command;

use anyhow::{Context, bail};

/// Builds `hyla` with optimisations, beside the benchmark.
///
/// # Errors
/// It does not build.
pub fn build() -> anyhow::Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--release", "--package", "bot"]).current_dir(root);
    if !command.status().context("cannot start cargo")?.success() {
        bail!("cannot build `hyla`; cargo has said why")
    }
    Ok(())
}
