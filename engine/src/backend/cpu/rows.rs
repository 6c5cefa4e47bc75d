//! `y = x · Wᵀ` with weights in rows, F32 or BF16.
//!
//! A result is one register of partial sums over the inputs, added up at the end. Its order of additions is the same
//! however many rows and outputs are computed together, so a row's result never depends on its neighbours.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::attention::Cache;
use super::isa::{Isa, Kernel, Lanes};
use super::out::Out;

/// Bytes of `x` that stay in the second-level cache while weights pass by.
const BLOCK_BYTES: usize = 512 << 10;

/// Some outputs of a layer, for all rows of `x`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, E> {
    /// [outputs, inputs]
    pub(super) weights: &'a [E],
    /// [rows, inputs]
    pub(super) x: &'a [E],
    pub(super) inputs: usize,
}

/// A value that can be widened to f32.
pub(super) trait Element: Copy + Default + Send + Sync {
    const IS_BF16: bool;

    /// 32 values, in the same arrangement for every call.
    fn pair<L: Lanes>(from: &[Self; 32]) -> (L, L);
    /// Where a lane of the first or second register of [`Self::pair`] lies among the 32.
    fn place(lane: usize, which: usize) -> usize;
    /// A cache of BF16, if it is one.
    #[cfg(target_arch = "x86_64")]
    fn halves(cache: &Cache<Self>) -> Option<&Cache<u16>>;
    /// Rounds to this type.
    fn of(value: f32) -> Self;
    fn to_f32(self) -> f32;
}

impl Element for f32 {
    const IS_BF16: bool = false;

    #[inline(always)]
    fn pair<L: Lanes>(from: &[Self; 32]) -> (L, L) {
        let halves = from.as_chunks::<16>().0;
        (L::load(&halves[0]), L::load(&halves[1]))
    }

    #[inline(always)]
    fn place(lane: usize, which: usize) -> usize {
        which * 16 + lane
    }

    #[cfg(target_arch = "x86_64")]
    fn halves(_: &Cache<Self>) -> Option<&Cache<u16>> {
        None
    }

    #[inline(always)]
    fn of(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

/// BF16 bits.
impl Element for u16 {
    const IS_BF16: bool = true;

    #[inline(always)]
    fn pair<L: Lanes>(from: &[Self; 32]) -> (L, L) {
        L::load_bf16_pairs(from)
    }

    #[inline(always)]
    fn place(lane: usize, which: usize) -> usize {
        2 * lane + which
    }

    #[cfg(target_arch = "x86_64")]
    fn halves(cache: &Cache<Self>) -> Option<&Cache<u16>> {
        Some(cache)
    }

    #[inline(always)]
    fn of(value: f32) -> Self {
        bf16_bits(value)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }
}

/// The nearest BF16, ties to even. Not a number stays none.
#[inline(always)]
pub(super) fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let bits = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    (bits >> 16) as u16
}

impl<E> Rows<'_, E> {
    fn n_rows(&self) -> usize {
        self.x.len() / self.inputs
    }

    /// Blocks of rows and, within each, groups of outputs: what is read again stays in a cache.
    #[inline(always)]
    fn tiles(&self, columns: Range<usize>, height: usize, width: usize, tile: impl Fn(Tile)) {
        let block = (BLOCK_BYTES / (self.inputs * size_of::<E>())).max(height) / height * height;
        for from in (0..self.n_rows()).step_by(block) {
            let to = (from + block).min(self.n_rows());
            for column in columns.clone().step_by(width) {
                for row in (from..to).step_by(height) {
                    tile(Tile {
                        row,
                        column,
                        n_rows: (to - row).min(height),
                        n_columns: (columns.end - column).min(width),
                    });
                }
            }
        }
    }
}

/// A part of the results that is computed together.
struct Tile {
    row: usize,
    column: usize,
    n_rows: usize,
    n_columns: usize,
}

impl Rows<'_, f32> {
    /// Computes some outputs and stores them, or adds them to what is there.
    ///
    /// # Safety
    /// Nobody else holds these columns of `out`.
    pub(super) unsafe fn compute(self, isa: Isa, columns: Range<usize>, out: Out<'_>, adds: bool) {
        isa.run(AnyRows { rows: self, columns, out, adds });
    }
}

impl Rows<'_, u16> {
    /// As for f32.
    ///
    /// # Safety
    /// Nobody else holds these columns of `out`.
    pub(super) unsafe fn compute(self, isa: Isa, columns: Range<usize>, out: Out<'_>, adds: bool) {
        #[cfg(target_arch = "x86_64")]
        if isa.has_bf16() {
            // SAFETY: the instructions were just found; the rest is the caller's promise.
            unsafe { x86::compute(self, columns, out, adds) };
            return;
        }
        isa.run(AnyRows { rows: self, columns, out, adds });
    }
}

struct AnyRows<'a, E> {
    rows: Rows<'a, E>,
    columns: Range<usize>,
    out: Out<'a>,
    adds: bool,
}

impl<E: Element> Kernel for AnyRows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        // Sums and operands of a tile fit the registers.
        let (height, width) = if L::IS_WIDE { (4, 4) } else { (2, 2) };
        let (rows, out, adds) = (self.rows, self.out, self.adds);
        rows.tiles(self.columns.clone(), height, width, |tile| {
            // SAFETY: `compute` promises it.
            unsafe {
                match (L::IS_WIDE, tile.n_rows, tile.n_columns) {
                    (true, 4, 4) => any_tile::<L, E, 4, 4>(rows, &tile, out, adds),
                    (true, 1, 4) => any_tile::<L, E, 1, 4>(rows, &tile, out, adds),
                    (_, 2, 2) => any_tile::<L, E, 2, 2>(rows, &tile, out, adds),
                    (_, 1, 2) => any_tile::<L, E, 1, 2>(rows, &tile, out, adds),
                    _ => rest(&tile, |tile| any_tile::<L, E, 1, 1>(rows, tile, out, adds)),
                }
            }
        });
    }
}

/// A tile at an edge, value by value.
#[inline(always)]
fn rest(tile: &Tile, one: impl Fn(&Tile)) {
    for row in tile.row..tile.row + tile.n_rows {
        for column in tile.column..tile.column + tile.n_columns {
            one(&Tile { row, column, n_rows: 1, n_columns: 1 });
        }
    }
}

/// # Safety
/// Nobody else holds this tile of `out`.
#[inline(always)]
unsafe fn any_tile<L: Lanes, E: Element, const H: usize, const W: usize>(
    rows: Rows<'_, E>,
    tile: &Tile,
    out: Out<'_>,
    adds: bool,
) {
    let inputs = rows.inputs;
    let x = &rows.x[tile.row * inputs..][..H * inputs];
    let w = &rows.weights[tile.column * inputs..][..W * inputs];
    let mut sums = [[L::splat(0.0); W]; H];
    for at in (0..inputs).step_by(32) {
        let mut left = [(L::splat(0.0), L::splat(0.0)); H];
        for row in 0..H {
            left[row] = pair::<L, E>(&x[row * inputs..][..inputs], at);
        }
        for column in 0..W {
            let (even, odd) = pair::<L, E>(&w[column * inputs..][..inputs], at);
            for row in 0..H {
                sums[row][column] = even.fma(left[row].0, sums[row][column]);
                sums[row][column] = odd.fma(left[row].1, sums[row][column]);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        let out = unsafe { out.part(tile.row + row, tile.column..tile.column + W) };
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = if adds { *out + sum.sum() } else { sum.sum() };
        }
    }
}

/// 32 values of a row, with zeros behind its end.
#[inline(always)]
fn pair<L: Lanes, E: Element>(row: &[E], at: usize) -> (L, L) {
    match row[at..].first_chunk() {
        Some(whole) => E::pair(whole),
        None => {
            let mut values = [E::default(); 32];
            values[..row.len() - at].copy_from_slice(&row[at..]);
            E::pair(&values)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;
