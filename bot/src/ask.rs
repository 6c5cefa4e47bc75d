//! Who asked for what: an issue and its label's history, read again from the forge, become one ask or none. Pure; a
//! webhook is only the hint to look.

use chrono::{DateTime, Utc};

use crate::command;
use crate::forge::{Comment, Issue, LabelChange, LabelEvent, LinkedPull, User};
use crate::job::{Ask, Rule};

/// Whose asks are not followed, whatever they may do.
#[derive(Debug, Clone, Copy)]
pub struct Bots<'a> {
    /// The bot's own user.
    pub own_id: i64,
    /// The logins of other bots, as configured.
    pub others: &'a [String],
}

impl Bots<'_> {
    pub(crate) fn hold(&self, user: &User) -> bool {
        self.others.iter().any(|login| login.eq_ignore_ascii_case(&user.login))
    }
}

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
    Refused(Asked, No),
    /// Somebody asks.
    Asked(Asked),
}

/// Why an ask is not followed, with what people are told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum No {
    /// The issue had been closed before the label was put on.
    ClosedBefore,
    /// The issue is locked.
    Locked,
    /// Nobody knows who put the label on.
    AdderUnknown,
    /// Another bot put the label on.
    AdderIsBot,
    /// The issue is somebody else's: the logins.
    Assigned(Vec<String>),
    /// A person's pull request that would close the issue is open.
    Linked(LinkedPull),
    /// The bot's own draft for an earlier ask is open.
    OwnDraft(LinkedPull),
}

impl No {
    /// The rule's name.
    pub fn rule(&self) -> Rule {
        match self {
            Self::ClosedBefore => Rule::IssueClosed,
            Self::Locked => Rule::IssueLocked,
            Self::AdderUnknown => Rule::AdderUnknown,
            Self::AdderIsBot => Rule::AdderIsBot,
            Self::Assigned(_) => Rule::IssueAssigned,
            Self::Linked(_) | Self::OwnDraft(_) => Rule::PullLinked,
        }
    }
}

/// Looks at an issue: `events` is the whole history of `label` on it, oldest first.
pub fn look(issue: &Issue, label: &str, events: &[LabelEvent], bots: Bots<'_>) -> Look {
    if issue.is_pull {
        return Look::Nothing("it is a pull request");
    }
    if !issue.labels.iter().any(|each| each == label) {
        return Look::Nothing(match issue.is_open {
            true => "the label is not on the issue",
            false => "the issue is closed",
        });
    }
    let asked = match events.last() {
        Some(last) if last.change == LabelChange::Added => {
            Asked { ask: Ask::Label { event: last.id }, by: Some(last.actor.clone()), at: last.at }
        }
        // The label is there though its last event took it off: somebody renamed or merged labels.
        Some(last) => Asked { ask: Ask::Label { event: last.id }, by: None, at: last.at },
        // A label set at creation leaves no event, so the author asked.
        None => Asked {
            ask: Ask::Opened { issue: Some(issue.id) },
            by: Some(issue.author.clone()),
            at: issue.created_at,
        },
    };
    // A label that was there before is part of what has been closed; one that comes later wants an answer. Forges keep
    // no finer times than seconds, and within one second nobody can tell.
    let is_late = issue.closed_at.is_some_and(|closed| asked.at > closed);
    if !issue.is_open && !is_late {
        return Look::Nothing("the issue is closed");
    }
    let no = match &asked.by {
        Some(by) if by.id == bots.own_id => {
            return Look::Nothing("the bot itself put the label on");
        }
        Some(by) if bots.hold(by) => Some(No::AdderIsBot),
        None if issue.is_open => Some(No::AdderUnknown),
        Some(_) | None if !issue.is_open => Some(No::ClosedBefore),
        Some(_) | None if issue.is_locked => Some(No::Locked),
        Some(_) | None => None,
    };
    match no {
        Some(no) => Look::Refused(asked, no),
        None => Look::Asked(asked),
    }
}

/// Whether somebody else is at work on the issue already, or the ask is one of another bot's. `pulls` are the open ones
/// that would close the issue, without the job's own. Looked at when a job begins, and once more before anything is
/// published; an operator's command obeys it too.
pub fn manners(
    issue: &Issue,
    asked: &Asked,
    pulls: &[LinkedPull],
    bots: Bots<'_>,
) -> Result<(), No> {
    if asked.by.as_ref().is_some_and(|by| bots.hold(by)) {
        return Err(No::AdderIsBot);
    }
    let is_free = |user: &User| {
        user.id == bots.own_id || asked.by.as_ref().is_some_and(|by| by.id == user.id)
    };
    if !issue.assignees.is_empty() && !issue.assignees.iter().any(is_free) {
        let logins = issue.assignees.iter().map(|user| user.login.clone());
        return Err(No::Assigned(logins.collect()));
    }
    // The bot's own draft is named first: that one people can close and ask again.
    let own = pulls.iter().find(|pull| pull.author == bots.own_id);
    match (own, pulls.first()) {
        (Some(own), _) => Err(No::OwnDraft(own.clone())),
        (None, Some(linked)) => Err(No::Linked(linked.clone())),
        (None, None) => Ok(()),
    }
}

/// What became of an ask that a job already answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Still {
    /// It stands.
    Asked(Asked),
    /// The label has been taken off, or put on anew, which is another ask; or the comment is gone or says something else.
    Withdrawn,
    /// The issue has been closed.
    Closed,
    /// The issue had been closed before the comment was written.
    ClosedBefore,
    /// The issue has been locked.
    Locked,
    /// It is a pull request, and never was an issue.
    Pull,
    /// Nobody knows who put the label on.
    AdderUnknown,
}

/// Where an ask can be seen to stand still.
#[derive(Debug, Clone, Copy)]
pub struct Signs<'a> {
    /// The whole history of the label, oldest first.
    pub events: &'a [LabelEvent],
    /// The comments, where one of them asked.
    pub comments: &'a [Comment],
}

/// Whether an ask still stands: after a restart, and once more before anything is published.
pub fn still(issue: &Issue, label: &str, signs: Signs<'_>, ask: &Ask) -> Still {
    let events = signs.events;
    if issue.is_pull {
        return Still::Pull;
    }
    let asking = match ask {
        Ask::Comment { id } => signs.comments.iter().find(|comment| comment.id == *id),
        Ask::Label { .. } | Ask::Opened { .. } | Ask::Command { .. } | Ask::Sweep { .. } => None,
    };
    if !issue.is_open {
        let was_before =
            issue.closed_at.zip(asking).is_some_and(|(closed, asking)| closed <= asking.created_at);
        return if was_before { Still::ClosedBefore } else { Still::Closed };
    }
    if issue.is_locked {
        return Still::Locked;
    }
    let (by, at) = match ask {
        // An operator's word does not hang on the label, and a sweep is one.
        Ask::Command { at } | Ask::Sweep { at, .. } => {
            let at = DateTime::from_timestamp(*at, 0).unwrap_or_default();
            return Still::Asked(Asked { ask: ask.clone(), by: None, at });
        }
        Ask::Comment { .. } => {
            let standing = asking.filter(|comment| {
                command::parse(&comment.body).is_some_and(|command| command.asks())
            });
            let Some(asking) = standing else { return Still::Withdrawn };
            let by = Some(asking.author.clone());
            return Still::Asked(Asked { ask: ask.clone(), by, at: asking.created_at });
        }
        Ask::Opened { issue: id } if events.is_empty() && id.is_none_or(|id| id == issue.id) => {
            (issue.author.clone(), issue.created_at)
        }
        Ask::Opened { .. } => return Still::Withdrawn,
        Ask::Label { event } => match events.last() {
            // Whoever took the label off asked for nothing, though it is there again.
            Some(last) if last.id == *event && last.change == LabelChange::Removed => {
                return Still::AdderUnknown;
            }
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
            id: 70,
            number: 7,
            title: "t".into(),
            body: "b".into(),
            author: user(1),
            is_open: true,
            is_locked: false,
            is_pull: false,
            labels: vec!["bug".into(), "hyla".into()],
            assignees: vec![],
            created_at: at(1),
            updated_at: at(1),
            closed_at: None,
        }
    }

    fn event(id: i64, actor: i64, change: LabelChange) -> LabelEvent {
        LabelEvent { id, at: at(id), actor: user(actor), change }
    }

    fn closed(second: i64) -> Issue {
        Issue { is_open: false, closed_at: Some(at(second)), ..issue() }
    }

    fn bots(others: &[String]) -> Bots<'_> {
        Bots { own_id: 99, others }
    }

    fn check(cases: Vec<(&str, Issue, Vec<LabelEvent>, Look)>) {
        let others = ["User50".to_owned()];
        for (name, issue, events, expected) in cases {
            assert_eq!(look(&issue, "hyla", &events, bots(&others)), expected, "{name}");
        }
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
                Look::Asked(Asked {
                    ask: Ask::Opened { issue: Some(70) },
                    by: Some(user(1)),
                    at: at(1),
                }),
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
                Look::Refused(label_ask(6, None), No::AdderUnknown),
            ),
            (
                "locked",
                Issue { is_locked: true, ..issue() },
                vec![event(5, 2, Added)],
                Look::Refused(label_ask(5, Some(user(2))), No::Locked),
            ),
        ];
        check(cases);
    }

    #[test]
    fn a_late_label_and_another_bot_s_label_are_refused() {
        use LabelChange::Added;
        let cases: Vec<(&str, Issue, Vec<LabelEvent>, Look)> = vec![
            (
                "closed before the label",
                closed(4),
                vec![event(5, 2, Added)],
                Look::Refused(label_ask(5, Some(user(2))), No::ClosedBefore),
            ),
            (
                "closed after the label",
                closed(6),
                vec![event(5, 2, Added)],
                Look::Nothing("the issue is closed"),
            ),
            (
                "closed in the second of the label",
                closed(5),
                vec![event(5, 2, Added)],
                Look::Nothing("the issue is closed"),
            ),
            (
                "closed, and the label set at creation",
                closed(4),
                vec![],
                Look::Nothing("the issue is closed"),
            ),
            (
                "another bot, on a locked issue",
                Issue { is_locked: true, ..issue() },
                vec![event(5, 50, Added)],
                Look::Refused(label_ask(5, Some(user(50))), No::AdderIsBot),
            ),
            (
                "another bot, at creation",
                Issue { author: user(50), ..issue() },
                vec![],
                Look::Refused(
                    Asked { ask: Ask::Opened { issue: Some(70) }, by: Some(user(50)), at: at(1) },
                    No::AdderIsBot,
                ),
            ),
        ];
        check(cases);
    }

    #[test]
    fn whoever_took_the_label_off_has_not_asked_after_a_restart_either() {
        let events = [event(5, 2, LabelChange::Added), event(6, 3, LabelChange::Removed)];
        let ask = Ask::Label { event: 6 };
        let signs = |events| Signs { events, comments: &[] };
        assert_eq!(still(&issue(), "hyla", signs(&events), &ask), Still::AdderUnknown);
        let asked = label_ask(5, Some(user(2)));
        assert_eq!(still(&issue(), "hyla", signs(&events[..1]), &asked.ask), Still::Asked(asked));
    }

    #[test]
    fn good_manners_leave_an_issue_to_whoever_is_at_work() {
        let pull = |number, author| LinkedPull {
            repo: "acme/app".parse().unwrap(),
            number,
            link: "http://f".into(),
            author,
        };
        let assigned =
            |ids: &[i64]| Issue { assignees: ids.iter().map(|id| user(*id)).collect(), ..issue() };
        let by_ann = label_ask(5, Some(user(2)));
        let by_operator = Asked { ask: Ask::Command { at: 9 }, by: None, at: at(9) };
        let names = |ids: &[i64]| No::Assigned(ids.iter().map(|id| user(*id).login).collect());
        let cases = [
            ("nobody", issue(), &by_ann, vec![], Ok(())),
            ("the asker among others", assigned(&[3, 2]), &by_ann, vec![], Ok(())),
            ("the bot", assigned(&[99]), &by_ann, vec![], Ok(())),
            ("others", assigned(&[3, 4]), &by_ann, vec![], Err(names(&[3, 4]))),
            ("an operator, and others", assigned(&[2]), &by_operator, vec![], Err(names(&[2]))),
            ("an operator, and the bot", assigned(&[99]), &by_operator, vec![], Ok(())),
            ("a pull", issue(), &by_ann, vec![pull(8, 2)], Err(No::Linked(pull(8, 2)))),
            (
                "the bot's own draft",
                issue(),
                &by_ann,
                vec![pull(8, 2), pull(9, 99)],
                Err(No::OwnDraft(pull(9, 99))),
            ),
            ("an operator, and a pull", issue(), &by_operator, vec![pull(8, 2)], {
                Err(No::Linked(pull(8, 2)))
            }),
        ];
        for (name, issue, asked, pulls, expected) in cases {
            assert_eq!(manners(&issue, asked, &pulls, bots(&[])), expected, "{name}");
        }
    }
}
