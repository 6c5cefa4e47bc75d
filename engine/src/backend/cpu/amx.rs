//! Matrix tiles of Intel's AMX: 16 x 16 results and 32 BF16 or 64 byte products each, in one instruction.
//!
//! Rust has no stable names for these instructions, so they are written as assembly. Tiles keep nothing between two calls
//! here: each configures them, uses them and releases them. The compiler never uses tile registers itself.
//!
//! BF16: a tile of weights is 16 outputs by 32 inputs, read where they lie; a tile of activations is 16 pairs of inputs by up
//! to 16 rows, packed ([`pack`]); sums are [outputs, rows]. Every product of this format goes through here where there is
//! AMX, a single row too, so that a result does not depend on the number of rows.
//! Bytes: a tile of activations is up to 16 rows by one group of inputs, a tile of weights is one group of a panel as it
//! lies. The sums are integers and exact, so rows may as well go through other instructions.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, *};
use std::ops::Range;
use std::sync::OnceLock;

use super::matrix::{GROUP, Line, PANEL};
use super::out::Out;
use super::panels::{Packing, Work};

/// Rows of activations in a tile.
pub(super) const ROWS: usize = 16;
/// Inputs of a BF16 tile.
pub(super) const STEP: usize = 32;

/// Whether the processor has AMX with BF16 and bytes, and the system lets this process use it.
pub(super) fn is_there() -> bool {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    *IS_THERE.get_or_init(|| {
        const BF16: u32 = 1 << 22;
        const TILE: u32 = 1 << 24;
        const INT8: u32 = 1 << 25;
        let features = __cpuid_count(7, 0).edx;
        features & (BF16 | TILE | INT8) == BF16 | TILE | INT8 && is_permitted()
    })
}

/// Linux hands tiles out on request, for the whole process.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XTILEDATA: usize = 18;
    let answer: usize;
    // SAFETY: a system call that only sets a permission; it changes these registers and no memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Rows and bytes of a row of the eight tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Tiles 0 to 3 are the sums of 4 or 5 with 6 or 7.
    fn new(left: [usize; 2], inner: usize, right_bytes: [usize; 2], inner_bytes: usize) -> Self {
        let mut config =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut set = |tile: usize, rows: usize, bytes: usize| {
            // A tile that is not used still needs a size.
            config.rows[tile] = u8::try_from(rows.max(1)).unwrap_or(16);
            config.row_bytes[tile] = u16::try_from(bytes.max(4)).unwrap_or(64);
        };
        for a in 0..2 {
            for b in 0..2 {
                set(2 * a + b, left[a], right_bytes[b]);
            }
            set(4 + a, left[a], inner_bytes);
            set(6 + a, inner, right_bytes[a]);
        }
        config
    }

    /// # Safety
    /// [`is_there`].
    unsafe fn load(&self) {
        // SAFETY: the caller's promise; the operand is 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) };
    }
}

/// # Safety
/// [`is_there`].
unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Loads a tile from `$from` with rows `$stride` bytes apart.
macro_rules! load {
    ($tile:literal, $from:expr, $stride:expr) => {
        asm!(
            concat!("tileloadd tmm", $tile, ", [{} + {}]"),
            in(reg) $from, in(reg) $stride, options(nostack, readonly)
        )
    };
}

/// Stores a tile to `$to`, rows `$stride` bytes apart.
macro_rules! store {
    ($tile:literal, $to:expr, $stride:expr) => {
        asm!(
            concat!("tilestored [{} + {}], tmm", $tile),
            in(reg) $to, in(reg) $stride, options(nostack)
        )
    };
}

/// Any instruction between tiles.
macro_rules! tiles {
    ($($line:literal),+) => {
        asm!($($line),+, options(nostack, nomem))
    };
}

/// Packs rows for tiles: [blocks of up to 16 rows][inputs / 2][rows of the block][2]. `x` is [rows, inputs].
pub(super) fn pack(x: &[u16], inputs: usize, packed: &mut [u16]) {
    let blocks = x.chunks(ROWS * inputs).zip(packed.chunks_mut(ROWS * inputs));
    for (x, packed) in blocks {
        let n = x.len() / inputs;
        for (row, x) in x.chunks_exact(inputs).enumerate() {
            for (pair, two) in x.as_chunks::<2>().0.iter().enumerate() {
                packed[(pair * n + row) * 2..][..2].copy_from_slice(two);
            }
        }
    }
}

/// BF16 weights and packed activations.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    /// [outputs, inputs]
    pub(super) weights: &'a [u16],
    /// As [`pack`] makes it.
    pub(super) x: &'a [u16],
    pub(super) inputs: usize,
}

/// Up to 32 outputs by up to 32 rows.
struct Block {
    column: usize,
    outputs: [usize; 2],
    row: usize,
    rows: [usize; 2],
}

/// Computes some outputs for all rows.
///
/// # Safety
/// [`is_there`], and nobody else holds these columns of `out`.
pub(super) unsafe fn bf16(packed: Packed<'_>, columns: Range<usize>, out: Out<'_>, adds: bool) {
    let n_rows = packed.x.len() / packed.inputs;
    let split = |n: usize| [n.min(16), n.saturating_sub(16).min(16)];
    let mut loaded = None;
    for column in columns.clone().step_by(32) {
        let outputs = split(columns.end - column);
        for row in (0..n_rows).step_by(32) {
            let rows = split(n_rows - row);
            // SAFETY: the caller's promise; the block lies within weights and rows.
            unsafe {
                if loaded != Some((outputs, rows)) {
                    Config::new(outputs, 16, rows.map(|n| 4 * n), 64).load();
                    loaded = Some((outputs, rows));
                }
                bf16_block(packed, &Block { column, outputs, row, rows }, out, adds);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { release() };
}

/// # Safety
/// [`is_there`], the tiles are configured for this block, which lies within weights and rows, and nobody else holds it.
unsafe fn bf16_block(packed: Packed<'_>, block: &Block, out: Out<'_>, adds: bool) {
    let inputs = packed.inputs;
    let Block { column, outputs, row, rows } = *block;
    let weights = &packed.weights[column * inputs..(column + outputs[0] + outputs[1]) * inputs];
    let x = &packed.x[row * inputs..(row + rows[0] + rows[1]) * inputs];
    let (w0, w_stride) = (weights.as_ptr(), inputs * 2);
    let w1 = w0.wrapping_add(outputs[0] * inputs);
    let (x0, x1) = (x.as_ptr(), x.as_ptr().wrapping_add(rows[0] * inputs));
    let (s0, s1) = (rows[0] * 4, rows[1] * 4);
    let mut sums = [[0.0_f32; ROWS * 16]; 4];
    // SAFETY: the caller's promise; every load lies within the two slices, every store within `sums`.
    unsafe {
        tiles!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3");
        match (outputs[1] > 0, rows[1] > 0) {
            (true, true) => {
                for at in (0..inputs).step_by(STEP) {
                    load!("4", w0.wrapping_add(at), w_stride);
                    load!("6", x0.wrapping_add(at * rows[0]), s0);
                    tiles!("tdpbf16ps tmm0, tmm4, tmm6");
                    load!("7", x1.wrapping_add(at * rows[1]), s1);
                    tiles!("tdpbf16ps tmm1, tmm4, tmm7");
                    load!("5", w1.wrapping_add(at), w_stride);
                    tiles!("tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7");
                }
                store!("1", sums[1].as_mut_ptr(), s1);
                store!("2", sums[2].as_mut_ptr(), s0);
                store!("3", sums[3].as_mut_ptr(), s1);
            }
            (true, false) => {
                for at in (0..inputs).step_by(STEP) {
                    load!("4", w0.wrapping_add(at), w_stride);
                    load!("6", x0.wrapping_add(at * rows[0]), s0);
                    load!("5", w1.wrapping_add(at), w_stride);
                    tiles!("tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm2, tmm5, tmm6");
                }
                store!("2", sums[2].as_mut_ptr(), s0);
            }
            (false, true) => {
                for at in (0..inputs).step_by(STEP) {
                    load!("4", w0.wrapping_add(at), w_stride);
                    load!("6", x0.wrapping_add(at * rows[0]), s0);
                    load!("7", x1.wrapping_add(at * rows[1]), s1);
                    tiles!("tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7");
                }
                store!("1", sums[1].as_mut_ptr(), s1);
            }
            (false, false) => {
                for at in (0..inputs).step_by(STEP) {
                    load!("4", w0.wrapping_add(at), w_stride);
                    load!("6", x0.wrapping_add(at * rows[0]), s0);
                    tiles!("tdpbf16ps tmm0, tmm4, tmm6");
                }
            }
        }
        store!("0", sums[0].as_mut_ptr(), s0);
    }
    for (number, sums) in sums.iter().enumerate() {
        let (of_output, of_row) = (number / 2, number % 2);
        let first = column + of_output * 16;
        if outputs[of_output] == 0 {
            continue;
        }
        for at in 0..rows[of_row] {
            let columns = first..first + outputs[of_output];
            // SAFETY: the caller's promise.
            let out = unsafe { out.part(row + of_row * 16 + at, columns) };
            for (output, out) in out.iter_mut().enumerate() {
                let sum = sums[output * rows[of_row] + at];
                *out = if adds { *out + sum } else { sum };
            }
        }
    }
}

/// Computes the outputs of some panels for all rows, to the same bits as `vpdpbusd` would.
///
/// # Safety
/// [`is_there`], and nobody else holds these columns.
pub(super) unsafe fn bytes(work: Work<'_>, packing: Packing, panels: Range<usize>) {
    let mut unpacked = Vec::new();
    let mut loaded = None;
    for panel in panels {
        let n_lines = work.n_groups * packing.n_lines();
        let lines = &work.weights.codes[panel * n_lines..(panel + 1) * n_lines];
        let lines = match packing {
            Packing::Bytes => lines,
            Packing::Nibbles => {
                unpacked.clear();
                unpacked.extend(lines.iter().flat_map(halves));
                &unpacked
            }
        };
        for row in (0..work.n_rows).step_by(32) {
            let left = work.n_rows - row;
            let rows = [left.min(16), left.saturating_sub(16).min(16)];
            // SAFETY: the caller's promise; panel and rows are those of `work`.
            unsafe {
                if loaded != Some(rows) {
                    Config::new(rows, 16, [64, 64], GROUP).load();
                    loaded = Some(rows);
                }
                bytes_block(work, packing, panel, lines, row, rows);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { release() };
}

/// The two lines of bytes that a line of half bytes holds.
fn halves(line: &Line) -> [Line; 2] {
    [Line(line.0.map(|byte| byte & 15)), Line(line.0.map(|byte| byte >> 4))]
}

/// # Safety
/// [`is_there`], the tiles are configured for these rows, which are rows of `work`, and nobody else holds the columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn bytes_block(
    work: Work<'_>,
    packing: Packing,
    panel: usize,
    lines: &[Line],
    row: usize,
    rows: [usize; 2],
) {
    let n_groups = work.n_groups;
    let codes = &work.x.codes[row * n_groups..(row + rows[0] + rows[1]) * n_groups];
    let stride = n_groups * GROUP;
    let second = codes.as_ptr().wrapping_add(rows[0] * n_groups);
    let mut whole = [[0_i32; PANEL]; 32];
    let mut sums = [[0.0_f32; PANEL]; 32];
    for (group, lines) in lines.chunks_exact(GROUP / 4).enumerate() {
        // SAFETY: the caller's promise; loads lie within codes and lines, stores within `whole`.
        unsafe {
            load!("6", lines.as_ptr(), 64_usize);
            load!("4", codes.as_ptr().wrapping_add(group), stride);
            tiles!("tilezero tmm0", "tdpbsud tmm0, tmm4, tmm6");
            if rows[1] > 0 {
                load!("5", second.wrapping_add(group), stride);
                tiles!("tilezero tmm2", "tdpbsud tmm2, tmm5, tmm6");
                store!("2", whole[16..].as_mut_ptr(), 64_usize);
            }
            store!("0", whole.as_mut_ptr(), 64_usize);
        }
        let scales = &work.weights.scales[panel * n_groups + group];
        // SAFETY: 16 scales are 32 bytes.
        let bits = unsafe { _mm256_loadu_si256(scales.as_ptr().cast()) };
        let scales = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)));
        for at in 0..rows[0] + rows[1] {
            let place = (row + at) * n_groups + group;
            // SAFETY: 16 values each.
            unsafe {
                let offset = _mm512_set1_epi32(-packing.offset() * work.x.sums[place]);
                let exact = _mm512_loadu_si512(whole[at].as_ptr().cast());
                let value = _mm512_cvtepi32_ps(_mm512_add_epi32(exact, offset));
                let scale = _mm512_mul_ps(scales, _mm512_set1_ps(work.x.scales[place]));
                let sum = _mm512_loadu_ps(sums[at].as_ptr());
                _mm512_storeu_ps(sums[at].as_mut_ptr(), _mm512_fmadd_ps(value, scale, sum));
            }
        }
    }
    for (at, sums) in sums.iter().enumerate().take(rows[0] + rows[1]) {
        // SAFETY: the caller's promise.
        unsafe { work.store(row + at, panel, sums) };
    }
}
