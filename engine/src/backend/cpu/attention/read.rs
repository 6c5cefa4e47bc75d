//! Softmax over the keys and values of a cache.
//!
//! It goes over blocks of [`BLOCK`] tokens that begin at multiples of it. Every block is computed by itself, then neighbours are put
//! together (Milakov and Gimelshein, 2018) two by two, four by four and so on: a [`Tree`] that depends on the numbers of the blocks
//! alone, whether one thread does it all or several share a long context. A token's result is the same in every batch.
//!
//! Where there are matrix tiles, queries and the weights of a block are rounded to BF16, as the reference does in BF16, and
//! several tokens share what is read. Elsewhere a token is read by itself, in f32.

use std::ops::Range;

use super::{Cache, KEYS, Pairs, VALUES};
use crate::backend::cpu::isa::{Isa, Kernel, Lanes, fetch};
use crate::backend::cpu::ops;
use crate::backend::cpu::rows::Element;

/// Tokens whose keys and values are read together: with 256 dimensions of BF16 they are 256 KiB.
pub(in crate::backend::cpu) const BLOCK: usize = 256;
/// Query heads of a key head that are read together.
pub(in crate::backend::cpu) const HEADS: usize = 4;

/// Some tokens' queries, up to [`HEADS`] for each, that read one key head. A row is one query head of one token: [tokens, heads].
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Read<'a, E> {
    pub(in crate::backend::cpu) cache: &'a Cache<E>,
    /// Of all heads: [tokens, heads * head], normed, rotated and scaled.
    pub(in crate::backend::cpu) queries: &'a [f32],
    /// Values of a row of `queries`.
    pub(in crate::backend::cpu) width: usize,
    /// Dimensions of a head.
    pub(in crate::backend::cpu) head: usize,
    pub(in crate::backend::cpu) first_head: usize,
    pub(in crate::backend::cpu) n_heads: usize,
    /// Tokens, the first of which sees `n_visible` tokens and each other one more than the one before.
    pub(in crate::backend::cpu) n_tokens: usize,
    pub(in crate::backend::cpu) n_visible: usize,
}

/// What some blocks contribute, for each row.
#[derive(Debug, Clone, Default)]
pub(in crate::backend::cpu) struct Part {
    pub(in crate::backend::cpu) largest: Vec<f32>,
    pub(in crate::backend::cpu) sum: Vec<f32>,
    /// [rows, head], not divided by the sum.
    pub(in crate::backend::cpu) mixed: Vec<f32>,
}

impl Part {
    /// Room for a read.
    pub(in crate::backend::cpu) fn new(n_rows: usize, head: usize) -> Self {
        let of_rows = || vec![0.0; n_rows];
        Self { largest: of_rows(), sum: of_rows(), mixed: vec![0.0; n_rows * head] }
    }
}

impl<E: Element> Read<'_, E> {
    pub(in crate::backend::cpu) fn n_rows(&self) -> usize {
        self.n_tokens * self.n_heads
    }

    /// Blocks that the last token reads.
    pub(in crate::backend::cpu) fn n_blocks(&self) -> usize {
        (self.n_visible + self.n_tokens - 1).div_ceil(BLOCK)
    }

    /// Tokens that a row sees of a block.
    pub(in crate::backend::cpu) fn n_seen(&self, row: usize, block: usize) -> usize {
        (self.n_visible + row / self.n_heads).saturating_sub(block * BLOCK).min(BLOCK)
    }

    /// The query of a row.
    pub(in crate::backend::cpu) fn query(&self, row: usize) -> &[f32] {
        let (token, head) = (row / self.n_heads, self.first_head + row % self.n_heads);
        &self.queries[token * self.width + head * self.head..][..self.head]
    }

    /// Reads one block into `part`.
    pub(in crate::backend::cpu) fn block(&self, isa: Isa, block: usize, part: &mut Part) {
        #[cfg(target_arch = "x86_64")]
        if is_tiled(isa, self.head)
            && let Some(halves) = E::halves(self.cache)
        {
            let &Self { queries, width, head, first_head, n_heads, n_tokens, n_visible, .. } = self;
            let cache = halves;
            let read =
                Read { cache, queries, width, head, first_head, n_heads, n_tokens, n_visible };
            // SAFETY: there are tiles, and so many rows were put together for them.
            unsafe { crate::backend::cpu::amx::attention::read(&read, block, part) };
            return;
        }
        isa.run(Block { read: *self, block, part });
    }

    /// Reads all blocks.
    pub(in crate::backend::cpu) fn all(&self, isa: Isa) -> Part {
        self.blocks(isa, 0..self.n_blocks())
    }

    /// Reads some blocks that are a branch of the tree: the first is a multiple of a power of two, and they are so many or
    /// end with the last.
    pub(in crate::backend::cpu) fn blocks(&self, isa: Isa, blocks: Range<usize>) -> Part {
        let mut tree = Tree::default();
        for block in blocks {
            let room = tree.spare.pop();
            let mut part = room.unwrap_or_else(|| Part::new(self.n_rows(), self.head));
            self.block(isa, block, &mut part);
            tree.push(isa, part);
        }
        tree.root(isa)
    }
}

/// Puts neighbours together, in pairs of equal size as long as there are any.
#[derive(Default)]
pub(in crate::backend::cpu) struct Tree {
    /// Of falling sizes, each twice the next or more.
    branches: Vec<Part>,
    n_leaves: usize,
    /// Room of parts that were put into others.
    spare: Vec<Part>,
}

impl Tree {
    pub(in crate::backend::cpu) fn push(&mut self, isa: Isa, part: Part) {
        self.branches.push(part);
        self.n_leaves += 1;
        for _ in 0..self.n_leaves.trailing_zeros() {
            self.join(isa);
        }
    }

    /// All of it; what has no neighbour of its size goes to the smaller one.
    ///
    /// # Panics
    /// There is nothing.
    pub(in crate::backend::cpu) fn root(mut self, isa: Isa) -> Part {
        while self.branches.len() > 1 {
            self.join(isa);
        }
        self.branches.pop().expect("a token sees itself")
    }

    fn join(&mut self, isa: Isa) {
        if let (Some(later), Some(earlier)) = (self.branches.pop(), self.branches.last_mut()) {
            earlier.merge(isa, &later);
            self.spare.push(later);
        }
    }
}

/// Tokens that are best read together.
pub(in crate::backend::cpu) fn n_together<E: Element>(isa: Isa, head: usize) -> usize {
    if is_tiled(isa, head) && E::IS_BF16 { 32 / HEADS } else { 1 }
}

fn is_tiled(isa: Isa, head: usize) -> bool {
    isa.has_tiles() && head.is_multiple_of(32)
}

impl Part {
    /// Puts a later block behind this one.
    pub(in crate::backend::cpu) fn merge(&mut self, isa: Isa, later: &Self) {
        let head = self.mixed.len() / self.sum.len();
        for row in 0..self.sum.len() {
            // Behind what the row sees: nothing, and no number to compare with.
            if later.largest[row] == f32::NEG_INFINITY {
                continue;
            }
            let largest = self.largest[row].max(later.largest[row]);
            let (old, new) =
                ((self.largest[row] - largest).exp(), (later.largest[row] - largest).exp());
            self.sum[row] = self.sum[row] * old + later.sum[row] * new;
            let mixed = &mut self.mixed[row * head..(row + 1) * head];
            isa.run(Merge { mixed, old, later: &later.mixed[row * head..(row + 1) * head], new });
            self.largest[row] = largest;
        }
    }

    /// Writes the result of a row, gated.
    pub(in crate::backend::cpu) fn finish(
        &self,
        isa: Isa,
        row: usize,
        gates: &[f32],
        out: &mut [f32],
    ) {
        let inverse = 1.0 / self.sum[row];
        let mixed = &self.mixed[row * out.len()..(row + 1) * out.len()];
        isa.run(Finish { mixed, inverse, gates, out });
    }
}

struct Merge<'a> {
    mixed: &'a mut [f32],
    old: f32,
    later: &'a [f32],
    new: f32,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for at in 0..self.mixed.len().min(self.later.len()) {
            self.mixed[at] = self.mixed[at] * self.old + self.later[at] * self.new;
        }
    }
}

struct Finish<'a> {
    mixed: &'a [f32],
    inverse: f32,
    gates: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for at in 0..self.out.len().min(self.mixed.len()) {
            self.out[at] = self.mixed[at] * self.inverse;
        }
        ops::times_sigmoid::<L>(self.out, self.gates);
    }
}

/// One block for one token.
struct Block<'a, 'p, E> {
    read: Read<'a, E>,
    block: usize,
    part: &'p mut Part,
}

impl<E: Element> Kernel for Block<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { read, block, part } = self;
        let (head, n) = (read.head, read.n_seen(0, block));
        // Two dimensions at a time; rows that no query fills are zero.
        let mut queries = vec![[[0.0; 2]; HEADS]; head.div_ceil(2)];
        for row in 0..read.n_heads {
            for (at, value) in read.query(row).iter().enumerate() {
                queries[at / 2][row][at % 2] = *value;
            }
        }
        let mut scores = [[[0.0; KEYS]; BLOCK / KEYS]; HEADS];
        let n_tiles = n.div_ceil(KEYS);
        let pairs = queries.len();
        let tiles = &read.cache.keys[block * BLOCK / KEYS * pairs..][..n_tiles * pairs];
        let mut tile = 0;
        while tile < n_tiles {
            // Two tiles at once are eight sums: enough to keep two multipliers busy.
            if n_tiles - tile >= 2 {
                score::<L, E, 2>(&tiles[tile * pairs..], &queries, tile, &mut scores);
                tile += 2;
            } else {
                score::<L, E, 1>(&tiles[tile * pairs..], &queries, tile, &mut scores);
                tile += 1;
            }
        }
        let mut weights = [[[0.0; 2]; HEADS]; BLOCK / 2];
        for row in 0..read.n_heads {
            let scores = &mut scores[row][..n_tiles];
            (part.largest[row], part.sum[row]) = ops::soften::<L>(scores, n);
            for (at, score) in scores.as_flattened().iter().enumerate() {
                weights[at / 2][row][at % 2] = *score;
            }
        }
        let width = head.div_ceil(16);
        let values = &read.cache.values[block * BLOCK / VALUES * width * 16..];
        let mut at = 0;
        while at < width {
            if width - at >= 4 {
                mix::<L, E, 4>(values, width, at, &weights[..n.div_ceil(2)], &read, part);
                at += 4;
            } else {
                mix::<L, E, 1>(values, width, at, &weights[..n.div_ceil(2)], &read, part);
                at += 1;
            }
        }
    }
}

/// Scores of all rows against `T` tiles of keys. The next ones are fetched meanwhile.
#[inline(always)]
fn score<L: Lanes, E: Element, const T: usize>(
    keys: &[Pairs<E>],
    queries: &[[[f32; 2]; HEADS]],
    tile: usize,
    scores: &mut [[[f32; KEYS]; BLOCK / KEYS]; HEADS],
) {
    let pairs = queries.len();
    let mut sums = [[L::splat(0.0); HEADS]; T];
    for (pair, query) in queries.iter().enumerate() {
        for of in 0..T {
            let key = &keys[of * pairs + pair];
            fetch((&raw const *key).wrapping_add(T * pairs));
            let (first, second): (L, L) = E::pair(&key.0);
            for row in 0..HEADS {
                sums[of][row] = first.fma(L::splat(query[row][0]), sums[of][row]);
                sums[of][row] = second.fma(L::splat(query[row][1]), sums[of][row]);
            }
        }
    }
    for of in 0..T {
        for row in 0..HEADS {
            sums[of][row].store(&mut scores[row][tile + of]);
        }
    }
}

/// Sums values by their weights, `16 * W` dimensions from register `at` on, for all rows. Of the next tokens the same dimensions
/// are fetched meanwhile.
#[inline(always)]
fn mix<L: Lanes, E: Element, const W: usize>(
    values: &[Pairs<E>],
    width: usize,
    at: usize,
    weights: &[[[f32; 2]; HEADS]],
    read: &Read<'_, E>,
    part: &mut Part,
) {
    let mut sums = [[L::splat(0.0); W]; HEADS];
    for (pair, weights) in weights.iter().enumerate() {
        let group = pair / (VALUES / 2) * width + at;
        for of in 0..W {
            let values = &values[(group + of) * 16 + pair % (VALUES / 2)];
            fetch((&raw const *values).wrapping_add(width * 16));
            let (first, second): (L, L) = E::pair(&values.0);
            for row in 0..HEADS {
                sums[row][of] = first.fma(L::splat(weights[row][0]), sums[row][of]);
                sums[row][of] = second.fma(L::splat(weights[row][1]), sums[row][of]);
            }
        }
    }
    for row in 0..read.n_heads {
        let mixed = &mut part.mixed[row * read.head..(row + 1) * read.head];
        for of in 0..W {
            let mut values = [0.0; 16];
            sums[row][of].store(&mut values);
            let from = (at + of) * 16;
            for (to, value) in mixed[from..].iter_mut().zip(values) {
                *to = value;
            }
        }
    }
}
