//! A host by its name and port, as a list and as a request to a proxy write it. Pure.
//!
//! A host's name is compared as it is written: there are no patterns, and names below it are other hosts.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// The port of a name that is given without one.
const HTTPS: u16 = 443;
/// Characters of a name and of one of its labels at most (RFC 1035, section 2.3.4).
const NAME_CHARS: usize = 253;
const LABEL_CHARS: usize = 63;

/// A host by its name, and a port: `pypi.org:443`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Host {
    name: String,
    port: u16,
}

impl Host {
    /// Its name, in small letters.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Reads what a program asks a proxy to connect to, where the port must be given.
    ///
    /// # Errors
    /// It is no name with a port.
    pub fn asked(text: &str) -> Result<Self, &'static str> {
        let (name, port) = text.rsplit_once(':').ok_or("it names no port")?;
        let port = port_of(port)?;
        Ok(Self { name: name_of(name)?, port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

impl TryFrom<String> for Host {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map_err(|why| {
            format!("`{text}` is no host such as `pypi.org` or `pypi.org:443`: {why}")
        })
    }
}

impl FromStr for Host {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.contains(':') {
            true => Self::asked(text),
            false => Ok(Self { name: name_of(text)?, port: HTTPS }),
        }
    }
}

fn port_of(text: &str) -> Result<u16, &'static str> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = is_plain.then(|| text.parse().ok()).flatten();
    port.filter(|&port| port != 0).ok_or("its port is none from 1 to 65535")
}

/// A name as DNS has it, in letters, digits and hyphens. What two readers may read differently is none: a number as an
/// address, a dot at the end, anything before an `@`.
fn name_of(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.len() > NAME_CHARS {
        return Err("its name is empty or longer than 253 characters");
    }
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty()
            && label.len() <= LABEL_CHARS
            && label.bytes().all(is_plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if !text.split('.').all(is_label) {
        return Err("its name is not made of letters, digits and hyphens between single dots");
    }
    let last = text.rsplit('.').next().unwrap_or_default();
    if last.starts_with(|first: char| first.is_ascii_digit()) {
        return Err("it is an address and no name");
    }
    Ok(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_plain_name_with_a_port() {
        for (text, expected) in [
            ("pypi.org", "pypi.org:443"),
            ("PyPI.org:8443", "pypi.org:8443"),
            ("localhost", "localhost:443"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example:443"),
            ("a-b.c1.example", "a-b.c1.example:443"),
        ] {
            assert_eq!(text.parse::<Host>().map(|host| host.to_string()).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_two_readers_may_read_differently_is_no_host() {
        let long = format!("{}.example", "a".repeat(64));
        for text in [
            "",
            ":443",
            "a.example:",
            "a.example:0",
            "a.example:65536",
            "a.example:+443",
            "a.example:443:443",
            "a.example.",
            ".a.example",
            "a..example",
            "-a.example",
            "a-.example",
            "user@a.example",
            "a.example/x",
            "a\0.example",
            "a b.example",
            "bücher.example",
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "a.example.0x7f",
            "[::1]:443",
            "::1",
            "*.example",
            "https://a.example",
            "a_b.example",
            &long,
        ] {
            assert!(text.parse::<Host>().is_err(), "{text:?}");
        }
        assert!(Host::asked("a.example").is_err(), "a program must say which port it wants");
    }
}
