//! Bytes: a tile of activations is up to 16 rows by one group of inputs, a tile of weights is one group of a panel, made signed.
//!
//! Each group's sums are exact; they are stored, and then scaled and added up by vectors, in the order of the groups and to the
//! same bits as `vpdpbusd` has them. 32 rows and two groups are multiplied at a time, after all that they need was read:
//! tiles have no second copy to be read into while the first is in use. In between, what was multiplied some time before is
//! added up, as stored tiles can be read only after a while.
//!
//! So many panels are made signed at a time that they stay in the second-level cache while all rows pass by.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::{Config, ROWS, release};
use crate::backend::cpu::matrix::{GROUP, Line, PANEL};
use crate::backend::cpu::panels::{Packing, Work};

/// Groups that are multiplied before they are added up.
const BATCH: usize = 4;
/// Bytes of signed weights at a time: half of the second-level cache of every processor with AMX.
const WIDE_BYTES: usize = 1 << 20;

/// The exact products of a group with 16 rows, [rows, outputs].
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Exact([[i32; PANEL]; ROWS]);

/// What a thread works in.
struct Bench {
    signed: Vec<Line>,
    /// For each of two batches, one being multiplied and one being added up: [rows / 16, groups].
    exact: [[[Exact; BATCH]; 2]; 2],
    /// [rows / 16, rows, outputs]
    sums: [[[f32; PANEL]; ROWS]; 2],
}

thread_local! {
    static BENCH: RefCell<Box<Bench>> = RefCell::new(Box::new(Bench {
        signed: Vec::new(),
        exact: [[[Exact([[0; PANEL]; ROWS]); BATCH]; 2]; 2],
        sums: [[[0.0; PANEL]; ROWS]; 2],
    }));
}

/// Up to 32 rows. If there are no more than 16, the second half is a copy of the first.
#[derive(Clone, Copy)]
struct Rows {
    first: usize,
    n: [usize; 2],
}

/// Computes the outputs of some panels for all rows.
///
/// # Safety
/// [`super::is_there`], and nobody else holds these columns.
pub(in crate::backend::cpu) unsafe fn compute(
    work: Work<'_>,
    packing: Packing,
    panels: Range<usize>,
) {
    let of_panel = work.n_groups * GROUP / 4;
    let n_wide = (WIDE_BYTES / (of_panel * size_of::<Line>())).max(1);
    BENCH.with_borrow_mut(|bench| {
        for wide in panels.clone().step_by(n_wide) {
            let wide = wide..(wide + n_wide).min(panels.end);
            let n_lines = work.n_groups * packing.n_lines();
            let lines = &work.weights.codes[wide.start * n_lines..wide.end * n_lines];
            // SAFETY: the caller's promise.
            unsafe { sign(lines, packing, &mut bench.signed) };
            let mut configured = None;
            for first in (0..work.n_rows).step_by(2 * ROWS) {
                let n = (work.n_rows - first).min(2 * ROWS);
                let rows = Rows { first, n: [n.min(ROWS), n.saturating_sub(ROWS)] };
                for (at, panel) in wide.clone().enumerate() {
                    // SAFETY: the caller's promise; panel and rows are those of `work`.
                    unsafe {
                        if configured != Some(n) {
                            let left =
                                [rows.n[0], if rows.n[1] > 0 { rows.n[1] } else { rows.n[0] }];
                            Config::new(left, 16, [64, 64], GROUP).load();
                            configured = Some(n);
                        }
                        block(work, panel, at * of_panel, rows, bench);
                    }
                }
            }
        }
    });
    // SAFETY: the caller's promise.
    unsafe { release() };
}

/// Turns offset codes into signed ones: a line each of bytes, two of half bytes.
///
/// # Safety
/// The processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn sign(lines: &[Line], packing: Packing, signed: &mut Vec<Line>) {
    let n = lines.len() * GROUP / 4 / packing.n_lines();
    signed.resize(signed.len().max(n), Line([0; 64]));
    let (low, eight) = (_mm512_set1_epi8(15), _mm512_set1_epi8(8));
    for (at, line) in lines.iter().enumerate() {
        // SAFETY: lines are aligned registers, and there are as many signed ones as codes need.
        unsafe {
            let codes = _mm512_load_si512((&raw const *line).cast());
            let to: *mut __m512i = signed.as_mut_ptr().cast();
            match packing {
                Packing::Bytes => {
                    let signed = _mm512_xor_si512(codes, _mm512_set1_epi8(i8::MIN));
                    _mm512_store_si512(to.add(at), signed);
                }
                Packing::Nibbles => {
                    let first = _mm512_and_si512(codes, low);
                    let second = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low);
                    _mm512_store_si512(to.add(2 * at), _mm512_sub_epi8(first, eight));
                    _mm512_store_si512(to.add(2 * at + 1), _mm512_sub_epi8(second, eight));
                }
            }
        }
    }
}

/// Up to 32 rows of a panel, whose signed codes begin at a line.
///
/// # Safety
/// [`super::is_there`], the tiles are configured for these rows, which are rows of `work`, and nobody else holds the columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn block(work: Work<'_>, panel: usize, line: usize, rows: Rows, bench: &mut Bench) {
    let n_groups = work.n_groups;
    let lines = &bench.signed[line..][..n_groups * GROUP / 4];
    let of = |half: usize| work.x.rows(rows.first + half * ROWS, n_groups);
    let first = &work.x.codes[of(0)];
    let halves = if rows.n[1] > 0 { [first, &work.x.codes[of(1)]] } else { [first; 2] };
    let n = [rows.n[0], if rows.n[1] > 0 { rows.n[1] } else { rows.n[0] }];
    let weights = &work.weights.scales[panel * n_groups..(panel + 1) * n_groups];
    bench.sums = [[[0.0; PANEL]; ROWS]; 2];
    for from in (0..n_groups + BATCH).step_by(BATCH) {
        let [a, b] = &mut bench.exact;
        let (to, before) = if (from / BATCH).is_multiple_of(2) { (a, b) } else { (b, a) };
        for half in 0..2 {
            let group = from + 2 * half;
            if group < n_groups {
                let last = (group + 1).min(n_groups - 1);
                let w = [group, last].map(|group| lines[group * GROUP / 4..].as_ptr());
                let at = |half: usize, group: usize| halves[half][group * n[half]..].as_ptr();
                // SAFETY: the caller's promise; loads lie within lines and codes, stores within the batch.
                unsafe {
                    load!("6", w[0], 64_usize);
                    load!("4", at(0, group), GROUP);
                    load!("5", at(1, group), GROUP);
                    load!("7", w[1], 64_usize);
                    tiles!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3");
                    tiles!("tdpbssd tmm0, tmm4, tmm6", "tdpbssd tmm2, tmm5, tmm6");
                    load!("4", at(0, last), GROUP);
                    load!("5", at(1, last), GROUP);
                    tiles!("tdpbssd tmm1, tmm4, tmm7", "tdpbssd tmm3, tmm5, tmm7");
                    let [first, second] = to;
                    store!("0", (&raw mut first[2 * half]), 64_usize);
                    store!("2", (&raw mut second[2 * half]), 64_usize);
                    store!("1", (&raw mut first[2 * half + 1]), 64_usize);
                    store!("3", (&raw mut second[2 * half + 1]), 64_usize);
                }
            }
            if from >= BATCH && rows.n[half] > 0 {
                let scales = &work.x.scales[of(half)];
                let sums = &mut bench.sums[half];
                add(&before[half], from - BATCH, weights, scales, rows.n[half], sums);
            }
        }
    }
    for half in 0..2 {
        for (at, sums) in bench.sums[half].iter().enumerate().take(rows.n[half]) {
            // SAFETY: the caller's promise.
            unsafe { work.store(rows.first + half * ROWS + at, panel, sums) };
        }
    }
}

/// Scales the products of some groups and adds them up.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn add(
    exact: &[Exact; BATCH],
    first: usize,
    weights: &[[u16; PANEL]],
    scales: &[f32],
    n_rows: usize,
    all: &mut [[f32; PANEL]; ROWS],
) {
    let mut sums = [_mm512_setzero_ps(); ROWS];
    for at in 0..ROWS {
        // SAFETY: 16 values.
        sums[at] = unsafe { _mm512_loadu_ps(all[at].as_ptr()) };
    }
    for (group, exact) in (first..weights.len()).zip(exact) {
        // SAFETY: 16 scales are 32 bytes.
        let bits = unsafe { _mm256_loadu_si256(weights[group].as_ptr().cast()) };
        let weights = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)));
        // Rows that are not there have no scale.
        let mut padded = [0.0; ROWS];
        let scales = &scales[group * n_rows..][..n_rows];
        let scales = scales.first_chunk().unwrap_or_else(|| {
            padded[..n_rows].copy_from_slice(scales);
            &padded
        });
        for at in 0..ROWS {
            // SAFETY: 16 values.
            let exact = unsafe { _mm512_load_si512(exact.0[at].as_ptr().cast()) };
            let scale = _mm512_mul_ps(weights, _mm512_set1_ps(scales[at]));
            sums[at] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scale, sums[at]);
        }
    }
    for at in 0..ROWS {
        // SAFETY: 16 values.
        unsafe { _mm512_storeu_ps(all[at].as_mut_ptr(), sums[at]) };
    }
}
