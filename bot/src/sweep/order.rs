//! Which issue comes first: the one that looks cheapest to do and to review, with the reasons in words. Pure.

use std::sync::LazyLock;

use chrono::{DateTime, TimeDelta, Utc};
use regex::Regex;

use crate::forge::Issue;

/// Characters of a text that one sitting reads, and of one that nobody reads at once.
const SHORT: usize = 1_500;
const LONG: usize = 6_000;
/// Drafts of a repository that must have been decided before their fate says anything.
const TELLING: u32 = 4;

/// How much speaks for an issue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// More comes first.
    pub points: i32,
    /// Why, each with its points.
    pub reasons: Vec<String>,
}

/// What became of the bot's drafts in a repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// How many were merged.
    pub(super) n_merged: u32,
    /// How many were closed unmerged.
    pub(super) n_closed: u32,
}

/// What a stack trace looks like in the languages that people use most.
static TRACE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    regex(
        r#"(?m)Traceback \(most recent call last\)|panicked at |^goroutine \d+ \[|^\s+at .+[:(]\S+:\d+|^\s*File "[^"]+", line \d+|^\s*from \S+:\d+:in "#,
    )
});
/// A command that runs tests, or a test's own word that it failed.
static FAILING: LazyLock<Option<Regex>> = LazyLock::new(|| {
    regex(
        r"(?m)\b(pytest|unittest|tox|cargo (test|nextest)|go test|npm (test|run test)|yarn test|pnpm test|jest|vitest|mvn|gradlew?|make (check|test)|ctest|phpunit|rspec|dotnet test)\b|\bAssertionError\b|^(FAILED|FAIL|--- FAIL)\b|\btest .+ \.\.\. FAILED\b",
    )
});
/// A file with a line.
static PLACE: LazyLock<Option<Regex>> =
    LazyLock::new(|| regex(r"\b[\w./-]+\.[A-Za-z]{1,5}(:\d+|#L\d+)\b"));

/// None only for a pattern that is wrong, which a test would show.
fn regex(pattern: &str) -> Option<Regex> {
    Regex::new(pattern).ok()
}

/// Weighs an issue.
pub(super) fn weigh(issue: &Issue, record: Record, now: DateTime<Utc>) -> Weight {
    let mut weight = Weight { points: 0, reasons: Vec::new() };
    let mut add = |points: i32, reason: &str| {
        weight.points += points;
        weight.reasons.push(format!("{reason} ({points:+})"));
    };
    let holds = |pattern: &Option<Regex>| {
        pattern.as_ref().is_some_and(|pattern| pattern.is_match(&issue.body))
    };
    if holds(&TRACE) {
        add(3, "has a stack trace");
    }
    if holds(&FAILING) {
        add(3, "names a failing command or test");
    }
    if holds(&PLACE) {
        add(2, "names a file and line");
    }
    match issue.body.chars().count() {
        0 => add(-3, "says nothing but its title"),
        n if n <= SHORT => add(2, "is short"),
        n if n > LONG => add(-2, "is long"),
        _ => {}
    }
    match now.signed_duration_since(issue.created_at) {
        age if age <= TimeDelta::days(30) => add(2, "is new"),
        age if age > TimeDelta::days(365) => add(-1, "is older than a year"),
        _ => {}
    }
    let n_decided = record.n_merged.saturating_add(record.n_closed);
    if n_decided >= TELLING && record.n_merged * 4 >= n_decided * 3 {
        add(2, "drafts in its repository are mostly merged");
    } else if n_decided >= TELLING && record.n_merged * 4 <= n_decided {
        add(-2, "drafts in its repository are mostly closed");
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forge::User;

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap()
    }

    fn issue(body: &str, days: i64) -> Issue {
        Issue {
            id: 70,
            number: 7,
            title: "t".into(),
            body: body.into(),
            author: User { id: 1, login: "ann".into() },
            is_open: true,
            is_locked: false,
            is_pull: false,
            labels: vec![],
            assignees: vec![],
            created_at: now() - TimeDelta::days(days),
            updated_at: now(),
            closed_at: None,
        }
    }

    #[test]
    fn what_shows_a_way_in_comes_first() {
        let reasons =
            |body: &str, days| weigh(&issue(body, days), Record::default(), now()).reasons;
        let cases = [
            ("Traceback (most recent call last):\n  ...", "has a stack trace (+3)"),
            ("thread 'main' panicked at src/a.rs", "has a stack trace (+3)"),
            ("Error: x\n    at run (/app/a.js:3:1)", "has a stack trace (+3)"),
            ("goroutine 1 [running]:\nmain.f()", "has a stack trace (+3)"),
            ("Run `pytest tests/test_a.py`", "names a failing command or test (+3)"),
            ("test a::b ... FAILED", "names a failing command or test (+3)"),
            ("See src/hours.py:12 please", "names a file and line (+2)"),
            ("", "says nothing but its title (-3)"),
        ];
        for (body, expected) in cases {
            let found = reasons(body, 40);
            assert!(found.iter().any(|reason| reason == expected), "{body}: {found:?}");
        }
        assert_eq!(reasons("It is wrong.", 40), ["is short (+2)"]);
        assert_eq!(reasons("It is wrong.", 4), ["is short (+2)", "is new (+2)"]);
        let long = "word ".repeat(2_000);
        assert_eq!(reasons(&long, 400), ["is long (-2)", "is older than a year (-1)"]);
    }

    #[test]
    fn what_became_of_earlier_drafts_counts_once_there_are_some() {
        let points = |n_merged, n_closed| {
            weigh(&issue(&"w".repeat(2_000), 40), Record { n_merged, n_closed }, now()).points
        };
        assert_eq!([points(3, 0), points(3, 1), points(2, 2), points(1, 3)], [0, 2, 0, -2]);
    }
}
