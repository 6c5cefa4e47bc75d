//! Which files of a group get which values, in this order. Pure.
//!
//! `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/` of the kernel say what each means.

use super::find::{Controller, Version};

/// What one command may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::sandbox) struct Limits {
    pub(in crate::sandbox) memory_bytes: u64,
    pub(in crate::sandbox) processes: u64,
    /// Cores; 0 is all of them.
    pub(in crate::sandbox) cpus: f64,
}

/// A file and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) file: &'static str,
    pub(super) value: String,
    /// Without it the limit does not hold. What is no must is missing on some kernels.
    pub(super) is_must: bool,
}

/// The time that a quota of processor time is for, in microseconds: the kernel's own default.
const PERIOD_MICROSECONDS: u64 = 100_000;
/// Half of what the service has: where both want the processor, the service gets two thirds.
const WEIGHT: u64 = 50;
/// The same, in the unit of version 1, where the default is 1024.
const SHARES: u64 = 512;

/// Of the group of one command.
pub(super) fn of_command(
    version: Version,
    controller: Controller,
    limits: &Limits,
) -> Vec<Setting> {
    let bytes = limits.memory_bytes.to_string();
    match (version, controller) {
        (Version::Two, Controller::Memory) => vec![
            must("memory.max", bytes),
            may("memory.swap.max", "0".into()),
            // Half a command is of no use, and of a whole one it can be said why it ended.
            may("memory.oom.group", "1".into()),
        ],
        (Version::One, Controller::Memory) => vec![
            must("memory.limit_in_bytes", bytes.clone()),
            // Memory and swap together; after the limit of memory, which it may not be below.
            may("memory.memsw.limit_in_bytes", bytes),
            may("memory.swappiness", "0".into()),
        ],
        (Version::One | Version::Two, Controller::Pids) => {
            vec![must("pids.max", limits.processes.to_string())]
        }
        (Version::Two, Controller::Cpu) => quota(limits.cpus, |quota| {
            vec![must("cpu.max", format!("{quota} {PERIOD_MICROSECONDS}"))]
        }),
        (Version::One, Controller::Cpu) => quota(limits.cpus, |quota| {
            vec![
                must("cpu.cfs_period_us", PERIOD_MICROSECONDS.to_string()),
                must("cpu.cfs_quota_us", quota.to_string()),
            ]
        }),
    }
}

/// Of the group that holds those of all commands.
pub(super) fn of_all(version: Version, controllers: &[Controller]) -> Vec<Setting> {
    if !controllers.contains(&Controller::Cpu) {
        return Vec::new();
    }
    match version {
        Version::Two => vec![may("cpu.weight", WEIGHT.to_string())],
        Version::One => vec![may("cpu.shares", SHARES.to_string())],
    }
}

/// What is read of a group: a file, and the word in front of the number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A process was killed because memory was used up.
    Killed,
    /// A process could not be started because there are as many as may be.
    Refused,
}

impl Event {
    pub(super) fn place(self, version: Version) -> (&'static str, &'static str) {
        match (self, version) {
            (Self::Killed, Version::Two) => ("memory.events", "oom_kill"),
            (Self::Killed, Version::One) => ("memory.oom_control", "oom_kill"),
            (Self::Refused, Version::One | Version::Two) => ("pids.events", "max"),
        }
    }
}

/// The number behind a word, in a file with one of each in a line.
pub(super) fn number(text: &str, word: &str) -> Option<u64> {
    let value =
        |line: &str| line.split_once(' ').filter(|(name, _)| *name == word)?.1.trim().parse().ok();
    text.lines().find_map(value)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the configuration allows 0.1 to 1024"
)]
fn quota(cpus: f64, settings: impl FnOnce(u64) -> Vec<Setting>) -> Vec<Setting> {
    match (cpus * PERIOD_MICROSECONDS as f64).round() as u64 {
        0 => Vec::new(),
        quota => settings(quota),
    }
}

fn must(file: &'static str, value: String) -> Setting {
    Setting { file, value, is_must: true }
}

fn may(file: &'static str, value: String) -> Setting {
    Setting { file, value, is_must: false }
}
