//! Deliveries of a GitHub App's webhook that nobody took, because the service was down or out of reach: the server never
//! repeats one by itself, but does when it is asked.
//!
//! What the ledger has is not asked for, so a delivery whose answer was lost is left alone, and one that comes twice makes
//! nothing new. One that fails again and again is given up here; a label is found by the sweep over labelled issues.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use crate::bot::Bot;
use crate::forge::{self, Delivery, OwnApp};
use crate::store;

/// How much earlier than the newest delivery that was seen another may be listed later.
const OVERLAP: TimeDelta = TimeDelta::minutes(15);
/// How often one delivery is asked for.
const TRIES: u32 = 3;
/// How many are asked for in one sweep; the rest waits for the next.
const AT_ONCE: usize = 100;

/// What earlier looks at one forge have found.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// From when on something may be open, by the forge's clock.
    since: Option<DateTime<Utc>>,
    /// How often each delivery was asked for, while the server lists it as failed.
    asked: BTreeMap<String, u32>,
}

/// Why the missed deliveries were not asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The forge does not list them, or does not repeat them.
    #[error("cannot ask for the deliveries that were missed")]
    Forge(#[from] forge::Error),
    /// The ledger does not say what came.
    #[error("cannot tell which deliveries were missed")]
    Store(#[from] store::Error),
}

/// Asks for everything that a forge could not deliver. Returns how many it asked for.
pub(crate) async fn once(
    bot: &Bot,
    (name, app): (&str, &dyn OwnApp),
    memory: &mut Memory,
) -> Result<u32, Error> {
    let tries = app.deliveries_since(memory.since).await?;
    let newest = tries.first().map(|newest| newest.at - OVERLAP);
    let failed = failed(tries);
    memory.asked.retain(|guid, _| failed.iter().any(|it| it.guid == *guid));
    let mut n_asked = 0;
    // Oldest first, so that what people did comes in their order.
    for delivery in failed.iter().rev() {
        let n_before = memory.asked.get(&delivery.guid).copied().unwrap_or_default();
        if n_before >= TRIES || has_come(bot, name, &delivery.guid).await? {
            continue;
        }
        if n_asked as usize >= AT_ONCE {
            return Ok(n_asked);
        }
        memory.asked.insert(delivery.guid.clone(), n_before + 1);
        app.deliver_again(delivery).await?;
        n_asked += 1;
    }
    memory.since = newest.or(memory.since);
    Ok(n_asked)
}

/// The newest try of each delivery that nobody has taken, the newest first.
fn failed(tries: Vec<Delivery>) -> Vec<Delivery> {
    let taken = tries.iter().filter(|it| it.is_taken()).map(|it| it.guid.clone());
    let mut seen: BTreeSet<String> = taken.collect();
    tries.into_iter().filter(|it| seen.insert(it.guid.clone())).collect()
}

async fn has_come(bot: &Bot, name: &str, guid: &str) -> Result<bool, store::Error> {
    let kept = bot.store.deliveries(guid).await?;
    Ok(kept.iter().any(|it| it.forge == name))
}
