//! The time, passed in, so that a test can own it.

use std::sync::Mutex;

use chrono::{DateTime, Utc};

/// Where the time comes from.
pub trait Clock: Send + Sync {
    /// The present instant.
    fn now(&self) -> DateTime<Utc>;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy)]
pub struct System;

impl Clock for System {
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}

/// A clock that moves only when it is told to.
#[derive(Debug)]
pub struct Manual(Mutex<DateTime<Utc>>);

impl Manual {
    /// A clock that stands at `start`.
    pub fn new(start: DateTime<Utc>) -> Self {
        Self(Mutex::new(start))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: std::time::Duration) {
        *self.0.lock().expect("no holder of this lock panics") += by;
    }
}

impl Clock for Manual {
    fn now(&self) -> DateTime<Utc> {
        *self.0.lock().expect("no holder of this lock panics")
    }
}
