//! Which turns are in the next batch, and with how many tokens. Pure.
//!
//! Every turn that decodes is in every batch, and beside them prompts go on by a chunk: nobody waits for a whole prompt of
//! somebody else. Several prompts are in progress at once. The one that has fewest tokens left goes first, because that ends
//! the sum of all waiting soonest, and one that was passed over some times goes before it, so that a long prompt always goes
//! on. A prompt whose beginning is being computed for another one waits for that.

use std::time::Duration;

/// Batches in a row in which a prompt may stand still. A long one so gets a quarter of the chunks at least, unless several
/// long ones share them.
const PATIENCE: usize = 3;

/// What a turn needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// It has not begun.
    Waiting,
    /// It has not begun, because a prompt in progress computes its beginning.
    Follows {
        /// The number of the turn with that prompt.
        leader: usize,
        /// Tokens of its own prompt that have to be computed, the shared ones included.
        n_left: usize,
    },
    /// Its prompt goes on.
    Prefill {
        /// Tokens up to the next place at which a chunk must end, at least one.
        n_next: usize,
        /// Tokens up to its end.
        n_left: usize,
        /// Batches in a row in which it stood still.
        n_passed: usize,
    },
    /// Its next token.
    Decode,
}

/// What a batch may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Turns that run.
    pub(crate) n_sessions: usize,
    /// Tokens of prompts.
    pub(crate) prefill_tokens: usize,
    /// How long it should take while turns decode.
    pub(crate) batch_time: Duration,
    /// Drafted tokens of all turns together.
    pub(crate) n_draft: usize,
}

/// The next batch, by the numbers of the turns.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The turns whose prompts go on, and by how many tokens.
    pub(crate) prefill: Vec<(usize, usize)>,
    /// The turns that decode.
    pub(crate) decode: Vec<usize>,
    /// Tokens that each of these may draft.
    pub(crate) n_draft: usize,
}

/// The turn that begins now. A turn that waits for its beginning keeps its place among those that run.
pub(crate) fn begins(turns: &[Work], limits: &Limits) -> Option<usize> {
    let is_running = |work: &&Work| matches!(work, Work::Prefill { .. } | Work::Decode);
    let mut n_taken = turns.iter().filter(is_running).count();
    for (turn, work) in turns.iter().enumerate() {
        match work {
            Work::Prefill { .. } | Work::Decode => {}
            Work::Waiting | Work::Follows { .. } if n_taken >= limits.n_sessions => return None,
            Work::Follows { .. } => n_taken += 1,
            Work::Waiting => return Some(turn),
        }
    }
    None
}

/// The next batch; empty if there is nothing to do. `n_beside` is how many tokens of prompts may stand beside turns that
/// decode, at least one.
pub(crate) fn batch(turns: &[Work], limits: &Limits, n_beside: usize) -> Batch {
    let numbered = || turns.iter().enumerate();
    let decode: Vec<usize> =
        numbered().filter(|(_, work)| **work == Work::Decode).map(|(turn, _)| turn).collect();
    let mut room = if decode.is_empty() { limits.prefill_tokens } else { n_beside };
    let mut prefill = Vec::new();
    for (turn, n_next) in in_order(turns) {
        let n_tokens = room.min(n_next);
        if n_tokens > 0 {
            prefill.push((turn, n_tokens));
        }
        room -= n_tokens;
    }
    let n_draft = limits.n_draft / decode.len().max(1);
    Batch { prefill, decode, n_draft }
}

/// Prompts in progress, with the tokens to their next stops: first those that have stood still for too long, longest first,
/// then those after which somebody's prompt is done soonest.
fn in_order(turns: &[Work]) -> Vec<(usize, usize)> {
    let mut ranked: Vec<_> = turns
        .iter()
        .enumerate()
        .filter_map(|(turn, work)| match *work {
            Work::Prefill { n_next, n_left, n_passed } => {
                let overdue = if n_passed >= PATIENCE { n_passed } else { 0 };
                let soonest = followers(turns, turn).chain([n_left]).min();
                Some(((std::cmp::Reverse(overdue), soonest), (turn, n_next)))
            }
            Work::Waiting | Work::Follows { .. } | Work::Decode => None,
        })
        .collect();
    ranked.sort();
    ranked.into_iter().map(|(_, prompt)| prompt).collect()
}

/// Tokens that are left to those that follow a turn.
fn followers(turns: &[Work], turn: usize) -> impl Iterator<Item = usize> {
    turns.iter().filter_map(move |work| match work {
        Work::Follows { leader, n_left } => (*leader == turn).then_some(*n_left),
        Work::Waiting | Work::Prefill { .. } | Work::Decode => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { n_sessions: 3, prefill_tokens: 8, batch_time: Duration::ZERO, n_draft: 7 };

    /// W: waits, D: decodes, 9: tokens of a prompt that are left, 2/9: two of them up to the next stop, 9+3: it stood still
    /// three times, 1<9: it waits for turn 1 and has nine left.
    fn turns(words: &str) -> Vec<Work> {
        let number = |text: &str| text.parse::<usize>().unwrap();
        let work = |word: &str| {
            if let Some((leader, n_left)) = word.split_once('<') {
                return Work::Follows { leader: number(leader), n_left: number(n_left) };
            }
            let (tokens, n_passed) = word.split_once('+').unwrap_or((word, "0"));
            let (n_next, n_left) = tokens.split_once('/').unwrap_or((tokens, tokens));
            match word {
                "W" => Work::Waiting,
                "D" => Work::Decode,
                _ => Work::Prefill {
                    n_next: number(n_next),
                    n_left: number(n_left),
                    n_passed: number(n_passed),
                },
            }
        };
        words.split_whitespace().map(work).collect()
    }

    #[test]
    fn turns_begin_in_order_and_who_waits_for_its_beginning_keeps_its_place() {
        for (words, expected) in [
            ("", None),
            ("W", Some(0)),
            ("W W", Some(0)),
            ("D W W", Some(1)),
            ("W D", Some(0)),
            ("D D W", Some(2)),
            ("D D D W", None),
            ("5 W", Some(1)),
            ("D 5 W", Some(2)),
            ("5 5 5 W", None),
            ("5 0<9", None),
            ("5 0<9 W", Some(2)),
            ("5 0<9 D W", None),
            ("5 0<9 0<9 W", None),
            ("5 W 0<9", Some(1)),
        ] {
            assert_eq!(begins(&turns(words), &LIMITS), expected, "{words}");
        }
    }

    #[test]
    fn everybody_who_decodes_is_in_every_batch() {
        for (words, prefill, decode, n_draft) in [
            ("", vec![], vec![], 7),
            ("W", vec![], vec![], 7),
            ("100", vec![(0, 8)], vec![], 7),
            ("3 W", vec![(0, 3)], vec![], 7),
            ("D", vec![], vec![0], 7),
            ("D D", vec![], vec![0, 1], 3),
            ("D 100 D W", vec![(1, 2)], vec![0, 2], 3),
            ("100 D", vec![(0, 2)], vec![1], 7),
            ("1 D", vec![(0, 1)], vec![1], 7),
            ("D D D W", vec![], vec![0, 1, 2], 2),
        ] {
            let expected = Batch { prefill, decode, n_draft };
            assert_eq!(batch(&turns(words), &LIMITS, 2), expected, "{words}");
        }
    }

    #[test]
    fn the_prompt_with_fewest_tokens_left_goes_on_but_nobody_stands_still_for_long() {
        for (words, prefill) in [
            ("100 20", vec![(1, 8)]),
            ("20 20", vec![(0, 8)]),
            // What one leaves of a chunk goes to the next, and nobody goes on beyond its stop.
            ("100 3", vec![(1, 3), (0, 5)]),
            ("100 3/20", vec![(1, 3), (0, 5)]),
            ("2/100 3/20 50", vec![(1, 3), (2, 5)]),
            ("3 2 1", vec![(2, 1), (1, 2), (0, 3)]),
            ("3 D 2", vec![(2, 2)]),
            ("100+2 20", vec![(1, 8)]),
            ("100+3 20", vec![(0, 8)]),
            ("100+3 200+4 20", vec![(1, 8)]),
            ("100+3 20+3", vec![(1, 8)]),
            // Whoever is waited for goes on as if it were the one that waits.
            ("100 40 0<30", vec![(0, 8)]),
            ("100 40 0<50", vec![(1, 8)]),
            ("100 40 1<30 0<35", vec![(1, 8)]),
        ] {
            assert_eq!(batch(&turns(words), &LIMITS, 2).prefill, prefill, "{words}");
        }
    }

    /// Prompts of some lengths, of which each batch computes what it may; whenever one is done, another one of `then` tokens
    /// comes in its place, but for the first. In how many batches that one is done.
    fn n_batches(lengths: &[usize], then: usize) -> usize {
        let mut works: Vec<Work> =
            lengths.iter().map(|&n| Work::Prefill { n_next: n, n_left: n, n_passed: 0 }).collect();
        for number in 1..10_000 {
            let batch = batch(&works, &LIMITS, 1);
            for (turn, work) in works.iter_mut().enumerate() {
                let Work::Prefill { n_left, n_passed, .. } = *work else { unreachable!() };
                let done = batch.prefill.iter().find(|(each, _)| *each == turn);
                let n_left = n_left - done.map_or(0, |(_, n_tokens)| *n_tokens);
                let n_passed = if done.is_some() { 0 } else { n_passed + 1 };
                match n_left {
                    0 if turn == 0 => return number,
                    0 => *work = Work::Prefill { n_next: then, n_left: then, n_passed: 0 },
                    _ => *work = Work::Prefill { n_next: n_left, n_left, n_passed },
                }
            }
        }
        panic!("the first prompt starves")
    }

    #[test]
    fn a_short_prompt_passes_a_long_one_and_short_ones_without_end_do_not_starve_it() {
        // Alone it takes 100 batches.
        assert_eq!(n_batches(&[800], 16), 100);
        assert!((300..=401).contains(&n_batches(&[800, 16], 16)));
        assert!((300..=401).contains(&n_batches(&[800, 16, 16], 16)));
        // Beside other long ones it gets its share of what the short one leaves.
        assert!(n_batches(&[800, 9000, 16], 16) <= 401);
        // And the other way round: a short one waits for nobody.
        assert_eq!(n_batches(&[16, 800, 900], 800), 2);
        assert_eq!(n_batches(&[40, 800, 900], 800), 7);
    }
}
