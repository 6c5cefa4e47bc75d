//! Linear layers over all threads: `x` is brought into the form that the weights ask for, then outputs are handed out in
//! pieces of neighbouring rows or panels.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::codes::Codes;
use super::isa::{Isa, Kernel, Lanes};
use super::matrix::{Matrix, PANEL, Panels, Weights};
use super::out::Out;
use super::panels::{self, Packing};
use super::pool::Pool;
use super::rows::{Rows, bf16_bits};
use super::scratch::{Bits, Scratch, Table};
use crate::Error;

/// Bytes of weights that a thread takes at a time: below 256 KiB the memory is read more slowly (measured with two
/// threads: 16 KiB pieces reach 70 % of it), and more would leave the threads unequal at the end.
const PIECE_BYTES: usize = 256 << 10;
/// Rows from which on the pieces may be larger.
const MANY_ROWS: usize = 32;
/// Outputs of the largest pieces: as many as BF16 tiles are copied of at a time.
const WIDEST: usize = 256;

/// Threads, instructions and working memory: everything a layer needs besides its weights.
pub(super) struct Machine {
    pub(super) pool: Pool,
    pub(super) isa: Isa,
    scratch: Scratch,
}

impl Machine {
    /// Threads that compute with these instructions, if the processor has them, or else with the best that it has.
    pub(super) fn new(n_threads: usize, isa: Isa) -> Result<Self, Error> {
        let pool = Pool::new(n_threads).map_err(|source| Error::Threads { n_threads, source })?;
        // An instruction set is used only where it was found, whoever named it.
        let found = Isa::available().into_iter().find(|found| *found == isa);
        let isa = found.unwrap_or_else(Isa::detect);
        Ok(Self { pool, isa, scratch: Scratch::default() })
    }

    /// A table of `n` values, which are left over from others.
    pub(super) fn table<T: Bits>(&self, n: usize) -> Table<'_, T> {
        self.scratch.table(n)
    }
}

/// Rows of activations, [n, width], in every form that some weights ask for.
pub(super) struct Input<'a> {
    width: usize,
    f32: &'a [f32],
    /// As they are, or packed for tiles where these are used.
    bf16: Table<'a, u16>,
    codes: Codes<'a>,
}

impl<'a> Input<'a> {
    /// Prepares rows for these matrices.
    pub(super) fn new(machine: &'a Machine, x: &'a [f32], width: usize, of: &[&Matrix]) -> Self {
        let wants = |wanted: fn(&Weights) -> bool| of.iter().any(|matrix| wanted(&matrix.weights));
        let has_bf16 = wants(|weights| matches!(weights, Weights::Bf16(_)));
        let has_codes = wants(|weights| matches!(weights, Weights::Int8(_) | Weights::Int4(_)));
        let mut input = Self {
            width,
            f32: x,
            bf16: machine.table(if has_bf16 { x.len() } else { 0 }),
            codes: Codes::new(machine, if has_codes { x } else { &[] }, width),
        };
        input.round(machine);
        input
    }

    /// Fills the table of BF16, if it is wanted.
    fn round(&mut self, machine: &Machine) {
        let (x, width) = (self.f32, self.width);
        #[cfg(target_arch = "x86_64")]
        if is_packed(machine.isa, width) {
            let block = amx::ROWS * width;
            let mut blocks: Vec<_> = x.chunks(block).zip(self.bf16.chunks_mut(block)).collect();
            // SAFETY: there are tiles; blocks have up to 16 rows.
            machine.pool.each(&mut blocks, |(x, packed)| unsafe {
                amx::bf16::pack(x, width, packed);
            });
            return;
        }
        let mut rows: Vec<_> =
            self.bf16.chunks_exact_mut(width).zip(x.chunks_exact(width)).collect();
        machine.pool.each(&mut rows, |(out, row)| {
            out.iter_mut().zip(row.iter()).for_each(|(out, value)| *out = bf16_bits(*value));
        });
    }
}

/// Whether BF16 rows of this width are packed for tiles.
#[cfg(target_arch = "x86_64")]
fn is_packed(isa: Isa, width: usize) -> bool {
    isa.has_tiles() && width.is_multiple_of(amx::STEP)
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
pub(super) fn linear(machine: &Machine, input: &Input<'_>, jobs: &mut [Job<'_>]) {
    let parts: Vec<(&Matrix, Out<'_>, bool)> = jobs
        .iter_mut()
        .map(|job| (job.matrix, Out::new(job.out, job.matrix.outputs), job.adds))
        .collect();
    let mut pieces = Vec::new();
    for (at, (matrix, _, _)) in parts.iter().enumerate() {
        let n_rows = input.f32.len() / input.width;
        pieces.extend(matrix.pieces(machine, n_rows).into_iter().map(|columns| (at, columns)));
    }
    machine.pool.run(pieces.len(), &|piece| {
        let (at, columns) = pieces[piece].clone();
        let (matrix, out, adds) = parts[at];
        // SAFETY: the pieces of a matrix are different columns, and each matrix has its own table.
        unsafe { matrix.compute(machine.isa, input, columns, out, adds) };
    });
}

/// `silu(gate) * up` of one input, [rows, outputs].
pub(super) fn gated<'m>(
    machine: &'m Machine,
    input: &Input<'_>,
    gate: &Matrix,
    up: &Matrix,
    n_rows: usize,
) -> Table<'m, f32> {
    let n = gate.outputs;
    let (mut gates, mut ups) = (machine.table(n_rows * n), machine.table(n_rows * n));
    let pieces = gate.pieces(machine, n_rows);
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
    /// Columns that a thread computes at a time.
    fn pieces(&self, machine: &Machine, n_rows: usize) -> Vec<Range<usize>> {
        let bytes = self.bytes() / self.outputs.max(1);
        let least = (PIECE_BYTES / bytes.max(1)).clamp(1, self.outputs.max(1));
        // With many rows, what is read of them for each piece counts, and every thread still gets some pieces.
        let most = self.outputs / (4 * machine.pool.n_threads());
        let n = if n_rows > MANY_ROWS { least.max(most.min(WIDEST)) } else { least };
        // Whole panels, and a multiple of the tiles' widths.
        let n = n.next_multiple_of(64);
        (0..self.outputs).step_by(n).map(|from| from..(from + n).min(self.outputs)).collect()
    }

    /// # Safety
    /// Nobody else holds these columns of `out`.
    unsafe fn compute(
        &self,
        isa: Isa,
        input: &Input<'_>,
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
                        Rows { weights: weights.as_slice(), x: input.f32, inputs: self.inputs };
                    rows.compute(isa, columns, out, adds);
                }
                #[cfg(target_arch = "x86_64")]
                Weights::Bf16(weights) if is_packed(isa, self.inputs) => {
                    let (weights, x) = (&weights[..], &*input.bf16);
                    let packed = amx::bf16::Packed { weights, x, inputs: self.inputs };
                    amx::bf16::compute(packed, columns, out, adds);
                }
                Weights::Bf16(weights) => {
                    let rows = Rows { weights: &weights[..], x: &input.bf16, inputs: self.inputs };
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
        input: &Input<'_>,
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

#[cfg(test)]
mod tests;
