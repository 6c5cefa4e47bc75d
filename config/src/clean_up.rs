//! What the service forgets, and when.

use std::time::Duration;

use serde::Deserialize;

/// `[clean_up]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CleanUp {
    /// How often the service looks for what it may forget.
    #[serde(with = "humantime_serde")]
    pub every: Duration,
    /// How long the text of a delivery is kept; as long as its job has not ended in any case.
    #[serde(with = "humantime_serde")]
    pub deliveries: Duration,
    /// How long the transcript, the patch and the commit of a job are kept after its end.
    #[serde(with = "humantime_serde")]
    pub jobs: Duration,
}

impl Default for CleanUp {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self { every: day, deliveries: 30 * day, jobs: 90 * day }
    }
}
