//! What the engine's thread and its callers share: how prompts are made, and how many turns there are.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Options;
use super::output::Reader;
use crate::backend::cpu::{self, Model, UnknownToken};
use crate::demand::Demand;
use crate::parse::Parser;
use crate::query::{Refused, Source, ToolChoice};
use crate::splice::Turns;
use crate::{Encoder, Error, Message, Request, Sampling, Span, stop_ids};

pub(super) struct Shared {
    pub(super) encoder: Encoder,
    pub(super) stop_ids: BTreeSet<u32>,
    /// Rows of the embedding: ids from it on are none.
    pub(super) vocab: usize,
    /// Tokens of prompt and answer together, at most.
    pub(super) context_tokens: usize,
    /// Turns that may run and wait.
    pub(super) n_places: usize,
    /// Turns that do.
    pub(super) n_taken: Arc<AtomicUsize>,
    pub(super) is_closing: AtomicBool,
    pub(super) turns: Mutex<Turns>,
    /// Tells how long batches take.
    pub(super) clock: Box<dyn Fn() -> Instant + Send + Sync>,
}

/// How a turn begins.
pub(super) struct Beginning {
    pub(super) prompt: Vec<u32>,
    /// How its answer is read.
    pub(super) reader: Reader,
    /// The call that it must make.
    pub(super) demand: Option<Demand>,
}

impl Beginning {
    fn raw(prompt: Vec<u32>) -> Self {
        Self { prompt, reader: Reader::raw(), demand: None }
    }
}

impl Shared {
    /// Loads a model's folder.
    pub(super) fn load(folder: &Path, options: &Options) -> Result<(Self, Model), Error> {
        let encoder = Encoder::load(folder)?;
        let stop_ids = stop_ids(folder, encoder.tokenizer())?;
        let Options { dtype, n_threads, isa, .. } = *options;
        let model = Model::load(folder, &cpu::Options { dtype, n_threads, isa })?;
        let (vocab, n_ids) = (model.shape().vocab, encoder.tokenizer().n_ids());
        if n_ids > vocab {
            let file = folder.join("tokenizer.json");
            let reason = format!("it has {n_ids} ids, but the model only {vocab}");
            return Err(Error::File { file, reason });
        }
        let shared = Self {
            encoder,
            stop_ids,
            vocab,
            context_tokens: options.context_tokens.min(model.shape().max_positions),
            n_places: options.n_sessions.max(1).saturating_add(options.n_waiting),
            n_taken: Arc::default(),
            is_closing: AtomicBool::new(false),
            turns: Mutex::default(),
            clock: Box::new(Instant::now),
        };
        Ok((shared, model))
    }

    /// How a turn begins.
    pub(super) fn read(&self, source: Source, sampling: &Sampling) -> Result<Beginning, Refused> {
        let beginning = match source {
            Source::Conversation { messages, tools, tool_choice, is_one_call } => {
                let request = Request { messages, tools, sampling: sampling.clone() };
                self.converse(request, &tool_choice, is_one_call)?
            }
            Source::Text(text) => {
                let ids = self.encoder.tokenizer().encode(&[Span::Trusted(&text)]);
                Beginning::raw(ids.map_err(|error| Refused::Encode(error.into()))?)
            }
            Source::Ids(ids) => Beginning::raw(ids),
        };
        let ids = &beginning.prompt;
        let is_unknown = |id: &&u32| usize::try_from(**id).is_ok_and(|id| id >= self.vocab);
        if let Some(&id) = ids.iter().find(is_unknown) {
            return Err(Refused::UnknownToken(UnknownToken { id, vocab: self.vocab }));
        }
        if ids.is_empty() {
            return Err(Refused::Empty);
        }
        let (n_tokens, context_tokens) = (ids.len(), self.context_tokens);
        if n_tokens >= context_tokens {
            return Err(Refused::TooLong { n_tokens, context_tokens });
        }
        Ok(beginning)
    }

    fn converse(
        &self,
        request: Request,
        choice: &ToolChoice,
        is_one_call: bool,
    ) -> Result<Beginning, Refused> {
        let rendered = self.encoder.encode(&request).map_err(Refused::Encode)?;
        let Request { messages, mut tools, .. } = request;
        let tokenizer = self.encoder.tokenizer();
        let demand = Demand::new(choice, &tools, rendered.start, tokenizer)?;
        let prompt = self.turns().splice(tokenizer, rendered, &tools);
        let n_calls = |message: &Message| match message {
            Message::Assistant { calls, .. } => calls.len(),
            Message::System { .. } | Message::User { .. } | Message::Tool { .. } => 0,
        };
        let n_earlier_calls = messages.iter().map(n_calls).sum();
        // A call without its mark is one only if it names one of these.
        tools.retain(|tool| choice.allows(tool));
        let parser = Parser::new(prompt.start, tools, n_earlier_calls);
        Ok(Beginning { prompt: prompt.ids, reader: Reader::Parsed { parser, is_one_call }, demand })
    }

    pub(super) fn turns(&self) -> MutexGuard<'_, Turns> {
        // A turn that was half remembered does no harm: what it says is compared before it is used.
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
