//! Takes the bot's own secrets out of any text that leaves: transcripts, comments, bodies, sentences for the operator.
//!
//! It knows the secrets' values and their usual disguises. It does not guess what else might be a secret; the gate does.

use std::fmt::Write as _;

use config::Secret;
use regex::Regex;
use secrecy::ExposeSecret;

/// Shorter secrets would tear holes into ordinary words.
const SHORTEST: usize = 6;
const MARK: &str = "[secret]";

/// Replaces secrets. `Debug` prints none.
#[derive(Clone, Default)]
pub struct Redactor {
    pattern: Option<Regex>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor")
    }
}

impl Redactor {
    /// A redactor of these secrets: as they are, percent-encoded, as base64 alone and after `user:`, and as hex.
    pub fn new(secrets: &[&Secret]) -> Self {
        let mut spellings: Vec<String> = secrets
            .iter()
            .map(|secret| secret.expose_secret())
            .filter(|secret| secret.len() >= SHORTEST)
            .flat_map(spellings)
            .collect();
        // The longest first: one secret may be the start of another.
        spellings.sort_by_key(|spelling| std::cmp::Reverse(spelling.len()));
        spellings.dedup();
        if spellings.is_empty() {
            return Self::default();
        }
        let alternatives: Vec<String> = spellings.iter().map(|text| regex::escape(text)).collect();
        let pattern =
            Regex::new(&alternatives.join("|")).expect("escaped text is a regular expression");
        Self { pattern: Some(pattern) }
    }

    /// The text without the secrets.
    pub fn redact(&self, text: &str) -> String {
        match &self.pattern {
            Some(pattern) => pattern.replace_all(text, MARK).into_owned(),
            None => text.to_owned(),
        }
    }
}

fn spellings(secret: &str) -> Vec<String> {
    let mut percent = String::new();
    for byte in secret.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            percent.push(char::from(byte));
        } else {
            write!(percent, "%{byte:02X}").expect("a String takes every write");
        }
    }
    let json = serde_json::to_string(secret).expect("a string is JSON");
    let mut all =
        vec![secret.to_owned(), percent, json.trim_matches('"').to_owned(), hex::encode(secret)];
    // Base64 of a text that holds the secret depends on its place in groups of three bytes.
    for shift in 0..3 {
        all.extend(base64_core(secret.as_bytes(), shift));
    }
    all
}

/// The base64 digits that every text with these bytes at this offset modulo 3 has in common.
fn base64_core(bytes: &[u8], shift: usize) -> Option<String> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits: u32 = 0;
    let mut n_bits = 0;
    let mut digits = String::new();
    // The digits that mix in bytes before the secret are left out.
    let skip_bits = [0, 4, 2][shift];
    for (at, &byte) in bytes.iter().enumerate() {
        bits = (bits << 8) | u32::from(byte);
        n_bits += 8;
        if at == 0 {
            n_bits -= skip_bits;
        }
        while n_bits >= 6 {
            n_bits -= 6;
            digits.push(char::from(DIGITS[((bits >> n_bits) & 63) as usize]));
        }
    }
    (digits.len() >= SHORTEST).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disguise_of_a_secret_is_replaced() {
        let (token, short): (Secret, Secret) = ("tok/en+\"1234 5".into(), "abc".into());
        let redactor = Redactor::new(&[&token, &short]);
        let encoded = |prefix: &str| {
            // Known digits, made by `printf PREFIX%s | base64`.
            match prefix {
                "" => "dG9rL2VuKyIxMjM0IDU=",
                "u:" => "dTp0b2svZW4rIjEyMzQgNQ==",
                "bot:" => "Ym90OnRvay9lbisiMTIzNCA1",
                _ => unreachable!(),
            }
        };
        for text in [
            "tok/en+\"1234 5",
            "tok%2Fen%2B%221234%205",
            "tok/en+\\\"1234 5",
            encoded(""),
            encoded("u:"),
            encoded("bot:"),
            "746f6b2f656e2b22313233342035",
        ] {
            let redacted = redactor.redact(&format!("a {text} b"));
            assert!(redacted.contains(MARK), "{text} gave {redacted}");
            assert!(
                !redacted.contains("1234") && !redacted.contains("MTIz"),
                "{text} gave {redacted}"
            );
        }
        assert_eq!(redactor.redact("abc is a word"), "abc is a word");
        assert_eq!(Redactor::new(&[]).redact("x"), "x");
    }

    #[test]
    fn a_longer_secret_goes_whole() {
        let (one, two): (Secret, Secret) = ("secret-1".into(), "secret-1-and-more".into());
        assert_eq!(Redactor::new(&[&one, &two]).redact("secret-1-and-more"), MARK);
    }
}
