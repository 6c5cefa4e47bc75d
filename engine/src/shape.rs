//! `config.json`: the sizes of a Qwen3.5 text model, checked once. An option that this engine does not know is an error,
//! because a model computed without it would be a little wrong and nobody would see.
//!
//! Source of keys and rules: the published configuration of Qwen3.5-4B and transformers 5.24 (`qwen3_5`).

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Error, file};

/// Largest `config.json` that is read, in bytes; real ones have some kilobytes.
const FILE_BYTES: u64 = 1 << 20;
/// Largest size of anything: far above every model of the family, and far below an overflow.
const LARGEST: u64 = 1 << 24;
/// Widest head. The state of a Gated DeltaNet head has the square of it, so a small file could ask for any memory; heads of
/// the family have 256 at most.
const HEAD: u64 = 1024;
/// Most layers.
const LAYERS: u64 = 1024;

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
        Keys { file: &file, whole: &whole, text: whole.get("text_config").unwrap_or(&whole) }
            .shape()
    }

    /// Number of layers of one kind.
    pub fn count(&self, mixer: Mixer) -> usize {
        self.layers.iter().filter(|&&each| each == mixer).count()
    }
}

struct Keys<'a> {
    file: &'a Path,
    whole: &'a Value,
    text: &'a Value,
}

impl Keys<'_> {
    fn shape(&self) -> Result<Shape, Error> {
        self.family()?;
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
            norm_eps: self.number("rms_norm_eps", Some(1e-6))?,
            is_tied: self.is_tied()?,
            max_positions: self.size("max_position_embeddings")?,
        })
    }

    /// Where both places say it, the inner one counts.
    fn is_tied(&self) -> Result<bool, Error> {
        const KEY: &str = "tie_word_embeddings";
        let places = [self.text, self.whole];
        match places.iter().find_map(|place| place.get(KEY).filter(|value| !value.is_null())) {
            None => Ok(false),
            Some(Value::Bool(is_tied)) => Ok(*is_tied),
            Some(value) => Err(self.wrong(KEY, format!("{value} is neither true nor false"))),
        }
    }

    /// The family, and the options that would change what is computed.
    fn family(&self) -> Result<(), Error> {
        let kind = self.text.get("model_type").and_then(Value::as_str).unwrap_or_default();
        if !matches!(kind, "qwen3_5_text" | "qwen3_5") {
            return Err(self.wrong(
                "model_type",
                format!("`{kind}` is not `qwen3_5`, the one family of this engine"),
            ));
        }
        for (key, expected) in [
            ("hidden_act", Value::from("silu")),
            ("attention_bias", Value::from(false)),
            ("attn_output_gate", Value::from(true)),
            ("output_gate_type", Value::from("swish")),
            ("mamba_ssm_dtype", Value::from("float32")),
        ] {
            match self.text.get(key) {
                None | Some(Value::Null) => {}
                Some(value) if *value == expected => {}
                Some(value) => {
                    return Err(
                        self.wrong(key, format!("{value} is not supported, only {expected}"))
                    );
                }
            }
        }
        match self.text.get("mlp_only_layers").and_then(Value::as_array) {
            Some(layers) if !layers.is_empty() => {
                Err(self
                    .wrong("mlp_only_layers", "layers without a mixer are not supported".into()))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn attention(&self) -> Result<AttentionShape, Error> {
        let rope = self.text.get("rope_parameters").unwrap_or(&Value::Null);
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str);
        if kind.is_some_and(|kind| kind != "default") {
            let reason = format!("`{}` is not supported, only `default`", kind.unwrap_or_default());
            return Err(self.wrong("rope_parameters.rope_type", reason));
        }
        let from = |key: &str| rope.get(key).or_else(|| self.text.get(key)).and_then(Value::as_f64);
        let theta = from("rope_theta").filter(|theta| (1.0..1e12).contains(theta));
        let theta = theta.ok_or_else(|| {
            self.wrong("rope_parameters.rope_theta", "it must be a number above 1".into())
        })?;
        let part = from("partial_rotary_factor").unwrap_or(1.0);
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
        if let Some(kinds) = self.text.get("layer_types").and_then(Value::as_array) {
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
        let value = self.text.get(key).ok_or_else(|| self.wrong(key, "it is missing".into()))?;
        let size = value.as_u64().filter(|size| (1..=largest).contains(size));
        let size = size.and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| self.wrong(key, format!("{value} is not a number from 1 to {largest}")))
    }

    fn number(&self, key: &str, default: Option<f64>) -> Result<f32, Error> {
        let number = match self.text.get(key) {
            None => default,
            Some(value) => value.as_f64(),
        };
        let number = number.filter(|number| *number > 0.0 && *number < 1.0);
        #[expect(clippy::cast_possible_truncation, reason = "the reference computes in f32")]
        number
            .map(|number| number as f32)
            .ok_or_else(|| self.wrong(key, "it must be a number between 0 and 1".into()))
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
