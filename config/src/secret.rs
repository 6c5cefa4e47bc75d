//! A secret is a reference to a file or to an environment variable; its value is read once and never printed.

use std::path::PathBuf;

use serde::Deserialize;

/// A secret's value. Its `Debug` prints none of it.
pub type Secret = secrecy::SecretString;

/// Where a secret is: `{ file = "/path" }` or `{ env = "NAME" }`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum SecretRef {
    /// A file whose content, without surrounding white space, is the secret. Under systemd, a credential's path.
    File(PathBuf),
    /// The name of an environment variable of the service.
    Env(String),
}
