//! Each stage's error, judged: what people are told, what the operator reads, and whether it is tried again.

use std::error::Error as StdError;
use std::time::Duration;

use engine::{GenerateError, Refused};

use crate::job::{Failure, Rule};
use crate::worker::Verdict;
use crate::workshop;
use crate::{checkout, evidence, forge, model, patch, publish, reply, sandbox, session, store};

/// An error and its causes in one line, for the operator.
pub fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}

/// The end of a job, for good or only if nothing is left to try.
fn halt(
    failure: Failure,
    error: &dyn StdError,
    may_retry: bool,
    after: Option<Duration>,
) -> Verdict {
    let why = chain(error);
    let end = reply::failed(failure, why.clone());
    match failure {
        // A token is renewed, or given back, by somebody else; what has been done until then must not be lost.
        Failure::ForgeAuth => Verdict::Unreachable { why, end, after },
        _ if !may_retry => Verdict::Ended(end),
        // It is down for everybody, and nothing here is to blame.
        Failure::ForgeDown => Verdict::Unreachable { why, end, after },
        Failure::ForgeDenied
        | Failure::ForgeMissing
        | Failure::RepositoryMoved
        | Failure::ForgeAnswer
        | Failure::BranchTaken
        | Failure::Git
        | Failure::ModelDown
        | Failure::ModelAnswer
        | Failure::Sandbox
        | Failure::Internal => Verdict::Retry { why, end, after },
    }
}

impl From<store::Error> for Verdict {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::LostLease { .. } => Self::LeaseLost,
            store::Error::Database { .. }
            | store::Error::Open { .. }
            | store::Error::Later { .. }
            | store::Error::Command { .. }
            | store::Error::Row { .. } => halt(Failure::Internal, &error, true, None),
        }
    }
}

impl From<forge::Error> for Verdict {
    fn from(error: forge::Error) -> Self {
        match &error {
            forge::Error::Auth { .. } => halt(Failure::ForgeAuth, &error, false, None),
            forge::Error::Denied { .. } => halt(Failure::ForgeDenied, &error, false, None),
            forge::Error::Declined { .. } => Self::Ended(reply::turned_down(chain(&error))),
            forge::Error::Missing { .. } => halt(Failure::ForgeMissing, &error, false, None),
            forge::Error::Moved { .. } => halt(Failure::RepositoryMoved, &error, false, None),
            forge::Error::Unwell { retry_after, .. } => {
                halt(Failure::ForgeDown, &error, true, *retry_after)
            }
            forge::Error::Unreachable { .. } => halt(Failure::ForgeDown, &error, true, None),
            // A proxy may have answered with a page of its own.
            forge::Error::Answer { .. } => halt(Failure::ForgeAnswer, &error, true, None),
        }
    }
}

impl From<checkout::Error> for Verdict {
    fn from(error: checkout::Error) -> Self {
        halt(error.failure(), &error, error.may_retry(), None)
    }
}

impl From<publish::Error> for Verdict {
    fn from(error: publish::Error) -> Self {
        if let publish::Error::Rejected { .. } = &error {
            return Self::Ended(reply::turned_down(chain(&error)));
        }
        if let publish::Error::BranchTaken { branch, .. } = &error {
            return Self::Ended(reply::branch_taken(branch, chain(&error)));
        }
        halt(error.failure(), &error, error.may_retry(), None)
    }
}

impl From<std::io::Error> for Verdict {
    fn from(error: std::io::Error) -> Self {
        halt(Failure::Internal, &error, true, None)
    }
}

impl From<workshop::Error> for Verdict {
    fn from(error: workshop::Error) -> Self {
        // What the agent left is nothing that broke.
        if let workshop::Error::Patch(too_many @ patch::Error::TooMany { .. }) = &error {
            return Self::Ended(reply::refused(Rule::TooLarge, &chain(too_many)));
        }
        // Nothing of this job broke, and a restarted service can do it.
        if let Some(sandbox::SetupError::Unsure) = error.sandbox() {
            tracing::error!(error = %chain(&error), "the job waits for a restart of the service");
            return Self::Parked;
        }
        let (failure, may_retry) = judge(&error);
        halt(failure, &error, may_retry, None)
    }
}

fn judge(error: &workshop::Error) -> (Failure, bool) {
    match error {
        workshop::Error::Checkout(error)
        | workshop::Error::Patch(patch::Error::Base(error))
        | workshop::Error::Evidence(evidence::Error::Checkout(error)) => {
            (error.failure(), error.may_retry())
        }
        workshop::Error::Patch(error) => (error.failure(), false),
        workshop::Error::Session(session::Error::Model(error)) => model_failure(error),
        workshop::Error::Session(session::Error::Sandbox(error))
        | workshop::Error::Sandbox(error)
        | workshop::Error::Evidence(evidence::Error::Sandbox(error)) => sandbox_failure(error),
        workshop::Error::Session(session::Error::Transcript(_))
        | workshop::Error::Setup(_)
        | workshop::Error::Disk { .. } => (Failure::Internal, true),
        workshop::Error::Evidence(error) => (error.failure(), false),
        workshop::Error::Pattern(_) => (Failure::Internal, false),
    }
}

fn model_failure(error: &model::Error) -> (Failure, bool) {
    match error {
        model::Error::Unreachable { .. }
        | model::Error::Silent { .. }
        | model::Error::Slow { .. }
        | model::Error::Busy { .. } => (Failure::ModelDown, true),
        // The server may have been stopped in the middle of its answer.
        model::Error::Answer { .. } => (Failure::ModelAnswer, true),
        model::Error::Load { .. } => (Failure::ModelDown, false),
        model::Error::Local { source: GenerateError::Failed(_) } => (Failure::ModelAnswer, true),
        model::Error::Local {
            source: GenerateError::Refused(Refused::Busy { .. } | Refused::Closed),
        } => (Failure::ModelDown, true),
        model::Error::Local { source: GenerateError::Refused(_) } => (Failure::ModelAnswer, false),
        model::Error::ContextFull { .. }
        | model::Error::OtherModel { .. }
        | model::Error::WithoutV1 { .. }
        | model::Error::Refused { .. } => (Failure::ModelAnswer, false),
    }
}

/// A sandbox that does not hold is nothing to be tried again; one command that did not start may be.
fn sandbox_failure(error: &sandbox::SetupError) -> (Failure, bool) {
    let may_retry = matches!(error, sandbox::SetupError::Start { .. });
    (Failure::Sandbox, may_retry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::CommitId;

    #[test]
    fn what_a_forge_turns_down_is_not_called_a_missing_right() {
        let (call, message) = ("open a draft".to_owned(), "no".to_owned());
        let declined = [409, 413, 422].map(|status| {
            let (call, message) = (call.clone(), message.clone());
            Verdict::from(forge::Error::Declined { call, status, message })
        });
        let rejected = publish::Error::Rejected { branch: "b".into(), words: "a hook".into() };
        for verdict in declined.into_iter().chain([rejected.into()]) {
            let Verdict::Ended(end) = verdict else { panic!("{verdict}") };
            let told = format!("{} {}", end.person, end.next);
            assert!(!told.contains("right") && told.contains("`hyla explain`"), "{told}");
        }
        let denied = Verdict::from(forge::Error::Denied { call, message });
        let Verdict::Ended(end) = denied else { panic!("{denied}") };
        assert!(end.person.contains("a right or a token scope is missing"), "{}", end.person);
        let theirs = CommitId("1".repeat(40));
        let taken = Verdict::from(publish::Error::BranchTaken { branch: "hyla/x".into(), theirs });
        let Verdict::Ended(end) = taken else { panic!("{taken}") };
        assert!(end.person.starts_with("The branch `hyla/x` holds"), "{}", end.person);
    }
}
