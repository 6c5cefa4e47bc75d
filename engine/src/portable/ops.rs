//! The small pieces, on rows of f32. Shapes are [rows, columns], row by row.

/// Lanes of a dot product that are summed apart, so that a compiler may use vectors and rounding errors stay small.
const LANES: usize = 16;

/// `y = x · Wᵀ`: `x` [n, inputs], `weight` [outputs, inputs], result [n, outputs].
pub(super) fn linear(x: &[f32], weight: &[f32], inputs: usize) -> Vec<f32> {
    let outputs = weight.len() / inputs;
    let mut y = Vec::with_capacity(x.len() / inputs * outputs);
    for row in x.chunks_exact(inputs) {
        y.extend(weight.chunks_exact(inputs).map(|column| dot(row, column)));
    }
    y
}

/// The sum of products.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// `y += factor * x`
pub(super) fn add_scaled(y: &mut [f32], factor: f32, x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += factor * x);
}

/// One over the root of the mean square.
pub(super) fn rms_factor(row: &[f32], eps: f32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
    let mean = dot(row, row) / row.len() as f32;
    1.0 / (mean + eps).sqrt()
}

/// RMS norm times `1 + weight`, of every row.
pub(super) fn norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let factor = rms_factor(row, eps);
        y.extend(row.iter().zip(weight).map(|(x, weight)| x * factor * (1.0 + weight)));
    }
    y
}

/// The logistic function.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`
pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `ln(1 + eˣ)`; above 20 the reference takes `x` itself.
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
