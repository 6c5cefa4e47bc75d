//! Reading, with an error that names file, key and reason.

use std::io::ErrorKind;
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
    let text = std::fs::read_to_string(file).map_err(|error| {
        let next = match error.kind() {
            ErrorKind::NotFound => {
                "make it, as `config/example.toml` shows, or name another with --config"
            }
            ErrorKind::PermissionDenied => {
                "run this as a user who may read it, such as `sudo -u hyla hyla ...`"
            }
            ErrorKind::IsADirectory => "name the file in it with --config",
            _ => "`config/example.toml` shows every key",
        };
        let reason = format!("{error}; {next}");
        Error { file: file.into(), key: String::new(), reason }
    })?;
    parse(file, &text)
}

/// Checks a text; `file` is only named in errors.
///
/// # Errors
/// Names file, key and reason.
pub fn parse(file: &Path, text: &str) -> Result<Config, Error> {
    let config: Config = parse_toml(file, text).map_err(|error| match is_nameless(text) {
        // Without the parser's own words: what stands there may be a secret.
        true => Error {
            key: "forge".into(),
            reason: "a forge has a name, which stands in its webhook address: write `[forge.NAME]`, such as `[forge.main]`, instead of `[forge]`".into(),
            ..error
        },
        false => error,
    })?;
    crate::check::config(&config).map_err(|(key, reason)| {
        let reason = match written(text, &key) {
            Some(value) if !reason.contains(&value) => format!("{reason}, and is `{value}`"),
            Some(_) | None => reason,
        };
        Error { file: file.into(), key, reason }
    })?;
    Ok(config)
}

/// Whether a forge's settings stand in `[forge]` itself.
fn is_nameless(text: &str) -> bool {
    let table: toml::Table = text.parse().unwrap_or_default();
    table.get("forge").is_some_and(|forges| match forges.as_table() {
        Some(forges) => forges.values().any(|forge| !forge.is_table()),
        None => true,
    })
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
        let mut reason = at(error.inner());
        // An address that cannot be read is quoted, with the password that may be in it.
        if reason.contains('@') {
            reason.truncate(reason.find(": \"").unwrap_or(reason.len()));
        }
        // The parsers of addresses do not say what they were given.
        if let Some(value) = written(text, &key).filter(|value| !reason.contains(value)) {
            reason = format!("{reason}: `{value}`");
        }
        if let Some(form) = form(&key, error.inner().message()) {
            reason = format!("{reason}; {form}");
        }
        Error { file: file.into(), key: if key == "." { String::new() } else { key }, reason }
    })
}

/// The value of a key as it stands in the text, if it is a plain one and no secret can be in it.
fn written(text: &str, key: &str) -> Option<String> {
    let is_closed =
        |part: &str| matches!(part, "token" | "private_key" | "webhook_secrets" | "key" | "env");
    if key.split(['.', '[']).any(is_closed) {
        return None;
    }
    let mut table: toml::Table = text.parse().ok()?;
    let mut parts = key.split('.').peekable();
    while let Some(part) = parts.next() {
        let value = table.remove(part)?;
        if parts.peek().is_none() {
            let shown = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => {
                    value.to_string()
                }
                toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => {
                    return None;
                }
            };
            // An address may hold a password.
            let is_fit = (1..=200).contains(&shown.len()) && !shown.contains('@');
            return (is_fit && !shown.contains(char::is_control)).then_some(shown);
        }
        let toml::Value::Table(inner) = value else { return None };
        table = inner;
    }
    None
}

/// What a right value looks like, for a key or for what its parser expected.
fn form(key: &str, message: &str) -> Option<&'static str> {
    let own = match key.rsplit('.').next().unwrap_or(key) {
        "listen" => Some("write an address and a port, such as \"127.0.0.1:8474\""),
        "url" | "public_url" => Some("write it such as \"https://git.example.org\""),
        "endpoint" => Some(crate::model::ENDPOINT),
        _ => None,
    };
    let (_, expected) = message.rsplit_once("expected ").unwrap_or_default();
    let by_type = || {
        Some(match expected.split([' ', ',']).next()? {
            "usize" | "u32" | "u64" => "write a whole number, such as 4",
            "f32" => "write a number, such as 0.6",
            "a" if expected.starts_with("a duration") => {
                "write it with a unit, such as \"90s\", \"10m\" or \"2h\""
            }
            "a" if expected.starts_with("a boolean") => "write true or false",
            "a" if expected.starts_with("a sequence") => "write a list, such as [\"a\", \"b\"]",
            "a" if expected.starts_with("a string") => "write a text in quotes, such as \"a\"",
            "a" if expected.starts_with("a map") => "write a table, such as { NAME = \"value\" }",
            "path" => "write a path in quotes, such as \"/opt/tools\"",
            _ => return None,
        })
    };
    own.or_else(by_type)
}
