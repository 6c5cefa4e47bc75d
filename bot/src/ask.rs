//! Who asked for what: an issue and its label's history, read again from the forge, become one ask or none. Pure; a
//! webhook is only the hint to look.

use chrono::{DateTime, Utc};

use crate::forge::{Issue, LabelChange, LabelEvent, User};
use crate::job::{Ask, Rule};

/// One ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// What it was; part of the job's key.
    pub ask: Ask,
    /// Who; none for an operator on the command line.
    pub by: Option<User>,
    /// When. What people write later does not steer the job.
    pub at: DateTime<Utc>,
}

/// What a look at an issue finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// Nobody asks for anything; why, for the log.
    Nothing(&'static str),
    /// Somebody asks, and a rule says no before anything else is looked at.
    Refused(Asked, Rule),
    /// Somebody asks.
    Asked(Asked),
}

/// Looks at an issue: `events` is the whole history of `label` on it, oldest first; `own_id` is the bot's own user.
pub fn look(issue: &Issue, label: &str, events: &[LabelEvent], own_id: i64) -> Look {
    if issue.is_pull {
        return Look::Nothing("it is a pull request");
    }
    if !issue.is_open {
        return Look::Nothing("the issue is closed");
    }
    if !issue.labels.iter().any(|each| each == label) {
        return Look::Nothing("the label is not on the issue");
    }
    let asked = match events.last() {
        Some(last) if last.change == LabelChange::Added => {
            Asked { ask: Ask::Label { event: last.id }, by: Some(last.actor.clone()), at: last.at }
        }
        // The label is there though its last event took it off: somebody renamed or merged labels.
        Some(last) => {
            let asked = Asked { ask: Ask::Label { event: last.id }, by: None, at: last.at };
            return Look::Refused(asked, Rule::AdderUnknown);
        }
        // A label set at creation leaves no event, so the author asked.
        None => Asked { ask: Ask::Opened, by: Some(issue.author.clone()), at: issue.created_at },
    };
    if asked.by.as_ref().is_some_and(|by| by.id == own_id) {
        return Look::Nothing("the bot itself put the label on");
    }
    if issue.is_locked {
        return Look::Refused(asked, Rule::IssueLocked);
    }
    Look::Asked(asked)
}

/// What became of an ask that a job already answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Still {
    /// It stands.
    Asked(Asked),
    /// The label has been taken off, or put on anew, which is another ask.
    Withdrawn,
    /// The issue has been closed.
    Closed,
    /// The issue has been locked.
    Locked,
    /// It is a pull request, and never was an issue.
    Pull,
}

/// Whether an ask still stands: after a restart, and once more before anything is published.
pub fn still(issue: &Issue, label: &str, events: &[LabelEvent], ask: &Ask) -> Still {
    if issue.is_pull {
        return Still::Pull;
    }
    if !issue.is_open {
        return Still::Closed;
    }
    if issue.is_locked {
        return Still::Locked;
    }
    let (by, at) = match ask {
        // An operator's word does not hang on the label.
        Ask::Command { at } => {
            let at = DateTime::from_timestamp(*at, 0).unwrap_or_default();
            return Still::Asked(Asked { ask: ask.clone(), by: None, at });
        }
        Ask::Opened if events.is_empty() => (issue.author.clone(), issue.created_at),
        Ask::Opened => return Still::Withdrawn,
        Ask::Label { event } => match events.last() {
            Some(last) if last.id == *event => (last.actor.clone(), last.at),
            Some(_) | None => return Still::Withdrawn,
        },
    };
    if !issue.labels.iter().any(|each| each == label) {
        return Still::Withdrawn;
    }
    Still::Asked(Asked { ask: ask.clone(), by: Some(by), at })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: i64) -> User {
        User { id, login: format!("user{id}") }
    }

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    fn issue() -> Issue {
        Issue {
            number: 7,
            title: "t".into(),
            body: "b".into(),
            author: user(1),
            is_open: true,
            is_locked: false,
            is_pull: false,
            labels: vec!["bug".into(), "hyla".into()],
            created_at: at(1),
        }
    }

    fn event(id: i64, actor: i64, change: LabelChange) -> LabelEvent {
        LabelEvent { id, at: at(id), actor: user(actor), change }
    }

    fn label_ask(event: i64, by: Option<User>) -> Asked {
        Asked { ask: Ask::Label { event }, by, at: at(event) }
    }

    #[test]
    fn a_look_finds_the_latest_adder_or_says_why_not() {
        use LabelChange::{Added, Removed};
        let cases: Vec<(&str, Issue, Vec<LabelEvent>, Look)> = vec![
            (
                "latest adder",
                issue(),
                vec![event(5, 2, Added), event(6, 3, Removed), event(9, 4, Added)],
                Look::Asked(label_ask(9, Some(user(4)))),
            ),
            (
                "set at creation",
                issue(),
                vec![],
                Look::Asked(Asked { ask: Ask::Opened, by: Some(user(1)), at: at(1) }),
            ),
            (
                "label gone",
                Issue { labels: vec!["Hyla".into()], ..issue() },
                vec![event(5, 2, Added)],
                Look::Nothing("the label is not on the issue"),
            ),
            (
                "closed",
                Issue { is_open: false, ..issue() },
                vec![event(5, 2, Added)],
                Look::Nothing("the issue is closed"),
            ),
            (
                "pull request",
                Issue { is_pull: true, ..issue() },
                vec![event(5, 2, Added)],
                Look::Nothing("it is a pull request"),
            ),
            (
                "own label",
                issue(),
                vec![event(5, 99, Added)],
                Look::Nothing("the bot itself put the label on"),
            ),
            (
                "own issue with the label",
                Issue { author: user(99), ..issue() },
                vec![],
                Look::Nothing("the bot itself put the label on"),
            ),
            (
                "removed but present",
                issue(),
                vec![event(5, 2, Added), event(6, 2, Removed)],
                Look::Refused(label_ask(6, None), Rule::AdderUnknown),
            ),
            (
                "locked",
                Issue { is_locked: true, ..issue() },
                vec![event(5, 2, Added)],
                Look::Refused(label_ask(5, Some(user(2))), Rule::IssueLocked),
            ),
        ];
        for (name, issue, events, expected) in cases {
            assert_eq!(look(&issue, "hyla", &events, 99), expected, "{name}");
        }
    }
}
