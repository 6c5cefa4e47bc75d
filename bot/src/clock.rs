//! The time, passed in, so that a test can own it.

use std::sync::Mutex;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// Where the time comes from.
pub trait Clock: Send + Sync {
    /// The present instant.
    fn now(&self) -> DateTime<Utc>;
}

/// An instant and a wait after it. A wait that no calendar holds, as a server may ask for one, ends with the calendar.
pub fn later(instant: DateTime<Utc>, wait: Duration) -> DateTime<Utc> {
    let wait = TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
    instant.checked_add_signed(wait).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// An instant so long before another; none is before the calendar.
pub fn before(instant: DateTime<Utc>, age: Duration) -> DateTime<Utc> {
    let age = TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX);
    instant.checked_sub_signed(age).unwrap_or(DateTime::<Utc>::MIN_UTC)
}

/// A wait that doubles each time, after so many times.
pub fn doubled(wait: Duration, n_times: u32) -> Duration {
    wait.saturating_mul(1_u32.checked_shl(n_times).unwrap_or(u32::MAX))
}

/// A time for people to read: in whole seconds, from the first one on.
pub fn shown(time: Duration) -> humantime::FormattedDuration {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(match millis {
        0..1000 => Duration::from_millis(millis),
        _ => Duration::from_secs(millis.saturating_add(500) / 1000),
    })
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
    pub fn advance(&self, by: Duration) {
        *self.0.lock().expect("no holder of this lock panics") += by;
    }

    /// Sets the clock back.
    pub fn rewind(&self, by: Duration) {
        *self.0.lock().expect("no holder of this lock panics") -= by;
    }
}

impl Clock for Manual {
    fn now(&self) -> DateTime<Utc> {
        *self.0.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_in_whole_seconds() {
        for (millis, expected) in
            [(591_038, "9m 51s"), (59_600, "1m"), (1_400, "1s"), (400, "400ms"), (0, "0s")]
        {
            assert_eq!(shown(Duration::from_millis(millis)).to_string(), expected);
        }
        assert_eq!(shown(Duration::from_nanos(1_999_999)).to_string(), "1ms");
        assert!(shown(Duration::MAX).to_string().contains("years"));
    }

    #[test]
    fn a_wait_of_any_length_has_an_end() {
        let start = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        assert_eq!(later(start, Duration::from_secs(5)).timestamp(), 1_800_000_005);
        for seconds in [u64::MAX, u64::MAX / 1000, 1 << 62, i64::MAX as u64 / 1_000_000] {
            assert!(later(start, Duration::from_secs(seconds)) > start, "{seconds}");
            assert!(before(start, Duration::from_secs(seconds)) < start, "{seconds}");
        }
    }
}
