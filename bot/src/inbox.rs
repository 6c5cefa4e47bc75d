//! A verified delivery becomes a row and, where it asks for a look at an issue, a job: one transaction.
//!
//! Nothing is asked of the forge here: the forge waits for its answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Notify;
use webhooks::{Accepted, Cause, Delivery, Event, InboxError};

use crate::clock::{Clock, later};
use crate::command;
use crate::input;
use crate::job::Subject;
use crate::redact::Redactor;
use crate::store::{Kept, NewCommand, NewDelivery, Sighting, Store};

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
    /// Told when there is a command to carry out.
    pub orders: Arc<Notify>,
    /// Takes the secrets out of what is kept: people may have published one.
    pub redactor: Redactor,
}

/// What a delivery asks for, decided from its own words and the configuration alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The issue to look at, or why there is none.
    pub look: Result<Subject, &'static str>,
    /// The command that it tells of.
    pub command: Option<NewCommand>,
    /// The issue or pull request that it is about, where it says so.
    pub about: Option<Subject>,
    /// How it shows that issue, where it may ask for something.
    pub sighting: Option<Sighting>,
}

#[async_trait]
impl webhooks::Inbox for Inbox {
    async fn accept(&self, delivery: Delivery, event: Event) -> Result<Accepted, InboxError> {
        let now = self.clock.now();
        let Decision { look, command, about, sighting } =
            decide(&self.forges, &delivery.forge, event, &self.redactor);
        let (subject, note) = match (look, &command) {
            (_, Some(_)) => (None, None),
            (Ok(subject), None) => (Some(subject), None),
            (Err(why), None) => (None, Some(why.to_owned())),
        };
        let kept = NewDelivery {
            forge: delivery.forge,
            id: delivery.id,
            event: delivery.event,
            payload: self.without_secrets(delivery.payload),
            subject,
            about,
            due: later(now, self.settle),
            note,
            sighting,
            command,
        };
        match self.store.accept(&kept, now).await {
            Ok(Kept::Queued(_)) => {
                self.wake.notify_one();
                Ok(Accepted::Queued)
            }
            Ok(Kept::Ordered) => {
                self.orders.notify_one();
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
    /// A verified payload as it is kept. It is JSON before and after, and JSON is text.
    fn without_secrets(&self, payload: Vec<u8>) -> Vec<u8> {
        match String::from_utf8(payload) {
            Ok(text) => self.redactor.redact(&text).into_bytes(),
            Err(other) => other.into_bytes(),
        }
    }
}

/// Why a delivery that tells of a command asks for no look.
pub const IS_A_COMMAND: &str = "it tells of a command";

/// Decides what a delivery of one of these forges asks for.
pub fn decide(
    forges: &BTreeMap<String, config::Forge>,
    forge: &str,
    event: Event,
    redactor: &Redactor,
) -> Decision {
    let settings = forges.get(forge);
    let subject = |(repo, issue)| {
        let subject = Subject { forge: forge.to_owned(), repo, issue };
        match settings {
            Some(settings) => subject.as_allowed(settings),
            None => subject,
        }
    };
    let ((repo, issue), cause, seen, comment) = match event {
        Event::Other { about, reason } => {
            let about = about.map(subject);
            return Decision { look: Err(reason), command: None, about, sighting: None };
        }
        Event::IssueSeen { repo, number, cause, seen } => ((repo, number), cause, seen, None),
        Event::CommentWritten { repo, number, comment, seen } => {
            let comment = command::parse(&comment.body).map(|command| (comment, command));
            let seen = seen.filter(|_| comment.is_some());
            ((repo, number), Cause::Changed, seen, comment)
        }
    };
    let is_allowed = settings.is_some_and(|settings| settings.allows(&repo.to_string()));
    let sighting = settings.zip(seen).map(|(settings, seen)| Sighting {
        has_label: seen.labels.contains(&settings.label),
        words: input::digest_of_words(&seen.title, &seen.body, redactor),
    });
    let subject = subject((repo, issue));
    let command = comment.filter(|_| is_allowed).map(|(comment, command)| NewCommand {
        subject: subject.clone(),
        comment: comment.id,
        author: comment.author,
        name_seen: command.name(),
    });
    let look = match cause {
        Cause::Changed if command.is_some() => Err(IS_A_COMMAND),
        Cause::Changed => Err("this change alone asks for nothing"),
        Cause::Opened | Cause::Reopened | Cause::LabelsMayHaveChanged => match settings {
            None => Err("no forge has this name"),
            Some(_) if !is_allowed => Err("the repository is not on the allow-list"),
            Some(_) => Ok(subject.clone()),
        },
    };
    Decision { look, command, about: Some(subject), sighting }
}
