//! Which turns are in the next batch, and with how many tokens. Pure.
//!
//! Every turn that decodes is in every batch, and beside them one prompt goes on by a chunk: nobody waits for a whole prompt
//! of somebody else. Prompts are computed one after the other, in the order in which they came.

/// What a turn needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// It has not begun.
    Waiting,
    /// Its prompt goes on.
    Prefill {
        /// Tokens up to the next place at which a chunk must end, at least one.
        n_left: usize,
    },
    /// Its next token.
    Decode,
}

/// What a batch may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Turns that run.
    pub(crate) n_sessions: usize,
    /// Tokens of a prompt.
    pub(crate) prefill_tokens: usize,
    /// Drafted tokens of all turns together.
    pub(crate) n_draft: usize,
}

/// The next batch, by the numbers of the turns.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The turn whose prompt goes on, and by how many tokens.
    pub(crate) prefill: Option<(usize, usize)>,
    /// The turns that decode.
    pub(crate) decode: Vec<usize>,
    /// Tokens that each of these may draft.
    pub(crate) n_draft: usize,
}

/// The turn that begins now. A prompt waits for the one before it, whose beginning may be its own.
pub(crate) fn begins(turns: &[Work], limits: &Limits) -> Option<usize> {
    let n_running = turns.iter().filter(|work| **work != Work::Waiting).count();
    let has_prefill = turns.iter().any(|work| matches!(work, Work::Prefill { .. }));
    if has_prefill || n_running >= limits.n_sessions {
        return None;
    }
    turns.iter().position(|work| *work == Work::Waiting)
}

/// The next batch; empty if there is nothing to do.
pub(crate) fn batch(turns: &[Work], limits: &Limits) -> Batch {
    let numbered = || turns.iter().enumerate();
    let decode: Vec<usize> =
        numbered().filter(|(_, work)| **work == Work::Decode).map(|(turn, _)| turn).collect();
    // A batch is as slow as its chunk, and who decodes waits for it. A quarter of the usual 512 tokens still shares each
    // read of the weights among far more rows than a processor needs to be busy.
    let chunk = if decode.is_empty() { limits.prefill_tokens } else { limits.prefill_tokens / 4 };
    let prefill = numbered().find_map(|(turn, work)| match work {
        Work::Prefill { n_left } => Some((turn, chunk.clamp(1, *n_left))),
        Work::Waiting | Work::Decode => None,
    });
    let n_draft = limits.n_draft / decode.len().max(1);
    Batch { prefill, decode, n_draft }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { n_sessions: 3, prefill_tokens: 8, n_draft: 7 };

    /// W: waits, D: decodes, a number: tokens of a prompt that are left.
    fn turns(words: &str) -> Vec<Work> {
        let work = |word: &str| match word {
            "W" => Work::Waiting,
            "D" => Work::Decode,
            number => Work::Prefill { n_left: number.parse().unwrap() },
        };
        words.split_whitespace().map(work).collect()
    }

    #[test]
    fn prompts_begin_in_order_one_after_the_other() {
        for (words, expected) in [
            ("", None),
            ("W", Some(0)),
            ("W W", Some(0)),
            ("D W W", Some(1)),
            ("W D", Some(0)),
            ("D D W", Some(2)),
            ("D D D W", None),
            ("5 W", None),
            ("D 5 W", None),
        ] {
            assert_eq!(begins(&turns(words), &LIMITS), expected, "{words}");
        }
    }

    #[test]
    fn everybody_who_decodes_is_in_every_batch() {
        for (words, prefill, decode, n_draft) in [
            ("", None, vec![], 7),
            ("W", None, vec![], 7),
            ("100", Some((0, 8)), vec![], 7),
            ("3 W", Some((0, 3)), vec![], 7),
            ("D", None, vec![0], 7),
            ("D D", None, vec![0, 1], 3),
            ("D 100 D W", Some((1, 2)), vec![0, 2], 3),
            ("100 D", Some((0, 2)), vec![1], 7),
            ("1 D", Some((0, 1)), vec![1], 7),
            ("D D D W", None, vec![0, 1, 2], 2),
        ] {
            let expected = Batch { prefill, decode, n_draft };
            assert_eq!(batch(&turns(words), &LIMITS), expected, "{words}");
        }
        let least = Limits { prefill_tokens: 1, ..LIMITS };
        assert_eq!(batch(&turns("D 5"), &least).prefill, Some((1, 1)));
    }
}
