//! The forward pass on a CPU: x86-64 with AVX-512 or AVX2, and a portable path for every other processor.
//!
//! A batch is rows of tokens of any sequences: weights are read once for all of them, what mixes tokens is done sequence by
//! sequence. A row's result is the same in every batch, bit for bit.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod codes;
mod delta;
mod isa;
mod layers;
mod linear;
mod load;
mod matrix;
#[cfg(test)]
mod noise;
mod ops;
mod out;
mod panels;
mod pool;
mod quantise;
mod rows;
mod scratch;
mod sequence;
mod stages;
mod values;

use std::path::Path;
use std::time::Duration;

use crate::checkpoint::{Checkpoint, expected};
use crate::{Error, Shape};
pub use isa::Isa;
use layers::{Batch, Layer};
use linear::{Input, Job, Machine, linear};
use load::Loader;
pub(crate) use load::Quantiser;
pub(crate) use matrix::PANEL;
pub use matrix::{Dtype, GROUP, Matrix, UnknownDtype};
pub use pool::Pool;
pub(crate) use sequence::state_bytes_of;
pub use sequence::{Sequence, Snapshot};
use stages::Clock;
pub use stages::Stage;

/// How a model is loaded and run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How weights are kept. None is as a quantised folder has them, and BF16 for any other.
    pub dtype: Option<Dtype>,
    /// Threads that compute, at least one.
    pub n_threads: usize,
    /// The instructions to use; [`Isa::detect`] finds the best.
    pub isa: Isa,
}

/// A loaded model.
pub struct Model {
    shape: Shape,
    dtype: Dtype,
    machine: Machine,
    clock: Clock,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// None if it is the embedding.
    head: Option<Matrix>,
}

/// Some tokens to append to a sequence.
pub struct Step<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// The tokens; none leave the sequence as it is.
    pub ids: &'a [u32],
    /// After which of them the logits are wanted.
    pub logits: Wanted,
}

/// Which logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// None: more of the prompt follows.
    None,
    /// After the last token.
    Last,
    /// After every token.
    All,
}

/// A token that the model does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot use token {id}: the model has {vocab}")]
pub struct UnknownToken {
    /// The token.
    pub id: u32,
    /// Rows of the embedding.
    pub vocab: usize,
}

impl Model {
    /// Loads a model's folder.
    ///
    /// # Errors
    /// Names the file, and the key or tensor, that is not in order.
    pub fn load(folder: &Path, options: &Options) -> Result<Self, Error> {
        let shape = Shape::read(folder)?;
        let checkpoint = Checkpoint::open(folder, &shape)?;
        Self::take(shape, &checkpoint, options)
    }

    fn take(shape: Shape, checkpoint: &Checkpoint, options: &Options) -> Result<Self, Error> {
        let dtype = checkpoint.dtype(options.dtype)?;
        let machine = Machine::new(options.n_threads, options.isa)?;
        let rest = expected(&shape).into_iter();
        let load = &mut Loader { machine: &machine, checkpoint, dtype, rest };
        let embedding = load.matrix()?;
        let layers = shape.layers.iter().map(|mixer| Layer::load(load, &shape, *mixer));
        let layers = layers.collect::<Result<_, _>>()?;
        let norm = load.norm()?;
        let head = if shape.is_tied { None } else { Some(load.matrix()?) };
        Ok(Self { dtype, embedding, layers, norm, head, shape, machine, clock: Clock::default() })
    }

    /// The sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of the large weights, as they are kept.
    pub fn weight_bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(Layer::bytes).sum();
        layers + self.embedding.bytes() + self.head.as_ref().map_or(0, Matrix::bytes)
    }

    /// Bytes of the large weights that each token reads: an embedding that is not the head counts for nothing, because a
    /// token is one row of it.
    pub fn bytes_of_token(&self) -> usize {
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        self.layers.iter().map(Layer::bytes).sum::<usize>() + head.bytes()
    }

    /// Bytes of the large weights that a stage reads in a forward pass, each once.
    pub fn bytes_of_stage(&self, stage: Stage) -> usize {
        let of_layers = |bytes: fn(&Layer) -> usize| self.layers.iter().map(bytes).sum();
        match stage {
            Stage::Projections => of_layers(Layer::projection_bytes),
            Stage::Mlp => of_layers(Layer::mlp_bytes),
            Stage::Head => self.head.as_ref().unwrap_or(&self.embedding).bytes(),
            Stage::Delta | Stage::Attention | Stage::Norms => 0,
        }
    }

    /// How long each stage takes in all forward passes of some work, which must not do this itself.
    pub fn time_stages(&self, work: impl FnOnce()) -> [(Stage, Duration); Stage::ALL.len()] {
        let times = self.clock.during(work);
        std::array::from_fn(|at| (Stage::ALL[at], times[at]))
    }

    /// A sequence without tokens.
    pub fn sequence(&self) -> Sequence {
        Sequence::new(&self.shape, self.dtype)
    }

    /// Appends tokens to sequences, all in one batch. Returns the logits that are wanted, [rows, vocab], in the order of the
    /// steps.
    ///
    /// # Errors
    /// A token is unknown; the sequences are as before.
    pub fn forward(&self, steps: &mut [Step<'_>]) -> Result<Vec<f32>, UnknownToken> {
        let hidden = self.shape.hidden;
        let mut x = Vec::new();
        for &id in steps.iter().flat_map(|step| step.ids) {
            let unknown = UnknownToken { id, vocab: self.shape.vocab };
            let at = usize::try_from(id).ok().filter(|at| *at < self.shape.vocab).ok_or(unknown)?;
            let from = x.len();
            x.resize(from + hidden, 0.0);
            self.embedding.row(at, &mut x[from..]);
        }
        if x.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = Batch::new(&self.shape, &self.machine, &self.clock, steps);
        for (at, layer) in self.layers.iter().enumerate() {
            layer.forward(&mut batch, at, &mut x);
        }
        drop(batch);
        let rows = wanted(steps, &x, hidden);
        for step in steps {
            step.sequence.n_tokens += step.ids.len();
        }
        Ok(self.clock.time(Stage::Head, || self.logits(&rows)))
    }

    fn logits(&self, rows: &[f32]) -> Vec<f32> {
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let mut logits = vec![0.0; rows.len() / self.shape.hidden * self.shape.vocab];
        if logits.is_empty() {
            return logits;
        }
        let h = ops::norm_rows(&self.machine, rows, &self.norm, self.shape.norm_eps);
        let input = Input::new(&self.machine, &h, self.shape.hidden, &[head]);
        let job = Job { matrix: head, out: &mut logits, adds: false };
        linear(&self.machine, &input, &mut [job]);
        logits
    }
}

/// The rows after which logits are wanted.
fn wanted(steps: &[Step<'_>], x: &[f32], hidden: usize) -> Vec<f32> {
    let (mut rows, mut first) = (Vec::new(), 0);
    for step in steps {
        let end = first + step.ids.len();
        let from = match step.logits {
            Wanted::None => end,
            Wanted::Last => end.saturating_sub(1).max(first),
            Wanted::All => first,
        };
        rows.extend_from_slice(&x[from * hidden..end * hidden]);
        first = end;
    }
    rows
}
