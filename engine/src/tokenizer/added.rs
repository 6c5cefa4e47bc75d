//! The added tokens of a model: what they are called, and where they stand in a text.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;

use super::IDS;
use crate::{Error, file};

/// An added token as both files describe it.
#[derive(Deserialize)]
pub(super) struct Entry {
    /// Missing where it is the key of the entry.
    #[serde(default)]
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

/// An added token.
pub(super) struct Token {
    pub(super) content: String,
    /// Whether it is no part of a text.
    pub(super) is_special: bool,
}

#[derive(Default)]
pub(super) struct Added {
    by_id: BTreeMap<u32, Token>,
    by_content: HashMap<String, u32>,
    /// First bytes of tokens.
    starts: BTreeSet<u8>,
    /// Lengths of tokens, in bytes.
    lengths: BTreeSet<usize>,
}

impl Added {
    /// Adds a token, once.
    pub(super) fn add(&mut self, entry: Entry) -> Result<(), String> {
        let Entry { id, content, single_word, lstrip, rstrip, special } = entry;
        let Some(start) = content.bytes().next() else {
            return Err(format!("the added token {id} has no text"));
        };
        if single_word || lstrip || rstrip {
            return Err(format!(
                "the added token `{content}` has `single_word`, `lstrip` or `rstrip`, which this engine does not do"
            ));
        }
        if id >= IDS {
            return Err(format!("the added token `{content}` has the id {id}, above {IDS}"));
        }
        match (self.by_id.get(&id), self.by_content.get(&content)) {
            (None, None) => {}
            (Some(_), Some(same)) if *same == id => return Ok(()),
            (Some(other), _) => {
                return Err(format!("token {id} is `{content}` and also `{}`", other.content));
            }
            (None, Some(other)) => {
                return Err(format!("the added token `{content}` has the ids {id} and {other}"));
            }
        }
        self.starts.insert(start);
        self.lengths.insert(content.len());
        self.by_content.insert(content.clone(), id);
        self.by_id.insert(id, Token { content, is_special: special });
        Ok(())
    }

    /// The first added token of a text, the longest if several start there: its place and its id.
    pub(super) fn find(&self, text: &str) -> Option<(Range<usize>, u32)> {
        let starts = text.bytes().enumerate().filter(|(_, byte)| self.starts.contains(byte));
        starts.into_iter().find_map(|(start, _)| {
            self.lengths.iter().rev().find_map(|length| {
                let place = start..start + length;
                let id = self.by_content.get(text.get(place.clone())?)?;
                Some((place, *id))
            })
        })
    }

    pub(super) fn token(&self, id: u32) -> Option<&Token> {
        self.by_id.get(&id)
    }

    pub(super) fn id(&self, content: &str) -> Option<u32> {
        self.by_content.get(content).copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.by_id.keys().copied()
    }

    /// The characters of all tokens but white space.
    pub(super) fn letters(&self) -> BTreeSet<char> {
        let all = self.by_content.keys().flat_map(|content| content.chars());
        all.filter(|c| !c.is_whitespace()).collect()
    }
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, Entry>,
}

/// Adds what `tokenizer_config.json` lists; a folder without one lists nothing.
pub(super) fn add_from_config(
    added: &mut Added,
    config: &Path,
    limit_bytes: u64,
) -> Result<(), Error> {
    let Some(listed) = file::json::<Config>(config, limit_bytes)? else { return Ok(()) };
    let wrong = |reason: String| Error::Key {
        file: config.to_owned(),
        key: "added_tokens_decoder".into(),
        reason,
    };
    for (key, entry) in listed.added_tokens_decoder {
        let id = key.parse().map_err(|_| wrong(format!("`{key}` is no token id")))?;
        added.add(Entry { id, ..entry }).map_err(wrong)?;
    }
    Ok(())
}
