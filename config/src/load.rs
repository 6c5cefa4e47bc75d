//! Reading and checking.

use std::path::{Path, PathBuf};

use crate::Config;

/// What is wrong with a setting.
#[derive(Debug, thiserror::Error)]
#[error("cannot use `{}`: key `{key}`: {reason}", file.display())]
pub struct Error {
    /// The file that holds the setting.
    pub file: PathBuf,
    /// The setting, dotted.
    pub key: String,
    /// What is wrong and what would be right.
    pub reason: String,
}

/// Reads and checks a file.
///
/// # Errors
/// Names file, key and reason.
pub fn load(file: &Path) -> Result<Config, Error> {
    let text = std::fs::read_to_string(file).map_err(|e| Error {
        file: file.into(),
        key: String::new(),
        reason: e.to_string(),
    })?;
    parse(file, &text)
}

/// Checks a text; `file` is only named in errors.
///
/// # Errors
/// Names file, key and reason.
pub fn parse(file: &Path, text: &str) -> Result<Config, Error> {
    parse_toml(file, text)
}

pub(crate) fn parse_toml<T: serde::de::DeserializeOwned>(
    file: &Path,
    text: &str,
) -> Result<T, Error> {
    toml::from_str(text).map_err(|e| Error {
        file: file.into(),
        key: String::new(),
        reason: e.to_string(),
    })
}
