//! Text to token ids and back, by the `tokenizer.json` of a model's folder.
//!
//! Added tokens, such as `<|im_end|>` and `<think>`, steer the model, so they are found in trusted text only; the same
//! letters in untrusted text are ordinary text, whatever stands beside them. All else (NFC, splitting, byte-level BPE) is
//! done by the tokenizers crate, over everything between two added tokens at once: where a text is cut into spans changes
//! nothing. No token is put at the start or the end. Behind a million characters of white space in a row the crate no longer
//! splits, so there, and nowhere else, the ids may be others than those that the model was trained on.

mod added;
mod decoder;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedVocabulary, DecoderWrapper};

use crate::parse::Mark;
use crate::{Error, file};
use added::{Added, Entry};
pub use decoder::{Decoder, Part};

/// Largest `tokenizer.json` that is read, in bytes; the published one has thirteen million.
const FILE_BYTES: u64 = 1 << 26;
/// Largest `tokenizer_config.json` that is read, in bytes; the published one has some ten thousand.
const CONFIG_BYTES: u64 = 1 << 22;
/// Ids stay below. A table of logits has one row for each: sixteen times the published vocabulary is still believed.
const IDS: u32 = 1 << 22;

/// The tokenizer of a model.
pub struct Tokenizer {
    /// Without its added tokens.
    plain: tokenizers::Tokenizer,
    added: Added,
    marks: [(Mark, u32); 4],
    n_ids: usize,
}

/// Text and whether it may steer the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span<'a> {
    /// Added tokens are found.
    Trusted(&'a str),
    /// All of it is ordinary text.
    Untrusted(&'a str),
}

/// Why a text has no tokens.
#[derive(Debug, thiserror::Error)]
#[error("cannot turn a text of {n_bytes} bytes into tokens: {reason}")]
pub struct TokenizeError {
    /// The text's length.
    pub n_bytes: usize,
    /// What the tokenizer says.
    pub reason: String,
}

#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<Entry>,
    normalizer: Option<Stage>,
    pre_tokenizer: Option<Stage>,
    #[serde(default)]
    model: Spelling,
}

/// What is done to a text before it becomes tokens.
#[derive(Deserialize)]
struct Stage {
    #[serde(rename = "type")]
    kind: String,
    /// Of a sequence.
    #[serde(default)]
    pretokenizers: Vec<Stage>,
}

/// What a vocabulary adds to its tokens' texts.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Spelling {
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

impl TokenizerFile {
    /// What the family's tokenizer does with a text: NFC, splitting, byte-level BPE. Another one would be read a little
    /// wrong, or make any amount of text of a little one.
    fn check(&self) -> Result<(), String> {
        match &self.normalizer {
            Some(stage) if stage.kind != "NFC" => {
                return Err(format!("`normalizer` is {}, and this family has NFC", stage.kind));
            }
            Some(_) | None => {}
        }
        if let Some(kind) = self.pre_tokenizer.as_ref().and_then(Stage::odd) {
            let reason = "and this family has Split and ByteLevel";
            return Err(format!("`pre_tokenizer` is or holds {kind}, {reason}"));
        }
        let Spelling { continuing_subword_prefix: prefix, end_of_word_suffix: suffix } =
            &self.model;
        for (key, text) in [("continuing_subword_prefix", prefix), ("end_of_word_suffix", suffix)] {
            if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
                return Err(format!("`model.{key}` is `{text}`, and this family has none"));
            }
        }
        Ok(())
    }
}

impl Stage {
    /// A kind of pre-tokenizer that this family does not have.
    fn odd(&self) -> Option<&str> {
        match self.kind.as_str() {
            "Split" | "ByteLevel" => None,
            "Sequence" => self.pretokenizers.iter().find_map(Self::odd),
            kind => Some(kind),
        }
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and from `tokenizer_config.json`, if it is there, the added tokens that only it lists.
    ///
    /// # Errors
    /// Names the file that is missing, broken or too large, or that asks for what the family's tokenizer does not do.
    pub fn load(folder: &Path) -> Result<Self, Error> {
        let file = folder.join("tokenizer.json");
        let bytes = file::read(&file, FILE_BYTES)?;
        let wrong = |reason: String| Error::File { file: file.clone(), reason };
        let listed: TokenizerFile = file::parse(&file, &bytes)?;
        // Before the crate reads it, which trusts what it reads.
        listed.check().map_err(wrong)?;
        let mut plain = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|error| wrong(format!("it is no tokenizer: {error}")))?;
        check(&plain).map_err(wrong)?;
        plain.with_added_vocabulary(AddedVocabulary::new());
        plain.with_padding(None);
        plain.with_truncation(None).map_err(|error| wrong(error.to_string()))?;

        let mut added = Added::default();
        for entry in listed.added_tokens {
            added.add(entry).map_err(wrong)?;
        }
        let config = folder.join("tokenizer_config.json");
        added::add_from_config(&mut added, &config, CONFIG_BYTES)?;

        let own = plain.get_vocab(false).into_values();
        let last = own.chain(added.ids()).max().unwrap_or_default();
        if last >= IDS {
            return Err(wrong(format!("`model.vocab` has the id {last}, above {IDS}")));
        }
        let id = |mark: Mark| {
            let id = added.id(mark.text()).ok_or_else(|| {
                let name = mark.text();
                wrong(format!("it has no added token `{name}`; models of this family have one"))
            })?;
            Ok((mark, id))
        };
        let marks = [
            id(Mark::ThinkOpen)?,
            id(Mark::ThinkClose)?,
            id(Mark::CallOpen)?,
            id(Mark::CallClose)?,
        ];
        Ok(Self { plain, added, marks, n_ids: last as usize + 1 })
    }

    /// The ids of the spans, one after the other as one text.
    ///
    /// # Errors
    /// The tokenizer fails on the text.
    pub fn encode(&self, spans: &[Span<'_>]) -> Result<Vec<u32>, TokenizeError> {
        let mut text = String::new();
        // Where it is trusted; neighbours are joined.
        let mut trusted: Vec<Range<usize>> = Vec::new();
        for span in spans {
            let start = text.len();
            match span {
                Span::Untrusted(words) => text.push_str(words),
                Span::Trusted(words) => {
                    text.push_str(words);
                    match trusted.last_mut() {
                        Some(last) if last.end == start => last.end = text.len(),
                        Some(_) | None => trusted.push(start..text.len()),
                    }
                }
            }
        }
        let mut ids = Vec::new();
        let mut done = 0;
        for range in trusted {
            let mut at = range.start;
            while let Some((place, id)) = self.added.find(&text[at..range.end]) {
                self.encode_plain(&text[done..at + place.start], &mut ids)?;
                ids.push(id);
                at += place.end;
                done = at;
            }
        }
        self.encode_plain(&text[done..], &mut ids)?;
        Ok(ids)
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        if text.is_empty() {
            return Ok(());
        }
        let encoding = self.plain.encode_fast(text, false);
        let encoding = encoding
            .map_err(|error| TokenizeError { n_bytes: text.len(), reason: error.to_string() })?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// Ids below this number are tokens; rows of the embedding from it on are padding.
    pub fn n_ids(&self) -> usize {
        self.n_ids
    }

    /// The id of a token by its text: of an added token, or else of one of the vocabulary, in its byte-level spelling.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.added.id(token).or_else(|| self.plain.token_to_id(token))
    }

    /// The mark that a token is.
    pub fn mark(&self, id: u32) -> Option<Mark> {
        self.marks.iter().find(|(_, each)| *each == id).map(|(mark, _)| *mark)
    }

    /// The bytes of a token, perhaps only a part of a character; none for an id that is no token. Control tokens have those
    /// of their names.
    pub fn bytes(&self, id: u32) -> Vec<u8> {
        match self.added.token(id) {
            Some(token) => token.content.as_bytes().to_vec(),
            None => {
                self.plain.id_to_token(id).map_or_else(Vec::new, |token| decoder::bytes(&token))
            }
        }
    }

    /// Whether a token is an added one, which may steer the model.
    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.added.token(id).is_some()
    }

    /// The characters, white space aside, that added tokens are made of.
    pub(crate) fn letters_of_added(&self) -> BTreeSet<char> {
        self.added.letters()
    }

    /// The text of ids. Special tokens are left out, marks are spelled, and bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = self.decoder();
        let mut text = String::new();
        for id in ids {
            let part = decoder.push(*id);
            text.push_str(&part.text);
            text.push_str(part.mark.map_or("", Mark::text));
        }
        text + &decoder.finish()
    }

    /// Takes ids one by one.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder::new(self)
    }
}

/// What the family's tokenizer does; another one would be read a little wrong and nobody would see.
fn check(tokenizer: &tokenizers::Tokenizer) -> Result<(), String> {
    let ModelWrapper::BPE(model) = tokenizer.get_model() else {
        return Err("`model` is no BPE".into());
    };
    if model.dropout.is_some_and(|share| share > 0.0) {
        return Err("`model.dropout` would draw tokens by chance; set it to null".into());
    }
    if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
        return Err("`decoder` is not ByteLevel".into());
    }
    let is_missing =
        |byte: &u8| tokenizer.token_to_id(&decoder::letter(*byte).to_string()).is_none();
    match (0..=255).find(is_missing) {
        Some(byte) => Err(format!("`model.vocab` has no token for the byte {byte}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
