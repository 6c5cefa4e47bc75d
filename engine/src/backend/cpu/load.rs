//! Weights as a checkpoint has them become weights as kernels read them.
//!
//! What can be read where it lies stays there. Of everything else some megabytes at a time are converted and then given
//! back, so that loading needs the weights' memory and little more.

use std::ops::Range;

use super::isa::Isa;
use super::linear::Machine;
use super::matrix::{Dtype, GROUP, Line, Matrix, PANEL, Panels, Weights};
use super::panels::Packing;
use super::quantise::QuantisePanel;
use super::rows::bf16_bits;
use super::values::Values;
use crate::Error;
use crate::checkpoint::{Checkpoint, Expected};

/// Bytes of f32 values that are converted before what they were read from is given back: much more than a page, and
/// little beside the weights.
const BLOCK_BYTES: usize = 32 << 20;

/// Gives the tensors of a shape in their order.
pub(super) struct Loader<'a> {
    pub(super) machine: &'a Machine,
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) dtype: Dtype,
    pub(super) rest: std::vec::IntoIter<Expected>,
}

impl Loader<'_> {
    fn next(&mut self) -> Expected {
        self.rest.next().expect("a model takes the tensors that its shape expects")
    }

    /// The next tensor, a linear layer or a table.
    ///
    /// # Errors
    /// Names the tensor's value that is not finite.
    pub(super) fn matrix(&mut self) -> Result<Matrix, Error> {
        let tensor = &self.next();
        let (outputs, inputs) = sizes(tensor);
        let weights = match self.dtype.of(tensor.role) {
            Dtype::F32 => Weights::F32(self.converted(tensor, |value| value)?),
            Dtype::Bf16 => Weights::Bf16(self.halves(tensor)?),
            Dtype::Int8 => Weights::Int8(self.panels(tensor, Packing::Bytes)?),
            Dtype::Int4 => Weights::Int4(self.panels(tensor, Packing::Nibbles)?),
        };
        Ok(Matrix { outputs, inputs, weights })
    }

    /// The next tensor, a small one.
    ///
    /// # Errors
    /// As for a matrix.
    pub(super) fn values(&mut self) -> Result<Vec<f32>, Error> {
        let tensor = &self.next();
        self.checkpoint.values(tensor)
    }

    /// The weights of a norm whose factor is one more than them.
    ///
    /// # Errors
    /// As for a matrix.
    pub(super) fn norm(&mut self) -> Result<Vec<f32>, Error> {
        Ok(self.values()?.into_iter().map(|weight| 1.0 + weight).collect())
    }

    fn halves(&self, tensor: &Expected) -> Result<Values<u16>, Error> {
        // Where all else is quantised at load, the little that is not is no reason to keep the file open.
        let stays_open = self.dtype == Dtype::Bf16 || self.checkpoint.quantised().is_some();
        if stays_open && let Some(bytes) = self.checkpoint.mapped_bf16(tensor)? {
            return Ok(Values::mapped(&bytes));
        }
        self.converted(tensor, bf16_bits).map(Values::from)
    }

    fn converted<T>(&self, tensor: &Expected, convert: fn(f32) -> T) -> Result<Vec<T>, Error> {
        let (outputs, inputs) = sizes(tensor);
        let mut all = Vec::with_capacity(outputs * inputs);
        for rows in blocks(outputs, inputs * 4) {
            all.extend(self.checkpoint.rows(tensor, rows.clone())?.into_iter().map(convert));
            self.checkpoint.release(tensor, &rows)?;
        }
        Ok(all)
    }

    fn panels(&self, tensor: &Expected, packing: Packing) -> Result<Panels, Error> {
        if let Some(parts) = self.checkpoint.parts(tensor)? {
            let (scales, codes) = (Values::mapped(&parts.scales), Values::mapped(&parts.codes));
            return Ok(Panels { scales, codes });
        }
        let source = Source::new(self.machine, self.checkpoint, tensor, packing);
        let n_groups = source.n_panels * source.n_groups;
        let mut scales = vec![[0; PANEL]; n_groups];
        let mut codes = vec![Line([0; 64]); n_groups * packing.n_lines()];
        for panels in source.blocks() {
            let groups = panels.start * source.n_groups..panels.end * source.n_groups;
            let lines = groups.start * packing.n_lines()..groups.end * packing.n_lines();
            source.quantise(panels, &mut scales[groups], &mut codes[lines])?;
        }
        Ok(Panels { scales: scales.into(), codes: codes.into() })
    }
}

/// Takes codes and their scales.
pub(crate) type Take<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), Error> + 'a;

/// Quantises tensors for a file.
pub(crate) struct Quantiser {
    machine: Machine,
}

impl Quantiser {
    /// # Errors
    /// The system starts no more threads.
    pub(crate) fn new(n_threads: usize) -> Result<Self, Error> {
        Machine::new(n_threads, Isa::detect()).map(|machine| Self { machine })
    }

    /// Hands the codes and the scales of a tensor to `take`, as they lie in a file, some megabytes at a time.
    ///
    /// # Errors
    /// A value is not finite, or `take` has failed.
    pub(crate) fn quantise(
        &self,
        checkpoint: &Checkpoint,
        tensor: &Expected,
        dtype: Dtype,
        take: &mut Take<'_>,
    ) -> Result<(), Error> {
        let packing = match dtype {
            Dtype::Int4 => Packing::Nibbles,
            Dtype::Int8 | Dtype::Bf16 | Dtype::F32 => Packing::Bytes,
        };
        let source = Source::new(&self.machine, checkpoint, tensor, packing);
        let (mut scales, mut codes) = (Vec::new(), Vec::new());
        for panels in source.blocks() {
            let n_groups = panels.len() * source.n_groups;
            scales.resize(n_groups, [0; PANEL]);
            codes.resize(n_groups * packing.n_lines(), Line([0; 64]));
            source.quantise(panels, &mut scales, &mut codes)?;
            let scales: Vec<u8> =
                scales.iter().flatten().flat_map(|bits| bits.to_le_bytes()).collect();
            take(Line::bytes(&codes), &scales)?;
        }
        Ok(())
    }
}

/// A tensor that is quantised.
struct Source<'a> {
    machine: &'a Machine,
    checkpoint: &'a Checkpoint,
    tensor: &'a Expected,
    packing: Packing,
    outputs: usize,
    inputs: usize,
    n_panels: usize,
    n_groups: usize,
}

impl<'a> Source<'a> {
    fn new(
        machine: &'a Machine,
        checkpoint: &'a Checkpoint,
        tensor: &'a Expected,
        packing: Packing,
    ) -> Self {
        let (outputs, inputs) = sizes(tensor);
        let (n_panels, n_groups) = (outputs.div_ceil(PANEL), inputs.div_ceil(GROUP));
        Self { machine, checkpoint, tensor, packing, outputs, inputs, n_panels, n_groups }
    }

    /// All panels, some at a time.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        blocks(self.n_panels, PANEL * self.inputs * 4)
    }

    /// Quantises some panels on all threads, and gives back the memory of what they were read from. `scales` and `codes` are
    /// those of these panels.
    fn quantise(
        &self,
        panels: Range<usize>,
        scales: &mut [[u16; PANEL]],
        codes: &mut [Line],
    ) -> Result<(), Error> {
        let rows = |first: usize, end: usize| first * PANEL..(end * PANEL).min(self.outputs);
        let mut parts: Vec<_> = scales
            .chunks_exact_mut(self.n_groups)
            .zip(codes.chunks_exact_mut(self.n_groups * self.packing.n_lines()))
            .zip(panels.clone())
            .map(|((scales, codes), panel)| (panel, scales, codes, Ok(())))
            .collect();
        self.machine.pool.each(&mut parts, |(panel, scales, codes, result)| {
            match self.checkpoint.rows(self.tensor, rows(*panel, *panel + 1)) {
                Ok(values) => self.machine.isa.run(QuantisePanel {
                    values: &values,
                    inputs: self.inputs,
                    packing: self.packing,
                    scales,
                    codes,
                }),
                Err(error) => *result = Err(error),
            }
        });
        parts.into_iter().try_for_each(|(_, _, _, result)| result)?;
        self.checkpoint.release(self.tensor, &rows(panels.start, panels.end))
    }
}

/// Outputs and inputs.
fn sizes(tensor: &Expected) -> (usize, usize) {
    let &[outputs, inputs] = tensor.dimensions.as_slice() else {
        unreachable!("a linear layer has two dimensions");
    };
    (outputs, inputs)
}

/// Cuts `n` things of some bytes each into blocks.
fn blocks(n: usize, bytes_each: usize) -> impl Iterator<Item = Range<usize>> {
    let size = (BLOCK_BYTES / bytes_each.max(1)).max(1);
    (0..n).step_by(size).map(move |from| from..(from + size).min(n))
}

#[cfg(test)]
mod tests;
