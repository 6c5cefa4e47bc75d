//! Reads the fields of a JSON object. An error names the field as a client would write it; `null` is the same as absent.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::fault::Fault;

/// An object of a request, and where it stands in it.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// What goes before the name of a field, with its dot; empty at the top.
    place: String,
}

impl<'a> Fields<'a> {
    /// The object that is the whole request.
    pub(super) fn top(map: &'a Map<String, Value>) -> Self {
        Self { map, place: String::new() }
    }

    /// An object inside of it.
    pub(super) fn of(value: &'a Value, place: &str) -> Result<Self, Fault> {
        let map = value.as_object().ok_or_else(|| wrong(place, "an object", value))?;
        Ok(Self { map, place: format!("{place}.") })
    }

    /// The field's full name.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.place)
    }

    /// The field's value, if it is there and not null.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, Fault> {
        self.read(key, "a string", Value::as_str)
    }

    pub(super) fn needed_text(&self, key: &str) -> Result<&'a str, Fault> {
        self.text(key)?.ok_or_else(|| Fault::field(self.name(key), "it is missing"))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, Fault> {
        self.read(key, "true or false", Value::as_bool)
    }

    pub(super) fn list(&self, key: &str) -> Result<Option<&'a [Value]>, Fault> {
        self.read(key, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, Fault> {
        self.value(key).map(|value| Self::of(value, &self.name(key))).transpose()
    }

    /// A number within a range.
    pub(super) fn number(
        &self,
        key: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, Fault> {
        let Some(number) = self.read(key, "a number", Value::as_f64)? else { return Ok(None) };
        if !range.contains(&number) {
            return Err(self.outside(key, range.start(), range.end()));
        }
        Ok(Some(number as f32))
    }

    /// A whole number within a range. JSON has one kind of number, so `3.0` is one.
    pub(super) fn integer(
        &self,
        key: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Fault> {
        let read = |value: &Value| match value.as_i64() {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "beyond 63 bits it is the last one"
            )]
            None => {
                value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i64)
            }
            number => number,
        };
        let Some(number) = self.read(key, "a whole number", read)? else { return Ok(None) };
        if !range.contains(&number) {
            return Err(self.outside(key, range.start(), range.end()));
        }
        Ok(Some(number))
    }

    fn read<T>(
        &self,
        key: &str,
        kind: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(value) = self.value(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(&self.name(key), kind, value))
    }

    fn outside(
        &self,
        key: &str,
        start: &dyn std::fmt::Display,
        end: &dyn std::fmt::Display,
    ) -> Fault {
        let found = self.value(key).map(Value::to_string).unwrap_or_default();
        Fault::field(self.name(key), &format!("it must be from {start} to {end}, not {found}"))
    }
}

/// A value of the wrong type.
pub(super) fn wrong(place: &str, expected: &str, found: &Value) -> Fault {
    let found = match found {
        Value::Number(number) => number.to_string(),
        _ => crate::reply::kind(found).to_owned(),
    };
    Fault::field(place, &format!("it must be {expected}, not {found}"))
}
