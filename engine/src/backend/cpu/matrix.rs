//! The weights of a linear layer, in the form in which they are read.
//!
//! * F32 and BF16: rows as in the checkpoint, [outputs, inputs]. BF16 of a mapped file is used where it lies.
//! * Int8 and int4: panels of 16 outputs. Each weight is `scale * (code - offset)` with one BF16 scale for [`GROUP`]
//!   neighbouring inputs of an output; codes are unsigned, the offset is half their range. A panel holds, for each group,
//!   its 16 scales, and its codes in the order in which `vpdpbusd` takes them: [group, inputs / 4, 16 outputs, 4 inputs], one
//!   byte each. In int4 a byte holds two codes: inputs j and j + 4 of eight, the first in its lower half.
//!
//! Outputs are padded to whole panels and inputs to whole groups, with zeros.

use std::str::FromStr;
use std::sync::Arc;

use half::bf16;
use memmap2::Mmap;

/// Inputs that share a scale: a group of codes is 16 steps of `vpdpbusd`, or one AMX tile.
pub const GROUP: usize = 64;
/// Outputs of a panel: the lanes of a register.
pub(super) const PANEL: usize = 16;

/// How weights are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits, for comparing with the reference.
    F32,
    /// 16 bits, as models are published.
    Bf16,
    /// 8.25 bits: 8, and a scale for [`GROUP`] of them.
    Int8,
    /// 4.25 bits: 4, and a scale for [`GROUP`] of them.
    Int4,
}

/// A form of weights that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot keep weights as `{name}`: use f32, bf16, int8 or int4")]
pub struct UnknownDtype {
    /// What was asked for.
    pub name: String,
}

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(name: &str) -> Result<Self, UnknownDtype> {
        match name {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "int8" => Ok(Self::Int8),
            "int4" => Ok(Self::Int4),
            _ => Err(UnknownDtype { name: name.to_owned() }),
        }
    }
}

impl Dtype {
    /// The form of the head and the embedding, where 4 bits cost the most quality.
    pub fn of_head(self) -> Self {
        match self {
            Self::Int4 => Self::Int8,
            Self::F32 | Self::Bf16 | Self::Int8 => self,
        }
    }

    /// The form of the two projections with one output for each head, which weigh nothing and steer the recurrence.
    pub fn of_gates(self) -> Self {
        match self {
            Self::F32 => Self::F32,
            Self::Bf16 | Self::Int8 | Self::Int4 => Self::Bf16,
        }
    }
}

/// `y = x · Wᵀ`
pub struct Matrix {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) weights: Weights,
}

pub(super) enum Weights {
    F32(Vec<f32>),
    Bf16(Halves),
    Int8(Panels),
    Int4(Panels),
}

/// BF16 values, owned or in a mapped file.
pub(super) enum Halves {
    Owned(Vec<u16>),
    Mapped {
        map: Arc<Mmap>,
        /// In bytes.
        start: usize,
        n: usize,
    },
}

/// Quantised weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Panels {
    /// BF16 bits, [panels, groups, 16].
    pub(super) scales: Vec<[u16; PANEL]>,
    /// [panels, groups, group bytes / 64] lines of 64 bytes.
    pub(super) codes: Vec<Line>,
}

/// A line of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

impl Halves {
    /// Takes values where they lie in a file; none if this machine cannot read them in place.
    pub(super) fn mapped(map: Arc<Mmap>, start: usize, n: usize) -> Option<Self> {
        let bytes = map.get(start..start.checked_add(n.checked_mul(2)?)?)?;
        let is_aligned = bytes.as_ptr().cast::<u16>().is_aligned();
        (is_aligned && cfg!(target_endian = "little")).then_some(Self::Mapped { map, start, n })
    }

    pub(super) fn values(&self) -> &[u16] {
        match self {
            Self::Owned(values) => values,
            Self::Mapped { map, start, n } => {
                // SAFETY: `mapped` has checked the range and the alignment, and any bits are a `u16`.
                unsafe { std::slice::from_raw_parts(map.as_ptr().add(*start).cast(), *n) }
            }
        }
    }
}

impl Matrix {
    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        match &self.weights {
            Weights::F32(values) => values.len() * 4,
            Weights::Bf16(values) => values.values().len() * 2,
            Weights::Int8(panels) | Weights::Int4(panels) => {
                panels.codes.len() * 64 + panels.scales.len() * 2 * PANEL
            }
        }
    }

    /// Groups of inputs, the last one padded.
    pub(super) fn n_groups(&self) -> usize {
        self.inputs.div_ceil(GROUP)
    }

    /// One row as f32, for looking up an embedding.
    pub(super) fn row(&self, at: usize, out: &mut [f32]) {
        match &self.weights {
            Weights::F32(values) => {
                out.copy_from_slice(&values[at * self.inputs..(at + 1) * self.inputs]);
            }
            Weights::Bf16(values) => {
                let row = &values.values()[at * self.inputs..(at + 1) * self.inputs];
                out.iter_mut()
                    .zip(row)
                    .for_each(|(out, bits)| *out = bf16::from_bits(*bits).to_f32());
            }
            Weights::Int8(panels) => {
                self.panel_row(at, out, panels, 1, |codes, at| codes[at].cast_signed() ^ i8::MIN);
            }
            Weights::Int4(panels) => self.panel_row(at, out, panels, 2, |codes, at| {
                let (byte, half) = (codes[at / 8 * 4 + at % 4], at / 4 % 2);
                ((byte >> (4 * half)) & 15).cast_signed() - 8
            }),
        }
    }

    /// `code` finds the signed code of an input in the bytes of one output of a group, four for each step.
    fn panel_row(
        &self,
        at: usize,
        out: &mut [f32],
        panels: &Panels,
        codes_per_byte: usize,
        code: impl Fn(&[u8], usize) -> i8,
    ) {
        let n_lines = GROUP / 4 / codes_per_byte;
        let (panel, lane) = (at / PANEL, at % PANEL);
        for (group, out) in out.chunks_mut(GROUP).enumerate() {
            let place = panel * self.n_groups() + group;
            let scale = bf16::from_bits(panels.scales[place][lane]).to_f32();
            let lines = &panels.codes[place * n_lines..(place + 1) * n_lines];
            let bytes: Vec<u8> =
                lines.iter().flat_map(|line| line.0[lane * 4..lane * 4 + 4].to_vec()).collect();
            for (input, out) in out.iter_mut().enumerate() {
                *out = scale * f32::from(code(&bytes, input));
            }
        }
    }
}

/// Quantises one panel: up to 16 rows of `inputs` values.
#[inline(always)]
pub(super) fn quantise(rows: &[&[f32]], dtype: Dtype, out: &mut Panels) {
    let inputs = rows.first().map_or(0, |row| row.len());
    for from in (0..inputs).step_by(GROUP) {
        let to = (from + GROUP).min(inputs);
        let mut codes = [[0_i8; GROUP]; PANEL];
        let mut scales = [0_u16; PANEL];
        for ((row, codes), scale) in rows.iter().zip(&mut codes).zip(&mut scales) {
            *scale = match dtype {
                Dtype::Int4 => group_int4(&row[from..to], codes),
                Dtype::Int8 | Dtype::Bf16 | Dtype::F32 => group_int8(&row[from..to], codes),
            };
        }
        out.scales.push(scales);
        match dtype {
            Dtype::Int4 => out.codes.extend((0..GROUP / 8).map(|step| {
                Line(std::array::from_fn(|at| {
                    let code =
                        |half: usize| (codes[at / 4][step * 8 + half * 4 + at % 4] + 8) as u8;
                    code(0) | code(1) << 4
                }))
            })),
            Dtype::Int8 | Dtype::Bf16 | Dtype::F32 => {
                out.codes.extend((0..GROUP / 4).map(|step| {
                    Line(std::array::from_fn(|at| {
                        (codes[at / 4][step * 4 + at % 4] ^ i8::MIN).cast_unsigned()
                    }))
                }))
            }
        }
    }
}

/// Codes -127..=127 at the scale of the largest value.
#[inline(always)]
fn group_int8(values: &[f32], codes: &mut [i8; GROUP]) -> u16 {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let scale = bf16::from_f32(largest / 127.0);
    encode(values, codes, scale.to_f32(), 127.0);
    scale.to_bits()
}

/// Codes -8..=7. The scale that loses least is among some below the one at which nothing is cut off; its sign puts the
/// largest value on the side that has one code more.
#[inline(always)]
fn group_int4(values: &[f32], codes: &mut [i8; GROUP]) -> u16 {
    let extreme = values
        .iter()
        .fold(0.0_f32, |most, &value| if value.abs() > most.abs() { value } else { most });
    let mut best = (f32::INFINITY, bf16::ZERO);
    for divisor in [-8.0_f32, -7.5, -7.0, -8.5, -9.0, -9.5] {
        let scale = bf16::from_f32(extreme / divisor);
        let error = encode_error(values, scale.to_f32());
        if error < best.0 {
            best = (error, scale);
        }
    }
    let scale = best.1.to_f32();
    if scale != 0.0 {
        for (code, value) in codes.iter_mut().zip(values) {
            *code = code_of(value / scale, -8.0, 7.0);
        }
    }
    best.1.to_bits()
}

#[inline(always)]
fn encode_error(values: &[f32], scale: f32) -> f32 {
    if scale == 0.0 {
        return 0.0;
    }
    let inverse = 1.0 / scale;
    values
        .iter()
        .map(|value| {
            let code = nearest(value * inverse).clamp(-8.0, 7.0);
            (value - code * scale) * (value - code * scale)
        })
        .sum()
}

#[inline(always)]
fn encode(values: &[f32], codes: &mut [i8; GROUP], scale: f32, most: f32) {
    if scale == 0.0 {
        return;
    }
    for (code, value) in codes.iter_mut().zip(values) {
        *code = code_of(value / scale, -most, most);
    }
}

/// The nearest integer, ties to even, of a value below 2^22. Without SSE 4.1, which not every target has, the standard
/// library calls a function for it.
#[inline(always)]
fn nearest(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

#[inline(always)]
fn code_of(value: f32, least: f32, most: f32) -> i8 {
    #[expect(clippy::cast_possible_truncation, reason = "held to the range of the codes")]
    let code = nearest(value).clamp(least, most) as i8;
    code
}
