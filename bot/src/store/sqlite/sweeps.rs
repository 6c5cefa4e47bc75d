//! Sweeps, their jobs, and the fates of drafts.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{Row as _, Sqlite as Db, Transaction};

use super::rows::{failed, json, micros, read};
use crate::job::{Ask, JobId, RepoName, State, Subject};
use crate::store::{Drafted, Error, Fate, SweepState, Swept};

/// A sweep's instant, since when it follows its schedule, whether it is over, since when and why it is paused, and when it
/// was resumed.
type Stand = (i64, Option<i64>, bool, Option<i64>, Option<String>, Option<i64>);

pub(super) async fn state(pool: &SqlitePool, name: &str) -> Result<Option<SweepState>, Error> {
    let action = "read where a sweep stands";
    let row: Option<Stand> = sqlx::query_as(
        "SELECT instant, since, is_over, paused_at, paused_why, resumed_at FROM sweeps WHERE name = ?",
    )
    .bind(name)
    .fetch_optional(pool)
    .await
    .map_err(failed(action))?;
    Ok(row.map(|(instant, since, is_over, paused_at, why, resumed_at)| SweepState {
        instant: time(instant),
        since: time(since.unwrap_or(instant).max(instant)),
        is_over,
        paused: paused_at.map(|at| (time(at), why.unwrap_or_default())),
        resumed_at: resumed_at.map(time),
    }))
}

/// Notes that a sweep works on an instant, or that it was first seen then. False where it has come as far already.
pub(super) async fn begin(
    pool: &SqlitePool,
    name: &str,
    instant: DateTime<Utc>,
    is_over: bool,
) -> Result<bool, Error> {
    let done = sqlx::query(
        "INSERT INTO sweeps (name, instant, is_over) VALUES (?1, ?2, ?3)
         ON CONFLICT (name) DO UPDATE SET instant = ?2, is_over = ?3 WHERE instant < ?2",
    )
    .bind(name)
    .bind(micros(instant))
    .bind(is_over)
    .execute(pool)
    .await
    .map_err(failed("begin a sweep"))?;
    Ok(done.rows_affected() == 1)
}

/// Has a sweep that is known follow a schedule.
pub(super) async fn follow(
    pool: &SqlitePool,
    name: &str,
    schedule: &str,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    sqlx::query(
        "UPDATE sweeps SET since = iif(schedule IS NULL, since, ?3), schedule = ?2
         WHERE name = ?1 AND schedule IS NOT ?2",
    )
    .bind(name)
    .bind(schedule)
    .bind(micros(now))
    .execute(pool)
    .await
    .map_err(failed("note the schedule of a sweep"))?;
    Ok(())
}

pub(super) async fn finish(
    pool: &SqlitePool,
    name: &str,
    instant: DateTime<Utc>,
) -> Result<(), Error> {
    sqlx::query("UPDATE sweeps SET is_over = 1 WHERE name = ? AND instant = ?")
        .bind(name)
        .bind(micros(instant))
        .execute(pool)
        .await
        .map_err(failed("end a sweep"))?;
    Ok(())
}

/// Pauses a sweep. False where it is paused already.
pub(super) async fn pause(
    connection: &mut sqlx::SqliteConnection,
    name: &str,
    why: &str,
    now: DateTime<Utc>,
) -> Result<bool, Error> {
    let done = sqlx::query(
        "UPDATE sweeps SET paused_at = ?, paused_why = ? WHERE name = ? AND paused_at IS NULL",
    )
    .bind(micros(now))
    .bind(why)
    .bind(name)
    .execute(connection)
    .await
    .map_err(failed("pause a sweep"))?;
    Ok(done.rows_affected() == 1)
}

/// Ends a sweep's pause. False where it is not paused.
pub(super) async fn resume(
    connection: &mut sqlx::SqliteConnection,
    name: &str,
    now: DateTime<Utc>,
) -> Result<bool, Error> {
    let done = sqlx::query(
        "UPDATE sweeps SET paused_at = NULL, paused_why = NULL, resumed_at = ?
         WHERE name = ? AND paused_at IS NOT NULL",
    )
    .bind(micros(now))
    .bind(name)
    .execute(connection)
    .await
    .map_err(failed("resume a sweep"))?;
    Ok(done.rows_affected() == 1)
}

/// The jobs of a sweep that were queued since an instant, the oldest first.
pub(super) async fn jobs(
    connection: &mut sqlx::SqliteConnection,
    name: &str,
    since: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Result<Vec<Swept>, Error> {
    let action = "read the jobs of a sweep";
    let rows = sqlx::query(
        "SELECT jobs.*, (SELECT min(steps.at) FROM steps WHERE steps.job = jobs.id
             AND json_extract(steps.step_json, '$.step') IN ('claimed', 'taken_over')) AS taken_at
         FROM jobs WHERE created_at >= ? AND key LIKE ? ORDER BY id",
    )
    .bind(micros(since))
    // A sweep's name has no letter that means something here.
    .bind(format!("%@sweep:{name}:%"))
    .fetch_all(connection)
    .await
    .map_err(failed(action))?;
    let mut found = Vec::new();
    for row in &rows {
        let taken: Option<i64> = row.try_get("taken_at").map_err(failed(action))?;
        let row = read(row)?;
        let Some(Ask::Sweep { at, .. }) = row.job.ask() else { continue };
        let has_ended = matches!(row.job.state, State::Ended { .. });
        let until = if has_ended { row.updated_at } else { now };
        let took = taken
            .map_or(Duration::ZERO, |taken| (until - time(taken)).to_std().unwrap_or_default());
        found.push(Swept {
            job: row.job.id,
            subject: row.job.subject,
            instant: DateTime::from_timestamp(at, 0).unwrap_or_default(),
            queued_at: row.created_at,
            has_ended,
            took,
        });
    }
    Ok(found)
}

/// Whether any job has ever had a key on an issue.
pub(super) async fn was_asked(
    transaction: &mut Transaction<'_, Db>,
    subject: &Subject,
) -> Result<bool, Error> {
    let Subject { forge, repo, issue } = subject;
    let found: Option<i64> = sqlx::query_scalar(
        "SELECT 1 FROM jobs WHERE forge = ? AND owner = ? COLLATE NOCASE AND name = ? COLLATE NOCASE
             AND issue = ? AND key IS NOT NULL LIMIT 1",
    )
    .bind(forge)
    .bind(&repo.owner)
    .bind(&repo.name)
    .bind(i64::try_from(*issue).unwrap_or(i64::MAX))
    .fetch_optional(&mut **transaction)
    .await
    .map_err(failed("look for earlier jobs"))?;
    Ok(found.is_some())
}

/// How many drafts of a repository are open or may yet come of a job that has not ended.
pub(super) async fn pending(
    connection: &mut sqlx::SqliteConnection,
    forge: &str,
    repo: &RepoName,
) -> Result<usize, Error> {
    let n: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM jobs LEFT JOIN fates ON fates.job = jobs.id
         WHERE forge = ? AND owner = ? COLLATE NOCASE AND name = ? COLLATE NOCASE
           AND ((phase <> 'ended' AND key IS NOT NULL) OR (pull IS NOT NULL AND fates.job IS NULL))",
    )
    .bind(forge)
    .bind(&repo.owner)
    .bind(&repo.name)
    .fetch_one(connection)
    .await
    .map_err(failed("count the drafts of a repository"))?;
    Ok(usize::try_from(n).unwrap_or_default())
}

/// The issues of a forge that have ever been asked about.
pub(super) async fn asked(pool: &SqlitePool, forge: &str) -> Result<Vec<Subject>, Error> {
    let rows: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT DISTINCT owner, name, issue FROM jobs WHERE forge = ? AND key IS NOT NULL",
    )
    .bind(forge)
    .fetch_all(pool)
    .await
    .map_err(failed("read which issues were asked about"))?;
    let subjects = rows.into_iter().filter_map(|(owner, name, issue)| {
        let repo = format!("{owner}/{name}").parse().ok()?;
        Some(Subject { forge: forge.to_owned(), repo, issue: u64::try_from(issue).ok()? })
    });
    Ok(subjects.collect())
}

/// Drafts with what became of them, the newest first.
pub(super) async fn drafts(
    pool: &SqlitePool,
    open_only: bool,
    limit: u32,
) -> Result<Vec<Drafted>, Error> {
    let action = "read the drafts";
    let rows = sqlx::query(
        "SELECT jobs.*, fates.fate_json, fates.decided_at FROM jobs
         LEFT JOIN fates ON fates.job = jobs.id
         WHERE jobs.pull IS NOT NULL AND (?1 = 0 OR fates.job IS NULL)
         ORDER BY jobs.id DESC LIMIT ?2",
    )
    .bind(open_only)
    .bind(limit)
    .fetch_all(pool)
    .await
    .map_err(failed(action))?;
    rows.iter().map(drafted).collect()
}

fn drafted(row: &SqliteRow) -> Result<Drafted, Error> {
    let action = "read a draft";
    let fate: Option<String> = row.try_get("fate_json").map_err(failed(action))?;
    let decided: Option<i64> = row.try_get("decided_at").map_err(failed(action))?;
    let model = row.try_get("model").map_err(failed(action))?;
    let row = read(row)?;
    let wrong = |reason: &str| Error::Row { job: row.job.id, reason: reason.to_owned() };
    let fate: Option<Fate> = fate
        .map(|fate| serde_json::from_str(&fate))
        .transpose()
        .map_err(|_| wrong("`fate_json` is no fate"))?;
    let pull = row.job.pull.ok_or_else(|| wrong("`pull` is missing"))?;
    Ok(Drafted { pull, model, fate: fate.zip(decided.map(time)), row })
}

pub(super) async fn note_fate(
    pool: &SqlitePool,
    job: JobId,
    fate: &Fate,
    at: DateTime<Utc>,
) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO fates (job, fate_json, decided_at) VALUES (?, ?, ?) ON CONFLICT (job) DO NOTHING",
    )
    .bind(job.0)
    .bind(json(fate))
    .bind(micros(at))
    .execute(pool)
    .await
    .map_err(failed("note what became of a draft"))?;
    Ok(())
}

fn time(micros: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(micros).unwrap_or_default()
}
