//! The small pieces between the layers, on rows of f32.

use super::isa::{Kernel, Lanes, exp, sigmoid};
use super::linear::Machine;
use super::scratch::Table;

/// What is done to sixteen values, given sixteen others. Not a closure: those are not always inlined, and then they are
/// compiled without the instructions that their kernel was chosen for.
trait Pairwise<L> {
    fn apply(&self, y: L, x: L) -> L;
}

/// Applies `op` to `y` and `x` sixteen at a time; the last ones are padded with zeros.
#[inline(always)]
fn zip<L: Lanes>(y: &mut [f32], x: &[f32], op: &impl Pairwise<L>) {
    let (y16, y_rest) = y.as_chunks_mut::<16>();
    let (x16, x_rest) = x.as_chunks::<16>();
    for (y, x) in y16.iter_mut().zip(x16) {
        op.apply(L::load(y), L::load(x)).store(y);
    }
    if !y_rest.is_empty() {
        let (mut a, mut b) = ([0.0; 16], [0.0; 16]);
        a[..y_rest.len()].copy_from_slice(y_rest);
        b[..x_rest.len()].copy_from_slice(x_rest);
        op.apply(L::load(&a), L::load(&b)).store(&mut a);
        y_rest.copy_from_slice(&a[..y_rest.len()]);
    }
}

/// Writes an operation and the function that applies it.
macro_rules! pairwise {
    ($(#[$meta:meta])* $name:ident, $op:ident, |$y:ident, $x:ident| $body:expr) => {
        struct $op;

        impl<L: Lanes> Pairwise<L> for $op {
            #[inline(always)]
            fn apply(&self, $y: L, $x: L) -> L {
                $body
            }
        }

        $(#[$meta])*
        #[inline(always)]
        pub(super) fn $name<L: Lanes>(y: &mut [f32], x: &[f32]) {
            zip::<L>(y, x, &$op);
        }
    };
}

pairwise!(
    /// `y = silu(y) * x`
    silu_times, SiluTimes, |y, x| y.mul(sigmoid(y)).mul(x)
);
pairwise!(
    /// `y = y * silu(x)`
    times_silu, TimesSilu, |y, x| y.mul(x.mul(sigmoid(x)))
);
pairwise!(
    /// `y = y * sigmoid(x)`
    times_sigmoid, TimesSigmoid, |y, x| y.mul(sigmoid(x))
);

/// `y = y * factor * x`
struct Scaled<L>(L);

impl<L: Lanes> Pairwise<L> for Scaled<L> {
    #[inline(always)]
    fn apply(&self, y: L, x: L) -> L {
        y.mul(self.0).mul(x)
    }
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
    zip::<L>(x, weight, &Scaled(factor));
}

/// Turns scores into weights: `e^(score - largest)`, and returns the largest and the sum of all. What lies behind `n` gets
/// no weight.
#[inline(always)]
pub(super) fn soften<L: Lanes>(scores: &mut [[f32; 16]], n: usize) -> (f32, f32) {
    let all = scores.as_flattened_mut();
    if n == 0 {
        all.fill(0.0);
        return (f32::NEG_INFINITY, 0.0);
    }
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
pub(super) fn norm_rows<'m>(
    machine: &'m Machine,
    x: &[f32],
    weight: &[f32],
    eps: f32,
) -> Table<'m, f32> {
    let (mut y, width) = (machine.table(x.len()), weight.len());
    let mut rows: Vec<_> = y.chunks_exact_mut(width).zip(x.chunks_exact(width)).collect();
    machine.pool.each(&mut rows, |(y, x)| {
        y.copy_from_slice(x);
        machine.isa.run(Norm { x: y, weight, eps });
    });
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
