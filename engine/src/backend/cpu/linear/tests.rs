//! Every kernel against plain sums of products, at sizes that fill no register, panel, group or tile.

use half::bf16;

use super::super::matrix::{Dtype, GROUP, Line};
use super::super::quantise::QuantisePanel;
use super::*;
use crate::backend::cpu::noise::values;

fn quantised(values: &[f32], inputs: usize, packing: Packing) -> Panels {
    let n_groups = inputs.div_ceil(GROUP);
    let (mut all_scales, mut all_codes) = (Vec::new(), Vec::new());
    for values in values.chunks(PANEL * inputs) {
        let mut scales = vec![[0; PANEL]; n_groups];
        let mut codes = vec![Line([0; 64]); n_groups * packing.n_lines()];
        let (scales_of, codes_of) = (&mut scales, &mut codes);
        let panel = QuantisePanel { values, inputs, packing, scales: scales_of, codes: codes_of };
        Isa::detect().run(panel);
        all_scales.extend(scales);
        all_codes.extend(codes);
    }
    Panels { scales: all_scales.into(), codes: all_codes.into() }
}

fn matrix(outputs: usize, inputs: usize, dtype: Dtype) -> Matrix {
    let values = values(outputs * inputs, 7);
    let panels = |packing| quantised(&values, inputs, packing);
    let weights = match dtype {
        Dtype::F32 => Weights::F32(values),
        Dtype::Bf16 => {
            Weights::Bf16(values.iter().map(|x| bf16_bits(*x)).collect::<Vec<_>>().into())
        }
        Dtype::Int8 => Weights::Int8(panels(Packing::Bytes)),
        Dtype::Int4 => Weights::Int4(panels(Packing::Nibbles)),
    };
    Matrix { outputs, inputs, weights }
}

/// What a row of activations is after it was brought into the form that the weights ask for.
fn rounded(row: &[f32], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::F32 => row.to_vec(),
        Dtype::Bf16 => row.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
        Dtype::Int8 | Dtype::Int4 => {
            let n = row.len().div_ceil(GROUP);
            let (mut codes, mut scales) = (vec![[0; GROUP]; n], vec![0.0; n]);
            for ((values, codes), scale) in row.chunks(GROUP).zip(&mut codes).zip(&mut scales) {
                *scale = super::super::codes::quantise_group(values, codes).0;
            }
            let all = codes.iter().zip(&scales);
            let all = all.flat_map(|(codes, scale)| codes.map(|code| f32::from(code) * scale));
            all.take(row.len()).collect()
        }
    }
}

#[test]
fn every_kernel_sums_products_at_every_size() {
    for isa in Isa::available() {
        let machine = Machine::new(2, isa).unwrap();
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4] {
            for (outputs, inputs) in [(1, 1), (37, 100), (50, 64), (33, 160), (112, 96)] {
                let matrix = matrix(outputs, inputs, dtype);
                let mut weights = vec![0.0; outputs * inputs];
                for (at, row) in weights.chunks_exact_mut(inputs).enumerate() {
                    matrix.row(at, row);
                }
                for n_rows in [1, 2, 3, 5, 9, 16, 17, 33] {
                    let x = values(n_rows * inputs, 3);
                    let input = Input::new(&machine, &x, inputs, &[&matrix]);
                    let mut out = vec![1.0; n_rows * outputs];
                    let job = Job { matrix: &matrix, out: &mut out, adds: true };
                    linear(&machine, &input, &mut [job]);
                    for (row, out) in x.chunks_exact(inputs).zip(out.chunks_exact(outputs)) {
                        let row = rounded(row, dtype);
                        for (weights, out) in weights.chunks_exact(inputs).zip(out) {
                            let products =
                                row.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
                            let exact = 1.0 + products.sum::<f64>();
                            let error = (f64::from(*out) - exact).abs();
                            assert!(
                                error < 1e-4,
                                "{isa:?} {dtype:?} {n_rows}x{inputs}x{outputs}: {out}, not {exact}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// More outputs, inputs and rows than any kernel keeps in a cache at a time.
#[test]
fn a_row_among_many_has_the_bits_that_it_has_alone() {
    let machine = Machine::new(2, Isa::detect()).unwrap();
    let (outputs, inputs, n_rows) = (270, 3104, 70);
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4] {
        let matrix = matrix(outputs, inputs, dtype);
        let compute = |x: &[f32]| {
            let input = Input::new(&machine, x, inputs, &[&matrix]);
            let mut out = vec![0.0; x.len() / inputs * outputs];
            linear(&machine, &input, &mut [Job { matrix: &matrix, out: &mut out, adds: false }]);
            out
        };
        let x = values(n_rows * inputs, 5);
        let all = compute(&x);
        for (at, (x, out)) in x.chunks_exact(inputs).zip(all.chunks_exact(outputs)).enumerate() {
            assert!(compute(x) == out, "{dtype:?}: row {at}");
        }
    }
}

#[test]
fn codes_are_near_the_weights_they_stand_for() {
    for (dtype, limit) in [(Dtype::Int8, 1.0 / 250.0), (Dtype::Int4, 1.0 / 7.0)] {
        let (outputs, inputs) = (20, 130);
        let matrix = matrix(outputs, inputs, dtype);
        let exact = values(outputs * inputs, 7);
        for (at, exact) in exact.chunks_exact(inputs).enumerate() {
            let mut row = vec![0.0; inputs];
            matrix.row(at, &mut row);
            for (code, exact) in row.iter().zip(exact) {
                assert!((code - exact).abs() < limit, "{dtype:?}: {code} for {exact}");
            }
        }
    }
    let zeros = quantised(&[0.0; 64], 64, Packing::Nibbles);
    let matrix = Matrix { outputs: 1, inputs: 64, weights: Weights::Int4(zeros) };
    let mut row = [1.0; 64];
    matrix.row(0, &mut row);
    assert_eq!(row, [0.0; 64]);
}

#[test]
fn rows_wider_than_a_cache_are_computed_too() {
    let machine = Machine::new(1, Isa::detect()).unwrap();
    let inputs = 400_000;
    for dtype in [Dtype::Bf16, Dtype::Int8, Dtype::Int4] {
        let matrix = matrix(1, inputs, dtype);
        let x = [values(inputs, 5), values(inputs, 5)].concat();
        let input = Input::new(&machine, &x, inputs, &[&matrix]);
        let mut out = vec![0.0; 2];
        linear(&machine, &input, &mut [Job { matrix: &matrix, out: &mut out, adds: false }]);
        assert!(out[0] == out[1] && out[0] != 0.0, "{dtype:?}: {out:?}");
    }
}
