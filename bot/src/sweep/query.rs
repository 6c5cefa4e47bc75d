//! Which issues a sweep may take at all, by what the list of open issues says of each. Pure.

use chrono::{DateTime, Utc};

use crate::clock::before;
use crate::forge::Issue;
use crate::job::RepoName;

/// Why a sweep leaves an issue alone, if it does.
pub(super) fn unfit(
    sweep: &config::Sweep,
    (repo, issue): (&RepoName, &Issue),
    trigger: &str,
    now: DateTime<Utc>,
) -> Option<&'static str> {
    let has = |label: &String| issue.labels.iter().any(|each| each == label);
    let name = format!("{repo}#{}", issue.number);
    let is_after = |age| issue.created_at > before(now, age);
    if issue.is_locked {
        Some("it is locked")
    } else if !issue.assignees.is_empty() {
        Some("it is assigned")
    } else if issue.labels.iter().any(|each| each == trigger) {
        Some("it has the label that asks by itself")
    } else if sweep.exclude.iter().any(|each| each.eq_ignore_ascii_case(&name)) {
        Some("`exclude` names it")
    } else if !sweep.labels.iter().all(has) {
        Some("it lacks one of `labels`")
    } else if sweep.without_labels.iter().any(has) {
        Some("it has one of `without_labels`")
    } else if sweep.older_than.is_some_and(is_after) {
        Some("it is younger than `older_than`")
    } else if sweep.younger_than.is_some_and(|age| !is_after(age)) {
        Some("it is older than `younger_than`")
    } else {
        None
    }
}
