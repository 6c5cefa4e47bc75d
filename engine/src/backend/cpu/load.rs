//! Weights as a checkpoint has them become weights as kernels read them.

use super::isa::{Kernel, Lanes};
use super::linear::Machine;
use super::matrix::{Dtype, GROUP, Halves, Line, Matrix, PANEL, Panels, Weights, quantise};
use super::panels::Packing;
use super::rows::bf16_bits;
use crate::Error;
use crate::checkpoint::{Checkpoint, Expected};

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
