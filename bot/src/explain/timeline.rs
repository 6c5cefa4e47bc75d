//! What happened to an issue when, in one line each.

use chrono::{DateTime, Utc};

use crate::job::{self, Ask, JobId, State};
use crate::store::{Delivered, History, Row, Step, Stepped};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When.
    pub at: DateTime<Utc>,
    /// A stable name.
    pub kind: &'static str,
    /// The job, which may be gone.
    pub job: Option<JobId>,
    /// The delivery's id.
    pub delivery: Option<String>,
    /// In words.
    pub text: String,
}

/// All lines, oldest first.
pub(super) fn of(history: &History) -> Vec<Line> {
    let mut lines: Vec<Line> = history.deliveries.iter().map(delivery).collect();
    lines.extend(steps(&history.steps));
    let is_told = |row: &&Row| history.steps.iter().all(|stepped| stepped.job != row.job.id);
    lines.extend(history.jobs.iter().filter(is_told).flat_map(without_steps));
    lines.sort_by_key(|line| line.at);
    let n_older = history.n_older_deliveries + history.n_older_steps;
    if let (Some(first), 1..) = (lines.first(), n_older) {
        let text = format!("… {n_older} older deliveries and steps are not shown");
        let left_out = Line { kind: "left_out", job: None, delivery: None, text, ..first.clone() };
        lines.insert(0, left_out);
    }
    lines
}

fn delivery(seen: &Delivered) -> Line {
    let label = match seen.has_label {
        Some(true) => ", with the label on the issue",
        Some(false) => ", without the label on the issue",
        None => "",
    };
    let what = match (&seen.job, &seen.note) {
        (Some(job), _) => format!("it asked for a look (job {job})"),
        (None, Some(note)) => format!("nothing followed: {note}"),
        (None, None) => "nothing followed".into(),
    };
    Line {
        at: seen.at,
        kind: "delivery",
        job: seen.job,
        delivery: Some(seen.id.clone()),
        text: format!("delivery {} ({}) came{label}; {what}", seen.id, seen.event),
    }
}

fn steps(steps: &[Stepped]) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut last = std::collections::BTreeMap::new();
    for stepped in steps {
        let before = last.insert(stepped.job, stepped.number);
        let n_missing = before.map_or(0, |before| stepped.number.saturating_sub(before + 1));
        if n_missing > 0 {
            lines.push(Line {
                at: stepped.at,
                kind: "left_out",
                job: Some(stepped.job),
                delivery: None,
                text: format!("… {n_missing} steps of job {} were not kept", stepped.job),
            });
        }
        let (kind, text) = words(stepped);
        let (at, job) = (stepped.at, Some(stepped.job));
        lines.push(Line { at, kind, job, delivery: None, text });
    }
    lines
}

fn words(stepped: &Stepped) -> (&'static str, String) {
    let job = stepped.job;
    let time = |due: &DateTime<Utc>| due.format("%H:%M:%S").to_string();
    match &stepped.step {
        Step::Queued => ("queued", format!("job {job} is queued: the issue will be looked at")),
        Step::Asked { key } => {
            let who = match job::ask_of(key) {
                Some(Ask::Comment { .. }) => "a comment",
                Some(Ask::Sweep { .. }) => "a sweep",
                Some(Ask::Command { .. } | Ask::Label { .. } | Ask::Opened { .. }) | None => {
                    "an operator"
                }
            };
            ("asked", format!("job {job} is queued: {who} asked ({key})"))
        }
        Step::Claimed { attempt, worker } => {
            ("claimed", format!("job {job}: attempt {attempt} begins (worker {worker})"))
        }
        Step::TakenOver { attempt, worker } => {
            let why = "the worker before was not heard of any more";
            ("taken_over", format!("job {job}: attempt {attempt} begins (worker {worker}); {why}"))
        }
        Step::Identified { key, ask_number, asked_by } => {
            let who = asked_by.as_deref().unwrap_or("nobody who is known");
            let text =
                format!("job {job} answers ask {ask_number} on this issue, by {who} ({key})");
            ("identified", text)
        }
        Step::Entered { stage } => {
            ("entered", format!("job {job} enters the stage `{}`", stage.name()))
        }
        Step::Halted { by } => {
            ("halted", format!("job {job} is to be stopped: {by} asked for that"))
        }
        Step::Given { base, digest, model } => {
            let (base, digest) = (base.short(), digest.get(..12).unwrap_or(digest));
            let text = format!(
                "job {job} gives the model {model} the issue, at commit {base} (input {digest})"
            );
            ("given", text)
        }
        Step::Spoke { .. } => ("spoke", format!("job {job} has ended its session")),
        Step::Ready { branch, commit } => {
            let commit = commit.short();
            ("ready", format!("job {job} has commit {commit} ready for the branch `{branch}`"))
        }
        Step::Drafted { pull } => ("drafted", format!("job {job} has opened pull request {pull}")),
        Step::Retried { why, due } => {
            ("retried", format!("job {job} will be tried again at {}: {why}", time(due)))
        }
        Step::Waits { why, due } => {
            ("waits", format!("job {job} waits for the forge until {}: {why}", time(due)))
        }
        Step::Owed { end, why, due } => {
            let (outcome, due) = (&end.outcome, time(due));
            let text =
                format!("job {job} ended as {outcome}, and people will be told at {due}: {why}");
            ("owed", text)
        }
        Step::Parked => ("parked", format!("job {job} was parked: the service stopped")),
        Step::Ended { end } => {
            ("ended", format!("job {job} ended as {}: {}", end.outcome, end.operator))
        }
        Step::Dropped { why } => ("dropped", format!("job {job} came to nothing: {why}")),
        Step::Joined { job: other } => {
            let text = format!("job {job} came to nothing: job {other} answers this ask already");
            ("joined", text)
        }
    }
}

/// A job of an earlier version, of which only the beginning and the end are known.
fn without_steps(row: &Row) -> Vec<Line> {
    let id = row.job.id;
    let line = |at, kind, text| Line { at, kind, job: Some(id), delivery: None, text };
    let mut lines = vec![line(row.created_at, "queued", format!("job {id} is queued"))];
    if let State::Ended { end } = &row.job.state {
        let text = format!("job {id} ended as {}: {}", end.outcome, end.operator);
        lines.push(line(row.updated_at, "ended", text));
    }
    lines
}
