//! Guesses of what comes next, from what stood after the same words before: an agent that edits a file writes most of it
//! again. Pure. A guess costs time if it is wrong and changes nothing else.
//!
//! Source: prompt lookup decoding (Saxena, 2023), with the required match growing while guesses are wrong.

use std::collections::HashMap;

/// Tokens that must match at least.
const MATCH: usize = 3;
/// Tokens that are compared at most, and the most that is ever required.
const MATCH_MOST: usize = 48;
/// Places that are compared at most, the latest first.
const PLACES: usize = 64;

/// Drafts tokens of one turn.
#[derive(Debug, Clone)]
pub(crate) struct Drafter {
    /// Prompt and answer.
    ids: Vec<u32>,
    /// The position after the last place of each three tokens.
    last: HashMap<[u32; MATCH], usize>,
    /// For each position, the one after the place before of the same three tokens; 0 is none.
    before: Vec<usize>,
    /// Tokens that must match now.
    required: usize,
}

impl Drafter {
    /// A drafter that knows a prompt.
    pub(crate) fn new(prompt: &[u32]) -> Self {
        let mut drafter = Self {
            ids: Vec::with_capacity(prompt.len()),
            last: HashMap::new(),
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
        let before = match self.ids.last_chunk() {
            Some(words) => self.last.insert(*words, end).unwrap_or(0),
            None => 0,
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
            let pairs = self.ids[..place].iter().rev().zip(self.ids.iter().rev());
            let n_same = pairs.take(MATCH_MOST).take_while(|(a, b)| a == b).count();
            if n_same > best.0 {
                best = (n_same, place);
            }
            place = self.before[place];
        }
        let (n_same, place) = best;
        if n_same < self.required {
            return Vec::new();
        }
        // What repeats itself goes on behind the end.
        let period = end - place;
        (0..n_most.min(n_same)).map(|at| self.ids[place + at % period]).collect()
    }

    /// Learns how much of a draft was right: after a bad one only a match twice as long counts, after a good one any.
    pub(crate) fn learn(&mut self, n_drafted: usize, n_accepted: usize) {
        if n_accepted == n_drafted {
            self.required = MATCH;
        } else if 2 * n_accepted < n_drafted {
            self.required = (self.required * 2).min(MATCH_MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ids: &[u32], n_most: usize, expected: &[u32]) {
        assert_eq!(Drafter::new(ids).draft(n_most), expected, "{ids:?}");
    }

    #[test]
    fn the_longest_match_counts_and_of_equal_ones_the_latest() {
        check(&[], 7, &[]);
        check(&[1, 2, 3], 7, &[]);
        check(&[1, 2, 9, 1, 2], 7, &[]);
        check(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 7, &[4, 5, 6]);
        check(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 2, &[4, 5]);
        check(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 0, &[]);
        check(&[1, 2, 3, 7, 7, 7, 1, 2, 3, 8, 8, 8, 1, 2, 3], 3, &[8, 8, 8]);
        check(&[0, 1, 2, 3, 7, 7, 5, 1, 2, 3, 8, 8, 0, 1, 2, 3], 2, &[7, 7]);
        // What repeats goes on.
        check(&[4, 4, 4, 4], 7, &[4, 4, 4]);
        check(&[1, 2, 1, 2, 1, 2], 3, &[1, 2, 1]);
    }

    #[test]
    fn bad_drafts_end_drafting_until_a_long_match_is_right() {
        let prompt: Vec<u32> = (0..100).chain(200..210).chain(0..5).collect();
        let mut drafter = Drafter::new(&prompt);
        assert_eq!(drafter.draft(7), [5, 6, 7, 8, 9]);
        drafter.learn(5, 3);
        assert_eq!(drafter.draft(7).len(), 5, "more than half was right");
        drafter.learn(5, 2);
        assert_eq!(drafter.draft(7), [] as [u32; 0]);
        (5..11).for_each(|id| drafter.push(id));
        assert_eq!(drafter.draft(7).len(), 7, "eleven match");
        (0..9).for_each(|_| drafter.learn(7, 0));
        assert_eq!(drafter.draft(7).len(), 0);
        (11..48).for_each(|id| drafter.push(id));
        assert_eq!(drafter.draft(7), [48, 49, 50, 51, 52, 53, 54]);
        drafter.learn(7, 7);
        assert_eq!(drafter.required, MATCH);
    }
}
