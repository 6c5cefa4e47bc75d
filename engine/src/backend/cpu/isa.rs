//! Which instructions this processor has, found once, and sixteen f32 at a time on each of them.
//!
//! A kernel is written once over [`Lanes`] and compiled for every instruction set; [`Isa::run`] picks one. Sixteen lanes
//! are one AVX-512 register, two of AVX2, four of NEON, so a kernel adds in the same order everywhere.

/// 1.5 * 2^23: in a sum with it, an f32 below 2^22 becomes the nearest integer, which then is the last bits of the sum.
pub(super) const SHIFT: f32 = 12_582_912.0;

/// An instruction set with kernels of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Whatever the compiler makes of plain Rust: correct on every processor.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, VL, DQ). Whether BF16 and VNNI are there is asked for apart.
    Avx512,
    /// The same with AMX (tiles of BF16 and bytes).
    Amx,
}

/// A computation over any lanes. Everything that `run` calls must be inlined into it, or it is compiled without the
/// instructions that it was chosen for.
pub(super) trait Kernel {
    type Output;

    fn run<L: Lanes>(self) -> Self::Output;
}

impl Isa {
    /// The best that this processor has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx512f")
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512vl")
                && std::is_x86_feature_detected!("avx512dq")
            {
                return if super::amx::is_there() { Self::Amx } else { Self::Avx512 };
            }
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// Every set that this processor has, for tests that compare them.
    pub fn available() -> Vec<Self> {
        match Self::detect() {
            Self::Amx => vec![Self::Portable, Self::Avx2, Self::Avx512, Self::Amx],
            Self::Avx512 => vec![Self::Portable, Self::Avx2, Self::Avx512],
            Self::Avx2 => vec![Self::Portable, Self::Avx2],
            Self::Portable => vec![Self::Portable],
        }
    }

    /// Whether `vdpbf16ps` may be used.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn has_bf16(self) -> bool {
        matches!(self, Self::Avx512 | Self::Amx) && std::is_x86_feature_detected!("avx512bf16")
    }

    /// Whether `vpdpbusd` may be used.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn has_vnni(self) -> bool {
        matches!(self, Self::Avx512 | Self::Amx) && std::is_x86_feature_detected!("avx512vnni")
    }

    /// Whether tiles may be used.
    pub(super) fn has_tiles(self) -> bool {
        self == Self::Amx
    }

    /// Runs a kernel with these instructions.
    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable => kernel.run::<Plain>(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: kernels run with the `Isa` of a `Machine`, which takes none but those that `available` has found here;
            // tests take theirs from there, too.
            Self::Avx2 => unsafe { x86::avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx512 | Self::Amx => unsafe { x86::avx512(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 | Self::Amx => kernel.run::<Plain>(),
        }
    }
}

/// Sixteen f32.
pub(super) trait Lanes: Copy {
    /// Whether sixteen values are one of 32 registers.
    const IS_WIDE: bool;

    fn splat(x: f32) -> Self;
    fn load(from: &[f32; 16]) -> Self;
    /// 32 BF16, widened: those at even places, then those at odd ones.
    fn load_bf16_pairs(from: &[u16; 32]) -> (Self, Self);
    fn store(self, to: &mut [f32; 16]);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    /// `self * factor + other`, rounded once where the instructions do so.
    fn fma(self, factor: Self, other: Self) -> Self;
    /// To the nearest integer.
    fn round(self) -> Self;
    /// 2 to these integers, which lie in -126..=127.
    fn pow2(self) -> Self;
    /// The sum, as a tree: lane 0 with lane 8, and so on.
    fn sum(self) -> f32;
    fn largest(self) -> f32;
}

/// eˣ to 2 units in the last place; the argument is held to the range in which the result is a normal number.
#[inline(always)]
pub(super) fn exp<L: Lanes>(x: L) -> L {
    // ln 2 in two parts, so that the reduction is exact enough (Cody and Waite, 1980), then a Taylor polynomial, whose
    // next term is below 2^-26 for |r| <= ln(2) / 2.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const TERMS: [f32; 8] =
        [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let x = x.max(L::splat(-87.0)).min(L::splat(88.0));
    let n = x.mul(L::splat(std::f32::consts::LOG2_E)).round();
    let r = n.fma(L::splat(-LN2_LOW), n.fma(L::splat(-LN2_HIGH), x));
    let mut sum = L::splat(TERMS[0]);
    for term in &TERMS[1..] {
        sum = sum.fma(r, L::splat(*term));
    }
    sum.mul(n.pow2())
}

/// The logistic function.
#[inline(always)]
pub(super) fn sigmoid<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    one.div(one.add(exp(L::splat(0.0).sub(x))))
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 16]);

/// Whether the baseline of this target has a fused multiply-add.
const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

impl Plain {
    #[inline(always)]
    fn zip(self, other: Self, with: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| with(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    fn fold(self, with: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] = with(lanes[lane], lanes[lane + half]);
            }
        }
        lanes[0]
    }
}

impl Lanes for Plain {
    const IS_WIDE: bool = false;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self([x; 16])
    }

    #[inline(always)]
    fn load(from: &[f32; 16]) -> Self {
        Self(*from)
    }

    #[inline(always)]
    fn load_bf16_pairs(from: &[u16; 32]) -> (Self, Self) {
        let at = |lane: usize| f32::from_bits(u32::from(from[lane]) << 16);
        let pick = |odd: usize| std::array::from_fn(|lane| at(2 * lane + odd));
        (Self(pick(0)), Self(pick(1)))
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; 16]) {
        *to = self.0;
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn fma(self, factor: Self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            let (a, b, c) = (self.0[lane], factor.0[lane], other.0[lane]);
            // Without the instruction, a fused one is a call for each lane.
            if FUSED { a.mul_add(b, c) } else { a * b + c }
        }))
    }

    #[inline(always)]
    fn round(self) -> Self {
        Self(self.0.map(|x| (x + SHIFT) - SHIFT))
    }

    #[inline(always)]
    fn pow2(self) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an integer in -126..=127, as promised"
        )]
        Self(self.0.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23)))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.fold(|a, b| a + b)
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        self.fold(f32::max)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The lanes of x86-64.

    use std::arch::x86_64::*;

    use super::{Kernel, Lanes};

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    pub(super) fn avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Wide>()
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Two>()
    }

    /// One register of AVX-512.
    #[derive(Clone, Copy)]
    struct Wide(__m512);

    /// Two registers of AVX2: lanes 0 to 7 and 8 to 15.
    #[derive(Clone, Copy)]
    struct Two(__m256, __m256);

    /// Writes the methods of `Lanes`. Only [`avx512`] and [`avx2`] name these types, so their instructions are there.
    macro_rules! lanes {
        ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $kind:ty),*) -> $out:ty $body:block)*) => {
            $(
                #[inline(always)]
                fn $name($($arg: $kind),*) -> $out {
                    // SAFETY: the kernel runs inside `avx512` or `avx2`, whose callers have found the instructions;
                    // loads and stores go through references to whole arrays.
                    unsafe { $body }
                }
            )*
        };
    }

    impl Lanes for Wide {
        const IS_WIDE: bool = true;

        lanes! {
            fn splat(x: f32) -> Self { Self(_mm512_set1_ps(x)) }
            fn load(from: &[f32; 16]) -> Self { Self(_mm512_loadu_ps(from.as_ptr())) }
            fn load_bf16_pairs(from: &[u16; 32]) -> (Self, Self) {
                let both = _mm512_loadu_si512(from.as_ptr().cast());
                let high = _mm512_set1_epi32(i32::MIN >> 15);
                (
                    Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both))),
                    Self(_mm512_castsi512_ps(_mm512_and_si512(both, high))),
                )
            }
            fn add(self: Self, b: Self) -> Self { Self(_mm512_add_ps(self.0, b.0)) }
            fn sub(self: Self, b: Self) -> Self { Self(_mm512_sub_ps(self.0, b.0)) }
            fn mul(self: Self, b: Self) -> Self { Self(_mm512_mul_ps(self.0, b.0)) }
            fn div(self: Self, b: Self) -> Self { Self(_mm512_div_ps(self.0, b.0)) }
            fn max(self: Self, b: Self) -> Self { Self(_mm512_max_ps(self.0, b.0)) }
            fn min(self: Self, b: Self) -> Self { Self(_mm512_min_ps(self.0, b.0)) }
            fn fma(self: Self, b: Self, c: Self) -> Self { Self(_mm512_fmadd_ps(self.0, b.0, c.0)) }
            fn round(self: Self) -> Self { Self(_mm512_roundscale_ps::<8>(self.0)) }
            fn pow2(self: Self) -> Self { Self(_mm512_scalef_ps(_mm512_set1_ps(1.0), self.0)) }
            fn sum(self: Self) -> f32 {
                Two(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0)).sum()
            }
            fn largest(self: Self) -> f32 { _mm512_reduce_max_ps(self.0) }
        }

        #[inline(always)]
        fn store(self, to: &mut [f32; 16]) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
        }
    }

    impl Lanes for Two {
        const IS_WIDE: bool = false;

        lanes! {
            fn splat(x: f32) -> Self { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
            fn load(from: &[f32; 16]) -> Self {
                Self(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from[8..].as_ptr()))
            }
            fn load_bf16_pairs(from: &[u16; 32]) -> (Self, Self) {
                let both = [
                    _mm256_loadu_si256(from.as_ptr().cast()),
                    _mm256_loadu_si256(from[16..].as_ptr().cast()),
                ];
                let high = _mm256_set1_epi32(i32::MIN >> 15);
                let even = both.map(|both| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)));
                let odd = both.map(|both| _mm256_castsi256_ps(_mm256_and_si256(both, high)));
                (Self(even[0], even[1]), Self(odd[0], odd[1]))
            }
            fn add(self: Self, b: Self) -> Self { Self(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
            fn sub(self: Self, b: Self) -> Self { Self(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1)) }
            fn mul(self: Self, b: Self) -> Self { Self(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
            fn div(self: Self, b: Self) -> Self { Self(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1)) }
            fn max(self: Self, b: Self) -> Self { Self(_mm256_max_ps(self.0, b.0), _mm256_max_ps(self.1, b.1)) }
            fn min(self: Self, b: Self) -> Self { Self(_mm256_min_ps(self.0, b.0), _mm256_min_ps(self.1, b.1)) }
            fn fma(self: Self, b: Self, c: Self) -> Self {
                Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1))
            }
            fn round(self: Self) -> Self {
                Self(_mm256_round_ps::<8>(self.0), _mm256_round_ps::<8>(self.1))
            }
            fn pow2(self: Self) -> Self {
                let half = |n: __m256| {
                    let bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(bits))
                };
                Self(half(self.0), half(self.1))
            }
            fn sum(self: Self) -> f32 {
                let eight = _mm256_add_ps(self.0, self.1);
                let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
            fn largest(self: Self) -> f32 {
                let eight = _mm256_max_ps(self.0, self.1);
                let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }

        #[inline(always)]
        fn store(self, to: &mut [f32; 16]) {
            // SAFETY: as above.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), self.0);
                _mm256_storeu_ps(to[8..].as_mut_ptr(), self.1);
            }
        }
    }
}

/// Brings a line into the first-level cache, if there is memory at this address.
#[inline(always)]
pub(super) fn fetch<T>(at: *const T) {
    // SAFETY: every x86-64 processor has SSE, and fetching does nothing where nothing can be read.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exp<'a>(&'a [[f32; 16]]);

    impl Kernel for Exp<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<L: Lanes>(self) -> Vec<f32> {
            let mut all = Vec::new();
            for sixteen in self.0 {
                let mut out = [0.0; 16];
                exp(L::load(sixteen)).store(&mut out);
                all.extend(out);
            }
            all
        }
    }

    #[test]
    fn exponentials_are_right_on_every_instruction_set() {
        let values: Vec<f32> = (-8700..8800).map(|x| x as f32 / 100.0).collect();
        let sixteens = values.as_chunks::<16>().0;
        for isa in Isa::available() {
            for (x, ours) in values.iter().zip(isa.run(Exp(sixteens))) {
                let exact = f64::from(*x).exp();
                let error = (f64::from(ours) - exact).abs() / exact;
                assert!(error < 3e-7, "{isa:?} exp({x}) = {ours}, off by {error}");
            }
            let ends = isa.run(Exp(&[[f32::NEG_INFINITY; 16], [1000.0; 16]]));
            assert!(ends[0] < 1e-37 && ends[16].is_finite(), "{isa:?}");
        }
    }
}
