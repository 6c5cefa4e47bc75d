//! `config.json`, read once. An option that this engine does not know is an error, because a model computed without it would be a
//! little wrong and nobody would see; so is a value of another type than its key has, and a key that is there twice and says
//! two things. `null` is as good as absent, as in the reference.
//!
//! Source of keys and rules: the published configuration of Qwen3.5-4B and transformers 5.24 (`qwen3_5`).

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{AttentionShape, DeltaShape, Mixer, Shape};
use crate::Error;

/// Largest size of anything: far above every model of the family, and far below an overflow.
const LARGEST: u64 = 1 << 24;
/// Widest head. The state of a Gated DeltaNet head has the square of it, so a small file could ask for any memory; heads of
/// the family have 256 at most.
const HEAD: u64 = 1024;
/// Most layers.
const LAYERS: u64 = 1024;
/// The part of a head that is rotated where nobody says it: what the reference takes.
const PARTIAL_ROTARY_FACTOR: f64 = 0.25;
/// Where rotation is described: as it is published, and as older programs write it.
const ROPE: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// Keys of a text model that are read below.
const READ: [&str; 26] = [
    "attention_bias",
    "attn_output_gate",
    "full_attention_interval",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "mamba_ssm_dtype",
    "max_position_embeddings",
    "mlp_only_layers",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "output_gate_type",
    "partial_rotary_factor",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
];
/// Keys that change no logit: training, the program that wrote the file, and parts of the model that are skipped. Tokens are
/// read elsewhere.
const IDLE: [&str; 12] = [
    "architectures",
    "attention_dropout",
    "auto_map",
    "dtype",
    "id2label",
    "initializer_range",
    "label2id",
    "return_dict",
    "torch_dtype",
    "use_cache",
    "vision_config",
    "text_config",
];
/// Beginnings and ends of such keys.
const IDLE_STARTS: [&str; 3] = ["_", "mtp_", "unsloth_"];
const IDLE_ENDS: [&str; 2] = ["_token_id", "_version"];
/// Keys of a rotation.
const ROTATION: [&str; 6] = [
    "mrope_interleaved",
    "mrope_section",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "type",
];

/// A description of rotation, with its name.
type Rotation<'a> = (&'static str, &'a Map<String, Value>);

/// The sizes that a configuration gives, nested (`text_config`) or flat.
///
/// # Errors
/// Names the key that is missing, makes no sense or asks for something unknown.
pub(super) fn shape(file: &Path, whole: &Value) -> Result<Shape, Error> {
    let text = match whole.get("text_config") {
        None | Some(Value::Null) => whole,
        Some(text) => text,
    };
    Keys { file, whole, text }.shape()
}

struct Keys<'a> {
    file: &'a Path,
    whole: &'a Value,
    text: &'a Value,
}

impl Keys<'_> {
    fn shape(&self) -> Result<Shape, Error> {
        self.family()?;
        self.options()?;
        let attention = self.attention()?;
        let delta = DeltaShape {
            n_key_heads: self.size("linear_num_key_heads")?,
            n_value_heads: self.size("linear_num_value_heads")?,
            key_head: self.head("linear_key_head_dim")?,
            value_head: self.head("linear_value_head_dim")?,
            taps: self.size("linear_conv_kernel_dim")?,
        };
        self.divides(
            "linear_num_value_heads",
            delta.n_value_heads,
            "linear_num_key_heads",
            delta.n_key_heads,
        )?;
        Ok(Shape {
            hidden: self.size("hidden_size")?,
            intermediate: self.size("intermediate_size")?,
            vocab: self.size("vocab_size")?,
            layers: self.layers()?,
            attention,
            delta,
            norm_eps: self.epsilon("rms_norm_eps", 1e-6)?,
            is_tied: self.is_tied()?,
            max_positions: self.size("max_position_embeddings")?,
        })
    }

    fn family(&self) -> Result<(), Error> {
        let kind = self.value("model_type").unwrap_or(&Value::Null);
        if matches!(kind.as_str(), Some("qwen3_5_text" | "qwen3_5")) {
            return Ok(());
        }
        let reason = format!("`{}` is not `qwen3_5`, the one family of this engine", plain(kind));
        Err(self.wrong("model_type", reason))
    }

    /// The options that would change what is computed.
    fn options(&self) -> Result<(), Error> {
        for (key, expected) in [
            ("hidden_act", Value::from("silu")),
            ("attention_bias", Value::from(false)),
            ("attn_output_gate", Value::from(true)),
            ("output_gate_type", Value::from("swish")),
            ("mamba_ssm_dtype", Value::from("float32")),
            ("mlp_only_layers", Value::Array(Vec::new())),
        ] {
            if let Some(value) = self.value(key).filter(|value| **value != expected) {
                return Err(self.wrong(key, format!("{value} is not supported, only {expected}")));
            }
        }
        if self.whole.get("quantization_config").is_some_and(|value| !is_off(value)) {
            let reason = "weights that another program has quantised are not supported; use the folder that they were \
                          made from, and quantise that";
            return Err(self.wrong("quantization_config", reason.into()));
        }
        let keys = self.text.as_object().into_iter().flatten();
        self.known("", keys.filter(|(key, _)| !is_known(key)))
    }

    /// Whether the head is the embedding. Nested files say it twice.
    fn is_tied(&self) -> Result<bool, Error> {
        let key = "tie_word_embeddings";
        let mut said = None;
        for place in [self.text, self.whole] {
            let value = place.get(key).filter(|value| !value.is_null());
            let Some(value) = value else { continue };
            let is_tied = value
                .as_bool()
                .ok_or_else(|| self.wrong(key, format!("{value} is neither `true` nor `false`")))?;
            if said.is_some_and(|said| said != is_tied) {
                let reason = "`text_config` says the opposite of the whole file; write in both what the weights are: \
                              `false` if there is a `lm_head.weight` to use";
                return Err(self.wrong(key, reason.into()));
            }
            said = Some(is_tied);
        }
        Ok(said.unwrap_or(false))
    }

    /// None of these keys does anything, or the first that does is refused.
    fn known<'v>(
        &self,
        within: &str,
        mut unknown: impl Iterator<Item = (&'v String, &'v Value)>,
    ) -> Result<(), Error> {
        match unknown.find(|(_, value)| !is_off(value)) {
            None => Ok(()),
            Some((key, value)) => {
                let reason = format!(
                    "this engine does not know the option, which is {value} here; if it changes nothing that the model \
                     computes, take it out of the file"
                );
                Err(self.wrong(&format!("{within}{key}"), reason))
            }
        }
    }

    /// Descriptions of rotation, with their names.
    fn rotations(&self) -> Result<Vec<Rotation<'_>>, Error> {
        let mut all = Vec::new();
        for name in ROPE {
            let Some(value) = self.value(name) else { continue };
            let Some(rotation) = value.as_object() else {
                return Err(self.wrong(name, format!("{value} is no object")));
            };
            for key in ["rope_type", "type"] {
                let kind = rotation.get(key).filter(|kind| !kind.is_null());
                if let Some(kind) = kind.filter(|kind| kind.as_str() != Some("default")) {
                    let reason = format!("`{}` is not supported, only `default`", plain(kind));
                    return Err(self.wrong(&format!("{name}.{key}"), reason));
                }
            }
            let unknown = rotation.iter().filter(|(key, _)| !ROTATION.contains(&key.as_str()));
            self.known(&format!("{name}."), unknown)?;
            all.push((name, rotation));
        }
        Ok(all)
    }

    /// A number of the rotation, wherever it is said: files of some programs say it twice.
    fn rotation(&self, key: &str) -> Result<Option<f64>, Error> {
        let mut said: Option<f64> = None;
        let nested = self.rotations()?;
        let nested = nested.iter().map(|(name, all)| (format!("{name}.{key}"), all.get(key)));
        for (name, value) in nested.chain([(key.to_owned(), self.value(key))]) {
            let Some(value) = value.filter(|value| !value.is_null()) else { continue };
            let number =
                value.as_f64().ok_or_else(|| self.wrong(&name, format!("{value} is no number")))?;
            if let Some(said) = said.filter(|said| *said != number) {
                return Err(
                    self.wrong(&name, format!("it is {said} in one place and {number} here"))
                );
            }
            said = Some(number);
        }
        Ok(said)
    }

    fn attention(&self) -> Result<AttentionShape, Error> {
        let theta = self.rotation("rope_theta")?.filter(|theta| (1.0..1e12).contains(theta));
        let theta = theta.ok_or_else(|| {
            self.wrong("rope_parameters.rope_theta", "it must be a number above 1".into())
        })?;
        let part = self.rotation("partial_rotary_factor")?.unwrap_or(PARTIAL_ROTARY_FACTOR);
        let head = self.head("head_dim")?;
        // A factor such as 0.25 is exact, and a rotary width is even.
        let rotary = (head as f64 * part).round();
        if !(part > 0.0 && part <= 1.0) || rotary < 2.0 || rotary % 2.0 != 0.0 {
            let reason = format!("{part} of {head} dimensions is no even number of them");
            return Err(self.wrong("rope_parameters.partial_rotary_factor", reason));
        }
        let (n_heads, n_kv_heads) =
            (self.size("num_attention_heads")?, self.size("num_key_value_heads")?);
        self.divides("num_attention_heads", n_heads, "num_key_value_heads", n_kv_heads)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked above, and at most `head`"
        )]
        let rotary = rotary as usize;
        #[expect(clippy::cast_possible_truncation, reason = "the reference computes in f32")]
        let theta = theta as f32;
        Ok(AttentionShape { n_heads, n_kv_heads, head, rotary, theta })
    }

    fn layers(&self) -> Result<Vec<Mixer>, Error> {
        let n_layers = self.size("num_hidden_layers")?;
        if n_layers as u64 > LAYERS {
            return Err(
                self.wrong("num_hidden_layers", format!("{n_layers} is more than {LAYERS}"))
            );
        }
        if let Some(kinds) = self.value("layer_types") {
            let kinds = kinds
                .as_array()
                .ok_or_else(|| self.wrong("layer_types", format!("{kinds} is no list of kinds")))?;
            if kinds.len() != n_layers {
                let reason = format!("it has {} entries for {n_layers} layers", kinds.len());
                return Err(self.wrong("layer_types", reason));
            }
            return kinds
                .iter()
                .map(|kind| match kind.as_str() {
                    Some("linear_attention") => Ok(Mixer::Delta),
                    Some("full_attention") => Ok(Mixer::Attention),
                    Some(_) | None => {
                        let reason =
                            format!("{kind} is neither `linear_attention` nor `full_attention`");
                        Err(self.wrong("layer_types", reason))
                    }
                })
                .collect();
        }
        let interval = self.size("full_attention_interval")?;
        let mixer = |at: usize| {
            if (at + 1).is_multiple_of(interval) { Mixer::Attention } else { Mixer::Delta }
        };
        Ok((0..n_layers).map(mixer).collect())
    }

    fn size(&self, key: &str) -> Result<usize, Error> {
        self.up_to(LARGEST, key)
    }

    fn head(&self, key: &str) -> Result<usize, Error> {
        self.up_to(HEAD, key)
    }

    fn up_to(&self, largest: u64, key: &str) -> Result<usize, Error> {
        let value = self.value(key).ok_or_else(|| {
            self.wrong(
                key,
                "it is missing; take `config.json` from the model's source again".into(),
            )
        })?;
        let size = value.as_u64().filter(|size| (1..=largest).contains(size));
        let size = size.and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| self.wrong(key, format!("{value} is not a number from 1 to {largest}")))
    }

    fn epsilon(&self, key: &str, default: f64) -> Result<f32, Error> {
        let number = self.value(key).map_or(Some(default), Value::as_f64);
        #[expect(clippy::cast_possible_truncation, reason = "the reference computes in f32")]
        let number = number.map(|number| number as f32);
        number
            .filter(|number| *number > 0.0 && *number < 1.0)
            .ok_or_else(|| self.wrong(key, "it must be a number between 0 and 1".into()))
    }

    /// What a key of the text model says, if anything.
    fn value(&self, key: &str) -> Option<&Value> {
        self.text.get(key).filter(|value| !value.is_null())
    }

    fn divides(&self, key: &str, many: usize, other: &str, few: usize) -> Result<(), Error> {
        if many.is_multiple_of(few) {
            return Ok(());
        }
        Err(self.wrong(key, format!("{many} is no multiple of `{other}` ({few})")))
    }

    fn wrong(&self, key: &str, reason: String) -> Error {
        Error::Key { file: PathBuf::from(self.file), key: key.to_owned(), reason }
    }
}

/// A value as people write it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether a key of the text model is read here, or changes nothing.
fn is_known(key: &str) -> bool {
    READ.contains(&key)
        || ROPE.contains(&key)
        || IDLE.contains(&key)
        || IDLE_STARTS.iter().any(|start| key.starts_with(start))
        || IDLE_ENDS.iter().any(|end| key.ends_with(end))
}

/// Whether a value says that there is no such thing.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_on) => !is_on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}
