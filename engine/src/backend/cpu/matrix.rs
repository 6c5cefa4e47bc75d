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

use half::bf16;

use super::scratch::Bits;
use super::values::{Plain, Values};
use crate::checkpoint::Role;

/// Inputs that share a scale: a group of codes is 16 steps of `vpdpbusd`, or one AMX tile.
pub const GROUP: usize = 64;
/// Outputs of a panel: the lanes of a register.
pub(crate) const PANEL: usize = 16;

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
    /// As options and people name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// The form of a tensor in a model that is kept like this.
    pub fn of(self, role: Role) -> Self {
        match (role, self) {
            // 4 bits cost the most quality here.
            (Role::Table, Self::Int4) => Self::Int8,
            // These weigh nothing and steer the recurrence.
            (Role::Gate, Self::Int8 | Self::Int4) => Self::Bf16,
            (Role::Small, Self::F32 | Self::Bf16 | Self::Int8 | Self::Int4) => Self::F32,
            (Role::Table | Role::Linear | Role::Gate, dtype) => dtype,
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
    Bf16(Values<u16>),
    Int8(Panels),
    Int4(Panels),
}

/// Quantised weights.
pub(super) struct Panels {
    /// BF16 bits, [panels, groups, 16].
    pub(super) scales: Values<[u16; PANEL]>,
    /// [panels, groups, group bytes / 64] lines of 64 bytes.
    pub(super) codes: Values<Line>,
}

/// A line of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

impl Line {
    /// The bytes of lines.
    pub(super) fn bytes(lines: &[Self]) -> &[u8] {
        // SAFETY: a line is 64 bytes without a gap.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
    }
}

// SAFETY: any bytes are a line.
unsafe impl Bits for Line {}

impl Plain for Line {
    fn read(bytes: &[u8]) -> Self {
        Self(std::array::from_fn(|at| bytes[at]))
    }
}

impl Matrix {
    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        match &self.weights {
            Weights::F32(values) => values.len() * 4,
            Weights::Bf16(values) => values.len() * 2,
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
                let row = &values[at * self.inputs..(at + 1) * self.inputs];
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
