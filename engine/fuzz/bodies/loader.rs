//! A model's folder that is spoiled in any way: the model is loaded and computes, or the error names a file of the folder.

use std::fmt::Write as _;
use std::path::Path;

use engine::backend::cpu::{Dtype, Isa, Model, Options, Step, Wanted};
use engine::{Error, Shape, Summary, expected};
use serde_json::json;

/// Parameters of the largest model that is loaded: larger ones cost only time.
const PARAMETERS: u64 = 50_000;

/// Tries the folder of a good model with these changes. Without any, it is loaded in every form.
///
/// A change is the number of a file, the place of a byte in it (16 bits, little-endian), how many bytes are cut out there,
/// how many are put in, and these. Whether the model was loaded.
pub(crate) fn run(folder: &Path, changes: &[u8]) -> bool {
    let mut files = good(folder);
    let mut rest = changes;
    while let [file, low, high, n_cut, n_put, put @ ..] = rest {
        let bytes = &mut files[usize::from(*file) % 3].1;
        let start = usize::from(u16::from_le_bytes([*low, *high])).min(bytes.len());
        let end = (start + usize::from(*n_cut)).min(bytes.len());
        let (put, after) = put.split_at(put.len().min(usize::from(*n_put)));
        bytes.splice(start..end, put.iter().copied());
        rest = after;
    }
    for (name, bytes) in files {
        let file = folder.join(name);
        match name {
            // Without it, the one file of weights holds everything.
            INDEX if bytes.is_empty() => drop(std::fs::remove_file(file)),
            _ => std::fs::write(file, bytes).expect("the folder is ours"),
        }
    }
    match Summary::read(folder) {
        Ok(summary) if summary.parameters <= PARAMETERS => {
            let all = [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4];
            all.map(|dtype| load(folder, dtype)) == [true; 4]
        }
        Ok(_) => false,
        Err(error) => named(folder, &error),
    }
}

fn load(folder: &Path, dtype: Dtype) -> bool {
    match Model::load(folder, &Options { dtype: Some(dtype), n_threads: 1, isa: Isa::detect() }) {
        Ok(model) => {
            let vocab = model.shape().vocab;
            let last = u32::try_from(vocab - 1).expect("sizes are below 2^24");
            let mut sequence = model.sequence();
            let step = Step { sequence: &mut sequence, ids: &[0, last, 0], logits: Wanted::All };
            let logits = model.forward(&mut [step]).expect("these tokens are known");
            assert_eq!(logits.len(), 3 * vocab);
            true
        }
        Err(error) => named(folder, &error),
    }
}

fn named(folder: &Path, error: &Error) -> bool {
    let told = error.to_string();
    assert!(told.contains(&folder.display().to_string()), "{told}");
    false
}

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

/// The files of a good model, which is as small as a model can be. It has no index.
fn good(folder: &Path) -> [(&'static str, Vec<u8>); 3] {
    let config = json!({
        "model_type": "qwen3_5_text", "hidden_size": 8, "intermediate_size": 8, "vocab_size": 8,
        "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "rope_parameters": { "rope_theta": 1e4, "partial_rotary_factor": 0.5 },
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 4,
        "linear_value_head_dim": 4, "linear_conv_kernel_dim": 2, "tie_word_embeddings": true,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
    });
    let config = config.to_string().into_bytes();
    std::fs::write(folder.join(CONFIG), &config).expect("the folder is ours");
    let shape = Shape::read(folder).expect("it is a good one");
    [(CONFIG, config), (INDEX, Vec::new()), (WEIGHTS, weights(&shape))]
}

/// A safetensors file: the length of its header, the header, and the values, here BF16.
fn weights(shape: &Shape) -> Vec<u8> {
    let (mut header, mut values) = (String::from("{"), Vec::new());
    for tensor in expected(shape) {
        let begin = values.len();
        let n_values: usize = tensor.dimensions.iter().product();
        // One half, and its negative.
        values.extend((0..n_values).flat_map(|at| [0, if at % 3 == 0 { 0xbf } else { 0x3f }]));
        let comma = if begin == 0 { "" } else { "," };
        let (name, dimensions, end) = (tensor.name, tensor.dimensions, values.len());
        write!(
            header,
            "{comma}\"model.{name}\":{{\"dtype\":\"BF16\",\"shape\":{dimensions:?},\"data_offsets\":[{begin},{end}]}}"
        )
        .expect("a text takes everything");
    }
    header.push('}');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.into_bytes());
    bytes.extend(values);
    bytes
}
