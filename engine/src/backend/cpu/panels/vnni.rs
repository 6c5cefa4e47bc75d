//! The same with `vpdpbusd`: four products of bytes for each of 16 outputs.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{GROUP, PANEL, Packing, Work};
use crate::backend::cpu::codes::TOGETHER;
use crate::backend::cpu::isa::fetch;
use crate::backend::cpu::matrix::Line;

/// Bytes from a code that is used for a single row to one that is fetched. With it and the one below, two threads read
/// codes of four bits a fifth faster on Zen 5 than without.
const AHEAD: usize = 6144;
/// The same for scales.
const SCALES_AHEAD: usize = 512;
/// Bytes of rows that stay in the second-level cache while weights pass by.
const BLOCK_BYTES: usize = 384 << 10;
/// Panels of a tile of many rows.
const WIDE: usize = 4;

/// # Safety
/// The processor has AVX-512 VNNI, and nobody else holds these columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn compute(work: Work<'_>, packing: Packing, panels: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe {
        match (packing, work.n_rows) {
            (Packing::Bytes, 1) => one_row::<false>(work, panels),
            (Packing::Nibbles, 1) => one_row::<true>(work, panels),
            (Packing::Bytes, _) => many_rows::<false>(work, panels),
            (Packing::Nibbles, _) => many_rows::<true>(work, panels),
        }
    }
}

/// The weights are read in the order in which they lie, from panel to panel, as memory is fastest like this. The products of a
/// group are added up in four registers, which do not wait for each other.
///
/// # Safety
/// As for [`compute`]; there is one row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn one_row<const NIBBLES: bool>(work: Work<'_>, panels: Range<usize>) {
    for panel in panels {
        let mut sums = _mm512_setzero_ps();
        for group in 0..work.n_groups {
            let scales_of_group = work.weights.scales[panel * work.n_groups + group].as_ptr();
            fetch(scales_of_group.cast::<i8>().wrapping_add(SCALES_AHEAD));
            let codes = &raw const work.x.codes[group];
            let lines = work.lines(panel, group, packing::<NIBBLES>());
            let mut whole = [_mm512_setzero_si512(); 4];
            for step in 0..packing::<NIBBLES>().n_lines() {
                let line = &raw const lines[step];
                fetch(line.cast::<i8>().wrapping_add(AHEAD));
                // SAFETY: a line, and the codes of a row.
                unsafe {
                    let parts = split::<NIBBLES>(line);
                    for half in 0..1 + usize::from(NIBBLES) {
                        let step = if NIBBLES { 2 * step + half } else { step };
                        let x = four(codes, 0, step);
                        whole[step % 4] = _mm512_dpbusd_epi32(whole[step % 4], parts[half], x);
                    }
                }
            }
            let [a, b, c, d] = whole;
            let whole = _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d));
            let whole = _mm512_sub_epi32(whole, offset::<NIBBLES>(work.x.sums[group]));
            let scale = _mm512_set1_ps(work.x.scales[group]);
            sums = add(sums, whole, scales(work, panel, group), scale);
        }
        // SAFETY: the caller's promise.
        unsafe { store(work, 0, panel, sums) };
    }
}

/// # Safety
/// As for [`compute`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn many_rows<const NIBBLES: bool>(work: Work<'_>, panels: Range<usize>) {
    let block = (BLOCK_BYTES / (work.n_groups * GROUP)).max(1).next_multiple_of(TOGETHER);
    for from in (0..work.n_rows).step_by(block) {
        let rows = from..(from + block).min(work.n_rows);
        for panel in panels.clone().step_by(WIDE) {
            // SAFETY: the caller's promise.
            unsafe {
                if panel + WIDE <= panels.end {
                    down::<NIBBLES, WIDE>(work, rows.clone(), panel);
                } else {
                    for panel in panel..panels.end {
                        down::<NIBBLES, 1>(work, rows.clone(), panel);
                    }
                }
            }
        }
    }
}

/// Some rows by some panels. The rows of a tile lie together.
///
/// # Safety
/// As for [`compute`]; the rows and panels are those of `work`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn down<const NIBBLES: bool, const W: usize>(
    work: Work<'_>,
    rows: Range<usize>,
    panel: usize,
) {
    let mut row = rows.start;
    while row < rows.end {
        // SAFETY: the caller's promise.
        row += unsafe {
            match rows.end - row {
                4.. => tile::<NIBBLES, 4, W>(work, row, panel),
                2.. => tile::<NIBBLES, 2, W>(work, row, panel),
                _ => tile::<NIBBLES, 1, W>(work, row, panel),
            }
        };
    }
}

/// Each line of the weights meets four codes of each row, spread over a register. Returns the number of rows.
///
/// # Safety
/// As for [`down`]; the rows lie together.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn tile<const NIBBLES: bool, const H: usize, const W: usize>(
    work: Work<'_>,
    row: usize,
    panel: usize,
) -> usize {
    let mut sums = [[_mm512_setzero_ps(); W]; H];
    let (first, stride) = work.x.place(row, work.n_groups);
    for group in 0..work.n_groups {
        let at = first + group * stride..first + group * stride + H;
        let codes = work.x.codes[at.clone()].as_ptr();
        let mut lines = [std::ptr::null::<Line>(); W];
        for of in 0..W {
            lines[of] = work.lines(panel + of, group, packing::<NIBBLES>()).as_ptr();
        }
        let mut whole = [[_mm512_setzero_si512(); W]; H];
        for step in 0..packing::<NIBBLES>().n_lines() {
            let mut parts = [[_mm512_setzero_si512(); 2]; W];
            for of in 0..W {
                // SAFETY: a line of the group.
                parts[of] = unsafe { split::<NIBBLES>(lines[of].add(step)) };
            }
            for row in 0..H {
                for half in 0..1 + usize::from(NIBBLES) {
                    let step = if NIBBLES { 2 * step + half } else { step };
                    // SAFETY: there are H rows.
                    let x = unsafe { four(codes, row, step) };
                    for of in 0..W {
                        whole[row][of] = _mm512_dpbusd_epi32(whole[row][of], parts[of][half], x);
                    }
                }
            }
        }
        let (scales_of_x, sums_of_x) = (&work.x.scales[at.clone()], &work.x.sums[at]);
        for of in 0..W {
            let scales = scales(work, panel + of, group);
            for row in 0..H {
                let whole = _mm512_sub_epi32(whole[row][of], offset::<NIBBLES>(sums_of_x[row]));
                let scale = _mm512_set1_ps(scales_of_x[row]);
                sums[row][of] = add(sums[row][of], whole, scales, scale);
            }
        }
    }
    for of in 0..H {
        for of_panel in 0..W {
            // SAFETY: the caller's promise.
            unsafe { store(work, row + of, panel + of_panel, sums[of][of_panel]) };
        }
    }
    H
}

const fn packing<const NIBBLES: bool>() -> Packing {
    if NIBBLES { Packing::Nibbles } else { Packing::Bytes }
}

/// Four codes of a row, spread over a register.
///
/// # Safety
/// There is such a row behind the first one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn four(first: *const [i8; GROUP], row: usize, step: usize) -> __m512i {
    // SAFETY: four bytes of a group, read as one number in memory's order.
    unsafe {
        let codes = first.add(row).cast::<i8>().add(4 * step);
        _mm512_set1_epi32(codes.cast::<i32>().read_unaligned())
    }
}

/// A line of bytes, or the two that a line of half bytes holds.
///
/// # Safety
/// It can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn split<const NIBBLES: bool>(line: *const Line) -> [__m512i; 2] {
    let low = _mm512_set1_epi8(15);
    // SAFETY: a line is one aligned register.
    let line = unsafe { _mm512_load_si512(line.cast()) };
    if NIBBLES {
        [_mm512_and_si512(line, low), _mm512_and_si512(_mm512_srli_epi16::<4>(line), low)]
    } else {
        [line, line]
    }
}

/// What the offset of the weights' codes adds to a sum of products, by the sum of the codes of `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn offset<const NIBBLES: bool>(sum: i32) -> __m512i {
    const { assert!(Packing::Nibbles.offset() == 1 << 3 && Packing::Bytes.offset() == 1 << 7) };
    let sum = _mm512_set1_epi32(sum);
    if NIBBLES { _mm512_slli_epi32::<3>(sum) } else { _mm512_slli_epi32::<7>(sum) }
}

/// Adds the products of a group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn add(sums: __m512, whole: __m512i, scales: __m512, scale: __m512) -> __m512 {
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), _mm512_mul_ps(scales, scale), sums)
}

/// The scales of a group of a panel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn scales(work: Work<'_>, panel: usize, group: usize) -> __m512 {
    let scales = &work.weights.scales[panel * work.n_groups + group];
    // SAFETY: 16 scales are 32 bytes.
    let bits = unsafe { _mm256_loadu_si256(scales.as_ptr().cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}

/// # Safety
/// Nobody else holds these columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn store(work: Work<'_>, row: usize, panel: usize, sums: __m512) {
    let mut values = [0.0; PANEL];
    // SAFETY: 16 values; the rest is the caller's promise.
    unsafe {
        _mm512_storeu_ps(values.as_mut_ptr(), sums);
        work.store(row, panel, &values);
    }
}
