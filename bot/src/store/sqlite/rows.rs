//! Rows of the database, read into what the bot knows of a job; and how its values are written.

use chrono::{DateTime, Utc};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::job::{CommitId, Job, JobId, RepoName, Subject};
use crate::store::{Error, Row};

pub(super) fn read(row: &SqliteRow) -> Result<Row, Error> {
    let database = failed("read a job");
    let id = JobId(row.try_get("id").map_err(&database)?);
    let wrong = |what: &str| Error::Row { job: id, reason: what.to_owned() };
    let text = |column: &str| -> Result<Option<String>, Error> {
        row.try_get(column).map_err(|_| wrong(&format!("`{column}` is not text")))
    };
    let integer = |column: &str| -> Result<Option<i64>, Error> {
        row.try_get(column).map_err(|_| wrong(&format!("`{column}` is no number")))
    };
    let needed = |column: &'static str| {
        integer(column)?.ok_or_else(|| wrong(&format!("`{column}` is missing")))
    };
    let time = |column: &'static str| {
        let time = DateTime::from_timestamp_micros(needed(column)?);
        time.ok_or_else(|| wrong(&format!("`{column}` is no time")))
    };
    let positive = |column: &'static str, value: i64| {
        u64::try_from(value).map_err(|_| wrong(&format!("`{column}` is negative")))
    };
    let state = text("state_json")?.unwrap_or_default();
    let ready = text("ready_json")?;
    let repo = RepoName {
        owner: text("owner")?.unwrap_or_default(),
        name: text("name")?.unwrap_or_default(),
    };
    let repo: RepoName = repo.to_string().parse().map_err(|reason: &str| wrong(reason))?;
    Ok(Row {
        job: Job {
            id,
            subject: Subject {
                forge: text("forge")?.unwrap_or_default(),
                repo,
                issue: positive("issue", needed("issue")?)?,
            },
            key: text("key")?,
            ask_number: integer("ask_number")?.and_then(|number| u32::try_from(number).ok()),
            asked_by: text("asked_by")?,
            attempt: u32::try_from(needed("attempt")?.max(0)).unwrap_or(u32::MAX),
            state: serde_json::from_str(&state).map_err(|_| wrong("`state_json` is no state"))?,
            comment: integer("comment")?,
            ready: ready
                .map(|ready| serde_json::from_str(&ready))
                .transpose()
                .map_err(|_| wrong("`ready_json` makes no sense"))?,
            pull: integer("pull")?.map(|pull| positive("pull", pull)).transpose()?,
            input: text("input_json")?
                .map(|input| serde_json::from_str(&input))
                .transpose()
                .map_err(|_| wrong("`input_json` makes no sense"))?,
            waiting_since: integer("waiting_since")?.and_then(DateTime::from_timestamp_micros),
            untold: text("end_json")?
                .map(|end| serde_json::from_str(&end))
                .transpose()
                .map_err(|_| wrong("`end_json` is no end"))?,
        },
        base: text("base_commit")?.map(CommitId),
        digest: text("input_digest")?,
        created_at: time("created_at")?,
        updated_at: time("updated_at")?,
        due_at: time("due_at")?,
        held_until: integer("lease_until")?.and_then(DateTime::from_timestamp_micros),
        last_error: text("last_error")?,
    })
}

pub(super) fn failed(action: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Database { action, source }
}

pub(super) fn micros(time: DateTime<Utc>) -> i64 {
    time.timestamp_micros()
}

/// Issue and pull request numbers come from the forge as 64-bit integers; SQLite's are signed.
pub(super) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("states hold only strings and numbers")
}
