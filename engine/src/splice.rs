//! The turns that a model wrote, to put them back into later prompts as the very tokens that it wrote.
//!
//! A conversation that comes back is rendered anew, and rendering may write a turn differently: other spaces in JSON, `True`
//! for `true`, other tokens for the same letters. Then what is cached ends in the middle of that turn. So a turn is replaced
//! by what the model wrote behind the same prompt, if both say the same: the same control tokens in the same order, and the
//! same reasoning, text and calls but for white space around them. What the template leaves out on purpose, such as the
//! reasoning of earlier turns, stays out, and no text becomes a control token.
//!
//! The engine's thread remembers what callers look up, so nobody holds the lock for longer than a look.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::parse::{Mark, Parser, Start};
use crate::{Prompt, Reply, Stop, Tokenizer, Tool};

/// Tokens of all remembered turns at most, 16 MB: some thousand turns.
const TOKENS: usize = 4 << 20;
/// Turns behind one prompt at most: whoever asks the same again and again goes on from one of the latest, and each is read
/// and compared.
const ANSWERS: usize = 4;

/// Remembers turns.
pub(crate) struct Turns {
    kept: Mutex<Kept>,
}

struct Kept {
    /// By their whole prompts. Two that share a number do no harm, because what a turn says is compared.
    of: HashMap<u64, Vec<Turn>>,
    /// The words with which prompts began a turn, one or two.
    heads: Vec<Vec<u32>>,
    n_tokens: usize,
    limit_tokens: usize,
    clock: u64,
}

struct Turn {
    /// With the token that ended it.
    generated: Arc<[u32]>,
    last_used: u64,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new(TOKENS)
    }
}

impl Turns {
    fn new(limit_tokens: usize) -> Self {
        let (of, heads) = (HashMap::new(), Vec::new());
        Self { kept: Mutex::new(Kept { of, heads, n_tokens: 0, limit_tokens, clock: 0 }) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // A turn that was half remembered does no harm: what it says is compared before it is used.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what the model wrote behind a prompt, with the token that ended its turn.
    pub(crate) fn remember(&self, tokenizer: &Tokenizer, prompt: &[u32], generated: &[u32]) {
        let start = tokenizer.id("<|im_start|>");
        let Some(head) = prompt.iter().rposition(|id| Some(*id) == start) else { return };
        let key = hash(prompt);
        self.kept().remember(key, &prompt[head..], generated);
    }

    /// The prompt with the turns in it as the model wrote them. It holds only turns of conversations that asked for these
    /// tools.
    pub(crate) fn splice(&self, tokenizer: &Tokenizer, prompt: Prompt, tools: &[Tool]) -> Prompt {
        let start = tokenizer.id("<|im_start|>");
        let mut hasher = DefaultHasher::new();
        let mut ids = Vec::with_capacity(prompt.ids.len());
        for block in prompt.ids.chunk_by(|_, next| Some(*next) != start) {
            let written = self.written(tokenizer, &hasher, block, tools);
            let block = written.as_deref().unwrap_or(block);
            block.iter().for_each(|id| hasher.write_u32(*id));
            ids.extend_from_slice(block);
        }
        Prompt { ids, start: prompt.start }
    }

    /// A block as the model wrote it, if it did. `before` has seen all that stands before it.
    fn written(
        &self,
        tokenizer: &Tokenizer,
        before: &DefaultHasher,
        block: &[u32],
        tools: &[Tool],
    ) -> Option<Vec<u32>> {
        let end = tokenizer.id("<|im_end|>")?;
        let (turn, rest) = block.split_at(block.iter().position(|id| *id == end)? + 1);
        let candidates = self.kept().candidates(before);
        if candidates.is_empty() {
            return None;
        }
        // Reading takes its time, so it happens outside of the lock.
        let rendered = Reading::of(tokenizer, turn, tools);
        for Candidate { key, head, generated } in candidates {
            let ids = [head.as_slice(), &generated].concat();
            if Reading::of(tokenizer, &ids, tools) == rendered {
                self.kept().touch(key, &generated);
                return Some([&ids, rest].concat());
            }
        }
        None
    }
}

/// A turn that may be the one that a prompt holds.
struct Candidate {
    key: u64,
    head: Vec<u32>,
    generated: Arc<[u32]>,
}

impl Kept {
    fn remember(&mut self, key: u64, head: &[u32], generated: &[u32]) {
        if generated.len() > self.limit_tokens {
            return;
        }
        if !self.heads.iter().any(|each| each == head) {
            self.heads.push(head.to_vec());
        }
        if self.touch(key, generated) {
            return;
        }
        self.clock += 1;
        let turns = self.of.entry(key).or_default();
        self.n_tokens += generated.len();
        turns.push(Turn { generated: generated.into(), last_used: self.clock });
        if turns.len() > ANSWERS {
            let oldest = (0..turns.len()).min_by_key(|at| turns[*at].last_used);
            let oldest = turns.remove(oldest.expect("there are some"));
            self.n_tokens -= oldest.generated.len();
        }
        while self.n_tokens > self.limit_tokens {
            self.forget_oldest();
        }
    }

    /// The turns behind what the hasher has seen, for each head the latest first.
    fn candidates(&self, before: &DefaultHasher) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for head in &self.heads {
            let mut hasher = before.clone();
            head.iter().for_each(|id| hasher.write_u32(*id));
            let key = hasher.finish();
            let turns = self.of.get(&key).into_iter().flatten().rev();
            candidates.extend(turns.map(|turn| {
                let generated = Arc::clone(&turn.generated);
                Candidate { key, head: head.clone(), generated }
            }));
        }
        candidates
    }

    /// Notes that a turn is used, if it is there.
    fn touch(&mut self, key: u64, generated: &[u32]) -> bool {
        self.clock += 1;
        let mut turns = self.of.get_mut(&key).into_iter().flatten();
        let found = turns.find(|turn| *turn.generated == *generated);
        found.map(|turn| turn.last_used = self.clock).is_some()
    }

    fn forget_oldest(&mut self) {
        let all = self.of.iter().flat_map(|(key, turns)| turns.iter().map(|turn| (*key, turn)));
        let Some((key, oldest)) =
            all.min_by_key(|(_, turn)| turn.last_used).map(|(key, turn)| (key, turn.last_used))
        else {
            return;
        };
        let turns = self.of.get_mut(&key).expect("it was found there");
        let at = turns.iter().position(|turn| turn.last_used == oldest);
        self.n_tokens -= turns.remove(at.expect("it was found there")).generated.len();
        if turns.is_empty() {
            self.of.remove(&key);
        }
    }
}

fn hash(ids: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    ids.iter().for_each(|id| hasher.write_u32(*id));
    hasher.finish()
}

/// What a block says.
#[derive(PartialEq)]
struct Reading {
    /// All up to the mark that opens the reasoning.
    opening: Vec<u32>,
    control: Vec<u32>,
    reasoning: String,
    content: String,
    /// Names and arguments.
    calls: Vec<(String, serde_json::Value)>,
}

impl Reading {
    fn of(tokenizer: &Tokenizer, ids: &[u32], tools: &[Tool]) -> Self {
        let is_open = |id: &u32| tokenizer.mark(*id) == Some(Mark::ThinkOpen);
        let n_opening = ids.iter().position(is_open).map_or(0, |at| at + 1);
        let (opening, rest) = ids.split_at(n_opening);
        let start = if n_opening == 0 { Start::Content } else { Start::Reasoning };
        let reply = reply(tokenizer, start, rest, tools);
        let arguments = |text: String| serde_json::from_str(&text).unwrap_or_default();
        Self {
            opening: opening.to_vec(),
            control: ids.iter().copied().filter(|id| tokenizer.is_added(*id)).collect(),
            reasoning: reply.reasoning.trim().to_owned(),
            content: reply.content.trim().to_owned(),
            calls: reply
                .calls
                .into_iter()
                .map(|call| (call.name, arguments(call.arguments)))
                .collect(),
        }
    }
}

fn reply(tokenizer: &Tokenizer, start: Start, ids: &[u32], tools: &[Tool]) -> Reply {
    let mut decoder = tokenizer.decoder();
    let mut parser = Parser::new(start, tools, 0);
    for id in ids {
        let part = decoder.push(*id);
        parser.text(&part.text, &mut |_| {});
        if let Some(mark) = part.mark {
            parser.mark(mark, &mut |_| {});
        }
    }
    parser.text(&decoder.finish(), &mut |_| {});
    parser.finish(Stop::End, None, &mut |_| {})
}

#[cfg(test)]
mod tests;
