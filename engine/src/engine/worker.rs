//! The loop of the engine's thread, one batch at a time. It owns the model and the cache; the thread only hands it turns.
//!
//! A batch that fails ends the turns that are in it, and a turn that fails ends alone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::running::{Asked, Running};
use super::shared::Shared;
use crate::backend::cpu::{Model, Snapshot, Step, UnknownToken, Wanted};
use crate::cache::{self, Cache, Key};
use crate::query::Failure;
use crate::schedule::{self, Batch, Limits};

/// What computes a batch: the model, or in tests something around it.
pub(super) type Forward =
    Box<dyn FnMut(&Model, &mut [Step<'_>]) -> Result<Vec<f32>, UnknownToken> + Send>;

/// Runs turns.
pub(super) struct Worker<'a> {
    shared: &'a Shared,
    model: Model,
    forward: Forward,
    cache: Cache,
    limits: Limits,
    /// In the order in which they came.
    turns: Vec<Running<'a>>,
}

/// A turn's part of a batch.
struct Part {
    /// The number of the turn.
    turn: usize,
    key: Key,
    ids: Vec<u32>,
    wanted: Wanted,
    /// How many of the ids, the last ones, are drafted.
    n_draft: usize,
    /// The states before the ids, if some are drafted.
    before: Option<Snapshot>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        model: Model,
        forward: Forward,
        memory_bytes: usize,
        limits: Limits,
    ) -> Self {
        let cache = Cache::new(memory_bytes);
        Self { shared, model, forward, cache, limits, turns: Vec::new() }
    }

    /// Takes a turn.
    pub(super) fn add(&mut self, asked: Asked) {
        self.turns.push(Running::new(self.shared, asked, self.limits.n_draft > 0));
    }

    /// Computes one batch; false if there is nothing to do.
    pub(super) fn step(&mut self) -> bool {
        for turn in &mut self.turns {
            turn.end_if_unwanted();
        }
        self.remove_ended();
        self.begin();
        let work: Vec<_> = self.turns.iter().map(Running::work).collect();
        let parts = self.parts(&schedule::batch(&work, &self.limits));
        if parts.is_empty() {
            return !self.turns.is_empty();
        }
        match self.compute(&parts) {
            Some(logits) => self.read(&parts, &logits),
            None => self.fail(&parts),
        }
        self.remove_ended();
        self.cache.evict();
        true
    }

    /// Bytes of all that is kept and used.
    #[cfg(test)]
    pub(super) fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }

    fn begin(&mut self) {
        let work: Vec<_> = self.turns.iter().map(Running::work).collect();
        let Some(at) = schedule::begins(&work, &self.limits) else { return };
        let turn = &mut self.turns[at];
        let key = self.cache.take(&self.model, turn.prompt());
        let n_cached = self.cache.n_tokens(key);
        let message = self.shared.encoder.tokenizer().id("<|im_start|>");
        turn.begin(key, n_cached, cache::places(turn.prompt(), n_cached, message));
        self.remove_ended();
    }

    fn parts(&self, batch: &Batch) -> Vec<Part> {
        let prefill = batch.prefill.map(|(turn, n_tokens)| {
            let (ids, is_last) = self.turns[turn].chunk(n_tokens);
            let wanted = if is_last { Wanted::Last } else { Wanted::None };
            let key = self.turns[turn].key();
            Part { turn, key, ids, wanted, n_draft: 0, before: None }
        });
        let decode = batch.decode.iter().map(|&turn| {
            let key = self.turns[turn].key();
            let (ids, n_draft) = self.turns[turn].next_ids(batch.n_draft);
            let before = (n_draft > 0).then(|| self.cache.snapshot(key));
            let wanted = if n_draft > 0 { Wanted::All } else { Wanted::Last };
            Part { turn, key, ids, wanted, n_draft, before }
        });
        decode.chain(prefill).collect()
    }

    /// The logits of a batch; none if that fails.
    fn compute(&mut self, parts: &[Part]) -> Option<Vec<f32>> {
        let keys: Vec<Key> = parts.iter().map(|part| part.key).collect();
        let pairs = self.cache.sequences(&keys).into_iter().zip(parts);
        let mut steps: Vec<Step<'_>> = pairs
            .map(|(sequence, part)| Step { sequence, ids: &part.ids, logits: part.wanted })
            .collect();
        let (forward, model) = (&mut self.forward, &self.model);
        let computed = catch_unwind(AssertUnwindSafe(|| forward(model, &mut steps)));
        computed.ok().and_then(Result::ok)
    }

    /// What may be half computed is dropped.
    fn fail(&mut self, parts: &[Part]) {
        for part in parts {
            self.turns[part.turn].fail(Failure::Defect);
            self.turns[part.turn].lose_key();
            self.cache.forget(part.key);
        }
    }

    fn read(&mut self, parts: &[Part], mut logits: &[f32]) {
        let vocab = self.model.shape().vocab;
        for part in parts {
            let n_rows = match part.wanted {
                Wanted::None => 0,
                Wanted::Last => 1,
                Wanted::All => part.ids.len(),
            };
            let (rows, rest) = logits.split_at(n_rows * vocab);
            logits = rest;
            let rows: Vec<&[f32]> = rows.chunks_exact(vocab).collect();
            self.read_part(part, &rows);
        }
    }

    fn read_part(&mut self, part: &Part, rows: &[&[f32]]) {
        let turn = &mut self.turns[part.turn];
        self.cache.append(part.key, &part.ids);
        if turn.advance(part.ids.len()) {
            self.cache.mark(part.key);
        }
        if rows.is_empty() {
            return;
        }
        let (certain, draft) = part.ids.split_at(part.ids.len() - part.n_draft);
        let rows = &rows[rows.len() - 1 - draft.len()..];
        let took = catch_unwind(AssertUnwindSafe(|| turn.take(rows, draft)));
        let Ok(n_accepted) = took else {
            turn.fail(Failure::Defect);
            return;
        };
        if let Some(before) = part.before.as_ref().filter(|_| n_accepted < draft.len()) {
            self.cache.restore(&self.model, part.key, before);
            turn.repeat(&[certain, &draft[..n_accepted]].concat());
        }
    }

    /// Sequences of turns that have ended stay for later ones.
    fn remove_ended(&mut self) {
        for turn in self.turns.extract_if(.., |turn| turn.has_ended()) {
            if let Some(key) = turn.kept() {
                self.cache.give_back(key);
            }
        }
    }
}
