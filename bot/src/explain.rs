//! What `hyla explain` shows: whether an issue was worked on and why, what to do next, and what happened when, from the
//! ledger alone. Pure: a history in, words or JSON with stable names out. No forge is asked.

mod find;
mod people;
mod standing;
#[cfg(test)]
mod tests;
mod timeline;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use serde_json::{Value, json};

use crate::job::Subject;
use crate::reply;
use crate::store::History;

pub use find::find;
pub use people::{for_people, standing_for_people};
pub(crate) use standing::shown;
pub use timeline::Line;

/// An issue's story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The issue.
    pub subject: Subject,
    /// Where it stands.
    pub standing: Standing,
    /// What happened, oldest first.
    pub timeline: Vec<Line>,
}

/// Where an issue stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// A stable name: an end such as `draft_pr` or `refused(issue_closed)`, `running(STAGE)`, `queued`, `dropped`,
    /// `ignored`, `unheard` or `not_allowed`.
    pub state: String,
    /// Whether there is, or is to be, work on it: a job with an ask that was not refused.
    pub acted: bool,
    /// One sentence: whether the bot acted, and why.
    pub sentence: String,
    /// What to do next.
    pub next: String,
}

/// Explains an issue. `settings` are those of its forge.
pub fn explain(history: &History, settings: &config::Forge, now: DateTime<Utc>) -> Explanation {
    Explanation {
        subject: history.subject.clone(),
        standing: standing::of(history, settings, now),
        timeline: timeline::of(history),
    }
}

/// For a person at a terminal: nothing in it moves the cursor.
pub fn text(explanation: &Explanation) -> String {
    let standing = &explanation.standing;
    let mut out = format!("{}\n{}\n", standing.sentence, standing.next);
    if !explanation.timeline.is_empty() {
        out.push_str("\nWhat happened (UTC):\n");
    }
    for line in &explanation.timeline {
        let at = line.at.format("%Y-%m-%d %H:%M:%S");
        out.push_str(&format!("  {at}  {}\n", reply::plain(&line.text)));
    }
    reply::lines(&out)
}

/// The same for a script.
pub fn json(explanation: &Explanation) -> Value {
    #[derive(Serialize)]
    struct Event<'a> {
        at: String,
        kind: &'a str,
        job: Option<i64>,
        delivery: Option<&'a str>,
        text: &'a str,
    }
    let timeline = explanation.timeline.iter().map(|line| Event {
        at: line.at.to_rfc3339_opts(SecondsFormat::Micros, true),
        kind: line.kind,
        job: line.job.map(|job| job.0),
        delivery: line.delivery.as_deref(),
        text: &line.text,
    });
    let (subject, standing) = (&explanation.subject, &explanation.standing);
    json!({
        "forge": subject.forge,
        "repository": subject.repo.to_string(),
        "issue": subject.issue,
        "state": standing.state,
        "acted": standing.acted,
        "sentence": standing.sentence,
        "next": standing.next,
        "timeline": timeline.collect::<Vec<_>>(),
    })
}
