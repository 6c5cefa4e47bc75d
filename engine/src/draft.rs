//! Guesses of what comes next, from what stood after the same words before: an agent that edits a file writes most of it
//! again. Pure. A guess changes nothing but the time. With weights of 8 bits a step that checks seven guessed tokens takes up
//! to twice as long as one without, and if the guess is wrong, what was right of it is computed once more; so only a long
//! match counts, and a longer one each time that a guess was bad.
//!
//! Source: prompt lookup decoding (Saxena, 2023).

/// Tokens that must match at least. Shorter matches have made prose a quarter slower elsewhere, where from 12 to 24 did not.
const MATCH: usize = 12;
/// Tokens that are compared at most, and the most that is ever required: after six bad guesses in a row, drafting has ended
/// but for the copy of some eighty lines.
const MATCH_MOST: usize = 768;
/// Places that are compared at most, the latest first.
const PLACES: usize = 64;

/// Drafts tokens of one turn. It takes 12 to 20 bytes for each token that there may be.
#[derive(Debug, Clone)]
pub(crate) struct Drafter {
    /// Prompt and answer.
    ids: Vec<u32>,
    /// The position after the last place of a few tokens, by their hash. Others may share it: places are compared before
    /// they are used.
    last: Vec<u32>,
    /// For each position, the one after the place before of the same hash; 0 is none.
    before: Vec<u32>,
    /// Tokens that must match now.
    required: usize,
}

impl Drafter {
    /// A drafter that knows a prompt, for as many more tokens.
    pub(crate) fn new(prompt: &[u32], n_more: usize) -> Self {
        let mut drafter = Self {
            ids: Vec::with_capacity(prompt.len()),
            last: vec![0; (prompt.len() + n_more).next_power_of_two()],
            before: vec![0],
            required: MATCH,
        };
        prompt.iter().for_each(|id| drafter.push(*id));
        drafter
    }

    /// Takes the next token.
    pub(crate) fn push(&mut self, id: u32) {
        self.ids.push(id);
        let end = self.ids.len();
        let before = match (self.ids.last_chunk(), u32::try_from(end)) {
            (Some(words), Ok(end)) => {
                let at = hash(words) & (self.last.len() - 1);
                std::mem::replace(&mut self.last[at], end)
            }
            // Too few tokens, or more than any context has.
            (None, _) | (_, Err(_)) => 0,
        };
        self.before.push(before);
    }

    /// The tokens that followed the longest match, the latest of several, as many as may be and no more than matched.
    pub(crate) fn draft(&self, n_most: usize) -> Vec<u32> {
        let end = self.ids.len();
        let (mut place, mut best) = (self.before[end], (0, 0));
        for _ in 0..PLACES {
            if place == 0 || n_most == 0 {
                break;
            }
            let at = place as usize;
            let pairs = self.ids[..at].iter().rev().zip(self.ids.iter().rev());
            let n_same = pairs.take(MATCH_MOST).take_while(|(a, b)| a == b).count();
            if n_same > best.0 {
                best = (n_same, at);
            }
            place = self.before[at];
        }
        let (n_same, place) = best;
        if n_same < self.required {
            return Vec::new();
        }
        // What repeats itself goes on behind the end.
        let period = end - place;
        (0..n_most.min(n_same)).map(|at| self.ids[place + at % period]).collect()
    }

    /// Learns how much of a draft was right: after a bad one only a match twice as long counts, after a whole one any.
    pub(crate) fn learn(&mut self, n_drafted: usize, n_accepted: usize) {
        if n_accepted == n_drafted {
            self.required = MATCH;
        } else if 2 * n_accepted < n_drafted {
            self.required = (self.required * 2).min(MATCH_MOST);
        }
    }
}

/// Mixes tokens as FNV-1a mixes bytes (Fowler, Noll, Vo), and lets the high bits into the low ones.
fn hash(words: &[u32; MATCH]) -> usize {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mixed = words.iter().fold(START, |hash, id| (hash ^ u64::from(*id)).wrapping_mul(PRIME));
    #[expect(clippy::cast_possible_truncation, reason = "only low bits are used")]
    let hash = (mixed ^ (mixed >> 32)) as usize;
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text in letters; its ids are their numbers.
    fn ids(text: &str) -> Vec<u32> {
        text.chars().map(u32::from).collect()
    }

    fn check(text: &str, n_most: usize, expected: &str) {
        let draft = Drafter::new(&ids(text), 0).draft(n_most);
        assert_eq!(draft, ids(expected), "{text:?}");
    }

    #[test]
    fn the_longest_match_counts_and_of_equal_ones_the_latest() {
        check("", 7, "");
        check("let mut ponds", 7, "");
        // Eleven letters are too few, twelve are enough.
        check("abcdefghijkl = 1; bcdefghijkl", 7, "");
        check("abcdefghijkl = 1; abcdefghijkl", 7, " = 1; a");
        check("abcdefghijkl = 1; abcdefghijkl", 2, " =");
        check("abcdefghijkl = 1; abcdefghijkl", 0, "");
        check("abcdefghijkl = 1; abcdefghijkl = 2; abcdefghijkl", 4, " = 2");
        check("xabcdefghijkl = 1; yabcdefghijkl = 2; xabcdefghijkl", 4, " = 1");
        // No more than matched.
        check("abcdefghijkl = one two three; abcdefghijkl", 99, " = one two t");
        // What repeats goes on.
        check(&"-".repeat(13), 7, "-------");
        check(&"ab".repeat(8), 3, "aba");
    }

    #[test]
    fn bad_drafts_end_drafting_until_a_long_match_is_right() {
        let text = |from: u32, to: u32| (from..to).collect::<Vec<u32>>();
        let mut drafter = Drafter::new(&[text(0, 2000), vec![5000], text(0, 12)].concat(), 1000);
        assert_eq!(drafter.draft(7), text(12, 19));
        drafter.learn(7, 4);
        assert_eq!(drafter.draft(7).len(), 7, "more than half was right");
        drafter.learn(7, 3);
        assert_eq!(drafter.draft(7), [] as [u32; 0]);
        (12..23).for_each(|id| drafter.push(id));
        assert_eq!(drafter.draft(7).len(), 0, "23 match");
        drafter.push(23);
        assert_eq!(drafter.draft(7), text(24, 31));
        // Bad again and again, they end.
        (0..9).for_each(|_| drafter.learn(7, 0));
        (24..767).for_each(|id| drafter.push(id));
        assert_eq!(drafter.draft(7).len(), 0, "767 match");
        drafter.push(767);
        assert_eq!(drafter.draft(7), text(768, 775));
        drafter.learn(7, 7);
        assert_eq!(drafter.required, MATCH);
    }

    /// Every place of the same tokens is found although others share its number.
    #[test]
    fn tokens_that_share_a_number_are_no_match_and_memory_is_bounded() {
        let n_tokens = 20_000;
        // All different, and then the beginning again.
        let prompt: Vec<u32> = (0..n_tokens).map(|n| n * 7).collect();
        let mut drafter = Drafter::new(&prompt, 100);
        let is_shared = drafter.before.iter().any(|before| *before != 0);
        assert!(is_shared && drafter.draft(7).is_empty());
        for (at, id) in prompt[..100].iter().enumerate() {
            drafter.push(*id);
            let expected = if at + 1 < MATCH { 0 } else { 7 };
            assert_eq!(drafter.draft(7), &prompt[at + 1..][..expected]);
        }
        let n_bytes =
            4 * (drafter.ids.capacity() + drafter.last.capacity() + drafter.before.capacity());
        assert!(n_bytes <= 24 * prompt.len(), "{n_bytes}");
    }
}
