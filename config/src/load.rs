//! Reading, with an error that names file, key and reason.

use std::path::{Path, PathBuf};

use crate::Config;

/// What is wrong with a setting.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    /// The file that holds the setting.
    pub file: PathBuf,
    /// The setting, dotted; empty if it is the file as a whole.
    pub key: String,
    /// What is wrong and what would be right.
    pub reason: String,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot use `{}`: ", self.file.display())?;
        if !self.key.is_empty() {
            write!(f, "`{}`: ", self.key)?;
        }
        f.write_str(&self.reason)
    }
}

/// Reads and checks a file.
///
/// # Errors
/// Names file, key and reason.
pub fn load(file: &Path) -> Result<Config, Error> {
    let text = std::fs::read_to_string(file).map_err(|error| Error {
        file: file.into(),
        key: String::new(),
        reason: format!("{error}; `config/example.toml` shows every key"),
    })?;
    parse(file, &text)
}

/// Checks a text; `file` is only named in errors.
///
/// # Errors
/// Names file, key and reason.
pub fn parse(file: &Path, text: &str) -> Result<Config, Error> {
    let config: Config = parse_toml(file, text)?;
    crate::check::config(&config).map_err(|(key, reason)| Error {
        file: file.into(),
        key,
        reason,
    })?;
    Ok(config)
}

pub(crate) fn parse_toml<T: serde::de::DeserializeOwned>(
    file: &Path,
    text: &str,
) -> Result<T, Error> {
    // The message alone: with its excerpt an error would repeat what may be a secret in the wrong place.
    let at = |error: &toml::de::Error| match error.span() {
        Some(span) => {
            let line = text.get(..span.start).unwrap_or_default().matches('\n').count() + 1;
            format!("line {line}: {}", error.message())
        }
        None => error.message().to_owned(),
    };
    let whole = |error: &toml::de::Error| Error {
        file: file.into(),
        key: String::new(),
        reason: at(error),
    };
    let source = toml::Deserializer::parse(text).map_err(|error| whole(&error))?;
    serde_path_to_error::deserialize(source).map_err(|error| {
        let key = error.path().to_string();
        Error {
            file: file.into(),
            key: if key == "." { String::new() } else { key },
            reason: at(error.inner()),
        }
    })
}
