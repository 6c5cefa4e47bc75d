//! What `hyla jobs` shows: one line per job for people, or JSON with stable names for scripts.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::bail;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::job::{End, JobId, State};
use crate::owner;
use crate::reply;
use crate::store::Row;

/// The database in a data folder, if the service has made it. Nothing is made here.
///
/// # Errors
/// The folder is not there, is none, or cannot be looked into.
pub fn database(data: &Path) -> anyhow::Result<Option<PathBuf>> {
    let shown = data.display();
    let path = data.join("hyla.db");
    let seen = std::fs::metadata(data).and_then(|found| Ok((found, path.try_exists()?)));
    match seen {
        Ok((found, _)) if !found.is_dir() => {
            bail!("cannot use the data folder `{shown}`: it is no folder; set `data_dir` to one")
        }
        Ok((_, exists)) => Ok(exists.then_some(path)),
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "cannot find the data folder `{shown}`: `hyla serve` makes it; if the service runs, name its configuration with --config"
        ),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            bail!("cannot use the data folder `{shown}`: it is no folder; set `data_dir` to one")
        }
        Err(error) => {
            let next = owner::advice(data).unwrap_or("run this as the service's user".into());
            bail!("cannot look into the data folder `{shown}`: {error}; {next}")
        }
    }
}

/// Why a job has no transcript, and what to do. `row` is none where there is no such job.
pub fn no_transcript(job: JobId, row: Option<&Row>) -> String {
    let Some(row) = row else {
        return format!("there is no job {job}; `hyla jobs` lists the newest ones");
    };
    let subject = &row.job.subject;
    match &row.job.state {
        State::Queued => format!(
            "job {job} has no session yet: it waits for a worker; `hyla explain {subject}` says since when and why"
        ),
        State::Running { stage } => format!(
            "job {job} has no session yet: it is in the stage `{}`; ask again in a while, or see `hyla explain {subject}`",
            stage.name()
        ),
        State::Ended { end } => format!(
            "job {job} ended as {}, and no session of it is kept; `hyla explain {subject}` says what happened",
            end.outcome
        ),
    }
}

/// Columns at least for what comes next, however little is left.
const NARROWEST: usize = 40;

/// A table, newest first. What comes next goes on below where it does not fit `width` columns.
pub fn table(rows: &[Row], now: DateTime<Utc>, width: usize) -> String {
    let mut lines = vec![["JOB", "ISSUE", "STATE", "TRY", "AGE", "WHAT NEXT"].map(str::to_owned)];
    lines.extend(rows.iter().map(|row| {
        [
            row.job.id.to_string(),
            row.job.subject.to_string(),
            state(row),
            row.job.attempt.to_string(),
            age(now, row.created_at),
            reply::plain(&next(row, now)),
        ]
    }));
    let mut widths = [0; 5];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(widths) {
            text.push_str(&format!("{cell:width$}  "));
        }
        let indent = text.chars().count();
        let words = line.last().map_or("", String::as_str);
        for part in wrapped(words, width.saturating_sub(indent).max(NARROWEST)) {
            out.push_str(format!("{text}{part}").trim_end());
            out.push('\n');
            text = " ".repeat(indent);
        }
    }
    out
}

/// Lines of at most `width` characters, broken between words; one for no words.
fn wrapped(words: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.split_whitespace() {
        let last = lines.last_mut().expect("there is always one");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= width {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// The same as JSON: an array of objects.
pub fn json(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| {
            let end = ended(row).map(
                |end| json!({ "person": end.person, "operator": end.operator, "next": end.next }),
            );
            json!({
                "job": row.job.id,
                "forge": row.job.subject.forge,
                "repository": row.job.subject.repo.to_string(),
                "issue": row.job.subject.issue,
                "key": row.job.key,
                "state": state(row),
                "attempt": row.job.attempt,
                "pull": row.job.pull,
                "branch": row.job.ready.as_ref().map(|ready| &ready.branch),
                "base": row.base.as_ref().map(|base| &base.0),
                "digest": row.digest,
                "end": end,
                "last_error": row.last_error,
                "due_at": row.due_at.to_rfc3339(),
                "created_at": row.created_at.to_rfc3339(),
                "updated_at": row.updated_at.to_rfc3339(),
            })
        })
        .collect()
}

/// How it ended, whether or not people have been told.
fn ended(row: &Row) -> Option<&End> {
    match &row.job.state {
        State::Ended { end } => Some(end),
        State::Queued | State::Running { .. } => row.job.untold.as_ref(),
    }
}

/// A stable name of where it stands, such as `running(session)` or `draft_pr`.
pub(crate) fn state(row: &Row) -> String {
    match (ended(row), &row.job.state) {
        (Some(end), _) => end.outcome.to_string(),
        (None, State::Running { stage }) => format!("running({})", stage.name()),
        (None, State::Queued | State::Ended { .. }) => "queued".into(),
    }
}

fn next(row: &Row, now: DateTime<Utc>) -> String {
    match &row.job.state {
        State::Queued => {
            let due = if row.due_at > now {
                format!("due in {}", span(row.due_at - now))
            } else {
                "due".into()
            };
            let what = match &row.job.untold {
                Some(_) => format!("people have not been told; {due}"),
                None => due,
            };
            row.last_error.as_ref().map_or(what.clone(), |why| format!("{what}, after: {why}"))
        }
        State::Running { .. } => match row.held_until {
            Some(until) if until < now => "broken off; a worker takes it up again".into(),
            Some(_) | None => String::new(),
        },
        State::Ended { end } => match row.job.pull {
            Some(pull) => format!("pull request {pull}: {}", end.next),
            None => format!("{}. {}", end.operator, end.next),
        },
    }
}

fn age(now: DateTime<Utc>, since: DateTime<Utc>) -> String {
    span(now - since)
}

fn span(time: chrono::TimeDelta) -> String {
    match time.num_seconds().max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Failure, Stage};

    fn row(id: i64, state: State, due: i64) -> Row {
        let row = Row::example(id, state);
        let due_at = row.due_at + chrono::TimeDelta::seconds(due);
        Row { due_at, last_error: Some("the forge\u{1b}[31m is down".into()), ..row }
    }

    #[test]
    fn the_table_reads_alone_and_hides_no_control_characters() {
        let now = DateTime::from_timestamp(1_800_000_090, 0).unwrap();
        let rows = [
            row(12, State::Queued, 120),
            row(3, State::Running { stage: Stage::Session }, 0),
            Row {
                held_until: Some(now - chrono::TimeDelta::seconds(1)),
                ..row(2, State::Running { stage: Stage::Gate }, 0)
            },
            row(
                1,
                State::Ended {
                    end: reply::failed(Failure::ForgeDown, "cannot read issue 7".into()),
                },
                0,
            ),
        ];
        insta::assert_snapshot!(table(&rows, now, 100));
        assert_eq!(json(&rows)[3]["state"], "failed(forge_down)");
    }
}
