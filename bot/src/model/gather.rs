//! From bytes to a turn: server-sent events, then deltas, then one reply. Pure, and bounded whatever a server sends.

use engine::{Piece, Reply, Stop, ToolCall, Usage};
use serde_json::Value;

use super::wire::{self, Chunk, Delta};

/// Bytes of one turn at most: 8,192 tokens are some 40 kB, so this is only a guard against a server gone wild.
const TURN_BYTES: usize = 16 << 20;
/// Calls in one turn at most.
const CALLS: usize = 64;

/// Splits a byte stream into the data of server-sent events.
#[derive(Default)]
pub(super) struct Events {
    buffer: Vec<u8>,
    data: String,
    n_bytes: usize,
}

impl Events {
    /// Takes bytes as they come, cut anywhere, and returns the events that are complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<String>, String> {
        self.n_bytes += bytes.len();
        if self.n_bytes > TURN_BYTES {
            return Err(format!("it is longer than {TURN_BYTES} bytes"));
        }
        // What is already there has no line's end.
        let mut from = self.buffer.len();
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        let mut start = 0;
        while let Some(length) = self.buffer[from..].iter().position(|&byte| byte == b'\n') {
            let end = from + length;
            let line = String::from_utf8_lossy(&self.buffer[start..end]).into_owned();
            start = end + 1;
            from = start;
            self.line(line.trim_end_matches('\r'), &mut events);
        }
        self.buffer.drain(..start);
        Ok(events)
    }

    /// The last event, where a server forgot the empty line after it.
    pub(super) fn finish(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.buffer);
        let mut events = Vec::new();
        self.line(String::from_utf8_lossy(&rest).trim_end_matches('\r'), &mut events);
        self.line("", &mut events);
        events.pop()
    }

    fn line(&mut self, line: &str, events: &mut Vec<String>) {
        if line.is_empty() {
            if !self.data.is_empty() {
                events.push(std::mem::take(&mut self.data));
            }
        } else if let Some(data) = line.strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
        }
        // Comments keep the connection alive; other fields say nothing here.
    }
}

/// Puts the parts of a turn together.
#[derive(Default)]
pub(super) struct Gather {
    content: String,
    reasoning: String,
    calls: Vec<Partial>,
    stop: Option<Stop>,
    usage: Option<Usage>,
    is_started: bool,
}

#[derive(Default)]
struct Partial {
    index: Option<usize>,
    id: String,
    name: String,
    arguments: String,
}

impl Gather {
    /// Takes one event's JSON. An error may be long: whoever shows it takes secrets out of it first and cuts it then.
    pub(super) fn take(&mut self, data: &str, pieces: &mut dyn FnMut(Piece)) -> Result<(), String> {
        let value: Value =
            serde_json::from_str(data).map_err(|_| format!("this is not JSON: {data}"))?;
        let chunk: Chunk = serde_json::from_value(value)
            .map_err(|error| format!("an event is not of the protocol: {error}"))?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            return Err(format!("the server broke off: {}", wire::words(&error)));
        }
        if let Some(usage) = chunk.usage {
            self.usage = Some(Usage {
                prompt_tokens: usage.prompt_tokens.unwrap_or(0),
                completion_tokens: usage.completion_tokens.unwrap_or(0),
            });
        }
        for choice in chunk.choices.into_iter().take(1) {
            self.is_started = true;
            if let Some(delta) = choice.delta {
                self.delta(delta, pieces)?;
            }
            if let Some(reason) = choice.finish_reason {
                self.stop = Some(if reason == "length" { Stop::Length } else { Stop::End });
            }
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta, pieces: &mut dyn FnMut(Piece)) -> Result<(), String> {
        // Some servers send both names with the same text.
        let reasoning = delta.reasoning_content.or(delta.reasoning).unwrap_or_default();
        if !reasoning.is_empty() {
            self.reasoning.push_str(&reasoning);
            pieces(Piece::Reasoning(reasoning));
        }
        if let Some(content) = delta.content.filter(|content| !content.is_empty()) {
            self.content.push_str(&content);
            pieces(Piece::Text(content));
        }
        for call in delta.tool_calls.unwrap_or_default() {
            self.call(call)?;
        }
        Ok(())
    }

    fn call(&mut self, call: wire::Call) -> Result<(), String> {
        let function = call.function.unwrap_or(wire::Function { name: None, arguments: None });
        let known = match call.index {
            Some(index) => self.calls.iter().position(|each| each.index == Some(index)),
            // Without an index, an id or a name begins a call and anything else goes on with the last.
            None if call.id.is_none() && function.name.is_none() => self.calls.len().checked_sub(1),
            None => None,
        };
        let at = match known {
            Some(at) => at,
            None if self.calls.len() == CALLS => {
                return Err(format!("it has more than {CALLS} calls"));
            }
            None => {
                self.calls.push(Partial { index: call.index, ..Partial::default() });
                self.calls.len() - 1
            }
        };
        let partial = &mut self.calls[at];
        if let Some(id) = call.id.filter(|id| !id.is_empty()) {
            partial.id = id;
        }
        if let Some(name) = function.name {
            partial.name.push_str(&name);
        }
        match function.arguments {
            Some(Value::String(text)) => partial.arguments.push_str(&text),
            Some(Value::Null) | None => {}
            Some(value) => partial.arguments.push_str(&value.to_string()),
        }
        Ok(())
    }

    /// Whether the server has said why the turn ended.
    pub(super) fn is_complete(&self) -> bool {
        self.stop.is_some()
    }

    /// The whole turn. `known` are the ids of the conversation's earlier calls: a server that repeats one, or gives none,
    /// gets a new one.
    pub(super) fn reply(
        self,
        known: &[&str],
        pieces: &mut dyn FnMut(Piece),
    ) -> Result<Reply, String> {
        let Some(stop) = self.stop else {
            return Err(if self.is_started {
                "the stream broke off"
            } else {
                "it holds no choice"
            }
            .into());
        };
        let (reasoning, content) = split_thoughts(self.reasoning, self.content);
        let mut calls: Vec<ToolCall> = Vec::new();
        for partial in self.calls {
            let is_free = |id: &str| !known.contains(&id) && calls.iter().all(|call| call.id != id);
            let id = if !partial.id.is_empty() && is_free(&partial.id) {
                partial.id
            } else {
                // As many are taken as there are calls, so one of the first numbers behind them is free.
                let numbers = known.len() + calls.len() + 1..;
                let mut ids = numbers.map(|number| format!("call_{number}"));
                ids.find(|id| is_free(id)).expect("there is always another number")
            };
            let call = ToolCall { id, name: partial.name, arguments: partial.arguments };
            pieces(Piece::Call(call.clone()));
            calls.push(call);
        }
        Ok(Reply { content, reasoning, calls, stop, usage: self.usage })
    }
}

/// A server without a reasoning parser leaves the thoughts in the text, up to `</think>`.
fn split_thoughts(reasoning: String, content: String) -> (String, String) {
    if !reasoning.is_empty() {
        return (reasoning, content);
    }
    match content.split_once("</think>") {
        Some((thoughts, rest)) => {
            let thoughts = thoughts.trim_start();
            let thoughts = thoughts.strip_prefix("<think>").unwrap_or(thoughts);
            (thoughts.trim_matches('\n').to_owned(), rest.trim_start_matches('\n').to_owned())
        }
        None => (reasoning, content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(events: &[&str]) -> Result<Reply, String> {
        let mut gather = Gather::default();
        for event in events {
            gather.take(event, &mut |_| {})?;
        }
        gather.reply(&[], &mut |_| {})
    }

    #[test]
    fn a_call_never_gets_an_id_that_is_taken() {
        let mut gather = Gather::default();
        let calls = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"a"}},
            {"index":1,"id":"call_5","function":{"name":"b"}},{"index":2,"id":"call_8","function":{"name":"c"}},
            {"index":3,"id":"call_8","function":{"name":"d"}}]},"finish_reason":"tool_calls"}]}"#;
        gather.take(calls, &mut |_| {}).unwrap();
        let reply = gather.reply(&["call_4", "call_5", "call_6"], &mut |_| {}).unwrap();
        let ids: Vec<&str> = reply.calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["call_7", "call_8", "call_9", "call_10"]);
    }

    #[test]
    fn events_are_found_wherever_the_bytes_are_cut() {
        let text =
            ": hello\r\n\r\ndata: {\"a\":\r\ndata: \"ü\"}\r\n\r\nevent: x\ndata:two\n\ndata: last";
        for size in 1..text.len() {
            let mut events = Events::default();
            let mut seen: Vec<String> = Vec::new();
            for bytes in text.as_bytes().chunks(size) {
                seen.extend(events.feed(bytes).unwrap());
            }
            seen.extend(events.finish());
            assert_eq!(seen, ["{\"a\":\n\"ü\"}", "two", "last"], "in pieces of {size}");
        }
        assert!(Events::default().feed(&vec![b'x'; TURN_BYTES + 1]).is_err());
    }

    #[test]
    fn a_turn_is_put_together_from_what_servers_send() {
        let reply = gathered(&[
            r#"{"choices":[{"delta":{"role":"assistant","reasoning":"Hm"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"m.","reasoning":"m."}}]}"#,
            r#"{"choices":[{"delta":{"content":"I "}}]}"#,
            r#"{"choices":[{"delta":{"content":"read.","tool_calls":[{"index":0,"id":"a","function":{"name":"Read","arguments":"{\"file"}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"_path\":\"x\"}"}},{"index":1,"id":"a","function":{"name":"Glob","arguments":{"pattern":"*"}}}]}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}"#,
        ])
        .unwrap();
        assert_eq!((reply.reasoning.as_str(), reply.content.as_str()), ("Hmm.", "I read."));
        let calls: Vec<_> = reply
            .calls
            .iter()
            .map(|c| (c.id.as_str(), c.name.as_str(), c.arguments.as_str()))
            .collect();
        assert_eq!(
            calls,
            [("a", "Read", r#"{"file_path":"x"}"#), ("call_2", "Glob", r#"{"pattern":"*"}"#)]
        );
        assert_eq!((reply.stop, reply.usage.unwrap().total()), (Stop::End, 12));
    }

    #[test]
    fn thoughts_in_the_text_are_split_off() {
        for (content, expected) in [
            ("<think>\\na\\n</think>\\n\\nb", ("a", "b")),
            ("a</think>b", ("a", "b")),
            ("b", ("", "b")),
        ] {
            let whole = format!(
                r#"{{"choices":[{{"message":{{"content":"{content}"}},"finish_reason":"stop"}}]}}"#
            );
            let reply = gathered(&[&whole]).unwrap();
            assert_eq!((reply.reasoning.as_str(), reply.content.as_str()), expected);
        }
    }

    #[test]
    fn a_broken_answer_is_an_error_that_says_how() {
        for (events, expected) in [
            (vec![], "holds no choice"),
            (vec![r#"{"choices":[{"delta":{"content":"x"}}]}"#], "broke off"),
            (vec!["<html>"], "not JSON"),
            (vec!["[1]"], "not of the protocol"),
            (vec![r#"{"error":{"message":"out of memory"}}"#], "out of memory"),
        ] {
            let error = gathered(&events).unwrap_err();
            assert!(error.contains(expected), "{events:?} gave {error}");
        }
        let cut =
            gathered(&[r#"{"choices":[{"delta":{"content":"x"},"finish_reason":"length"}]}"#])
                .unwrap();
        assert_eq!(cut.stop, Stop::Length);
    }
}
