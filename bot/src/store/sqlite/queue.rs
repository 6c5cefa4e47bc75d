//! Who gets which job when, and to which job an ask belongs. Each function is a part of a transaction of the caller's.

use chrono::{DateTime, Utc};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqlitePool, SqliteRow};
use sqlx::{Row as _, Sqlite as Db, Transaction};

use super::history;
use super::rows::{failed, json, micros, number, read};
use crate::job::{self, JobId, Stage, State, Subject};
use crate::store::{Error, Identified, Lease, Step, Tally};

/// The oldest due job: queued, or running under a lease that has run out. A second ask on an issue waits for the first
/// one to end. Each half walks an index in its order, so that a long queue costs no more than a short one.
const NEXT: &str = "
    SELECT id, phase FROM (
        SELECT * FROM (
            SELECT one.id, one.phase, one.due_at FROM jobs one
            WHERE one.phase = 'queued' AND one.due_at <= ?1 AND NOT EXISTS (
                SELECT 1 FROM jobs other
                WHERE other.phase = 'running' AND other.lease_until > ?1
                  AND other.forge = one.forge AND other.owner = one.owner
                  AND other.name = one.name AND other.issue = one.issue)
            ORDER BY one.due_at, one.id LIMIT 1)
        UNION ALL
        SELECT * FROM (
            SELECT one.id, one.phase, one.due_at FROM jobs one
            WHERE one.phase = 'running' AND one.lease_until <= ?1 AND NOT EXISTS (
                SELECT 1 FROM jobs other
                WHERE other.phase = 'running' AND other.lease_until > ?1
                  AND other.forge = one.forge AND other.owner = one.owner
                  AND other.name = one.name AND other.issue = one.issue)
            ORDER BY one.due_at, one.id LIMIT 1))
    ORDER BY due_at, id LIMIT 1";

/// Takes the oldest due job; as the database has it.
pub(super) async fn take(
    transaction: &mut Transaction<'_, Db>,
    worker: &str,
    now: DateTime<Utc>,
    until: DateTime<Utc>,
) -> Result<Option<SqliteRow>, Error> {
    let action = "claim a job";
    catch_up(transaction, now, until).await?;
    let next: Option<(i64, String)> = sqlx::query_as(NEXT)
        .bind(micros(now))
        .fetch_optional(&mut **transaction)
        .await
        .map_err(failed(action))?;
    let Some(next) = next else { return Ok(None) };
    give(transaction, next, worker, (now, until)).await.map(Some)
}

/// Gives a job that was found in a phase to a worker.
pub(super) async fn give(
    transaction: &mut Transaction<'_, Db>,
    (id, phase): (i64, String),
    worker: &str,
    (now, until): (DateTime<Utc>, DateTime<Utc>),
) -> Result<SqliteRow, Error> {
    let action = "claim a job";
    let row = sqlx::query(
        "UPDATE jobs SET phase = 'running', state_json = ?4, attempt = attempt + 1,
                lease_token = lower(hex(randomblob(16))), lease_until = ?3, updated_at = ?2
         WHERE id = ?1 RETURNING *",
    )
    .bind(id)
    .bind(micros(now))
    .bind(micros(until))
    .bind(json(&State::Running { stage: Stage::Ask }))
    .fetch_one(&mut **transaction)
    .await
    .map_err(failed(action))?;
    let attempt = row.try_get("attempt").map_err(failed(action))?;
    let worker = worker.to_owned();
    let step = match phase.as_str() {
        "running" => Step::TakenOver { attempt, worker },
        _ => Step::Claimed { attempt, worker },
    };
    history::write(transaction, JobId(id), &step, now).await?;
    Ok(row)
}

/// Puts right what a clock that was set back has left in the future. No lease holds for longer than a new one would:
/// that of a dead worker runs out, and a living one renews its own. A wait that was begun later than now begins now.
async fn catch_up(
    transaction: &mut Transaction<'_, Db>,
    now: DateTime<Utc>,
    until: DateTime<Utc>,
) -> Result<(), Error> {
    let action = "put the clock's jump right";
    sqlx::query("UPDATE jobs SET lease_until = ?1 WHERE phase = 'running' AND lease_until > ?1")
        .bind(micros(until))
        .execute(&mut **transaction)
        .await
        .map_err(failed(action))?;
    sqlx::query(
        "UPDATE jobs SET due_at = ?1 + max(0, due_at - updated_at), updated_at = ?1
         WHERE phase = 'queued' AND due_at > ?1 AND updated_at > ?1",
    )
    .bind(micros(now))
    .execute(&mut **transaction)
    .await
    .map_err(failed(action))?;
    Ok(())
}

/// What waits, by one walk over an index.
const WAITING: &str = "
    SELECT count(*), count(*) FILTER (WHERE due_at <= ?1), min(due_at) FILTER (WHERE due_at <= ?1)
    FROM jobs WHERE phase = 'queued'";

/// The jobs that have not ended.
pub(super) async fn tally(pool: &SqlitePool, now: DateTime<Utc>) -> Result<Tally, Error> {
    let action = "count the jobs";
    let (n_queued, n_due, oldest): (i64, i64, Option<i64>) =
        sqlx::query_as(WAITING).bind(micros(now)).fetch_one(pool).await.map_err(failed(action))?;
    let states: Vec<String> =
        sqlx::query_scalar("SELECT state_json FROM jobs WHERE phase = 'running'")
            .fetch_all(pool)
            .await
            .map_err(failed(action))?;
    let running = states.iter().filter_map(|state| match serde_json::from_str(state) {
        Ok(State::Running { stage }) => Some(stage),
        Ok(State::Queued | State::Ended { .. }) | Err(_) => None,
    });
    Ok(Tally {
        n_queued: n_queued.unsigned_abs(),
        n_due: n_due.unsigned_abs(),
        oldest_due: oldest.and_then(DateTime::from_timestamp_micros),
        running: running.collect(),
    })
}

/// Gives a job its key, or removes it where another job has it.
pub(super) async fn identify(
    transaction: &mut Transaction<'_, Db>,
    lease: &Lease,
    key: &str,
    asked_by: Option<&str>,
    now: DateTime<Utc>,
) -> Result<Identified, Error> {
    let action = "give a job its key";
    let job = read(&held(transaction, lease, action).await?)?.job;
    if let (Some(own), Some(ask_number)) = (&job.key, job.ask_number)
        && own == key
    {
        return Ok(Identified::Mine { ask_number });
    }
    if let Some(other) = owner_of(transaction, &job.subject, key).await? {
        let told = sqlx::query("UPDATE deliveries SET job = ? WHERE job = ?").bind(other.0);
        remove(transaction, lease, action, told, &Step::Joined { job: other }, now).await?;
        return Ok(Identified::Other(other));
    }
    let ask_number = next_ask_number(transaction, &job.subject).await?;
    let identified = sqlx::query(
        "UPDATE jobs SET key = ?, ask_number = ?, asked_by = ?, updated_at = ?,
                end_json = NULL, waiting_since = NULL WHERE id = ?",
    );
    identified
        .bind(key)
        .bind(ask_number)
        .bind(asked_by)
        .bind(micros(now))
        .bind(job.id.0)
        .execute(&mut **transaction)
        .await
        .map_err(failed(action))?;
    let asked_by = asked_by.map(str::to_owned);
    let step = Step::Identified { key: key.to_owned(), ask_number, asked_by };
    history::write(transaction, job.id, &step, now).await?;
    Ok(Identified::Mine { ask_number })
}

/// Removes a job whose issue asks for nothing.
pub(super) async fn drop_job(
    transaction: &mut Transaction<'_, Db>,
    lease: &Lease,
    why: &str,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let action = "remove a job that asks for nothing";
    held(transaction, lease, action).await?;
    let noted = sqlx::query("UPDATE deliveries SET note = ? WHERE job = ?").bind(why);
    let step = Step::Dropped { why: why.to_owned() };
    remove(transaction, lease, action, noted, &step, now).await
}

/// The job of a lease that is held.
pub(super) async fn held(
    transaction: &mut Transaction<'_, Db>,
    lease: &Lease,
    action: &'static str,
) -> Result<SqliteRow, Error> {
    sqlx::query("SELECT * FROM jobs WHERE id = ? AND lease_token = ? AND phase = 'running'")
        .bind(lease.job.0)
        .bind(&lease.token)
        .fetch_optional(&mut **transaction)
        .await
        .map_err(failed(action))?
        .ok_or(Error::LostLease { job: lease.job })
}

/// Removes a job whose lease is held. `told` tells its deliveries why; the job's number is the last thing that it lacks.
async fn remove(
    transaction: &mut Transaction<'_, Db>,
    lease: &Lease,
    action: &'static str,
    told: Query<'_, Db, SqliteArguments>,
    step: &Step,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    history::write(transaction, lease.job, step, now).await?;
    for query in [told, sqlx::query("DELETE FROM jobs WHERE id = ?")] {
        query.bind(lease.job.0).execute(&mut **transaction).await.map_err(failed(action))?;
    }
    Ok(())
}

/// The job of an ask, by its key. Ids of issues and events are the forge's own, so a repository that has been renamed
/// brings no ask along as a new one, unless the job broke by just that.
const OWNER: &str = "
    SELECT id FROM jobs WHERE key IN (?1, ?2)
    UNION ALL
    SELECT id FROM jobs WHERE key IS NOT NULL AND forge = ?4 AND issue = ?5 AND phase = 'ended'
      AND substr(key, -length(?3)) = ?3 AND coalesce(json_extract(state_json, '$.end.outcome.why'), '')
        NOT IN ('repository_moved', 'repository_not_allowed', 'forge_missing')
    LIMIT 1";

/// The job to which an ask on an issue belongs.
pub(super) async fn owner_of(
    transaction: &mut Transaction<'_, Db>,
    subject: &Subject,
    key: &str,
) -> Result<Option<JobId>, Error> {
    let job: Option<i64> = sqlx::query_scalar(OWNER)
        .bind(key)
        .bind(job::former(key))
        .bind(job::forge_wide(key))
        .bind(&subject.forge)
        .bind(number(subject.issue))
        .fetch_optional(&mut **transaction)
        .await
        .map_err(failed("look for a job by its key"))?;
    Ok(job.map(JobId))
}

pub(super) async fn next_ask_number(
    transaction: &mut Transaction<'_, Db>,
    subject: &Subject,
) -> Result<u32, Error> {
    sqlx::query_scalar(
        "SELECT coalesce(max(ask_number), 0) + 1 FROM jobs
         WHERE forge = ? AND owner = ? AND name = ? AND issue = ?",
    )
    .bind(&subject.forge)
    .bind(&subject.repo.owner)
    .bind(&subject.repo.name)
    .bind(number(subject.issue))
    .fetch_one(&mut **transaction)
    .await
    .map_err(failed("count the asks on an issue"))
}

#[cfg(test)]
mod tests {
    use sqlx::Row as _;

    use super::*;
    use crate::store::sqlite::Sqlite;

    /// The steps of a statement's plan.
    async fn plan(store: &Sqlite, statement: &str) -> Vec<String> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")))
            .fetch_all(&store.pool)
            .await
            .unwrap();
        rows.iter().map(|row| row.get("detail")).collect()
    }

    #[tokio::test]
    async fn a_long_queue_is_walked_by_its_indexes_and_never_sorted() {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&folder.path().join("hyla.db")).await.unwrap();
        let claim = plan(&store, NEXT).await;
        let has = |words: &str| claim.iter().any(|step| step == words);
        assert!(has("SEARCH one USING INDEX jobs_due (phase=? AND due_at<?)"), "{claim:#?}");
        let other =
            "SEARCH other USING INDEX jobs_running (forge=? AND owner=? AND name=? AND issue=?)";
        assert!(has(other), "{claim:#?}");
        assert!(!has("SCAN one"), "{claim:#?}");
        // Only the two rows that the halves found are sorted.
        let sorts = claim.iter().filter(|step| step.contains("TEMP B-TREE")).count();
        assert_eq!(sorts, 1, "{claim:#?}");
        let look = plan(&store, super::super::deliveries::WAITING).await;
        let expected =
            "SEARCH jobs USING INDEX jobs_waiting (forge=? AND owner=? AND name=? AND issue=?)";
        assert!(look.iter().any(|step| step.replace("COVERING ", "") == expected), "{look:#?}");
        assert!(look.iter().all(|step| !step.contains("TEMP B-TREE")), "{look:#?}");
        let waiting = plan(&store, WAITING).await;
        assert_eq!(waiting, ["SEARCH jobs USING COVERING INDEX jobs_due (phase=?)"]);
    }

    #[tokio::test]
    async fn a_thousand_queued_jobs_are_taken_in_their_order_and_each_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&folder.path().join("hyla.db")).await.unwrap();
        let mut transaction = store.begin("queue").await.unwrap();
        let at = |second| DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap();
        let forge = "main".to_owned();
        for issue in 1..=1000 {
            let subject =
                Subject { forge: forge.clone(), repo: "acme/app".parse().unwrap(), issue };
            let due = at(1000 - i64::try_from(issue).unwrap());
            super::super::deliveries::insert(&mut transaction, &subject, None, due, at(0))
                .await
                .unwrap();
        }
        transaction.commit().await.unwrap();
        let mut transaction = store.begin("claim").await.unwrap();
        let mut issues = Vec::new();
        while let Some(row) = take(&mut transaction, "w", at(2000), at(2060)).await.unwrap() {
            issues.push(row.get::<i64, _>("issue"));
        }
        assert_eq!(issues, (1..=1000).rev().collect::<Vec<_>>());
    }
}
