//! Drawing the next token. Pure: the same seed, position and logits give the same token, whatever else runs.
//!
//! The order is that of transformers: penalties, temperature, top-k, top-p over what top-k left, min-p over what top-p
//! left. Drawing at a position does not depend on having drawn before it, so tokens may be taken back and drawn again.

use std::collections::{BTreeSet, HashSet};

use crate::Sampling;

/// Draws the tokens of one turn.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    seed: u64,
    n_ids: usize,
    seen: HashSet<u32>,
    generated: HashSet<u32>,
}

/// The tokens among which one is drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Among<'a> {
    /// All.
    All,
    /// All but these.
    AllBut(&'a BTreeSet<u32>),
    /// Only these, at least one.
    Only(Vec<u32>),
}

impl Sampler {
    /// A sampler for one turn. `seed` is used where the request names none; `n_ids` is the number of real token ids, the
    /// rows behind them are padding and never drawn; `prompt` are the conversation's tokens.
    pub fn new(sampling: &Sampling, seed: u64, n_ids: usize, prompt: &[u32]) -> Self {
        Self {
            seed: sampling.seed.unwrap_or(seed),
            sampling: sampling.clone(),
            n_ids,
            // Nobody else asks for it.
            seen: match sampling.repetition_penalty == 1.0 {
                true => HashSet::new(),
                false => prompt.iter().copied().collect(),
            },
            generated: HashSet::new(),
        }
    }

    /// Notes a token that was generated, for the penalties.
    pub fn accept(&mut self, id: u32) {
        self.seen.insert(id);
        self.generated.insert(id);
    }

    /// Draws the token at a position of the turn, counted from 0. `logits` has a value for every row of the head.
    pub fn draw(&self, logits: &[f32], position: u64, among: &Among<'_>) -> u32 {
        let mut candidates = self.candidates(&logits[..logits.len().min(self.n_ids)], among);
        // The larger logit first, then the smaller id, so that ties are the same everywhere.
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if self.sampling.temperature <= 0.0 {
            return candidates.into_iter().min_by(order).map_or(0, |(id, _)| id);
        }
        let top_k = usize::try_from(self.sampling.top_k).unwrap_or(usize::MAX);
        if top_k > 0 && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k, order);
            candidates.truncate(top_k);
        }
        candidates.sort_unstable_by(order);
        let Some(&(first, largest)) = candidates.first() else { return 0 };
        let weight = |logit: f32| f64::from((logit - largest) / self.sampling.temperature).exp();
        let mut weights: Vec<f64> = candidates.iter().map(|(_, logit)| weight(*logit)).collect();
        weights.truncate(self.kept(&weights));
        let mut rest = uniform(self.seed, position) * weights.iter().sum::<f64>();
        for ((id, _), weight) in candidates.iter().zip(&weights) {
            rest -= weight;
            if rest < 0.0 {
                return *id;
            }
        }
        first
    }

    /// Tokens and their logits with the penalties, each token once.
    fn candidates(&self, logits: &[f32], among: &Among<'_>) -> Vec<(u32, f32)> {
        match among {
            Among::All => self.all(logits),
            Among::AllBut(ids) => {
                let mut candidates = self.all(logits);
                // From the last on, so that those before stay in their places.
                for id in ids.iter().rev().filter(|id| (**id as usize) < logits.len()) {
                    candidates.swap_remove(*id as usize);
                }
                candidates
            }
            Among::Only(ids) => {
                let ids: BTreeSet<u32> = ids.iter().copied().collect();
                let logit = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NAN);
                ids.into_iter().map(|id| (id, self.penalised(id, logit(id)))).collect()
            }
        }
    }

    /// Every token in its place. Only those that were there before are looked up for penalties.
    fn all(&self, logits: &[f32]) -> Vec<(u32, f32)> {
        let candidate = |(id, &logit): (u32, &f32)| (id, or_nothing(logit));
        let mut candidates: Vec<_> = (0..).zip(logits).map(candidate).collect();
        let Sampling { repetition_penalty, presence_penalty, .. } = self.sampling;
        let ids = match (repetition_penalty == 1.0, presence_penalty == 0.0) {
            (true, true) => return candidates,
            (true, false) => &self.generated,
            // It holds what was generated too.
            (false, _) => &self.seen,
        };
        for id in ids {
            if let Some((_, logit)) = candidates.get_mut(*id as usize) {
                *logit = self.penalised(*id, *logit);
            }
        }
        candidates
    }

    /// How many of the weights, largest first, top-p and min-p leave; at least one.
    fn kept(&self, weights: &[f64]) -> usize {
        let limit = f64::from(self.sampling.top_p) * weights.iter().sum::<f64>();
        let mut sum = 0.0;
        // The one that passes the limit is kept.
        let by_mass = weights.iter().take_while(|weight| {
            let is_below = sum < limit;
            sum += **weight;
            is_below
        });
        let smallest = f64::from(self.sampling.min_p) * weights.first().copied().unwrap_or(0.0);
        by_mass.take_while(|weight| **weight >= smallest).count().max(1)
    }

    fn penalised(&self, id: u32, logit: f32) -> f32 {
        let mut logit = or_nothing(logit);
        if self.sampling.repetition_penalty != 1.0 && self.seen.contains(&id) {
            let penalty = self.sampling.repetition_penalty;
            logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
        if self.sampling.presence_penalty != 0.0 && self.generated.contains(&id) {
            logit -= self.sampling.presence_penalty;
        }
        logit
    }
}

/// What is no number is nothing that could be drawn.
fn or_nothing(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

/// A number from 0 to below 1 for a seed and a position: SplitMix64 (Steele, Lea and Flood, 2014) at that position.
fn uniform(seed: u64, position: u64) -> f64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    // Seeds that differ by little must not give the same numbers one position apart.
    let start = mixed(seed.wrapping_add(STEP));
    let bits = mixed(start.wrapping_add(STEP.wrapping_mul(position.wrapping_add(1))));
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit exactly")]
    let number = (bits >> 11) as f64 / (1_u64 << 53) as f64;
    number
}

fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Log-probabilities of 0.5, 0.3, 0.15, 0.05.
    fn logits() -> Vec<f32> {
        [0.5_f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect()
    }

    fn sampling() -> Sampling {
        Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, ..Sampling::default() }
    }

    /// How often each id is drawn at 20,000 positions, in percent.
    fn shares(sampling: &Sampling) -> Vec<i64> {
        let sampler = Sampler::new(sampling, 7, 4, &[]);
        let mut counts = [0_i64; 4];
        for position in 0..20_000 {
            counts[sampler.draw(&logits(), position, &Among::All) as usize] += 1;
        }
        counts.iter().map(|count| (count + 100) / 200).collect()
    }

    fn assert_near(sampling: &Sampling, expected: [i64; 4]) {
        let shares = shares(sampling);
        let is_near =
            shares.iter().zip(expected).all(|(share, expected)| (share - expected).abs() <= 1);
        assert!(is_near, "{shares:?}, expected {expected:?}");
    }

    #[test]
    fn tokens_are_drawn_as_often_as_their_probability_says() {
        assert_near(&sampling(), [50, 30, 15, 5]);
        assert_near(&Sampling { temperature: 0.5, ..sampling() }, [68, 25, 6, 1]);
        assert_near(&Sampling { top_k: 2, ..sampling() }, [63, 37, 0, 0]);
        assert_near(&Sampling { top_p: 0.6, ..sampling() }, [63, 37, 0, 0]);
        assert_near(&Sampling { top_p: 0.5, ..sampling() }, [100, 0, 0, 0]);
        assert_near(&Sampling { min_p: 0.2, ..sampling() }, [53, 31, 16, 0]);
        assert_near(&Sampling { top_k: 3, top_p: 0.8, ..sampling() }, [63, 37, 0, 0]);
        assert_near(&Sampling { temperature: 0.0, ..sampling() }, [100, 0, 0, 0]);
    }

    #[test]
    fn penalties_count_what_was_there() {
        let logits = [2.0, 1.9, -1.0, -1.1];
        let greedy = Sampling { temperature: 0.0, ..sampling() };
        let drawn = |sampling: Sampling, prompt: &[u32], generated: &[u32]| {
            let mut sampler = Sampler::new(&sampling, 0, 4, prompt);
            generated.iter().for_each(|&id| sampler.accept(id));
            sampler.draw(&logits, 0, &Among::All)
        };
        assert_eq!(drawn(greedy.clone(), &[0], &[0]), 0);
        let presence = Sampling { presence_penalty: 0.5, ..greedy.clone() };
        assert_eq!((drawn(presence.clone(), &[0], &[]), drawn(presence, &[], &[0])), (0, 1));
        let repetition = Sampling { repetition_penalty: 1.5, ..greedy };
        assert_eq!((drawn(repetition.clone(), &[0], &[]), drawn(repetition, &[0, 1], &[])), (1, 0));
    }

    #[test]
    fn penalised_tokens_are_drawn_as_often_as_what_is_left_of_their_probability() {
        // Halves the weight of 0, which was generated, and takes that of 3, which was asked, from 0.05 to its square.
        let sampling =
            Sampling { presence_penalty: 2.0_f32.ln(), repetition_penalty: 2.0, ..sampling() };
        let shares = |sampling: &Sampling, prompt: &[u32], generated: &[u32]| {
            let mut sampler = Sampler::new(sampling, 7, 4, prompt);
            generated.iter().for_each(|id| sampler.accept(*id));
            let drawn = (0..20_000).map(|position| sampler.draw(&logits(), position, &Among::All));
            drawn.fold([0.0_f64; 4], |mut shares, id| {
                shares[id as usize] += 1.0 / 20_000.0;
                shares
            })
        };
        let check = |shares: [f64; 4], weights: [f64; 4]| {
            let sum: f64 = weights.iter().sum();
            let is_near = shares
                .iter()
                .zip(weights)
                .all(|(share, weight)| (share - weight / sum).abs() < 0.01);
            assert!(is_near, "{shares:?}, expected {weights:?}");
        };
        let presence = Sampling { repetition_penalty: 1.0, ..sampling.clone() };
        check(shares(&presence, &[3], &[0]), [0.25, 0.3, 0.15, 0.05]);
        let repetition = Sampling { presence_penalty: 0.0, ..sampling.clone() };
        check(shares(&repetition, &[3, 9], &[]), [0.5, 0.3, 0.15, 0.0025]);
        check(shares(&sampling, &[3], &[0]), [0.125, 0.3, 0.15, 0.0025]);
    }

    /// As if every token were looked up.
    #[test]
    fn penalties_of_some_tokens_leave_all_others_as_they_are() {
        let logits: Vec<f32> = (0..500_u16).map(|n| f32::from(n * 37 % 101) / 9.0 - 5.0).collect();
        for (presence_penalty, repetition_penalty) in
            [(0.0, 1.0), (0.7, 1.0), (0.0, 1.3), (-0.7, 0.8)]
        {
            let sampling = Sampling { presence_penalty, repetition_penalty, ..sampling() };
            let mut sampler = Sampler::new(&sampling, 7, 400, &[0, 7, 399, 450]);
            [3, 7, 7, 120].iter().for_each(|id| sampler.accept(*id));
            let each = (0..400).map(|id| (id, sampler.penalised(id, logits[id as usize])));
            let expected: Vec<(u32, f32)> = each.collect();
            assert_eq!(sampler.all(&logits[..400]), expected);
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_and_padding_is_never_drawn() {
        let draw = |seed: Option<u64>, other: u64| {
            let sampler = Sampler::new(&Sampling { seed, ..sampling() }, other, 4, &[]);
            (0..50)
                .map(|position| sampler.draw(&logits(), position, &Among::All))
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(Some(3), 1), draw(Some(3), 2));
        assert_ne!(draw(Some(3), 1), draw(Some(4), 1));
        assert_ne!(draw(None, 1), draw(None, 2));
        let padded = [f32::NEG_INFINITY, 0.0, 100.0];
        let sampler = Sampler::new(&sampling(), 1, 2, &[]);
        assert!((0..100).all(|position| sampler.draw(&padded, position, &Among::All) == 1));
    }

    #[test]
    fn logits_that_are_no_numbers_end_in_some_token() {
        let sampler = Sampler::new(&sampling(), 1, 3, &[]);
        for logits in [[f32::NAN, 1.0, f32::NAN], [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY]] {
            assert_eq!(sampler.draw(&logits, 0, &Among::All), 1);
        }
        for logits in [[f32::NAN; 3], [f32::NEG_INFINITY; 3], [f32::INFINITY; 3]] {
            assert!(sampler.draw(&logits, 0, &Among::All) < 3);
        }
        assert_eq!(sampler.draw(&[], 0, &Among::All), 0);
    }

    #[test]
    fn only_what_may_be_drawn_is_drawn_as_often_as_among_themselves() {
        let greedy = Sampling { temperature: 0.0, ..sampling() };
        let stops = BTreeSet::from([0, 2, 9]);
        let (but, only) = (Among::AllBut(&stops), Among::Only(vec![3, 1, 3]));
        let draw = |sampling: &Sampling, among: &Among<'_>| {
            Sampler::new(sampling, 7, 4, &[]).draw(&logits(), 0, among)
        };
        assert_eq!((draw(&greedy, &but), draw(&greedy, &only)), (1, 1));
        assert_eq!(draw(&greedy, &Among::Only(vec![3])), 3);
        let sampler = Sampler::new(&Sampling { top_k: 2, ..sampling() }, 7, 4, &[]);
        for among in [but, only] {
            let drawn = (0..7000).map(|position| sampler.draw(&logits(), position, &among));
            let counts = drawn.fold([0; 4], |mut counts, id| {
                counts[id as usize] += 1;
                counts
            });
            // 0.3 to 0.05.
            assert!((5900..6100).contains(&counts[1]), "{counts:?}");
            assert_eq!(counts[1] + counts[3], 7000);
        }
        for logits in [[f32::NAN; 4], [f32::NEG_INFINITY; 4], [f32::INFINITY; 4]] {
            let drawn = sampler.draw(&logits, 0, &Among::Only(vec![3, 2]));
            assert!([2, 3].contains(&drawn));
        }
    }
}
