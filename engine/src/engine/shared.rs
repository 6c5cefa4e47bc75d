//! What the engine's thread and its callers share: how prompts are made, and how many turns there are.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
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
    /// Tokens that were generated in all turns, whatever became of these.
    pub(super) n_generated: AtomicU64,
    pub(super) is_closing: AtomicBool,
    pub(super) turns: Turns,
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
            n_generated: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
            turns: Turns::default(),
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
        let prompt = self.turns.splice(tokenizer, rendered, &tools);
        // A call without its mark is one only if it names one of these.
        tools.retain(|tool| choice.allows(tool));
        let parser = Parser::new(prompt.start, tools, last_number(&messages));
        Ok(Beginning { prompt: prompt.ids, reader: Reader::Parsed { parser, is_one_call }, demand })
    }
}

/// From which number on the ids of a turn's calls are free. A conversation whose beginning was left out holds fewer calls
/// than the numbers of the last ones say.
fn last_number(messages: &[Message]) -> usize {
    let ids = || {
        let calls = messages.iter().filter_map(|message| match message {
            Message::Assistant { calls, .. } => Some(calls),
            Message::System { .. } | Message::User { .. } | Message::Tool { .. } => None,
        });
        calls.flatten().map(|call| call.id.as_str())
    };
    // Larger numbers are never reached.
    let number = |id: &str| id.strip_prefix("call_")?.parse::<u32>().ok();
    let largest = ids().filter_map(number).max().unwrap_or(0);
    ids().count().max(usize::try_from(largest).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolCall;

    #[test]
    fn the_ids_of_calls_go_on_behind_all_that_are_there() {
        let turn = |ids: &[&str]| {
            let call = |id: &&str| ToolCall {
                id: (*id).into(),
                name: "look".into(),
                arguments: "{}".into(),
            };
            let calls = ids.iter().map(call).collect();
            Message::Assistant { content: String::new(), reasoning: String::new(), calls }
        };
        let question = Message::User { content: "call_99".into() };
        for (ids, expected) in [
            (&[][..], 0),
            (&["call_1", "call_2"], 2),
            (&["a", "call_", "call_x"], 3),
            (&["call_4", "call_5", "call_6"], 6),
            (&["call_6", "call_5"], 6),
            (&["call_18446744073709551615"], 1),
        ] {
            let messages = [question.clone(), turn(ids), turn(&[])];
            assert_eq!(last_number(&messages), expected, "{ids:?}");
        }
    }
}
