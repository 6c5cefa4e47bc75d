//! What a model's folder holds and what it will need, for a person who wonders whether it fits.

use std::path::Path;

use serde::Serialize;

use crate::backend::cpu::state_bytes_of;
use crate::{Checkpoint, Error, Mixer, Shape};

/// Bytes of a cached key or value, BF16.
const CACHED_BYTES: u64 = 2;

/// The figures of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Layers, in all.
    pub layers: usize,
    /// Layers with full attention.
    pub attention_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Longest position that the model was trained for.
    pub max_positions: usize,
    /// Parameters of the text model.
    pub parameters: u64,
    /// How most of its weights lie on the disk: bf16, f16 or f32, or quantised as int8 or int4.
    pub dtype: &'static str,
    /// Bytes of its weights as they lie on the disk.
    pub weight_bytes: u64,
    /// Bytes of its weights in memory, unless a dtype is asked for.
    pub loaded_bytes: u64,
    /// Bytes of keys and values for each token of context, BF16.
    pub cache_bytes_per_token: u64,
    /// Bytes of the recurrent states of one sequence, whatever its length.
    pub state_bytes: u64,
}

impl Summary {
    /// Reads a model's folder; every tensor is looked up, none is loaded.
    ///
    /// # Errors
    /// Names the file, and the key or tensor, that is not in order.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let shape = Shape::read(folder)?;
        let totals = Checkpoint::open(folder, &shape)?.totals(&shape)?;
        let attention_layers = shape.count(Mixer::Attention);
        Ok(Self {
            layers: shape.layers.len(),
            attention_layers,
            hidden: shape.hidden,
            vocab: shape.vocab,
            max_positions: shape.max_positions,
            parameters: totals.n_parameters,
            dtype: totals.dtype,
            weight_bytes: totals.bytes,
            loaded_bytes: totals.loaded_bytes,
            cache_bytes_per_token: 2
                * attention_layers as u64
                * shape.attention.keys() as u64
                * CACHED_BYTES,
            state_bytes: state_bytes_of(&shape),
        })
    }

    /// Bytes for one sequence of this many tokens: weights, cache and states, without workspace. As many as can be counted, if
    /// there are more.
    pub fn bytes_at(&self, context_tokens: u64) -> u64 {
        let cache = self.cache_bytes_per_token.saturating_mul(context_tokens);
        self.loaded_bytes.saturating_add(self.state_bytes).saturating_add(cache)
    }

    /// The figures for a person.
    pub fn text(&self, context_tokens: u64) -> String {
        let row = |name: &str, value: String| format!("{name:<28}{value}\n");
        let attention = format!("{} ({} with full attention)", self.layers, self.attention_layers);
        [
            row("layers", attention),
            row("hidden size", self.hidden.to_string()),
            row("vocabulary", self.vocab.to_string()),
            row("longest context", format!("{} tokens", self.max_positions)),
            row("parameters", self.parameters.to_string()),
            row("dtype", self.dtype.to_owned()),
            row("weights", bytes(self.weight_bytes)),
            row("weights in memory", bytes(self.loaded_bytes)),
            row("cache for each token", bytes(self.cache_bytes_per_token)),
            row("states of a sequence", bytes(self.state_bytes)),
            row(
                &format!("memory at {context_tokens} tokens"),
                bytes(self.bytes_at(context_tokens)),
            ),
        ]
        .concat()
    }
}

/// In GiB where it is large; the exact number always.
fn bytes(n: u64) -> String {
    const GIB: u64 = 1 << 30;
    if n < GIB {
        return format!("{n} bytes");
    }
    // Two digits behind the point, without a float.
    let hundredths = n / (GIB / 100);
    format!("{}.{:02} GiB ({n} bytes)", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu;

    /// Figures of the specification of the 4B model.
    #[test]
    fn the_published_model_needs_what_its_specification_says() {
        let summary = Summary {
            layers: 32,
            attention_layers: 8,
            hidden: 2560,
            vocab: 248_320,
            max_positions: 262_144,
            parameters: 4_205_751_296,
            dtype: "bf16",
            weight_bytes: 8_411_510_272,
            loaded_bytes: 8_413_425_664,
            cache_bytes_per_token: 32_768,
            state_bytes: 50_331_648 + 2_359_296,
        };
        assert_eq!(summary.bytes_at(131_072), 8_413_425_664 + 52_690_944 + 4_294_967_296);
        assert_eq!(summary.bytes_at(u64::MAX), u64::MAX);
        assert!(
            summary
                .text(131_072)
                .contains("memory at 131072 tokens     11.88 GiB (12761083904 bytes)"),
            "{}",
            summary.text(131_072)
        );
    }
    #[test]
    fn weights_in_memory_are_those_of_the_loaded_model() {
        let folder = crate::tiny::folder();
        let summary = Summary::read(folder.path()).unwrap();
        assert_eq!((summary.dtype, summary.weight_bytes), ("f32", 4 * summary.parameters));
        let options = cpu::Options { dtype: None, n_threads: 1, isa: cpu::Isa::detect() };
        let model = cpu::Model::load(folder.path(), &options).unwrap();
        // Beside the large weights, of which the model tells, there are norms, taps and rates in f32.
        let large = model.weight_bytes() as u64;
        let small = 4 * (summary.parameters - large / 2);
        assert_eq!(summary.loaded_bytes, large + small);
        assert_eq!(summary.state_bytes, model.sequence().state_bytes() as u64);
    }
}
