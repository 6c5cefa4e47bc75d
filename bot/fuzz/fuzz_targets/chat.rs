//! Asks a server of a model for anything.

#![no_main]

#[path = "../bodies/chat.rs"]
mod chat;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static FOLDER: LazyLock<chat::Folder> = LazyLock::new(chat::Folder::new);

fuzz_target!(|body: &[u8]| {
    FOLDER.run(body);
});
