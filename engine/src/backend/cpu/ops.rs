//! The small pieces between the layers, on rows of f32.

use super::isa::{Kernel, Lanes, exp, sigmoid};
use super::linear::Machine;

/// Applies `with` to `y` and `x` sixteen at a time; the last ones are padded with zeros.
#[inline(always)]
pub(super) fn zip<L: Lanes>(y: &mut [f32], x: &[f32], with: impl Fn(L, L) -> L) {
    let (y16, y_rest) = y.as_chunks_mut::<16>();
    let (x16, x_rest) = x.as_chunks::<16>();
    for (y, x) in y16.iter_mut().zip(x16) {
        with(L::load(y), L::load(x)).store(y);
    }
    if !y_rest.is_empty() {
        let (mut a, mut b) = ([0.0; 16], [0.0; 16]);
        a[..y_rest.len()].copy_from_slice(y_rest);
        b[..x_rest.len()].copy_from_slice(x_rest);
        with(L::load(&a), L::load(&b)).store(&mut a);
        y_rest.copy_from_slice(&a[..y_rest.len()]);
    }
}

/// `y = silu(y) * x`
#[inline(always)]
pub(super) fn silu_times<L: Lanes>(y: &mut [f32], x: &[f32]) {
    zip::<L>(y, x, |y, x| y.mul(sigmoid(y)).mul(x));
}

/// `y = y * silu(x)`
#[inline(always)]
pub(super) fn times_silu<L: Lanes>(y: &mut [f32], x: &[f32]) {
    zip::<L>(y, x, |y, x| y.mul(x.mul(sigmoid(x))));
}

/// `y = y * sigmoid(x)`
#[inline(always)]
pub(super) fn times_sigmoid<L: Lanes>(y: &mut [f32], x: &[f32]) {
    zip::<L>(y, x, |y, x| y.mul(sigmoid(x)));
}

/// The sum of squares.
#[inline(always)]
pub(super) fn squares<L: Lanes>(x: &[f32]) -> f32 {
    let (x16, rest) = x.as_chunks::<16>();
    let mut sum = L::splat(0.0);
    for x in x16 {
        let x = L::load(x);
        sum = x.fma(x, sum);
    }
    sum.sum() + rest.iter().map(|x| x * x).sum::<f32>()
}

/// One over the root of the mean square.
#[inline(always)]
pub(super) fn rms_factor<L: Lanes>(x: &[f32], eps: f32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
    let mean = squares::<L>(x) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

/// RMS norm times `weight`, in place. Norms of the residual stream, of queries and of keys have had one added to their
/// weight when they were loaded.
#[inline(always)]
pub(super) fn norm<L: Lanes>(x: &mut [f32], weight: &[f32], eps: f32) {
    let factor = L::splat(rms_factor::<L>(x, eps));
    zip::<L>(x, weight, |x, weight| x.mul(factor).mul(weight));
}

/// Turns scores into weights: `e^(score - largest)`, and returns the largest and the sum of all. What lies behind `n` gets
/// no weight.
#[inline(always)]
pub(super) fn soften<L: Lanes>(scores: &mut [[f32; 16]], n: usize) -> (f32, f32) {
    let all = scores.as_flattened_mut();
    all[n..].fill(f32::NEG_INFINITY);
    let mut largest = L::splat(f32::NEG_INFINITY);
    for scores in scores.iter() {
        largest = largest.max(L::load(scores));
    }
    let largest = largest.largest();
    for scores in scores.iter_mut() {
        exp(L::load(scores).sub(L::splat(largest))).store(scores);
    }
    scores.as_flattened_mut()[n..].fill(0.0);
    let mut sum = L::splat(0.0);
    for scores in scores.iter() {
        sum = sum.add(L::load(scores));
    }
    (largest, sum.sum())
}

/// Norms of all rows, [n, width].
pub(super) fn norm_rows(machine: &Machine, x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut y = x.to_vec();
    let mut rows: Vec<&mut [f32]> = y.chunks_exact_mut(weight.len()).collect();
    machine.pool.each(&mut rows, |row| machine.isa.run(Norm { x: row, weight, eps }));
    y
}

struct Norm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        norm::<L>(self.x, self.weight, self.eps);
    }
}
