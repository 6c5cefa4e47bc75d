//! Activations as codes: rows quantised group by group, for weights that are.

#[cfg(target_arch = "x86_64")]
use std::ops::Range;

use super::isa::{Kernel, Lanes, SHIFT};
use super::linear::Machine;
use super::matrix::GROUP;
use super::scratch::Table;

/// Rows that lie together, group by group: those of a tile.
pub(super) const TOGETHER: usize = 16;

/// Rows of `x`, quantised. All tables are [blocks of up to 16 rows, groups, rows of the block].
#[derive(Debug)]
pub(super) struct Codes<'a> {
    /// -127..=127, padded with zeros.
    pub(super) codes: Table<'a, [i8; GROUP]>,
    pub(super) scales: Table<'a, f32>,
    /// Sums of the codes: times the offset of the weights' codes, that is what sums of products with these are too large.
    pub(super) sums: Table<'a, i32>,
}

impl<'m> Codes<'m> {
    /// Quantises rows, [rows, width].
    pub(super) fn new(machine: &'m Machine, x: &[f32], width: usize) -> Self {
        let n_groups = width.div_ceil(GROUP);
        let n = x.len() / width * n_groups;
        let mut codes =
            Self { codes: machine.table(n), scales: machine.table(n), sums: machine.table(n) };
        let size = TOGETHER * n_groups;
        let mut blocks: Vec<_> = x
            .chunks(TOGETHER * width)
            .zip(codes.codes.chunks_mut(size))
            .zip(codes.scales.chunks_mut(size))
            .zip(codes.sums.chunks_mut(size))
            .map(|(((rows, codes), scales), sums)| Quantise { rows, width, codes, scales, sums })
            .collect();
        machine.pool.each(&mut blocks, |block| machine.isa.run(block));
        codes
    }

    /// The entries of the block that begins with this row.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn rows(&self, row: usize, n_groups: usize) -> Range<usize> {
        row * n_groups..((row + TOGETHER) * n_groups).min(self.scales.len())
    }

    /// The place of the first group of a row, and how far apart its groups are.
    #[inline(always)]
    pub(super) fn place(&self, row: usize, n_groups: usize) -> (usize, usize) {
        let first = row / TOGETHER * TOGETHER;
        let n_rows = self.scales.len() / n_groups - first;
        (first * n_groups + row - first, if n_rows < TOGETHER { n_rows } else { TOGETHER })
    }
}

/// A block of rows.
struct Quantise<'a> {
    rows: &'a [f32],
    width: usize,
    codes: &'a mut [[i8; GROUP]],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
}

impl Kernel for &mut Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let n_rows = self.rows.len() / self.width;
        for (row, values) in self.rows.chunks_exact(self.width).enumerate() {
            for (group, values) in values.chunks(GROUP).enumerate() {
                let at = group * n_rows + row;
                let (scale, sum) = quantise_group(values, &mut self.codes[at]);
                (self.scales[at], self.sums[at]) = (scale, sum);
            }
        }
    }
}

/// Quantises up to [`GROUP`] values; returns the scale and the sum of the codes.
#[inline(always)]
pub(super) fn quantise_group(values: &[f32], codes: &mut [i8; GROUP]) -> (f32, i32) {
    // Fixed lengths and plain loops, which compilers turn into vectors.
    let mut padded = [0.0_f32; GROUP];
    padded[..values.len()].copy_from_slice(values);
    let mut lanes = [0.0_f32; 16];
    for at in 0..GROUP {
        lanes[at % 16] = lanes[at % 16].max(padded[at].abs());
    }
    let mut largest = 0.0_f32;
    for lane in lanes {
        largest = largest.max(lane);
    }
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    let mut total = 0;
    for at in 0..GROUP {
        // The nearest integer is at most 127 by the scale.
        let code = (padded[at] * inverse + SHIFT).to_bits().to_le_bytes()[0].cast_signed();
        total += i32::from(code);
        codes[at] = code;
    }
    (largest / 127.0, total)
}
