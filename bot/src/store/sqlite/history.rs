//! The steps of jobs, as they are written and as they are read.

use chrono::{DateTime, Utc};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, Sqlite as Db, SqlitePool, Transaction};

use super::audit;
use super::rows::{failed, json, micros, number, read};
use crate::job::{JobId, Subject};
use crate::store::{Delivered, Error, Heard, History, Step, Stepped};

/// Steps of one job that are kept at most: its first ones and its newest.
const STEPS: i64 = 200;
/// How many of the first ones.
const FIRST_STEPS: i64 = 20;
/// Deliveries and steps of one issue that are read at most, the newest.
const READ: u32 = 500;
/// Jobs of one issue that are read at most, the newest.
const JOBS_READ: u32 = 50;

/// Writes one step of a job that is there, in the transaction that changes the job.
pub(super) async fn write(
    transaction: &mut Transaction<'_, Db>,
    job: JobId,
    step: &Step,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let action = "note a step";
    sqlx::query(
        "INSERT INTO steps (job, number, at, forge, owner, name, issue, step_json)
         SELECT id, (SELECT coalesce(max(number), 0) + 1 FROM steps WHERE job = ?1), ?2,
                forge, owner, name, issue, ?3
         FROM jobs WHERE id = ?1",
    )
    .bind(job.0)
    .bind(micros(now))
    .bind(json(step))
    .execute(&mut **transaction)
    .await
    .map_err(failed(action))?;
    sqlx::query(
        "DELETE FROM steps WHERE job = ?1 AND number > ?2
           AND number <= (SELECT max(number) FROM steps WHERE job = ?1) - ?3",
    )
    .bind(job.0)
    .bind(FIRST_STEPS)
    .bind(STEPS - FIRST_STEPS)
    .execute(&mut **transaction)
    .await
    .map_err(failed(action))?;
    audit::step(transaction, job, step, now).await
}

/// All that the ledger knows of one issue. Letters' case in the repository's name does not count, as on the forge.
pub(super) async fn of(pool: &SqlitePool, subject: &Subject) -> Result<History, Error> {
    let (deliveries, n_older_deliveries) = deliveries(pool, subject).await?;
    let (steps, n_older_steps) = steps(pool, subject).await?;
    let mut jobs = of_issue(
        "SELECT * FROM jobs WHERE forge = ? AND owner = ? COLLATE NOCASE AND name = ? COLLATE NOCASE
           AND issue = ? ORDER BY id DESC LIMIT ?",
        pool,
        subject,
        JOBS_READ,
    )
    .await?;
    jobs.reverse();
    Ok(History {
        subject: subject.clone(),
        deliveries,
        n_older_deliveries,
        steps,
        n_older_steps,
        jobs: jobs.iter().map(read).collect::<Result<_, _>>()?,
        heard: heard(pool, subject).await?,
    })
}

async fn deliveries(pool: &SqlitePool, subject: &Subject) -> Result<(Vec<Delivered>, u64), Error> {
    let mut rows = of_issue(
        "SELECT forge, id, event, received_at, job, note, has_label, count(*) OVER () AS n
         FROM deliveries WHERE forge = ? AND owner = ? COLLATE NOCASE AND name = ? COLLATE NOCASE
           AND issue = ? ORDER BY received_at DESC, rowid DESC LIMIT ?",
        pool,
        subject,
        READ,
    )
    .await?;
    rows.reverse();
    let n_older = older(&rows)?;
    let deliveries: Result<_, sqlx::Error> = rows.iter().map(delivered).collect();
    Ok((deliveries.map_err(failed("read the deliveries"))?, n_older))
}

fn delivered(row: &SqliteRow) -> Result<Delivered, sqlx::Error> {
    Ok(Delivered {
        forge: row.try_get("forge")?,
        id: row.try_get("id")?,
        event: row.try_get("event")?,
        at: DateTime::from_timestamp_micros(row.try_get("received_at")?).unwrap_or_default(),
        job: row.try_get::<Option<i64>, _>("job")?.map(JobId),
        note: row.try_get("note")?,
        has_label: row.try_get("has_label")?,
    })
}

async fn steps(pool: &SqlitePool, subject: &Subject) -> Result<(Vec<Stepped>, u64), Error> {
    let mut rows = of_issue(
        "SELECT job, number, at, step_json, count(*) OVER () AS n
         FROM steps WHERE forge = ? AND owner = ? COLLATE NOCASE AND name = ? COLLATE NOCASE
           AND issue = ? ORDER BY id DESC LIMIT ?",
        pool,
        subject,
        READ,
    )
    .await?;
    rows.reverse();
    let n_older = older(&rows)?;
    let mut steps = Vec::new();
    for row in &rows {
        let (job, step, number, at) = stepped(row).map_err(failed("read the steps"))?;
        let wrong = |_| Error::Row { job, reason: "`step_json` is no step".into() };
        let step = serde_json::from_str(&step).map_err(wrong)?;
        let number = u64::try_from(number).unwrap_or_default();
        steps.push(Stepped { job, number, at, step });
    }
    Ok((steps, n_older))
}

fn stepped(row: &SqliteRow) -> Result<(JobId, String, i64, DateTime<Utc>), sqlx::Error> {
    let at = DateTime::from_timestamp_micros(row.try_get("at")?).unwrap_or_default();
    Ok((JobId(row.try_get("job")?), row.try_get("step_json")?, row.try_get("number")?, at))
}

async fn of_issue(
    statement: &'static str,
    pool: &SqlitePool,
    subject: &Subject,
    limit: u32,
) -> Result<Vec<SqliteRow>, Error> {
    sqlx::query(statement)
        .bind(&subject.forge)
        .bind(&subject.repo.owner)
        .bind(&subject.repo.name)
        .bind(number(subject.issue))
        .bind(limit)
        .fetch_all(pool)
        .await
        .map_err(failed("read an issue's history"))
}

/// How many rows the limit left out; each row has the number of all.
fn older(rows: &[SqliteRow]) -> Result<u64, Error> {
    let Some(row) = rows.first() else { return Ok(0) };
    let n: i64 = row.try_get("n").map_err(failed("read an issue's history"))?;
    Ok(u64::try_from(n).unwrap_or_default().saturating_sub(rows.len() as u64))
}

async fn heard(pool: &SqlitePool, subject: &Subject) -> Result<Heard, Error> {
    let action = "read what a forge has sent";
    let (forge, repository): (Option<i64>, Option<i64>) = sqlx::query_as(
        "SELECT (SELECT max(received_at) FROM deliveries WHERE forge = ?1),
                (SELECT max(received_at) FROM deliveries WHERE forge = ?1 AND issue IS NOT NULL
                   AND owner = ?2 COLLATE NOCASE AND name = ?3 COLLATE NOCASE)",
    )
    .bind(&subject.forge)
    .bind(&subject.repo.owner)
    .bind(&subject.repo.name)
    .fetch_one(pool)
    .await
    .map_err(failed(action))?;
    let time = |micros: Option<i64>| micros.and_then(DateTime::from_timestamp_micros);
    Ok(Heard { forge: time(forge), repository: time(repository) })
}
