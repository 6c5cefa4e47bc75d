//! Spoils a model's folder.

#![no_main]

#[path = "../bodies/loader.rs"]
mod loader;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use loader::Folders;

static FOLDERS: LazyLock<(tempfile::TempDir, Folders)> = LazyLock::new(|| {
    let place = tempfile::tempdir().expect("the temp folder can be written");
    let folders = Folders::new(place.path());
    (place, folders)
});

fuzz_target!(|bytes: &[u8]| {
    FOLDERS.1.run(bytes);
});
