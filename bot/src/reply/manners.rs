//! Why the bot leaves an issue alone, with the names of those who are at work on it already.

use super::{code_span, refused};
use crate::ask::No;
use crate::forge::LinkedPull;
use crate::job::End;

/// Logins shown of those to whom an issue is assigned; people rarely assign more.
const LOGINS_SHOWN: usize = 3;

/// The end of a job that follows no ask.
pub fn declined(no: &No) -> End {
    match no {
        No::Locked | No::AdderUnknown | No::AdderIsBot => {
            refused(no.rule(), "seen when the issue was read")
        }
        No::ClosedBefore => End {
            person: "This issue was closed before the label was put on, so I left it alone.".into(),
            next: "To ask, open the issue, take the label off and put it back on.".into(),
            ..refused(no.rule(), "the label was put on after the issue was closed")
        },
        No::Assigned(logins) => End {
            person: format!("This issue is assigned to {}, so I left it alone.", names(logins)),
            ..refused(no.rule(), &format!("it is assigned to {}", logins.join(", ")))
        },
        No::Linked(pull) => End {
            person: format!(
                "{} is open and would close this issue, so I left it alone.",
                link("Pull request", pull)
            ),
            ..refused(no.rule(), &where_it_is(pull))
        },
        No::OwnDraft(pull) => End {
            person: format!(
                "My earlier draft for this issue, {}, is still open, so I opened no second one.",
                link("pull request", pull)
            ),
            next: "Please review it. If you want another try, close it first; then take the label off and put it back on.".into(),
            ..refused(no.rule(), &where_it_is(pull))
        },
    }
}

fn names(logins: &[String]) -> String {
    let shown: Vec<String> =
        logins.iter().take(LOGINS_SHOWN).map(|login| code_span(login)).collect();
    match logins.len().saturating_sub(LOGINS_SHOWN) {
        0 => shown.join(", "),
        n_more => format!("{} and {n_more} more", shown.join(", ")),
    }
}

fn link(words: &str, pull: &LinkedPull) -> String {
    format!("[{words} #{}]({})", pull.number, pull.link)
}

fn where_it_is(pull: &LinkedPull) -> String {
    format!("pull request {} of `{}` is open", pull.number, pull.repo)
}
