//! Linear layers over all threads: `x` is brought into the form that the weights ask for, then outputs are handed out in
//! pieces of neighbouring rows or panels.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::isa::{Isa, Kernel, Lanes};
use super::matrix::{Dtype, GROUP, Halves, Line, Matrix, PANEL, Panels, Weights, quantise};
use super::out::Out;
use super::panels::{self, Codes, Packing};
use super::pool::Pool;
use super::rows::{Rows, bf16_bits};
use crate::Error;
use crate::checkpoint::{Checkpoint, Expected};

/// Bytes of weights that a thread takes at a time: below 256 KiB the memory is read more slowly (measured with two
/// threads: 16 KiB pieces reach 70 % of it), and more would leave the threads unequal at the end.
const PIECE_BYTES: usize = 256 << 10;

/// Threads and instructions: everything a layer needs besides its weights.
pub(super) struct Machine {
    pub(super) pool: Pool,
    pub(super) isa: Isa,
}

/// Rows of activations, [n, width], in every form that some weights ask for.
#[derive(Default)]
pub(super) struct Input {
    width: usize,
    f32: Vec<f32>,
    bf16: Vec<u16>,
    /// The same for tiles, where they are used.
    packed: Vec<u16>,
    codes: Codes,
}

impl Input {
    /// Prepares rows for these matrices.
    pub(super) fn new(machine: &Machine, x: Vec<f32>, width: usize, of: &[&Matrix]) -> Self {
        let n = x.len() / width;
        let wants = |wanted: fn(&Weights) -> bool| of.iter().any(|matrix| wanted(&matrix.weights));
        let mut input = Self { width, ..Self::default() };
        if wants(|weights| matches!(weights, Weights::Bf16(_))) {
            input.bf16 = vec![0; x.len()];
            let mut rows: Vec<_> =
                input.bf16.chunks_exact_mut(width).zip(x.chunks_exact(width)).collect();
            machine.pool.each(&mut rows, |(out, row)| {
                out.iter_mut().zip(row.iter()).for_each(|(out, value)| *out = bf16_bits(*value));
            });
            input.pack(machine);
        }
        if wants(|weights| matches!(weights, Weights::Int8(_) | Weights::Int4(_))) {
            let n_groups = width.div_ceil(GROUP);
            input.codes = Codes {
                codes: vec![[0; GROUP]; n * n_groups],
                scales: vec![0.0; n * n_groups],
                sums: vec![0; n * n_groups],
            };
            let codes = &mut input.codes;
            let mut rows: Vec<_> = x
                .chunks_exact(width)
                .zip(codes.codes.chunks_exact_mut(n_groups))
                .zip(codes.scales.chunks_exact_mut(n_groups))
                .zip(codes.sums.chunks_exact_mut(n_groups))
                .collect();
            machine.pool.each(&mut rows, |(((row, codes), scales), sums)| {
                machine.isa.run(Quantise { row, codes, scales, sums });
            });
        }
        if wants(|weights| matches!(weights, Weights::F32(_))) {
            input.f32 = x;
        }
        input
    }

    /// Packs BF16 for tiles, if they are used.
    fn pack(&mut self, machine: &Machine) {
        #[cfg(target_arch = "x86_64")]
        if machine.isa.has_tiles() && self.width.is_multiple_of(amx::STEP) {
            self.packed = vec![0; self.bf16.len()];
            let block = amx::ROWS * self.width;
            let blocks = self.bf16.chunks(block).zip(self.packed.chunks_mut(block));
            let mut blocks: Vec<_> = blocks.collect();
            machine.pool.each(&mut blocks, |(x, packed)| amx::pack(x, self.width, packed));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = machine;
    }
}

/// [`panels::quantise_row`], compiled for every instruction set.
struct Quantise<'a> {
    row: &'a [f32],
    codes: &'a mut [[i8; GROUP]],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        panels::quantise_row(self.row, self.codes, self.scales, self.sums);
    }
}

/// [`quantise`], compiled for every instruction set.
struct QuantisePanel<'a> {
    rows: &'a [&'a [f32]],
    dtype: Dtype,
    out: &'a mut Panels,
}

impl Kernel for QuantisePanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        quantise(self.rows, self.dtype, self.out);
    }
}

/// One layer of several that share their input.
pub(super) struct Job<'a> {
    pub(super) matrix: &'a Matrix,
    /// [rows, outputs]
    pub(super) out: &'a mut [f32],
    /// Whether results are added to what is in `out`.
    pub(super) adds: bool,
}

/// Computes several layers of one input.
pub(super) fn linear(machine: &Machine, input: &Input, jobs: &mut [Job<'_>]) {
    let parts: Vec<(&Matrix, Out<'_>, bool)> = jobs
        .iter_mut()
        .map(|job| (job.matrix, Out::new(job.out, job.matrix.outputs), job.adds))
        .collect();
    let mut pieces = Vec::new();
    for (at, (matrix, _, _)) in parts.iter().enumerate() {
        pieces.extend(matrix.pieces().into_iter().map(|columns| (at, columns)));
    }
    machine.pool.run(pieces.len(), &|piece| {
        let (at, columns) = pieces[piece].clone();
        let (matrix, out, adds) = parts[at];
        // SAFETY: the pieces of a matrix are different columns, and each matrix has its own table.
        unsafe { matrix.compute(machine.isa, input, columns, out, adds) };
    });
}

/// `silu(gate) * up` of one input, [rows, outputs].
pub(super) fn gated(
    machine: &Machine,
    input: &Input,
    gate: &Matrix,
    up: &Matrix,
    n_rows: usize,
) -> Vec<f32> {
    let n = gate.outputs;
    let (mut gates, mut ups) = (vec![0.0; n_rows * n], vec![0.0; n_rows * n]);
    let pieces = gate.pieces();
    let (out, other) = (Out::new(&mut gates, n), Out::new(&mut ups, n));
    machine.pool.run(pieces.len(), &|piece| {
        let columns = pieces[piece].clone();
        // SAFETY: the pieces are different columns, and the two tables are each other's strangers.
        unsafe {
            gate.compute(machine.isa, input, columns.clone(), out, false);
            up.compute(machine.isa, input, columns.clone(), other, false);
            for row in 0..n_rows {
                let gates = out.part(row, columns.clone());
                machine.isa.run(SiluTimes { gates, ups: other.part(row, columns.clone()) });
            }
        }
    });
    gates
}

struct SiluTimes<'a> {
    gates: &'a mut [f32],
    ups: &'a mut [f32],
}

impl Kernel for SiluTimes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        super::ops::silu_times::<L>(self.gates, self.ups);
    }
}

impl Matrix {
    /// Reads a linear layer of a checkpoint.
    ///
    /// # Errors
    /// Names the tensor's value that is not finite.
    pub(super) fn load(
        machine: &Machine,
        checkpoint: &Checkpoint,
        tensor: &Expected,
        dtype: Dtype,
    ) -> Result<Self, Error> {
        let &[outputs, inputs] = tensor.dimensions.as_slice() else {
            unreachable!("a linear layer has two dimensions");
        };
        if dtype == Dtype::Bf16
            && let Some((map, start)) = checkpoint.mapped_bf16(tensor)?
            && let Some(values) = Halves::mapped(map, start, outputs * inputs)
        {
            return Ok(Self { outputs, inputs, weights: Weights::Bf16(values) });
        }
        let weights = match dtype {
            Dtype::F32 => Weights::F32(checkpoint.values(tensor)?),
            Dtype::Bf16 => {
                let values = checkpoint.values(tensor)?;
                Weights::Bf16(Halves::Owned(values.into_iter().map(bf16_bits).collect()))
            }
            Dtype::Int8 => Weights::Int8(panels_of(machine, checkpoint, tensor, dtype)?),
            Dtype::Int4 => Weights::Int4(panels_of(machine, checkpoint, tensor, dtype)?),
        };
        Ok(Self { outputs, inputs, weights })
    }

    /// Columns that a thread computes at a time.
    fn pieces(&self) -> Vec<Range<usize>> {
        let bytes = self.bytes() / self.outputs.max(1);
        // Whole panels, and a multiple of the tiles' widths.
        let n = (PIECE_BYTES / bytes.max(1)).clamp(1, self.outputs.max(1)).next_multiple_of(48);
        (0..self.outputs).step_by(n).map(|from| from..(from + n).min(self.outputs)).collect()
    }

    /// # Safety
    /// Nobody else holds these columns of `out`.
    unsafe fn compute(
        &self,
        isa: Isa,
        input: &Input,
        columns: Range<usize>,
        out: Out<'_>,
        adds: bool,
    ) {
        debug_assert_eq!(input.width, self.inputs);
        // SAFETY: the caller's promise; panels hold the columns of their piece only, as pieces are whole panels.
        unsafe {
            match &self.weights {
                Weights::F32(weights) => {
                    let rows =
                        Rows { weights: weights.as_slice(), x: &input.f32, inputs: self.inputs };
                    rows.compute(isa, columns, out, adds);
                }
                #[cfg(target_arch = "x86_64")]
                Weights::Bf16(weights) if !input.packed.is_empty() => {
                    let (weights, x) = (weights.values(), &input.packed);
                    let packed = amx::Packed { weights, x, inputs: self.inputs };
                    amx::bf16(packed, columns, out, adds);
                }
                Weights::Bf16(weights) => {
                    let rows =
                        Rows { weights: weights.values(), x: &input.bf16, inputs: self.inputs };
                    rows.compute(isa, columns, out, adds);
                }
                Weights::Int8(panels) => {
                    self.panels(isa, Packing::Bytes, panels, input, columns, out, adds);
                }
                Weights::Int4(panels) => {
                    self.panels(isa, Packing::Nibbles, panels, input, columns, out, adds);
                }
            }
        }
    }

    /// # Safety
    /// Nobody else holds these columns of `out`.
    #[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
    unsafe fn panels(
        &self,
        isa: Isa,
        packing: Packing,
        panels: &Panels,
        input: &Input,
        columns: Range<usize>,
        out: Out<'_>,
        adds: bool,
    ) {
        let range = columns.start / PANEL..columns.end.div_ceil(PANEL);
        let (n_groups, n) = (self.n_groups(), self.outputs);
        // SAFETY: the caller's promise.
        unsafe {
            panels::compute(isa, packing, panels, &input.codes, n_groups, range, out, n, adds);
        }
    }
}

/// Quantises a tensor, some panels on each thread, without ever holding all of it as f32.
fn panels_of(
    machine: &Machine,
    checkpoint: &Checkpoint,
    tensor: &Expected,
    dtype: Dtype,
) -> Result<Panels, Error> {
    let (outputs, inputs) = (tensor.dimensions[0], tensor.dimensions[1]);
    let packing = if dtype == Dtype::Int4 { Packing::Nibbles } else { Packing::Bytes };
    let n_groups = inputs.div_ceil(GROUP);
    let n_panels = outputs.div_ceil(PANEL);
    let mut whole = Panels {
        scales: vec![[0; PANEL]; n_panels * n_groups],
        codes: vec![Line([0; 64]); n_panels * n_groups * packing.n_lines()],
    };
    let mut parts: Vec<_> = whole
        .scales
        .chunks_exact_mut(n_groups)
        .zip(whole.codes.chunks_exact_mut(n_groups * packing.n_lines()))
        .enumerate()
        .map(|(panel, (scales, codes))| (panel, scales, codes, Ok(())))
        .collect();
    machine.pool.each(&mut parts, |(panel, scales, codes, result)| {
        let rows = *panel * PANEL..((*panel + 1) * PANEL).min(outputs);
        match checkpoint.rows(tensor, rows) {
            Ok(values) => {
                let rows: Vec<&[f32]> = values.chunks_exact(inputs).collect();
                let mut out = Panels { scales: Vec::new(), codes: Vec::new() };
                machine.isa.run(QuantisePanel { rows: &rows, dtype, out: &mut out });
                scales.copy_from_slice(&out.scales);
                codes.copy_from_slice(&out.codes);
            }
            Err(error) => *result = Err(error),
        }
    });
    parts.into_iter().try_for_each(|(_, _, _, result)| result)?;
    Ok(whole)
}

#[cfg(test)]
mod tests;
