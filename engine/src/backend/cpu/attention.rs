//! Full attention with a gate, grouped key heads and partly rotated heads.
//!
//! A key head's cache holds keys in tiles of 16 tokens, dimension by dimension, so that a register holds one dimension of 16
//! keys and a score needs no sum across lanes; values lie token by token. Keys are kept after norm and rotation.
//!
//! Softmax goes over blocks of [`BLOCK`] tokens that begin at multiples of it. Every block is computed by itself, then the
//! blocks are put together in order (Milakov and Gimelshein, 2018), whether one thread does it all or several share a long
//! context: a token's result is the same in every batch.
//!
//! Source of the equations: the published Qwen3.5 model as transformers 5.24 computes it.

use super::isa::{Isa, Kernel, Lanes};
use super::ops;
use super::out::Out;
use super::rows::Element;
use crate::AttentionShape;

/// Tokens whose keys and values are read together: with 256 dimensions of BF16 they are 256 KiB.
const BLOCK: usize = 256;
/// Queries that share what is read: the query heads of a key head.
const ROWS: usize = 4;

/// The keys and values of one key head of one sequence.
#[derive(Debug, Clone, Default)]
pub(super) struct Cache<E> {
    /// [tiles, head, 16 tokens]
    keys: Vec<[E; 16]>,
    /// [tokens, head, padded to whole registers]
    values: Vec<[E; 16]>,
    n_tokens: usize,
}

/// The small weights of a layer: norms with one added.
pub(super) struct Norms {
    pub(super) query: Vec<f32>,
    pub(super) key: Vec<f32>,
}

/// Cosine and sine of each token's angles, [tokens, rotary / 2].
pub(super) struct Angles {
    n: usize,
    values: Vec<(f32, f32)>,
}

impl Angles {
    /// For these positions.
    pub(super) fn new(sizes: &AttentionShape, positions: impl Iterator<Item = usize>) -> Self {
        let n = sizes.rotary / 2;
        let mut values = Vec::new();
        for position in positions {
            values.extend((0..n).map(|pair| {
                // The reference rounds the angle to f32; at long contexts another rounding is another angle.
                #[expect(clippy::cast_precision_loss, reason = "the reference computes in f32")]
                let (exponent, position) =
                    ((2 * pair) as f32 / sizes.rotary as f32, position as f32);
                let angle = f64::from(position * (1.0 / sizes.theta.powf(exponent)));
                #[expect(clippy::cast_possible_truncation, reason = "a cosine fits")]
                let both = (angle.cos() as f32, angle.sin() as f32);
                both
            }));
        }
        Self { n, values }
    }

    /// Rotates the first dimensions of a head, in pairs half of them apart.
    fn rotate(&self, token: usize, head: &mut [f32]) {
        let (first, rest) = head.split_at_mut(self.n);
        let angles = &self.values[token * self.n..(token + 1) * self.n];
        for ((a, b), (cos, sin)) in first.iter_mut().zip(rest).zip(angles) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

impl<E: Element> Cache<E> {
    fn append(&mut self, key: &[f32], value: &[f32]) {
        let lane = self.n_tokens % 16;
        if lane == 0 {
            self.keys.resize(self.keys.len() + key.len(), [E::default(); 16]);
        }
        let tile = self.keys.len() - key.len();
        for (dimension, key) in key.iter().enumerate() {
            self.keys[tile + dimension][lane] = E::of(*key);
        }
        for values in value.chunks(16) {
            let mut sixteen = [E::default(); 16];
            sixteen.iter_mut().zip(values).for_each(|(to, from)| *to = E::of(*from));
            self.values.push(sixteen);
        }
        self.n_tokens += 1;
    }

    /// Forgets all but the first tokens.
    pub(super) fn truncate(&mut self, n_tokens: usize, head: usize) {
        self.keys.truncate(n_tokens.div_ceil(16) * head);
        self.values.truncate(n_tokens * head.div_ceil(16));
        self.n_tokens = self.n_tokens.min(n_tokens);
    }

    /// A cache of the first tokens alone.
    pub(super) fn prefix(&self, n_tokens: usize, head: usize) -> Self {
        let n_tokens = n_tokens.min(self.n_tokens);
        let keys = self.keys[..n_tokens.div_ceil(16) * head].to_vec();
        let values = self.values[..n_tokens * head.div_ceil(16)].to_vec();
        Self { keys, values, n_tokens }
    }

    pub(super) fn bytes(&self) -> usize {
        (self.keys.capacity() + self.values.capacity()) * size_of::<[E; 16]>()
    }

    /// Keys and values, each [tokens, head].
    pub(super) fn table(&self, head: usize) -> (Vec<f32>, Vec<f32>) {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for token in 0..self.n_tokens {
            let tile = &self.keys[token / 16 * head..][..head];
            keys.extend(tile.iter().map(|dimension| dimension[token % 16].to_f32()));
            let stride = head.div_ceil(16);
            let row = self.values[token * stride..][..stride].as_flattened();
            values.extend(row[..head].iter().map(|value| value.to_f32()));
        }
        (keys, values)
    }
}

/// The new tokens of one key head of one sequence.
pub(super) struct Append<'a, E> {
    pub(super) sizes: &'a AttentionShape,
    pub(super) norms: &'a Norms,
    pub(super) eps: f32,
    pub(super) number: usize,
    pub(super) cache: &'a mut Cache<E>,
    pub(super) first_row: usize,
    pub(super) n_tokens: usize,
    /// Of all rows of the batch: [rows, kv heads * head]
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    /// [rows, heads * 2 * head]: each head's query is followed by its gate.
    pub(super) both: &'a [f32],
    pub(super) angles: &'a Angles,
}

impl<E: Element> Append<'_, E> {
    /// Adds keys and values to the cache and writes the queries, normed, rotated and scaled, to `queries`,
    /// [rows, heads * head].
    ///
    /// # Safety
    /// Nobody else holds the columns of these heads in these rows.
    pub(super) unsafe fn run(&mut self, isa: Isa, queries: Out<'_>) {
        isa.run(Appending { append: self, queries });
    }
}

struct Appending<'t, 'a, 'o, E> {
    append: &'t mut Append<'a, E>,
    queries: Out<'o>,
}

impl<E: Element> Kernel for Appending<'_, '_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Append { sizes, norms, eps, number, cache, first_row, n_tokens, .. } = self.append;
        let (keys, values, both) = (self.append.keys, self.append.values, self.append.both);
        let (head, group) = (sizes.head, sizes.n_heads / sizes.n_kv_heads);
        #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
        let scale = 1.0 / (head as f32).sqrt();
        for row in *first_row..*first_row + *n_tokens {
            let from = row * sizes.keys() + *number * head;
            let mut key = keys[from..from + head].to_vec();
            ops::norm::<L>(&mut key, &norms.key, *eps);
            self.append.angles.rotate(row, &mut key);
            cache.append(&key, &values[from..from + head]);
            for query_head in *number * group..(*number + 1) * group {
                let columns = query_head * head..(query_head + 1) * head;
                // SAFETY: `Append::run` promises it.
                let query = unsafe { self.queries.part(row, columns) };
                let from = (row * sizes.n_heads + query_head) * 2 * head;
                query.copy_from_slice(&both[from..from + head]);
                ops::norm::<L>(query, &norms.query, *eps);
                self.append.angles.rotate(row, query);
                query.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }
}

/// One token's queries of one key head against some blocks of the cache.
pub(super) struct Read<'a, E> {
    pub(super) sizes: &'a AttentionShape,
    pub(super) cache: &'a Cache<E>,
    /// [query heads of this key head, head]
    pub(super) queries: &'a [f32],
    /// Tokens that the query sees.
    pub(super) n_visible: usize,
    /// Which block of [`BLOCK`] tokens.
    pub(super) block: usize,
}

/// What a block contributes, for each query of a group.
#[derive(Debug, Clone, Default)]
pub(super) struct Part {
    largest: [f32; ROWS],
    sum: [f32; ROWS],
    /// [query heads, head, padded], not divided by the sum.
    mixed: Vec<f32>,
}

/// Blocks that a query of so many visible tokens reads.
pub(super) fn n_blocks(n_visible: usize) -> usize {
    n_visible.div_ceil(BLOCK)
}

impl Part {
    /// Puts a later block behind this one.
    fn merge(&mut self, later: &Self) {
        let width = self.mixed.len() / ROWS;
        for row in 0..ROWS {
            let largest = self.largest[row].max(later.largest[row]);
            let (old, new) =
                ((self.largest[row] - largest).exp(), (later.largest[row] - largest).exp());
            self.sum[row] = self.sum[row] * old + later.sum[row] * new;
            let mixed = self.mixed[row * width..(row + 1) * width].iter_mut();
            for (mixed, later) in mixed.zip(&later.mixed[row * width..(row + 1) * width]) {
                *mixed = *mixed * old + later * new;
            }
            self.largest[row] = largest;
        }
    }
}

/// Puts the blocks together and writes the result, gated, to a token's columns: `out` and `gates` have one slice for each
/// query head.
pub(super) fn finish<'p>(
    isa: Isa,
    head: usize,
    parts: impl Iterator<Item = &'p Part>,
    out: &mut [(&mut [f32], &[f32])],
) {
    let mut whole: Option<Part> = None;
    for part in parts {
        match &mut whole {
            Some(whole) => whole.merge(part),
            None => whole = Some(part.clone()),
        }
    }
    let Some(whole) = whole else { return };
    let width = whole.mixed.len() / ROWS;
    for (row, (out, gates)) in out.iter_mut().enumerate() {
        let inverse = 1.0 / whole.sum[row];
        let mixed = &whole.mixed[row * width..row * width + head];
        out.iter_mut().zip(mixed).for_each(|(out, mixed)| *out = mixed * inverse);
        isa.run(Gate { y: out, gates });
    }
}

struct Gate<'a> {
    y: &'a mut [f32],
    gates: &'a [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        ops::times_sigmoid::<L>(self.y, self.gates);
    }
}

impl<E: Element> Kernel for Read<'_, E> {
    type Output = Part;

    #[inline(always)]
    fn run<L: Lanes>(self) -> Part {
        let head = self.sizes.head;
        let group = self.queries.len() / head;
        let from = self.block * BLOCK;
        let n = (self.n_visible - from).min(BLOCK);
        // One entry for each dimension; rows that no query fills are zero.
        let mut queries = vec![[0.0; ROWS]; head];
        for (row, query) in self.queries.chunks_exact(head).enumerate().take(group) {
            for (to, from) in queries.iter_mut().zip(query) {
                to[row] = *from;
            }
        }
        let mut scores = [[[0.0; 16]; BLOCK / 16]; ROWS];
        let n_tiles = n.div_ceil(16);
        let tiles = &self.cache.keys[from / 16 * head..][..n_tiles * head];
        let mut tile = 0;
        while tile < n_tiles {
            // Two tiles at once are eight sums: enough to keep two multipliers busy.
            if n_tiles - tile >= 2 {
                score::<L, E, 2>(&tiles[tile * head..][..2 * head], &queries, tile, &mut scores);
                tile += 2;
            } else {
                score::<L, E, 1>(&tiles[tile * head..][..head], &queries, tile, &mut scores);
                tile += 1;
            }
        }
        let width = head.div_ceil(16);
        let mut part = Part { mixed: vec![0.0; ROWS * width * 16], ..Part::default() };
        let mut weights = [[0.0; ROWS]; BLOCK];
        for row in 0..ROWS {
            let scores = &mut scores[row][..n_tiles];
            (part.largest[row], part.sum[row]) = ops::soften::<L>(scores, n);
            for (weights, score) in weights.iter_mut().zip(scores.as_flattened()) {
                weights[row] = *score;
            }
        }
        let values = &self.cache.values[from * width..][..n * width];
        let mut at = 0;
        while at < width {
            if width - at >= 4 {
                mix::<L, E, 4>(values, width, at, &weights, &mut part.mixed);
                at += 4;
            } else {
                mix::<L, E, 1>(values, width, at, &weights, &mut part.mixed);
                at += 1;
            }
        }
        part
    }
}

/// Scores of all rows against `T` tiles of keys.
#[inline(always)]
fn score<L: Lanes, E: Element, const T: usize>(
    keys: &[[E; 16]],
    queries: &[[f32; ROWS]],
    tile: usize,
    scores: &mut [[[f32; 16]; BLOCK / 16]; ROWS],
) {
    let head = queries.len();
    let mut sums = [[L::splat(0.0); ROWS]; T];
    for (dimension, query) in queries.iter().enumerate() {
        for of in 0..T {
            let keys: L = E::load(&keys[of * head + dimension]);
            for row in 0..ROWS {
                sums[of][row] = keys.fma(L::splat(query[row]), sums[of][row]);
            }
        }
    }
    for of in 0..T {
        for row in 0..ROWS {
            sums[of][row].store(&mut scores[row][tile + of]);
        }
    }
}

/// Sums values by their weights, `16 * W` dimensions from register `at` on, for all rows.
#[inline(always)]
fn mix<L: Lanes, E: Element, const W: usize>(
    values: &[[E; 16]],
    width: usize,
    at: usize,
    weights: &[[f32; ROWS]; BLOCK],
    mixed: &mut [f32],
) {
    let mut sums = [[L::splat(0.0); W]; ROWS];
    for (values, weights) in values.chunks_exact(width).zip(weights) {
        let values = &values[at..at + W];
        for of in 0..W {
            let value: L = E::load(&values[of]);
            for row in 0..ROWS {
                sums[row][of] = value.fma(L::splat(weights[row]), sums[row][of]);
            }
        }
    }
    let mixed = mixed.as_chunks_mut().0;
    for (row, sums) in sums.iter().enumerate() {
        for (of, sum) in sums.iter().enumerate() {
            sum.store(&mut mixed[row * width + at + of]);
        }
    }
}
