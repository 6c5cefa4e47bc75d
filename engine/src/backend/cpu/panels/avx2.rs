//! The same without VNNI, on AVX2.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{GROUP, PANEL, Packing, Work};

/// # Safety
/// The processor has AVX2 and FMA, and nobody else holds these columns.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn compute(work: Work<'_>, packing: Packing, panels: Range<usize>) {
    for panel in panels {
        let mut row = 0;
        while row < work.n_rows {
            // SAFETY: the caller's promise.
            unsafe {
                match (packing, work.n_rows - row) {
                    (Packing::Bytes, 2..) => tile::<false, 2>(work, row, panel),
                    (Packing::Bytes, _) => tile::<false, 1>(work, row, panel),
                    (Packing::Nibbles, 2..) => tile::<true, 2>(work, row, panel),
                    (Packing::Nibbles, _) => tile::<true, 1>(work, row, panel),
                }
            }
            row += if work.n_rows - row > 1 { 2 } else { 1 };
        }
    }
}

/// Where the groups of some rows lie.
#[inline(always)]
fn places<const H: usize>(work: Work<'_>, row: usize) -> [(usize, usize); H] {
    let mut places = [(0, 0); H];
    for of in 0..H {
        places[of] = work.x.place(row + of, work.n_groups);
    }
    places
}

/// Four codes of a step as one number.
#[inline(always)]
fn four(codes: &[i8; GROUP], step: usize) -> i32 {
    let codes = &codes[4 * step..4 * step + 4];
    // SAFETY: four bytes, read as one number in memory's order.
    unsafe { codes.as_ptr().cast::<i32>().read_unaligned() }
}

/// Adds four products each of unsigned and signed bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_dot(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(codes, x);
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// `vpmaddubsw` sums two products in 16 bits. Codes of four bits cannot overflow it; those of eight are made signed
/// and their sign moved to `x`, as 127 * 127 * 2 fits and 255 * 127 * 2 does not.
///
/// # Safety
/// As for [`compute`]; the rows and the panel are those of `work`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const NIBBLES: bool, const H: usize>(work: Work<'_>, row: usize, panel: usize) {
    let packing = if NIBBLES { Packing::Nibbles } else { Packing::Bytes };
    let n_groups = work.n_groups;
    let mut sums = [[_mm256_setzero_ps(); 2]; H];
    let places = places::<H>(work, row);
    for group in 0..n_groups {
        let mut at = [0; H];
        for of in 0..H {
            at[of] = places[of].0 + group * places[of].1;
        }
        let lines = work.lines(panel, group, packing);
        let mut whole = [[_mm256_setzero_si256(); 2]; H];
        if NIBBLES {
            for of in 0..H {
                whole[of] = [_mm256_set1_epi32(-packing.offset() * work.x.sums[at[of]]); 2];
            }
        }
        for (step, line) in lines.iter().enumerate() {
            for half in 0..2 {
                // SAFETY: half a line is one aligned register.
                let line = unsafe { _mm256_load_si256(line.0.as_ptr().add(32 * half).cast()) };
                for of in 0..H {
                    let codes = &work.x.codes[at[of]];
                    let sum = &mut whole[of][half];
                    if NIBBLES {
                        let low = _mm256_set1_epi8(15);
                        let first = _mm256_and_si256(line, low);
                        let x = _mm256_set1_epi32(four(codes, 2 * step));
                        *sum = add_dot(*sum, first, x);
                        let second = _mm256_and_si256(_mm256_srli_epi16::<4>(line), low);
                        let x = _mm256_set1_epi32(four(codes, 2 * step + 1));
                        *sum = add_dot(*sum, second, x);
                    } else {
                        let signed = _mm256_xor_si256(line, _mm256_set1_epi8(i8::MIN));
                        let x = _mm256_set1_epi32(four(codes, step));
                        let x = _mm256_sign_epi8(x, signed);
                        *sum = add_dot(*sum, _mm256_abs_epi8(signed), x);
                    }
                }
            }
        }
        let scales = &work.weights.scales[panel * n_groups + group];
        for half in 0..2 {
            // SAFETY: eight scales are 16 bytes.
            let bits = unsafe { _mm_loadu_si128(scales[half * 8..].as_ptr().cast()) };
            let scales = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)));
            for of in 0..H {
                let scale = _mm256_mul_ps(scales, _mm256_set1_ps(work.x.scales[at[of]]));
                let value = _mm256_cvtepi32_ps(whole[of][half]);
                sums[of][half] = _mm256_fmadd_ps(value, scale, sums[of][half]);
            }
        }
    }
    for (of, sums) in sums.iter().enumerate() {
        let mut values = [0.0; PANEL];
        // SAFETY: 16 values; the rest is the caller's promise.
        unsafe {
            _mm256_storeu_ps(values.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(values[8..].as_mut_ptr(), sums[1]);
            work.store(row + of, panel, &values);
        }
    }
}
