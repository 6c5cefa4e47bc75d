//! What goes into an engine and what comes out: plain data, and the reasons why there is none. The engine itself is in
//! `engine`.

use std::time::Duration;

use crate::backend::cpu::UnknownToken;
use crate::{EncodeError, Message, Piece, Reply, Request, Sampling, Tool};

/// One turn that is asked of an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// What the model reads.
    pub source: Source,
    /// How tokens are drawn, and how many at most.
    pub sampling: Sampling,
    /// Texts that end the turn where the first of them appears in [`Piece::Text`]. They are not part of the answer, and
    /// reasoning and calls may hold them. Empty ones are ignored.
    pub stop_strings: Vec<String>,
    /// Asks for an [`Event::Token`] for each token, with this many of the likeliest candidates (0 is only the token itself).
    pub n_logprobs: Option<usize>,
}

/// What the model reads.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// A conversation, by the chat template of the model. The answer is parsed into reasoning, text and calls.
    Conversation {
        /// Oldest first.
        messages: Vec<Message>,
        /// The tools that the model may call.
        tools: Vec<Tool>,
        /// Whether it must, or may.
        tool_choice: ToolChoice,
        /// Whether the turn ends with its first call.
        is_one_call: bool,
    },
    /// A raw text. Control tokens in it are found, so nobody's words may be in it unless they may steer the model. The answer
    /// is not parsed: all of it is text.
    Text(String),
    /// Raw token ids. The answer is not parsed: all of it is text.
    Ids(Vec<u32>),
}

/// Whether a turn must call a tool, or may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// It calls none.
    None,
    /// It calls at least one of the tools, and no other.
    Required,
    /// It calls this tool, and no other.
    Named(String),
}

impl ToolChoice {
    /// Whether a turn may call this tool.
    pub(crate) fn allows(&self, tool: &Tool) -> bool {
        match self {
            Self::None => false,
            Self::Auto | Self::Required => true,
            Self::Named(name) => tool.name == *name,
        }
    }
}

impl From<Request> for Query {
    fn from(request: Request) -> Self {
        let Request { messages, tools, sampling } = request;
        let tool_choice = ToolChoice::Auto;
        let source = Source::Conversation { messages, tools, tool_choice, is_one_call: false };
        Self { source, sampling, stop_strings: Vec::new(), n_logprobs: None }
    }
}

/// What a turn hands out while it runs. Exactly one `End` comes, and nothing behind it.
#[derive(Debug)]
pub enum Event {
    /// More of the answer.
    Piece(Piece),
    /// A token was drawn. It comes before the pieces that it completes; the token that ends the turn has none.
    Token(DrawnToken),
    /// The turn is over.
    End(Result<Finished, Failure>),
}

/// A token with its probabilities by the model alone, before temperature, penalties and cuts.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnToken {
    /// The token that was drawn.
    pub drawn: Candidate,
    /// The likeliest ones, likeliest first: as many as the query asked for, if there are so many.
    pub likeliest: Vec<Candidate>,
}

/// A token and how likely it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its bytes: perhaps only a part of a character.
    pub bytes: Vec<u8>,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// A turn that came to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// The whole turn, with usage.
    pub reply: Reply,
    /// The seed that draws the same turn again behind the same tokens of a prompt.
    pub seed: u64,
    /// Where the time went.
    pub timings: Timings,
}

/// Where the time of a turn went. Batches are shared, so turns that run at the same time all count them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// From the start of the turn to its first batch.
    pub queued: Duration,
    /// From its first batch to its first token.
    pub prefill: Duration,
    /// From its first token to its end.
    pub decode: Duration,
    /// Tokens of the prompt that an earlier turn had left in the cache.
    pub n_cached: usize,
    /// Tokens of the prompt that were computed.
    pub n_prefilled: usize,
    /// Batches that drew tokens: fewer than tokens where drafts were accepted.
    pub n_steps: usize,
    /// Tokens that were drafted.
    pub n_drafted: usize,
    /// Drafted tokens that the model drew as well.
    pub n_accepted: usize,
}

impl Timings {
    /// From the start of the turn to its first token.
    pub fn first_token(&self) -> Duration {
        self.queued + self.prefill
    }
}

/// Why a turn did not start. Nothing of it is handed out.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// As many turns run and wait as may. Trying again later helps.
    #[error("cannot start a turn: {n_turns} turns run and wait; try again later")]
    Busy {
        /// How many do.
        n_turns: usize,
    },
    /// Prompt and one token do not fit.
    #[error(
        "cannot start a turn: a prompt of {n_tokens} tokens leaves no room in a context of {context_tokens}"
    )]
    TooLong {
        /// Tokens of the prompt.
        n_tokens: usize,
        /// Tokens of the context.
        context_tokens: usize,
    },
    /// There is nothing to read.
    #[error("cannot start a turn: the prompt is empty")]
    Empty,
    /// The conversation has no prompt.
    #[error("cannot start a turn")]
    Encode(#[source] EncodeError),
    /// A call is demanded, and no tool can be called.
    #[error("cannot start a turn: it must call a tool, and none of that name can be called")]
    NoTool,
    /// A raw id is no token.
    #[error("cannot start a turn")]
    UnknownToken(#[source] UnknownToken),
    /// The engine has stopped.
    #[error("cannot start a turn: the engine has stopped")]
    Closed,
}

/// Why a turn broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Its [`Turn`](crate::Turn) was dropped or cancelled.
    #[error("the turn was cancelled")]
    Cancelled,
    /// The engine stopped.
    #[error("the engine stopped during the turn")]
    Closed,
    /// A defect of the engine, which goes on.
    #[error("the engine failed during the turn; this is a defect of the engine")]
    Defect,
    /// Whoever takes the events panicked.
    #[error("the receiver of the turn's events panicked")]
    Sink,
}

/// Why [`Engine::generate`](crate::Engine::generate) has no answer.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The turn did not start.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The turn broke off.
    #[error(transparent)]
    Failed(#[from] Failure),
}
