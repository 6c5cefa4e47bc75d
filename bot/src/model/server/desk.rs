//! Where requests become prompts: so many at the same time, the others wait in the order in which they came.
//!
//! The largest body takes more than a gigabyte on its way to a prompt, and every one of them keeps a core busy.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Fault;

/// Requests that become prompts at the same time.
const PLACES: usize = 2;

/// The desk.
pub(super) struct Desk(Arc<Semaphore>);

/// A place at the desk, until the last clone of it is dropped.
#[derive(Clone)]
pub(super) struct Place(#[expect(dead_code, reason = "it is held")] Arc<OwnedSemaphorePermit>);

impl Desk {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(PLACES)))
    }

    /// Does what takes longer than other requests should wait, once there is a place, which comes back with what was
    /// made. The work holds it too: nothing stops it when the client leaves.
    ///
    /// # Errors
    /// The work panicked.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(T, Place), Fault> {
        let permit = Arc::clone(&self.0).acquire_owned().await;
        let place = Place(Arc::new(permit.expect("nobody closes the semaphore")));
        let held = place.clone();
        let worked = tokio::task::spawn_blocking(move || {
            let worked = work();
            drop(held);
            worked
        });
        let defect = |_| Fault::defect("the request could not be read");
        Ok((worked.await.map_err(defect)?, place))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn no_more_than_two_become_prompts_at_the_same_time() {
        let (desk, pairs) = (Desk::new(), Arc::new(Barrier::new(PLACES)));
        let counts = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let works = (0..16).map(|_| {
            let (pairs, counts) = (Arc::clone(&pairs), Arc::clone(&counts));
            desk.work(move || {
                let (inside, most) = &*counts;
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                pairs.wait();
                inside.fetch_sub(1, Ordering::SeqCst);
            })
        });
        let worked =
            futures_util::future::join_all(works.map(|work| async { work.await.map(drop) }));
        assert!(worked.await.iter().all(Result::is_ok));
        assert_eq!(counts.1.load(Ordering::SeqCst), PLACES);
    }

    #[tokio::test]
    async fn a_place_is_held_until_the_prompt_is_made() {
        let desk = Desk::new();
        let Ok((_, place)) = desk.work(|| ()).await else { panic!("it works") };
        assert_eq!(desk.0.available_permits(), PLACES - 1);
        drop(place);
        assert_eq!(desk.0.available_permits(), PLACES);
    }
}
