//! Characters that stand for the letters of control tokens while a template runs. Each is a private-use character that
//! neither the template nor the conversation holds, so that it can be told afterwards whose letter it was. White space has
//! none: templates trim it, and no control token is made of it alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::Span;

/// The private-use planes. What stands in them has no meaning of its own, so texts rarely hold any.
const PRIVATE: [RangeInclusive<char>; 2] = ['\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}'];

pub(super) struct StandIns {
    of: BTreeMap<char, char>,
    back: BTreeMap<char, char>,
}

/// A rendered text with its letters again.
pub(super) struct Restored {
    text: String,
    /// Where each piece ends, and whether all of it may be the template's.
    ends: Vec<(usize, bool)>,
}

pub(super) fn is_any_private(text: &str) -> bool {
    text.contains(is_private)
}

fn is_private(c: char) -> bool {
    PRIVATE.iter().any(|plane| plane.contains(&c))
}

impl StandIns {
    /// One for each letter; if the texts leave too few, how many private-use characters they hold.
    pub(super) fn choose(letters: &BTreeSet<char>, texts: &[String]) -> Result<Self, usize> {
        let chars = texts.iter().flat_map(|text| text.chars());
        let taken: BTreeSet<char> = chars.filter(|c| is_private(*c)).collect();
        let free = PRIVATE.into_iter().flatten().filter(|c| !taken.contains(c));
        let of: BTreeMap<char, char> = letters.iter().copied().zip(free).collect();
        if of.len() < letters.len() {
            return Err(taken.len());
        }
        let back = of.iter().map(|(letter, stand_in)| (*stand_in, *letter)).collect();
        Ok(Self { of, back })
    }

    /// Untrusted text, so that nothing in it is a control token.
    pub(super) fn put(&self, text: &str) -> String {
        text.chars().map(|c| self.of.get(&c).copied().unwrap_or(c)).collect()
    }

    /// The text that the template made, with the letters again.
    pub(super) fn restore(&self, rendered: &str) -> Restored {
        let mut restored = Restored { text: String::new(), ends: Vec::new() };
        for c in rendered.chars() {
            let letter = self.back.get(&c).copied();
            restored.text.push(letter.unwrap_or(c));
            let (end, is_trusted) = (restored.text.len(), letter.is_none());
            match restored.ends.last_mut() {
                Some(last) if last.1 == is_trusted => last.0 = end,
                Some(_) | None => restored.ends.push((end, is_trusted)),
            }
        }
        restored
    }
}

impl Restored {
    pub(super) fn spans(&self) -> Vec<Span<'_>> {
        let mut start = 0;
        let mut span = |&(end, is_trusted): &(usize, bool)| {
            let words = &self.text[start..end];
            start = end;
            if is_trusted { Span::Trusted(words) } else { Span::Untrusted(words) }
        };
        self.ends.iter().map(&mut span).collect()
    }
}
