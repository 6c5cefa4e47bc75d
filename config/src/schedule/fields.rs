//! The five fields, each read into the numbers that it stands for.

use std::collections::BTreeSet;

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// What one field may hold.
struct Kind {
    name: &'static str,
    least: u32,
    most: u32,
    /// Names of its numbers, from the least one on.
    names: &'static [&'static str],
}

const KINDS: [Kind; 5] = [
    Kind { name: "minute", least: 0, most: 59, names: &[] },
    Kind { name: "hour", least: 0, most: 23, names: &[] },
    Kind { name: "day of the month", least: 1, most: 31, names: &[] },
    Kind { name: "month", least: 1, most: 12, names: &MONTHS },
    Kind { name: "day of the week", least: 0, most: 7, names: &WEEKDAYS },
];

/// What a schedule names.
pub(super) struct Fields {
    /// Whether minutes or hours are left open.
    pub(super) is_open: bool,
    minutes: BTreeSet<u32>,
    hours: BTreeSet<u32>,
    days: BTreeSet<u32>,
    months: BTreeSet<u32>,
    weekdays: BTreeSet<u32>,
    /// Whether days of the month and of the week are both given, so that either will do.
    is_either: bool,
}

impl Fields {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let texts: Vec<&str> = text.split_ascii_whitespace().collect();
        let texts: [&str; 5] = texts.try_into().map_err(|texts: Vec<&str>| {
            format!(
                "it has {} fields; a schedule has five: minute, hour, day of the month, month, day of the week",
                texts.len()
            )
        })?;
        let mut sets = Vec::new();
        for (kind, text) in KINDS.iter().zip(texts) {
            sets.push(kind.read(text)?);
        }
        let [minute, hour, day, _, weekday] = texts.map(|text| text.starts_with('*'));
        let [minutes, hours, days, months, weekdays]: [BTreeSet<u32>; 5] =
            sets.try_into().map_err(|_| "a field is missing".to_owned())?;
        Ok(Self {
            is_open: minute || hour,
            minutes,
            hours,
            days,
            months,
            // Sunday is 0 and 7 here, and 1 there.
            weekdays: weekdays.into_iter().map(|day| day % 7 + 1).collect(),
            is_either: !day && !weekday,
        })
    }

    /// The same as the `cron` crate writes it, each number by itself: due is what any of them says.
    pub(super) fn expressions(&self) -> Vec<String> {
        let list = |numbers: &BTreeSet<u32>| {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            numbers.join(",")
        };
        let [minutes, hours, months] = [&self.minutes, &self.hours, &self.months].map(list);
        let expression =
            |days: &str, weekdays: &str| format!("0 {minutes} {hours} {days} {months} {weekdays}");
        let (days, weekdays) = (list(&self.days), list(&self.weekdays));
        match self.is_either {
            true => vec![expression(&days, "*"), expression("*", &weekdays)],
            false => vec![expression(&days, &weekdays)],
        }
    }
}

impl Kind {
    /// One field: parts with commas between them.
    fn read(&self, text: &str) -> Result<BTreeSet<u32>, String> {
        let mut found = BTreeSet::new();
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                Some((range, step)) => (range, Some(step)),
                None => (part, None),
            };
            let (first, last) = match range.split_once('-') {
                None if range == "*" => (self.least, self.most),
                None if step.is_some() => {
                    return Err(
                        self.wrong(part, "a step comes behind `*` or a range, as in `*/15`")
                    );
                }
                None => (self.number(range)?, self.number(range)?),
                Some((first, last)) => (self.number(first)?, self.number(last)?),
            };
            if first > last {
                return Err(self.wrong(part, "a range begins with the smaller number"));
            }
            let step = match step.map(str::parse::<usize>) {
                None => 1,
                Some(Ok(step)) if step > 0 => step,
                Some(_) => return Err(self.wrong(part, "a step is a number from 1 on")),
            };
            found.extend((first..=last).step_by(step));
        }
        Ok(found)
    }

    fn number(&self, text: &str) -> Result<u32, String> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let number = match named.and_then(|at| u32::try_from(at).ok()) {
            Some(at) => Some(self.least + at),
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
            None => None,
        };
        let fits = |number: &u32| (self.least..=self.most).contains(number);
        number
            .filter(fits)
            .ok_or_else(|| self.wrong(text, &format!("it must be {} to {}", self.least, self.most)))
    }

    fn wrong(&self, part: &str, reason: &str) -> String {
        format!("`{part}` as {}: {reason}", self.name)
    }
}

#[cfg(test)]
impl Fields {
    /// Whether it names a time, read without the help of any calendar but its own.
    pub(super) fn name(&self, time: chrono::NaiveDateTime) -> bool {
        use chrono::{Datelike as _, Timelike as _};
        let day = self.days.contains(&time.day());
        let weekday = self.weekdays.contains(&(time.weekday().num_days_from_sunday() + 1));
        let is_day = if self.is_either { day || weekday } else { day && weekday };
        self.minutes.contains(&time.minute())
            && self.hours.contains(&time.hour())
            && self.months.contains(&time.month())
            && is_day
    }
}
