//! The arguments of a call, taken as leniently as the original takes them. It knows no tool.

use std::path::Path;

use serde_json::{Map, Value};

use super::Failure;
use crate::workspace::MOUNT;

/// The arguments of one call.
pub(super) struct Arguments(Map<String, Value>);

impl Arguments {
    /// What is not a JSON object counts as an empty one, so that the model reads what it has to send.
    pub(super) fn parse(text: &str) -> Self {
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => Self(fields),
            _ => Self(Map::new()),
        }
    }

    /// The same with each path beneath `place`, which is where commands see the workspace, as one beneath [`MOUNT`].
    pub(super) fn beneath_mount(mut self, place: &Path) -> Self {
        for name in ["file_path", "path", "pattern"] {
            if let Some(Value::String(text)) = self.0.get_mut(name)
                && let Ok(rest) = Path::new(&*text).strip_prefix(place)
            {
                // Both halves were text.
                *text = Path::new(MOUNT).join(rest).to_string_lossy().into_owned();
            }
        }
        self
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A text, if there is one.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, Failure> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(Failure::value(format!(
                "{name} must be a string, not {}",
                crate::reply::kind(other)
            ))),
        }
    }

    /// A text that must be there; it may be empty.
    pub(super) fn required(&self, name: &str) -> Result<&str, Failure> {
        self.text(name)?.ok_or_else(|| Failure::value(format!("{name} is required")))
    }

    /// A number, also as text.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, Failure> {
        let number = match self.value(name) {
            None => return Ok(None),
            Some(Value::Number(number)) => number.as_f64(),
            Some(Value::String(text)) => text.trim().parse().ok(),
            Some(other) => {
                return Err(Failure::value(format!(
                    "{name} must be a number, not {}",
                    crate::reply::kind(other)
                )));
            }
        };
        match number {
            Some(number) if !number.is_nan() => Ok(Some(number)),
            _ => Err(Failure::value(format!("{name} must be a number"))),
        }
    }

    /// A whole number, also as text; what is behind the point is dropped.
    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, Failure> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "beyond the range the nearest end means the same to a file"
        )]
        let whole = |number: f64| number as i64;
        Ok(self.number(name)?.map(whole))
    }

    /// Whether something is wanted: a boolean, or what a model writes for one.
    pub(super) fn truth(&self, name: &str) -> bool {
        match self.value(name) {
            Some(Value::Bool(truth)) => *truth,
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            Some(Value::String(text)) => {
                matches!(
                    text.trim().to_ascii_lowercase().as_str(),
                    "true" | "1" | "yes" | "y" | "on"
                )
            }
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => false,
        }
    }
}
