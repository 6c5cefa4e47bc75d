//! `hyla replay`: a kept delivery read again in the way of the first time. By default it is only said what would follow;
//! acting sends it through the inbox like any other, so that an ask which a job answers already leads to nothing more.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use webhooks::{Accepted, Delivery, Event, Inbox as _};

use crate::explain::shown;
use crate::inbox::{Decision, Inbox, decide};
use crate::job::{JobId, Subject};
use crate::jobs::state;
use crate::redact::Redactor;
use crate::reply;
use crate::store::{self, KeptDelivery, Row, Store};

/// Why a delivery cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No delivery has this id.
    #[error("no delivery has the id `{id}`; `hyla explain` shows those of an issue")]
    Unknown {
        /// The id.
        id: String,
    },
    /// Several forges sent one with this id.
    #[error("`{}` each sent a delivery `{id}`; say which with --forge", forges.join("` and `"))]
    Several {
        /// The id.
        id: String,
        /// The forges.
        forges: Vec<String>,
    },
    /// Its text is gone.
    #[error(
        "the text of delivery `{id}` has been forgotten, as `clean_up.deliveries` says; replay it on the forge, or take the label off and put it on again"
    )]
    Forgotten {
        /// The id.
        id: String,
    },
    /// Its text makes no sense any more.
    #[error("cannot read delivery `{id}`: {reason}")]
    Unreadable {
        /// The id.
        id: String,
        /// Why.
        reason: String,
    },
    /// The database failed.
    #[error("cannot look into the ledger")]
    Store(#[from] store::Error),
    /// It could not be kept again.
    #[error("cannot replay the delivery")]
    Inbox(#[from] webhooks::InboxError),
}

/// A delivery read again.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Its id.
    pub id: String,
    /// As it was kept.
    pub delivery: KeptDelivery,
    /// What it says.
    pub event: Event,
    /// What would follow.
    pub plan: Plan,
    /// The jobs of its issue, oldest first.
    pub jobs: Vec<Row>,
}

/// What would follow from a delivery now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Ignore {
        /// Why.
        why: &'static str,
    },
    /// It would be joined to a look that waits.
    Join {
        /// The issue.
        subject: Subject,
        /// The job.
        job: JobId,
    },
    /// The command in a comment would be carried out, unless it has been.
    Command {
        /// The issue.
        subject: Subject,
    },
    /// A further look would be queued.
    Queue {
        /// The issue.
        subject: Subject,
    },
}

/// Reads a kept delivery again and says what would follow. Nothing is written.
///
/// # Errors
/// There is no such delivery, its text is gone, or the database failed.
pub async fn plan(
    store: &dyn Store,
    forges: &BTreeMap<String, config::Forge>,
    id: &str,
    forge: Option<&str>,
) -> Result<Replay, Error> {
    let mut found = store.deliveries(id).await?;
    found.retain(|delivery| forge.is_none_or(|forge| forge == delivery.forge));
    let delivery = match (found.pop(), found.is_empty()) {
        (None, _) => return Err(Error::Unknown { id: id.to_owned() }),
        (Some(one), true) => one,
        (Some(last), false) => {
            let mut forges: Vec<String> = found.into_iter().map(|each| each.forge).collect();
            forges.push(last.forge);
            return Err(Error::Several { id: id.to_owned(), forges });
        }
    };
    if delivery.payload.is_empty() {
        return Err(Error::Forgotten { id: id.to_owned() });
    }
    let event = webhooks::read(&delivery.event, &delivery.payload)
        .map_err(|reason| Error::Unreadable { id: id.to_owned(), reason })?;
    let Decision { look, command, about, .. } =
        decide(forges, &delivery.forge, event.clone(), &Redactor::default());
    let jobs = match &about {
        Some(subject) => store.history(subject).await?.jobs,
        None => Vec::new(),
    };
    let plan = match look {
        Err(_) if let Some(command) = command => Plan::Command { subject: command.subject },
        Err(why) => Plan::Ignore { why },
        Ok(subject) => match store.waiting_look(&subject).await? {
            Some(job) => Plan::Join { subject, job },
            None => Plan::Queue { subject },
        },
    };
    Ok(Replay { id: id.to_owned(), delivery, event, plan, jobs })
}

/// Sends the delivery through the inbox, under an id of its own.
///
/// # Errors
/// It could not be kept.
pub async fn act(inbox: &Inbox, replay: &Replay) -> Result<Accepted, Error> {
    let at = inbox.clock.now().timestamp_micros();
    let delivery = Delivery {
        forge: replay.delivery.forge.clone(),
        id: format!("{}+replay-{at}", replay.id),
        event: replay.delivery.event.clone(),
        payload: replay.delivery.payload.clone(),
    };
    Ok(inbox.accept(delivery, replay.event.clone()).await?)
}

/// For a person: what the delivery is and what would follow.
pub fn text(replay: &Replay) -> String {
    let KeptDelivery { forge, event, at, .. } = &replay.delivery;
    let mut out =
        format!("delivery {} ({event}) of forge `{forge}` came at {}\n", replay.id, shown(*at));
    out.push_str(&match &replay.plan {
        Plan::Ignore { why } => format!("nothing follows from it: {why}\n"),
        Plan::Join { subject, job } => {
            format!("it asks for a look at {subject} and is joined to job {job}, which waits\n")
        }
        Plan::Command { subject } => {
            format!("it tells of a command on {subject}, which is carried out unless it has been\n")
        }
        Plan::Queue { subject } => format!("it asks for a look at {subject}, as a new job\n"),
    });
    for row in &replay.jobs {
        let key = row.job.key.as_deref().unwrap_or("no ask yet");
        out.push_str(&format!("job {} has been there: {key}, {}\n", row.job.id, state(row)));
    }
    let has_key = replay.jobs.iter().any(|row| row.job.key.is_some());
    if has_key && matches!(replay.plan, Plan::Join { .. } | Plan::Queue { .. }) {
        out.push_str("a look that finds the ask of one of these jobs comes to nothing\n");
    }
    reply::lines(&out)
}

/// What came of acting, for a person.
pub fn outcome(accepted: Accepted) -> &'static str {
    match accepted {
        Accepted::Queued => "queued: `hyla serve` will look at it\n",
        Accepted::Joined => "joined to the look that waits\n",
        Accepted::Ignored => "kept; nothing follows from it\n",
        Accepted::Repeated => "known already; nothing was written\n",
    }
}

/// The same for a script. `acted` is what came of acting, if it was acted.
pub fn json(replay: &Replay, acted: Option<Accepted>) -> Value {
    let (plan, why, subject, job) = match &replay.plan {
        Plan::Ignore { why } => ("ignore", Some(*why), None, None),
        Plan::Join { subject, job } => ("join", None, Some(subject), Some(job.0)),
        Plan::Command { subject } => ("command", None, Some(subject), None),
        Plan::Queue { subject } => ("queue", None, Some(subject), None),
    };
    let jobs = replay
        .jobs
        .iter()
        .map(|row| json!({ "job": row.job.id, "key": row.job.key, "state": state(row) }));
    json!({
        "delivery": replay.id,
        "forge": replay.delivery.forge,
        "event": replay.delivery.event,
        "received_at": replay.delivery.at.to_rfc3339(),
        "plan": plan,
        "why": why,
        "issue": subject.map(Subject::to_string),
        "job": job,
        "jobs": jobs.collect::<Vec<_>>(),
        "acted": acted.map(Accepted::name),
    })
}
