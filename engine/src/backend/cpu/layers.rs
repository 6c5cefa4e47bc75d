//! The layers: what mixes tokens, then SwiGLU, each added to the residual stream.

use super::attention::{Angles, Append, Cache, Norms, Part, Reads};
use super::delta::{Rows, Task, Weights, Widths};
use super::linear::{Input, Job, Machine, gated, linear};
use super::load::Loader;
use super::matrix::Matrix;
use super::out::Out;
use super::rows::Element;
use super::scratch::Table;
use super::sequence::Layer as State;
use super::stages::{Clock, Stage};
use super::{Step, ops};
use crate::{Error, Mixer, Shape};

pub(super) struct Layer {
    before: Vec<f32>,
    mixer: Block,
    after: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

pub(super) enum Block {
    Attention(Attention),
    Delta(Delta),
}

pub(super) struct Attention {
    query: Matrix,
    key: Matrix,
    value: Matrix,
    output: Matrix,
    norms: Norms,
}

pub(super) struct Delta {
    mixed: Matrix,
    gate: Matrix,
    beta: Matrix,
    decay: Matrix,
    output: Matrix,
    small: Weights,
}

/// The tokens of one forward pass.
pub(super) struct Batch<'b, 'a> {
    shape: &'b Shape,
    machine: &'b Machine,
    clock: &'b Clock,
    steps: &'b mut [Step<'a>],
    /// Of every row, for the layers with attention.
    angles: Angles,
}

impl<'b, 'a> Batch<'b, 'a> {
    pub(super) fn new(
        shape: &'b Shape,
        machine: &'b Machine,
        clock: &'b Clock,
        steps: &'b mut [Step<'a>],
    ) -> Self {
        let positions = steps.iter().flat_map(|step| {
            let first = step.sequence.n_tokens;
            first..first + step.ids.len()
        });
        let angles = Angles::new(&shape.attention, positions);
        Self { shape, machine, clock, steps, angles }
    }
}

impl Layer {
    pub(super) fn load(load: &mut Loader<'_>, shape: &Shape, mixer: Mixer) -> Result<Self, Error> {
        let before = load.norm()?;
        let mixer = match mixer {
            Mixer::Attention => Block::Attention(Attention::load(load)?),
            Mixer::Delta => Block::Delta(Delta::load(load, shape)?),
        };
        let after = load.norm()?;
        Ok(Self {
            before,
            mixer,
            after,
            gate: load.matrix()?,
            up: load.matrix()?,
            down: load.matrix()?,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.projection_bytes() + self.mlp_bytes()
    }

    pub(super) fn mlp_bytes(&self) -> usize {
        [&self.gate, &self.up, &self.down].map(Matrix::bytes).iter().sum()
    }

    pub(super) fn projection_bytes(&self) -> usize {
        let mixer: Vec<&Matrix> = match &self.mixer {
            Block::Attention(Attention { query, key, value, output, .. }) => {
                vec![query, key, value, output]
            }
            Block::Delta(Delta { mixed, gate, beta, decay, output, .. }) => {
                vec![mixed, gate, beta, decay, output]
            }
        };
        mixer.into_iter().map(Matrix::bytes).sum()
    }

    /// `x` [rows, hidden] is the residual stream.
    pub(super) fn forward(&self, batch: &mut Batch<'_, '_>, at: usize, x: &mut [f32]) {
        let (shape, machine, clock) = (batch.shape, batch.machine, batch.clock);
        let norm = |x: &[f32], weight: &[f32]| {
            clock.time(Stage::Norms, || ops::norm_rows(machine, x, weight, shape.norm_eps))
        };
        let h = norm(x, &self.before);
        match &self.mixer {
            Block::Attention(block) => block.forward(batch, at, &h, x),
            Block::Delta(block) => block.forward(batch, at, &h, x),
        }
        let h = norm(x, &self.after);
        clock.time(Stage::Mlp, || {
            let n_rows = h.len() / shape.hidden;
            let input = Input::new(machine, &h, shape.hidden, &[&self.gate, &self.up]);
            let inner = gated(machine, &input, &self.gate, &self.up, n_rows);
            add(machine, &inner, shape.intermediate, &self.down, x);
        });
    }
}

/// Adds a projection of rows, `h` [rows, width], to `x`.
fn add(machine: &Machine, h: &[f32], width: usize, matrix: &Matrix, x: &mut [f32]) {
    let input = Input::new(machine, h, width, &[matrix]);
    linear(machine, &input, &mut [Job { matrix, out: x, adds: true }]);
}

/// Several projections of the same rows, `h` [rows, width]: for each matrix [rows, outputs].
fn project<'m, const N: usize>(
    machine: &'m Machine,
    h: &[f32],
    width: usize,
    all: [&Matrix; N],
) -> [Table<'m, f32>; N] {
    let n_rows = h.len() / width;
    let input = Input::new(machine, h, width, &all);
    let mut tables = all.map(|matrix| machine.table(n_rows * matrix.outputs));
    let mut jobs: Vec<Job<'_>> =
        all.iter().zip(&mut tables).map(|(matrix, out)| Job { matrix, out, adds: false }).collect();
    linear(machine, &input, &mut jobs);
    tables
}

impl Delta {
    fn load(load: &mut Loader<'_>, shape: &Shape) -> Result<Self, Error> {
        let (mixed, gate) = (load.matrix()?, load.matrix()?);
        let (beta, decay) = (load.matrix()?, load.matrix()?);
        let small = Weights {
            taps: Widths::new(&shape.delta).taps(&shape.delta, &load.values()?),
            rates: load.values()?.into_iter().map(|log| -log.exp()).collect(),
            bias: load.values()?,
            norm: load.values()?,
        };
        Ok(Self { mixed, gate, beta, decay, output: load.matrix()?, small })
    }

    /// `h` [rows, hidden]; the result is added to `x`.
    fn forward(&self, batch: &mut Batch<'_, '_>, at: usize, h: &[f32], x: &mut [f32]) {
        let (shape, machine, sizes) = (batch.shape, batch.machine, &batch.shape.delta);
        let clock = batch.clock;
        let n_rows = h.len() / shape.hidden;
        let all = [&self.mixed, &self.gate, &self.beta, &self.decay];
        let project = || project(machine, h, shape.hidden, all);
        let tables = clock.time(Stage::Projections, project);
        let [mixed, gates, betas, decays] = &tables;
        let mut read = machine.table(n_rows * sizes.values());
        let out = Out::new(&mut read, sizes.values());
        let mut tasks = Vec::new();
        let mut first_row = 0;
        for step in batch.steps.iter_mut() {
            let end = first_row + step.ids.len();
            let rows = Rows {
                mixed: &mixed[first_row * sizes.channels()..end * sizes.channels()],
                gates: &gates[first_row * sizes.values()..end * sizes.values()],
                betas: &betas[first_row * sizes.n_value_heads..end * sizes.n_value_heads],
                decays: &decays[first_row * sizes.n_value_heads..end * sizes.n_value_heads],
            };
            let State::Delta(memory) = &mut step.sequence.layers[at] else {
                unreachable!("a sequence is made for its model")
            };
            for (number, head) in memory.heads.iter_mut().enumerate() {
                let (weights, eps) = (&self.small, shape.norm_eps);
                tasks.push(Task { sizes, weights, eps, number, head, rows, first_row });
            }
            first_row = end;
        }
        // SAFETY: every task has columns and rows of its own: those of its head and its step.
        let run = |task: &mut Task<'_>| unsafe { task.run(machine.isa, out) };
        clock.time(Stage::Delta, || machine.pool.each(&mut tasks, run));
        let output = || add(machine, &read, sizes.values(), &self.output, x);
        clock.time(Stage::Projections, output);
    }
}

impl Attention {
    fn load(load: &mut Loader<'_>) -> Result<Self, Error> {
        Ok(Self {
            query: load.matrix()?,
            key: load.matrix()?,
            value: load.matrix()?,
            output: load.matrix()?,
            norms: Norms { query: load.norm()?, key: load.norm()? },
        })
    }

    /// `h` [rows, hidden]; the result is added to `x`.
    fn forward(&self, batch: &mut Batch<'_, '_>, at: usize, h: &[f32], x: &mut [f32]) {
        let (shape, machine, sizes) = (batch.shape, batch.machine, &batch.shape.attention);
        let clock = batch.clock;
        let all = [&self.query, &self.key, &self.value];
        let project = || project(machine, h, shape.hidden, all);
        let tables = clock.time(Stage::Projections, project);
        let mut parts = Vec::new();
        let (mut exact, mut caches) = (Vec::new(), Vec::new());
        let mut first_row = 0;
        for step in batch.steps.iter_mut() {
            let n_tokens = step.ids.len();
            parts.push(Part { first_row, n_tokens, n_before: step.sequence.n_tokens });
            first_row += n_tokens;
            match &mut step.sequence.layers[at] {
                State::Exact(heads) => exact.push(heads.as_mut_slice()),
                State::Attention(heads) => caches.push(heads.as_mut_slice()),
                State::Delta(_) => unreachable!("a sequence is made for its model"),
            }
        }
        let rows = TokenRows { tables: &tables, parts: &parts, angles: &batch.angles };
        let mixed = clock.time(Stage::Attention, || {
            if exact.is_empty() {
                self.mix(shape, machine, &rows, &mut caches)
            } else {
                self.mix(shape, machine, &rows, &mut exact)
            }
        });
        let output = || add(machine, &mixed, sizes.queries(), &self.output, x);
        clock.time(Stage::Projections, output);
    }

    /// Appends to the caches of all steps, then reads them; the result is [rows, queries].
    fn mix<'m, E: Element>(
        &self,
        shape: &Shape,
        machine: &'m Machine,
        rows: &TokenRows<'_>,
        caches: &mut [&mut [Cache<E>]],
    ) -> Table<'m, f32> {
        let sizes = &shape.attention;
        let [both, keys, values] = rows.tables;
        let n_rows = both.len() / (2 * sizes.queries());
        let mut queries = machine.table(n_rows * sizes.queries());
        let out = Out::new(&mut queries, sizes.queries());
        let mut appends = Vec::new();
        for (part, heads) in rows.parts.iter().zip(caches.iter_mut()) {
            for (number, cache) in heads.iter_mut().enumerate() {
                appends.push(Append {
                    sizes,
                    norms: &self.norms,
                    eps: shape.norm_eps,
                    number,
                    cache,
                    first_row: part.first_row,
                    n_tokens: part.n_tokens,
                    keys,
                    values,
                    both,
                    angles: rows.angles,
                });
            }
        }
        // SAFETY: every task has the columns of its heads and the rows of its step for itself.
        machine.pool.each(&mut appends, |append| unsafe { append.run(machine.isa, out) });
        drop(appends);
        let reads = Reads { sizes, parts: rows.parts, caches, queries: &queries, both };
        reads.run(machine)
    }
}

/// What the projections gave for the rows of a batch.
struct TokenRows<'a> {
    /// Queries with gates, keys, values.
    tables: &'a [Table<'a, f32>; 3],
    parts: &'a [Part],
    angles: &'a Angles,
}
