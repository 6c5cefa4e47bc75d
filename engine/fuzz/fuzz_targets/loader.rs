//! Spoils a model's folder.

#![no_main]

#[path = "../bodies/loader.rs"]
mod loader;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static FOLDER: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("the temp folder can be written"));

fuzz_target!(|changes: &[u8]| {
    loader::run(FOLDER.path(), changes);
});
