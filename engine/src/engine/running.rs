//! One turn on the engine's thread, from its place in the queue to its end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::output::{Output, Reader};
use super::shared::{Beginning, Shared};
use super::sink::Sink;
use crate::cache::Key;
use crate::demand::Demand;
use crate::draft::Drafter;
use crate::logprobs::logprobs;
use crate::query::{Event, Failure, Finished, Timings};
use crate::schedule::Work;
use crate::{Among, Sampler, Stop, Usage};

/// A turn as its caller handed it in.
pub(super) struct Asked {
    pub(super) beginning: Beginning,
    pub(super) sampler: Sampler,
    pub(super) max_tokens: usize,
    pub(super) seed: u64,
    pub(super) stop_strings: Vec<String>,
    pub(super) n_logprobs: Option<usize>,
    pub(super) is_cancelled: Arc<AtomicBool>,
    pub(super) started: Instant,
    pub(super) sink: Sink,
}

/// A turn that waits or runs.
pub(super) struct Running<'a> {
    shared: &'a Shared,
    prompt: Vec<u32>,
    phase: Phase,
    /// Its sequence, once it has begun.
    key: Option<Key>,
    generated: Vec<u32>,
    /// Tokens that it may generate.
    n_most: usize,
    is_conversation: bool,
    n_logprobs: Option<usize>,
    seed: u64,
    sampler: Sampler,
    /// From the beginning on, so that turns that wait take no memory for it.
    drafter: Option<Drafter>,
    has_drafts: bool,
    demand: Option<Demand>,
    is_cancelled: Arc<AtomicBool>,
    started: Instant,
    begun: Option<Instant>,
    first: Option<Instant>,
    timings: Timings,
    /// Both until the end.
    ends: Option<(Output<'a>, Sink)>,
}

enum Phase {
    Waiting,
    Prefill {
        n_done: usize,
        /// Places at which a chunk must end, in order.
        marks: VecDeque<usize>,
        /// Batches in a row in which it stood still.
        n_passed: usize,
    },
    Decode {
        /// Tokens that are certain and not in the sequence, at least one.
        pending: Vec<u32>,
    },
}

impl<'a> Running<'a> {
    pub(super) fn new(shared: &'a Shared, asked: Asked, has_drafts: bool) -> Self {
        let tokenizer = shared.encoder.tokenizer();
        let Beginning { prompt, reader, demand } = asked.beginning;
        let room = shared.context_tokens.saturating_sub(prompt.len());
        let is_conversation = matches!(reader, Reader::Parsed { .. });
        Self {
            shared,
            phase: Phase::Waiting,
            key: None,
            generated: Vec::new(),
            n_most: asked.max_tokens.min(room),
            is_conversation,
            n_logprobs: asked.n_logprobs,
            seed: asked.seed,
            sampler: asked.sampler,
            drafter: None,
            has_drafts,
            demand,
            is_cancelled: asked.is_cancelled,
            started: asked.started,
            begun: None,
            first: None,
            timings: Timings::default(),
            ends: Some((Output::new(tokenizer, reader, asked.stop_strings), asked.sink)),
            prompt,
        }
    }

    pub(super) fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    pub(super) fn work(&self) -> Work {
        match &self.phase {
            Phase::Waiting => Work::Waiting,
            Phase::Prefill { n_done, marks, n_passed } => {
                let end = self.prompt.len();
                let stop = marks.front().copied().unwrap_or(end);
                let (n_next, n_left) = (stop - n_done, end - n_done);
                Work::Prefill { n_next, n_left, n_passed: *n_passed }
            }
            Phase::Decode { .. } => Work::Decode,
        }
    }

    /// The last place that it shares with another prompt of those at which it is going to be marked; 0 if there is none.
    pub(super) fn n_leads(&self, prompt: &[u32]) -> usize {
        let Phase::Prefill { marks, .. } = &self.phase else { return 0 };
        let pairs = self.prompt.iter().zip(prompt);
        let n_same = pairs.take_while(|(ours, theirs)| ours == theirs).count();
        // Not all of a prompt, because the logits after its last token are wanted.
        let n_same = n_same.min(prompt.len().saturating_sub(1));
        marks.iter().rfind(|mark| **mark <= n_same).copied().unwrap_or(0)
    }

    /// A batch was computed without it.
    pub(super) fn pass(&mut self) {
        if let Phase::Prefill { n_passed, .. } = &mut self.phase {
            *n_passed += 1;
        }
    }

    /// The sequence of a turn that has begun.
    pub(super) fn key(&self) -> Key {
        self.key.expect("a turn in a batch has begun")
    }

    /// Its sequence, if it has one.
    pub(super) fn kept(&self) -> Option<Key> {
        self.key
    }

    /// Its sequence is gone.
    pub(super) fn lose_key(&mut self) {
        self.key = None;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ends.is_none()
    }

    /// Ends it if nobody wants it or takes it any more.
    pub(super) fn end_if_unwanted(&mut self) {
        let is_broken = self.ends.as_ref().is_some_and(|(_, sink)| sink.is_broken());
        if is_broken {
            self.fail(Failure::Sink);
        } else if self.is_cancelled.load(Ordering::Relaxed) {
            self.fail(Failure::Cancelled);
        }
    }

    /// Begins on a sequence that holds the first tokens of the prompt.
    pub(super) fn begin(&mut self, key: Key, n_cached: usize, marks: Vec<usize>) {
        self.key = Some(key);
        self.begun = Some(Instant::now());
        self.timings.n_cached = n_cached;
        self.drafter = self.has_drafts.then(|| Drafter::new(&self.prompt, self.n_most));
        self.phase = Phase::Prefill { n_done: n_cached, marks: marks.into(), n_passed: 0 };
        if self.n_most == 0 {
            self.finish(Stop::Length);
        }
    }

    /// The next tokens of the prompt, and whether they are the last ones.
    pub(super) fn chunk(&self, n_tokens: usize) -> (Vec<u32>, bool) {
        let Phase::Prefill { n_done, .. } = &self.phase else { return (Vec::new(), false) };
        let end = n_done + n_tokens;
        (self.prompt[*n_done..end].to_vec(), end == self.prompt.len())
    }

    /// The next tokens of the answer, of which the last ones, so many, are drafted.
    pub(super) fn next_ids(&self, n_draft: usize) -> (Vec<u32>, usize) {
        let Phase::Decode { pending } = &self.phase else { return (Vec::new(), 0) };
        let mut ids = pending.clone();
        // Tokens that are computed again must get into the sequence for good before the next draft may be wrong.
        let Some(drafter) = self.drafter.as_ref().filter(|_| ids.len() == 1) else {
            return (ids, 0);
        };
        // The token after the last drafted one is drawn in the same step.
        let n_most = n_draft.min(self.n_most - self.generated.len() - 1);
        let certain = self.demand.as_ref().map(Demand::certain).unwrap_or_default();
        let draft = match certain.is_empty() {
            true => drafter.draft(n_most),
            false => certain[..n_most.min(certain.len())].to_vec(),
        };
        let is_inside = |id: &&u32| !self.shared.stop_ids.contains(*id);
        ids.extend(draft.iter().take_while(is_inside));
        let n_draft = ids.len() - 1;
        (ids, n_draft)
    }

    /// Tokens were computed. Whether the sequence should be marked behind them.
    pub(super) fn advance(&mut self, n_tokens: usize) -> bool {
        let Phase::Prefill { n_done, marks, n_passed } = &mut self.phase else { return false };
        (*n_done, *n_passed) = (*n_done + n_tokens, 0);
        self.timings.n_prefilled += n_tokens;
        let is_mark = marks.front() == Some(n_done);
        if is_mark {
            marks.pop_front();
        }
        if *n_done == self.prompt.len() {
            self.phase = Phase::Decode { pending: Vec::new() };
        }
        is_mark
    }

    /// Takes the logits after its last certain token and after each drafted one. How many of these were right: the token
    /// that is drawn from the logits before it is the same.
    pub(super) fn take(&mut self, rows: &[&[f32]], draft: &[u32]) -> usize {
        self.timings.n_steps += 1;
        self.timings.n_drafted += draft.len();
        // Tokens that a demand makes certain say nothing about guesses.
        let is_guess = self.demand.as_ref().is_none_or(|demand| demand.certain().is_empty());
        let mut n_accepted = 0;
        for row in rows {
            let id = self.draw(row);
            self.phase = Phase::Decode { pending: vec![id] };
            self.timings.n_accepted += usize::from(draft.get(n_accepted) == Some(&id));
            if self.has_ended() || draft.get(n_accepted) != Some(&id) {
                break;
            }
            n_accepted += 1;
        }
        if let Some(drafter) = self.drafter.as_mut().filter(|_| is_guess && !draft.is_empty()) {
            drafter.learn(draft.len(), n_accepted);
        }
        n_accepted
    }

    /// Tokens before the one that was drawn last were taken back and come again.
    pub(super) fn repeat(&mut self, ids: &[u32]) {
        if let Phase::Decode { pending } = &mut self.phase {
            pending.splice(0..0, ids.iter().copied());
        }
    }

    /// Draws the next token, hands it out, and ends the turn if it is the last.
    fn draw(&mut self, logits: &[f32]) -> u32 {
        self.first.get_or_insert_with(Instant::now);
        let tokenizer = self.shared.encoder.tokenizer();
        let stop_ids = &self.shared.stop_ids;
        let among = self.demand.as_ref().map_or(Among::All, |demand| demand.among(stop_ids));
        let id = self.sampler.draw(logits, self.generated.len() as u64, &among);
        if let Some(demand) = &mut self.demand {
            demand.advance(id, tokenizer.mark(id));
        }
        self.generated.push(id);
        self.shared.n_generated.fetch_add(1, Ordering::Relaxed);
        self.sampler.accept(id);
        if let Some(drafter) = &mut self.drafter {
            drafter.push(id);
        }
        if self.shared.stop_ids.contains(&id) {
            if self.is_conversation {
                self.remember(None);
            }
            self.finish(Stop::End);
            return id;
        }
        let Some((output, sink)) = &mut self.ends else { return id };
        if let Some(n) = self.n_logprobs {
            let real = &logits[..tokenizer.n_ids().min(logits.len())];
            sink.send(Event::Token(logprobs(real, id, n, &|id| tokenizer.bytes(id))));
        }
        if output.push(id, &mut |piece| sink.send(Event::Piece(piece))) {
            if output.is_ended_by_call() {
                self.remember(tokenizer.id("<|im_end|>"));
            }
            self.finish(Stop::End);
        } else if self.generated.len() >= self.n_most {
            self.finish(Stop::Length);
        }
        id
    }

    /// Keeps the turn for later prompts, where `end`, which the model did not write, may close it.
    fn remember(&self, end: Option<u32>) {
        let written: Vec<u32> = self.generated.iter().copied().chain(end).collect();
        let tokenizer = self.shared.encoder.tokenizer();
        self.shared.turns.remember(tokenizer, &self.prompt, &written);
    }

    fn finish(&mut self, stop: Stop) {
        let Some((output, mut sink)) = self.ends.take() else { return };
        let usage = Usage {
            prompt_tokens: self.prompt.len() as u64,
            completion_tokens: self.generated.len() as u64,
        };
        let reply = output.finish(stop, usage, &mut |piece| sink.send(Event::Piece(piece)));
        let now = Instant::now();
        let begun = self.begun.unwrap_or(now);
        let first = self.first.unwrap_or(now);
        let timings = Timings {
            queued: begun - self.started,
            prefill: first - begun,
            decode: now - first,
            ..self.timings
        };
        sink.end(Ok(Finished { reply, seed: self.seed, timings }));
    }

    /// Ends it before its time.
    pub(super) fn fail(&mut self, failure: Failure) {
        if let Some((_, sink)) = self.ends.take() {
            sink.end(Err(failure));
        }
    }
}
