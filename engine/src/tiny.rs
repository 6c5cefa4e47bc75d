//! A whole model's folder for tests: the tiny vocabulary, the template of the tests, and weights drawn by chance.

use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize_to_file};
use serde_json::{Value, json};

use crate::{Shape, expected};

/// Rows of the embedding: the 353 ids of the vocabulary and some padding.
pub(crate) const VOCAB: usize = 384;

/// Writes a folder that holds everything. Its context has 4,096 tokens.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixtures.join("tokenizer").join(name), folder.path().join(name)).unwrap();
    }
    let template = include_str!("template/chat_template.jinja");
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let config = std::fs::read_to_string(fixtures.join("tiny0/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["vocab_size"] = json!(VOCAB);
    config["eos_token_id"] = Value::Null;
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();

    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> =
        expected(&Shape::read(folder.path()).unwrap())
            .into_iter()
            .zip(1..)
            .map(|(tensor, seed)| {
                let n_values = tensor.dimensions.iter().product();
                let bytes = values(&tensor.name, n_values, seed);
                (format!("model.{}", tensor.name), tensor.dimensions, bytes)
            })
            .collect();
    let views = tensors.iter().map(|(name, dimensions, bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, dimensions.clone(), bytes).unwrap())
    });
    serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    folder
}

/// Weights of about the size that keeps the activations of a network of this width alive.
fn values(name: &str, n_values: usize, seed: u64) -> Vec<u8> {
    let scale = if name.contains("norm") { 0.1 } else { 0.3 };
    let mut state = seed;
    let mut draw = || {
        // Knuth's linear congruential generator for 64 bits.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    (0..n_values).flat_map(|_| draw().to_le_bytes()).collect()
}
