//! The test runs that the bot makes itself.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

/// `[evidence]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evidence {
    /// The test command of a repository, as `"owner/name" = "command"`. A repository without one is asked by its own
    /// `.hyla.toml`, then by what its root folder holds.
    pub test_commands: BTreeMap<String, String>,
    /// How long one run of the tests may take.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Bytes of output kept of each run, half from its head and half from its tail.
    pub output_bytes: usize,
}

impl Default for Evidence {
    fn default() -> Self {
        Self {
            test_commands: BTreeMap::new(),
            timeout: Duration::from_secs(1200),
            output_bytes: 65_536,
        }
    }
}
