//! Text in, text and tool calls out. This crate promises one model family, Qwen3.5, behind plain data types:
//! a [`Request`] goes in, [`Piece`]s stream out, a [`Reply`] closes the turn.
//!
//! It knows no job, no git and no forge, and it starts no runtime. An [`Engine`] is one thread that owns a model: it turns a
//! [`Query`] into the tokens that the model reads ([`Encoder`]), computes batches of many turns ([`backend`]), draws tokens
//! ([`Sampler`]) and reads them ([`Decoder`], [`parse`]).
//! The bot uses it in process or serves it; an OpenAI-compatible endpoint speaks these same types.

pub mod backend;
mod cache;
mod checkpoint;
mod demand;
mod draft;
mod encode;
mod engine;
mod error;
mod file;
mod logprobs;
pub mod measure;
mod pace;
pub mod parse;
pub mod quantised;
mod query;
mod request;
mod sampler;
mod schedule;
mod shape;
mod splice;
mod stop_ids;
mod summary;
mod template;
#[cfg(test)]
mod tiny;
mod tokenizer;

pub use checkpoint::{Checkpoint, Expected, Role, Totals, expected};
pub use encode::{EncodeError, Encoder, Prompt};
pub use engine::{Engine, Options, Turn};
pub use error::Error;
pub use query::{
    Candidate, DrawnToken, Event, Failure, Finished, GenerateError, Query, Refused, Source,
    Timings, ToolChoice,
};
pub use request::{Message, Piece, Reply, Request, Sampling, Stop, Tool, ToolCall, Usage};
pub use sampler::{Among, Sampler};
pub use shape::{AttentionShape, DeltaShape, Mixer, Shape};
pub use stop_ids::stop_ids;
pub use summary::Summary;
pub use template::{RenderError, Template};
pub use tokenizer::{Decoder, Part, Span, TokenizeError, Tokenizer};
