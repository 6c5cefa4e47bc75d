//! One delivery as it arrived, and the door that it goes through.

use async_trait::async_trait;

use crate::Event;

/// One verified delivery.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The name of the forge in the configuration.
    pub forge: String,
    /// The forge's id of it. A replay on Gitea has a new one, two hooks for one event have two.
    pub id: String,
    /// The event's name in the forge's words, the finer one where there are two.
    pub event: String,
    /// The JSON text, verified. Of a form body, the decoded `payload`.
    pub payload: Vec<u8>,
}

/// Keeps deliveries. The bot implements it with one transaction.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// Keeps the delivery and what it asks for, durably, before it returns.
    ///
    /// # Errors
    /// Nothing was kept; the forge is answered 503 so that a person sees the failed delivery.
    async fn accept(&self, delivery: Delivery, event: Event) -> Result<Accepted, InboxError>;
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// Kept, and an issue will be looked at.
    Queued,
    /// Kept, and joined to a look at the same issue that is still waiting.
    Joined,
    /// Kept; it asks for nothing.
    Ignored,
    /// Seen before under the same id; nothing was written.
    Repeated,
}

impl Accepted {
    /// The name in answers, in logs and for scripts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Joined => "joined",
            Self::Ignored => "ignored",
            Self::Repeated => "repeated",
        }
    }
}

/// The delivery could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot keep delivery `{id}` of forge `{forge}`")]
pub struct InboxError {
    /// The name of the forge.
    pub forge: String,
    /// The delivery's id.
    pub id: String,
    /// Why.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}
