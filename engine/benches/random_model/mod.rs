//! A folder with random weights for measuring, of the published 4B model's shape or another.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use engine::{Shape, expected};
use serde_json::{Map, Value, json};

/// Values that are drawn; tensors begin at different ones.
const N_DRAWN: usize = 1 << 22;

/// Makes the folder with a configuration unless it is there.
///
/// # Errors
/// Says which file cannot be written.
pub(crate) fn make(folder: &Path, config: &Value) -> Result<(), String> {
    if folder.join("model.safetensors").exists() {
        return Ok(());
    }
    let failed = |error: std::io::Error| format!("cannot make `{}`: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    std::fs::write(folder.join("config.json"), config.to_string()).map_err(failed)?;
    let shape = Shape::read(folder).map_err(|error| error.chain())?;
    let tensors: Vec<(String, usize, Vec<usize>)> = expected(&shape)
        .into_iter()
        .map(|tensor| {
            let n = tensor.dimensions.iter().product();
            (format!("model.language_model.{}", tensor.name), n, tensor.dimensions)
        })
        .collect();
    let (mut header, mut end) = (Map::new(), 0);
    for (name, n, dimensions) in &tensors {
        let entry =
            json!({ "dtype": "BF16", "shape": dimensions, "data_offsets": [end, end + 2 * n] });
        header.insert(name.clone(), entry);
        end += 2 * n;
    }
    let mut text = Value::Object(header).to_string();
    // The data begins at a multiple of 64.
    text.push_str(&" ".repeat((8 + text.len()).next_multiple_of(64) - 8 - text.len()));
    let partial = folder.join("partial");
    let mut file = BufWriter::new(File::create(&partial).map_err(failed)?);
    file.write_all(&(text.len() as u64).to_le_bytes()).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    let drawn = drawn();
    for (number, (name, n, _)) in tensors.iter().enumerate() {
        let is_norm = name.contains("norm");
        let mut left = 2 * n;
        let mut from = number * 7919 * 2 % drawn.len();
        while left > 0 {
            let part = &drawn[from..(from + left).min(drawn.len())];
            if is_norm {
                file.write_all(&vec![0; part.len()]).map_err(failed)?;
            } else {
                file.write_all(part).map_err(failed)?;
            }
            (left, from) = (left - part.len(), 0);
        }
    }
    file.into_inner().map_err(|error| failed(error.into_error()))?;
    std::fs::rename(&partial, folder.join("model.safetensors")).map_err(failed)
}

/// BF16 values of a spread of 0.02, as models begin their training.
fn drawn() -> Vec<u8> {
    let mut state = 1_u64;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
    };
    let values = (0..N_DRAWN).map(|_| (uniform() + uniform() + uniform()) * 0.04);
    values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect()
}

/// The published sizes.
pub(crate) fn published() -> Value {
    json!({
        "model_type": "qwen3_5_text",
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "vocab_size": 248_320,
        "num_hidden_layers": 32,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "tie_word_embeddings": true,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25
        }
    })
}
