//! Commands in comments, carried out: the comment is read again from the forge, whoever wrote it must have write access
//! there, and what it asks for happens once, whatever is delivered twice or breaks on the way.
//!
//! A webhook is only the hint. What changes a job is written in one transaction with the command, and an answer carries a
//! mark by which it is found again. Workers have no part in it, so that a command is heard while all of them are busy.

use std::time::Duration;

use crate::bot::{Bot, Place};
use crate::clock::{doubled, later};
use crate::command::{self, Command};
use crate::explain::{self, Explanation};
use crate::forge::{self, Comment};
use crate::halt::chain;
use crate::reply;
use crate::store::{self, Effect, Order};
use crate::worker::{Stop, Worker};

/// Commands that are carried out at the same time. A forge that does not answer holds up those alone that wait for it.
pub const AT_ONCE: usize = 4;
/// How long nobody looks at most: another process on this machine may have kept a command.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
const SHORTEST_SLEEP: Duration = Duration::from_millis(200);

/// Seen, and to be done.
const SEEN: &str = "eyes";
/// Not for whoever wrote it.
const NO: &str = "-1";
/// Not understood, or not possible.
const CONFUSED: &str = "confused";

/// What came of a command.
struct Done {
    answer: Option<i64>,
    note: String,
}

/// Why a command is not done yet.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot carry out a command")]
    Forge(#[from] forge::Error),
    #[error("cannot carry out a command")]
    Store(#[from] store::Error),
    #[error("carrying a command out took too long")]
    TooLong,
    #[error("somebody else carries the command out by now")]
    Lost,
}

impl Error {
    /// Whether it may pass. A right that the forge does not tell is none.
    fn may_pass(&self) -> bool {
        match self {
            Self::Forge(
                forge::Error::Auth { .. }
                | forge::Error::Unwell { .. }
                | forge::Error::Unreachable { .. }
                | forge::Error::Answer { .. },
            )
            | Self::Store(_)
            | Self::TooLong => true,
            Self::Forge(
                forge::Error::Denied { .. }
                | forge::Error::Missing { .. }
                | forge::Error::Moved { .. }
                | forge::Error::Declined { .. },
            )
            | Self::Lost => false,
        }
    }
}

/// Carries out commands until it is time to stop.
pub async fn run(bot: &Bot, worker: &Worker, stop: &Stop) {
    while !stop.is_stopped() {
        let rest = match step(bot, worker, stop).await {
            Ok(true) => continue,
            Ok(false) => until_due(bot).await,
            Err(error) => {
                tracing::error!(error = %chain(&error), "the database failed");
                LONGEST_SLEEP
            }
        };
        tokio::select! {
            () = stop.stopped() => {}
            () = bot.orders.notified() => {}
            () = tokio::time::sleep(rest) => {}
        }
    }
}

async fn until_due(bot: &Bot) -> Duration {
    match bot.store.next_order_due().await {
        Ok(Some(due)) => {
            let wait = (due - bot.clock.now()).to_std().unwrap_or_default();
            wait.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)
        }
        Ok(None) | Err(_) => LONGEST_SLEEP,
    }
}

/// Carries out one command, or ends one queued job that somebody wants stopped. Returns false if there was neither.
///
/// # Errors
/// The database failed.
pub async fn step(bot: &Bot, worker: &Worker, stop: &Stop) -> Result<bool, store::Error> {
    let now = bot.clock.now();
    let lease = bot.config.queue.lease;
    let (until, latest) = (later(now, lease), later(now, bot.config.queue.backoff_limit));
    let Some(order) = bot.store.claim_order(now, (until, latest)).await? else {
        return worker.step_halted(bot, stop).await;
    };
    let carried = tokio::select! {
        biased;
        () = stop.stopped() => {
            bot.store.defer_order(&order, now, "the service stopped").await?;
            return Ok(true);
        }
        // Whoever takes it over must be alone with it.
        carried = tokio::time::timeout(lease.mul_f32(0.75), carry_out(bot, &order)) => {
            carried.unwrap_or(Err(Error::TooLong))
        }
    };
    let (subject, comment) = (&order.subject, order.comment);
    // The waits between tries double up to `queue.backoff_limit`.
    let is_patient = now < later(order.received_at, bot.config.queue.forge_patience);
    match carried {
        Ok(done) => {
            let note = bot.redactor.redact(&done.note);
            tracing::info!(issue = %subject, comment, note, "carried out a command");
            bot.store.end_order(&order, done.answer, &note, now).await?;
        }
        Err(Error::Lost) => {}
        Err(error) if error.may_pass() && is_patient => {
            let error = chain(&error);
            tracing::warn!(issue = %subject, comment, error, "a command will be tried again");
            put_off(bot, &order).await?;
        }
        Err(error) => {
            let error = chain(&error);
            tracing::error!(issue = %subject, comment, error, "gave a command up");
            bot.store.end_order(&order, None, "a command that was given up", now).await?;
        }
    }
    Ok(true)
}

async fn put_off(bot: &Bot, order: &Order) -> Result<(), store::Error> {
    let queue = &bot.config.queue;
    let wait = doubled(queue.backoff, order.attempt.saturating_sub(1)).min(queue.backoff_limit);
    let due = later(bot.clock.now(), wait);
    bot.store.defer_order(order, due, "a command that waits for the forge").await?;
    Ok(())
}

/// Reads the comment again and does what it asks for, if whoever wrote it may ask.
async fn carry_out(bot: &Bot, order: &Order) -> Result<Done, Error> {
    let nothing = |why: &str| Ok(Done { answer: None, note: why.to_owned() });
    let repo = &order.subject.repo;
    let Some(place) = bot.place_of(&order.subject).await? else {
        return nothing("a command in a repository that is not on the allow-list");
    };
    let comments = place.forge.comments(repo, order.subject.issue).await?;
    let Some(comment) = comments.iter().find(|comment| comment.id == order.comment) else {
        return nothing("a command in a comment that is gone");
    };
    let author = &comment.author;
    if author.id != order.author || author.id == place.own_id || place.bots().hold(author) {
        return nothing("a command of a bot, or in a comment that is somebody else's by now");
    }
    let Some(command) = command::parse(&comment.body) else {
        return nothing("a comment that was a command");
    };
    if !place.may_write(repo, author).await? {
        react(&place, order, NO).await;
        return nothing("a command of somebody without write access");
    }
    let answer = obey(bot, &place, order, (&command, comment, &comments)).await?;
    Ok(Done { answer, note: format!("the command `{}` of {}", command.name(), author.login) })
}

/// Does what a command asks for. Returns the comment that answers it, if there is one.
async fn obey(
    bot: &Bot,
    place: &Place,
    order: &Order,
    (command, comment, comments): (&Command, &Comment, &[Comment]),
) -> Result<Option<i64>, Error> {
    let by = bot.redactor.redact(&comment.author.login);
    let words = match command {
        Command::Help => Some(reply::help()),
        Command::Unknown => {
            react(place, order, CONFUSED).await;
            let words = reply::not_understood();
            return answer(bot, place, order, comments, &words).await.map(Some);
        }
        Command::Status => Some(reply::standing(&explained(bot, place, order).await?.standing)),
        Command::Explain => Some(reply::story(&explained(bot, place, order).await?)),
        Command::Fix | Command::Retry { .. } => match asked(bot, order, &by).await? {
            Effect::Busy { .. } => {
                let standing = reply::standing(&explained(bot, place, order).await?.standing);
                Some(reply::busy(&standing))
            }
            Effect::Asked { .. } | Effect::CalledOff | Effect::Halted { .. } => None,
        },
        Command::Cancel => match halted(bot, order, &by).await? {
            Effect::Halted { too_late, .. } if !too_late.is_empty() => Some(reply::too_late()),
            Effect::Halted { jobs, n_called_off, .. } if !jobs.is_empty() || n_called_off > 0 => {
                None
            }
            Effect::Halted { n_looks, .. } if n_looks > 0 && has_label(place, order).await? => None,
            Effect::Halted { .. } => Some(reply::nothing_to_stop()),
            Effect::Asked { .. } | Effect::Busy { .. } | Effect::CalledOff => None,
        },
    };
    react(place, order, SEEN).await;
    match words {
        Some(words) => answer(bot, place, order, comments, &words).await.map(Some),
        None => Ok(None),
    }
}

/// Queues the job that is asked for, once.
async fn asked(bot: &Bot, order: &Order, by: &str) -> Result<Effect, Error> {
    if let Some(effect) = &order.effect {
        return Ok(effect.clone());
    }
    let effect = bot.store.ask_by_order(order, by, bot.clock.now()).await?;
    bot.wake.notify_one();
    effect.ok_or(Error::Lost)
}

/// Has the jobs of the issue stopped, once: those that run are told, those that wait are due.
async fn halted(bot: &Bot, order: &Order, by: &str) -> Result<Effect, Error> {
    if let Some(effect) = &order.effect {
        return Ok(effect.clone());
    }
    let effect = bot.store.halt_by_order(order, by, bot.clock.now()).await?;
    bot.halts.notify_waiters();
    effect.ok_or(Error::Lost)
}

/// Whether a look that waits may find that somebody asks.
async fn has_label(place: &Place, order: &Order) -> Result<bool, Error> {
    let issue = place.forge.issue(&order.subject.repo, order.subject.issue).await?;
    Ok(issue.labels.contains(&place.settings.label))
}

/// What is told to people of an order's issue.
async fn explained(bot: &Bot, place: &Place, order: &Order) -> Result<Explanation, store::Error> {
    let history = explain::for_people(bot.store.history(&order.subject).await?);
    let mut explained = explain::explain(&history, &place.settings, bot.clock.now());
    explained.standing = explain::standing_for_people(explained.standing, &place.settings);
    Ok(explained)
}

/// Writes the answer, unless an earlier attempt has. `comments` were read in this attempt.
async fn answer(
    bot: &Bot,
    place: &Place,
    order: &Order,
    comments: &[Comment],
    words: &str,
) -> Result<i64, Error> {
    let marker = reply::answer_marker(order.comment);
    let is_it = |it: &&Comment| it.author.id == place.own_id && it.body.starts_with(&marker);
    if let Some(written) = comments.iter().find(is_it) {
        return Ok(written.id);
    }
    let body = bot.redactor.redact(&format!("{marker}\n{words}\n"));
    Ok(place.forge.comment(&order.subject.repo, order.subject.issue, &body).await?)
}

/// A forge without this reaction, or on which it fails, is no reason to leave a command.
async fn react(place: &Place, order: &Order, reaction: &str) {
    let repo = &order.subject.repo;
    if let Err(error) = place.forge.react_to_comment(repo, order.comment, reaction).await {
        tracing::warn!(error = %chain(&error), "a command got no reaction");
    }
}
