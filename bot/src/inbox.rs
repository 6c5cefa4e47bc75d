//! A verified delivery becomes a row and, where it asks for a look at an issue, a job: one transaction.
//!
//! Nothing is asked of the forge here: the forge waits for its answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Notify;
use webhooks::{Accepted, Cause, Delivery, Event, InboxError};

use crate::clock::{Clock, later};
use crate::input;
use crate::job::Subject;
use crate::store::{Kept, NewDelivery, Sighting, Store};

/// The door between the webhooks and the store.
pub struct Inbox {
    /// Where deliveries and jobs are kept.
    pub store: Arc<dyn Store>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The forges and their allow-lists.
    pub forges: BTreeMap<String, config::Forge>,
    /// How long to wait for more deliveries about the same issue.
    pub settle: std::time::Duration,
    /// Told when there is something to claim.
    pub wake: Arc<Notify>,
}

#[async_trait]
impl webhooks::Inbox for Inbox {
    async fn accept(&self, delivery: Delivery, event: Event) -> Result<Accepted, InboxError> {
        let now = self.clock.now();
        let sighting = self.sighting(&delivery.forge, &event);
        let (subject, note) = match self.subject(&delivery.forge, event) {
            Ok(subject) => (Some(subject), None),
            Err(why) => (None, Some(why.to_owned())),
        };
        let kept = NewDelivery {
            forge: delivery.forge,
            id: delivery.id,
            event: delivery.event,
            payload: delivery.payload,
            subject,
            due: later(now, self.settle),
            note,
            sighting,
        };
        match self.store.accept(&kept, now).await {
            Ok(Kept::Queued(_)) => {
                self.wake.notify_one();
                Ok(Accepted::Queued)
            }
            Ok(Kept::Joined(_)) => Ok(Accepted::Joined),
            Ok(Kept::Ignored) => Ok(Accepted::Ignored),
            Ok(Kept::Repeated) => Ok(Accepted::Repeated),
            Err(source) => {
                Err(InboxError { forge: kept.forge, id: kept.id, source: Box::new(source) })
            }
        }
    }
}

impl Inbox {
    /// How the issue read and whether the forge's label was on it.
    fn sighting(&self, forge: &str, event: &Event) -> Option<Sighting> {
        let Event::IssueSeen { seen: Some(seen), .. } = event else { return None };
        let label = &self.forges.get(forge)?.label;
        let has_label = seen.labels.iter().any(|each| each == label);
        Some(Sighting { has_label, words: input::digest_of_words(&seen.title, &seen.body) })
    }

    /// The issue to look at, or why there is none.
    fn subject(&self, forge: &str, event: Event) -> Result<Subject, &'static str> {
        let (repo, issue) = match event {
            Event::Other { reason } => return Err(reason),
            Event::IssueSeen { cause: Cause::Changed, .. } => {
                return Err("this change alone asks for nothing");
            }
            Event::IssueSeen { repo, number, .. } => (repo, number),
        };
        let settings = self.forges.get(forge).ok_or("no forge has this name")?;
        if !settings.allows(&repo.to_string()) {
            return Err("the repository is not on the allow-list");
        }
        Ok(Subject { forge: forge.to_owned(), repo, issue })
    }
}
