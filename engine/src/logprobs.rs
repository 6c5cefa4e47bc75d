//! The probabilities of tokens, for callers that ask for them. Pure.

use crate::query::{Candidate, DrawnToken};

/// The probabilities by the model alone: of the token that was drawn and of the likeliest `n` ones. `logits` are those of
/// real tokens; `bytes` spells a token.
pub(crate) fn logprobs(
    logits: &[f32],
    drawn: u32,
    n: usize,
    bytes: &dyn Fn(u32) -> Vec<u8>,
) -> DrawnToken {
    let real = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit };
    let largest = logits.iter().copied().map(real).fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| f64::from(real(*logit) - largest).exp();
    let sum: f64 = logits.iter().map(weight).sum();
    #[expect(clippy::cast_possible_truncation, reason = "logits are no finer")]
    let log_sum = sum.ln() as f32;
    let candidate = |(id, logit): (u32, f32)| Candidate {
        id,
        bytes: bytes(id),
        logprob: logit - largest - log_sum,
    };
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied().map(real)).collect();
    let logit = |id: u32| all.get(id as usize).map_or(f32::NEG_INFINITY, |(_, logit)| *logit);
    let drawn = candidate((drawn, logit(drawn)));
    // As the sampler orders them: the larger logit first, then the smaller id.
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if n < all.len() {
        all.select_nth_unstable_by(n, order);
        all.truncate(n);
    }
    all.sort_unstable_by(order);
    DrawnToken { drawn, likeliest: all.into_iter().map(candidate).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_all_sum_to_one() {
        let logits: Vec<f32> = [0.1_f32, 0.5, 0.1, 0.3].iter().map(|p| p.ln() + 7.0).collect();
        let of = |drawn, n| logprobs(&logits, drawn, n, &|id| vec![id as u8]);
        let token = of(2, 3);
        let ids: Vec<u32> = token.likeliest.iter().map(|each| each.id).collect();
        assert_eq!((token.drawn.id, token.drawn.bytes, ids), (2, vec![2], vec![1, 3, 0]));
        assert!((token.drawn.logprob - 0.1_f32.ln()).abs() < 1e-5, "{}", token.drawn.logprob);
        let sum: f32 = of(0, 9).likeliest.iter().map(|each| each.logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        assert_eq!(of(0, 0).likeliest, []);
        let token = logprobs(&[f32::NAN, 0.0], 1, 2, &|_| Vec::new());
        assert_eq!((token.drawn.logprob, token.likeliest[0].id), (0.0, 1));
        assert_eq!(token.likeliest[1].logprob, f32::NEG_INFINITY);
    }
}
