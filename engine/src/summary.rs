//! What a model's folder holds and what it will need, for a person who wonders whether it fits.

use std::path::Path;

use serde::Serialize;

use crate::{Checkpoint, Error, Mixer, Shape};

/// Bytes of a cached key or value, BF16.
const CACHED_BYTES: u64 = 2;
/// Bytes of a value of the recurrent state, f32.
const STATE_BYTES: u64 = 4;

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
        let delta_layers = shape.count(Mixer::Delta) as u64;
        let delta = &shape.delta;
        let state = (delta.n_value_heads * delta.key_head * delta.value_head) as u64 * STATE_BYTES;
        let window = ((delta.taps - 1) * delta.channels()) as u64 * CACHED_BYTES;
        Ok(Self {
            layers: shape.layers.len(),
            attention_layers,
            hidden: shape.hidden,
            vocab: shape.vocab,
            max_positions: shape.max_positions,
            parameters: totals.n_parameters,
            dtype: totals.dtype,
            weight_bytes: totals.bytes,
            cache_bytes_per_token: 2
                * attention_layers as u64
                * shape.attention.keys() as u64
                * CACHED_BYTES,
            state_bytes: delta_layers * (state + window),
        })
    }

    /// Bytes for one sequence of this many tokens: weights, cache and states, without workspace.
    pub fn bytes_at(&self, context_tokens: u64) -> u64 {
        let cache_bytes = self.cache_bytes_per_token.saturating_mul(context_tokens);
        cache_bytes.saturating_add(self.weight_bytes + self.state_bytes)
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
            cache_bytes_per_token: 32_768,
            state_bytes: 50_331_648 + 1_179_648,
        };
        assert_eq!(summary.bytes_at(131_072), 12_757_988_864);
        assert_eq!(summary.bytes_at(u64::MAX), u64::MAX);
        assert!(
            summary
                .text(131_072)
                .contains("memory at 131072 tokens     11.88 GiB (12757988864 bytes)"),
            "{}",
            summary.text(131_072)
        );
    }
}
