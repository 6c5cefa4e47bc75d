//! The other way to an ask: from time to time the service has missed deliveries repeated, where the forge can, reads which
//! open issues carry the label, and queues a look at each whose ask no job knows. Forges send a webhook once, and lose it
//! when nobody answers.
//!
//! It decides nothing and writes nothing on the forge; the job looks for itself, as after a webhook. One sweep runs at a
//! time, and the next begins a period after it has ended, whether the forge is well or not.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::ask::{self, Look};
use crate::bot::{Bot, Place};
use crate::clock::later;
use crate::forge::{self, Issue};
use crate::halt::chain;
use crate::job::{self, Subject};
use crate::missed;
use crate::store::{self, Kept};
use crate::worker::Stop;

/// How often an issue must have been found answered, unchanged, before its timeline is left unread until it changes.
/// Forges keep no finer times than seconds, so an issue may change once more within the second of the first look.
const ANSWERED_TWICE: u32 = 2;

/// What earlier sweeps found, so that the next one asks less and says less.
#[derive(Debug, Default)]
pub struct Memory {
    answered: BTreeMap<Subject, Answered>,
    missed: BTreeMap<String, missed::Memory>,
    broken: BTreeSet<String>,
}

/// An issue whose ask was found answered.
#[derive(Debug, Clone, Copy)]
struct Answered {
    updated_at: DateTime<Utc>,
    n_times: u32,
}

/// Why something was not swept.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot look for labelled issues")]
    Forge(#[from] forge::Error),
    #[error("cannot queue a look at a labelled issue")]
    Store(#[from] store::Error),
}

/// Sweeps now and from time to time, until it is time to stop.
pub async fn run(bot: &Bot, stop: &Stop) {
    let every: Duration = bot.config.queue.reconcile;
    let mut memory = Memory::default();
    while !stop.is_stopped() {
        tokio::select! {
            () = stop.stopped() => return,
            n_queued = once(bot, &mut memory) => {
                if n_queued > 0 {
                    tracing::info!(n_queued, "found labelled issues that no webhook told of");
                }
            }
        }
        stop.rest(every).await;
    }
}

/// One sweep over every repository on every allow-list. Returns how many looks it queued. What is out of order is logged
/// when it begins and when it has passed, and stops nothing else.
pub async fn once(bot: &Bot, memory: &mut Memory) -> u32 {
    let mut n_queued = 0;
    let mut seen = BTreeMap::new();
    for (name, door) in bot.doors() {
        let place = match door.place(name).await {
            Ok(place) => place,
            Err(error) => {
                memory.broke(name, &error);
                continue;
            }
        };
        memory.mended(name);
        ask_again(bot, &place, memory).await;
        for repository in &place.settings.repositories {
            let what = format!("{name}:{repository}");
            match repository_once(bot, &place, repository, memory, &mut seen).await {
                Ok(n) => {
                    memory.mended(&what);
                    n_queued += n;
                }
                Err(error) => {
                    memory.broke(&what, &error);
                    if is_down(&place, &error).await {
                        break;
                    }
                }
            }
        }
    }
    memory.answered = seen;
    n_queued
}

/// Has the forge repeat what nobody took.
async fn ask_again(bot: &Bot, place: &Place, memory: &mut Memory) {
    let Some(app) = place.forge.own_app() else { return };
    let what = format!("{}, missed deliveries", place.name);
    let before = memory.missed.entry(place.name.clone()).or_default();
    match missed::once(bot, (&place.name, app), before).await {
        Ok(n_asked) => {
            memory.mended(&what);
            if n_asked > 0 {
                tracing::info!(
                    forge = place.name,
                    n_asked,
                    "asked for deliveries that were missed"
                );
            }
        }
        Err(error) => memory.broke(&what, &error),
    }
}

async fn repository_once(
    bot: &Bot,
    place: &Place,
    repository: &str,
    memory: &mut Memory,
    seen: &mut BTreeMap<Subject, Answered>,
) -> Result<u32, Error> {
    // The configuration was checked, so this is a name.
    let Ok(repo) = repository.parse() else { return Ok(0) };
    let mut n_queued = 0;
    for issue in place.forge.labelled(&repo, &place.settings.label).await? {
        let subject =
            Subject { forge: place.name.clone(), repo: repo.clone(), issue: issue.number };
        let known = memory.answered.get(&subject).copied();
        let known = known.filter(|known| known.updated_at == issue.updated_at);
        let n_before = known.map_or(0, |known| known.n_times);
        let is_answered = n_before >= ANSWERED_TWICE
            || match issue_once(bot, place, &subject, &issue).await {
                Ok(Kept::Queued(job)) => {
                    tracing::info!(job.id = %job, issue = %subject, "an ask without a webhook");
                    n_queued += 1;
                    false
                }
                Ok(Kept::Joined(_)) => false,
                Ok(Kept::Ordered | Kept::Ignored | Kept::Repeated) => true,
                Err(error) if is_down(place, &error).await => return Err(error),
                Err(error) => {
                    memory.broke(&subject.to_string(), &error);
                    continue;
                }
            };
        memory.mended(&subject.to_string());
        if is_answered {
            let n_times = n_before.saturating_add(1);
            seen.insert(subject, Answered { updated_at: issue.updated_at, n_times });
        }
    }
    Ok(n_queued)
}

async fn issue_once(
    bot: &Bot,
    place: &Place,
    subject: &Subject,
    issue: &Issue,
) -> Result<Kept, Error> {
    let label = &place.settings.label;
    let history = place.forge.history(&subject.repo, subject.issue, label).await?;
    let asked = match ask::look(issue, label, &history.labels, place.bots()) {
        Look::Nothing(_) => return Ok(Kept::Ignored),
        Look::Refused(asked, _) | Look::Asked(asked) => asked,
    };
    let key = job::key(subject, &asked.ask);
    let now = bot.clock.now();
    let kept = bot.store.look_for(subject, &key, later(now, bot.config.queue.settle), now).await?;
    if let Kept::Queued(_) = kept {
        bot.wake.notify_one();
    }
    Ok(kept)
}

/// Whether it is the forge itself that is out of reach, and not one repository of it.
async fn is_down(place: &Place, error: &Error) -> bool {
    match error {
        Error::Forge(
            forge::Error::Auth { .. }
            | forge::Error::Unwell { .. }
            | forge::Error::Unreachable { .. },
        ) => place.forge.whoami().await.is_err(),
        Error::Forge(
            forge::Error::Denied { .. }
            | forge::Error::Missing { .. }
            | forge::Error::Moved { .. }
            | forge::Error::Declined { .. }
            | forge::Error::Answer { .. },
        ) => false,
        // The database is everybody's.
        Error::Store(_) => true,
    }
}

impl Memory {
    fn broke(&mut self, what: &str, error: &dyn StdError) {
        let error = chain(error);
        if self.broken.insert(what.to_owned()) {
            tracing::error!(what, error, "cannot look for what no webhook told; will try again");
        } else {
            tracing::debug!(what, error, "still cannot look for what no webhook told");
        }
    }

    fn mended(&mut self, what: &str) {
        if self.broken.remove(what) {
            tracing::info!(what, "can look for what no webhook told again");
        }
    }
}
