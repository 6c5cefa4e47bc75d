//! The receiver of one turn's events: it gets exactly one end, whatever happens, and its panics stay with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::query::{Event, Failure, Finished};

/// A place among the turns that may run and wait.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    /// Takes a place if fewer than `n_places` are taken; if not, how many are.
    pub(super) fn take(taken: &Arc<AtomicUsize>, n_places: usize) -> Result<Self, usize> {
        let one_more = |n| (n < n_places).then_some(n + 1);
        let before = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        before.map(|_| Self(taken.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A receiver that is dropped before its turn's end hears that the engine stopped.
pub(super) struct Sink {
    take: Option<Box<dyn FnMut(Event) + Send>>,
    place: Option<Place>,
    is_broken: bool,
}

impl Sink {
    pub(super) fn new(take: impl FnMut(Event) + Send + 'static, place: Place) -> Self {
        Self { take: Some(Box::new(take)), place: Some(place), is_broken: false }
    }

    /// Hands out an event that is not the end. A receiver that has panicked gets no more of them.
    pub(super) fn send(&mut self, event: Event) {
        let Some(take) = self.take.as_mut().filter(|_| !self.is_broken) else { return };
        self.is_broken = catch_unwind(AssertUnwindSafe(|| take(event))).is_err();
    }

    /// Whether the receiver has panicked.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// The end of the turn, whose place is free from now on.
    pub(super) fn end(mut self, result: Result<Finished, Failure>) {
        self.close(result);
    }

    /// There is no turn, and the receiver hears nothing.
    pub(super) fn disarm(mut self) {
        self.take = None;
    }

    fn close(&mut self, result: Result<Finished, Failure>) {
        self.place = None;
        let Some(mut take) = self.take.take() else { return };
        let result = if self.is_broken { Err(Failure::Sink) } else { result };
        // It is also dropped in there.
        let ended = catch_unwind(AssertUnwindSafe(move || take(Event::End(result))));
        drop(ended);
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.close(Err(Failure::Closed));
    }
}
