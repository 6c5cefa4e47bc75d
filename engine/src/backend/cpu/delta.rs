//! Gated DeltaNet: a causal convolution, then a recurrent state that forgets, corrects and is read.
//!
//! Prefill is the recurrence too, not the chunked form: the state's columns are independent, so a strip of them stays in the
//! first-level cache while a block of tokens passes, and the arithmetic is three multiply-adds for each value of the state
//! where the chunked form needs more than five. It also makes every token's result the same however a prompt is cut,
//! which the chunked form does not.
//!
//! Source of the equations: the published Qwen3.5 model as transformers 5.24 computes it. The state is f32 whatever the
//! weights are: anything less has corrupted long texts elsewhere.

use super::isa::{Isa, Kernel, Lanes};
use super::ops;
use super::out::Out;
use crate::DeltaShape;

/// Tokens that pass a strip of the state at a time.
const BLOCK: usize = 32;
/// Added under the root when a query or key is made a unit vector.
const UNIT_EPS: f32 = 1e-6;

/// What a layer remembers of one sequence. Head widths are padded to whole registers with zeros.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    /// One for each key head.
    pub(super) heads: Vec<Head>,
}

#[derive(Debug, Clone)]
pub(super) struct Head {
    /// The last `taps - 1` rows before the convolution, oldest first: [taps - 1, channels of this head].
    window: Vec<f32>,
    /// [value heads of this key head, key width, value width]
    state: Vec<f32>,
}

/// The small weights of a layer, all f32.
pub(super) struct Weights {
    /// [key heads, taps, channels of a head]
    pub(super) taps: Vec<f32>,
    /// `-e^A_log` for each value head.
    pub(super) rates: Vec<f32>,
    /// For each value head.
    pub(super) bias: Vec<f32>,
    /// [value width]
    pub(super) norm: Vec<f32>,
}

/// Widths of one key head with its value heads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Widths {
    pub(super) key: usize,
    pub(super) value: usize,
    /// Padded.
    key16: usize,
    value16: usize,
    /// Value heads that share the key head.
    group: usize,
    taps: usize,
}

/// The rows of one sequence for one layer; every table is [tokens, ...].
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// [tokens, channels]: queries, keys, values.
    pub(super) mixed: &'a [f32],
    /// [tokens, values]
    pub(super) gates: &'a [f32],
    /// [tokens, value heads]
    pub(super) betas: &'a [f32],
    /// [tokens, value heads]
    pub(super) decays: &'a [f32],
}

impl Widths {
    pub(super) fn new(sizes: &DeltaShape) -> Self {
        Self {
            key: sizes.key_head,
            value: sizes.value_head,
            key16: sizes.key_head.next_multiple_of(16),
            value16: sizes.value_head.next_multiple_of(16),
            group: sizes.n_value_heads / sizes.n_key_heads,
            taps: sizes.taps,
        }
    }

    /// Channels of a head: query, key, values, each padded.
    pub(super) fn channels(&self) -> usize {
        2 * self.key16 + self.group * self.value16
    }

    /// Copies the channels of a head out of a row of all channels. The rest of `out` is left as it is.
    fn gather(&self, sizes: &DeltaShape, head: usize, row: &[f32], out: &mut [f32]) {
        let keys = sizes.keys();
        out[..self.key].copy_from_slice(&row[head * self.key..][..self.key]);
        out[self.key16..][..self.key].copy_from_slice(&row[keys + head * self.key..][..self.key]);
        for at in 0..self.group {
            let from = 2 * keys + (head * self.group + at) * self.value;
            let to = 2 * self.key16 + at * self.value16;
            out[to..to + self.value].copy_from_slice(&row[from..from + self.value]);
        }
    }

    /// Turns the taps of a checkpoint, [channels, taps], into [key heads, taps, channels of a head].
    pub(super) fn taps(&self, sizes: &DeltaShape, taps: &[f32]) -> Vec<f32> {
        let mut all = vec![0.0; sizes.n_key_heads * self.taps * self.channels()];
        for tap in 0..self.taps {
            let row: Vec<f32> = taps.iter().skip(tap).step_by(self.taps).copied().collect();
            for head in 0..sizes.n_key_heads {
                let at = (head * self.taps + tap) * self.channels();
                self.gather(sizes, head, &row, &mut all[at..at + self.channels()]);
            }
        }
        all
    }
}

impl Memory {
    pub(super) fn new(sizes: &DeltaShape) -> Self {
        let widths = Widths::new(sizes);
        let head = Head {
            window: vec![0.0; (sizes.taps - 1) * widths.channels()],
            state: vec![0.0; widths.group * widths.key * widths.value16],
        };
        Self { heads: vec![head; sizes.n_key_heads] }
    }

    pub(super) fn bytes(&self) -> usize {
        let values = |head: &Head| head.window.capacity() + head.state.capacity();
        self.heads.iter().map(values).sum::<usize>() * size_of::<f32>()
    }

    /// Becomes the same as another one of the same layer, in the memory that it has.
    pub(super) fn copy_from(&mut self, other: &Self) {
        for (ours, theirs) in self.heads.iter_mut().zip(&other.heads) {
            ours.window.copy_from_slice(&theirs.window);
            ours.state.copy_from_slice(&theirs.state);
        }
    }

    /// The state without padding, [value heads, key width, value width].
    pub(super) fn state(&self, sizes: &DeltaShape) -> Vec<f32> {
        let widths = Widths::new(sizes);
        let rows = self.heads.iter().flat_map(|head| head.state.chunks_exact(widths.value16));
        rows.flat_map(|row| &row[..widths.value]).copied().collect()
    }
}

/// One key head of one sequence. The results, [tokens, values], are written to this head's columns of `out`.
pub(super) struct Task<'a> {
    pub(super) sizes: &'a DeltaShape,
    pub(super) weights: &'a Weights,
    pub(super) eps: f32,
    pub(super) number: usize,
    pub(super) head: &'a mut Head,
    pub(super) rows: Rows<'a>,
    /// The row of `out` that belongs to the first token.
    pub(super) first_row: usize,
}

impl Task<'_> {
    /// # Safety
    /// Nobody else holds this head's columns of these rows of `out`.
    pub(super) unsafe fn run(&mut self, isa: Isa, out: Out<'_>) {
        isa.run(Forward { task: self, out });
    }
}

struct Forward<'t, 'a, 'o> {
    task: &'t mut Task<'a>,
    out: Out<'o>,
}

/// A block of tokens of one head, convolved.
struct Block {
    /// [taps - 1 + tokens, channels]
    raw: Vec<f32>,
    /// [tokens, channels]
    convolved: Vec<f32>,
    /// [tokens, value width], of one value head.
    read: Vec<f32>,
}

impl Kernel for Forward<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Task { sizes, weights, eps, number, head, rows, first_row } = self.task;
        let widths = Widths::new(sizes);
        let channels = widths.channels();
        let n_tokens = rows.mixed.len() / sizes.channels();
        let taps = &weights.taps[*number * widths.taps * channels..][..widths.taps * channels];
        let size = BLOCK.min(n_tokens);
        let mut block = Block {
            raw: vec![0.0; (widths.taps - 1 + size) * channels],
            convolved: vec![0.0; size * channels],
            read: vec![0.0; size * widths.value16],
        };
        let kept = (widths.taps - 1) * channels;
        for from in (0..n_tokens).step_by(BLOCK) {
            let n = BLOCK.min(n_tokens - from);
            block.raw[..kept].copy_from_slice(&head.window);
            for at in 0..n {
                let row = &rows.mixed[(from + at) * sizes.channels()..][..sizes.channels()];
                let out = &mut block.raw[kept + at * channels..][..channels];
                widths.gather(sizes, *number, row, out);
            }
            head.window.copy_from_slice(&block.raw[n * channels..n * channels + kept]);
            convolve::<L>(&widths, taps, &block.raw, &mut block.convolved[..n * channels]);
            for at in 0..n {
                let row = &mut block.convolved[at * channels..][..2 * widths.key16];
                let (query, key) = row.split_at_mut(widths.key16);
                #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
                unit::<L>(query, 1.0 / (widths.key as f32).sqrt());
                unit::<L>(key, 1.0);
            }
            for of in 0..widths.group {
                let value_head = *number * widths.group + of;
                let state_size = widths.key * widths.value16;
                let state = &mut head.state[of * state_size..(of + 1) * state_size];
                let steps: [(f32, f32); BLOCK] = std::array::from_fn(|at| {
                    if at >= n {
                        return (0.0, 0.0);
                    }
                    let place = (from + at) * sizes.n_value_heads + value_head;
                    let rate = softplus(rows.decays[place] + weights.bias[value_head]);
                    let beta = 1.0 / (1.0 + (-rows.betas[place]).exp());
                    ((weights.rates[value_head] * rate).exp(), beta)
                });
                recur::<L>(&widths, state, of, &steps[..n], &block.convolved, &mut block.read);
                for at in 0..n {
                    let read = &mut block.read[at * widths.value16..][..widths.value];
                    ops::norm::<L>(read, &weights.norm, *eps);
                    let from_gate = (from + at) * sizes.values() + value_head * widths.value;
                    ops::times_silu::<L>(read, &rows.gates[from_gate..from_gate + widths.value]);
                    let columns = value_head * widths.value..(value_head + 1) * widths.value;
                    // SAFETY: `Task::run` promises it.
                    unsafe { self.out.part(*first_row + from + at, columns) }.copy_from_slice(read);
                }
            }
        }
    }
}

/// The causal convolution of each channel with its own taps, and SiLU. The last tap is the token's own.
#[inline(always)]
fn convolve<L: Lanes>(widths: &Widths, taps: &[f32], raw: &[f32], out: &mut [f32]) {
    let channels = widths.channels();
    for (at, out) in out.chunks_exact_mut(channels).enumerate() {
        for (from, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let mut sum = L::splat(0.0);
            for tap in 0..widths.taps {
                let tap16 = &taps[tap * channels..][..channels].as_chunks().0[from];
                let raw16 = &raw[(at + tap) * channels..][..channels].as_chunks().0[from];
                sum = L::load(tap16).fma(L::load(raw16), sum);
            }
            sum.mul(super::isa::sigmoid(sum)).store(out);
        }
    }
}

/// Makes a vector as long as `length`.
#[inline(always)]
fn unit<L: Lanes>(x: &mut [f32], length: f32) {
    let factor = L::splat(length / (ops::squares::<L>(x) + UNIT_EPS).sqrt());
    for x in x.as_chunks_mut::<16>().0 {
        L::load(x).mul(factor).store(x);
    }
}

/// The recurrence of one value head over a block, strip by strip of the state's columns. `steps` are decay and beta.
#[inline(always)]
fn recur<L: Lanes>(
    widths: &Widths,
    state: &mut [f32],
    of: usize,
    steps: &[(f32, f32)],
    convolved: &[f32],
    read: &mut [f32],
) {
    let mut column = 0;
    while column < widths.value16 {
        if L::IS_WIDE && widths.value16 - column >= 64 {
            strip::<L, 4>(widths, state, of, steps, convolved, read, column);
            column += 64;
        } else if widths.value16 - column >= 32 {
            strip::<L, 2>(widths, state, of, steps, convolved, read, column);
            column += 32;
        } else {
            strip::<L, 1>(widths, state, of, steps, convolved, read, column);
            column += 16;
        }
    }
}

/// For each token: decay first, correct against the decayed state, read after the update.
#[inline(always)]
fn strip<L: Lanes, const W: usize>(
    widths: &Widths,
    state: &mut [f32],
    of: usize,
    steps: &[(f32, f32)],
    convolved: &[f32],
    read: &mut [f32],
    column: usize,
) {
    let (channels, stride) = (widths.channels(), widths.value16);
    for (at, &(decay, beta)) in steps.iter().enumerate() {
        let row = &convolved[at * channels..][..channels];
        let (query, rest) = row.split_at(widths.key16);
        let (key, values) = rest.split_at(widths.key16);
        let value = values[of * stride + column..][..16 * W].as_chunks().0;
        let mut recalled = [L::splat(0.0); W];
        for (row, key) in state.chunks_exact(stride).zip(key) {
            let key = L::splat(*key);
            let row = row[column..column + 16 * W].as_chunks().0;
            for lane in 0..W {
                recalled[lane] = L::load(&row[lane]).fma(key, recalled[lane]);
            }
        }
        let (decay, beta) = (L::splat(decay), L::splat(beta));
        let mut correction = [L::splat(0.0); W];
        for lane in 0..W {
            correction[lane] = L::load(&value[lane]).sub(recalled[lane].mul(decay)).mul(beta);
        }
        let mut sums = [L::splat(0.0); W];
        for ((row, key), query) in state.chunks_exact_mut(stride).zip(key).zip(query) {
            let (key, query) = (L::splat(*key), L::splat(*query));
            let row = row[column..column + 16 * W].as_chunks_mut().0;
            for lane in 0..W {
                let value = correction[lane].fma(key, L::load(&row[lane]).mul(decay));
                value.store(&mut row[lane]);
                sums[lane] = value.fma(query, sums[lane]);
            }
        }
        let out = read[at * stride + column..][..16 * W].as_chunks_mut().0;
        for lane in 0..W {
            sums[lane].store(&mut out[lane]);
        }
    }
}

/// `ln(1 + eˣ)`; above 20 the reference takes `x` itself.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
