//! Full attention with a gate, grouped key heads and partly rotated heads.
//!
//! A key head's cache holds keys in tiles of 16 tokens, two dimensions by two, so that a register holds one dimension of 16 keys
//! and a score needs no sum across lanes; values lie in groups of 32 tokens, 16 dimensions at a time and two tokens by two.
//! Both are what a matrix tile reads, too. Keys are kept after norm and rotation.
//!
//! Source of the equations: the published Qwen3.5 model as transformers 5.24 computes it.

pub(super) mod read;
mod share;

use super::isa::{Isa, Kernel, Lanes};
use super::ops;
use super::out::Out;
use super::rows::Element;
use crate::AttentionShape;
pub(super) use share::{Part, Reads};

/// Tokens of a tile of keys.
pub(super) const KEYS: usize = 16;
/// Tokens of a group of values.
pub(super) const VALUES: usize = 32;

/// The keys and values of one key head of one sequence. What lies behind the last token is finite.
#[derive(Debug, Clone)]
pub(super) struct Cache<E> {
    /// [tiles, head / 2] of two dimensions of 16 tokens.
    pub(super) keys: Vec<Pairs<E>>,
    /// [groups, head / 16, 16] of 16 dimensions of two tokens.
    pub(super) values: Vec<Pairs<E>>,
    n_tokens: usize,
}

/// Sixteen pairs, in the arrangement of [`Element::pair`].
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Pairs<E>(pub(super) [E; 32]);

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
    pub(super) fn new() -> Self {
        Self { keys: Vec::new(), values: Vec::new(), n_tokens: 0 }
    }

    fn append(&mut self, key: &[f32], value: &[f32]) {
        let (n_keys, n_values) = lengths(self.n_tokens + 1, key.len());
        grow(&mut self.keys, n_keys);
        grow(&mut self.values, n_values);
        let tile = self.n_tokens / KEYS * key.len().div_ceil(2);
        for (dimension, key) in key.iter().enumerate() {
            let lane = E::place(self.n_tokens % KEYS, dimension % 2);
            self.keys[tile + dimension / 2].0[lane] = E::of(*key);
        }
        let group = self.n_tokens / VALUES * value.len().div_ceil(16);
        let pair = self.n_tokens % VALUES / 2;
        for (dimension, value) in value.iter().enumerate() {
            let lane = E::place(dimension % 16, self.n_tokens % 2);
            self.values[(group + dimension / 16) * 16 + pair].0[lane] = E::of(*value);
        }
        self.n_tokens += 1;
    }

    /// Forgets all but the first tokens.
    pub(super) fn truncate(&mut self, n_tokens: usize, head: usize) {
        self.n_tokens = self.n_tokens.min(n_tokens);
        let (n_keys, n_values) = lengths(self.n_tokens, head);
        self.keys.truncate(n_keys);
        self.values.truncate(n_values);
    }

    /// A cache of the first tokens alone.
    pub(super) fn prefix(&self, n_tokens: usize, head: usize) -> Self {
        let n_tokens = n_tokens.min(self.n_tokens);
        let (n_keys, n_values) = lengths(n_tokens, head);
        let (keys, values) = (self.keys[..n_keys].to_vec(), self.values[..n_values].to_vec());
        Self { keys, values, n_tokens }
    }

    /// As allocated.
    pub(super) fn bytes(&self) -> usize {
        (self.keys.capacity() + self.values.capacity()) * size_of::<Pairs<E>>()
    }

    /// Of what lies there.
    pub(super) fn live_bytes(&self) -> usize {
        (self.keys.len() + self.values.len()) * size_of::<Pairs<E>>()
    }

    /// Keys and values, each [tokens, head].
    pub(super) fn table(&self, head: usize) -> (Vec<f32>, Vec<f32>) {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for token in 0..self.n_tokens {
            let tile = &self.keys[token / KEYS * head.div_ceil(2)..];
            let group = &self.values[token / VALUES * head.div_ceil(16) * 16..];
            for at in 0..head {
                keys.push(tile[at / 2].0[E::place(token % KEYS, at % 2)].to_f32());
                let pairs = &group[at / 16 * 16 + token % VALUES / 2];
                values.push(pairs.0[E::place(at % 16, token % 2)].to_f32());
            }
        }
        (keys, values)
    }
}

/// Fills up with zeros. Room is made in steps of an eighth: what a vector takes of itself, twice as much, would count against the
/// memory that others may use.
fn grow<E: Element>(pairs: &mut Vec<Pairs<E>>, n: usize) {
    if n > pairs.capacity() {
        let room = n.max(pairs.len() + pairs.len() / 8);
        pairs.reserve_exact(room - pairs.len());
    }
    pairs.resize(n, Pairs([E::default(); 32]));
}

/// Entries of keys and of values for so many tokens.
fn lengths(n_tokens: usize, head: usize) -> (usize, usize) {
    let (tiles, groups) = (n_tokens.div_ceil(KEYS), n_tokens.div_ceil(VALUES));
    (tiles * head.div_ceil(2), groups * head.div_ceil(16) * 16)
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

#[cfg(test)]
mod tests;
