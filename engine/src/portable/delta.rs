//! Gated DeltaNet: a causal convolution, then a recurrent state that forgets, corrects and is read, token by token.
//!
//! Source of the equations: the published Qwen3.5 model as transformers 5.24 computes it. The state is f32 whatever the
//! weights are: anything less has corrupted long texts elsewhere.

use super::ops::{add_scaled, dot, linear, rms_factor, sigmoid, silu, softplus};
use super::{Load, Loader};
use crate::{DeltaShape, Error, Shape};

/// Added under the root when a query or key is made a unit vector.
const UNIT_EPS: f32 = 1e-6;

/// The weights of one layer.
pub(super) struct Delta {
    mixed: Vec<f32>,
    gate: Vec<f32>,
    beta: Vec<f32>,
    decay: Vec<f32>,
    taps: Vec<f32>,
    log_rate: Vec<f32>,
    bias: Vec<f32>,
    norm: Vec<f32>,
    output: Vec<f32>,
}

/// What a layer remembers.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    /// The last `taps - 1` rows before the convolution, oldest first: [taps - 1, channels].
    pub(super) window: Vec<f32>,
    /// [value heads, key width, value width]
    pub(super) state: Vec<f32>,
}

impl Memory {
    /// An empty one.
    pub(super) fn new(sizes: &DeltaShape) -> Self {
        Self {
            window: vec![0.0; (sizes.taps - 1) * sizes.channels()],
            state: vec![0.0; sizes.n_value_heads * sizes.key_head * sizes.value_head],
        }
    }
}

impl Load for Delta {
    fn load(load: &mut Loader<'_>) -> Result<Self, Error> {
        Ok(Self {
            mixed: load.next()?,
            gate: load.next()?,
            beta: load.next()?,
            decay: load.next()?,
            taps: load.next()?,
            log_rate: load.next()?,
            bias: load.next()?,
            norm: load.next()?,
            output: load.next()?,
        })
    }
}

impl Delta {
    /// `h` [tokens, hidden]; result of the same shape.
    pub(super) fn forward(&self, shape: &Shape, memory: &mut Memory, h: &[f32]) -> Vec<f32> {
        let (hidden, sizes) = (shape.hidden, &shape.delta);
        let rows = self.convolve(sizes, memory, &linear(h, &self.mixed, hidden));
        let gates = linear(h, &self.gate, hidden);
        let betas = linear(h, &self.beta, hidden);
        let decays = linear(h, &self.decay, hidden);
        let mut outputs = Vec::with_capacity(gates.len());
        for (at, row) in rows.chunks_exact(sizes.channels()).enumerate() {
            let (queries, rest) = row.split_at(sizes.keys());
            let (keys, values) = rest.split_at(sizes.keys());
            for head in 0..sizes.n_value_heads {
                let from = at * sizes.n_value_heads + head;
                // Neighbouring value heads share a key head.
                let key_head = head * sizes.n_key_heads / sizes.n_value_heads;
                let part = key_head * sizes.key_head..(key_head + 1) * sizes.key_head;
                let scale = inverse_root(sizes.key_head);
                let query = unit(&queries[part.clone()], scale);
                let key = unit(&keys[part], 1.0);
                let value = &values[head * sizes.value_head..(head + 1) * sizes.value_head];
                let rate = -self.log_rate[head].exp() * softplus(decays[from] + self.bias[head]);
                let size = sizes.key_head * sizes.value_head;
                let state = &mut memory.state[head * size..(head + 1) * size];
                let read = step(state, &query, &key, value, rate.exp(), sigmoid(betas[from]));
                let gate = &gates[from * sizes.value_head..(from + 1) * sizes.value_head];
                let factor = rms_factor(&read, shape.norm_eps);
                let normed =
                    read.iter().zip(&self.norm).map(|(read, weight)| read * factor * weight);
                outputs.extend(normed.zip(gate).map(|(normed, gate)| normed * silu(*gate)));
            }
        }
        linear(&outputs, &self.output, sizes.values())
    }

    /// The causal convolution of each channel with its own taps, and SiLU. The last tap is the token's own.
    fn convolve(&self, sizes: &DeltaShape, memory: &mut Memory, rows: &[f32]) -> Vec<f32> {
        let channels = sizes.channels();
        let kept = memory.window.len();
        memory.window.extend_from_slice(rows);
        let mut convolved = vec![0.0; rows.len()];
        for (at, out) in convolved.chunks_exact_mut(channels).enumerate() {
            for tap in 0..sizes.taps {
                let row = &memory.window[(at + tap) * channels..(at + tap + 1) * channels];
                for channel in 0..channels {
                    out[channel] += self.taps[channel * sizes.taps + tap] * row[channel];
                }
            }
            out.iter_mut().for_each(|x| *x = silu(*x));
        }
        memory.window.drain(..memory.window.len() - kept);
        convolved
    }
}

/// One token of one head: decay first, correct against the decayed state, read after the update.
fn step(
    state: &mut [f32],
    query: &[f32],
    key: &[f32],
    value: &[f32],
    decay: f32,
    beta: f32,
) -> Vec<f32> {
    let width = value.len();
    let mut recalled = vec![0.0; width];
    for (row, key) in state.chunks_exact_mut(width).zip(key) {
        row.iter_mut().for_each(|x| *x *= decay);
        add_scaled(&mut recalled, *key, row);
    }
    let correction: Vec<f32> =
        value.iter().zip(&recalled).map(|(value, recalled)| beta * (value - recalled)).collect();
    let mut read = vec![0.0; width];
    for ((row, key), query) in state.chunks_exact_mut(width).zip(key).zip(query) {
        add_scaled(row, *key, &correction);
        add_scaled(&mut read, *query, row);
    }
    read
}

fn unit(row: &[f32], scale: f32) -> Vec<f32> {
    let factor = scale / (dot(row, row) + UNIT_EPS).sqrt();
    row.iter().map(|x| x * factor).collect()
}

fn inverse_root(width: usize) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
    let width = width as f32;
    1.0 / width.sqrt()
}
