//! The fixed sentences: one pair, what happened and what to do next, for each rule and each failure. Pure data; names of
//! branches, files and people are put in beside them.

use crate::job::{Failure, Rule};

/// Where the gate's rule is about the way in which the model made its change.
const ANOTHER_TRY: &str = "If the issue says to leave that alone, another try may work: take the label off and put it back on.";

/// Why a rule stopped a job, and what to do next. Of a rule of the gate it is what the patch did, without a full stop.
pub(super) fn rule_words(rule: Rule) -> (&'static str, &'static str) {
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
            "Correct it on the default branch, then put the label on again.",
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
        | Rule::PathName => gate_words(rule),
    }
}

/// The same of a rule of the gate: what the patch did, without a full stop, and what to do about it.
fn gate_words(rule: Rule) -> (&'static str, &'static str) {
    match rule {
        Rule::ProtectedPath => (
            "My change touched a protected file",
            "If that file may be changed, the operator takes it out of `protected_paths`, which `.hyla.toml` may add to; then take the label off and put it back on.",
        ),
        Rule::Symlink => {
            ("My change made or moved a symbolic link that I may not make", ANOTHER_TRY)
        }
        Rule::Submodule => ("My change touched a submodule", ANOTHER_TRY),
        Rule::FileMode => ("My change altered a file's mode", ANOTHER_TRY),
        Rule::Binary => (
            "My change held a binary file",
            "If binary files are welcome, the operator sets `allow_binary`; then take the label off and put it back on.",
        ),
        Rule::LfsPointer => ("My change broke a Git LFS pointer", ANOTHER_TRY),
        Rule::TooLarge => (
            "My change grew larger than a person can review",
            "Please split this issue into smaller ones, and ask me there.",
        ),
        Rule::LineEndings => ("My change rewrote every line ending of a file", ANOTHER_TRY),
        Rule::Encoding => {
            ("My change altered how the characters of a file are written", ANOTHER_TRY)
        }
        Rule::Secret => (
            "My change held something that looks like a secret",
            "Please tell the operator: it may be a real one.",
        ),
        Rule::PathName => ("My change used a file name that is not safe everywhere", ANOTHER_TRY),
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
        | Rule::AdderIsBot
        | Rule::IssueAssigned
        | Rule::PullLinked
        | Rule::AdderUnknown => rule_words(rule),
    }
}

/// What broke, and what to do about it.
pub(super) fn failure_words(failure: Failure) -> (&'static str, &'static str) {
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
            "A branch that I need holds other commits, and I never overwrite the work of others.",
            "Delete or rename it; `hyla explain` names it.",
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
            "I found no safe way to run commands on my machine, so I went no further.",
            "An operator runs `hyla doctor`, which says what to change.",
        ),
        Failure::Internal => {
            ("Something went wrong inside me.", "The operator's log has the details.")
        }
    }
}
