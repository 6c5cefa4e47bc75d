//! Commands in comments: kept once, claimed in their order, with what they change in the transaction that changes it.

use chrono::{DateTime, Utc};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, Sqlite as Db, SqlitePool, Transaction};

use super::rows::{failed, json, micros, number, read};
use super::{history, queue, queue_ask};
use crate::job::{self, Ask, JobId, Stage, State, Subject};
use crate::store::{Effect, Error, Halt, NewCommand, Order, Step};

/// Keeps a command. False where it is known.
pub(super) async fn keep(
    transaction: &mut Transaction<'_, Db>,
    (forge, delivery): (&str, &str),
    command: &NewCommand,
    now: DateTime<Utc>,
) -> Result<bool, Error> {
    let action = "keep a command";
    let Subject { repo, issue, .. } = &command.subject;
    let inserted = sqlx::query(
        "INSERT INTO commands (forge, comment, author, owner, name, issue, due_at, received_at, name_seen)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8) ON CONFLICT DO NOTHING",
    )
    .bind(forge)
    .bind(command.comment)
    .bind(command.author)
    .bind(&repo.owner)
    .bind(&repo.name)
    .bind(number(*issue))
    .bind(micros(now))
    .bind(command.name_seen)
    .execute(&mut **transaction)
    .await
    .map_err(failed(action))?;
    sqlx::query(
        "UPDATE deliveries SET comment = ?1, (job, note) =
             (SELECT job, note FROM commands WHERE forge = ?2 AND comment = ?1)
         WHERE forge = ?2 AND id = ?3",
    )
    .bind(command.comment)
    .bind(forge)
    .bind(delivery)
    .execute(&mut **transaction)
    .await
    .map_err(failed(action))?;
    Ok(inserted.rows_affected() == 1)
}

/// The commands whose turn it is: those on one issue go one after another, in the order in which they came, but for those
/// that stop. They wait for nobody.
macro_rules! in_turn {
    () => {
        "FROM commands one WHERE one.phase <> 'done' AND (one.name_seen = 'cancel' OR NOT EXISTS (
             SELECT 1 FROM commands other
             WHERE other.phase <> 'done' AND other.forge = one.forge AND other.owner = one.owner
               AND other.name = one.name AND other.issue = one.issue AND other.number < one.number))"
    };
}

/// The next due command.
const NEXT: &str = concat!(
    "SELECT number ",
    in_turn!(),
    " AND due_at <= ?1 AND (phase = 'queued' OR lease_until <= ?1)
      ORDER BY name_seen <> 'cancel', number LIMIT 1"
);

/// When the next command is due.
const NEXT_DUE: &str =
    concat!("SELECT min(iif(phase = 'queued', due_at, max(due_at, lease_until))) ", in_turn!());

pub(super) async fn claim(
    transaction: &mut Transaction<'_, Db>,
    now: DateTime<Utc>,
    (until, latest): (DateTime<Utc>, DateTime<Utc>),
) -> Result<Option<Order>, Error> {
    let action = "claim a command";
    // A clock that was set back must leave none of them farther in the future than it was put off.
    sqlx::query(
        "UPDATE commands SET lease_until = min(coalesce(lease_until, ?1), ?1), due_at = min(due_at, ?2)
         WHERE phase <> 'done' AND (lease_until > ?1 OR due_at > ?2)",
    )
    .bind(micros(until))
    .bind(micros(latest))
    .execute(&mut **transaction)
    .await
    .map_err(failed(action))?;
    let next: Option<i64> = sqlx::query_scalar(NEXT)
        .bind(micros(now))
        .fetch_optional(&mut **transaction)
        .await
        .map_err(failed(action))?;
    let Some(next) = next else { return Ok(None) };
    let row = sqlx::query(
        "UPDATE commands SET phase = 'running', attempt = attempt + 1, lease_until = ?2,
                lease_token = lower(hex(randomblob(16)))
         WHERE number = ?1 RETURNING *",
    )
    .bind(next)
    .bind(micros(until))
    .fetch_one(&mut **transaction)
    .await
    .map_err(failed(action))?;
    order(&row).map(Some)
}

fn order(row: &SqliteRow) -> Result<Order, Error> {
    let database = failed("read a command");
    let wrong = |reason: &str| Error::Command {
        comment: row.try_get("comment").unwrap_or_default(),
        reason: reason.to_owned(),
    };
    let text = |column: &str| row.try_get::<String, _>(column).map_err(&database);
    let repo = format!("{}/{}", text("owner")?, text("name")?);
    let issue: i64 = row.try_get("issue").map_err(&database)?;
    let attempt: i64 = row.try_get("attempt").map_err(&database)?;
    let received: i64 = row.try_get("received_at").map_err(&database)?;
    let effect: Option<String> = row.try_get("effect_json").map_err(&database)?;
    Ok(Order {
        subject: Subject {
            forge: text("forge")?,
            repo: repo.parse().map_err(wrong)?,
            issue: u64::try_from(issue).map_err(|_| wrong("`issue` is negative"))?,
        },
        comment: row.try_get("comment").map_err(&database)?,
        author: row.try_get("author").map_err(&database)?,
        attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
        received_at: DateTime::from_timestamp_micros(received)
            .ok_or_else(|| wrong("`received_at` is no time"))?,
        effect: effect
            .map(|effect| serde_json::from_str(&effect))
            .transpose()
            .map_err(|_| wrong("`effect_json` is no effect"))?,
        token: text("lease_token")?,
    })
}

/// Whether the order is still this one's to carry out.
async fn holds(transaction: &mut Transaction<'_, Db>, order: &Order) -> Result<bool, Error> {
    let found: Option<i64> = sqlx::query_scalar(
        "SELECT 1 FROM commands WHERE forge = ? AND comment = ? AND lease_token = ? AND phase = 'running'",
    )
    .bind(&order.subject.forge)
    .bind(order.comment)
    .bind(&order.token)
    .fetch_optional(&mut **transaction)
    .await
    .map_err(failed("look for a command"))?;
    Ok(found.is_some())
}

/// Notes an effect beside what it has changed.
async fn note(
    transaction: &mut Transaction<'_, Db>,
    order: &Order,
    effect: &Effect,
) -> Result<(), Error> {
    let action = "note what a command did";
    let job = match effect {
        Effect::Asked { job } => Some(job.0),
        Effect::Busy { .. } | Effect::CalledOff | Effect::Halted { .. } => None,
    };
    sqlx::query("UPDATE commands SET effect_json = ?, job = ? WHERE forge = ? AND comment = ?")
        .bind(json(effect))
        .bind(job)
        .bind(&order.subject.forge)
        .bind(order.comment)
        .execute(&mut **transaction)
        .await
        .map_err(failed(action))?;
    sqlx::query("UPDATE deliveries SET job = ? WHERE forge = ? AND comment = ?")
        .bind(job)
        .bind(&order.subject.forge)
        .bind(order.comment)
        .execute(&mut **transaction)
        .await
        .map_err(failed(action))?;
    Ok(())
}

/// Queues the job that a command asks for, unless one with an ask has not ended. None where somebody else has the order.
pub(super) async fn ask(
    transaction: &mut Transaction<'_, Db>,
    order: &Order,
    by: &str,
    now: DateTime<Utc>,
) -> Result<Option<Effect>, Error> {
    if !holds(transaction, order).await? {
        return Ok(None);
    }
    let subject = &order.subject;
    let key = job::key(subject, &Ask::Comment { id: order.comment });
    let effect = match queue::owner_of(transaction, subject, &key).await? {
        Some(job) => Effect::Asked { job },
        None if others(transaction, order, CALLED_OFF).await? > 0 => Effect::CalledOff,
        None => match open_jobs(transaction, subject).await?.iter().find(|job| job.has_ask) {
            Some(busy) => Effect::Busy { job: busy.id },
            None => {
                let job = queue_ask(transaction, subject, &key, now).await?;
                sqlx::query("UPDATE jobs SET asked_by = ? WHERE id = ?")
                    .bind(by)
                    .bind(job.0)
                    .execute(&mut **transaction)
                    .await
                    .map_err(failed("note who asked"))?;
                Effect::Asked { job }
            }
        },
    };
    note(transaction, order, &effect).await?;
    Ok(Some(effect))
}

/// Later commands on the same issue that have stopped what there was.
const CALLED_OFF: &str =
    "other.number > one.number AND json_extract(other.effect_json, '$.effect') = 'halted'";
/// Earlier ones that ask and have not been carried out.
const WAITING: &str =
    "other.number < one.number AND other.phase <> 'done' AND other.effect_json IS NULL
    AND other.name_seen IN ('fix', 'retry')";

/// How many other commands on an order's issue are as `which` says.
async fn others(
    transaction: &mut Transaction<'_, Db>,
    order: &Order,
    which: &'static str,
) -> Result<u32, Error> {
    sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
        "SELECT count(*) FROM commands one JOIN commands other USING (forge, owner, name, issue)
         WHERE one.forge = ? AND one.comment = ? AND {which}"
    )))
    .bind(&order.subject.forge)
    .bind(order.comment)
    .fetch_one(&mut **transaction)
    .await
    .map_err(failed("look for other commands"))
}

/// A job that has not ended.
struct Open {
    id: JobId,
    has_ask: bool,
    is_publishing: bool,
    /// The comment that asked for it.
    comment: Option<i64>,
    created_at: DateTime<Utc>,
}

async fn open_jobs(
    transaction: &mut Transaction<'_, Db>,
    subject: &Subject,
) -> Result<Vec<Open>, Error> {
    let rows = sqlx::query(
        "SELECT * FROM jobs WHERE forge = ? AND owner = ? AND name = ? AND issue = ?
           AND phase <> 'ended' AND end_json IS NULL ORDER BY id",
    )
    .bind(&subject.forge)
    .bind(&subject.repo.owner)
    .bind(&subject.repo.name)
    .bind(number(subject.issue))
    .fetch_all(&mut **transaction)
    .await
    .map_err(failed("look for open jobs"))?;
    let open = rows.iter().filter_map(|row| read(row).ok()).map(|row| Open {
        id: row.job.id,
        has_ask: row.job.key.is_some(),
        is_publishing: row.job.ready.is_some()
            && row.job.state == State::Running { stage: Stage::Publish },
        comment: match row.job.ask() {
            Some(Ask::Comment { id }) => Some(id),
            Some(_) | None => None,
        },
        created_at: row.created_at,
    });
    Ok(open.collect())
}

/// Marks the open jobs of an issue as to be stopped. What is queued is due at once. None where somebody else has the order.
pub(super) async fn halt(
    transaction: &mut Transaction<'_, Db>,
    order: &Order,
    by: &str,
    now: DateTime<Utc>,
) -> Result<Option<Effect>, Error> {
    if !holds(transaction, order).await? {
        return Ok(None);
    }
    let (mut jobs, mut too_late, mut n_looks) = (Vec::new(), Vec::new(), 0);
    let halt = json(&Halt { by: by.to_owned(), comment: order.comment });
    for job in open_jobs(transaction, &order.subject).await? {
        // A command that comes late stops nothing that was asked for after it.
        let is_later = match job.comment {
            Some(comment) => comment > order.comment,
            None => job.created_at > order.received_at,
        };
        if is_later {
            continue;
        }
        if job.is_publishing {
            too_late.push(job.id);
            continue;
        }
        sqlx::query(
            "UPDATE jobs SET halt_json = ?1, due_at = iif(phase = 'queued', ?2, due_at) WHERE id = ?3",
        )
        .bind(&halt)
        .bind(micros(now))
        .bind(job.id.0)
        .execute(&mut **transaction)
        .await
        .map_err(failed("stop a job"))?;
        history::write(transaction, job.id, &Step::Halted { by: by.to_owned() }, now).await?;
        match job.has_ask {
            true => jobs.push(job.id),
            false => n_looks += 1,
        }
    }
    let n_called_off = others(transaction, order, WAITING).await?;
    let effect = Effect::Halted { jobs, n_looks, n_called_off, too_late };
    note(transaction, order, &effect).await?;
    Ok(Some(effect))
}

/// Ends an order, or gives it back to be claimed at `due`. False where somebody else has it.
pub(super) async fn leave(
    transaction: &mut Transaction<'_, Db>,
    order: &Order,
    due: Option<DateTime<Utc>>,
    (answer, why): (Option<i64>, &str),
) -> Result<bool, Error> {
    let action = "leave a command";
    if !holds(transaction, order).await? {
        return Ok(false);
    }
    sqlx::query(
        "UPDATE commands SET phase = iif(?1 IS NULL, 'done', 'queued'), due_at = coalesce(?1, due_at),
                lease_token = NULL, lease_until = NULL, answer = coalesce(?2, answer), note = ?3
         WHERE forge = ?4 AND comment = ?5",
    )
    .bind(due.map(micros))
    .bind(answer)
    .bind(why)
    .bind(&order.subject.forge)
    .bind(order.comment)
    .execute(&mut **transaction)
    .await
    .map_err(failed(action))?;
    sqlx::query("UPDATE deliveries SET note = ? WHERE forge = ? AND comment = ?")
        .bind(why)
        .bind(&order.subject.forge)
        .bind(order.comment)
        .execute(&mut **transaction)
        .await
        .map_err(failed(action))?;
    Ok(true)
}

/// When the next command is due.
pub(super) async fn next_due(pool: &SqlitePool) -> Result<Option<DateTime<Utc>>, Error> {
    let due: Option<i64> = sqlx::query_scalar(NEXT_DUE)
        .fetch_one(pool)
        .await
        .map_err(failed("look for the next command"))?;
    Ok(due.and_then(DateTime::from_timestamp_micros))
}

/// Who wants a job stopped that has an ask.
pub(super) async fn halt_of(pool: &SqlitePool, job: JobId) -> Result<Option<Halt>, Error> {
    let found: Option<String> = sqlx::query_scalar(
        "SELECT halt_json FROM jobs WHERE id = ? AND halt_json IS NOT NULL AND key IS NOT NULL",
    )
    .bind(job.0)
    .fetch_optional(pool)
    .await
    .map_err(failed("look whether a job is to be stopped"))?;
    read_halt(job, found)
}

fn read_halt(job: JobId, text: Option<String>) -> Result<Option<Halt>, Error> {
    let wrong = |_| Error::Row { job, reason: "`halt_json` makes no sense".into() };
    text.map(|text| serde_json::from_str(&text)).transpose().map_err(wrong)
}

/// Takes a queued job that is to be stopped, also where another one of its issue runs, or one whose worker died.
pub(super) async fn take_halted(
    transaction: &mut Transaction<'_, Db>,
    worker: &str,
    now: DateTime<Utc>,
    until: DateTime<Utc>,
) -> Result<Option<SqliteRow>, Error> {
    let next: Option<(i64, String)> = sqlx::query_as(
        "SELECT id, phase FROM jobs WHERE halt_json IS NOT NULL AND phase <> 'ended' AND due_at <= ?1
           AND (phase = 'queued' OR lease_until <= ?1) ORDER BY id LIMIT 1",
    )
    .bind(micros(now))
    .fetch_optional(&mut **transaction)
    .await
    .map_err(failed("look for a job to stop"))?;
    let Some(next) = next else { return Ok(None) };
    queue::give(transaction, next, worker, (now, until)).await.map(Some)
}

/// Lets a job publish, unless somebody wants it stopped: from then on it is too late for that.
pub(super) async fn publish(
    transaction: &mut Transaction<'_, Db>,
    lease: &crate::store::Lease,
    now: DateTime<Utc>,
) -> Result<Option<Halt>, Error> {
    let action = "begin to publish";
    let row = queue::held(transaction, lease, action).await?;
    let halt: Option<String> = row.try_get("halt_json").map_err(failed(action))?;
    if let Some(halt) = read_halt(lease.job, halt)? {
        return Ok(Some(halt));
    }
    sqlx::query("UPDATE jobs SET state_json = ?, updated_at = ? WHERE id = ?")
        .bind(json(&State::Running { stage: Stage::Publish }))
        .bind(micros(now))
        .bind(lease.job.0)
        .execute(&mut **transaction)
        .await
        .map_err(failed(action))?;
    let step = Step::Entered { stage: Stage::Publish };
    history::write(transaction, lease.job, &step, now).await?;
    Ok(None)
}
