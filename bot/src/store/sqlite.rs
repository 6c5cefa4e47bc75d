//! The ledger in one SQLite file: WAL, every write durable before it is answered, one writer at a time.
//!
//! Every verb is one statement or one immediate transaction, so two processes on one machine may share the file. It is
//! not for a network file system.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sqlx::migrate::MigrateError;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow,
    SqliteSynchronous,
};
use sqlx::{Row as _, Sqlite as Db, Transaction};

use super::{Error, Identified, Kept, Lease, NewDelivery, Row, Sighting, Store};
use crate::input::Input;
use crate::job::{CommitId, End, Job, JobId, Ready, RepoName, Stage, State, Subject};
use crate::reply;

/// How long a writer waits for another one; transactions here take milliseconds.
const BUSY: Duration = Duration::from_secs(15);
/// Sightings of one issue that are looked at: more than people put on and take off before anyone looks.
const SIGHTINGS: u32 = 1000;
/// Readers besides the one writer.
const CONNECTIONS: u32 = 4;

/// The embedded store.
#[derive(Debug, Clone)]
pub struct Sqlite {
    pool: SqlitePool,
}

impl Sqlite {
    /// Opens the file, makes it if it is missing (readable by its owner alone), and brings its schema up to date.
    ///
    /// # Errors
    /// The file cannot be opened, or a later version of this program wrote it.
    pub async fn open(path: &Path) -> Result<Self, Error> {
        let open = |source| Error::Open { path: path.to_owned(), source };
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| open(sqlx::Error::Io(error)))?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            // What was accepted survives a power failure.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY);
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS)
            .connect_with(options)
            .await
            .map_err(open)?;
        match sqlx::migrate!("./migrations").run(&pool).await {
            Ok(()) => Ok(Self { pool }),
            Err(MigrateError::VersionMissing(version)) => {
                Err(Error::Later { path: path.to_owned(), version })
            }
            Err(error) => Err(open(sqlx::Error::Migrate(Box::new(error)))),
        }
    }

    async fn begin(&self, action: &'static str) -> Result<Transaction<'static, Db>, Error> {
        self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed(action))
    }

    /// Runs one statement that must touch exactly the leased job.
    async fn write(
        &self,
        lease: &Lease,
        action: &'static str,
        query: sqlx::query::Query<'_, Db, sqlx::sqlite::SqliteArguments>,
    ) -> Result<(), Error> {
        let done = query
            .bind(lease.job.0)
            .bind(&lease.token)
            .execute(&self.pool)
            .await
            .map_err(failed(action))?;
        if done.rows_affected() == 1 { Ok(()) } else { Err(Error::LostLease { job: lease.job }) }
    }

    /// The oldest due job, taken; as the database has it.
    async fn take(
        &self,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Result<Option<SqliteRow>, Error> {
        // A second ask on an issue waits for the first one to end.
        sqlx::query(
            "UPDATE jobs SET phase = 'running', state_json = ?3, attempt = attempt + 1,
                    lease_token = lower(hex(randomblob(16))), lease_until = ?2, updated_at = ?1
             WHERE id = (
                SELECT one.id FROM jobs one
                WHERE ((one.phase = 'queued' AND one.due_at <= ?1)
                        OR (one.phase = 'running' AND one.lease_until <= ?1))
                  AND NOT EXISTS (
                    SELECT 1 FROM jobs other
                    WHERE other.phase = 'running' AND other.lease_until > ?1 AND other.id <> one.id
                      AND other.forge = one.forge AND other.owner = one.owner
                      AND other.name = one.name AND other.issue = one.issue)
                ORDER BY one.due_at, one.id LIMIT 1)
             RETURNING *",
        )
        .bind(micros(now))
        .bind(micros(until))
        .bind(json(&State::Running { stage: Stage::Ask }))
        .fetch_optional(&self.pool)
        .await
        .map_err(failed("claim a job"))
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn accept(&self, delivery: &NewDelivery, now: DateTime<Utc>) -> Result<Kept, Error> {
        let action = "keep a delivery";
        let mut transaction = self.begin(action).await?;
        let inserted = sqlx::query(
            "INSERT INTO deliveries (forge, id, event, payload, received_at, note, has_label, words_digest)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(&delivery.forge)
        .bind(&delivery.id)
        .bind(&delivery.event)
        .bind(&delivery.payload)
        .bind(micros(now))
        .bind(&delivery.note)
        .bind(delivery.sighting.as_ref().map(|seen| seen.has_label))
        .bind(delivery.sighting.as_ref().map(|seen| &seen.words))
        .execute(&mut *transaction)
        .await
        .map_err(failed(action))?;
        if inserted.rows_affected() == 0 {
            return Ok(Kept::Repeated);
        }
        let kept = match &delivery.subject {
            None => Kept::Ignored,
            Some(subject) => {
                let kept = look(&mut transaction, subject, delivery.due, now).await?;
                let (Kept::Queued(job) | Kept::Joined(job)) = kept else { return Ok(kept) };
                sqlx::query("UPDATE deliveries SET job = ? WHERE forge = ? AND id = ?")
                    .bind(job.0)
                    .bind(&delivery.forge)
                    .bind(&delivery.id)
                    .execute(&mut *transaction)
                    .await
                    .map_err(failed(action))?;
                kept
            }
        };
        transaction.commit().await.map_err(failed(action))?;
        Ok(kept)
    }

    async fn ask(&self, subject: &Subject, key: &str, now: DateTime<Utc>) -> Result<JobId, Error> {
        let action = "queue a job";
        let mut transaction = self.begin(action).await?;
        let job = match owner_of(&mut transaction, key).await? {
            Some(job) => job,
            None => {
                let number = next_ask_number(&mut transaction, subject).await?;
                insert(&mut transaction, subject, Some((key, number)), now, now).await?
            }
        };
        transaction.commit().await.map_err(failed(action))?;
        Ok(job)
    }

    async fn claim(
        &self,
        worker: &str,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Result<Option<(Job, Lease)>, Error> {
        while let Some(row) = self.take(now, until).await? {
            let id = JobId(row.try_get("id").map_err(failed("claim a job"))?);
            let token: String = row.try_get("lease_token").map_err(failed("claim a job"))?;
            let lease = Lease { job: id, token };
            match read(&row) {
                Ok(row) => {
                    tracing::debug!(job.id = %id, worker, attempt = row.job.attempt, "claimed a job");
                    return Ok(Some((row.job, lease)));
                }
                // A row that nobody can read must not stand in the way of the others.
                Err(error) => {
                    tracing::error!(job.id = %id, %error, "ended a job whose row makes no sense");
                    let failure = crate::job::Failure::Internal;
                    self.end(&lease, &reply::failed(failure, error.to_string()), now).await?;
                }
            }
        }
        Ok(None)
    }

    async fn renew(&self, lease: &Lease, until: DateTime<Utc>) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET lease_until = ? WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        self.write(lease, "renew a lease", query.bind(micros(until))).await
    }

    async fn identify(
        &self,
        lease: &Lease,
        key: &str,
        asked_by: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Identified, Error> {
        let action = "give a job its key";
        let mut transaction = self.begin(action).await?;
        let row = sqlx::query(
            "SELECT * FROM jobs WHERE id = ? AND lease_token = ? AND phase = 'running'",
        )
        .bind(lease.job.0)
        .bind(&lease.token)
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failed(action))?
        .ok_or(Error::LostLease { job: lease.job })?;
        let job = read(&row)?.job;
        if let (Some(own), Some(ask_number)) = (&job.key, job.ask_number)
            && own == key
        {
            return Ok(Identified::Mine { ask_number });
        }
        if let Some(other) = owner_of(&mut transaction, key).await? {
            for statement in
                ["UPDATE deliveries SET job = ?2 WHERE job = ?1", "DELETE FROM jobs WHERE id = ?1"]
            {
                sqlx::query(statement)
                    .bind(job.id.0)
                    .bind(other.0)
                    .execute(&mut *transaction)
                    .await
                    .map_err(failed(action))?;
            }
            transaction.commit().await.map_err(failed(action))?;
            return Ok(Identified::Other(other));
        }
        let ask_number = next_ask_number(&mut transaction, &job.subject).await?;
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
            .execute(&mut *transaction)
            .await
            .map_err(failed(action))?;
        transaction.commit().await.map_err(failed(action))?;
        Ok(Identified::Mine { ask_number })
    }

    async fn drop_job(&self, lease: &Lease, why: &str) -> Result<(), Error> {
        let action = "remove a job that asks for nothing";
        let mut transaction = self.begin(action).await?;
        let noted = sqlx::query(
            "UPDATE deliveries SET note = ?3 WHERE job = ?1 AND EXISTS (
                SELECT 1 FROM jobs WHERE id = ?1 AND lease_token = ?2 AND phase = 'running')",
        );
        noted
            .bind(lease.job.0)
            .bind(&lease.token)
            .bind(why)
            .execute(&mut *transaction)
            .await
            .map_err(failed(action))?;
        let deleted =
            sqlx::query("DELETE FROM jobs WHERE id = ? AND lease_token = ? AND phase = 'running'")
                .bind(lease.job.0)
                .bind(&lease.token)
                .execute(&mut *transaction)
                .await
                .map_err(failed(action))?;
        if deleted.rows_affected() != 1 {
            return Err(Error::LostLease { job: lease.job });
        }
        transaction.commit().await.map_err(failed(action))
    }

    async fn enter(&self, lease: &Lease, stage: Stage, now: DateTime<Utc>) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET state_json = ?, updated_at = ?
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(json(&State::Running { stage })).bind(micros(now));
        self.write(lease, "note a stage", query).await
    }

    async fn note_comment(&self, lease: &Lease, comment: i64) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET comment = ? WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        self.write(lease, "note the status comment", query.bind(comment)).await
    }

    async fn note_ready(&self, lease: &Lease, ready: &Ready) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET ready_json = ? WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        self.write(lease, "note what is ready to be published", query.bind(json(ready))).await
    }

    async fn note_words(&self, lease: &Lease, words: &Input) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET input_json = ? WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        self.write(lease, "note what people say", query.bind(json(words))).await
    }

    async fn sightings(&self, id: JobId) -> Result<Vec<Sighting>, Error> {
        let action = "read how an issue was seen";
        let mut rows = sqlx::query(
            "SELECT has_label, words_digest FROM deliveries
             WHERE job = ? AND has_label IS NOT NULL AND words_digest IS NOT NULL
             ORDER BY received_at DESC, rowid DESC LIMIT ?",
        )
        .bind(id.0)
        .bind(SIGHTINGS)
        .fetch_all(&self.pool)
        .await
        .map_err(failed(action))?;
        rows.reverse();
        let sighting = |row: &SqliteRow| {
            Ok(Sighting {
                has_label: row.try_get("has_label").map_err(failed(action))?,
                words: row.try_get("words_digest").map_err(failed(action))?,
            })
        };
        rows.iter().map(sighting).collect()
    }

    async fn note_input(&self, lease: &Lease, base: &CommitId, digest: &str) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET base_commit = ?, input_digest = ?
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        self.write(lease, "note the frozen input", query.bind(&base.0).bind(digest)).await
    }

    async fn note_pull(&self, lease: &Lease, pull: u64) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET pull = ? WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        self.write(lease, "note the pull request", query.bind(number(pull))).await
    }

    async fn end(&self, lease: &Lease, end: &End, now: DateTime<Utc>) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET phase = 'ended', state_json = ?, updated_at = ?, end_json = NULL,
                    lease_token = NULL, lease_until = NULL
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(json(&State::Ended { end: end.clone() })).bind(micros(now));
        self.write(lease, "end a job", query).await
    }

    async fn retry(&self, lease: &Lease, due: DateTime<Utc>, why: &str) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET phase = 'queued', state_json = ?, due_at = ?, last_error = ?,
                    lease_token = NULL, lease_until = NULL
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(json(&State::Queued)).bind(micros(due)).bind(why);
        self.write(lease, "give a job back", query).await
    }

    async fn wait(
        &self,
        lease: &Lease,
        due: DateTime<Utc>,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET phase = 'queued', state_json = ?, due_at = ?, last_error = ?,
                    waiting_since = coalesce(waiting_since, ?), attempt = attempt - 1,
                    lease_token = NULL, lease_until = NULL
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(json(&State::Queued)).bind(micros(due)).bind(why).bind(micros(now));
        self.write(lease, "let a job wait", query).await
    }

    async fn owe(
        &self,
        lease: &Lease,
        end: &End,
        due: DateTime<Utc>,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET phase = 'queued', state_json = ?, end_json = ?, due_at = ?, last_error = ?,
                    waiting_since = coalesce(waiting_since, ?), attempt = attempt - 1,
                    lease_token = NULL, lease_until = NULL
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(json(&State::Queued)).bind(json(end)).bind(micros(due));
        self.write(lease, "keep an end", query.bind(why).bind(micros(now))).await
    }

    async fn park(&self, lease: &Lease, now: DateTime<Utc>) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET phase = 'queued', state_json = ?, due_at = ?, attempt = attempt - 1,
                    lease_token = NULL, lease_until = NULL
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(json(&State::Queued)).bind(micros(now));
        self.write(lease, "park a job", query).await
    }

    async fn forget_payloads(&self, before: DateTime<Utc>) -> Result<u64, Error> {
        let forgotten = sqlx::query(
            "UPDATE deliveries SET payload = x'' WHERE received_at < ? AND length(payload) > 0
               AND (job IS NULL OR job IN (SELECT id FROM jobs WHERE phase = 'ended'))",
        )
        .bind(micros(before))
        .execute(&self.pool)
        .await
        .map_err(failed("forget old deliveries"))?;
        Ok(forgotten.rows_affected())
    }

    async fn uncleared(
        &self,
        before: DateTime<Utc>,
        after: JobId,
        limit: u32,
    ) -> Result<Vec<(JobId, Subject)>, Error> {
        let rows = sqlx::query(
            "SELECT * FROM jobs WHERE phase = 'ended' AND is_cleared = 0 AND updated_at < ? AND id > ?
             ORDER BY id LIMIT ?",
        )
        .bind(micros(before))
        .bind(after.0)
        .bind(limit)
        .fetch_all(&self.pool)
        .await
        .map_err(failed("look for old jobs"))?;
        // A row that nobody can read belongs to no mirror and no folder.
        let jobs = rows.iter().filter_map(|row| read(row).ok()).map(|row| row.job);
        Ok(jobs.map(|job| (job.id, job.subject)).collect())
    }

    async fn note_cleared(&self, id: JobId) -> Result<(), Error> {
        sqlx::query("UPDATE jobs SET is_cleared = 1 WHERE id = ? AND phase = 'ended'")
            .bind(id.0)
            .execute(&self.pool)
            .await
            .map_err(failed("note that a job is cleared"))?;
        Ok(())
    }

    async fn job(&self, id: JobId) -> Result<Option<Row>, Error> {
        let row = sqlx::query("SELECT * FROM jobs WHERE id = ?")
            .bind(id.0)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("read a job"))?;
        row.as_ref().map(read).transpose()
    }

    async fn jobs(&self, limit: u32) -> Result<Vec<Row>, Error> {
        let rows = sqlx::query("SELECT * FROM jobs ORDER BY id DESC LIMIT ?")
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("list the jobs"))?;
        rows.iter().map(read).collect()
    }

    async fn next_due(&self) -> Result<Option<DateTime<Utc>>, Error> {
        let due: Option<i64> = sqlx::query_scalar(
            "SELECT min(CASE phase WHEN 'queued' THEN due_at ELSE lease_until END)
             FROM jobs WHERE phase <> 'ended'",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(failed("look for the next job"))?;
        Ok(due.and_then(DateTime::from_timestamp_micros))
    }
}

/// A look at an issue: the one that waits already, or a further one.
async fn look(
    transaction: &mut Transaction<'_, Db>,
    subject: &Subject,
    due: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Result<Kept, Error> {
    let waiting: Option<i64> = sqlx::query_scalar(
        "SELECT id FROM jobs WHERE phase = 'queued' AND key IS NULL
           AND forge = ? AND owner = ? AND name = ? AND issue = ? ORDER BY id LIMIT 1",
    )
    .bind(&subject.forge)
    .bind(&subject.repo.owner)
    .bind(&subject.repo.name)
    .bind(number(subject.issue))
    .fetch_optional(&mut **transaction)
    .await
    .map_err(failed("look for a waiting job"))?;
    Ok(match waiting {
        Some(job) => Kept::Joined(JobId(job)),
        None => Kept::Queued(insert(transaction, subject, None, due, now).await?),
    })
}

async fn insert(
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

async fn owner_of(
    transaction: &mut Transaction<'_, Db>,
    key: &str,
) -> Result<Option<JobId>, Error> {
    let job: Option<i64> = sqlx::query_scalar("SELECT id FROM jobs WHERE key = ?")
        .bind(key)
        .fetch_optional(&mut **transaction)
        .await
        .map_err(failed("look for a job by its key"))?;
    Ok(job.map(JobId))
}

async fn next_ask_number(
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

fn read(row: &SqliteRow) -> Result<Row, Error> {
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
        last_error: text("last_error")?,
    })
}

fn failed(action: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Database { action, source }
}

fn micros(time: DateTime<Utc>) -> i64 {
    time.timestamp_micros()
}

/// Issue and pull request numbers come from the forge as 64-bit integers; SQLite's are signed.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("states hold only strings and numbers")
}
