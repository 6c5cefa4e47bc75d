//! A model's folder that is spoiled in any way: the model is loaded and computes, or the error names a file of the folder.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::backend::cpu::{Dtype, Isa, Model, Options, Step, Wanted};
use engine::quantised::{Quantised, write};
use engine::{Error, Expected, Shape, Summary, expected};
use serde_json::json;

/// Parameters of the largest model that is loaded: larger ones cost only time.
const PARAMETERS: u64 = 50_000;

/// Good folders to spoil, and a place for them.
pub(crate) struct Folders {
    place: PathBuf,
    /// The one file of a model in each form.
    weights: [Vec<u8>; 3],
    /// The same values as of the first in two files, and their index.
    shards: [Vec<u8>; 3],
}

/// What became of a folder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was refused.
    Refused,
    /// It is in order but large.
    Large,
    /// It was loaded in so many forms, of which one is the one that it asks for itself.
    Loaded(usize),
}

impl Folders {
    /// As small as models can be.
    pub(crate) fn new(place: &Path) -> Self {
        let plain = place.join("plain");
        std::fs::create_dir(&plain).expect("the place is ours");
        std::fs::write(plain.join(CONFIG), config(0)).expect("the place is ours");
        let tensors = expected(&Shape::read(&plain).expect("it is a good one"));
        let whole = safetensors(&tensors);
        std::fs::write(plain.join(WEIGHTS), &whole).expect("the place is ours");
        let quantised = |form: Quantised| {
            let folder = place.join(form.name());
            let written = write(&plain, &folder, form, 1, &mut |_| ControlFlow::Continue(()));
            written.expect("the source is a good one");
            std::fs::read(folder.join(WEIGHTS)).expect("it was just written")
        };
        let weights = [whole, quantised(Quantised::Int8), quantised(Quantised::Int4)];
        let (first, second) = tensors.split_at(tensors.len() / 2);
        let shards = [index(&[first, second]), safetensors(first), safetensors(second)];
        std::fs::create_dir(place.join("tried")).expect("the place is ours");
        Self { place: place.to_owned(), weights, shards }
    }

    /// Tries a good folder with changes. The first byte says which folder: the form of its weights by the last two bits (plain,
    /// int8, int4, or in two files), and whether its configuration is nested (4) and whether it is quantised once more (8).
    ///
    /// A change is the number of a file, the place of a byte in it (16 bits, little-endian), how many bytes are cut out there,
    /// how many are put in, and these.
    pub(crate) fn run(&self, bytes: &[u8]) -> Outcome {
        let (first, changes) = bytes.split_first().unwrap_or((&0, &[]));
        let mut files = self.files(*first);
        let mut rest = changes;
        while let [file, low, high, n_cut, n_put, put @ ..] = rest {
            let bytes = &mut files[usize::from(*file) % 4].1;
            let start = usize::from(u16::from_le_bytes([*low, *high])).min(bytes.len());
            let end = (start + usize::from(*n_cut)).min(bytes.len());
            let (put, after) = put.split_at(put.len().min(usize::from(*n_put)));
            bytes.splice(start..end, put.iter().copied());
            rest = after;
        }
        let folder = self.place.join("tried");
        for (name, bytes) in files {
            let file = folder.join(name);
            match name {
                // Without them, the one file of weights holds everything.
                INDEX | SECOND if bytes.is_empty() => drop(std::fs::remove_file(file)),
                _ => std::fs::write(file, bytes).expect("the place is ours"),
            }
        }
        if first & 8 != 0 {
            self.quantise(&folder);
        }
        match Summary::read(&folder) {
            Ok(summary) if summary.parameters <= PARAMETERS => {
                let forms = [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4].map(Some);
                let loaded = forms.into_iter().filter(|dtype| load(&folder, *dtype)).count();
                match load(&folder, None) {
                    true => Outcome::Loaded(loaded),
                    false => Outcome::Refused,
                }
            }
            Ok(_) => Outcome::Large,
            Err(error) => named(&folder, &error),
        }
    }

    fn files(&self, first: u8) -> [(&'static str, Vec<u8>); 4] {
        let config = config(first);
        let [index, weights, second] = match usize::from(first) % 4 {
            3 => self.shards.clone(),
            form => [Vec::new(), self.weights[form].clone(), Vec::new()],
        };
        [(CONFIG, config), (INDEX, index), (WEIGHTS, weights), (SECOND, second)]
    }

    /// Quantises a folder, which is refused or makes one that is in order.
    fn quantise(&self, folder: &Path) {
        let out = self.place.join("quantised");
        match write(folder, &out, Quantised::Int4, 1, &mut |_| ControlFlow::Continue(())) {
            Ok(()) => {
                let summary = Summary::read(&out).expect("what was written is in order");
                assert_eq!(summary.dtype, "int4");
                std::fs::remove_dir_all(&out).expect("the place is ours");
            }
            Err(error) => drop(named(folder, &error)),
        }
    }
}

fn load(folder: &Path, dtype: Option<Dtype>) -> bool {
    match Model::load(folder, &Options { dtype, n_threads: 1, isa: Isa::detect() }) {
        Ok(model) => {
            let vocab = model.shape().vocab;
            let last = u32::try_from(vocab - 1).expect("sizes are below 2^24");
            let mut sequence = model.sequence();
            let step = Step { sequence: &mut sequence, ids: &[0, last, 0], logits: Wanted::All };
            let logits = model.forward(&mut [step]).expect("these tokens are known");
            assert_eq!(logits.len(), 3 * vocab);
            true
        }
        Err(error) => named(folder, &error) != Outcome::Refused,
    }
}

fn named(folder: &Path, error: &Error) -> Outcome {
    let told = error.to_string();
    assert!(told.contains(&folder.display().to_string()), "{told}");
    Outcome::Refused
}

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";
const SECOND: &str = "second.safetensors";

/// The configuration: flat, or nested with some keys outside.
fn config(first: u8) -> Vec<u8> {
    let mut config = json!({
        "model_type": "qwen3_5_text", "hidden_size": 8, "intermediate_size": 8, "vocab_size": 8,
        "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "rope_parameters": { "rope_theta": 1e4, "partial_rotary_factor": 0.5 },
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 4,
        "linear_value_head_dim": 4, "linear_conv_kernel_dim": 2, "tie_word_embeddings": true,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
    });
    if first & 4 != 0 {
        // Without the kinds of its layers, which an interval says too.
        config["layer_types"] = json!(null);
        config["full_attention_interval"] = json!(2);
        config["tie_word_embeddings"] = json!(null);
        config =
            json!({ "model_type": "qwen3_5", "tie_word_embeddings": true, "text_config": config });
    }
    config.to_string().into_bytes()
}

/// The index of tensors that lie in two files.
fn index(shards: &[&[Expected]; 2]) -> Vec<u8> {
    let pairs = shards.iter().zip([WEIGHTS, SECOND]).flat_map(|(tensors, file)| {
        tensors.iter().map(move |tensor| (format!("model.{}", tensor.name), file.into()))
    });
    let map: serde_json::Map<String, serde_json::Value> = pairs.collect();
    json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string().into_bytes()
}

/// A safetensors file: the length of its header, the header, and the values, here BF16.
fn safetensors(tensors: &[Expected]) -> Vec<u8> {
    let (mut header, mut values) = (String::from("{"), Vec::new());
    for tensor in tensors {
        let begin = values.len();
        let n_values: usize = tensor.dimensions.iter().product();
        // One half, and its negative.
        values.extend((0..n_values).flat_map(|at| [0, if at % 3 == 0 { 0xbf } else { 0x3f }]));
        let comma = if begin == 0 { "" } else { "," };
        let (name, dimensions, end) = (&tensor.name, &tensor.dimensions, values.len());
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
