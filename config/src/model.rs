//! Which model answers, and where: any server that speaks the OpenAI chat-completions protocol, or this process.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use url::Url;

use crate::{Local, ModelKind, SecretRef};

/// `[model]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Where it is.
    pub kind: ModelKind,
    /// Base address of the server, up to and with `/v1`.
    #[serde(deserialize_with = "crate::address::required")]
    pub endpoint: Url,
    /// The model's name at that server.
    pub name: String,
    /// The server's key, if it wants one.
    pub key: Option<SecretRef>,
    /// A PEM file with certificate authorities to trust besides the system's.
    pub ca_file: Option<PathBuf>,
    /// How long the server may take to accept a connection.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// How long the stream of one turn may stay silent; the first byte may take this long too.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// How long one turn may take in all.
    #[serde(with = "humantime_serde")]
    pub turn_timeout: Duration,
    /// How often a turn is asked at most when the server is busy or fails (429 and 5xx).
    pub attempts: u32,
    /// The longest wait that a `Retry-After` is obeyed for.
    #[serde(with = "humantime_serde")]
    pub retry_after_limit: Duration,
    /// The model in this process.
    pub local: Local,
}

/// What an endpoint looks like.
pub(crate) const ENDPOINT: &str = "write it up to and with /v1, such as http://127.0.0.1:8000/v1";

/// The base address of a model's server, as a person writes it.
///
/// # Errors
/// It is none; the text shows one.
pub fn endpoint(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|_| ENDPOINT.to_owned())?;
    crate::check::address(&url, "").map_err(|(_, reason)| format!("{reason}; {ENDPOINT}"))?;
    Ok(url)
}

impl Default for Model {
    fn default() -> Self {
        Self {
            kind: ModelKind::Endpoint,
            endpoint: Url::parse("http://127.0.0.1:8000/v1").expect("a literal URL parses"),
            name: "FrogNano-4B-2609".into(),
            key: None,
            ca_file: None,
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            turn_timeout: Duration::from_secs(7200),
            attempts: 4,
            retry_after_limit: Duration::from_secs(300),
            local: Local::default(),
        }
    }
}
