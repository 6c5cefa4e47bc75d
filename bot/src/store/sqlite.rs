//! The ledger in one SQLite file: WAL, every write durable before it is answered, one writer at a time.
//!
//! Every verb is one statement or one immediate transaction (deliveries that come at once share one), so two processes on
//! one machine may share the file. It is not for a network file system.

mod arrivals;
mod audit;
mod commands;
mod deliveries;
mod history;
mod queue;
mod rows;
mod sweeps;

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sqlx::migrate::MigrateError;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteRow, SqliteSynchronous,
};
use sqlx::{Connection as _, Row as _, Sqlite as Db, Transaction};

use super::{
    Drafted, Effect, Error, Fate, Halt, History, Identified, Kept, KeptDelivery, Lease,
    NewDelivery, Order, Row, Sighting, Step, Store, SweepAsk, SweepState, Swept, Taken, Tally,
};
use crate::audit::{Event, Head};
use crate::input::Input;
use crate::job::{self, Ask, CommitId, End, Job, JobId, Ready, RepoName, Stage, State, Subject};
use crate::reply;
use arrivals::Arrivals;
use rows::{failed, json, micros, number, read};

/// How long a writer waits for another one; transactions here take milliseconds.
const BUSY: Duration = Duration::from_secs(15);
/// Readers besides the one writer.
const CONNECTIONS: u32 = 4;

/// The embedded store.
#[derive(Debug, Clone)]
pub struct Sqlite {
    pool: SqlitePool,
    arrivals: Arrivals,
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
            // A full disk ends a transaction from below, and then the connection never begins another one.
            .before_acquire(|connection, _| {
                let is_usable = !connection.is_in_transaction();
                Box::pin(async move { Ok(is_usable) })
            })
            .connect_with(options)
            .await
            .map_err(open)?;
        match sqlx::migrate!("./migrations").run(&pool).await {
            Ok(()) => Ok(Self { arrivals: Arrivals::new(pool.clone()), pool }),
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
        query: sqlx::query::Query<'_, Db, SqliteArguments>,
    ) -> Result<(), Error> {
        let done = query
            .bind(lease.job.0)
            .bind(&lease.token)
            .execute(&self.pool)
            .await
            .map_err(failed(action))?;
        if done.rows_affected() == 1 { Ok(()) } else { Err(Error::LostLease { job: lease.job }) }
    }

    /// The same for a statement that changes the job's state, and the step that says so: one transaction.
    async fn change(
        &self,
        lease: &Lease,
        action: &'static str,
        query: sqlx::query::Query<'_, Db, SqliteArguments>,
        step: &Step,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let mut transaction = self.begin(action).await?;
        let done = query
            .bind(lease.job.0)
            .bind(&lease.token)
            .execute(&mut *transaction)
            .await
            .map_err(failed(action))?;
        if done.rows_affected() != 1 {
            return Err(Error::LostLease { job: lease.job });
        }
        history::write(&mut transaction, lease.job, step, now).await?;
        transaction.commit().await.map_err(failed(action))
    }

    /// Gives a job back to be claimed again at `due`, without counting the attempt, and keeps how it ended, if it did.
    async fn put_off(
        &self,
        lease: &Lease,
        end: Option<&End>,
        due: DateTime<Utc>,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let (action, step) = match (end.cloned(), why.to_owned()) {
            (Some(end), why) => ("keep an end", Step::Owed { end, why, due }),
            (None, why) => ("let a job wait", Step::Waits { why, due }),
        };
        let query = sqlx::query(
            "UPDATE jobs SET phase = 'queued', state_json = ?, end_json = coalesce(?, end_json), due_at = ?,
                    last_error = ?, waiting_since = coalesce(waiting_since, ?), updated_at = ?,
                    attempt = attempt - 1, lease_token = NULL, lease_until = NULL
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(json(&State::Queued)).bind(end.map(json)).bind(micros(due));
        let query = query.bind(why).bind(micros(now)).bind(micros(now));
        self.change(lease, action, query, &step, now).await
    }
}

/// The lease of a row that was just given to a worker.
fn lease_of(row: &SqliteRow) -> Result<Lease, sqlx::Error> {
    Ok(Lease { job: JobId(row.try_get("id")?), token: row.try_get("lease_token")? })
}

/// A job for an ask that no job has.
async fn queue_ask(
    transaction: &mut Transaction<'_, Db>,
    subject: &Subject,
    key: &str,
    now: DateTime<Utc>,
) -> Result<JobId, Error> {
    let number = queue::next_ask_number(transaction, subject).await?;
    let job = deliveries::insert(transaction, subject, Some((key, number)), now, now).await?;
    let step = Step::Asked { key: key.to_owned() };
    history::write(transaction, job, &step, now).await?;
    Ok(job)
}

#[async_trait]
impl Store for Sqlite {
    async fn accept(&self, delivery: &NewDelivery, now: DateTime<Utc>) -> Result<Kept, Error> {
        self.arrivals.keep(delivery.clone(), now).await
    }

    async fn ask(&self, subject: &Subject, key: &str, now: DateTime<Utc>) -> Result<JobId, Error> {
        let action = "queue a job";
        let mut transaction = self.begin(action).await?;
        let job = match queue::owner_of(&mut transaction, subject, key).await? {
            Some(job) => job,
            None => queue_ask(&mut transaction, subject, key, now).await?,
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
        let action = "claim a job";
        loop {
            let mut transaction = self.begin(action).await?;
            let taken = queue::take(&mut transaction, worker, now, until).await?;
            transaction.commit().await.map_err(failed(action))?;
            let Some(row) = taken else { return Ok(None) };
            let lease = lease_of(&row).map_err(failed(action))?;
            let id = lease.job;
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
        let identified = queue::identify(&mut transaction, lease, key, asked_by, now).await?;
        transaction.commit().await.map_err(failed(action))?;
        Ok(identified)
    }

    async fn drop_job(&self, lease: &Lease, why: &str, now: DateTime<Utc>) -> Result<(), Error> {
        let action = "remove a job that asks for nothing";
        let mut transaction = self.begin(action).await?;
        queue::drop_job(&mut transaction, lease, why, now).await?;
        transaction.commit().await.map_err(failed(action))
    }

    async fn enter(&self, lease: &Lease, stage: Stage, now: DateTime<Utc>) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET state_json = ?, updated_at = ?, waiting_since = iif(?, NULL, waiting_since)
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        // A session starts once the forge has let the bot read, speak and fetch: its outage, if there was one, is over.
        let is_answered = stage == Stage::Session;
        let query = query.bind(json(&State::Running { stage })).bind(micros(now)).bind(is_answered);
        self.change(lease, "note a stage", query, &Step::Entered { stage }, now).await
    }

    async fn note_comment(&self, lease: &Lease, comment: i64) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET comment = ? WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        self.write(lease, "note the status comment", query.bind(comment)).await
    }

    async fn note_ready(
        &self,
        lease: &Lease,
        ready: &Ready,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET ready_json = ? WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let (branch, commit) = (ready.branch.clone(), ready.commit.clone());
        let (query, step) = (query.bind(json(ready)), Step::Ready { branch, commit });
        self.change(lease, "note what is ready to be published", query, &step, now).await
    }

    async fn note_session(
        &self,
        lease: &Lease,
        bytes: u64,
        sha256: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET updated_at = ? WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let (query, step) =
            (query.bind(micros(now)), Step::Spoke { bytes, sha256: sha256.to_owned() });
        self.change(lease, "note a session", query, &step, now).await
    }

    async fn note_words(&self, lease: &Lease, words: &Input) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET input_json = ? WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        self.write(lease, "note what people say", query.bind(json(words))).await
    }

    async fn sightings(&self, id: JobId) -> Result<Vec<Sighting>, Error> {
        deliveries::sightings(&self.pool, id).await
    }

    async fn note_input(
        &self,
        lease: &Lease,
        base: &CommitId,
        digest: &str,
        model: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET base_commit = ?, input_digest = ?, model = ?
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(&base.0).bind(digest).bind(model);
        let (digest, model) = (digest.to_owned(), model.to_owned());
        let step = Step::Given { base: base.clone(), digest, model };
        self.change(lease, "note the frozen input", query, &step, now).await
    }

    async fn note_pull(&self, lease: &Lease, pull: u64, now: DateTime<Utc>) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET pull = ? WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(number(pull));
        self.change(lease, "note the pull request", query, &Step::Drafted { pull }, now).await
    }

    async fn end(&self, lease: &Lease, end: &End, now: DateTime<Utc>) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET phase = 'ended', state_json = ?, updated_at = ?, end_json = NULL,
                    lease_token = NULL, lease_until = NULL
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(json(&State::Ended { end: end.clone() })).bind(micros(now));
        self.change(lease, "end a job", query, &Step::Ended { end: end.clone() }, now).await
    }

    async fn retry(
        &self,
        lease: &Lease,
        due: DateTime<Utc>,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET phase = 'queued', state_json = ?, due_at = ?, last_error = ?,
                    updated_at = ?, lease_token = NULL, lease_until = NULL
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(json(&State::Queued)).bind(micros(due)).bind(why).bind(micros(now));
        let step = Step::Retried { why: why.to_owned(), due };
        self.change(lease, "give a job back", query, &step, now).await
    }

    async fn wait(
        &self,
        lease: &Lease,
        due: DateTime<Utc>,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        self.put_off(lease, None, due, why, now).await
    }

    async fn owe(
        &self,
        lease: &Lease,
        end: &End,
        due: DateTime<Utc>,
        why: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        self.put_off(lease, Some(end), due, why, now).await
    }

    async fn park(&self, lease: &Lease, now: DateTime<Utc>) -> Result<(), Error> {
        let query = sqlx::query(
            "UPDATE jobs SET phase = 'queued', state_json = ?, due_at = ?, updated_at = ?,
                    attempt = attempt - 1, lease_token = NULL, lease_until = NULL
             WHERE id = ? AND lease_token = ? AND phase = 'running'",
        );
        let query = query.bind(json(&State::Queued)).bind(micros(now)).bind(micros(now));
        self.change(lease, "park a job", query, &Step::Parked, now).await
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
        // One that cannot be read hides no other.
        let readable = rows.iter().map(read).filter_map(|row| {
            row.inspect_err(|error| tracing::error!(%error, "a job is left out")).ok()
        });
        Ok(readable.collect())
    }

    async fn next_due(&self) -> Result<Option<DateTime<Utc>>, Error> {
        let due: Option<i64> = sqlx::query_scalar(
            "SELECT min(due) FROM (
                SELECT min(due_at) AS due FROM jobs WHERE phase = 'queued'
                UNION ALL SELECT min(lease_until) FROM jobs WHERE phase = 'running')",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(failed("look for the next job"))?;
        Ok(due.and_then(DateTime::from_timestamp_micros))
    }

    async fn tally(&self, now: DateTime<Utc>) -> Result<Tally, Error> {
        queue::tally(&self.pool, now).await
    }

    async fn history(&self, subject: &Subject) -> Result<History, Error> {
        history::of(&self.pool, subject).await
    }

    async fn look_for(
        &self,
        subject: &Subject,
        key: &str,
        due: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Kept, Error> {
        let action = "queue a look";
        let mut transaction = self.begin(action).await?;
        let kept = match queue::owner_of(&mut transaction, subject, key).await? {
            Some(_) => Kept::Repeated,
            None => deliveries::look(&mut transaction, subject, due, now).await?,
        };
        transaction.commit().await.map_err(failed(action))?;
        Ok(kept)
    }

    async fn deliveries(&self, id: &str) -> Result<Vec<KeptDelivery>, Error> {
        deliveries::deliveries(&self.pool, id).await
    }

    async fn sweep(&self, name: &str) -> Result<Option<SweepState>, Error> {
        sweeps::state(&self.pool, name).await
    }

    async fn begin_sweep(
        &self,
        name: &str,
        instant: DateTime<Utc>,
        is_over: bool,
    ) -> Result<bool, Error> {
        sweeps::begin(&self.pool, name, instant, is_over).await
    }

    async fn follow_schedule(
        &self,
        name: &str,
        schedule: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        sweeps::follow(&self.pool, name, schedule, now).await
    }

    async fn finish_sweep(&self, name: &str, instant: DateTime<Utc>) -> Result<(), Error> {
        sweeps::finish(&self.pool, name, instant).await
    }

    async fn pause_sweep(&self, name: &str, why: &str, now: DateTime<Utc>) -> Result<bool, Error> {
        let (action, event) =
            ("pause a sweep", Event::SweepPaused { sweep: name.into(), why: why.into() });
        let mut transaction = self.begin(action).await?;
        let is_new = sweeps::pause(&mut transaction, name, why, now).await?;
        if is_new {
            audit::add(&mut transaction, (None, None), event, now).await?;
        }
        transaction.commit().await.map_err(failed(action))?;
        Ok(is_new)
    }

    async fn resume_sweep(&self, name: &str, now: DateTime<Utc>) -> Result<bool, Error> {
        let (action, event) = ("resume a sweep", Event::SweepResumed { sweep: name.into() });
        let mut transaction = self.begin(action).await?;
        let was_paused = sweeps::resume(&mut transaction, name, now).await?;
        if was_paused {
            audit::add(&mut transaction, (None, None), event, now).await?;
        }
        transaction.commit().await.map_err(failed(action))?;
        Ok(was_paused)
    }

    async fn swept(
        &self,
        name: &str,
        since: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Vec<Swept>, Error> {
        let mut connection =
            self.pool.acquire().await.map_err(failed("read the jobs of a sweep"))?;
        sweeps::jobs(&mut connection, name, since, now).await
    }

    async fn ask_by_sweep(&self, ask: &SweepAsk<'_>, now: DateTime<Utc>) -> Result<Taken, Error> {
        let action = "queue a job of a sweep";
        let mut transaction = self.begin(action).await?;
        let subject = ask.subject;
        if sweeps::was_asked(&mut transaction, subject).await? {
            return Ok(Taken::WasAsked);
        }
        let known = sweeps::jobs(&mut transaction, ask.name, ask.since, now).await?;
        if known.len() != ask.n_known {
            return Ok(Taken::Raced);
        }
        if sweeps::pending(&mut transaction, &subject.forge, &subject.repo).await? >= ask.cap {
            return Ok(Taken::IsFull);
        }
        let its = Ask::Sweep { name: ask.name.to_owned(), at: ask.instant.timestamp() };
        let job = queue_ask(&mut transaction, subject, &job::key(subject, &its), now).await?;
        transaction.commit().await.map_err(failed(action))?;
        Ok(Taken::Job(job))
    }

    async fn pending(&self, forge: &str, repo: &RepoName) -> Result<usize, Error> {
        let action = "count the drafts of a repository";
        let mut connection = self.pool.acquire().await.map_err(failed(action))?;
        sweeps::pending(&mut connection, forge, repo).await
    }

    async fn asked(&self, forge: &str) -> Result<Vec<Subject>, Error> {
        sweeps::asked(&self.pool, forge).await
    }

    async fn drafts(&self, limit: u32) -> Result<Vec<Drafted>, Error> {
        sweeps::drafts(&self.pool, false, limit).await
    }

    async fn open_drafts(&self, limit: u32) -> Result<Vec<Drafted>, Error> {
        sweeps::drafts(&self.pool, true, limit).await
    }

    async fn note_fate(&self, job: JobId, fate: &Fate, at: DateTime<Utc>) -> Result<(), Error> {
        sweeps::note_fate(&self.pool, job, fate, at).await
    }

    async fn claim_order(
        &self,
        now: DateTime<Utc>,
        (until, latest): (DateTime<Utc>, DateTime<Utc>),
    ) -> Result<Option<Order>, Error> {
        let action = "claim a command";
        // Most of the time there is none, and a look hinders no writer.
        if commands::next_due(&self.pool).await?.is_none() {
            return Ok(None);
        }
        let mut transaction = self.begin(action).await?;
        let order = commands::claim(&mut transaction, now, (until, latest)).await?;
        transaction.commit().await.map_err(failed(action))?;
        Ok(order)
    }

    async fn ask_by_order(
        &self,
        order: &Order,
        by: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<Effect>, Error> {
        let action = "queue the job of a command";
        let mut transaction = self.begin(action).await?;
        let effect = commands::ask(&mut transaction, order, by, now).await?;
        transaction.commit().await.map_err(failed(action))?;
        Ok(effect)
    }

    async fn halt_by_order(
        &self,
        order: &Order,
        by: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<Effect>, Error> {
        let action = "stop the jobs of an issue";
        let mut transaction = self.begin(action).await?;
        let effect = commands::halt(&mut transaction, order, by, now).await?;
        transaction.commit().await.map_err(failed(action))?;
        Ok(effect)
    }

    async fn end_order(
        &self,
        order: &Order,
        answer: Option<i64>,
        note: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let action = "end a command";
        let mut transaction = self.begin(action).await?;
        let is_held = commands::leave(&mut transaction, order, None, (answer, note)).await?;
        if is_held {
            let (comment, author) = (order.comment, order.author);
            let event = Event::Command { comment, author, note: note.to_owned() };
            audit::issue(&mut transaction, &order.subject, event, now).await?;
        }
        transaction.commit().await.map_err(failed(action))?;
        Ok(is_held)
    }

    async fn defer_order(
        &self,
        order: &Order,
        due: DateTime<Utc>,
        why: &str,
    ) -> Result<bool, Error> {
        let action = "put a command off";
        let mut transaction = self.begin(action).await?;
        let is_held = commands::leave(&mut transaction, order, Some(due), (None, why)).await?;
        transaction.commit().await.map_err(failed(action))?;
        Ok(is_held)
    }

    async fn next_order_due(&self) -> Result<Option<DateTime<Utc>>, Error> {
        commands::next_due(&self.pool).await
    }

    async fn halt_of(&self, job: JobId) -> Result<Option<Halt>, Error> {
        commands::halt_of(&self.pool, job).await
    }

    async fn claim_halted(
        &self,
        worker: &str,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Result<Option<(Job, Lease)>, Error> {
        let action = "claim a job to stop";
        let mut transaction = self.begin(action).await?;
        let taken = commands::take_halted(&mut transaction, worker, now, until).await?;
        transaction.commit().await.map_err(failed(action))?;
        let Some(row) = taken else { return Ok(None) };
        let lease = lease_of(&row).map_err(failed(action))?;
        Ok(Some((read(&row)?.job, lease)))
    }

    async fn publish(&self, lease: &Lease, now: DateTime<Utc>) -> Result<Option<Halt>, Error> {
        let action = "begin to publish";
        let mut transaction = self.begin(action).await?;
        let halt = commands::publish(&mut transaction, lease, now).await?;
        transaction.commit().await.map_err(failed(action))?;
        Ok(halt)
    }

    async fn audit(&self, after: u64) -> Result<Vec<String>, Error> {
        audit::after(&self.pool, after).await
    }

    async fn audit_head(&self) -> Result<Option<Head>, Error> {
        Ok(audit::last(&self.pool).await?.as_deref().and_then(Head::of))
    }

    async fn waiting_look(&self, subject: &Subject) -> Result<Option<JobId>, Error> {
        deliveries::waiting(&self.pool, subject).await
    }
}
