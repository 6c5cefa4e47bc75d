//! The HTTP side: where to listen, how much to read, how long to wait at the end.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

/// `[server]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Address of the webhook and health endpoints.
    pub listen: SocketAddr,
    /// Largest webhook body that is read, in bytes. GitHub sends up to 25 MB; Gitea and Forgejo set no limit.
    pub body_limit_bytes: usize,
    /// How long a running job may take to park when the service is asked to stop.
    #[serde(with = "humantime_serde")]
    pub shutdown_grace: Duration,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8474)),
            body_limit_bytes: 26_214_400,
            shutdown_grace: Duration::from_secs(30),
        }
    }
}
