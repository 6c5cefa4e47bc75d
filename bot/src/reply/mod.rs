//! Every sentence that the bot says to people: short, kind, and with what to do next. Pure: values in, text out.
//!
//! The model's words and the words pass through `quiet` before they stand in any of it, so that they ping
//! nobody and close nothing.

mod answers;
#[cfg(test)]
mod blocks;
mod comment;
mod manners;
#[cfg(test)]
mod property;
mod pull;
mod quiet;
#[cfg(test)]
mod tests;
mod words;

pub use answers::{
    answer_marker, busy, for_whoever_commented, help, not_understood, nothing_to_stop, standing,
    stopped, story, too_late,
};
pub use comment::{Status, marker, status};
pub use manners::declined;
pub use pull::{Draft, body, commit_message, local_message, title};
pub(crate) use quiet::is_invisible;
pub use quiet::{code_span, fence, line, lines, path_span, plain};

use crate::forge::Pull;
use crate::gate::Refusal;
use crate::job::{CommitId, End, Failure, NoFix, Outcome, Rule, name_of};
use crate::sandbox::Confinement;
use words::{failure_words, rule_words};

const AGAIN: &str = "To ask again, take the label off and put it back on.";

/// A number with its word: `1 turn`, `2 turns`.
pub fn count(n: u32, word: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {word}{plural}")
}

/// What a JSON value is, in words.
pub fn kind(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// What to do next, for somebody who asked with a command instead of a label.
pub fn next_at_a_terminal(end: &End) -> String {
    asking_by(&end.next, "run the command again")
}

/// The same words for another way to ask than the label.
fn asking_by(text: &str, way: &str) -> String {
    let asking = [
        "put the label on; where it is on already, take it off and put it back on",
        "take the label off and put it back on",
        "put the label on again",
        "put the label back on",
    ];
    asking.iter().fold(text.to_owned(), |text, words| text.replace(words, way))
}

/// The end of a job whose pull request is open, or has been since its own attempt opened it. `prefix` is the configured
/// draft prefix, `own` the commit that the bot pushed.
pub fn opened(pull: &Pull, prefix: &str, own: &CommitId) -> End {
    let link = format!("[pull request #{}]({})", pull.number, pull.link);
    let (state, person, next) = if pull.is_merged {
        let person = format!("I opened {link}, and it is merged already.");
        ("merged", person, "There is nothing left to do.".to_owned())
    } else if !pull.is_open {
        let person = format!("I opened {link}, and it has been closed without a merge.");
        ("closed", person, format!("Open it again if it is still of use. {AGAIN}"))
    } else if pull.is_draft {
        let next = "Please review it; if you like it, mark it as ready and merge it.".to_owned();
        ("a draft", format!("The draft is ready for you: {link}."), next)
    } else {
        let person =
            format!("My change is ready for you: {link}. The forge does not show it as a draft.");
        let next = format!(
            "Please review it before anyone merges it. An operator sets `draft_prefix` to one of the forge's prefixes for work in progress; {} is none.",
            code_span(prefix)
        );
        ("no draft", person, next)
    };
    let has_others = pull.head_commit.as_ref().is_some_and(|head| head != own);
    let others = match has_others && !pull.is_merged {
        true => " Its branch has commits of others on top of mine; I left them as they are.",
        false => "",
    };
    let person = format!("{person}{others}");
    End {
        outcome: Outcome::DraftPr,
        person,
        operator: format!("pull request {} was opened; it is {state}", pull.number),
        next,
    }
}

/// The end of a job whose branch somebody else made a pull request of before the bot could.
pub fn opened_by_another(pull: &Pull) -> End {
    End {
        outcome: Outcome::DraftPr,
        person: format!(
            "My change is ready for you: somebody opened [pull request #{}]({}) from my branch before I could.",
            pull.number, pull.link
        ),
        operator: format!("pull request {} was opened by another user from the branch", pull.number),
        next: "Please review it before anyone merges it. What my test runs showed is kept with the job's transcript.".into(),
    }
}

/// The end of a job for whose branches another branch leaves no room.
pub fn branch_in_the_way(branch: &str, prefix: &str) -> End {
    let next = format!(
        "Rename or delete the branch {}, or have an operator set another `branch_prefix`. {AGAIN}",
        code_span(branch)
    );
    let why =
        format!("the branch `{branch}` leaves no room for branches that start with `{prefix}`");
    End {
        person: format!(
            "The branch {} leaves no room for mine, so I opened no draft.",
            code_span(branch)
        ),
        next,
        ..failed(Failure::BranchTaken, why)
    }
}

/// The end of a job whose branch has been taken by somebody else.
pub fn branch_taken(branch: &str, chain: String) -> End {
    End {
        person: format!(
            "The branch {} holds other commits, and I never overwrite the work of others.",
            code_span(branch)
        ),
        next: format!("Delete or rename that branch. {AGAIN}"),
        ..failed(Failure::BranchTaken, chain)
    }
}

/// The end of a job for which every branch name is taken, from `first` to `last`.
pub fn branches_taken(first: &str, last: &str) -> End {
    let person = format!(
        "All the branch names that I may use for this issue, from {} to {}, are taken, and I never overwrite the work of others.",
        code_span(first),
        code_span(last)
    );
    let next = format!("An operator sets another `branch_prefix`. {AGAIN}");
    let why = format!("the branches from `{first}` to `{last}` are taken");
    End { person, next, ..failed(Failure::BranchTaken, why) }
}

/// The same end, of a job whose branch stays behind without a pull request.
pub fn with_branch_left(end: End, branch: &str) -> End {
    End {
        person: format!(
            "{} I had pushed my branch {} by then, and it is still there.",
            end.person,
            code_span(branch)
        ),
        next: format!("{} Delete the branch if it is of no use.", end.next),
        operator: format!("{}; the branch `{branch}` had been pushed by then", end.operator),
        ..end
    }
}

/// The end of a job of which the forge turned a request or a push down, for a reason that is no missing right.
pub fn turned_down(chain: String) -> End {
    End {
        person: "The forge turned down what I asked of it.".into(),
        next: format!(
            "An operator reads the forge's own words with `hyla explain` and changes what they name. {AGAIN}"
        ),
        ..failed(Failure::ForgeDenied, chain)
    }
}

/// The end of a job in a repository whose own settings make no sense. `key` is empty where no single one is to blame.
pub fn repository_file(key: &str, reason: &str, detail: &str) -> End {
    let place = match key {
        "" => "this repository's `.hyla.toml`".to_owned(),
        key => format!("{} in this repository's `.hyla.toml`", path_span(key)),
    };
    End {
        person: format!("I could not understand {place}, so I left the issue alone."),
        next: format!(
            "What is wrong: {}. Correct it on the default branch, then put the label on again.",
            path_span(reason)
        ),
        ..refused(Rule::RepositoryFile, detail)
    }
}

/// The end of a job whose session left nothing to publish.
pub fn no_fix(why: NoFix) -> End {
    let (person, next) = match why {
        NoFix::NoChange => (
            "I looked, and ended without a change to propose.",
            "A more exact description, a failing test or the file's name in the issue often helps.",
        ),
        NoFix::BrokenCall => (
            "My model broke off in the middle of a tool call before I had a change to propose.",
            "Another try often gets further.",
        ),
        NoFix::Repeated => (
            "I went round in circles, so I stopped before I had a change to propose.",
            "A more exact description, or the name of the file where the problem is, often gets me further.",
        ),
        NoFix::Budget => (
            "I used up my budget for this issue before I had a change to propose.",
            "A smaller issue often works: split this one, or name the file where the problem is.",
        ),
    };
    End {
        outcome: Outcome::NoFix(why),
        person: person.into(),
        operator: format!("the session left no change ({})", name_of(&why)),
        next: format!("{next} {AGAIN}"),
    }
}

/// The end of a job that a rule of the gate stopped.
pub fn refused_patch(refusal: &Refusal) -> End {
    let place = match &refusal.path {
        Some(path) => format!(" ({})", path_span(path)),
        None => String::new(),
    };
    let (what, next) = rule_words(refusal.rule);
    End {
        outcome: Outcome::Refused(refusal.rule),
        person: format!("{what}{place}, so I opened no draft."),
        operator: format!(
            "the gate refused the patch by rule `{}`: {}",
            name_of(&refusal.rule),
            refusal.detail
        ),
        next: format!("{next} The patch is kept for the operator, next to the job's transcript."),
    }
}

/// The end of a job that a rule stopped before or after the work. `detail` is for the operator.
pub fn refused(rule: Rule, detail: &str) -> End {
    let (person, next) = rule_words(rule);
    End {
        outcome: Outcome::Refused(rule),
        person: person.into(),
        operator: format!("refused by rule `{}`: {detail}", name_of(&rule)),
        next: next.into(),
    }
}

/// The end of a job that something broke. `chain` is for the operator: the error with its causes.
pub fn failed(failure: Failure, chain: String) -> End {
    let (person, next) = failure_words(failure);
    End {
        outcome: Outcome::Failed(failure),
        person: person.into(),
        operator: chain,
        next: format!("{next} {AGAIN}"),
    }
}

/// The end of a job whose label was taken off while it ran.
pub fn cancelled() -> End {
    End {
        outcome: Outcome::Cancelled,
        person: "The label was taken off while I worked, so I stopped and opened no draft.".into(),
        operator: "the label was removed before the draft was opened".into(),
        next: "To ask again, put the label on; where it is on already, take it off and put it back on.".into(),
    }
}

/// What everybody must know who sees something that was made where commands were not kept in as they should be.
pub fn caution(confinement: Confinement) -> Option<&'static str> {
    match confinement {
        Confinement::Sealed => None,
        Confinement::Degraded => Some(
            "This was made in a degraded sandbox: commands had no network and could open hardly any file of the machine, but fewer walls than usual kept them in.",
        ),
        Confinement::None => Some(
            "This was made without a sandbox: the model's commands could do all that my own user can. Please look at it with that in mind.",
        ),
    }
}

/// What an operator must see wherever he looks, of commands that are not kept in as they should be.
pub fn banner(confinement: Confinement) -> Option<&'static str> {
    match confinement {
        Confinement::Sealed => None,
        Confinement::Degraded => Some(
            "DEGRADED SANDBOX: commands are kept in by fewer walls than bubblewrap's; `hyla doctor` lists what is missing",
        ),
        Confinement::None => Some(
            "NO SANDBOX: a model's commands can do all that this user can, and read its secrets",
        ),
    }
}

/// One sentence for the status comment while a stage runs.
pub(crate) fn stage_words(
    stage: crate::job::Stage,
    base: Option<&CommitId>,
    confinement: Confinement,
) -> String {
    use crate::job::Stage;
    let at = base.map(|base| format!(" at `{}`", base.short())).unwrap_or_default();
    match stage {
        Stage::Ask => "I am reading the issue.".into(),
        Stage::Checkout => "I am fetching the repository.".into(),
        Stage::Session => {
            let place = match confinement {
                Confinement::Sealed => "in a sealed sandbox",
                Confinement::Degraded => "in a degraded sandbox",
                Confinement::None => "without a sandbox",
            };
            format!("I am working on it {place}, on the code{at}.")
        }
        Stage::Gate => "I am checking what I changed.".into(),
        Stage::Evidence => format!("I am running the tests, with and without my change{at}."),
        Stage::Publish => "I am opening the draft.".into(),
    }
}
