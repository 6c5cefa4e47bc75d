//! From a turn's events to the JSON that goes out, whole or in pieces. Pure. Both ways tell the same: the pieces of a
//! stream, put together, are the whole answer.

use engine::{Candidate, DrawnToken, Event, Failure, Finished, Piece, Stop, ToolCall, Usage};
use serde_json::{Map, Value, json};

use super::ask::Delivery;
use crate::model::wire::number;

/// What OpenAI writes for a probability of nothing, which JSON has no number for.
const NEVER: f32 = -9999.0;

/// Which protocol an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
}

/// What stands in every part of an answer.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) form: Form,
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: i64,
    pub(super) model: String,
    pub(super) delivery: Delivery,
    pub(super) has_logprobs: bool,
}

/// Makes the answer to one request.
#[derive(Debug)]
pub(super) struct Answer {
    head: Head,
    /// Tokens that no part has told yet.
    tokens: Vec<DrawnToken>,
    /// White space that is only told once more follows: an answer of nothing else is none.
    held: String,
    has_text: bool,
    n_calls: usize,
    told: Characters,
}

/// Counts the characters of tokens, of which each may hold a part of one.
#[derive(Debug, Default)]
struct Characters {
    n: usize,
    /// The bytes of one that is not complete.
    open: Vec<u8>,
}

impl Characters {
    /// Takes the next token. In which character it begins.
    fn place(&mut self, bytes: &[u8]) -> usize {
        let place = self.n;
        let bytes = [std::mem::take(&mut self.open).as_slice(), bytes].concat();
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.n += chunk.valid().chars().count();
            let is_open =
                |bytes| std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none());
            match chunk.invalid() {
                [] => {}
                bytes if chunks.peek().is_none() && is_open(bytes) => self.open = bytes.to_vec(),
                // No character, so it is told as U+FFFD.
                _ => self.n += 1,
            }
        }
        place
    }
}

impl Answer {
    pub(super) fn new(head: Head) -> Self {
        Self {
            head,
            tokens: Vec::new(),
            held: String::new(),
            has_text: false,
            n_calls: 0,
            told: Characters::default(),
        }
    }

    /// A token of an answer that is sent whole.
    pub(super) fn keep(&mut self, token: DrawnToken) {
        self.tokens.push(token);
    }

    /// The whole answer.
    pub(super) fn whole(mut self, finished: &Finished) -> Value {
        let reply = &finished.reply;
        let calls = reply.calls.as_slice();
        self.n_calls = calls.len();
        let finish = self.finish_reason(reply.stop);
        let logprobs = self.logprobs();
        let choice = match self.head.form {
            Form::Text => {
                json!({ "index": 0, "text": reply.content, "logprobs": logprobs, "finish_reason": finish })
            }
            Form::Chat => {
                let mut message = Map::new();
                message.insert("role".into(), "assistant".into());
                let content = Some(&reply.content).filter(|content| !content.is_empty());
                // A message without calls always has a text, if an empty one.
                let content = content.or((calls.is_empty()).then_some(&reply.content));
                message.insert("content".into(), json!(content));
                if !reply.reasoning.is_empty() {
                    message.insert("reasoning_content".into(), reply.reasoning.as_str().into());
                }
                if !calls.is_empty() {
                    message.insert("tool_calls".into(), calls.iter().map(call).collect());
                }
                json!({ "index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish })
            }
        };
        let mut body = self.part(vec![choice]);
        body["object"] = match self.head.form {
            Form::Chat => "chat.completion".into(),
            Form::Text => "text_completion".into(),
        };
        body["usage"] = usage(finished);
        body
    }

    /// What a stream begins with.
    pub(super) fn first(&mut self) -> Vec<Value> {
        match self.head.form {
            Form::Chat => vec![self.delta(json!({ "role": "assistant", "content": "" }), None)],
            Form::Text => Vec::new(),
        }
    }

    /// The parts of a stream that an event completes.
    ///
    /// # Errors
    /// The turn broke off.
    pub(super) fn next(&mut self, event: Event) -> Result<Vec<Value>, Failure> {
        match event {
            Event::Token(token) => {
                self.tokens.push(token);
                Ok(Vec::new())
            }
            Event::Piece(piece) => Ok(self.piece(piece)),
            Event::End(finished) => Ok(self.last(&finished?)),
        }
    }

    fn piece(&mut self, piece: Piece) -> Vec<Value> {
        match (self.head.form, piece) {
            (Form::Chat, Piece::Reasoning(text)) => {
                vec![self.delta(json!({ "reasoning_content": text }), None)]
            }
            (Form::Chat, Piece::Text(text)) => {
                self.held.push_str(&text);
                self.has_text |= !text.trim().is_empty();
                if !self.has_text {
                    return Vec::new();
                }
                let text = std::mem::take(&mut self.held);
                vec![self.delta(json!({ "content": text }), None)]
            }
            (Form::Chat, Piece::Call(call)) => self.call(&call),
            (Form::Text, Piece::Text(text)) => {
                let logprobs = self.logprobs();
                let choice = json!({ "index": 0, "text": text, "logprobs": logprobs, "finish_reason": null });
                vec![self.part(vec![choice])]
            }
            // A raw turn is all text.
            (Form::Text, Piece::Reasoning(_) | Piece::Call(_)) => Vec::new(),
        }
    }

    /// A call begins with its id and name; its arguments follow.
    fn call(&mut self, call: &ToolCall) -> Vec<Value> {
        let index = self.n_calls;
        self.n_calls += 1;
        let function = json!({ "name": call.name, "arguments": "" });
        let begun =
            json!({ "index": index, "id": call.id, "type": "function", "function": function });
        let rest = json!({ "index": index, "function": { "arguments": call.arguments } });
        vec![
            self.delta(json!({ "tool_calls": [begun] }), None),
            self.delta(json!({ "tool_calls": [rest] }), None),
        ]
    }

    fn last(&mut self, finished: &Finished) -> Vec<Value> {
        let finish = self.finish_reason(finished.reply.stop);
        let last = match self.head.form {
            Form::Chat => self.delta(json!({}), Some(finish)),
            Form::Text => {
                let logprobs = self.logprobs();
                let choice = json!({ "index": 0, "text": "", "logprobs": logprobs, "finish_reason": finish });
                self.part(vec![choice])
            }
        };
        let mut parts = vec![last];
        if self.head.delivery.has_usage {
            let mut part = self.part(Vec::new());
            part["usage"] = usage(finished);
            parts.push(part);
        }
        parts
    }

    pub(super) fn finish_reason(&self, stop: Stop) -> &'static str {
        match stop {
            Stop::Length => "length",
            Stop::End if self.n_calls > 0 => "tool_calls",
            Stop::End => "stop",
        }
    }

    fn delta(&mut self, delta: Value, finish: Option<&str>) -> Value {
        let logprobs = self.logprobs();
        let choice =
            json!({ "index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        self.part(vec![choice])
    }

    fn part(&self, choices: Vec<Value>) -> Value {
        let head = &self.head;
        let object = match head.form {
            Form::Chat => "chat.completion.chunk",
            Form::Text => "text_completion",
        };
        let mut part = json!({ "id": head.id, "object": object, "created": head.created,
                               "model": head.model, "choices": choices });
        if head.delivery.has_usage {
            part["usage"] = Value::Null;
        }
        part
    }

    /// The tokens that were not told yet.
    fn logprobs(&mut self) -> Value {
        let tokens = std::mem::take(&mut self.tokens);
        if !self.head.has_logprobs {
            return Value::Null;
        }
        match self.head.form {
            Form::Chat => {
                json!({ "content": tokens.iter().map(token).collect::<Value>(), "refusal": null })
            }
            Form::Text => self.text_logprobs(&tokens),
        }
    }

    fn text_logprobs(&mut self, tokens: &[DrawnToken]) -> Value {
        let spell = |candidate: &Candidate| String::from_utf8_lossy(&candidate.bytes).into_owned();
        let mut offsets = Vec::with_capacity(tokens.len());
        let mut likeliest = Vec::with_capacity(tokens.len());
        for token in tokens {
            offsets.push(self.told.place(&token.drawn.bytes));
            // The drawn token is among them, likely or not.
            let all = token.likeliest.iter().chain([&token.drawn]);
            let pairs = all.map(|each| (spell(each), logprob(each)));
            likeliest.push(Value::Object(pairs.collect()));
        }
        let texts: Vec<String> = tokens.iter().map(|token| spell(&token.drawn)).collect();
        let own: Vec<Value> = tokens.iter().map(|token| logprob(&token.drawn)).collect();
        json!({ "tokens": texts, "token_logprobs": own, "top_logprobs": likeliest, "text_offset": offsets })
    }
}

fn call(call: &ToolCall) -> Value {
    json!({ "id": call.id, "type": "function",
            "function": { "name": call.name, "arguments": call.arguments } })
}

fn token(token: &DrawnToken) -> Value {
    let mut value = candidate(&token.drawn);
    value["top_logprobs"] = token.likeliest.iter().map(candidate).collect();
    value
}

fn candidate(candidate: &Candidate) -> Value {
    json!({ "token": String::from_utf8_lossy(&candidate.bytes), "logprob": logprob(candidate),
            "bytes": candidate.bytes })
}

fn logprob(candidate: &Candidate) -> Value {
    number(candidate.logprob.max(NEVER))
}

fn usage(finished: &Finished) -> Value {
    let usage: Usage = finished.reply.usage.unwrap_or_default();
    json!({ "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total(),
            "prompt_tokens_details": { "cached_tokens": finished.timings.n_cached } })
}
