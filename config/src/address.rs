//! Addresses of servers. What was written for one is never repeated when it is none: it may hold a password.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use url::Url;

pub(crate) fn check(url: &Url) -> Result<(), &'static str> {
    let is_clean = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !matches!(url.scheme(), "http" | "https") {
        return Err("it must start with http:// or https://");
    }
    if url.host_str().is_none() {
        return Err("it names no host");
    }
    if is_clean { Ok(()) } else { Err("it must hold no user, password, query or fragment") }
}

fn parse(text: &str) -> Result<Url, String> {
    Url::parse(text).map_err(|error| format!("this is no address: {error}"))
}

pub(crate) fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

pub(crate) fn optional<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Url>, D::Error> {
    required(deserializer).map(Some)
}
