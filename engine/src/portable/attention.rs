//! Full attention with a gate, grouped key heads and partly rotated heads.
//!
//! Source of the equations: the published Qwen3.5 model as transformers 5.24 computes it. Keys are kept after norm and
//! rotation. The gate of a head stands directly behind its query in the projection.

use super::ops::{add_scaled, dot, linear, norm, sigmoid};
use super::{Load, Loader};
use crate::{AttentionShape, Error, Shape};

/// The weights of one layer.
pub(super) struct Attention {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    output: Vec<f32>,
    query_norm: Vec<f32>,
    key_norm: Vec<f32>,
}

/// What a layer remembers: keys and values, [tokens, kv heads, head].
#[derive(Debug, Clone, Default)]
pub(super) struct Cache {
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
}

impl Load for Attention {
    fn load(load: &mut Loader<'_>) -> Result<Self, Error> {
        Ok(Self {
            query: load.next()?,
            key: load.next()?,
            value: load.next()?,
            output: load.next()?,
            query_norm: load.next()?,
            key_norm: load.next()?,
        })
    }
}

impl Attention {
    /// `h` [tokens, hidden] at `position` and after; result of the same shape.
    pub(super) fn forward(
        &self,
        shape: &Shape,
        cache: &mut Cache,
        h: &[f32],
        position: usize,
    ) -> Vec<f32> {
        let (hidden, sizes) = (shape.hidden, &shape.attention);
        let both = linear(h, &self.query, hidden);
        let mut keys = norm(&linear(h, &self.key, hidden), &self.key_norm, shape.norm_eps);
        let values = linear(h, &self.value, hidden);
        for (at, row) in keys.chunks_exact_mut(sizes.keys()).enumerate() {
            row.chunks_exact_mut(sizes.head).for_each(|head| rotate(sizes, head, position + at));
        }
        cache.keys.extend(&keys);
        cache.values.extend(&values);
        let mut mixed = Vec::with_capacity(h.len() / hidden * sizes.queries());
        for (at, row) in both.chunks_exact(2 * sizes.queries()).enumerate() {
            for (number, pair) in row.chunks_exact(2 * sizes.head).enumerate() {
                let (query, gate) = pair.split_at(sizes.head);
                let mut query = norm(query, &self.query_norm, shape.norm_eps);
                rotate(sizes, &mut query, position + at);
                let kv_head = number * sizes.n_kv_heads / sizes.n_heads;
                let read = read(sizes, cache, &query, kv_head, position + at + 1);
                mixed.extend(read.iter().zip(gate).map(|(read, gate)| read * sigmoid(*gate)));
            }
        }
        linear(&mixed, &self.output, sizes.queries())
    }
}

/// One head's softmax read of the first `n_tokens` of the cache.
fn read(
    sizes: &AttentionShape,
    cache: &Cache,
    query: &[f32],
    kv_head: usize,
    n_tokens: usize,
) -> Vec<f32> {
    let (width, head) = (sizes.keys(), sizes.head);
    let part = |token: usize| token * width + kv_head * head..token * width + (kv_head + 1) * head;
    #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
    let scale = 1.0 / (head as f32).sqrt();
    let scores: Vec<f32> =
        (0..n_tokens).map(|token| dot(query, &cache.keys[part(token)]) * scale).collect();
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f32 = weights.iter().sum();
    let mut mixed = vec![0.0; head];
    for (token, weight) in weights.iter().enumerate() {
        add_scaled(&mut mixed, weight / total, &cache.values[part(token)]);
    }
    mixed
}

/// Rotates the first dimensions of a head by its position, in pairs half of them apart.
fn rotate(sizes: &AttentionShape, head: &mut [f32], position: usize) {
    let half = sizes.rotary / 2;
    for pair in 0..half {
        // The reference rounds the angle to f32; at long contexts another rounding is another angle.
        #[expect(clippy::cast_precision_loss, reason = "the reference computes in f32")]
        let (exponent, position) = ((2 * pair) as f32 / sizes.rotary as f32, position as f32);
        let angle = f64::from(position * (1.0 / sizes.theta.powf(exponent)));
        #[expect(clippy::cast_possible_truncation, reason = "a sine fits")]
        let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
        let (a, b) = (head[pair], head[pair + half]);
        head[pair] = a * cos - b * sin;
        head[pair + half] = b * cos + a * sin;
    }
}
