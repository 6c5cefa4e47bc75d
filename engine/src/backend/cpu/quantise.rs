//! From values to panels of codes, sixteen values at a time; the result is the same on every processor, bit for bit.

use half::bf16;

use super::isa::{Kernel, Lanes, SHIFT};
use super::matrix::{GROUP, Line, PANEL};
use super::panels::Packing;

/// Sixteens of a group.
const SIXTEENS: usize = GROUP / 16;

/// Quantises one panel.
pub(super) struct QuantisePanel<'a> {
    /// [at most 16, inputs]
    pub(super) values: &'a [f32],
    pub(super) inputs: usize,
    pub(super) packing: Packing,
    /// BF16 bits, [groups, 16].
    pub(super) scales: &'a mut [[u16; PANEL]],
    /// [groups, lines of a group]
    pub(super) codes: &'a mut [Line],
}

/// The codes of one group of an output, with their offset.
type Bytes = [u8; GROUP];

impl Kernel for QuantisePanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let n_lines = self.packing.n_lines();
        let n_rows = self.values.len() / self.inputs;
        for group in 0..self.scales.len() {
            let from = group * GROUP;
            let n = GROUP.min(self.inputs - from);
            // Outputs and inputs that are not there are zeros.
            let mut codes = [[zero(self.packing); GROUP]; PANEL];
            let mut scales = [0; PANEL];
            for row in 0..n_rows {
                let mut values = [0.0; GROUP];
                values[..n].copy_from_slice(&self.values[row * self.inputs + from..][..n]);
                let values: [L; SIXTEENS] = load(&values);
                match self.packing {
                    Packing::Bytes => scales[row] = int8(&values, &mut codes[row]),
                    Packing::Nibbles => scales[row] = int4(&values, &mut codes[row]),
                }
            }
            self.scales[group] = scales;
            let lines = &mut self.codes[group * n_lines..(group + 1) * n_lines];
            match self.packing {
                Packing::Bytes => pack_bytes(&codes, lines),
                Packing::Nibbles => pack_nibbles(&codes, lines),
            }
        }
    }
}

/// The code of zero, as it is stored.
#[inline(always)]
fn zero(packing: Packing) -> u8 {
    match packing {
        Packing::Bytes => 128,
        Packing::Nibbles => 8,
    }
}

#[inline(always)]
fn load<L: Lanes>(values: &[f32; GROUP]) -> [L; SIXTEENS] {
    let mut loaded = [L::splat(0.0); SIXTEENS];
    let sixteens = values.as_chunks().0;
    for at in 0..SIXTEENS {
        loaded[at] = L::load(&sixteens[at]);
    }
    loaded
}

/// Codes -127..=127 at the scale of the largest value.
#[inline(always)]
fn int8<L: Lanes>(values: &[L; SIXTEENS], codes: &mut Bytes) -> u16 {
    let (least, most) = ends(values);
    let scale = bf16::from_f32(most.max(-least) / 127.0);
    encode(values, scale.to_f32(), Packing::Bytes, codes);
    scale.to_bits()
}

/// Codes -8..=7. The scale that loses least is among some below the one at which nothing is cut off; its sign puts the
/// largest value on the side that has one code more.
#[inline(always)]
fn int4<L: Lanes>(values: &[L; SIXTEENS], codes: &mut Bytes) -> u16 {
    let (least, most) = ends(values);
    let extreme = if most >= -least { most } else { least };
    let mut best = (f32::INFINITY, bf16::ZERO);
    for divisor in [-8.0_f32, -7.5, -7.0, -8.5, -9.0, -9.5] {
        let scale = bf16::from_f32(extreme / divisor);
        let error = loss(values, scale.to_f32());
        if error < best.0 {
            best = (error, scale);
        }
    }
    encode(values, best.1.to_f32(), Packing::Nibbles, codes);
    best.1.to_bits()
}

/// The least and the largest value.
#[inline(always)]
fn ends<L: Lanes>(values: &[L; SIXTEENS]) -> (f32, f32) {
    let (mut least, mut most) = (values[0], values[0]);
    for at in 1..SIXTEENS {
        least = least.min(values[at]);
        most = most.max(values[at]);
    }
    (-L::splat(0.0).sub(least).largest(), most.largest())
}

/// The sum of the squares of what codes of 4 bits lose.
#[inline(always)]
fn loss<L: Lanes>(values: &[L; SIXTEENS], scale: f32) -> f32 {
    if scale == 0.0 {
        return 0.0;
    }
    let (inverse, scale) = (L::splat(1.0 / scale), L::splat(scale));
    let mut sum = L::splat(0.0);
    for at in 0..SIXTEENS {
        let code = values[at].mul(inverse).round().max(L::splat(-8.0)).min(L::splat(7.0));
        let lost = values[at].sub(code.mul(scale));
        sum = sum.add(lost.mul(lost));
    }
    sum.sum()
}

/// Divides by a scale and rounds to codes, which are stored with their offset.
#[inline(always)]
fn encode<L: Lanes>(values: &[L; SIXTEENS], scale: f32, packing: Packing, codes: &mut Bytes) {
    if scale == 0.0 {
        return;
    }
    let (least, most) = match packing {
        Packing::Bytes => (-127.0, 127.0),
        Packing::Nibbles => (-8.0, 7.0),
    };
    let zero = zero(packing);
    for at in 0..SIXTEENS {
        let code = values[at].div(L::splat(scale)).max(L::splat(least)).min(L::splat(most));
        let mut sums = [0.0; 16];
        code.add(L::splat(SHIFT)).store(&mut sums);
        for lane in 0..16 {
            #[expect(clippy::cast_possible_truncation, reason = "the code is in the last byte")]
            let code = sums[lane].to_bits() as u8;
            codes[at * 16 + lane] = code.wrapping_add(zero);
        }
    }
}

/// Four codes of each output stand together.
#[inline(always)]
fn pack_bytes(codes: &[Bytes; PANEL], lines: &mut [Line]) {
    for step in 0..lines.len() {
        let line = &mut lines[step].0;
        for lane in 0..PANEL {
            line[4 * lane..4 * lane + 4].copy_from_slice(&codes[lane][4 * step..4 * step + 4]);
        }
    }
}

/// Eight codes of each output stand together in four bytes: input j in the lower half of one, j + 4 in its upper half.
#[inline(always)]
fn pack_nibbles(codes: &[Bytes; PANEL], lines: &mut [Line]) {
    for step in 0..lines.len() {
        let line = &mut lines[step].0;
        for lane in 0..PANEL {
            let codes = &codes[lane].as_chunks::<8>().0[step];
            let eight = u64::from_le_bytes(*codes);
            #[expect(clippy::cast_possible_truncation, reason = "four bytes each")]
            let (first, second) = (eight as u32, (eight >> 32) as u32);
            let four = (first | second << 4).to_le_bytes();
            line[4 * lane..4 * lane + 4].copy_from_slice(&four);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::isa::Isa;
    use crate::backend::cpu::noise::values;

    /// Values of a row, with a zero group and one of equal ends, and a last group that is not whole.
    fn row() -> Vec<f32> {
        let factors = values(3 * (GROUP * 4 + 37), 5);
        let mut row: Vec<f32> = factors.as_chunks().0.iter().map(|[a, b, c]| a * b * c).collect();
        row[GROUP..2 * GROUP].fill(0.0);
        (row[2 * GROUP], row[2 * GROUP + 1]) = (-3.0, 3.0);
        row
    }

    fn quantised(isa: Isa, row: &[f32], packing: Packing) -> (Vec<[u16; PANEL]>, Vec<Line>) {
        let values = [row, row, row].concat();
        let n_groups = row.len().div_ceil(GROUP);
        let mut scales = vec![[7; PANEL]; n_groups];
        let mut codes = vec![Line([7; 64]); n_groups * packing.n_lines()];
        let (scales_of, codes_of) = (&mut scales, &mut codes);
        isa.run(QuantisePanel {
            values: &values,
            inputs: row.len(),
            packing,
            scales: scales_of,
            codes: codes_of,
        });
        (scales, codes)
    }

    #[test]
    fn codes_and_scales_are_the_same_on_every_instruction_set() {
        for packing in [Packing::Bytes, Packing::Nibbles] {
            let first = quantised(Isa::Portable, &row(), packing);
            for isa in Isa::available() {
                assert!(quantised(isa, &row(), packing) == first, "{isa:?} {packing:?}");
            }
            // The panel has three rows: the other outputs are zeros.
            let zeros = match packing {
                Packing::Bytes => [128; 4],
                Packing::Nibbles => [0x88; 4],
            };
            assert!(first.0.iter().all(|scales| scales[3..] == [0; 13] && scales[2] == scales[0]));
            assert!(first.1.iter().all(|line| line.0.as_chunks::<4>().0[3..] == [zeros; 13]));
        }
    }

    /// What plain arithmetic finds for one group of 4 bits.
    fn loss_of(values: &[f32], scale: f32) -> f64 {
        let loss = |value: &f32| {
            let code = (value / scale).round_ties_even().clamp(-8.0, 7.0);
            f64::from(value - code * scale).powi(2)
        };
        values.iter().map(loss).sum()
    }

    #[test]
    fn four_bits_have_the_scale_that_loses_least() {
        let row = row();
        let (scales, _) = quantised(Isa::detect(), &row, Packing::Nibbles);
        for (values, scales) in row.chunks(GROUP).zip(scales) {
            let scale = bf16::from_bits(scales[0]).to_f32();
            let extreme = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            if extreme == 0.0 {
                assert_eq!(scale, 0.0);
                continue;
            }
            let least = [7.0, 7.5, 8.0, 8.5, 9.0, 9.5]
                .into_iter()
                .flat_map(|divisor| [extreme / divisor, -extreme / divisor])
                .map(|scale| loss_of(values, bf16::from_f32(scale).to_f32()))
                .fold(f64::INFINITY, f64::min);
            let ours = loss_of(values, scale);
            // The sign of the scale is that of the largest value, which is nearly always the better one.
            assert!(ours < 1.3 * least, "{ours} for {least}");
        }
    }
}
