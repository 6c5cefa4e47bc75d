//! The layers: what mixes tokens, then SwiGLU, each added to the residual stream.

use super::attention::read::{self, HEADS, Read, n_together};
use super::attention::{Angles, Append, Cache, Norms};
use super::delta::{Rows, Task, Weights, Widths};
use super::linear::{Input, Job, Machine, gated, linear};
use super::load::Loader;
use super::matrix::Matrix;
use super::out::Out;
use super::rows::Element;
use super::scratch::Table;
use super::sequence::Layer as State;
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
    steps: &'b mut [Step<'a>],
    /// Of every row, for the layers with attention.
    angles: Angles,
}

impl<'b, 'a> Batch<'b, 'a> {
    pub(super) fn new(shape: &'b Shape, machine: &'b Machine, steps: &'b mut [Step<'a>]) -> Self {
        let positions = steps.iter().flat_map(|step| {
            let first = step.sequence.n_tokens;
            first..first + step.ids.len()
        });
        let angles = Angles::new(&shape.attention, positions);
        Self { shape, machine, steps, angles }
    }
}

/// The rows of one step.
#[derive(Clone, Copy)]
pub(super) struct Part {
    first_row: usize,
    n_tokens: usize,
    /// Tokens of the sequence before these.
    n_before: usize,
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
        let mixer: Vec<&Matrix> = match &self.mixer {
            Block::Attention(Attention { query, key, value, output, .. }) => {
                vec![query, key, value, output]
            }
            Block::Delta(Delta { mixed, gate, beta, decay, output, .. }) => {
                vec![mixed, gate, beta, decay, output]
            }
        };
        let all = mixer.into_iter().chain([&self.gate, &self.up, &self.down]);
        all.map(Matrix::bytes).sum()
    }

    /// `x` [rows, hidden] is the residual stream.
    pub(super) fn forward(&self, batch: &mut Batch<'_, '_>, at: usize, x: &mut [f32]) {
        let (shape, machine) = (batch.shape, batch.machine);
        let h = ops::norm_rows(machine, x, &self.before, shape.norm_eps);
        match &self.mixer {
            Block::Attention(block) => block.forward(batch, at, &h, x),
            Block::Delta(block) => block.forward(batch, at, &h, x),
        }
        let h = ops::norm_rows(machine, x, &self.after, shape.norm_eps);
        let n_rows = h.len() / shape.hidden;
        let input = Input::new(machine, &h, shape.hidden, &[&self.gate, &self.up]);
        let inner = gated(machine, &input, &self.gate, &self.up, n_rows);
        let input = Input::new(machine, &inner, shape.intermediate, &[&self.down]);
        linear(machine, &input, &mut [Job { matrix: &self.down, out: x, adds: true }]);
    }
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
        let n_rows = h.len() / shape.hidden;
        let all = [&self.mixed, &self.gate, &self.beta, &self.decay];
        let tables = project(machine, h, shape.hidden, all);
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
        machine.pool.each(&mut tasks, |task| unsafe { task.run(machine.isa, out) });
        let input = Input::new(machine, &read, sizes.values(), &[&self.output]);
        linear(machine, &input, &mut [Job { matrix: &self.output, out: x, adds: true }]);
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
        let all = [&self.query, &self.key, &self.value];
        let tables = project(machine, h, shape.hidden, all);
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
        let mixed = if exact.is_empty() {
            self.mix(shape, machine, &rows, &mut caches)
        } else {
            self.mix(shape, machine, &rows, &mut exact)
        };
        let input = Input::new(machine, &mixed, sizes.queries(), &[&self.output]);
        linear(machine, &input, &mut [Job { matrix: &self.output, out: x, adds: true }]);
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
        read(shape, machine, rows, caches, &queries)
    }
}

/// What the projections gave for the rows of a batch.
struct TokenRows<'a> {
    /// Queries with gates, keys, values.
    tables: &'a [Table<'a, f32>; 3],
    parts: &'a [Part],
    angles: &'a Angles,
}

/// Some neighbouring tokens and up to four query heads of one key head.
struct Place {
    step: usize,
    /// Of the first token.
    row: usize,
    n_tokens: usize,
    kv_head: usize,
    /// Of all query heads.
    first_head: usize,
    n_heads: usize,
    /// Tokens that the first one sees.
    n_visible: usize,
}

/// The softmax reads of all rows, gated: [rows, queries].
fn read<'m, E: Element>(
    shape: &Shape,
    machine: &'m Machine,
    rows: &TokenRows<'_>,
    caches: &[&mut [Cache<E>]],
    queries: &[f32],
) -> Table<'m, f32> {
    let sizes = &shape.attention;
    let (head, width, isa) = (sizes.head, sizes.queries(), machine.isa);
    let both = &rows.tables[0];
    let mut mixed = machine.table(queries.len());
    let out = Out::new(&mut mixed, width);
    let places = places(shape, rows.parts, n_together::<E>(isa, head));
    let of = |place: &Place| Read {
        cache: &caches[place.step][place.kv_head],
        queries: &queries[place.row * width..(place.row + place.n_tokens) * width],
        width,
        head,
        first_head: place.first_head,
        n_heads: place.n_heads,
        n_tokens: place.n_tokens,
        n_visible: place.n_visible,
    };
    let finish = |place: &Place, whole: &read::Part| {
        for at in 0..place.n_tokens * place.n_heads {
            let row = place.row + at / place.n_heads;
            let number = place.first_head + at % place.n_heads;
            let gates = &both[(row * sizes.n_heads + number) * 2 * head + head..][..head];
            // SAFETY: every place has its rows and its heads for itself.
            let out = unsafe { out.part(row, number * head..(number + 1) * head) };
            whole.finish(isa, at, gates, out);
        }
    };
    // With few tokens a long context is shared by the threads block by block.
    let n_blocks: usize = places.iter().map(|place| of(place).n_blocks()).sum();
    if places.len() < 8 * machine.pool.n_threads() && n_blocks > places.len() {
        let mut reads = Vec::new();
        for place in &places {
            let read = of(place);
            let part = || read::Part::new(read.n_rows(), head);
            reads.extend((0..read.n_blocks()).map(|block| (read, block, part())));
        }
        machine.pool.each(&mut reads, |(read, block, part)| read.block(isa, *block, part));
        let mut reads = reads.into_iter();
        for place in &places {
            let mut parts = reads.by_ref().take(of(place).n_blocks()).map(|(_, _, part)| part);
            let mut whole = parts.next().expect("a token sees itself");
            parts.for_each(|part| whole.merge(isa, &part));
            finish(place, &whole);
        }
    } else {
        machine.pool.run(places.len(), &|at| finish(&places[at], &of(&places[at]).all(isa)));
    }
    mixed
}

fn places(shape: &Shape, parts: &[Part], n_together: usize) -> Vec<Place> {
    let sizes = &shape.attention;
    let group = sizes.n_heads / sizes.n_kv_heads;
    let mut places = Vec::new();
    for (step, part) in parts.iter().enumerate() {
        // Key head by key head, so that neighbours read the same cache.
        for kv_head in 0..sizes.n_kv_heads {
            for token in (0..part.n_tokens).step_by(n_together) {
                for from in (0..group).step_by(HEADS) {
                    places.push(Place {
                        step,
                        row: part.first_row + token,
                        n_tokens: n_together.min(part.n_tokens - token),
                        kv_head,
                        first_head: kv_head * group + from,
                        n_heads: HEADS.min(group - from),
                        n_visible: part.n_before + token + 1,
                    });
                }
            }
        }
    }
    places
}
