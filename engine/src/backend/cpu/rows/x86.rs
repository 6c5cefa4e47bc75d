//! BF16 with `vdpbf16ps`: 32 products a time, summed in f32.
//!
//! [rows, inputs] x [outputs, inputs]; three rows by eight outputs are 24 registers of sums. Inputs come in parts of about
//! [`DEEP`]: the weights of eight outputs and the values of three rows then fit the first-level cache together. The registers of a
//! part are summed up and added to the result before the next part begins, for one row as for many.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Out, Rows};
use crate::backend::cpu::isa::fetch;

/// Products of an instruction.
const STEP: usize = 32;
/// Inputs of a part at most.
const DEEP: usize = 1536;
/// Outputs of a tile.
const WIDE: usize = 8;
/// Rows of a tile.
const HIGH: usize = 3;
/// Bytes of a part of the rows that stay in the second-level cache while weights pass by.
const BLOCK_BYTES: usize = 512 << 10;
/// Bytes from a weight that is used for a single row to one that is fetched.
const AHEAD: usize = 4096;

/// # Safety
/// The processor has AVX-512 BF16, and nobody else holds these columns of `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn compute(rows: Rows<'_, u16>, columns: Range<usize>, out: Out<'_>, adds: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if rows.n_rows() == 1 {
            one_row(rows, columns, out, adds);
        } else {
            many_rows(rows, columns, out, adds);
        }
    }
}

/// The parts of the inputs.
fn parts(inputs: usize) -> impl Iterator<Item = Range<usize>> {
    let deep = inputs.div_ceil(inputs.div_ceil(DEEP)).next_multiple_of(STEP);
    (0..inputs).step_by(deep).map(move |from| from..(from + deep).min(inputs))
}

/// Weights are read in the order in which they lie.
///
/// # Safety
/// As for [`compute`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn one_row(rows: Rows<'_, u16>, columns: Range<usize>, out: Out<'_>, adds: bool) {
    for column in columns {
        let mut adds = adds;
        for part in parts(rows.inputs) {
            // SAFETY: the caller's promise.
            unsafe { tile::<1, 1>(rows, 0, column, part, out, adds) };
            adds = true;
        }
    }
}

/// # Safety
/// As for [`compute`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn many_rows(rows: Rows<'_, u16>, columns: Range<usize>, out: Out<'_>, adds: bool) {
    let block = (BLOCK_BYTES / (2 * DEEP.min(rows.inputs))).next_multiple_of(HIGH);
    for from in (0..rows.n_rows()).step_by(block) {
        let block = from..(from + block).min(rows.n_rows());
        let mut adds = adds;
        for part in parts(rows.inputs) {
            for column in columns.clone().step_by(WIDE) {
                let wide = column..(column + WIDE).min(columns.end);
                // SAFETY: the caller's promise.
                unsafe { down(rows, block.clone(), wide, part.clone(), out, adds) };
            }
            adds = true;
        }
    }
}

/// All rows of a block by the outputs of a tile.
///
/// # Safety
/// As for [`compute`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn down(
    rows: Rows<'_, u16>,
    block: Range<usize>,
    columns: Range<usize>,
    part: Range<usize>,
    out: Out<'_>,
    adds: bool,
) {
    let (mut row, column) = (block.start, columns.start);
    while row < block.end {
        let n_rows = (block.end - row).min(HIGH);
        fetch_next(rows, columns.end, (row - block.start) / HIGH, &part);
        // SAFETY: the caller's promise.
        unsafe {
            match (n_rows, columns.len()) {
                (3, WIDE) => tile::<3, WIDE>(rows, row, column, part.clone(), out, adds),
                (2, WIDE) => tile::<2, WIDE>(rows, row, column, part.clone(), out, adds),
                (1, WIDE) => tile::<1, WIDE>(rows, row, column, part.clone(), out, adds),
                _ => {
                    for row in row..row + n_rows {
                        for column in columns.clone() {
                            tile::<1, 1>(rows, row, column, part.clone(), out, adds);
                        }
                    }
                }
            }
        }
        row += n_rows;
    }
}

/// Fetches a line of each of the next outputs' weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn fetch_next(rows: Rows<'_, u16>, column: usize, line: usize, part: &Range<usize>) {
    let at = part.start + line * STEP;
    if at < part.end {
        let from = rows.weights.as_ptr().wrapping_add(column * rows.inputs + at);
        for of in 0..WIDE {
            _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(of * rows.inputs).cast());
        }
    }
}

/// Some rows by some outputs by a part of the inputs.
///
/// # Safety
/// As for [`compute`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn tile<const H: usize, const W: usize>(
    rows: Rows<'_, u16>,
    row: usize,
    column: usize,
    part: Range<usize>,
    out: Out<'_>,
    adds: bool,
) {
    let inputs = rows.inputs;
    let x = rows.x[row * inputs..(row + H) * inputs].as_ptr();
    let w = rows.weights[column * inputs..(column + W) * inputs].as_ptr();
    let mut sums = [[_mm512_setzero_ps(); W]; H];
    let mut at = part.start;
    while at + STEP <= part.end {
        if W == 1 {
            fetch(w.wrapping_add(at).cast::<i8>().wrapping_add(AHEAD));
        }
        // SAFETY: the slices hold H and W rows of `inputs` values.
        unsafe { step(&mut sums, x.wrapping_add(at), w.wrapping_add(at), inputs, u32::MAX) };
        at += STEP;
    }
    if at < part.end {
        // The tail is read masked: lanes behind the end are zero.
        let mask = (1 << (part.end - at)) - 1;
        // SAFETY: as above; the mask leaves out what lies behind them.
        unsafe { step(&mut sums, x.wrapping_add(at), w.wrapping_add(at), inputs, mask) };
    }
    for (of, sums) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        let out = unsafe { out.part(row + of, column..column + W) };
        if W == WIDE {
            let eight = *sums.first_chunk().expect("a tile is eight outputs wide");
            // SAFETY: eight results.
            unsafe {
                let mut all = totals(eight);
                if adds {
                    all = _mm256_add_ps(_mm256_loadu_ps(out.as_ptr()), all);
                }
                _mm256_storeu_ps(out.as_mut_ptr(), all);
            }
        } else {
            for of in 0..W {
                let total = total(sums[of]);
                out[of] = if adds { out[of] + total } else { total };
            }
        }
    }
}

/// 32 products of each row with each output.
///
/// # Safety
/// The values that the mask names can be read, in H and W rows of `inputs`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn step<const H: usize, const W: usize>(
    sums: &mut [[__m512; W]; H],
    x: *const u16,
    w: *const u16,
    inputs: usize,
    mask: u32,
) {
    let mut left = [_mm512_setzero_ps(); H];
    for row in 0..H {
        // SAFETY: the caller's promise.
        left[row] = unsafe { load(x.wrapping_add(row * inputs), mask) };
    }
    for column in 0..W {
        // SAFETY: as above.
        let right = unsafe { load(w.wrapping_add(column * inputs), mask) };
        for row in 0..H {
            sums[row][column] = dot(sums[row][column], left[row], right);
        }
    }
}

/// 32 BF16, by the name of a register of f32: the bits are what counts.
///
/// # Safety
/// The values that the mask names can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn load(from: *const u16, mask: u32) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        _mm512_castsi512_ps(if mask == u32::MAX {
            _mm512_loadu_si512(from.cast())
        } else {
            _mm512_maskz_loadu_epi16(mask, from.cast())
        })
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn dot(sum: __m512, left: __m512, right: __m512) -> __m512 {
    // SAFETY: the same 512 bits, by another name.
    unsafe {
        _mm512_dpbf16_ps(
            sum,
            std::mem::transmute::<__m512, __m512bh>(left),
            std::mem::transmute::<__m512, __m512bh>(right),
        )
    }
}

/// The sum of 16 lanes: halves are added to halves, as [`totals`] does.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn total(sums: __m512) -> f32 {
    _mm512_reduce_add_ps(sums)
}

/// The sums of eight times 16 lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn totals(sums: [__m512; 8]) -> __m256 {
    let zero = _mm256_setzero_ps();
    let mut eights = [zero; 8];
    for (eights, sums) in eights.iter_mut().zip(sums) {
        *eights = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps::<1>(sums));
    }
    let mut fours = [zero; 4];
    for of in 0..4 {
        let (a, b) = (eights[of], eights[of + 4]);
        fours[of] = _mm256_add_ps(
            _mm256_permute2f128_ps::<0x20>(a, b),
            _mm256_permute2f128_ps::<0x31>(a, b),
        );
    }
    let mut twos = [zero; 2];
    for of in 0..2 {
        let (a, b) = (_mm256_castps_pd(fours[2 * of]), _mm256_castps_pd(fours[2 * of + 1]));
        let (low, high) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
        twos[of] = _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high));
    }
    let [a, b] = twos;
    _mm256_add_ps(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b))
}
