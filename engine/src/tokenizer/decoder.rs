//! Token ids to text, as they come. A character is handed out when its last byte is there, never in halves.

use super::Tokenizer;
use crate::parse::Mark;

/// Holds back the bytes of a character that is not complete.
pub struct Decoder<'a> {
    tokenizer: &'a Tokenizer,
    held: Vec<u8>,
}

/// What one token adds to a turn: first the text, then the mark.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// Text that is certain, possibly empty.
    pub text: String,
    /// The mark, if the token is one. Its letters are not in the text.
    pub mark: Option<Mark>,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, held: Vec::new() }
    }

    /// Takes the next id. Special tokens add nothing, and neither do ids that are no token.
    pub fn push(&mut self, id: u32) -> Part {
        let mark = self.tokenizer.mark(id);
        if mark.is_some() {
            // Whatever comes behind the mark, it no longer completes the character.
            return Part { text: self.flush(), mark };
        }
        match self.tokenizer.added.token(id) {
            Some(token) if token.is_special => {}
            Some(token) => self.held.extend_from_slice(token.content.as_bytes()),
            None => self.hold(id),
        }
        Part { text: self.certain(), mark: None }
    }

    /// What is left when the turn ends. Bytes without their character become U+FFFD.
    pub fn finish(mut self) -> String {
        self.flush()
    }

    fn hold(&mut self, id: u32) {
        let token = self.tokenizer.plain.id_to_token(id);
        self.held.extend(token.map_or_else(Vec::new, |token| bytes(&token)));
    }

    fn certain(&mut self) -> String {
        // An incomplete character at the end is at most three bytes long and the only thing that more bytes can change.
        let n_held = match self.held.utf8_chunks().last() {
            Some(last) if is_incomplete(last.invalid()) => last.invalid().len(),
            Some(_) | None => 0,
        };
        let rest = self.held.split_off(self.held.len() - n_held);
        let text = self.flush();
        self.held = rest;
        text
    }

    fn flush(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// Whether more bytes may make a character of these.
fn is_incomplete(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// The letter that stands for a byte in a byte-level vocabulary: the byte's own character where it is visible, and
/// otherwise the next one from U+0100 on.
pub(super) fn letter(byte: u8) -> char {
    if is_visible(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|each| !is_visible(*each)).count();
    char::from_u32(0x100 + n_before as u32).expect("at most 68 bytes are not visible")
}

/// The bytes of a token of the vocabulary.
pub(super) fn bytes(token: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for c in token.chars() {
        match byte(c) {
            Some(byte) => bytes.push(byte),
            // A vocabulary may hold a token that is not spelled in bytes; it is what it says.
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

fn byte(letter: char) -> Option<u8> {
    match u8::try_from(letter) {
        Ok(byte) => is_visible(byte).then_some(byte),
        Err(_) => {
            let n_before = (letter as usize).checked_sub(0x100)?;
            (0..=255).filter(|byte| !is_visible(*byte)).nth(n_before)
        }
    }
}

fn is_visible(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}
