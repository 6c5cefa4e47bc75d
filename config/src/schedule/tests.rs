//! Schedules around changes of clocks in four zones, days as POSIX has them, and a search by minutes beside.

use chrono_tz::{Africa, America, Australia, Europe};
use proptest::prelude::*;

use super::*;

/// A clock's time in a zone, where there is one of that name.
fn at(zone: Tz, time: &str) -> DateTime<Utc> {
    let time = NaiveDateTime::parse_from_str(time, "%Y-%m-%d %H:%M").unwrap();
    zone.from_local_datetime(&time).earliest().unwrap().to_utc()
}

/// What comes after a time, as `DAY HOUR:MINUTE OFFSET`.
fn due(text: &str, zone: Tz, from: &str, n: usize) -> Vec<String> {
    let schedule = Schedule::new(text, zone).unwrap();
    let mut last = at(zone, from);
    let mut found = Vec::new();
    for _ in 0..n {
        last = schedule.next_after(last).unwrap();
        found.push(last.with_timezone(&zone).format("%d %H:%M %:z").to_string());
    }
    found
}

const BERLIN: Tz = Europe::Berlin;

#[test]
fn what_a_change_of_clocks_leaves_out_is_due_at_the_first_valid_instant() {
    let found = due("30 2 * * *", BERLIN, "2026-03-28 00:00", 3);
    assert_eq!(found, ["28 02:30 +01:00", "29 03:00 +02:00", "30 02:30 +02:00"]);
    let found = due("15,45 2 * * *", BERLIN, "2026-03-29 00:00", 2);
    assert_eq!(found, ["29 03:00 +02:00", "30 02:15 +02:00"], "two of one gap are one");
    let found = due("30 2 * * *", America::New_York, "2026-03-07 12:00", 2);
    assert_eq!(found, ["08 03:00 -04:00", "09 02:30 -04:00"]);
    // Half an hour is left out here.
    let found = due("15 2 * * *", Australia::Lord_Howe, "2026-10-03 12:00", 2);
    assert_eq!(found, ["04 02:30 +11:00", "05 02:15 +11:00"]);
    let found = due("30 2 * * *", Africa::Casablanca, "2026-03-21 12:00", 2);
    assert_eq!(found, ["22 03:00 +01:00", "23 02:30 +01:00"]);
}

#[test]
fn what_a_change_of_clocks_brings_twice_is_due_once_at_the_first() {
    let found = due("30 2 * * *", BERLIN, "2026-10-24 12:00", 2);
    assert_eq!(found, ["25 02:30 +02:00", "26 02:30 +01:00"]);
    let found = due("30 1 * * *", America::New_York, "2026-10-31 12:00", 2);
    assert_eq!(found, ["01 01:30 -04:00", "02 01:30 -05:00"]);
    let found = due("45 1 * * *", Australia::Lord_Howe, "2026-04-04 12:00", 2);
    assert_eq!(found, ["05 01:45 +11:00", "06 01:45 +10:30"]);
    let found = due("30 2 * * *", Africa::Casablanca, "2026-02-14 12:00", 2);
    assert_eq!(found, ["15 02:30 +01:00", "16 02:30 +00:00"]);
}

#[test]
fn what_leaves_minutes_or_hours_open_follows_the_time_that_goes_by() {
    let found = due("*/30 * * * *", BERLIN, "2026-10-25 01:30", 5);
    let expected = ["25 02:00 +02:00", "25 02:30 +02:00", "25 02:00 +01:00", "25 02:30 +01:00"];
    assert_eq!(found[..4], expected);
    assert_eq!(found[4], "25 03:00 +01:00");
    let found = due("0 * * * *", BERLIN, "2026-03-29 00:30", 3);
    assert_eq!(found, ["29 01:00 +01:00", "29 03:00 +02:00", "29 04:00 +02:00"]);
    let found = due("0 * * * *", BERLIN, "2026-10-25 01:30", 3);
    assert_eq!(found, ["25 02:00 +02:00", "25 02:00 +01:00", "25 03:00 +01:00"]);
    let found = due("*/15 * * * *", Australia::Lord_Howe, "2026-04-05 01:15", 4);
    assert_eq!(found[..2], ["05 01:30 +11:00", "05 01:45 +11:00"]);
    assert_eq!(found[2..], ["05 01:30 +10:30", "05 01:45 +10:30"]);
}

#[test]
fn days_are_read_as_posix_has_them() {
    let found = due("0 9 * * 1", BERLIN, "2026-12-03 12:00", 1);
    assert_eq!(found, ["07 09:00 +01:00"], "1 is Monday");
    for sunday in ["0", "7", "sun", "0,7"] {
        let found = due(&format!("0 9 * * {sunday}"), BERLIN, "2026-12-03 12:00", 2);
        assert_eq!(found, ["06 09:00 +01:00", "13 09:00 +01:00"], "{sunday}");
    }
    let found = due("0 9 13 * FRI", BERLIN, "2026-12-03 12:00", 4);
    let either = ["04 09:00 +01:00", "11 09:00 +01:00", "13 09:00 +01:00", "18 09:00 +01:00"];
    assert_eq!(found, either);
    let found = due("0 9 13 * *", BERLIN, "2026-12-03 12:00", 1);
    assert_eq!(found, ["13 09:00 +01:00"]);
    let found = due("0 9 * * 5-7", BERLIN, "2026-12-03 12:00", 4);
    assert_eq!(found[..3], ["04 09:00 +01:00", "05 09:00 +01:00", "06 09:00 +01:00"]);
    let found = due("0 9 29 2 *", BERLIN, "2026-12-03 12:00", 1);
    assert_eq!(found, ["29 09:00 +01:00"], "of 2028");
}

#[test]
fn what_is_no_schedule_is_named_with_what_it_must_be() {
    for (text, reason) in [
        ("* * * *", "it has 4 fields; a schedule has five"),
        ("0 0 1 * * *", "it has 6 fields"),
        ("60 * * * *", "`60` as minute: it must be 0 to 59"),
        ("* 24 * * *", "`24` as hour"),
        ("* * 0 * *", "`0` as day of the month: it must be 1 to 31"),
        ("* * * foo *", "`foo` as month"),
        ("* * * * 8", "`8` as day of the week: it must be 0 to 7"),
        ("5/10 * * * *", "a step comes behind `*` or a range"),
        ("*/0 * * * *", "a step is a number from 1 on"),
        ("30-10 * * * *", "a range begins with the smaller number"),
        ("0 0 ? * L", "`?` as day of the month"),
        ("0 0 31 2 *", "no such day will ever come"),
        ("0,,1 * * * *", "`` as minute"),
        ("-1 * * * *", "`` as minute"),
    ] {
        let error = Schedule::new(text, BERLIN).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn the_last_one_of_a_long_time_is_found_at_once() {
    let schedule = |text| Schedule::new(text, BERLIN).unwrap();
    let (from, until) = (at(BERLIN, "2020-01-01 00:00"), at(BERLIN, "2026-12-03 12:00"));
    let last = schedule("*/5 * * * *").last_between(from, until);
    assert_eq!(last, Some(until));
    let last = schedule("0 3 29 2 *").last_between(from, until);
    assert_eq!(last, Some(at(BERLIN, "2024-02-29 03:00")));
    let last = schedule("0 3 * * *").last_between(until - TimeDelta::hours(1), until);
    assert_eq!(last, None);
}

/// Zones that change clocks by an hour or by half, in both halves of the world, around a month of fasting, or never.
const ZONES: [Tz; 6] = [
    BERLIN,
    America::New_York,
    Australia::Lord_Howe,
    Africa::Casablanca,
    chrono_tz::Asia::Kolkata,
    Tz::UTC,
];

fn field(least: u32, most: u32) -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just("*".to_owned()),
        2 => (least..=most).prop_map(|number| number.to_string()),
        1 => (2..8_u32).prop_map(|step| format!("*/{step}")),
        1 => (least..=most, least..=most).prop_map(|(a, b)| format!("{},{}", a, b)),
        1 => (least..=most, least..=most).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Minute by minute through twenty days with changes: what is due rises, comes once, and is all that the rules name.
    #[test]
    fn nothing_is_due_twice_or_missed(
        text in (field(0, 59), field(0, 23), field(1, 28), field(0, 7))
            .prop_map(|(minute, hour, day, weekday)| format!("{minute} {hour} {day} * {weekday}")),
        zone in prop::sample::select(ZONES.to_vec()),
        start in prop::sample::select(vec!["2026-02-10", "2026-03-05", "2026-03-20", "2026-04-01", "2026-09-30", "2026-10-20"]),
    ) {
        let schedule = Schedule::new(&text, zone).unwrap();
        let fields = Fields::read(&text).unwrap();
        let start = at(Tz::UTC, &format!("{start} 00:00"));
        let end = start + TimeDelta::days(20);

        let mut found = Vec::new();
        let mut last = start - A_SECOND;
        while let Some(next) = schedule.next_after(last).filter(|next| *next < end) {
            prop_assert!(next > last, "{} after {}", next, last);
            found.push(next);
            last = next;
        }

        let minutes = (0..(end - start).num_minutes()).map(|n| start + TimeDelta::minutes(n));
        let named: Vec<DateTime<Utc>> = minutes
            .filter(|at| {
                let shown = at.with_timezone(&zone).naive_local();
                let before = (*at - TimeDelta::minutes(1)).with_timezone(&zone).naive_local();
                // The times of the clock since the minute before: none at a change back, many at one forward.
                let n = (shown - before).num_minutes();
                let is_first = zone.from_local_datetime(&shown).earliest().map(|it| it.to_utc()) == Some(*at);
                match fields.is_open {
                    true => fields.name(shown),
                    false if n > 1 => (0..n).any(|back| fields.name(shown - TimeDelta::minutes(back))),
                    false => is_first && fields.name(shown),
                }
            })
            .collect();
        prop_assert_eq!(found, named, "{} in {}", text, zone);
    }
}
