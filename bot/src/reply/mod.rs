//! Every sentence that the bot says to people: short, kind, and with what to do next. Pure: values in, text out.
//!
//! The model's words and the issue's words pass through `quiet` before they stand in any of it, so that they ping
//! nobody and close nothing.

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

pub use comment::{Status, marker, status};
pub use manners::declined;
pub use pull::{Draft, body, commit_message, local_message, title};
pub(crate) use quiet::is_invisible;
pub use quiet::{code_span, fence, line, lines, path_span, plain};

use crate::forge::Pull;
use crate::gate::Refusal;
use crate::job::{CommitId, End, Failure, NoFix, Outcome, Rule, name_of};

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
    let asking = [
        "take the label off and put it back on",
        "put the label on again",
        "put the label back on",
    ];
    asking.iter().fold(end.next.clone(), |next, words| next.replace(words, "run the command again"))
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
    End {
        outcome: Outcome::Refused(refusal.rule),
        person: format!("{}{place}, so I opened no draft.", patch_rule(refusal.rule)),
        operator: format!(
            "the gate refused the patch by rule `{}`: {}",
            name_of(&refusal.rule),
            refusal.detail
        ),
        next: format!("The patch is kept for the operator, next to the job's transcript. {AGAIN}"),
    }
}

/// The end of a job that a rule stopped before or after the work. `detail` is for the operator.
pub fn refused(rule: Rule, detail: &str) -> End {
    let (person, next) = ask_rule(rule);
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
        next: "To ask again, put the label back on.".into(),
    }
}

fn ask_rule(rule: Rule) -> (&'static str, &'static str) {
    match rule {
        Rule::RepositoryNotAllowed => (
            "I am not set up for this repository.",
            "An operator can add it to `repositories` in my configuration.",
        ),
        Rule::RepositoryDisabled => (
            "This repository's `.hyla.toml` switches me off, so I left the issue alone.",
            "Take `enabled = false` out of it on the default branch, then put the label on again.",
        ),
        Rule::RepositoryFile => (
            "I could not understand this repository's `.hyla.toml`, so I left the issue alone.",
            "Correct it on the default branch (the operator's log names the key), then put the label on again.",
        ),
        Rule::RepositoryArchived => (
            "This repository is archived, so no draft can be opened here.",
            "An owner can take it out of the archive; then put the label on again.",
        ),
        Rule::PullsDisabled => (
            "Pull requests are switched off in this repository, so no draft can be opened here.",
            "An owner can switch them on in its settings; then put the label on again.",
        ),
        Rule::IssueClosed => (
            "The issue was closed while I worked, so I opened no draft.",
            "To ask again, open the issue, take the label off and put it back on.",
        ),
        Rule::IssueLocked => (
            "This issue is locked, so I left it alone.",
            "Unlock it, then take the label off and put it back on.",
        ),
        Rule::PullRequest => (
            "I work on issues, and this is a pull request, so I left it alone.",
            "Open an issue that says what you want, and ask me there.",
        ),
        Rule::IssueChanged => (
            "The issue was edited after the label was put on, and I work only on what was asked for, so I left it alone.",
            "Please read it once more; if it says what you want, take the label off and put it back on.",
        ),
        Rule::AdderCannotWrite => (
            "I work for people with write access, and whoever put the label on has none.",
            "Someone with write access can take the label off and put it back on.",
        ),
        Rule::AdderIsBot => (
            "Another bot put the label on, and I work for people, so I left the issue alone.",
            "Someone with write access can take the label off and put it back on.",
        ),
        Rule::IssueAssigned => (
            "This issue is assigned to somebody else, so I left it alone.",
            "If I am to work on it, assign me too or take the assignment off; then take the label off and put it back on.",
        ),
        Rule::PullLinked => (
            "A pull request that would close this issue is open already, so I left it alone.",
            "If it is of no more use, close it; then take the label off and put it back on.",
        ),
        Rule::AdderUnknown => (
            "I could not find out who put the label on, so I left the issue alone.",
            "Someone with write access can take the label off and put it back on.",
        ),
        Rule::ProtectedPath
        | Rule::Symlink
        | Rule::Submodule
        | Rule::FileMode
        | Rule::Binary
        | Rule::LfsPointer
        | Rule::TooLarge
        | Rule::LineEndings
        | Rule::Encoding
        | Rule::Secret
        | Rule::PathName => (patch_rule(rule), AGAIN),
    }
}

fn patch_rule(rule: Rule) -> &'static str {
    match rule {
        Rule::ProtectedPath => "My change touched a protected file",
        Rule::Symlink => "My change made or moved a symbolic link that I may not make",
        Rule::Submodule => "My change touched a submodule",
        Rule::FileMode => "My change altered a file's mode",
        Rule::Binary => "My change held a binary file",
        Rule::LfsPointer => "My change broke a Git LFS pointer",
        Rule::TooLarge => "My change grew larger than a person can review",
        Rule::LineEndings => "My change rewrote every line ending of a file",
        Rule::Encoding => "My change altered how the characters of a file are written",
        Rule::Secret => "My change held something that looks like a secret",
        Rule::PathName => "My change used a file name that is not safe everywhere",
        Rule::RepositoryNotAllowed
        | Rule::RepositoryDisabled
        | Rule::RepositoryFile
        | Rule::RepositoryArchived
        | Rule::PullsDisabled
        | Rule::IssueClosed
        | Rule::IssueLocked
        | Rule::PullRequest
        | Rule::IssueChanged
        | Rule::AdderCannotWrite
        | Rule::AdderUnknown
        | Rule::AdderIsBot
        | Rule::IssueAssigned
        | Rule::PullLinked => ask_rule(rule).0,
    }
}

fn failure_words(failure: Failure) -> (&'static str, &'static str) {
    match failure {
        Failure::ForgeAuth => (
            "The forge did not accept my access token.",
            "An operator renews the token and checks it with `hyla doctor`.",
        ),
        Failure::ForgeDenied => (
            "The forge did not let me do my work here; a right or a token scope is missing.",
            "An operator gives my user write access and the scopes that the README lists; `hyla doctor` shows what is missing.",
        ),
        Failure::ForgeMissing => (
            "Something that I need was not there, or was hidden from me.",
            "Check that the issue, the repository and its default branch exist and that my user can see them.",
        ),
        Failure::RepositoryMoved => (
            "This repository has another name or owner than the one that I was set up for.",
            "An operator writes its present name in `repositories`, in my configuration.",
        ),
        Failure::ForgeDown => (
            "The forge did not answer me, several times over.",
            "The operator's log says which call failed; it may work as soon as the forge answers again.",
        ),
        Failure::ForgeAnswer => (
            "The forge gave me an answer that I do not understand.",
            "An operator finds the call in my log; a proxy in between or an unsupported version are the usual causes.",
        ),
        Failure::BranchTaken => (
            "A branch with the name that I need holds other commits, and I never overwrite the work of others.",
            "Delete or rename that branch.",
        ),
        Failure::Git => (
            "I could not fetch from the repository or push to it.",
            "An operator finds the reason in my log; branch protection and server hooks are the usual causes of a refused push.",
        ),
        Failure::ModelDown => (
            "The model's server did not answer, several times over.",
            "An operator starts it again; `hyla doctor` shows whether it answers.",
        ),
        Failure::ModelAnswer => (
            "The model's server refused my question, or its answer made no sense.",
            "An operator checks the model's name and settings; `hyla doctor` shows what the server says.",
        ),
        Failure::Sandbox => (
            "I found no safe way to run commands on my machine, so I did not start.",
            "An operator runs `hyla doctor`, which says what to change.",
        ),
        Failure::Internal => {
            ("Something went wrong inside me.", "The operator's log has the details.")
        }
    }
}

/// One sentence for the status comment while a stage runs.
pub(crate) fn stage_words(stage: crate::job::Stage, base: Option<&CommitId>) -> String {
    use crate::job::Stage;
    let at = base.map(|base| format!(" at `{}`", base.short())).unwrap_or_default();
    match stage {
        Stage::Ask => "I am reading the issue.".into(),
        Stage::Checkout => "I am fetching the repository.".into(),
        Stage::Session => format!("I am working on it in a sealed sandbox, on the code{at}."),
        Stage::Gate => "I am checking what I changed.".into(),
        Stage::Evidence => format!("I am running the tests, with and without my change{at}."),
        Stage::Publish => "I am opening the draft.".into(),
    }
}
