//! The audit record, written in the transaction that does what it tells of.

use chrono::{DateTime, SecondsFormat, Utc};
use sqlx::sqlite::SqlitePool;
use sqlx::{Sqlite as Db, Transaction};

use super::rows::failed;
use crate::audit::{self, Event, Record};
use crate::job::{JobId, Subject};
use crate::store::{Error, Step};

/// Records that are read at once.
const PAGE: u32 = 1_000;

/// What a step is to the audit record, where it is anything.
fn told(step: &Step) -> Option<Event> {
    Some(match step.clone() {
        Step::Asked { key } => Event::Asked { key, by: None },
        Step::Identified { key, asked_by, .. } => Event::Asked { key, by: asked_by },
        Step::Halted { by } => Event::Halted { by },
        Step::Given { base, digest, model } => Event::Given { base, digest, model },
        Step::Spoke { bytes, sha256 } => Event::Spoke { bytes, sha256 },
        Step::Ready { branch, commit } => Event::Ready { branch, commit },
        Step::Drafted { pull } => Event::Drafted { pull },
        Step::Ended { end } => Event::Ended { outcome: end.outcome.to_string() },
        Step::Queued
        | Step::Claimed { .. }
        | Step::TakenOver { .. }
        | Step::Entered { .. }
        | Step::Retried { .. }
        | Step::Waits { .. }
        | Step::Owed { .. }
        | Step::Parked
        | Step::Dropped { .. }
        | Step::Joined { .. } => return None,
    })
}

/// Adds what a step tells of a job that is there.
pub(super) async fn step(
    transaction: &mut Transaction<'_, Db>,
    job: JobId,
    step: &Step,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let Some(event) = told(step) else { return Ok(()) };
    let (forge, owner, name, issue): (String, String, String, i64) =
        sqlx::query_as("SELECT forge, owner, name, issue FROM jobs WHERE id = ?")
            .bind(job.0)
            .fetch_one(&mut **transaction)
            .await
            .map_err(failed("read a job"))?;
    let about = format!("{forge}:{owner}/{name}#{issue}");
    add(transaction, (Some(about), Some(job)), event, now).await
}

/// Adds what happened on an issue without a job.
pub(super) async fn issue(
    transaction: &mut Transaction<'_, Db>,
    subject: &Subject,
    event: Event,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    add(transaction, (Some(subject.to_string()), None), event, now).await
}

/// Adds one record.
pub(super) async fn add(
    transaction: &mut Transaction<'_, Db>,
    (issue, job): (Option<String>, Option<JobId>),
    event: Event,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let last: Option<(i64, String)> =
        sqlx::query_as("SELECT number, record FROM audit ORDER BY number DESC LIMIT 1")
            .fetch_optional(&mut **transaction)
            .await
            .map_err(failed("read the end of the audit record"))?;
    let (number, previous) = match &last {
        Some((number, record)) => (number + 1, audit::digest(record.as_bytes())),
        None => (1, audit::START.to_owned()),
    };
    let record = Record {
        number: number.unsigned_abs(),
        previous,
        at: now.to_rfc3339_opts(SecondsFormat::Micros, true),
        issue,
        job: job.map(|job| job.0),
        event,
    };
    sqlx::query("INSERT INTO audit (number, record) VALUES (?, ?)")
        .bind(number)
        .bind(record.text())
        .execute(&mut **transaction)
        .await
        .map_err(failed("add to the audit record"))?;
    Ok(())
}

/// The records after a number, in their order, at most a page of them.
pub(super) async fn after(pool: &SqlitePool, number: u64) -> Result<Vec<String>, Error> {
    sqlx::query_scalar("SELECT record FROM audit WHERE number > ? ORDER BY number LIMIT ?")
        .bind(super::number(number))
        .bind(PAGE)
        .fetch_all(pool)
        .await
        .map_err(failed("read the audit record"))
}

/// The last record.
pub(super) async fn last(pool: &SqlitePool) -> Result<Option<String>, Error> {
    sqlx::query_scalar("SELECT record FROM audit ORDER BY number DESC LIMIT 1")
        .fetch_optional(pool)
        .await
        .map_err(failed("read the end of the audit record"))
}
