//! Gives the file tools of a session any path.

#![no_main]

#[path = "../bodies/paths.rs"]
mod paths;

use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLD: paths::Place = paths::Place::new();
}

fuzz_target!(|bytes: &[u8]| {
    WORLD.with(|world| {
        world.run(bytes);
        world.write(bytes);
    });
});
