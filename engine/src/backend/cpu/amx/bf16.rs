//! BF16: weights as they lie or copied into tiles, activations packed.
//!
//! A tile of weights is 16 outputs by 32 inputs, a tile of activations 16 pairs of inputs by up to 16 rows, sums are [outputs,
//! rows]. 32 outputs by 32 rows are computed together: four tiles of sums for four that are read.
//!
//! With few rows, every weight is read once, from where it lies. With more, [`WIDE`] outputs by [`DEEP`] inputs are first copied
//! tile by tile: they stay in the second-level cache while all rows pass by, and the rows, which do not fit there, are
//! read once for so many outputs. Sums that wait for the next inputs are put aside as they are, so the order of additions is
//! the same either way.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::{Config, ROWS, STEP, release, transpose};
use crate::backend::cpu::matrix::Line;
use crate::backend::cpu::out::Out;

/// Rows up to which weights are used where they lie: so many fit the second-level cache.
const FEW_ROWS: usize = 32;
/// Outputs whose weights are copied at a time.
const WIDE: usize = 256;
/// Inputs of these. 32 rows of so many inputs are 32 KiB, which stay in the first-level cache while the copies pass by; with the
/// sums of 512 rows, the copies take 768 KiB of the second-level one.
const DEEP: usize = 512;

/// Weights and packed activations.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Packed<'a> {
    /// [outputs, inputs]
    pub(in crate::backend::cpu) weights: &'a [u16],
    /// As [`pack`] makes it.
    pub(in crate::backend::cpu) x: &'a [u16],
    pub(in crate::backend::cpu) inputs: usize,
}

/// Packs up to 16 rows, [rows, inputs], for tiles: [inputs / 2][rows][2].
///
/// # Safety
/// [`super::is_there`]; there are 1 to 16 rows, and `packed` is as large as `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(in crate::backend::cpu) unsafe fn pack(x: &[f32], inputs: usize, packed: &mut [u16]) {
    let n = x.len() / inputs;
    let mask = ones(n);
    for (step, packed) in packed.chunks_exact_mut(STEP * n).enumerate() {
        let mut pairs = [_mm512_setzero_si512(); ROWS];
        for row in 0..n {
            let from = &x[row * inputs + step * STEP..][..STEP];
            // SAFETY: 32 values, and the same 512 bits by another name.
            pairs[row] = unsafe {
                let (low, high) =
                    (_mm512_loadu_ps(from.as_ptr()), _mm512_loadu_ps(from.as_ptr().add(16)));
                std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low))
            };
        }
        transpose(&mut pairs);
        for (pair, packed) in packed.chunks_exact_mut(2 * n).enumerate() {
            // SAFETY: the mask leaves `n` pairs of two bytes each.
            unsafe { _mm512_mask_storeu_epi32(packed.as_mut_ptr().cast(), mask, pairs[pair]) };
        }
    }
}

/// So many bits.
fn ones(n: usize) -> u16 {
    if n < 16 { (1 << n) - 1 } else { u16::MAX }
}

/// Where tiles of 32 inputs lie.
#[derive(Clone, Copy)]
struct Tiles {
    start: *const u16,
    /// Bytes from one to the next.
    step: usize,
    /// Bytes from row to row.
    stride: usize,
}

impl Tiles {
    fn at(self, step: usize) -> *const u8 {
        self.start.cast::<u8>().wrapping_add(step * self.step)
    }
}

/// Four tiles of sums, [outputs, rows], for the first and second 16 outputs each with the first and second 16 rows.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([[f32; 16 * ROWS]; 4]);

impl Sums {
    const ZERO: Self = Self([[0.0; 16 * ROWS]; 4]);
}

/// Up to 32 outputs by up to 32 rows. If there are no more than 16, the second half is a copy of the first.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Size {
    outputs: [usize; 2],
    rows: [usize; 2],
}

impl Size {
    fn new(n_outputs: usize, n_rows: usize) -> Self {
        let halves = |n: usize| if n > 16 { [16, n.min(32) - 16] } else { [n, 0] };
        Self { outputs: halves(n_outputs), rows: halves(n_rows) }
    }

    /// # Safety
    /// [`super::is_there`].
    unsafe fn configure(self) {
        let of = |[first, second]: [usize; 2]| [first, if second > 0 { second } else { first }];
        let rows = of(self.rows).map(|n| 4 * n);
        // SAFETY: the caller's promise.
        unsafe { Config::new(of(self.outputs), 16, rows, 64).load() };
    }
}

/// What a thread has for its copies.
#[derive(Default)]
struct Copies {
    weights: Vec<Line>,
    sums: Vec<Sums>,
}

thread_local! {
    static COPIES: RefCell<Copies> = RefCell::default();
}

/// Computes some outputs for all rows.
///
/// # Safety
/// [`super::is_there`], and nobody else holds these columns of `out`.
pub(in crate::backend::cpu) unsafe fn compute(
    packed: Packed<'_>,
    columns: Range<usize>,
    out: Out<'_>,
    adds: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if packed.x.len() / packed.inputs <= FEW_ROWS {
            in_place(packed, columns, out, adds);
        } else {
            COPIES.with_borrow_mut(|copies| copied(packed, columns, out, adds, copies));
        }
        release();
    }
}

/// # Safety
/// As for [`compute`].
unsafe fn in_place(packed: Packed<'_>, columns: Range<usize>, out: Out<'_>, adds: bool) {
    let (inputs, n_rows) = (packed.inputs, packed.x.len() / packed.inputs);
    let mut sums = Sums::ZERO;
    let mut configured = None;
    for column in columns.clone().step_by(32) {
        let size = Size::new(columns.end - column, n_rows);
        let n_outputs = size.outputs[0] + size.outputs[1];
        let weights = &packed.weights[column * inputs..(column + n_outputs) * inputs];
        let second = if size.outputs[1] > 0 { 16 * inputs } else { 0 };
        let tiles =
            |from: usize| Tiles { start: weights[from..].as_ptr(), step: 64, stride: inputs * 2 };
        // SAFETY: the caller's promise; the tiles lie within weights and rows.
        unsafe {
            if configured != Some(size) {
                size.configure();
                configured = Some(size);
            }
            let x = rows(packed, 0, 0, size);
            multiply([tiles(0), tiles(second)], x, inputs / STEP, &mut sums, Begin::Zero);
            store(&sums, size, column, 0, out, adds);
        }
    }
}

/// # Safety
/// As for [`compute`].
unsafe fn copied(
    packed: Packed<'_>,
    columns: Range<usize>,
    out: Out<'_>,
    adds: bool,
    copies: &mut Copies,
) {
    let (inputs, n_rows) = (packed.inputs, packed.x.len() / packed.inputs);
    let n_parts = inputs.div_ceil(DEEP);
    let n_steps = (inputs / STEP).div_ceil(n_parts);
    copies.weights.resize(copies.weights.len().max(WIDE * n_steps), Line([0; 64]));
    copies.sums.resize(copies.sums.len().max(n_rows.div_ceil(32) * WIDE / 32), Sums::ZERO);
    let mut configured = None;
    for wide in columns.clone().step_by(WIDE) {
        let wide = wide..(wide + WIDE).min(columns.end);
        for first_step in (0..inputs / STEP).step_by(n_steps) {
            let steps = first_step..(first_step + n_steps).min(inputs / STEP);
            // SAFETY: there are lines for all.
            unsafe { copy(packed, wide.clone(), steps.clone(), &mut copies.weights) };
            let begin = if first_step == 0 { Begin::Zero } else { Begin::Sums };
            let mut sums = copies.sums.iter_mut();
            for row in (0..n_rows).step_by(32) {
                for column in wide.clone().step_by(32) {
                    let size = Size::new(wide.end - column, n_rows - row);
                    let sums = sums.next().expect("sums for every block");
                    let line = (column - wide.start) * steps.len();
                    let second = if size.outputs[1] > 0 { line + 16 * steps.len() } else { line };
                    let tiles = |line: usize| Tiles {
                        start: copies.weights[line..].as_ptr().cast(),
                        step: 1024,
                        stride: 64,
                    };
                    // SAFETY: the caller's promise; the tiles lie within the copies and the rows.
                    unsafe {
                        if configured != Some(size) {
                            size.configure();
                            configured = Some(size);
                        }
                        let x = rows(packed, row, steps.start, size);
                        multiply([tiles(line), tiles(second)], x, steps.len(), sums, begin);
                        if steps.end == inputs / STEP {
                            store(sums, size, column, row, out, adds);
                        }
                    }
                }
            }
        }
    }
}

/// Copies weights into tiles: [outputs / 16, steps, 16 outputs] lines of 32 inputs.
///
/// # Safety
/// The processor has AVX-512; the lines have room for all.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn copy(packed: Packed<'_>, columns: Range<usize>, steps: Range<usize>, lines: &mut [Line]) {
    let inputs = packed.inputs;
    for (from, lines) in columns.clone().step_by(16).zip(lines.chunks_exact_mut(16 * steps.len())) {
        for column in from..(from + 16).min(columns.end) {
            let row = &packed.weights[column * inputs..(column + 1) * inputs];
            let values = row[steps.start * STEP..steps.end * STEP].as_chunks::<STEP>().0;
            for (values, lines) in values.iter().zip(lines.chunks_exact_mut(16)) {
                // SAFETY: 32 values are 64 bytes, as is a line.
                unsafe {
                    let values = _mm512_loadu_si512(values.as_ptr().cast());
                    _mm512_store_si512((&raw mut lines[column - from]).cast(), values);
                }
            }
        }
    }
}

/// The packed activations of a block from some step on.
fn rows(packed: Packed<'_>, row: usize, step: usize, size: Size) -> [Tiles; 2] {
    let tiles = |row: usize, n: usize| {
        let x = &packed.x[row * packed.inputs..(row + n) * packed.inputs];
        Tiles { start: x[step * STEP * n..].as_ptr(), step: 64 * n, stride: 4 * n }
    };
    let first = tiles(row, size.rows[0]);
    [first, if size.rows[1] > 0 { tiles(row + ROWS, size.rows[1]) } else { first }]
}

/// What sums begin with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    Zero,
    Sums,
}

/// # Safety
/// [`super::is_there`], the tiles are configured for the block, and all of them can be read.
unsafe fn multiply(w: [Tiles; 2], x: [Tiles; 2], n_steps: usize, sums: &mut Sums, begin: Begin) {
    let [s0, s1, s2, s3] = &mut sums.0;
    // SAFETY: the caller's promise; sums have room for whole tiles.
    unsafe {
        match begin {
            Begin::Zero => {
                tiles!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3")
            }
            Begin::Sums => {
                load!("0", s0.as_ptr(), 64_usize);
                load!("1", s1.as_ptr(), 64_usize);
                load!("2", s2.as_ptr(), 64_usize);
                load!("3", s3.as_ptr(), 64_usize);
            }
        }
        for step in 0..n_steps {
            load!("4", w[0].at(step), w[0].stride);
            load!("6", x[0].at(step), x[0].stride);
            tiles!("tdpbf16ps tmm0, tmm4, tmm6");
            load!("7", x[1].at(step), x[1].stride);
            tiles!("tdpbf16ps tmm1, tmm4, tmm7");
            load!("5", w[1].at(step), w[1].stride);
            tiles!("tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7");
        }
        store!("0", s0.as_mut_ptr(), 64_usize);
        store!("1", s1.as_mut_ptr(), 64_usize);
        store!("2", s2.as_mut_ptr(), 64_usize);
        store!("3", s3.as_mut_ptr(), 64_usize);
    }
}

/// Writes sums, or adds them, to the results.
///
/// # Safety
/// The processor has AVX-512, and nobody else holds the block.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn store(sums: &Sums, size: Size, column: usize, row: usize, out: Out<'_>, adds: bool) {
    for (number, sums) in sums.0.iter().enumerate() {
        let (n_outputs, n_rows) = (size.outputs[number / 2], size.rows[number % 2]);
        let (column, row) = (column + number / 2 * 16, row + number % 2 * ROWS);
        if n_outputs == 0 {
            continue;
        }
        let mut of_rows = [_mm512_setzero_si512(); 16];
        for (of_row, sums) in of_rows.iter_mut().zip(sums.as_chunks::<16>().0) {
            // SAFETY: 16 values.
            *of_row = unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) };
        }
        transpose(&mut of_rows);
        let mask = ones(n_outputs);
        for (at, sums) in of_rows.iter().enumerate().take(n_rows) {
            // SAFETY: the caller's promise; the mask leaves out what lies behind the columns.
            unsafe {
                let out = out.part(row + at, column..column + n_outputs).as_mut_ptr();
                let mut sums = _mm512_castsi512_ps(*sums);
                if adds {
                    sums = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), sums);
                }
                _mm512_mask_storeu_ps(out, mask, sums);
            }
        }
    }
}
