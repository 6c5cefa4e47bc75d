//! When something is due again and again: the five fields of a POSIX crontab, read in a named time zone.
//!
//! The `cron` crate knows the calendar. It reads weekdays otherwise, knows no "either" of the two day fields, skips a time
//! that a change of clocks leaves out and repeats one that it brings twice; what is here is the difference. The rules are
//! those of `crontab(5)`: a schedule that names its minutes and hours is due once on every day that it names, at the first
//! valid instant, and one that leaves either open follows the time that goes by.

mod fields;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, NaiveDateTime, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;

use fields::Fields;

/// More than any clock was ever set forward or back at once.
const A_DAY: TimeDelta = TimeDelta::hours(26);
/// Between two looks at the offset. No zone changes it twice within that.
const STEP: TimeDelta = TimeDelta::hours(12);
const A_SECOND: TimeDelta = TimeDelta::seconds(1);

/// A schedule. Two are equal if they are written alike.
#[derive(Clone)]
pub struct Schedule {
    text: String,
    zone: Tz,
    /// It is due when any of these is.
    either: Vec<cron::Schedule>,
    /// Whether it follows the time that goes by, because minutes or hours are left open.
    is_open: bool,
}

impl Schedule {
    /// Reads five fields, such as `30 2 * * 1-5`: minute, hour, day of the month, month, day of the week (0 and 7 are
    /// Sunday). With both day fields given, either will do. Each field is `*`, numbers, ranges or names with commas between
    /// them, and a step behind `*` or a range.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn new(text: &str, zone: Tz) -> Result<Self, String> {
        let fields = Fields::read(text)?;
        let read = |expression: String| {
            cron::Schedule::from_str(&expression).map_err(|error| error.to_string())
        };
        let either: Result<Vec<_>, _> = fields.expressions().into_iter().map(read).collect();
        let schedule =
            Self { text: text.to_owned(), zone, either: either?, is_open: fields.is_open };
        // Which days a month has is the same in every few years.
        match schedule.next_after(DateTime::UNIX_EPOCH + TimeDelta::days(20_000)) {
            Some(_) => Ok(schedule),
            None => Err("no such day will ever come".into()),
        }
    }

    /// The zone that it is read in.
    pub fn zone(&self) -> Tz {
        self.zone
    }

    /// The first instant after another at which it is due; none beyond the calendar.
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self.is_open {
            true => self.next_elapsed(after),
            false => self.next_named(after),
        }
    }

    /// The last instant at which it was due, after one and not after another.
    pub fn last_between(
        &self,
        after: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        // The nearer past first, so that years of minutes need not be counted.
        let nearer = [1, 32, 366].map(|days| after.max(until - TimeDelta::days(days)));
        for from in nearer.into_iter().chain([after]) {
            let mut due = None;
            while let Some(next) = self.next_after(due.unwrap_or(from)).filter(|it| *it <= until) {
                due = Some(next);
            }
            if due.is_some() || from == after {
                return due;
            }
        }
        None
    }

    /// Every time of the clock that is named becomes one instant, and none becomes two.
    fn next_named(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut time = after.with_timezone(&self.zone).naive_local().checked_sub_signed(A_DAY)?;
        loop {
            time = self.next_time(time)?;
            let due = self.first_instant(time)?;
            if due > after {
                return Some(due);
            }
        }
    }

    /// Every instant at which the clock shows what is named, from one change of clocks to the next.
    fn next_elapsed(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let (mut from, mut offset) = (after, self.offset(after));
        loop {
            let shown = from.naive_utc().checked_add_signed(offset)?;
            let due = self.next_time(shown)?.checked_sub_signed(offset)?.and_utc();
            let Some(change) = self.change_within(from, due, offset) else { return Some(due) };
            // What is due at the change itself counts.
            offset = self.offset(change);
            from = change - A_SECOND;
        }
    }

    /// The first time after another that the fields name, as a clock without a zone shows it.
    fn next_time(&self, after: NaiveDateTime) -> Option<NaiveDateTime> {
        let next = |schedule: &cron::Schedule| schedule.after(&after.and_utc()).next();
        Some(self.either.iter().filter_map(next).min()?.naive_utc())
    }

    /// When a clock first shows a time, or, where it never does, the first later one.
    fn first_instant(&self, time: NaiveDateTime) -> Option<DateTime<Utc>> {
        if let Some(found) = self.zone.from_local_datetime(&time).earliest() {
            return Some(found.to_utc());
        }
        let shows = |at: DateTime<Utc>| at.with_timezone(&self.zone).naive_local();
        let early = time.and_utc().checked_sub_signed(A_DAY)?;
        Some(first_where(early, time.and_utc().checked_add_signed(A_DAY)?, |at| shows(at) > time))
    }

    fn offset(&self, at: DateTime<Utc>) -> TimeDelta {
        let offset = self.zone.offset_from_utc_datetime(&at.naive_utc());
        TimeDelta::seconds(offset.fix().local_minus_utc().into())
    }

    /// The first instant after one, and not after another, at which the offset is another.
    fn change_within(
        &self,
        after: DateTime<Utc>,
        until: DateTime<Utc>,
        offset: TimeDelta,
    ) -> Option<DateTime<Utc>> {
        // The offset may be that of a change that comes a second after `after`.
        let mut same = after + A_SECOND;
        if self.offset(same) != offset {
            return (same <= until).then_some(same);
        }
        while same < until {
            let next = (same + STEP).min(until);
            if self.offset(next) != offset {
                return Some(first_where(same, next, |at| self.offset(at) != offset));
            }
            same = next;
        }
        None
    }
}

/// The first second between two instants from which on something holds; at the second one it does.
fn first_where(
    mut without: DateTime<Utc>,
    mut with: DateTime<Utc>,
    holds: impl Fn(DateTime<Utc>) -> bool,
) -> DateTime<Utc> {
    while (with - without) > A_SECOND {
        let middle = without + TimeDelta::seconds((with - without).num_seconds() / 2);
        if holds(middle) {
            with = middle;
        } else {
            without = middle;
        }
    }
    with
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schedule({self})")
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.text, self.zone)
    }
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, self.zone) == (&other.text, other.zone)
    }
}
