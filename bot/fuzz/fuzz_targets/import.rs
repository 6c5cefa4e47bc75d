//! Imports any workspace.

#![no_main]

#[path = "../bodies/import.rs"]
mod import;

use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLD: import::World = import::World::new();
}

fuzz_target!(|bytes: &[u8]| {
    WORLD.with(|world| world.run(bytes));
});
