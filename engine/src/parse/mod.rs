//! From what the model generates to reasoning, text and tool calls.
//!
//! The think and tool-call marks are tokens of their own, so they arrive here as [`Mark`]s; the same words spelled out in
//! text are only words. Whatever way the text is cut into pieces, the reply is the same. A call is handed out whole.

mod call;
mod literal;
mod value;

use std::borrow::Cow;

use crate::{Piece, Reply, Stop, Tool, ToolCall, Usage};
pub(crate) use call::opening;

/// How a call begins.
const FUNCTION: &str = "<function=";

/// A token with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// `<think>`
    ThinkOpen,
    /// `</think>`
    ThinkClose,
    /// `<tool_call>`
    CallOpen,
    /// `</tool_call>`
    CallClose,
}

impl Mark {
    /// As it stands in a text, and as the tokenizer knows it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::ThinkOpen => "<think>",
            Self::ThinkClose => "</think>",
            Self::CallOpen => "<tool_call>",
            Self::CallClose => "</tool_call>",
        }
    }
}

/// Where a turn begins: what the prompt's last words opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Inside a think block.
    Reasoning,
    /// After an empty think block.
    Content,
}

/// Takes a turn as it is generated.
pub struct Parser<'a> {
    tools: Cow<'a, [Tool]>,
    state: State,
    reasoning: Flow,
    content: Flow,
    calls: Vec<ToolCall>,
    n_earlier_calls: usize,
}

enum State {
    Reasoning,
    /// A call was opened inside the reasoning; whether it is one shows in the text that follows.
    Doubt(String),
    Content,
    /// Text that may begin a call although no mark opened one.
    Bare(String),
    Call(String),
}

/// A text whose white space at the border is held back until more of it comes.
#[derive(Default)]
struct Flow {
    text: String,
    held: String,
}

impl Flow {
    /// Adds text and returns what is certain.
    fn push(&mut self, text: &str) -> Option<String> {
        self.held.push_str(text);
        let end = self.held.trim_end_matches('\n').len();
        let start = if self.text.is_empty() {
            end - self.held[..end].trim_start_matches('\n').len()
        } else {
            0
        };
        if start == end {
            return None;
        }
        let certain = self.held[start..end].to_owned();
        self.held.drain(..end);
        self.text.push_str(&certain);
        Some(certain)
    }
}

impl<'a> Parser<'a> {
    /// A parser for one turn. `n_earlier_calls` numbers the calls on from those of the conversation.
    pub fn new(start: Start, tools: impl Into<Cow<'a, [Tool]>>, n_earlier_calls: usize) -> Self {
        let state = match start {
            Start::Reasoning => State::Reasoning,
            Start::Content => State::Content,
        };
        let (reasoning, content) = (Flow::default(), Flow::default());
        let tools = tools.into();
        Self { tools, state, reasoning, content, calls: Vec::new(), n_earlier_calls }
    }

    /// Newlines at the end of the answer's text, which are handed out once more of it comes. Those before it are no part of
    /// it.
    pub(crate) fn withheld(&self) -> &str {
        if self.content.text.is_empty() { "" } else { &self.content.held }
    }

    /// Takes text.
    pub fn text(&mut self, text: &str, pieces: &mut dyn FnMut(Piece)) {
        match &mut self.state {
            State::Reasoning => {
                if let Some(certain) = self.reasoning.push(text) {
                    pieces(Piece::Reasoning(certain));
                }
            }
            State::Doubt(held) => {
                held.push_str(text);
                let begun = held.trim_start();
                if begun.starts_with(FUNCTION) {
                    self.state = State::Call(std::mem::take(held));
                } else if !FUNCTION.starts_with(begun) {
                    let words = Mark::CallOpen.text().to_owned() + held;
                    self.state = State::Reasoning;
                    self.text(&words, pieces);
                }
            }
            State::Content => self.content(text, pieces),
            State::Bare(held) => {
                held.push_str(text);
                self.bare(pieces);
            }
            State::Call(body) => body.push_str(text),
        }
    }

    /// Takes a mark.
    pub fn mark(&mut self, mark: Mark, pieces: &mut dyn FnMut(Piece)) {
        match (&mut self.state, mark) {
            (State::Reasoning, Mark::ThinkOpen) => {}
            (State::Reasoning, Mark::ThinkClose) => self.state = State::Content,
            (State::Reasoning, Mark::CallOpen) => self.state = State::Doubt(String::new()),
            (State::Reasoning, Mark::CallClose) => self.text(mark.text(), pieces),
            (State::Doubt(held), _) => {
                let words = Mark::CallOpen.text().to_owned() + held;
                self.state = State::Reasoning;
                self.text(&words, pieces);
                self.mark(mark, pieces);
            }
            (State::Content, Mark::CallOpen) => self.state = State::Call(String::new()),
            (State::Content, Mark::ThinkOpen | Mark::ThinkClose | Mark::CallClose) => {}
            (State::Bare(_), Mark::CallClose) => self.end_bare(pieces),
            (State::Bare(_), _) => {
                self.end_bare(pieces);
                self.mark(mark, pieces);
            }
            (State::Call(_), Mark::CallClose) => self.end_call(pieces),
            // The words themselves may stand in a value.
            (State::Call(body), _) => body.push_str(mark.text()),
        }
    }

    /// Text of the answer. A call without its mark is held back from its first letter on.
    fn content(&mut self, text: &str, pieces: &mut dyn FnMut(Piece)) {
        let mut from = 0;
        while let Some(at) = find_start(&text[from..]) {
            let start = from + at;
            if self.may_be_bare(&text[start..]) {
                self.add_content(&text[..start], pieces);
                self.state = State::Bare(text[start..].to_owned());
                return;
            }
            // A later letter may begin a call.
            from = start + 1;
        }
        self.add_content(text, pieces);
    }

    /// Decides whether held text is a call.
    fn bare(&mut self, pieces: &mut dyn FnMut(Piece)) {
        let State::Bare(held) = &self.state else { return };
        if self.may_be_bare(held) {
            return;
        }
        let State::Bare(held) = std::mem::replace(&mut self.state, State::Content) else { return };
        self.content(&held, pieces);
    }

    /// Whether text may be a call without its mark: only if it names a declared tool.
    fn may_be_bare(&self, text: &str) -> bool {
        let Some(rest) = text.strip_prefix(FUNCTION) else { return FUNCTION.starts_with(text) };
        self.tools.iter().any(|tool| match rest.strip_prefix(tool.name.as_str()) {
            Some(after) => after.is_empty() || after.starts_with('>'),
            None => tool.name.starts_with(rest),
        })
    }

    fn end_bare(&mut self, pieces: &mut dyn FnMut(Piece)) {
        let State::Bare(held) = std::mem::replace(&mut self.state, State::Content) else { return };
        match call::parse(&held, &self.tools) {
            Some(call) => self.add_call(call, pieces),
            None => self.add_content(&held, pieces),
        }
    }

    fn end_call(&mut self, pieces: &mut dyn FnMut(Piece)) {
        let State::Call(body) = std::mem::replace(&mut self.state, State::Content) else { return };
        match call::parse(&body, &self.tools) {
            Some(call) => self.add_call(call, pieces),
            // Not a call at all; people and the model's next turn should see what it was.
            None => {
                let (open, close) = (Mark::CallOpen.text(), Mark::CallClose.text());
                self.add_content(&[open, &body, close].concat(), pieces);
            }
        }
    }

    fn add_content(&mut self, text: &str, pieces: &mut dyn FnMut(Piece)) {
        if let Some(certain) = self.content.push(text) {
            pieces(Piece::Text(certain));
        }
    }

    fn add_call(&mut self, (name, arguments): (String, String), pieces: &mut dyn FnMut(Piece)) {
        let id = format!("call_{}", self.n_earlier_calls + self.calls.len() + 1);
        let call = ToolCall { id, name, arguments };
        pieces(Piece::Call(call.clone()));
        self.calls.push(call);
    }

    /// The whole turn. A call that was cut off is reported only if its own end is there; otherwise it is text.
    pub fn finish(
        mut self,
        stop: Stop,
        usage: Option<Usage>,
        pieces: &mut dyn FnMut(Piece),
    ) -> Reply {
        let state = std::mem::replace(&mut self.state, State::Content);
        let whole_call = |held: &str| {
            call::is_complete(held, stop).then(|| call::parse(held, &self.tools)).flatten()
        };
        match state {
            State::Doubt(held) => {
                self.state = State::Reasoning;
                self.text(&(Mark::CallOpen.text().to_owned() + &held), pieces);
            }
            State::Bare(held) => match whole_call(&held) {
                Some(call) => self.add_call(call, pieces),
                None => self.add_content(&held, pieces),
            },
            State::Call(held) => match whole_call(&held) {
                Some(call) => self.add_call(call, pieces),
                None => self.add_content(&(Mark::CallOpen.text().to_owned() + &held), pieces),
            },
            State::Reasoning | State::Content => {}
        }
        let content =
            if self.content.text.trim().is_empty() { String::new() } else { self.content.text };
        Reply { content, reasoning: self.reasoning.text, calls: self.calls, stop, usage }
    }
}

/// Whether a text holds a call that was none in the end: [`Parser`] leaves such a call in the answer's text. The words of
/// a call inside a sentence are only words.
pub fn is_broken_call(content: &str) -> bool {
    let mark = Mark::CallOpen.text();
    let begins = |(at, _): (usize, &str)| {
        let is_at_line_start = content[..at].is_empty() || content[..at].ends_with('\n');
        let body = content[at + mark.len()..].trim_start();
        is_at_line_start || body.is_empty() || body.starts_with(FUNCTION)
    };
    content.match_indices(mark).any(begins)
        || content.lines().any(|line| line.starts_with(FUNCTION))
}

/// Where a text may begin `<function=`: whole, or as its last letters.
fn find_start(text: &str) -> Option<usize> {
    let starts = text.match_indices('<').map(|(at, _)| at);
    starts
        .into_iter()
        .find(|&at| text[at..].starts_with(FUNCTION) || FUNCTION.starts_with(&text[at..]))
}

#[cfg(test)]
mod tests;
