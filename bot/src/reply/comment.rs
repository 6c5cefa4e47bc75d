//! The one status comment of a job, edited in place.

use sha2::{Digest, Sha256};

use super::{caution, code_span, line, stage_words};
use crate::job::{self, Ask, CommitId, End, Outcome, Stage};
use crate::sandbox::Confinement;

/// What the status comment shows.
#[derive(Debug, Clone, Copy)]
pub enum Status<'a> {
    /// A stage runs.
    Working {
        /// Which.
        stage: Stage,
        /// The commit that the work is based on, once known.
        base: Option<&'a CommitId>,
    },
    /// Something is out of order, and the job is tried again.
    Waiting {
        /// The sentence for people of what went wrong.
        why: &'a str,
        /// Which attempt comes next.
        attempt: u32,
        /// How many there are at most.
        attempts: u32,
    },
    /// The forge is out of reach, and the job waits for it.
    Unreachable {
        /// The sentence for people of what went wrong.
        why: &'a str,
    },
    /// It ended.
    Ended(&'a End),
}

/// The hidden line by which the bot finds its own comment again. It holds a digest of the job's key, not the key.
pub fn marker(key: &str) -> String {
    let digest = hex::encode(Sha256::digest(key.as_bytes()));
    format!("<!-- hyla:status:{} -->", digest.get(..16).unwrap_or(&digest))
}

/// The whole comment. `asked_by` is a login, or none where an operator asked on the command line, or a sweep did.
pub fn status(
    key: &str,
    asked_by: Option<&str>,
    confinement: Confinement,
    status: Status<'_>,
) -> String {
    let (head, words) = match status {
        Status::Working { stage, base } => {
            let words = stage_words(stage, base, confinement);
            (progress(stage), format!("{words} I edit this comment as I go."))
        }
        Status::Waiting { why, attempt, attempts } => (
            "waiting".to_owned(),
            format!("{why} I try again by myself soon (attempt {attempt} of {attempts})."),
        ),
        Status::Unreachable { why } => {
            ("waiting".to_owned(), format!("{why} I go on by myself as soon as it does."))
        }
        Status::Ended(end) => {
            (headline(end.outcome).to_owned(), format!("{}\n\n{}", end.person, end.next))
        }
    };
    let asked = match (asked_by, job::ask_of(key)) {
        (Some(login), ask) => {
            let is_comment = matches!(ask, Some(Ask::Comment { .. }));
            let how = if is_comment { "a comment" } else { "the label" };
            format!("\n\n<sub>Asked by {} with {how}.</sub>", code_span(&line(login, 80)))
        }
        (None, Some(Ask::Sweep { name, .. })) => {
            format!("\n\n<sub>Found by the sweep {}.</sub>", code_span(&line(&name, 80)))
        }
        (None, _) => String::new(),
    };
    let caution = match caution(confinement) {
        Some(words) => format!("\n\n⚠️ {words}"),
        None => String::new(),
    };
    format!("{}\n🐸 **Hyla: {head}**\n\n{words}{caution}{asked}\n", marker(key))
}

fn progress(stage: Stage) -> String {
    let step = Stage::ALL.iter().position(|&each| each == stage).map_or(0, |at| at + 1);
    format!("working, step {step} of {}", Stage::ALL.len())
}

fn headline(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::DraftPr => "draft ready",
        Outcome::NoFix(_) => "no change",
        Outcome::Refused(_) => "not done",
        Outcome::Failed(_) => "could not finish",
        Outcome::Cancelled => "stopped",
    }
}
