//! How much of a prompt stands beside turns that decode: as much as a batch computes in the time that they may wait. Pure; the
//! durations come from whoever computes the batches.
//!
//! What counts is a whole batch divided by the prompt's tokens in it, so decoding and the reading of the weights are a part
//! of each token's cost. With a fixed part `b` and `c` for each token, the next chunk of `t / (b / n + c)` tokens leads to
//! `n = (t - b) / c`, thus to batches of the time `t`, from wherever it starts, as long as `b` is shorter than `t`.

use std::time::Duration;

/// Tokens of a chunk at least. A processor waits for the weights while it decodes: so many rows more take little longer, and
/// prompts must go on even where decoding alone takes longer than a batch should.
const LEAST: usize = 16;

/// What a prompt's token costs beside turns that decode.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Of the last batches, in nanoseconds; none if there was none.
    cost: Option<u128>,
}

impl Pace {
    /// Learns how long a batch took with so many tokens of prompts beside turns that decode.
    pub(crate) fn learn(&mut self, n_tokens: usize, took: Duration) {
        // The ends of prompts are shorter, and the fixed part would make their tokens look dear.
        if n_tokens < LEAST {
            return;
        }
        let last = took.as_nanos() / n_tokens as u128;
        // A busy machine makes batches some times slower; one that took far longer was held up once, and others will not be.
        let mean = |cost: u128| (3 * cost + last.min(4 * cost)) / 4;
        self.cost = Some(self.cost.map_or(last, mean).max(1));
    }

    /// Tokens beside turns that decode, for a batch that takes about this long: `most` at most.
    pub(crate) fn chunk(&self, batch_time: Duration, most: usize) -> usize {
        let fit = match self.cost {
            Some(cost) => usize::try_from(batch_time.as_nanos() / cost).unwrap_or(most),
            None => LEAST,
        };
        fit.max(LEAST).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_chunk_is_what_fits_into_the_time() {
        for (n_tokens, took, batch_time, most, expected) in [
            (100, 1000, 250, 512, 25),
            (100, 1000, 2500, 512, 250),
            (100, 1000, 250, 20, 20),
            // Never less than can be had almost for nothing, but for a smaller limit.
            (100, 1000, 0, 512, 16),
            (100, 9000, 250, 512, 16),
            (100, 9000, 250, 9, 9),
            (100, 0, 250, 512, 512),
            // Too few tokens tell nothing.
            (15, 1, 250, 512, 16),
        ] {
            let mut pace = Pace::default();
            assert_eq!(pace.chunk(batch_time * MS, most), 16.min(most), "before it knows anything");
            pace.learn(n_tokens, took * MS);
            let chunk = pace.chunk(batch_time * MS, most);
            assert_eq!(chunk, expected, "{n_tokens} {took} {batch_time} {most}");
        }
    }

    /// Batches on a machine that takes `fixed` and for each token `each` microseconds.
    fn run(pace: &mut Pace, fixed: u64, each: u64, n_batches: usize) -> (usize, Duration) {
        let time = |n: usize| Duration::from_micros(fixed + each * n as u64);
        for _ in 0..n_batches {
            let n_tokens = pace.chunk(250 * MS, 512);
            pace.learn(n_tokens, time(n_tokens));
        }
        let n_tokens = pace.chunk(250 * MS, 512);
        (n_tokens, time(n_tokens))
    }

    #[test]
    fn batches_come_to_take_their_time_on_any_machine() {
        for (fixed, each) in [(120_000, 5000), (0, 10_500), (80_000, 3000), (10_000, 700)] {
            let mut pace = Pace::default();
            let (_, took) = run(&mut pace, fixed, each, 30);
            assert!((220 * MS..280 * MS).contains(&took), "{fixed} {each}: {took:?}");
            // Somebody else begins to use half of the machine, and ends.
            let (_, took) = run(&mut pace, fixed.min(80_000) * 3 / 2, each * 3 / 2, 30);
            assert!((220 * MS..280 * MS).contains(&took), "{fixed} {each}: {took:?}");
            let (_, took) = run(&mut pace, fixed, each, 30);
            assert!((220 * MS..280 * MS).contains(&took), "{fixed} {each}: {took:?}");
        }
        // Where decoding alone takes longer, prompts go on all the same.
        assert_eq!(run(&mut Pace::default(), 400_000, 10_000, 30).0, 16);
    }

    #[test]
    fn one_batch_that_was_held_up_is_soon_forgotten() {
        let mut pace = Pace::default();
        assert!(run(&mut pace, 50_000, 5000, 30).0 >= 38);
        pace.learn(40, Duration::from_secs(20));
        assert!(run(&mut pace, 50_000, 5000, 0).0 >= 20);
        assert!(run(&mut pace, 50_000, 5000, 8).0 >= 35);
    }
}
