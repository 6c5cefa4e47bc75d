//! Deliveries, and the looks at issues that they ask for. Each function is a part of a transaction of the caller's.

use chrono::{DateTime, Utc};
use sqlx::{Row as _, Sqlite as Db, SqlitePool, Transaction};

use super::rows::{failed, micros, number};
use super::{commands, history};
use crate::job::{JobId, Subject};
use crate::store::{Error, Kept, KeptDelivery, NewDelivery, Sighting, Step};

/// Sightings of one issue that are looked at: more than people put on and take off before anyone looks.
const SIGHTINGS: u32 = 1000;

/// The look at an issue that waits. The planner would rather walk all looks that have no key yet.
pub(super) const WAITING: &str = "
    SELECT id FROM jobs INDEXED BY jobs_waiting WHERE phase = 'queued' AND key IS NULL
      AND forge = ? AND owner = ? AND name = ? AND issue = ? ORDER BY id LIMIT 1";

/// Keeps one delivery and what it asks for.
pub(super) async fn keep(
    transaction: &mut Transaction<'_, Db>,
    delivery: &NewDelivery,
    now: DateTime<Utc>,
) -> Result<Kept, Error> {
    let action = "keep a delivery";
    let about = delivery.subject.as_ref().or(delivery.about.as_ref());
    let inserted = sqlx::query(
        "INSERT INTO deliveries (forge, id, event, payload, received_at, note, has_label, words_digest,
                                 owner, name, issue)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    )
    .bind(&delivery.forge)
    .bind(&delivery.id)
    .bind(&delivery.event)
    .bind(&delivery.payload)
    .bind(micros(now))
    .bind(&delivery.note)
    .bind(delivery.sighting.as_ref().map(|seen| seen.has_label))
    .bind(delivery.sighting.as_ref().map(|seen| &seen.words))
    .bind(about.map(|about| &about.repo.owner))
    .bind(about.map(|about| &about.repo.name))
    .bind(about.map(|about| number(about.issue)))
    .execute(&mut **transaction)
    .await
    .map_err(failed(action))?;
    if inserted.rows_affected() == 0 {
        return Ok(Kept::Repeated);
    }
    if let Some(command) = &delivery.command {
        let by = (delivery.forge.as_str(), delivery.id.as_str());
        return Ok(match commands::keep(transaction, by, command, now).await? {
            true => Kept::Ordered,
            false => Kept::Repeated,
        });
    }
    let Some(subject) = &delivery.subject else { return Ok(Kept::Ignored) };
    let kept = look(transaction, subject, delivery.due, now).await?;
    let (Kept::Queued(job) | Kept::Joined(job)) = kept else { return Ok(kept) };
    sqlx::query("UPDATE deliveries SET job = ? WHERE forge = ? AND id = ?")
        .bind(job.0)
        .bind(&delivery.forge)
        .bind(&delivery.id)
        .execute(&mut **transaction)
        .await
        .map_err(failed(action))?;
    Ok(kept)
}

/// A look at an issue: the one that waits already, or a further one.
pub(super) async fn look(
    transaction: &mut Transaction<'_, Db>,
    subject: &Subject,
    due: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Result<Kept, Error> {
    if let Some(job) = waiting(&mut **transaction, subject).await? {
        return Ok(Kept::Joined(job));
    }
    let job = insert(transaction, subject, None, due, now).await?;
    history::write(transaction, job, &Step::Queued, now).await?;
    Ok(Kept::Queued(job))
}

/// The look at an issue that waits already.
pub(super) async fn waiting<'a>(
    database: impl sqlx::Executor<'a, Database = Db>,
    subject: &Subject,
) -> Result<Option<JobId>, Error> {
    let waiting: Option<i64> = sqlx::query_scalar(WAITING)
        .bind(&subject.forge)
        .bind(&subject.repo.owner)
        .bind(&subject.repo.name)
        .bind(number(subject.issue))
        .fetch_optional(database)
        .await
        .map_err(failed("look for a waiting job"))?;
    Ok(waiting.map(JobId))
}

pub(super) async fn insert(
    transaction: &mut Transaction<'_, Db>,
    subject: &Subject,
    key: Option<(&str, u32)>,
    due: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Result<JobId, Error> {
    let id = sqlx::query_scalar(
        "INSERT INTO jobs (forge, owner, name, issue, key, ask_number, due_at, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8) RETURNING id",
    )
    .bind(&subject.forge)
    .bind(&subject.repo.owner)
    .bind(&subject.repo.name)
    .bind(number(subject.issue))
    .bind(key.map(|(key, _)| key))
    .bind(key.map(|(_, number)| number))
    .bind(micros(due))
    .bind(micros(now))
    .fetch_one(&mut **transaction)
    .await
    .map_err(failed("queue a job"))?;
    Ok(JobId(id))
}

/// How a job's deliveries showed its issue, oldest first.
pub(super) async fn sightings(pool: &SqlitePool, id: JobId) -> Result<Vec<Sighting>, Error> {
    let action = "read how an issue was seen";
    let mut rows = sqlx::query(
        "SELECT has_label, words_digest FROM deliveries
         WHERE job = ? AND has_label IS NOT NULL AND words_digest IS NOT NULL
         ORDER BY received_at DESC, rowid DESC LIMIT ?",
    )
    .bind(id.0)
    .bind(SIGHTINGS)
    .fetch_all(pool)
    .await
    .map_err(failed(action))?;
    rows.reverse();
    let sighting = |row: &sqlx::sqlite::SqliteRow| {
        Ok(Sighting {
            has_label: row.try_get("has_label").map_err(failed(action))?,
            words: row.try_get("words_digest").map_err(failed(action))?,
        })
    };
    rows.iter().map(sighting).collect()
}

/// The deliveries with an id; forges do not share theirs, but nothing forbids it.
pub(super) async fn deliveries(pool: &SqlitePool, id: &str) -> Result<Vec<KeptDelivery>, Error> {
    let action = "read a delivery";
    let rows =
        sqlx::query("SELECT forge, event, payload, received_at FROM deliveries WHERE id = ?")
            .bind(id)
            .fetch_all(pool)
            .await
            .map_err(failed(action))?;
    let delivery = |row: &sqlx::sqlite::SqliteRow| {
        Ok(KeptDelivery {
            forge: row.try_get("forge")?,
            event: row.try_get("event")?,
            payload: row.try_get("payload")?,
            at: DateTime::from_timestamp_micros(row.try_get("received_at")?).unwrap_or_default(),
        })
    };
    let deliveries: Result<Vec<KeptDelivery>, sqlx::Error> = rows.iter().map(delivery).collect();
    deliveries.map_err(failed(action))
}
