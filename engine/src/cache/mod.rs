//! What turns leave in the model, kept for later turns within a budget of bytes.
//!
//! A kept sequence knows its tokens, and has marks: snapshots of its states at some of them. A prompt goes on from the end or
//! from a mark of the sequence that shares most tokens with it. It takes the sequence itself where that loses nothing;
//! where another turn uses it, or where it holds more tokens that may come again, a copy up to the mark. So two conversations
//! that began alike can alternate. What was used least recently is dropped first, and never what a turn uses.

mod marks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::backend::cpu::{Model, Sequence, Snapshot};
pub(crate) use marks::{least_needed, places};

/// Marks of one sequence at most. Each costs 50 MB in the published 4B model, as much as 1,600 tokens of keys and values.
const N_MARKS: usize = 16;
/// Marks that stay if the running turns alone need more than the budget.
const N_MARKS_LEAST: usize = 2;
/// A sequence with fewer tokens behind a mark is taken back to it: to compute these again costs no more than a copy.
pub(crate) const WORTH_TOKENS: usize = 32;

/// Names a kept sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

/// All that is kept.
pub(crate) struct Cache {
    kept: BTreeMap<Key, Kept>,
    limit_bytes: usize,
    /// Counts uses and names.
    clock: u64,
}

struct Kept {
    /// The tokens of the sequence.
    ids: Vec<u32>,
    sequence: Sequence,
    /// In the order of their tokens. Copies share them.
    marks: Vec<Arc<Snapshot>>,
    last_used: u64,
    /// Whether a turn runs on it.
    is_used: bool,
}

/// Where a prompt goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    key: Key,
    n_tokens: usize,
}

impl Kept {
    /// Tokens of a prompt that need not be computed: up to the end or to a mark, and not all, because the logits after the
    /// last one are wanted.
    fn n_usable(&self, prompt: &[u32]) -> usize {
        let pairs = self.ids.iter().zip(prompt);
        let n_same = pairs.take_while(|(ours, theirs)| ours == theirs).count();
        let n_same = n_same.min(prompt.len().saturating_sub(1));
        if self.ids.len() <= n_same {
            return self.ids.len();
        }
        let marks = self.marks.iter().rev().map(|mark| mark.n_tokens());
        marks.into_iter().find(|n_tokens| *n_tokens <= n_same).unwrap_or(0)
    }

    fn mark(&mut self) {
        let n_tokens = self.ids.len();
        if n_tokens == 0 || self.marks.last().is_some_and(|last| last.n_tokens() == n_tokens) {
            return;
        }
        self.marks.push(Arc::new(self.sequence.snapshot()));
        if self.marks.len() > N_MARKS {
            self.drop_mark();
        }
    }

    fn drop_mark(&mut self) {
        let tokens: Vec<usize> = self.marks.iter().map(|mark| mark.n_tokens()).collect();
        self.marks.remove(least_needed(&tokens));
    }

    fn last_mark(&self, n_tokens: usize) -> Arc<Snapshot> {
        let last = self.marks.iter().rfind(|mark| mark.n_tokens() == n_tokens);
        last.expect("a usable part ends at a mark").clone()
    }

    fn swap(&mut self, model: &Model, snapshot: &mut Snapshot) {
        let n_tokens = snapshot.n_tokens();
        self.sequence.swap(snapshot, model.shape());
        self.ids.truncate(n_tokens);
        self.marks.retain(|mark| mark.n_tokens() <= n_tokens);
    }

    /// Bytes without the marks.
    fn sequence_bytes(&self) -> usize {
        self.sequence.cache_bytes() + self.sequence.state_bytes()
    }
}

impl Cache {
    /// An empty cache that keeps so many bytes at most.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { kept: BTreeMap::new(), limit_bytes, clock: 0 }
    }

    /// A sequence for a turn with this prompt, which holds a part of it or nothing.
    pub(crate) fn take(&mut self, model: &Model, prompt: &[u32]) -> Key {
        self.clock += 1;
        let Some(Found { key, n_tokens }) = self.find(prompt) else {
            return self.add(Vec::new(), model.sequence(), Vec::new());
        };
        let has_room = self.has_room(key, n_tokens);
        let clock = self.clock;
        let kept = self.of(key);
        kept.last_used = clock;
        let n_behind = kept.ids.len() - n_tokens;
        if kept.is_used || (n_behind >= WORTH_TOKENS && has_room) {
            return self.fork(model, key, n_tokens);
        }
        kept.is_used = true;
        if n_behind == 0 {
            // Its end is a place from which others may go on, too.
            kept.mark();
        } else {
            let last = kept.last_mark(n_tokens);
            kept.swap(model, &mut Snapshot::clone(&last));
        }
        key
    }

    /// How many tokens of a prompt a sequence for it would hold now.
    pub(crate) fn n_usable(&self, prompt: &[u32]) -> usize {
        self.find(prompt).map_or(0, |found| found.n_tokens)
    }

    /// The most tokens; among equals one that goes on without a copy, then the one that was used last.
    fn find(&self, prompt: &[u32]) -> Option<Found> {
        let each = self.kept.iter().map(|(key, kept)| {
            let n_tokens = kept.n_usable(prompt);
            let is_whole = !kept.is_used && kept.ids.len() == n_tokens;
            ((n_tokens, is_whole, kept.last_used), Found { key: *key, n_tokens })
        });
        let best = each.max_by_key(|(rank, _)| *rank).map(|(_, found)| found);
        best.filter(|found| found.n_tokens > 0)
    }

    /// Whether a copy of the first tokens fits, if need be in place of what was used before this sequence.
    fn has_room(&self, key: Key, n_tokens: usize) -> bool {
        let kept = &self.kept[&key];
        let tokens = kept.sequence.cache_bytes() / kept.ids.len().max(1) * n_tokens;
        let is_older = |each: &&Kept| !each.is_used && each.last_used < kept.last_used;
        let older: usize = self.kept.values().filter(is_older).map(Kept::sequence_bytes).sum();
        let needed = self.bytes() + tokens + kept.sequence.state_bytes();
        needed <= self.limit_bytes.saturating_add(older)
    }

    fn fork(&mut self, model: &Model, key: Key, n_tokens: usize) -> Key {
        let kept = self.of(key);
        if kept.ids.len() == n_tokens {
            kept.mark();
        }
        let sequence = kept.sequence.fork(&kept.last_mark(n_tokens), model.shape());
        let mut marks = kept.marks.clone();
        marks.retain(|mark| mark.n_tokens() <= n_tokens);
        let ids = kept.ids[..n_tokens].to_vec();
        self.add(ids, sequence, marks)
    }

    fn add(&mut self, ids: Vec<u32>, sequence: Sequence, marks: Vec<Arc<Snapshot>>) -> Key {
        self.clock += 1;
        let key = Key(self.clock);
        let kept = Kept { ids, sequence, marks, last_used: self.clock, is_used: true };
        self.kept.insert(key, kept);
        self.evict();
        key
    }

    /// Tokens of a sequence.
    pub(crate) fn n_tokens(&self, key: Key) -> usize {
        self.kept[&key].ids.len()
    }

    /// The sequences themselves, in the order of the keys, for a batch.
    pub(crate) fn sequences(&mut self, keys: &[Key]) -> Vec<&mut Sequence> {
        let mut all: BTreeMap<Key, &mut Sequence> =
            self.kept.iter_mut().map(|(key, kept)| (*key, &mut kept.sequence)).collect();
        let mut one = |key| all.remove(key).expect("a turn's sequence is kept, and its own");
        keys.iter().map(&mut one).collect()
    }

    /// Notes tokens that a batch has added.
    pub(crate) fn append(&mut self, key: Key, ids: &[u32]) {
        self.of(key).ids.extend_from_slice(ids);
    }

    /// Makes the end of a sequence a place from which later turns may go on.
    pub(crate) fn mark(&mut self, key: Key) {
        self.of(key).mark();
    }

    /// The states as they are, to take back what follows, in the memory of a snapshot that nobody needs if there is one.
    pub(crate) fn snapshot(&self, key: Key, spare: Option<Snapshot>) -> Snapshot {
        let sequence = &self.kept[&key].sequence;
        let Some(mut snapshot) = spare else { return sequence.snapshot() };
        sequence.snapshot_into(&mut snapshot);
        snapshot
    }

    /// Takes back what followed a snapshot, which is spare then.
    pub(crate) fn take_back(&mut self, model: &Model, key: Key, snapshot: &mut Snapshot) {
        self.of(key).swap(model, snapshot);
    }

    /// The turn is over; its sequence stays for later ones.
    pub(crate) fn give_back(&mut self, key: Key) {
        self.clock += 1;
        let clock = self.clock;
        let kept = self.of(key);
        kept.last_used = clock;
        kept.is_used = false;
        self.evict();
    }

    /// Drops a sequence that nobody may trust any more.
    pub(crate) fn forget(&mut self, key: Key) {
        self.kept.remove(&key);
    }

    /// Bytes of all that is kept and used.
    pub(crate) fn bytes(&self) -> usize {
        let mut marks = BTreeSet::new();
        let mut bytes = 0;
        for kept in self.kept.values() {
            bytes += kept.sequence_bytes();
            // Shared ones count once.
            let own = kept.marks.iter().filter(|mark| marks.insert(Arc::as_ptr(mark)));
            bytes += own.map(|mark| mark.bytes()).sum::<usize>();
        }
        bytes
    }

    /// Keeps the budget: first the sequences that nobody uses go, then marks of those that are used.
    pub(crate) fn evict(&mut self) {
        while self.bytes() > self.limit_bytes {
            let unused = self.kept.iter().filter(|(_, kept)| !kept.is_used);
            if let Some(key) = unused.min_by_key(|(_, kept)| kept.last_used).map(|(key, _)| *key) {
                self.kept.remove(&key);
                continue;
            }
            let most = self.kept.values_mut().max_by_key(|kept| kept.marks.len());
            match most.filter(|kept| kept.marks.len() > N_MARKS_LEAST) {
                Some(kept) => kept.drop_mark(),
                None => return,
            }
        }
    }

    fn of(&mut self, key: Key) -> &mut Kept {
        self.kept.get_mut(&key).expect("a turn's sequence is kept")
    }
}

#[cfg(test)]
mod tests;
