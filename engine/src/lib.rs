//! Text in, text and tool calls out. This crate promises one model family, Qwen3.5, behind plain data types:
//! a [`Request`] goes in, [`Piece`]s stream out, a [`Reply`] closes the turn.
//!
//! It knows no job, no git and no forge, and it starts no runtime. The backends are not part of it yet: the bot
//! reaches a model through an OpenAI-compatible endpoint that speaks these same types.

mod request;

pub use request::{Message, Piece, Reply, Request, Sampling, Stop, Tool, ToolCall, Usage};
