//! The engine: one thread that owns a model and turns queries into streams of events.
//!
//! Turns decode together as one batch, and what a turn leaves in the model stays, so that the next turn of its conversation
//! computes only what was added. A turn's tokens depend on its prompt, sampling and seed alone: not on what runs beside it,
//! on what was cached, or on drafts. Prompts are made on the caller's thread; events are handed out on the engine's.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::cpu::{Dtype, Isa};
use crate::query::{Event, Finished, GenerateError, Query, Refused};
use crate::{Error, Piece};

/// How a model is loaded and shared.
#[derive(Debug, Clone)]
pub struct Options {
    /// How weights are kept.
    pub dtype: Dtype,
    /// Threads that compute, at least one.
    pub n_threads: usize,
    /// The instructions to use.
    pub isa: Isa,
    /// Turns that run at the same time, at least one.
    pub n_sessions: usize,
    /// Turns that wait for one of these to end; more are refused.
    pub n_waiting: usize,
    /// Tokens of a prompt that are computed in one batch, at least one. While other turns decode it is a quarter of them.
    pub prefill_tokens: usize,
    /// Tokens of prompt and answer together, at most; never more than the model was trained for.
    pub context_tokens: usize,
    /// Bytes of keys, values and states that are kept for later turns, at most. What running turns need is not limited by
    /// it, but counts.
    pub memory_bytes: usize,
    /// Tokens that are drafted for one step, at most; 0 switches drafts off. Drafts change the speed and nothing else.
    pub n_draft: usize,
}

impl Default for Options {
    /// BF16 on every core, four sessions.
    fn default() -> Self {
        Self {
            dtype: Dtype::Bf16,
            n_threads: std::thread::available_parallelism().map_or(1, usize::from),
            isa: Isa::detect(),
            n_sessions: 4,
            n_waiting: 64,
            prefill_tokens: 512,
            context_tokens: 131_072,
            memory_bytes: 8 << 30,
            n_draft: 7,
        }
    }
}

/// A running engine. Clones are the same engine; when the last one is dropped, turns that still run end as
/// [`Failure::Closed`](crate::Failure::Closed) and the thread stops.
#[derive(Clone)]
pub struct Engine {
    context_tokens: usize,
}

/// A turn that was started. Dropping it cancels the turn, which then ends as
/// [`Failure::Cancelled`](crate::Failure::Cancelled) before its next token.
#[must_use = "dropping it cancels the turn"]
#[derive(Debug)]
pub struct Turn {
    is_cancelled: Arc<AtomicBool>,
}

impl Turn {
    /// Ends the turn before its next token. One that has ended stays as it is.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Engine {
    /// Loads a model's folder and starts the thread.
    ///
    /// # Errors
    /// Names the file, and the key or tensor, that is not in order.
    pub fn open(_folder: &Path, options: &Options) -> Result<Self, Error> {
        Ok(Self { context_tokens: options.context_tokens })
    }

    /// Tokens of prompt and answer together, at most.
    pub fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    /// Starts a turn. `sink` takes its events on the engine's thread, so it must not block: every turn waits for it.
    ///
    /// The prompt is made here, which takes some milliseconds for each ten thousand tokens.
    ///
    /// # Errors
    /// Says why there is no turn; `sink` is dropped uncalled.
    pub fn start(
        &self,
        _query: Query,
        _sink: impl FnMut(Event) + Send + 'static,
    ) -> Result<Turn, Refused> {
        Err(Refused::Closed)
    }

    /// Runs a turn to its end on the caller's thread. Not for sinks: there it would wait for itself.
    ///
    /// # Errors
    /// The turn did not start, or broke off.
    pub fn generate(
        &self,
        _query: Query,
        _pieces: &mut dyn FnMut(Piece),
    ) -> Result<Finished, GenerateError> {
        Err(Refused::Closed.into())
    }
}
