//! Matrix tiles of Intel's AMX: 16 x 16 results and 32 BF16 or 64 byte products each, in one instruction.
//!
//! Rust has no stable names for these instructions, so they are written as assembly. Tiles keep nothing between two calls
//! here: each configures them, uses them and releases them. The compiler never uses tile registers itself.
//!
//! Every product of BF16 goes through [`bf16`] where there is AMX, a single row too, so that a result does not depend on
//! the number of rows. The sums of [`bytes`] are integers and exact, so rows may as well go through other instructions.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, *};
use std::sync::OnceLock;

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
        features & (BF16 | TILE | INT8) == BF16 | TILE | INT8
            && std::is_x86_feature_detected!("avx512bf16")
            && is_permitted()
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

pub(super) mod attention;
pub(super) mod bf16;
pub(super) mod bytes;

/// Turns 16 rows of 16 words into columns.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(rows: &mut [__m512i; 16]) {
    let mut fours = [_mm512_setzero_si512(); 16];
    // Columns of four rows: within each quarter of a register, columns 0 to 3 of that quarter.
    for at in 0..4 {
        let [a, b, c, d] = [rows[4 * at], rows[4 * at + 1], rows[4 * at + 2], rows[4 * at + 3]];
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        fours[4 * at] = _mm512_unpacklo_epi64(ab, cd);
        fours[4 * at + 1] = _mm512_unpackhi_epi64(ab, cd);
        let (ab, cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        fours[4 * at + 2] = _mm512_unpacklo_epi64(ab, cd);
        fours[4 * at + 3] = _mm512_unpackhi_epi64(ab, cd);
    }
    for at in 0..4 {
        let [a, b, c, d] = [fours[at], fours[4 + at], fours[8 + at], fours[12 + at]];
        // Quarters 0 and 2, then 1 and 3, of two registers.
        let (ab, cd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d));
        rows[at] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
        rows[8 + at] = _mm512_shuffle_i32x4::<0xdd>(ab, cd);
        let (ab, cd) = (_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d));
        rows[4 + at] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
        rows[12 + at] = _mm512_shuffle_i32x4::<0xdd>(ab, cd);
    }
}
