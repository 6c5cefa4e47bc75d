//! The loop of the engine's thread, one batch at a time. It owns the model and the cache; the thread only hands it turns.
//!
//! A batch that fails ends the turns that are in it, and a turn that fails ends alone. What fails around them ends all turns
//! and drops what is cached, and the loop goes on: the weights, which take minutes to load, are never written to.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::running::{Asked, Running};
use super::shared::Shared;
use crate::backend::cpu::{Model, Snapshot, Step, UnknownToken, Wanted};
use crate::cache::{self, Cache, Key};
use crate::pace::Pace;
use crate::query::Failure;
use crate::schedule::{self, Batch, Limits, Work};

/// What computes a batch: the model, or in tests something around it.
pub(super) type Forward =
    Box<dyn FnMut(&Model, &mut [Step<'_>]) -> Result<Vec<f32>, UnknownToken> + Send>;

/// Runs turns.
pub(super) struct Worker<'a> {
    shared: &'a Shared,
    model: Model,
    forward: Forward,
    cache: Cache,
    memory_bytes: usize,
    limits: Limits,
    pace: Pace,
    /// In the order in which they came.
    turns: Vec<Running<'a>>,
    /// Memory for the states before drafts, at most one for each turn that runs.
    spare: Vec<Snapshot>,
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
        let (pace, turns, spare) = (Pace::default(), Vec::new(), Vec::new());
        Self { shared, model, forward, cache, memory_bytes, limits, pace, turns, spare }
    }

    /// Takes a turn.
    pub(super) fn add(&mut self, asked: Asked) {
        self.turns.push(Running::new(self.shared, asked, self.limits.n_draft > 0));
    }

    /// Computes one batch; false if there is nothing to do.
    pub(super) fn step(&mut self) -> bool {
        let worked = catch_unwind(AssertUnwindSafe(|| self.batch()));
        worked.unwrap_or_else(|_| {
            self.start_over();
            false
        })
    }

    /// Nobody knows what is whole, so all of it goes.
    fn start_over(&mut self) {
        self.turns.drain(..).for_each(|mut turn| turn.fail(Failure::Defect));
        self.cache = Cache::new(self.memory_bytes);
        self.spare.clear();
        self.pace = Pace::default();
    }

    fn batch(&mut self) -> bool {
        for turn in &mut self.turns {
            turn.end_if_unwanted();
        }
        self.remove_ended();
        self.begin();
        let n_beside = self.pace.chunk(self.limits.batch_time, self.limits.prefill_tokens);
        let batch = schedule::batch(&self.work(), &self.limits, n_beside);
        let parts = self.parts(&batch);
        if parts.is_empty() {
            return !self.turns.is_empty();
        }
        for (number, turn) in self.turns.iter_mut().enumerate() {
            if parts.iter().all(|part| part.turn != number) {
                turn.pass();
            }
        }
        let begun = (self.shared.clock)();
        let computed = self.compute(&parts);
        if !batch.decode.is_empty() {
            let n_tokens = batch.prefill.iter().map(|(_, n_tokens)| n_tokens).sum();
            self.pace.learn(n_tokens, (self.shared.clock)() - begun);
        }
        match computed {
            Some(logits) => self.read(parts, &logits),
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
        while let Some(at) = schedule::begins(&self.work(), &self.limits) {
            let turn = &mut self.turns[at];
            let key = self.cache.take(&self.model, turn.prompt());
            let n_cached = self.cache.n_tokens(key);
            let message = self.shared.encoder.tokenizer().id("<|im_start|>");
            turn.begin(key, n_cached, cache::places(turn.prompt(), n_cached, message));
            self.remove_ended();
        }
    }

    fn work(&self) -> Vec<Work> {
        let work = |turn: &Running<'_>| match turn.work() {
            Work::Waiting => self.follows(turn.prompt()).unwrap_or(Work::Waiting),
            work @ (Work::Follows { .. } | Work::Prefill { .. } | Work::Decode) => work,
        };
        self.turns.iter().map(work).collect()
    }

    /// Whether a prompt should wait, because one in progress is going to leave more of it than there is.
    fn follows(&self, prompt: &[u32]) -> Option<Work> {
        let leads = self.turns.iter().map(|turn| turn.n_leads(prompt)).enumerate();
        let (leader, n_shared) = leads.max_by_key(|(_, n_shared)| *n_shared)?;
        if n_shared < cache::WORTH_TOKENS {
            return None;
        }
        let n_usable = self.cache.n_usable(prompt);
        let n_left = prompt.len() - n_usable;
        (n_shared >= n_usable + cache::WORTH_TOKENS).then_some(Work::Follows { leader, n_left })
    }

    fn parts(&mut self, batch: &Batch) -> Vec<Part> {
        let mut parts = Vec::new();
        for &turn in &batch.decode {
            let key = self.turns[turn].key();
            let (ids, n_draft) = self.turns[turn].next_ids(batch.n_draft);
            let before = (n_draft > 0).then(|| self.cache.snapshot(key, self.spare.pop()));
            let wanted = if n_draft > 0 { Wanted::All } else { Wanted::Last };
            parts.push(Part { turn, key, ids, wanted, n_draft, before });
        }
        for &(turn, n_tokens) in &batch.prefill {
            let (ids, is_last) = self.turns[turn].chunk(n_tokens);
            let wanted = if is_last { Wanted::Last } else { Wanted::None };
            let key = self.turns[turn].key();
            parts.push(Part { turn, key, ids, wanted, n_draft: 0, before: None });
        }
        parts
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

    fn read(&mut self, parts: Vec<Part>, mut logits: &[f32]) {
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

    fn read_part(&mut self, part: Part, rows: &[&[f32]]) {
        let Part { turn, key, ids, n_draft, before, .. } = part;
        let turn = &mut self.turns[turn];
        self.cache.append(key, &ids);
        if turn.advance(ids.len()) {
            self.cache.mark(key);
        }
        if rows.is_empty() {
            return;
        }
        let (certain, draft) = ids.split_at(ids.len() - n_draft);
        let rows = &rows[rows.len() - 1 - draft.len()..];
        let took = catch_unwind(AssertUnwindSafe(|| turn.take(rows, draft)));
        let Ok(n_accepted) = took else {
            turn.fail(Failure::Defect);
            return;
        };
        let Some(mut before) = before else { return };
        if n_accepted < draft.len() {
            self.cache.take_back(&self.model, key, &mut before);
            turn.repeat(&[certain, &draft[..n_accepted]].concat());
        }
        self.spare.push(before);
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
