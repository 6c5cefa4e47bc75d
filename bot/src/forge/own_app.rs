//! The bot's own GitHub App, as the forge knows it: where it is installed, what it may do there, and what its webhook told.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::Error;
use crate::job::RepoName;

/// What an app can ask about itself. Nothing of this is for a user's token.
#[async_trait]
pub trait OwnApp: Send + Sync {
    /// Its installation for a repository. One that is not there is an error.
    async fn installation(&self, repo: &RepoName) -> Result<Installation, Error>;
    /// Its webhook, or none if it has none.
    async fn webhook(&self) -> Result<Option<Webhook>, Error>;
    /// The newest deliveries of its webhook, the newest first: one page.
    async fn newest_deliveries(&self) -> Result<Vec<Delivery>, Error>;
    /// The deliveries since an instant of the forge's clock, or as far back as the forge knows them, the newest first. Of
    /// very many the newest.
    async fn deliveries_since(&self, since: Option<DateTime<Utc>>) -> Result<Vec<Delivery>, Error>;
    /// Has one delivered once more.
    async fn deliver_again(&self, delivery: &Delivery) -> Result<(), Error>;
}

/// An app in the repositories of one account.
#[derive(Debug, Clone)]
pub struct Installation {
    /// What its owner has granted: names such as `contents`, with `read`, `write` or `admin`.
    pub permissions: BTreeMap<String, String>,
    /// The events that its webhook is told of, such as `issues`.
    pub events: BTreeSet<String>,
}

/// Where an app's webhook goes.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// The address that deliveries are sent to.
    pub url: String,
    /// Whether deliveries are signed.
    pub has_secret: bool,
}

/// One try to deliver an event.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The number of this try.
    pub id: u64,
    /// The delivery's id, which all its tries share.
    pub guid: String,
    /// When it was tried, by the forge's clock.
    pub at: DateTime<Utc>,
    /// The event's name.
    pub event: String,
    /// What was answered, in the forge's words, such as `OK`.
    pub status: String,
    /// The answer's status; of another range where nobody answered.
    pub status_code: u16,
}

impl Delivery {
    /// Whether somebody has taken it.
    pub fn is_taken(&self) -> bool {
        (200..300).contains(&self.status_code)
    }
}
