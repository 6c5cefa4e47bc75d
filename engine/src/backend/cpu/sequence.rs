//! What a sequence has left in a model: keys and values of every token, and the recurrent states after the last one.
//!
//! Keys and values of earlier tokens stay as they are, states do not: a sequence can go back only to a token at which a
//! [`Snapshot`] of its states was taken.

use super::attention::Cache;
use super::delta::{Memory, Widths};
use super::matrix::Dtype;
use crate::{Mixer, Shape};

/// A sequence of tokens in a model.
#[derive(Debug, Clone)]
pub struct Sequence {
    pub(super) n_tokens: usize,
    pub(super) layers: Vec<Layer>,
}

#[derive(Debug, Clone)]
pub(super) enum Layer {
    /// One cache for each key head, f32 where the weights are.
    Exact(Vec<Cache<f32>>),
    /// One cache for each key head, BF16.
    Attention(Vec<Cache<u16>>),
    Delta(Memory),
}

/// The recurrent states after some token.
#[derive(Debug, Clone)]
pub struct Snapshot {
    n_tokens: usize,
    /// One for each layer that has a state.
    memories: Vec<Memory>,
}

/// Bytes of the states of a sequence of a model, without one at hand: what [`Sequence::state_bytes`] will say. Head widths are
/// padded to whole registers.
pub(crate) fn state_bytes_of(shape: &Shape) -> u64 {
    let sizes = &shape.delta;
    let value = sizes.value_head.next_multiple_of(16);
    let window = (sizes.taps - 1) * sizes.n_key_heads * Widths::new(sizes).channels();
    let state = sizes.n_value_heads * sizes.key_head * value;
    ((window + state) * size_of::<f32>()) as u64 * shape.count(Mixer::Delta) as u64
}

impl Snapshot {
    /// The number of tokens after which it was taken.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Bytes of its states.
    pub fn bytes(&self) -> usize {
        self.memories.iter().map(Memory::bytes).sum()
    }
}

impl Sequence {
    pub(super) fn new(shape: &Shape, dtype: Dtype) -> Self {
        let n_heads = shape.attention.n_kv_heads;
        let layers = shape.layers.iter().map(|mixer| match (mixer, dtype) {
            (Mixer::Delta, _) => Layer::Delta(Memory::new(&shape.delta)),
            (Mixer::Attention, Dtype::F32) => Layer::Exact(vec![Cache::new(); n_heads]),
            (Mixer::Attention, Dtype::Bf16 | Dtype::Int8 | Dtype::Int4) => {
                Layer::Attention(vec![Cache::new(); n_heads])
            }
        });
        Self { n_tokens: 0, layers: layers.collect() }
    }

    /// Tokens that it holds.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Bytes of its keys and values, as allocated.
    pub fn cache_bytes(&self) -> usize {
        let bytes = |layer: &Layer| match layer {
            Layer::Exact(heads) => heads.iter().map(Cache::bytes).sum(),
            Layer::Attention(heads) => heads.iter().map(Cache::bytes).sum(),
            Layer::Delta(_) => 0,
        };
        self.layers.iter().map(bytes).sum()
    }

    /// Bytes of its keys and values alone: what the next token reads.
    pub fn live_cache_bytes(&self) -> usize {
        let bytes = |layer: &Layer| match layer {
            Layer::Exact(heads) => heads.iter().map(Cache::live_bytes).sum(),
            Layer::Attention(heads) => heads.iter().map(Cache::live_bytes).sum(),
            Layer::Delta(_) => 0,
        };
        self.layers.iter().map(bytes).sum()
    }

    /// Bytes of its states, the same for every length.
    pub fn state_bytes(&self) -> usize {
        let bytes = |layer: &Layer| match layer {
            Layer::Delta(memory) => memory.bytes(),
            Layer::Exact(_) | Layer::Attention(_) => 0,
        };
        self.layers.iter().map(bytes).sum()
    }

    /// Another sequence that goes on from a snapshot of this one, which stays as it is.
    ///
    /// # Panics
    /// The snapshot lies behind the sequence's end.
    pub fn fork(&self, snapshot: &Snapshot, shape: &Shape) -> Self {
        assert!(snapshot.n_tokens <= self.n_tokens, "a snapshot of this sequence");
        let (n_tokens, head) = (snapshot.n_tokens, shape.attention.head);
        let mut memories = snapshot.memories.iter();
        let layer = |layer: &Layer| match layer {
            Layer::Delta(_) => {
                Layer::Delta(memories.next().expect("a state for each layer").clone())
            }
            Layer::Exact(heads) => {
                Layer::Exact(heads.iter().map(|cache| cache.prefix(n_tokens, head)).collect())
            }
            Layer::Attention(heads) => {
                Layer::Attention(heads.iter().map(|cache| cache.prefix(n_tokens, head)).collect())
            }
        };
        Self { n_tokens, layers: self.layers.iter().map(layer).collect() }
    }

    /// The states as they are now.
    pub fn snapshot(&self) -> Snapshot {
        let memories = self.layers.iter().filter_map(|layer| match layer {
            Layer::Delta(memory) => Some(memory.clone()),
            Layer::Exact(_) | Layer::Attention(_) => None,
        });
        Snapshot { n_tokens: self.n_tokens, memories: memories.collect() }
    }

    /// Takes the states as they are now into a snapshot of any sequence of the same model, whose memory it keeps.
    pub fn snapshot_into(&self, snapshot: &mut Snapshot) {
        let mut memories = snapshot.memories.iter_mut();
        for layer in &self.layers {
            match layer {
                Layer::Delta(memory) => {
                    memories.next().expect("a state for each layer").copy_from(memory);
                }
                Layer::Exact(_) | Layer::Attention(_) => {}
            }
        }
        snapshot.n_tokens = self.n_tokens;
    }

    /// Goes back to a snapshot of this sequence; what came after it is forgotten.
    ///
    /// # Panics
    /// The snapshot lies behind the sequence's end.
    pub fn restore(&mut self, snapshot: &Snapshot, shape: &Shape) {
        self.swap(&mut snapshot.clone(), shape);
    }

    /// Goes back to a snapshot of this sequence without a copy. The snapshot is left with memory to use again and with states
    /// that nobody wants.
    ///
    /// # Panics
    /// The snapshot lies behind the sequence's end.
    pub fn swap(&mut self, snapshot: &mut Snapshot, shape: &Shape) {
        let n_tokens = snapshot.n_tokens;
        assert!(n_tokens <= self.n_tokens, "a snapshot of this sequence");
        let head = shape.attention.head;
        let mut memories = snapshot.memories.iter_mut();
        for layer in &mut self.layers {
            match layer {
                Layer::Delta(memory) => {
                    std::mem::swap(memory, memories.next().expect("a state for each layer"));
                }
                Layer::Exact(heads) => {
                    heads.iter_mut().for_each(|cache| cache.truncate(n_tokens, head));
                }
                Layer::Attention(heads) => {
                    heads.iter_mut().for_each(|cache| cache.truncate(n_tokens, head));
                }
            }
        }
        self.n_tokens = n_tokens;
    }

    /// The recurrent state of a Gated DeltaNet layer, [value heads, key width, value width]; none for other layers.
    pub fn recurrent_state(&self, layer: usize, shape: &Shape) -> Option<Vec<f32>> {
        match self.layers.get(layer)? {
            Layer::Delta(memory) => Some(memory.state(&shape.delta)),
            Layer::Exact(_) | Layer::Attention(_) => None,
        }
    }

    /// Keys and values of an attention layer, for each key head a pair of [tokens, head]; none for other layers.
    pub fn keys_and_values(
        &self,
        layer: usize,
        shape: &Shape,
    ) -> Option<Vec<(Vec<f32>, Vec<f32>)>> {
        let head = shape.attention.head;
        match self.layers.get(layer)? {
            Layer::Exact(heads) => Some(heads.iter().map(|cache| cache.table(head)).collect()),
            Layer::Attention(heads) => Some(heads.iter().map(|cache| cache.table(head)).collect()),
            Layer::Delta(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Isa, Model, Options, Step, Wanted};
    use super::*;
    use crate::tiny;

    #[test]
    fn the_states_of_a_sequence_have_the_bytes_that_are_told_before() {
        let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let mut shape = Shape::read(&fixtures.join("tiny0")).unwrap();
        let widths = [(16, 24, 2, 4, 4), (128, 128, 16, 32, 4), (20, 7, 3, 3, 2), (1, 1, 1, 1, 1)];
        for (key, value, n_keys, n_values, taps) in widths {
            (shape.delta.key_head, shape.delta.value_head) = (key, value);
            (shape.delta.n_key_heads, shape.delta.n_value_heads) = (n_keys, n_values);
            shape.delta.taps = taps;
            let sequence = Sequence::new(&shape, Dtype::Bf16);
            assert_eq!(sequence.state_bytes() as u64, state_bytes_of(&shape), "{key} {value}");
        }
    }

    /// Where the states of a sequence or a snapshot lie.
    fn places<'a>(memories: impl Iterator<Item = &'a Memory>) -> Vec<usize> {
        memories.map(|memory| memory.heads.as_ptr().addr()).collect()
    }

    fn states(sequence: &Sequence) -> impl Iterator<Item = &Memory> {
        sequence.layers.iter().filter_map(|layer| match layer {
            Layer::Delta(memory) => Some(memory),
            Layer::Exact(_) | Layer::Attention(_) => None,
        })
    }

    #[test]
    fn a_snapshot_that_is_used_again_takes_back_what_follows_in_the_same_memory() {
        let folder = tiny::folder();
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let options = Options { dtype: Some(dtype), n_threads: 1, isa: Isa::detect() };
            let model = Model::load(folder.path(), &options).unwrap();
            let append = |sequence: &mut Sequence, ids: &[u32]| {
                model.forward(&mut [Step { sequence, ids, logits: Wanted::Last }]).unwrap()
            };
            let mut sequence = model.sequence();
            append(&mut sequence, &[1, 2, 3]);
            let mut snapshot = sequence.snapshot();
            for round in 0..3 {
                let mut expected = sequence.clone();
                let (ours, theirs) = (places(states(&sequence)), places(snapshot.memories.iter()));
                sequence.snapshot_into(&mut snapshot);
                append(&mut sequence, &[7, 8, 9 + round]);
                sequence.swap(&mut snapshot, model.shape());
                assert_eq!(sequence.n_tokens(), expected.n_tokens());
                assert_eq!(places(states(&sequence)), theirs);
                assert_eq!(places(snapshot.memories.iter()), ours);
                let (a, b) = (append(&mut sequence, &[4, 5]), append(&mut expected, &[4, 5]));
                assert_eq!(a, b, "{dtype:?} {round}");
            }
        }
    }
}
