//! A model that runs in this process, instead of behind an endpoint.

use std::path::PathBuf;

use serde::Deserialize;

/// `[model.local]`, for `model.kind = "local"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Local {
    /// The model's folder: config.json, safetensors files, tokenizer and chat template.
    pub folder: Option<PathBuf>,
    /// How weights are kept in memory; if left out, as a quantised folder has them, and as BF16 for any other.
    pub dtype: Option<Dtype>,
    /// Threads that compute; 0 is one for each core.
    pub threads: usize,
    /// Sessions that the model works on at the same time.
    pub sessions: usize,
    /// Bytes of keys, values and states that are kept for a session's next turn, at most.
    pub memory_bytes: u64,
}

impl Default for Local {
    fn default() -> Self {
        Self { folder: None, dtype: None, threads: 0, sessions: 4, memory_bytes: 8 << 30 }
    }
}

/// Where the model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Behind a server that speaks the OpenAI chat-completions protocol.
    Endpoint,
    /// In this process.
    Local,
}

/// How weights are kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 16 bits, as models are published.
    Bf16,
    /// 8 bits and a little: half the memory.
    Int8,
    /// 4 bits and a little: a quarter of the memory, with worse answers.
    Int4,
}
