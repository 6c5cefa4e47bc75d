//! The view of a service that is not root, in tests that root runs. Nothing here is in the bot.

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Does the work in a thread, and in threads that it starts, to which file modes mean what they mean to an ordinary user.
pub(crate) fn as_ordinary_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let none = CapabilitySet::empty();
            // The kernel keeps capabilities for each thread.
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}
