//! Sweeps over the backlog: when, which issues, and how much of people's and the machine's time they may take.

use std::fmt;
use std::time::Duration;

use chrono::NaiveTime;
use chrono_tz::Tz;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::Schedule;

/// `[sweep.NAME]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// When it begins, as the five fields of a crontab.
    pub schedule: String,
    /// The time zone of `schedule` and `quiet`, by its IANA name.
    #[serde(default = "utc", deserialize_with = "zone")]
    pub zone: Tz,
    /// The forge; it may be left out where there is one alone.
    #[serde(default)]
    pub forge: Option<String>,
    /// The repositories, each on the forge's allow-list; all of that list without any.
    #[serde(default)]
    pub repositories: Vec<String>,
    /// Labels that an issue must have, all of them.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Labels that an issue must not have, none of them.
    #[serde(default)]
    pub without_labels: Vec<String>,
    /// How long ago an issue was opened at least.
    #[serde(default, with = "humantime_serde::option")]
    pub older_than: Option<Duration>,
    /// How long ago an issue was opened at most.
    #[serde(default, with = "humantime_serde::option")]
    pub younger_than: Option<Duration>,
    /// Whose issues.
    #[serde(default)]
    pub authors: Authors,
    /// Issues that it leaves alone, as `owner/name#7`.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// How many issues it works on each time.
    #[serde(default = "default_per_sweep")]
    pub per_sweep: u32,
    /// How many it begins within an hour.
    #[serde(default)]
    pub per_hour: Option<u32>,
    /// How many it begins within a day.
    #[serde(default)]
    pub per_day: Option<u32>,
    /// How long its jobs may run within a day, all together.
    #[serde(default, with = "humantime_serde::option")]
    pub time_per_day: Option<Duration>,
    /// How many of the bot's drafts may be open in a repository before it adds none there.
    #[serde(default = "default_open_drafts")]
    pub open_drafts: u32,
    /// Spans of the day in which it begins nothing, such as `08:00-18:00`.
    #[serde(default)]
    pub quiet: Vec<Span>,
    /// The share of its last drafts that were closed unmerged, from 0 to 1, above which it pauses until a person resumes it.
    #[serde(default = "default_pause_share")]
    pub pause_share: f64,
    /// How many of its last drafts `pause_share` is about. It never pauses before so many have been decided.
    #[serde(default = "default_pause_drafts")]
    pub pause_drafts: u32,
}

impl Sweep {
    /// When it begins.
    ///
    /// # Errors
    /// What is wrong with `schedule`; a configuration that was checked has nothing wrong.
    pub fn schedule(&self) -> Result<Schedule, String> {
        Schedule::new(&self.schedule, self.zone)
    }
}

/// Whose issues a sweep takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Authors {
    /// Everybody's.
    #[default]
    Anybody,
    /// Those of people who may write to the repository.
    Writers,
    /// Those of people who may not.
    Others,
}

/// A span of the day, which may go over midnight.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Span {
    /// Its first instant.
    pub from: NaiveTime,
    /// The first instant after it.
    pub until: NaiveTime,
}

impl Span {
    /// Whether a time of the day lies in it.
    pub fn holds(self, time: NaiveTime) -> bool {
        match self.from < self.until {
            true => (self.from..self.until).contains(&time),
            false => time >= self.from || time < self.until,
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from.format("%H:%M"), self.until.format("%H:%M"))
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let time = |text: &str| NaiveTime::parse_from_str(text.trim(), "%H:%M").ok();
        let span = text.split_once('-').and_then(|(from, until)| Some((time(from)?, time(until)?)));
        match span {
            Some((from, until)) if from != until => Ok(Self { from, until }),
            Some(_) | None => Err(format!("`{text}` is no span of the day, such as `08:00-18:00`")),
        }
    }
}

fn utc() -> Tz {
    Tz::UTC
}

fn zone<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tz, D::Error> {
    let name = String::deserialize(deserializer)?;
    name.parse().map_err(|_| {
        D::Error::custom(format!("`{name}` is no time zone; use a name such as `Europe/Berlin`"))
    })
}

fn default_per_sweep() -> u32 {
    5
}

fn default_open_drafts() -> u32 {
    3
}

fn default_pause_share() -> f64 {
    0.5
}

fn default_pause_drafts() -> u32 {
    6
}
