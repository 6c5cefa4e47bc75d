//! The forward pass in plain f32, correct on every processor and fast on none: what every other backend is compared with.

mod attention;
mod delta;
mod ops;

use std::path::Path;

use crate::checkpoint::{Checkpoint, Expected, expected};
use crate::{Error, Mixer, Shape};
use attention::{Attention, Cache};
use delta::{Delta, Memory};
use ops::{linear, norm, silu};

/// A model with all weights in f32.
pub struct Model {
    shape: Shape,
    embedding: Vec<f32>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Option<Vec<f32>>,
}

struct Layer {
    before: Vec<f32>,
    mixer: Weights,
    after: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
}

enum Weights {
    Attention(Attention),
    Delta(Delta),
}

/// What a sequence has left in a model: keys and values, and the recurrent states. A copy is a snapshot.
#[derive(Debug, Clone)]
pub struct Sequence {
    n_tokens: usize,
    layers: Vec<LayerState>,
}

#[derive(Debug, Clone)]
enum LayerState {
    Attention(Cache),
    Delta(Memory),
}

impl Sequence {
    /// Tokens that it holds.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// The recurrent state of a Gated DeltaNet layer, [value heads, key width, value width]; none for other layers.
    pub fn recurrent_state(&self, layer: usize) -> Option<&[f32]> {
        match self.layers.get(layer)? {
            LayerState::Delta(memory) => Some(&memory.state),
            LayerState::Attention(_) => None,
        }
    }

    /// The keys and values of an attention layer, each [tokens, kv heads, head]; none for other layers.
    pub fn keys_and_values(&self, layer: usize) -> Option<(&[f32], &[f32])> {
        match self.layers.get(layer)? {
            LayerState::Attention(cache) => Some((&cache.keys, &cache.values)),
            LayerState::Delta(_) => None,
        }
    }
}

/// Gives the tensors of a shape in their order.
struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    rest: std::vec::IntoIter<Expected>,
}

impl Loader<'_> {
    fn next(&mut self) -> Result<Vec<f32>, Error> {
        let tensor = self.rest.next().expect("a model takes the tensors that its shape expects");
        self.checkpoint.values(&tensor)
    }
}

trait Load: Sized {
    fn load(load: &mut Loader<'_>) -> Result<Self, Error>;
}

impl Model {
    /// Loads a model's folder.
    ///
    /// # Errors
    /// Names the file, and the key or tensor, that is not in order.
    pub fn load(folder: &Path) -> Result<Self, Error> {
        let shape = Shape::read(folder)?;
        let checkpoint = Checkpoint::open(folder, &shape)?;
        let load = &mut Loader { checkpoint: &checkpoint, rest: expected(&shape).into_iter() };
        let embedding = load.next()?;
        let layers =
            shape.layers.iter().map(|mixer| layer(load, *mixer)).collect::<Result<_, _>>()?;
        let norm = load.next()?;
        let head = if shape.is_tied { None } else { Some(load.next()?) };
        Ok(Self { embedding, layers, norm, head, shape })
    }

    /// The sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// A sequence without tokens.
    pub fn sequence(&self) -> Sequence {
        let layers = self.shape.layers.iter().map(|mixer| match mixer {
            Mixer::Attention => LayerState::Attention(Cache::default()),
            Mixer::Delta => LayerState::Delta(Memory::new(&self.shape.delta)),
        });
        Sequence { n_tokens: 0, layers: layers.collect() }
    }

    /// Appends tokens to a sequence. Returns the logits after each of them, [tokens, vocab]; none if an id is unknown,
    /// and the sequence is as before.
    pub fn forward(&self, sequence: &mut Sequence, ids: &[u32]) -> Option<Vec<f32>> {
        let (hidden, eps) = (self.shape.hidden, self.shape.norm_eps);
        let mut x = Vec::with_capacity(ids.len() * hidden);
        for &id in ids {
            let at = usize::try_from(id).ok().filter(|&id| id < self.shape.vocab)?;
            x.extend_from_slice(&self.embedding[at * hidden..(at + 1) * hidden]);
        }
        for (layer, state) in self.layers.iter().zip(&mut sequence.layers) {
            let h = norm(&x, &layer.before, eps);
            let mixed = match (&layer.mixer, state) {
                (Weights::Attention(weights), LayerState::Attention(cache)) => {
                    weights.forward(&self.shape, cache, &h, sequence.n_tokens)
                }
                (Weights::Delta(weights), LayerState::Delta(memory)) => {
                    weights.forward(&self.shape, memory, &h)
                }
                (Weights::Attention(_) | Weights::Delta(_), _) => {
                    unreachable!("a sequence is made for its model")
                }
            };
            x.iter_mut().zip(mixed).for_each(|(x, mixed)| *x += mixed);
            let h = norm(&x, &layer.after, eps);
            let gate = linear(&h, &layer.gate, hidden);
            let up = linear(&h, &layer.up, hidden);
            let inner: Vec<f32> = gate.iter().zip(up).map(|(gate, up)| silu(*gate) * up).collect();
            let down = linear(&inner, &layer.down, self.shape.intermediate);
            x.iter_mut().zip(down).for_each(|(x, down)| *x += down);
        }
        sequence.n_tokens += ids.len();
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        Some(linear(&norm(&x, &self.norm, eps), head, hidden))
    }
}

fn layer(load: &mut Loader<'_>, mixer: Mixer) -> Result<Layer, Error> {
    Ok(Layer {
        before: load.next()?,
        mixer: match mixer {
            Mixer::Attention => Weights::Attention(Attention::load(load)?),
            Mixer::Delta => Weights::Delta(Delta::load(load)?),
        },
        after: load.next()?,
        gate: load.next()?,
        up: load.next()?,
        down: load.next()?,
    })
}
