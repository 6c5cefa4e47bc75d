//! How much a sweep may do now: its caps, its quiet hours, and when it pauses. Pure.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::job::Ask;
use crate::store::{Drafted, Fate, Swept};

/// What a sweep may do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    /// It may begin so many.
    For(usize),
    /// Not now; why.
    Waits(String),
    /// Nothing more for this instant; why.
    Over(String),
}

/// What a sweep that works on an instant may do now. `swept` are its jobs of the last day and of the instant.
pub(super) fn room(
    sweep: &config::Sweep,
    at_once: usize,
    swept: &[Swept],
    instant: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Room {
    let since = |age: TimeDelta| swept.iter().filter(move |job| job.queued_at > now - age);
    let n_done = swept.iter().filter(|job| job.instant == instant).count();
    let left = |cap: u32, n: usize| usize::try_from(cap).unwrap_or(usize::MAX).saturating_sub(n);
    let mut room = left(sweep.per_sweep, n_done);
    if room == 0 {
        return Room::Over(format!("`per_sweep` is {}", sweep.per_sweep));
    }
    let time = now.with_timezone(&sweep.zone).time();
    if let Some(span) = sweep.quiet.iter().find(|span| span.holds(time)) {
        return Room::Waits(format!("it is quiet until {}", span.until.format("%H:%M")));
    }
    let n_running = swept.iter().filter(|job| !job.has_ended).count();
    room = room.min(at_once.saturating_sub(n_running));
    if room == 0 {
        return Room::Waits("its jobs are under way".into());
    }
    for (cap, age, key) in [
        (sweep.per_hour, TimeDelta::hours(1), "per_hour"),
        (sweep.per_day, TimeDelta::days(1), "per_day"),
    ] {
        let Some(cap) = cap else { continue };
        room = room.min(left(cap, since(age).count()));
        if room == 0 {
            return Room::Waits(format!("`{key}` is {cap}"));
        }
    }
    if let Some(cap) = sweep.time_per_day {
        let took: Duration = since(TimeDelta::days(1)).map(|job| job.took).sum();
        if took >= cap {
            return Room::Waits(format!("`time_per_day` is {}", humantime::format_duration(cap)));
        }
    }
    Room::For(room)
}

/// Why a sweep must pause, if it must: too many of its last drafts were closed unmerged. What was decided before a person
/// resumed it does not count. `drafts` come the newest first.
pub(super) fn pause(
    (name, sweep): (&str, &config::Sweep),
    drafts: &[Drafted],
    resumed_at: Option<DateTime<Utc>>,
) -> Option<String> {
    let is_own = |draft: &&Drafted| matches!(draft.row.job.ask(), Some(Ask::Sweep { name: its, .. }) if its == name);
    let mut decided: Vec<(&Fate, DateTime<Utc>)> = drafts
        .iter()
        .filter(is_own)
        .filter_map(|draft| draft.fate.as_ref().map(|(fate, at)| (fate, *at)))
        .filter(|(fate, at)| **fate != Fate::Gone && resumed_at.is_none_or(|since| *at > since))
        .collect();
    decided.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
    decided.truncate(usize::try_from(sweep.pause_drafts).unwrap_or(usize::MAX));
    let n_closed = decided.iter().filter(|(fate, _)| matches!(fate, Fate::Closed { .. })).count();
    let n = decided.len();
    let is_telling = u32::try_from(n).is_ok_and(|n| n >= sweep.pause_drafts);
    // Both are small whole numbers.
    let share = u32::try_from(n_closed).map_or(1.0, f64::from) / f64::from(sweep.pause_drafts);
    (is_telling && share > sweep.pause_share)
        .then(|| format!("{n_closed} of its last {n} drafts were closed unmerged"))
}
