//! JSON with its long texts cut while it arrives: a reader's endless comment must not hide an issue from the bot.
//!
//! It looks for the ends of strings and for nothing else. What was JSON stays JSON.

/// Bytes of one string at most: 65,536 characters, more than people write, each at most six bytes here. An issue's text that
/// was cut differs from the one in its delivery, and counts as edited.
const STRING_BYTES: usize = 384 << 10;
/// Stands at the end of a string that was cut.
const MARK: &[u8] = b" [the rest of this text is too long to be read]";

/// A body, as far as it has arrived.
#[derive(Default)]
pub(super) struct Shortened {
    /// What is kept.
    pub(super) bytes: Vec<u8>,
    place: Place,
    /// Bytes of the string so far.
    n_bytes: usize,
    is_cut: bool,
    /// Whether the last character was the first half of a pair of escapes.
    is_half: bool,
}

#[derive(Clone, Copy, Default)]
enum Place {
    #[default]
    Outside,
    String,
    /// Behind a backslash and this many bytes.
    Escape(u8),
}

impl Shortened {
    /// Takes the next bytes.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        for &byte in chunk {
            self.take(byte);
        }
    }

    fn take(&mut self, byte: u8) {
        match self.place {
            Place::Outside => {
                if byte == b'"' {
                    (self.place, self.n_bytes, self.is_cut) = (Place::String, 0, false);
                }
                self.bytes.push(byte);
                return;
            }
            Place::String if byte == b'"' => {
                if self.is_cut {
                    self.bytes.extend_from_slice(MARK);
                }
                self.place = Place::Outside;
                self.bytes.push(byte);
                return;
            }
            Place::String => {
                let is_first = !(0x80..=0xbf).contains(&byte);
                self.is_cut |= self.n_bytes >= STRING_BYTES && is_first && !self.is_half;
                if byte == b'\\' {
                    self.place = Place::Escape(0);
                }
                self.is_half = false;
            }
            Place::Escape(0) if byte == b'u' => self.place = Place::Escape(1),
            Place::Escape(0 | 4) => self.place = Place::String,
            Place::Escape(n) => {
                // From D800 to DBFF.
                self.is_half = match n {
                    1 => matches!(byte, b'd' | b'D'),
                    2 => self.is_half && matches!(byte, b'8' | b'9' | b'a' | b'b' | b'A' | b'B'),
                    _ => self.is_half,
                };
                self.place = Place::Escape(n + 1);
            }
        }
        self.n_bytes += 1;
        if !self.is_cut {
            self.bytes.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortened(text: &str, size: usize) -> serde_json::Value {
        let mut body = Shortened::default();
        for chunk in text.as_bytes().chunks(size) {
            body.push(chunk);
        }
        serde_json::from_slice(&body.bytes).expect("it is still JSON")
    }

    #[test]
    fn what_is_short_stays_as_it_is() {
        let text = r#"{"a\"b\\": ["ü\u00fc\ud83d\ude00", "", 1e3, null], "[": "{\"}"}"#;
        let whole: serde_json::Value = serde_json::from_str(text).unwrap();
        for size in 1..8 {
            assert_eq!(shortened(text, size), whole);
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        for unit in ["x", "ü", "😀", r"\n", r"\u003c", r"\ud83d\ude00", "ab\\\""] {
            for lead in ["", "a", "ab", "abc"] {
                let long = unit.repeat(STRING_BYTES + 1);
                let value = shortened(&format!(r#"[{{"body": "{lead}{long}"}}, "end"]"#), 4096);
                let kept = value[0]["body"].as_str().unwrap();
                assert!(kept.len() < STRING_BYTES + 100, "{unit}");
                assert!(kept.ends_with("too long to be read]"), "{unit}");
                assert_eq!(value[1], "end");
            }
        }
    }
}
