//! Takes the bot's own secrets out of any text that leaves or is kept: conversations, transcripts, comments, bodies, the
//! database, the log, sentences for the operator.
//!
//! Texts are redacted where they come in, from people in `input` and `inbox`, from the model and from commands in
//! `workshop`: once a text has been cut or its words have been broken up, half a secret may be left that nothing finds.
//! What leaves is redacted once more. It knows the secrets' values and their usual disguises. It does not guess what else
//! might be a secret; the gate does.

use std::fmt::Write as _;

use config::Secret;
use regex::Regex;
use secrecy::ExposeSecret;

/// Shorter secrets would tear holes into ordinary words.
const SHORTEST: usize = 6;
const MARK: &str = "[secret]";
/// Bytes of a compiled pattern at most: far more than the secrets of any configuration need.
const PATTERN_BYTES: usize = 256 << 20;

/// Replaces secrets. `Debug` prints none.
#[derive(Clone, Default)]
pub struct Redactor {
    patterns: Option<Patterns>,
}

#[derive(Clone)]
struct Patterns {
    whole: Regex,
    /// The same with zero-width spaces anywhere in it, as `reply` breaks mentions and references.
    broken: Regex,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor")
    }
}

impl Redactor {
    /// A redactor of these secrets: as they are, percent-encoded, as base64 of either alphabet alone and after `user:`, and
    /// as hex.
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
        let compile = |spelled: &dyn Fn(&str) -> String| {
            let alternatives: Vec<String> = spellings.iter().map(|text| spelled(text)).collect();
            let pattern = regex::RegexBuilder::new(&alternatives.join("|"));
            { pattern }.size_limit(PATTERN_BYTES).build().expect("escaped text is a pattern")
        };
        let broken = |text: &str| {
            let letters = text.chars().map(|c| regex::escape(c.encode_utf8(&mut [0; 4])));
            letters.collect::<Vec<_>>().join("\u{200b}*")
        };
        let patterns = Patterns { whole: compile(&regex::escape), broken: compile(&broken) };
        Self { patterns: Some(patterns) }
    }

    /// The text without the secrets.
    pub fn redact(&self, text: &str) -> String {
        let Some(patterns) = &self.patterns else { return text.to_owned() };
        let is_broken = text.contains('\u{200b}');
        let pattern = if is_broken { &patterns.broken } else { &patterns.whole };
        pattern.replace_all(text, MARK).into_owned()
    }
}

fn spellings(secret: &str) -> Vec<String> {
    let json = serde_json::to_string(secret).expect("a string is JSON");
    let json = json.strip_prefix('"').and_then(|json| json.strip_suffix('"')).unwrap_or(&json);
    let mut all = vec![
        secret.to_owned(),
        percent(secret, "-._~"),
        // What a path or a form keeps differs from library to library.
        percent(secret, "-._~!$&'()*+,;=:@/"),
        json.to_owned(),
        in_json_for_pages(json),
        hex::encode(secret),
        hex::encode_upper(secret),
    ];
    all.extend([
        in_small_digits(&percent(secret, "-._~")),
        percent(secret, "-._*").replace("%20", "+"),
    ]);
    // Base64 of a text that holds the secret depends on its place in groups of three bytes.
    for shift in 0..3 {
        if let Some(digits) = base64_core(secret.as_bytes(), shift) {
            all.push(digits.replace('+', "-").replace('/', "_"));
            all.push(digits);
        }
    }
    all
}

/// JSON as Gitea and Forgejo write it: what means something in HTML is escaped too.
fn in_json_for_pages(json: &str) -> String {
    json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

/// The secret with every byte but letters, digits and those of `kept` as a percent sign and two digits.
fn percent(secret: &str, kept: &str) -> String {
    let mut out = String::new();
    for byte in secret.bytes() {
        if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("a String takes every write");
        }
    }
    out
}

/// The same with the digits of its percent signs in lower case.
fn in_small_digits(percent: &str) -> String {
    let mut parts = percent.split('%');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| {
        let (digits, rest) = part.split_at(part.len().min(2));
        out + "%" + &digits.to_ascii_lowercase() + rest
    })
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
            "tok%2fen%2b%221234%205",
            "tok/en+%221234%205",
            "tok%2Fen%2B%221234+5",
            "tok/en+\\\"1234 5",
            encoded(""),
            encoded("u:"),
            encoded("bot:"),
            "746f6b2f656e2b22313233342035",
            "746F6B2F656E2B22313233342035",
        ] {
            let redacted = redactor.redact(&format!("a {text} b"));
            assert!(redacted.contains(MARK), "{text} gave {redacted}");
            assert!(
                !redacted.contains("1234") && !redacted.contains("MTIz"),
                "{text} gave {redacted}"
            );
        }
        assert_eq!(redactor.redact("abc is a word"), "abc is a word");
        let odd: Secret = "ab?>~~ab?>~~".into();
        for text in ["YWI_Pn5-YWI_Pn5-", "eDphYj8+fn5hYj8+fn4=", "eDphYj8-fn5hYj8-fn4"] {
            assert!(Redactor::new(&[&odd]).redact(text).contains(MARK), "{text}");
        }
        assert_eq!(redactor.redact("a tok/e\u{200b}n+\"\u{200b}1234 5 b"), "a [secret] b");
        let tag: Secret = "a&b<c>d1234".into();
        assert_eq!(
            Redactor::new(&[&tag]).redact("\"a\\u0026b\\u003cc\\u003ed1234\""),
            "\"[secret]\""
        );
        assert_eq!(Redactor::new(&[]).redact("x"), "x");
    }

    #[test]
    fn a_longer_secret_goes_whole() {
        let (one, two): (Secret, Secret) = ("secret-1".into(), "secret-1-and-more".into());
        assert_eq!(Redactor::new(&[&one, &two]).redact("secret-1-and-more"), MARK);
    }
}
