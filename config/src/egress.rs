//! What a repository's setup command may download, before the model sees anything.

use std::time::Duration;

use serde::Deserialize;

use crate::Host;

/// `[egress]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Egress {
    /// Hosts in the internet that the setup command may download from, by HTTPS. Without any host it has no network.
    pub hosts: Vec<Host>,
    /// Further hosts, which may have addresses of the organisation's own network.
    pub internal_hosts: Vec<Host>,
    /// Bytes that one setup command may send and receive in all.
    pub limit_bytes: u64,
    /// How long a connection may take to be made.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
}

impl Egress {
    /// Whether the setup command may download anything.
    pub fn is_open(&self) -> bool {
        !self.hosts.is_empty() || !self.internal_hosts.is_empty()
    }
}

impl Default for Egress {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            internal_hosts: Vec::new(),
            limit_bytes: 4 << 30,
            connect_timeout: Duration::from_secs(15),
        }
    }
}
