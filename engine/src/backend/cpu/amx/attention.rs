//! Attention in tiles: up to 32 rows of queries by blocks of keys and values.
//!
//! [rows, head] x [head, tokens], softmax, then [rows, tokens] x [tokens, head]. Keys and values lie in the cache as tiles of
//! 16 pairs; queries and weights are rounded to BF16 row by row. Bytes moved: the keys and values of the block, once
//! for all rows.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;

use super::{Config, ROWS, release};
use crate::backend::cpu::attention::read::{BLOCK, Part, Read};
use crate::backend::cpu::attention::{KEYS, VALUES};
use crate::backend::cpu::isa::{Isa, Kernel, Lanes};
use crate::backend::cpu::matrix::Line;
use crate::backend::cpu::ops;

/// BF16 values of a line.
const STEP: usize = 32;

/// What a thread works in.
struct Bench {
    /// [rows, head / 32]
    queries: Vec<Line>,
    /// [rows, BLOCK / 16], of f32.
    scores: Box<[[[f32; KEYS]; BLOCK / KEYS]; 2 * ROWS]>,
    /// [rows, BLOCK / 32]
    weights: Box<[[Line; BLOCK / STEP]; 2 * ROWS]>,
    /// Two tiles of up to 32 rows.
    mixed: Box<[[[f32; 16]; ROWS]; 4]>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench {
        queries: Vec::new(),
        scores: Box::new([[[0.0; KEYS]; BLOCK / KEYS]; 2 * ROWS]),
        weights: Box::new([[Line([0; 64]); BLOCK / STEP]; 2 * ROWS]),
        mixed: Box::new([[[0.0; 16]; ROWS]; 4]),
    });
}

/// Reads one block into `part`.
///
/// # Safety
/// [`super::is_there`]; there are up to 32 rows, and heads are multiples of 32 wide.
pub(in crate::backend::cpu) unsafe fn read(read: &Read<'_, u16>, block: usize, part: &mut Part) {
    let n_rows = read.n_rows();
    // The second half is a copy of the first where there are no more than 16 rows.
    let rows = [n_rows.min(ROWS), if n_rows > ROWS { n_rows - ROWS } else { n_rows }];
    let second = if n_rows > ROWS { ROWS } else { 0 };
    BENCH.with_borrow_mut(|bench| {
        // SAFETY: the caller's promise.
        unsafe {
            round_queries(read, &mut bench.queries);
            Config::new(rows, 16, [64, 64], 64).load();
            score(read, block, second, bench);
            soften(read, block, part, bench);
            mix(read, block, second, part, bench);
            release();
        }
    });
}

/// # Safety
/// The processor has AVX-512 BF16; heads are multiples of 32 wide.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn round_queries(read: &Read<'_, u16>, queries: &mut Vec<Line>) {
    let n_steps = read.head / STEP;
    queries.resize(queries.len().max(read.n_rows() * n_steps), Line([0; 64]));
    for row in 0..read.n_rows() {
        let values = read.query(row).as_chunks::<STEP>().0;
        for (values, line) in values.iter().zip(&mut queries[row * n_steps..]) {
            // SAFETY: 32 values for a line.
            unsafe { round(values, line) };
        }
    }
}

/// # Safety
/// The processor has AVX-512 BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn round(values: &[f32; STEP], line: &mut Line) {
    // SAFETY: 32 values; a line is a register.
    unsafe {
        let low = _mm512_loadu_ps(values.as_ptr());
        let high = _mm512_loadu_ps(values.as_ptr().add(16));
        let halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
        _mm512_store_si512((&raw mut *line).cast(), halves);
    }
}

/// Scores of all rows against the keys of a block, two tiles of 16 keys at a time.
///
/// # Safety
/// [`super::is_there`], tiles are configured, and the queries are rounded.
unsafe fn score(read: &Read<'_, u16>, block: usize, second: usize, bench: &mut Bench) {
    let n_steps = read.head / STEP;
    let of_tile = read.head / 2;
    let n_tiles = read.n_seen(read.n_rows() - 1, block).div_ceil(KEYS);
    let tiles = &read.cache.keys[block * BLOCK / KEYS * of_tile..][..n_tiles * of_tile];
    let stride = n_steps * 64;
    for tile in (0..n_tiles).step_by(2) {
        let other = (tile + 1).min(n_tiles - 1);
        // SAFETY: loads lie within queries and tiles, stores within the scores of two tiles.
        unsafe {
            tiles!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3");
            for step in 0..n_steps {
                load!("6", tiles[tile * of_tile + step * 16..].as_ptr(), 64_usize);
                load!("4", bench.queries[step..].as_ptr(), stride);
                load!("5", bench.queries[second * n_steps + step..].as_ptr(), stride);
                load!("7", tiles[other * of_tile + step * 16..].as_ptr(), 64_usize);
                tiles!("tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm2, tmm5, tmm6");
                tiles!("tdpbf16ps tmm1, tmm4, tmm7", "tdpbf16ps tmm3, tmm5, tmm7");
            }
            let (low, high) = bench.scores.split_at_mut(second.max(1));
            let high = if second > 0 { high } else { &mut *low };
            store!("2", (&raw mut high[0][tile]), size_of_val(&high[0]));
            store!("3", (&raw mut high[0][tile + 1]), size_of_val(&high[0]));
            store!("0", (&raw mut low[0][tile]), size_of_val(&low[0]));
            store!("1", (&raw mut low[0][tile + 1]), size_of_val(&low[0]));
        }
    }
}

/// Turns scores into weights.
///
/// # Safety
/// The processor has AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn soften(read: &Read<'_, u16>, block: usize, part: &mut Part, bench: &mut Bench) {
    let n_steps = read.n_seen(read.n_rows() - 1, block).div_ceil(STEP);
    for row in 0..read.n_rows() {
        let n = read.n_seen(row, block);
        let scores = &mut bench.scores[row][..n_steps * STEP / KEYS];
        (part.largest[row], part.sum[row]) = Isa::Amx.run(Soften { scores, n });
        let values = scores.as_flattened().as_chunks::<STEP>().0;
        for (values, line) in values.iter().zip(&mut bench.weights[row]) {
            // SAFETY: the caller's promise.
            unsafe { round(values, line) };
        }
    }
}

struct Soften<'a> {
    scores: &'a mut [[f32; KEYS]],
    n: usize,
}

impl Kernel for Soften<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn run<L: Lanes>(self) -> (f32, f32) {
        ops::soften::<L>(self.scores, self.n)
    }
}

/// Sums values by their weights, 32 dimensions at a time.
///
/// # Safety
/// [`super::is_there`], tiles are configured, and the weights are rounded.
unsafe fn mix(
    read: &Read<'_, u16>,
    block: usize,
    second: usize,
    part: &mut Part,
    bench: &mut Bench,
) {
    let n_steps = read.n_seen(read.n_rows() - 1, block).div_ceil(VALUES);
    let width = read.head / 16;
    let values = &read.cache.values[block * BLOCK / VALUES * width * 16..][..n_steps * width * 16];
    let stride = size_of_val(&bench.weights[0]);
    for at in (0..width).step_by(2) {
        // SAFETY: loads lie within weights and values, stores within four tiles.
        unsafe {
            tiles!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3");
            for step in 0..n_steps {
                load!("6", values[(step * width + at) * 16..].as_ptr(), 64_usize);
                load!("4", (&raw const bench.weights[0][step]), stride);
                load!("5", (&raw const bench.weights[second][step]), stride);
                load!("7", values[(step * width + at + 1) * 16..].as_ptr(), 64_usize);
                tiles!("tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm2, tmm5, tmm6");
                tiles!("tdpbf16ps tmm1, tmm4, tmm7", "tdpbf16ps tmm3, tmm5, tmm7");
            }
            let [first, second, third, fourth] = &mut *bench.mixed;
            store!("0", first.as_mut_ptr(), 64_usize);
            store!("1", second.as_mut_ptr(), 64_usize);
            store!("2", third.as_mut_ptr(), 64_usize);
            store!("3", fourth.as_mut_ptr(), 64_usize);
        }
        for row in 0..read.n_rows() {
            let tile = row / ROWS * 2;
            let mixed = &mut part.mixed[row * read.head + at * 16..][..32];
            mixed[..16].copy_from_slice(&bench.mixed[tile][row % ROWS]);
            mixed[16..].copy_from_slice(&bench.mixed[tile + 1][row % ROWS]);
        }
    }
}
