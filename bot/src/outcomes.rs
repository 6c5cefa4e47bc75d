//! What became of the bot's drafts: merged as they were, merged after people had changed them, closed, or gone. It is read
//! from the forge from time to time and kept in the ledger; nothing is written there.

use std::collections::BTreeSet;

use crate::bot::{Bot, Place};
use crate::forge::{self, Pull};
use crate::halt::chain;
use crate::store::{self, Drafted, Fate};
use crate::worker::Stop;

/// Drafts that are looked at each time, the newest.
const AT_ONCE: u32 = 1_000;
/// Characters that are kept of what people say.
const WORDS: usize = 300;

/// Why it is not known what became of a draft.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot see what became of a draft")]
    Forge(#[from] forge::Error),
    #[error("cannot keep what became of a draft")]
    Store(#[from] store::Error),
}

/// Looks from time to time until it is time to stop.
pub async fn run(bot: &Bot, stop: &Stop) {
    while !stop.is_stopped() {
        tokio::select! {
            () = stop.stopped() => return,
            _ = once(bot) => {}
        }
        stop.rest(bot.config.queue.reconcile).await;
    }
}

/// Looks at every draft of which nothing is known yet. Returns of how many it is known now.
pub async fn once(bot: &Bot) -> u32 {
    let open = match bot.store.open_drafts(AT_ONCE).await {
        Ok(open) => open,
        Err(error) => {
            tracing::warn!(error = %chain(&error), "cannot read the open drafts; will try again");
            return 0;
        }
    };
    let (mut n_known, mut down) = (0, BTreeSet::new());
    for draft in open {
        if down.contains(&draft.row.job.subject.forge) {
            continue;
        }
        match look(bot, &draft).await {
            Ok(true) => n_known += 1,
            Ok(false) => {}
            Err(error) => {
                let is_down = matches!(
                    error,
                    Error::Forge(forge::Error::Unreachable { .. } | forge::Error::Unwell { .. })
                );
                let (job, error) = (draft.row.job.id, chain(&error));
                tracing::debug!(job.id = %job, error, "will look at the draft again");
                if is_down {
                    down.insert(draft.row.job.subject.forge);
                }
            }
        }
    }
    n_known
}

async fn look(bot: &Bot, draft: &Drafted) -> Result<bool, Error> {
    let job = &draft.row.job;
    // Its forge or repository may be out of the configuration by now.
    let Ok(place) = bot.place(job).await else { return Ok(false) };
    let fate = match place.forge.pull(&job.subject.repo, draft.pull).await? {
        None => Fate::Gone,
        Some(pull) if pull.is_open => return Ok(false),
        Some(pull) if pull.is_merged => {
            let made = job.ready.as_ref().map(|ready| &ready.commit);
            let is_edited = made.zip(pull.head_commit.as_ref()).is_some_and(|(a, b)| a != b);
            Fate::Merged { is_edited }
        }
        Some(pull) => Fate::Closed { why: last_word(bot, &place, draft, &pull).await? },
    };
    bot.store.note_fate(job.id, &fate, bot.clock.now()).await?;
    Ok(true)
}

/// What a person with write access said last on a draft.
async fn last_word(
    bot: &Bot,
    place: &Place,
    draft: &Drafted,
    pull: &Pull,
) -> Result<Option<String>, Error> {
    let repo = &draft.row.job.subject.repo;
    for comment in place.forge.comments(repo, pull.number).await?.into_iter().rev() {
        if comment.author.id == place.own_id {
            continue;
        }
        if place.may_write(repo, &comment.author).await? {
            let words = bot.redactor.redact(&comment.body);
            return Ok(Some(crate::reply::line(&words, WORDS)));
        }
    }
    Ok(None)
}
