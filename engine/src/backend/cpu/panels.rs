//! `y = x · Wᵀ` with quantised weights in panels of 16 outputs, and `x` quantised row by row.
//!
//! For each group of inputs the products of codes are summed as integers, exactly; then `scale of the weights * scale of x`
//! times that sum is added in f32, group after group. The order is the same on every processor and for any number of
//! rows, so a row's result never depends on its neighbours.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod vnni;

use std::ops::Range;

use half::bf16;

use super::codes::Codes;
use super::isa::Isa;
use super::matrix::{GROUP, Line, PANEL, Panels};
use super::out::Out;

/// Rows from which on tiles are faster than `vpdpbusd`; the results are the same.
#[cfg(target_arch = "x86_64")]
const TILED_ROWS: usize = 9;

/// How codes of weights are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    /// A byte each, offset 128.
    Bytes,
    /// Half a byte each, offset 8.
    Nibbles,
}

impl Packing {
    /// Lines of a group.
    #[inline(always)]
    pub(super) const fn n_lines(self) -> usize {
        match self {
            Self::Bytes => GROUP / 4,
            Self::Nibbles => GROUP / 8,
        }
    }

    #[inline(always)]
    pub(super) const fn offset(self) -> i32 {
        match self {
            Self::Bytes => 128,
            Self::Nibbles => 8,
        }
    }
}

/// Computes the outputs of some panels for all rows.
///
/// # Safety
/// Nobody else holds these columns of `out`.
#[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
pub(super) unsafe fn compute(
    isa: Isa,
    packing: Packing,
    weights: &Panels,
    x: &Codes<'_>,
    n_groups: usize,
    panels: Range<usize>,
    out: Out<'_>,
    n_outputs: usize,
    adds: bool,
) {
    let n_rows = x.scales.len() / n_groups;
    let work = Work { weights, x, n_groups, n_rows, out, n_outputs, adds };
    // SAFETY: the instructions are asked for; the rest is the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if isa.has_tiles() && n_rows >= TILED_ROWS {
            return super::amx::bytes::compute(work, packing, panels);
        }
        #[cfg(target_arch = "x86_64")]
        match (isa.has_vnni(), isa) {
            (true, _) => return vnni::compute(work, packing, panels),
            (false, Isa::Avx2 | Isa::Avx512 | Isa::Amx) => {
                return avx2::compute(work, packing, panels);
            }
            (false, Isa::Portable) => {}
        }
        let _ = isa;
        for panel in panels {
            for row in 0..work.n_rows {
                portable(work, packing, panel, row);
            }
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) weights: &'a Panels,
    pub(super) x: &'a Codes<'a>,
    pub(super) n_groups: usize,
    pub(super) n_rows: usize,
    pub(super) out: Out<'a>,
    pub(super) n_outputs: usize,
    pub(super) adds: bool,
}

impl Work<'_> {
    /// # Safety
    /// Nobody else holds these columns of `out`.
    #[inline(always)]
    pub(super) unsafe fn store(&self, row: usize, panel: usize, sums: &[f32; PANEL]) {
        let columns = panel * PANEL..((panel + 1) * PANEL).min(self.n_outputs);
        // SAFETY: the caller's promise.
        let out = unsafe { self.out.part(row, columns) };
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = if self.adds { *out + sum } else { *sum };
        }
    }

    /// The lines of a group of a panel.
    #[inline(always)]
    fn lines(&self, panel: usize, group: usize, packing: Packing) -> &[Line] {
        let n = packing.n_lines();
        &self.weights.codes[(panel * self.n_groups + group) * n..][..n]
    }
}

/// # Safety
/// Nobody else holds these columns of `out`.
unsafe fn portable(work: Work<'_>, packing: Packing, panel: usize, row: usize) {
    let mut sums = [0.0_f32; PANEL];
    let (first, stride) = work.x.place(row, work.n_groups);
    for group in 0..work.n_groups {
        let at = first + group * stride;
        let codes = &work.x.codes[at];
        let mut whole = [-packing.offset() * work.x.sums[at]; PANEL];
        for (step, line) in work.lines(panel, group, packing).iter().enumerate() {
            for (lane, whole) in whole.iter_mut().enumerate() {
                for input in 0..4 {
                    let code = line.0[lane * 4 + input];
                    let product = |code: u8, at: usize| i32::from(code) * i32::from(codes[at]);
                    *whole += match packing {
                        Packing::Bytes => product(code, step * 4 + input),
                        Packing::Nibbles => {
                            product(code & 15, step * 8 + input)
                                + product(code >> 4, step * 8 + 4 + input)
                        }
                    };
                }
            }
        }
        let scales = &work.weights.scales[panel * work.n_groups + group];
        for lane in 0..PANEL {
            #[expect(clippy::cast_precision_loss, reason = "below 2^24")]
            let whole = whole[lane] as f32;
            sums[lane] += whole * (bf16::from_bits(scales[lane]).to_f32() * work.x.scales[at]);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { work.store(row, panel, &sums) };
}
