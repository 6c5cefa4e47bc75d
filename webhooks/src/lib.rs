//! Nothing unverified gets past: HTTP, then a verified body, then one closed, forge-neutral [`Event`].
//!
//! This crate knows no database, no git and no model, and it starts no runtime. It answers 2xx only after the
//! [`Inbox`] has said that the delivery is kept.

mod delivery;
mod event;
mod listen;
mod payload;
mod receive;
mod signature;
#[cfg(test)]
mod tests;

pub use delivery::{Accepted, Delivery, Inbox, InboxError};
pub use event::{ABOUT_A_PULL, Cause, Comment, Event, RepoName, Snapshot};

pub use listen::{Limits, serve};
pub use receive::{BuildError, router};

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::SecretString;

/// Reads the JSON text of a delivery that was verified when it came, in the same way as then. `name` is the event's name
/// in the forge's words.
///
/// # Errors
/// The text is not that of such an event; the reason is for people.
pub fn read(name: &str, payload: &[u8]) -> Result<Event, String> {
    payload::event(name, payload)
}

/// How the deliveries of each forge are verified, and how large they may be.
#[derive(Debug, Clone)]
pub struct Options {
    /// Largest body that is read, in bytes. All bodies in memory together have at most four times as much.
    pub body_limit_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// The configured forges by the name that stands in the URL.
    pub hooks: BTreeMap<String, Hook>,
}

/// What is known of one forge's hooks.
#[derive(Debug, Clone)]
pub struct Hook {
    /// Whose header names and body rules apply.
    pub dialect: Dialect,
    /// One secret, or two while they are rotated. None may be empty.
    pub secrets: Vec<SecretString>,
}

/// Whose header names and body rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Gitea: bare-hex or prefixed HMAC-SHA256; of a form body the JSON text alone is signed.
    Gitea,
    /// Forgejo: as Gitea, with its own header names besides.
    Forgejo,
    /// GitHub: prefixed HMAC-SHA256; a form body is signed as it is.
    GitHub,
}
