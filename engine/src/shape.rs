//! The sizes of a Qwen3.5 text model.

mod config;

use std::path::Path;

use serde_json::Value;

use crate::{Error, file};

/// Largest `config.json` that is read, in bytes; real ones have some kilobytes.
const FILE_BYTES: u64 = 1 << 20;

/// The sizes of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the SwiGLU block.
    pub intermediate: usize,
    /// Rows of the embedding, padding included.
    pub vocab: usize,
    /// What mixes tokens in each layer, in order.
    pub layers: Vec<Mixer>,
    /// The full attention layers.
    pub attention: AttentionShape,
    /// The Gated DeltaNet layers.
    pub delta: DeltaShape,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Whether the head is the embedding.
    pub is_tied: bool,
    /// Longest position that the model was trained for.
    pub max_positions: usize,
}

/// What mixes tokens in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Softmax attention over all earlier tokens.
    Attention,
    /// Gated DeltaNet: a recurrent state of fixed size.
    Delta,
}

/// The sizes of full attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; each serves `n_heads / n_kv_heads` query heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head: usize,
    /// Dimensions of a head that are rotated, from its start.
    pub rotary: usize,
    /// Base of the rotary frequencies.
    pub theta: f32,
}

/// The sizes of Gated DeltaNet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaShape {
    /// Query and key heads.
    pub n_key_heads: usize,
    /// Value heads; `n_value_heads / n_key_heads` neighbours share a key head.
    pub n_value_heads: usize,
    /// Width of a key head.
    pub key_head: usize,
    /// Width of a value head.
    pub value_head: usize,
    /// Taps of the causal convolution.
    pub taps: usize,
}

impl AttentionShape {
    /// Width of all queries.
    pub fn queries(&self) -> usize {
        self.n_heads * self.head
    }

    /// Width of all keys, and of all values.
    pub fn keys(&self) -> usize {
        self.n_kv_heads * self.head
    }
}

impl DeltaShape {
    /// Width of all queries, and of all keys.
    pub fn keys(&self) -> usize {
        self.n_key_heads * self.key_head
    }

    /// Width of all values.
    pub fn values(&self) -> usize {
        self.n_value_heads * self.value_head
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

impl Shape {
    /// Reads `config.json` of a model's folder, nested (`text_config`) or flat.
    ///
    /// # Errors
    /// Names the key that is missing, makes no sense or asks for something unknown.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let file = folder.join("config.json");
        let whole: Value = file::parse(&file, &file::read(&file, FILE_BYTES)?)?;
        config::shape(&file, &whole)
    }

    /// Number of layers of one kind.
    pub fn count(&self, mixer: Mixer) -> usize {
        self.layers.iter().filter(|&&each| each == mixer).count()
    }
}
