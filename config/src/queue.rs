//! Jobs: how many at once, how long a lease holds, how often a failed one is tried again.

use std::time::Duration;

use serde::Deserialize;

/// `[queue]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Jobs that run at the same time.
    pub workers: usize,
    /// How long a claimed job belongs to its worker without a heartbeat.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// How often the worker renews its lease; at most a third of `lease`.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
    /// How often a job is tried at most before it ends as failed.
    pub attempts: u32,
    /// The wait before the second attempt; it doubles with each further one.
    #[serde(with = "humantime_serde")]
    pub backoff: Duration,
    /// The longest wait between two attempts.
    #[serde(with = "humantime_serde")]
    pub backoff_limit: Duration,
    /// How long a job waits at most, in all, for a forge that is out of reach; that uses up no attempt. People are told of
    /// an end for as long as it takes.
    #[serde(with = "humantime_serde")]
    pub forge_patience: Duration,
    /// How long the worker waits for more webhooks of the same issue before it looks at it.
    #[serde(with = "humantime_serde")]
    pub settle: Duration,
    /// How often the service looks for labelled issues whose webhook never came. It also does so when it starts.
    #[serde(with = "humantime_serde")]
    pub reconcile: Duration,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            workers: 1,
            lease: Duration::from_secs(60),
            heartbeat: Duration::from_secs(20),
            attempts: 3,
            backoff: Duration::from_secs(30),
            backoff_limit: Duration::from_secs(600),
            forge_patience: Duration::from_secs(24 * 3600),
            settle: Duration::from_secs(1),
            reconcile: Duration::from_secs(300),
        }
    }
}
