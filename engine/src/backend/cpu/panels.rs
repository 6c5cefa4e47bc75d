//! `y = x · Wᵀ` with quantised weights in panels of 16 outputs, and `x` quantised row by row.
//!
//! For each group of inputs the products of codes are summed as integers, exactly; then `scale of the weights * scale of x`
//! times that sum is added in f32, group after group. The order is the same on every processor and for any number of
//! rows, so a row's result never depends on its neighbours.

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
    const fn offset(self) -> i32 {
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
        match (isa.has_vnni(), isa, packing) {
            (true, _, Packing::Bytes) => return x86::vnni_bytes(work, panels),
            (true, _, Packing::Nibbles) => return x86::vnni_nibbles(work, panels),
            (false, Isa::Avx2 | Isa::Avx512 | Isa::Amx, _) => {
                return x86::avx2(work, panels, packing);
            }
            (false, Isa::Portable, _) => {}
        }
        let _ = isa;
        for panel in panels {
            for row in 0..n_rows {
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

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The same with `vpdpbusd`, four products of bytes for each of 16 outputs, and without it on AVX2.
    //!
    //! A tile is some rows by some panels. For each step, a line of each panel meets four codes of each row, spread over a
    //! register. Bytes moved: each line once for a tile; with one row that is each weight once.

    use std::arch::x86_64::*;
    use std::ops::Range;

    use super::{GROUP, PANEL, Packing, Work};

    /// # Safety
    /// The processor has AVX-512 VNNI, and nobody else holds these columns.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) unsafe fn vnni_bytes(work: Work<'_>, panels: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe { vnni::<false>(work, panels) }
    }

    /// # Safety
    /// As for [`vnni_bytes`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) unsafe fn vnni_nibbles(work: Work<'_>, panels: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe { vnni::<true>(work, panels) }
    }

    /// # Safety
    /// As for [`vnni_bytes`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn vnni<const NIBBLES: bool>(work: Work<'_>, panels: Range<usize>) {
        let mut panel = panels.start;
        while panel < panels.end {
            let n_panels = if work.n_rows == 1 { 4 } else { 2 }.min(panels.end - panel);
            let mut row = 0;
            while row < work.n_rows {
                let left = work.n_rows - row;
                // SAFETY: the caller's promise; rows and panels lie within `work`.
                row += unsafe {
                    match (left, n_panels) {
                        (1, 4) => tile::<NIBBLES, 1, 4>(work, row, panel),
                        (6.., 2) => tile::<NIBBLES, 6, 2>(work, row, panel),
                        (4.., 2) => tile::<NIBBLES, 4, 2>(work, row, panel),
                        (3, 2) => tile::<NIBBLES, 3, 2>(work, row, panel),
                        (2, 2) => tile::<NIBBLES, 2, 2>(work, row, panel),
                        (_, 2) => tile::<NIBBLES, 1, 2>(work, row, panel),
                        (1, 3) => {
                            tile::<NIBBLES, 1, 2>(work, row, panel);
                            tile::<NIBBLES, 1, 1>(work, row, panel + 2)
                        }
                        _ => tile::<NIBBLES, 1, 1>(work, row, panel),
                    }
                };
            }
            panel += n_panels;
        }
    }

    /// Returns the number of rows.
    ///
    /// # Safety
    /// As for [`vnni_bytes`]; the rows and panels are those of `work`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn tile<const NIBBLES: bool, const H: usize, const W: usize>(
        work: Work<'_>,
        row: usize,
        panel: usize,
    ) -> usize {
        let packing = if NIBBLES { Packing::Nibbles } else { Packing::Bytes };
        let n_groups = work.n_groups;
        let mut sums = [[_mm512_setzero_ps(); W]; H];
        let low = _mm512_set1_epi8(15);
        let places = places::<H>(work, row);
        for group in 0..n_groups {
            let mut at = [0; H];
            let mut codes = [&work.x.codes[0]; H];
            for of in 0..H {
                at[of] = places[of].0 + group * places[of].1;
                codes[of] = &work.x.codes[at[of]];
            }
            let mut lines = [&work.weights.codes[..0]; W];
            for of in 0..W {
                lines[of] = work.lines(panel + of, group, packing);
            }
            let mut whole = [[_mm512_setzero_si512(); W]; H];
            for of in 0..H {
                let offset = _mm512_set1_epi32(-packing.offset() * work.x.sums[at[of]]);
                whole[of] = [offset; W];
            }
            for step in 0..packing.n_lines() {
                // One line of bytes, or the two that a line of half bytes holds.
                let (mut first, mut second) =
                    ([_mm512_setzero_si512(); W], [_mm512_setzero_si512(); W]);
                for of in 0..W {
                    // SAFETY: a line is one aligned register.
                    first[of] = unsafe { _mm512_load_si512((&raw const lines[of][step]).cast()) };
                    if NIBBLES {
                        second[of] = _mm512_and_si512(_mm512_srli_epi16::<4>(first[of]), low);
                        first[of] = _mm512_and_si512(first[of], low);
                    }
                }
                for of in 0..H {
                    let at = if NIBBLES { 2 * step } else { step };
                    let x = _mm512_set1_epi32(four(codes[of], at));
                    for of_panel in 0..W {
                        whole[of][of_panel] =
                            _mm512_dpbusd_epi32(whole[of][of_panel], first[of_panel], x);
                    }
                    if NIBBLES {
                        let x = _mm512_set1_epi32(four(codes[of], at + 1));
                        for of_panel in 0..W {
                            whole[of][of_panel] =
                                _mm512_dpbusd_epi32(whole[of][of_panel], second[of_panel], x);
                        }
                    }
                }
            }
            for of_panel in 0..W {
                let scales = &work.weights.scales[(panel + of_panel) * n_groups + group];
                // SAFETY: 16 scales are 32 bytes.
                let bits = unsafe { _mm256_loadu_si256(scales.as_ptr().cast()) };
                let scales =
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)));
                for of in 0..H {
                    let scale = _mm512_mul_ps(scales, _mm512_set1_ps(work.x.scales[at[of]]));
                    let value = _mm512_cvtepi32_ps(whole[of][of_panel]);
                    sums[of][of_panel] = _mm512_fmadd_ps(value, scale, sums[of][of_panel]);
                }
            }
        }
        for of in 0..H {
            for of_panel in 0..W {
                let mut values = [0.0; PANEL];
                // SAFETY: 16 values; the rest is the caller's promise.
                unsafe {
                    _mm512_storeu_ps(values.as_mut_ptr(), sums[of][of_panel]);
                    work.store(row + of, panel + of_panel, &values);
                }
            }
        }
        H
    }

    /// # Safety
    /// The processor has AVX2 and FMA, and nobody else holds these columns.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(work: Work<'_>, panels: Range<usize>, packing: Packing) {
        for panel in panels {
            let mut row = 0;
            while row < work.n_rows {
                // SAFETY: the caller's promise.
                unsafe {
                    match (packing, work.n_rows - row) {
                        (Packing::Bytes, 2..) => avx2_tile::<false, 2>(work, row, panel),
                        (Packing::Bytes, _) => avx2_tile::<false, 1>(work, row, panel),
                        (Packing::Nibbles, 2..) => avx2_tile::<true, 2>(work, row, panel),
                        (Packing::Nibbles, _) => avx2_tile::<true, 1>(work, row, panel),
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
    /// As for [`avx2`]; the rows and the panel are those of `work`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2_tile<const NIBBLES: bool, const H: usize>(
        work: Work<'_>,
        row: usize,
        panel: usize,
    ) {
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
                let scales =
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)));
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
}
