//! The engine: one thread that owns a model and turns queries into streams of events.
//!
//! Turns decode together as one batch, and what a turn leaves in the model stays, so that the next turn of its conversation
//! computes only what was added. A turn's tokens depend on the tokens of its prompt, its sampling and its seed alone: not on
//! what runs beside it, on what was cached, or on drafts. The tokens of a conversation's prompt depend on more: a turn that
//! this engine wrote and still remembers goes in as it wrote it, which an engine that never saw it spells as the template
//! does. Raw texts and ids are the same everywhere. Prompts are made on the caller's thread; events are handed out on the engine's.

mod output;
mod running;
mod shared;
mod sink;
mod worker;

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::backend::cpu::{Dtype, Isa, Model};
use crate::query::{Event, Failure, Finished, GenerateError, Query, Refused};
use crate::schedule::Limits;
use crate::{Error, Piece, Sampler};
use running::Asked;
use shared::Shared;
use sink::{Place, Sink};
use worker::{Forward, Worker};

/// How a model is loaded and shared.
#[derive(Debug, Clone)]
pub struct Options {
    /// How weights are kept. None is as a quantised folder has them, and BF16 for any other.
    pub dtype: Option<Dtype>,
    /// Threads that compute, at least one.
    pub n_threads: usize,
    /// The instructions to use.
    pub isa: Isa,
    /// Turns that run at the same time, at least one.
    pub n_sessions: usize,
    /// Turns that wait for one of these to end; more are refused.
    pub n_waiting: usize,
    /// Tokens of prompts that are computed in one batch, at least one. While turns decode it is as many of them as fit into
    /// `batch_time`.
    pub prefill_tokens: usize,
    /// How long a batch should take while turns decode: their next tokens wait for the parts of prompts beside them. A longer
    /// time computes prompts faster.
    pub batch_time: Duration,
    /// Tokens of prompt and answer together, at most; never more than the model was trained for.
    pub context_tokens: usize,
    /// Bytes of keys, values and states that are kept for later turns, at most. What running turns need is not limited by
    /// it, but counts.
    pub memory_bytes: usize,
    /// Tokens that are drafted for one batch, at most; 0 switches drafts off. Drafts change the speed and nothing else.
    pub n_draft: usize,
}

impl Default for Options {
    /// The folder's weights as they are on every core, four sessions.
    fn default() -> Self {
        Self {
            dtype: None,
            n_threads: std::thread::available_parallelism().map_or(1, usize::from),
            isa: Isa::detect(),
            n_sessions: 4,
            n_waiting: 64,
            prefill_tokens: 512,
            // Two cores decode the published 4B model in 80 to 150 ms a token and compute 100 to 200 tokens of prompts in
            // a second: this leaves more than half of them to the prompts, and four tokens in a second can still be read
            // along.
            batch_time: Duration::from_millis(250),
            context_tokens: 131_072,
            memory_bytes: 8 << 30,
            n_draft: 7,
        }
    }
}

impl Options {
    fn limits(&self) -> Limits {
        Limits {
            n_sessions: self.n_sessions.max(1),
            prefill_tokens: self.prefill_tokens.max(1),
            batch_time: self.batch_time,
            n_draft: self.n_draft,
        }
    }
}

/// A running engine. Clones are the same engine; when the last one is dropped, turns that still run end as
/// [`Failure::Closed`] and the thread stops.
#[derive(Clone)]
pub struct Engine {
    thread: Arc<Thread>,
}

struct Thread {
    shared: Arc<Shared>,
    /// None once the engine closes.
    asked: Option<Sender<Asked>>,
    handle: Option<JoinHandle<()>>,
}

/// A turn that was started. Dropping it cancels the turn, which then ends as [`Failure::Cancelled`] before its next token.
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
    pub fn open(folder: &Path, options: &Options) -> Result<Self, Error> {
        let (shared, model) = Shared::load(folder, options)?;
        let forward: Forward = Box::new(Model::forward);
        Self::run(shared, model, forward, options)
    }

    fn run(
        shared: Shared,
        model: Model,
        forward: Forward,
        options: &Options,
    ) -> Result<Self, Error> {
        let shared = Arc::new(shared);
        let (asked, receiver) = channel();
        let (limits, memory_bytes) = (options.limits(), options.memory_bytes);
        let own = shared.clone();
        let work = move || {
            serve(&own, &receiver, Worker::new(&own, model, forward, memory_bytes, limits));
        };
        let thread = std::thread::Builder::new().name("engine".into());
        let failed = |source| Error::Threads { n_threads: 1, source };
        let handle = Some(thread.spawn(work).map_err(failed)?);
        Ok(Self { thread: Arc::new(Thread { shared, asked: Some(asked), handle }) })
    }

    /// Tokens of prompt and answer together, at most.
    pub fn context_tokens(&self) -> usize {
        self.thread.shared.context_tokens
    }

    /// Turns that run and wait.
    pub fn n_turns(&self) -> usize {
        self.thread.shared.n_taken.load(Ordering::Relaxed)
    }

    /// Tokens that were generated since the start, those of turns that broke off too.
    pub fn n_generated(&self) -> u64 {
        self.thread.shared.n_generated.load(Ordering::Relaxed)
    }

    /// Starts a turn. `sink` takes its events on the engine's thread, so it must not block: every turn waits for it.
    ///
    /// The prompt is made here, on the caller's thread, which takes longer the longer it is.
    ///
    /// # Errors
    /// Says why there is no turn; `sink` is dropped uncalled.
    pub fn start(
        &self,
        query: Query,
        sink: impl FnMut(Event) + Send + 'static,
    ) -> Result<Turn, Refused> {
        let (asked, turn) = ask(&self.thread.shared, query, sink)?;
        let unsent = match &self.thread.asked {
            Some(sender) => sender.send(asked).map_err(|unsent| unsent.0),
            None => Err(asked),
        };
        match unsent {
            Ok(()) => Ok(turn),
            Err(asked) => {
                asked.sink.disarm();
                Err(Refused::Closed)
            }
        }
    }

    /// Runs a turn to its end on the caller's thread. Not for sinks: there it would wait for itself.
    ///
    /// # Errors
    /// The turn did not start, or broke off.
    pub fn generate(
        &self,
        query: Query,
        pieces: &mut dyn FnMut(Piece),
    ) -> Result<Finished, GenerateError> {
        let (sender, events) = channel();
        let _turn = self.start(query, move |event| {
            // Nobody listens only if the caller panics.
            let _ = sender.send(event);
        })?;
        for event in events {
            match event {
                Event::Piece(piece) => pieces(piece),
                Event::Token(_) => {}
                Event::End(result) => return Ok(result?),
            }
        }
        Err(Failure::Closed.into())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Relaxed);
        self.asked = None;
        let Some(handle) = self.handle.take() else { return };
        // The last clone may be dropped by a sink, on the thread that would be waited for.
        if handle.thread().id() != std::thread::current().id() {
            // A panic there has already ended every turn.
            let _ = handle.join();
        }
    }
}

/// Makes a turn of a query.
fn ask(
    shared: &Shared,
    query: Query,
    sink: impl FnMut(Event) + Send + 'static,
) -> Result<(Asked, Turn), Refused> {
    let started = Instant::now();
    let place = Place::take(&shared.n_taken, shared.n_places)
        .map_err(|n_turns| Refused::Busy { n_turns })?;
    let Query { source, sampling, stop_strings, n_logprobs } = query;
    let beginning = shared.read(source, &sampling)?;
    let seed = sampling.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
    let n_ids = shared.encoder.tokenizer().n_ids();
    let sampler = Sampler::new(&sampling, seed, n_ids, &beginning.prompt);
    let max_tokens = usize::try_from(sampling.max_tokens).unwrap_or(usize::MAX);
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let turn = Turn { is_cancelled: is_cancelled.clone() };
    let sink = Sink::new(sink, place);
    let asked = Asked {
        beginning,
        sampler,
        max_tokens,
        seed,
        stop_strings,
        n_logprobs,
        is_cancelled,
        started,
        sink,
    };
    Ok((asked, turn))
}

/// Runs turns until the engine closes.
fn serve(shared: &Shared, asked: &Receiver<Asked>, mut worker: Worker<'_>) {
    while !shared.is_closing.load(Ordering::Relaxed) {
        loop {
            match asked.try_recv() {
                Ok(asked) => worker.add(asked),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        if !worker.step() {
            match asked.recv() {
                Ok(asked) => worker.add(asked),
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests;
