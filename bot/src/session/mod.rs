//! A session: the model and its five tools, turn by turn, until it ends by itself or a budget does.
//!
//! The rules are those that the model was trained with: two messages begin it, a turn without a call ends it, a turn cut
//! by length or broken inside of a call ends it and its calls are not run, calls run in order, and reasoning is sent
//! back. A model that goes round in circles is told so once, in the last answer that it sees; if it goes on, that ends the
//! session too. The session does not judge what the model did.

mod circle;
mod profile;
#[cfg(test)]
mod tests;
mod transcript;

use std::fmt;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use engine::parse::is_broken_call;
use engine::{Message, Reply, Request, Sampling, Stop, ToolCall, Usage};
use serde::{Deserialize, Serialize};

pub use profile::{Error as ProfileError, Profile};
pub use transcript::{Record, Transcript, read};

use circle::Steps;

use crate::clock::Clock;
use crate::leaf::Leaf;
use crate::model::{self, Model};
use crate::sandbox::SetupError;

/// Bytes of text per token, where no server counts: a low guess, so that a full context is seen early.
const BYTES_PER_TOKEN: u64 = 3;

/// What a model is told, once, that goes round in circles.
const NUDGE: &str = "\n[notice: your last calls repeat earlier ones, and their results are the same. Try something else, \
                     or end by saying in words what is done and what is not.]";

/// The tools of a session.
#[async_trait]
pub trait Tools: Send + Sync {
    /// Runs one call and returns what the model sees. Whatever the model wrote, there is an answer.
    ///
    /// # Errors
    /// Commands cannot be run safely any more.
    async fn call(&self, name: &str, arguments: &str) -> Result<String, SetupError>;
}

#[async_trait]
impl Tools for Leaf {
    async fn call(&self, name: &str, arguments: &str) -> Result<String, SetupError> {
        Self::call(self, name, arguments).await
    }
}

/// How much a session may use.
#[derive(Debug, Clone)]
pub struct Budgets {
    /// Turns.
    pub turns: u32,
    /// Tokens of the whole conversation.
    pub context_tokens: u64,
    /// Time in all.
    pub wall_time: Duration,
    /// How each turn is drawn, and its tokens at most.
    pub sampling: Sampling,
}

impl From<&config::Session> for Budgets {
    fn from(settings: &config::Session) -> Self {
        Self {
            turns: settings.turns,
            context_tokens: settings.context_tokens,
            wall_time: settings.wall_time,
            sampling: Sampling {
                temperature: settings.temperature,
                top_p: settings.top_p,
                top_k: settings.top_k,
                min_p: settings.min_p,
                max_tokens: settings.turn_tokens,
                thinking: settings.thinking,
                ..Sampling::default()
            },
        }
    }
}

/// How a session ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Why.
    pub reason: Reason,
    /// Turns taken.
    pub turns: u32,
    /// Calls run.
    pub calls: u32,
    /// Tokens of the last conversation, as the server counted, where it did.
    pub context_tokens: Option<u64>,
    /// Tokens generated in all turns.
    pub generated_tokens: u64,
    /// The model's last words.
    pub final_text: String,
    /// How long it took.
    pub elapsed: Duration,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The model made no further call.
    Finished,
    /// The model ended its turn inside of a call, or wrote what is none: it was not done, and nothing was run.
    BrokenCall,
    /// A turn reached its tokens and was cut.
    TurnCut,
    /// The model went round in circles, and went on after it was told.
    Repeated,
    /// The turns were used up.
    Turns,
    /// The context was full.
    Context,
    /// The time was up.
    Time,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finished => "the model was done",
            Self::BrokenCall => "the last tool call was broken",
            Self::TurnCut => "a turn reached its token limit",
            Self::Repeated => "the model went round in circles",
            Self::Turns => "the turns were used up",
            Self::Context => "the context was full",
            Self::Time => "the time was up",
        })
    }
}

/// Why a session could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model gave no turn.
    #[error("cannot go on without the model")]
    Model(#[from] model::Error),
    /// A command could not be run safely.
    #[error("cannot run the agent's commands")]
    Sandbox(#[from] SetupError),
    /// The transcript could not be written.
    #[error("cannot write the transcript")]
    Transcript(#[from] std::io::Error),
}

/// Who takes part in a session.
pub struct Parts<'a> {
    /// The model.
    pub model: &'a dyn Model,
    /// Its tools.
    pub tools: &'a dyn Tools,
    /// System prompt and tool schemas.
    pub profile: &'a Profile,
    /// The time, for the record.
    pub clock: &'a dyn Clock,
}

/// Works on one task until the model is done or a budget is.
///
/// # Errors
/// The model, the sandbox or the disk failed. What was done in the workspace is still there.
pub async fn run(
    parts: &Parts<'_>,
    task: &str,
    budgets: &Budgets,
    transcript: &mut Transcript<'_>,
) -> Result<Ended, Error> {
    transcript.append(&Record::Start {
        at: parts.clock.now(),
        model: parts.model.name().to_owned(),
        profile: parts.profile.digest.clone(),
        system: parts.profile.system.clone(),
        task: task.to_owned(),
    })?;
    let mut session = Session::new(parts, task, budgets);
    let reason = match tokio::time::timeout(budgets.wall_time, session.turns(transcript)).await {
        Ok(reason) => reason?,
        Err(_) => Reason::Time,
    };
    let ended = session.ended(reason);
    transcript.append(&Record::End { reason, turns: ended.turns, calls: ended.calls })?;
    Ok(ended)
}

struct Session<'a> {
    parts: &'a Parts<'a>,
    budgets: &'a Budgets,
    request: Request,
    started: Instant,
    turns: u32,
    calls: u32,
    context_tokens: Option<u64>,
    generated_tokens: u64,
    final_text: String,
    steps: Steps,
    is_nudged: bool,
}

impl<'a> Session<'a> {
    fn new(parts: &'a Parts<'a>, task: &str, budgets: &'a Budgets) -> Self {
        let messages = vec![
            Message::System { content: parts.profile.system.clone() },
            Message::User { content: task.to_owned() },
        ];
        let request = Request {
            messages,
            tools: parts.profile.tools.clone(),
            sampling: budgets.sampling.clone(),
        };
        Self {
            parts,
            budgets,
            request,
            started: Instant::now(),
            turns: 0,
            calls: 0,
            context_tokens: None,
            generated_tokens: 0,
            final_text: String::new(),
            steps: Steps::default(),
            is_nudged: false,
        }
    }

    async fn turns(&mut self, transcript: &mut Transcript<'_>) -> Result<Reason, Error> {
        loop {
            if self.turns >= self.budgets.turns {
                return Ok(Reason::Turns);
            }
            let reply = match self.turn(transcript).await {
                Ok(reply) => reply,
                Err(Error::Model(model::Error::ContextFull { message })) => {
                    transcript.append(&Record::Notice { text: message })?;
                    return Ok(Reason::Context);
                }
                Err(error) => return Err(error),
            };
            if reply.stop == Stop::Length {
                return Ok(Reason::TurnCut);
            }
            if reply.calls.is_empty() {
                let is_broken = is_broken_call(&reply.content);
                return Ok(if is_broken { Reason::BrokenCall } else { Reason::Finished });
            }
            let mut n_observed_bytes = 0;
            for (call, n_left) in reply.calls.iter().zip((0..reply.calls.len()).rev()) {
                n_observed_bytes += self.observe(call, n_left, transcript).await?;
            }
            if self.is_nudged && self.steps.is_circle() {
                return Ok(Reason::Repeated);
            }
            if self.tokens(reply.usage, n_observed_bytes) >= self.budgets.context_tokens {
                return Ok(Reason::Context);
            }
        }
    }

    async fn turn(&mut self, transcript: &mut Transcript<'_>) -> Result<Reply, Error> {
        let started = Instant::now();
        let reply = self.parts.model.turn(&self.request, &mut |_| {}).await?;
        self.turns += 1;
        if let Some(usage) = reply.usage {
            self.context_tokens = Some(usage.total());
            self.generated_tokens += usage.completion_tokens;
        }
        tracing::info!(
            turn = self.turns,
            calls = reply.calls.len(),
            elapsed_ms = millis(started),
            "the model answered"
        );
        self.final_text.clone_from(&reply.content);
        transcript.append(&Record::Turn {
            number: self.turns,
            reasoning: reply.reasoning.clone(),
            content: reply.content.clone(),
            calls: reply.calls.clone(),
            usage: reply.usage,
            elapsed_ms: millis(started),
        })?;
        self.request.messages.push(Message::Assistant {
            content: reply.content.clone(),
            reasoning: reply.reasoning.clone(),
            calls: reply.calls.clone(),
        });
        Ok(reply)
    }

    /// Runs one call of a turn that has `n_left` more. Returns the bytes of what the model sees of it.
    async fn observe(
        &mut self,
        call: &ToolCall,
        n_left: usize,
        transcript: &mut Transcript<'_>,
    ) -> Result<u64, Error> {
        let started = Instant::now();
        let mut content = self.parts.tools.call(&call.name, &call.arguments).await?;
        self.calls += 1;
        self.steps.note(&call.name, &call.arguments, &content);
        // The model sees nothing before its turn is answered, so it is judged by whole turns.
        if n_left == 0 && !self.is_nudged && self.steps.is_circle() {
            content.push_str(NUDGE);
            self.is_nudged = true;
            self.steps.clear();
            tracing::info!(turn = self.turns, "the model goes round in circles, and was told so");
        }
        tracing::debug!(tool = call.name, elapsed_ms = millis(started), "ran a call");
        transcript.append(&Record::Observation {
            call_id: call.id.clone(),
            name: call.name.clone(),
            content: content.clone(),
            elapsed_ms: millis(started),
        })?;
        let n_bytes = content.len() as u64;
        self.request.messages.push(Message::Tool { call_id: call.id.clone(), content });
        Ok(n_bytes)
    }

    /// Tokens of the conversation: as the server counted the last turn, and a guess for what came after.
    fn tokens(&self, usage: Option<Usage>, n_observed_bytes: u64) -> u64 {
        match usage.filter(|usage| usage.total() > 0) {
            Some(usage) => usage.total() + n_observed_bytes / BYTES_PER_TOKEN,
            None => self.request.messages.iter().map(n_bytes).sum::<u64>() / BYTES_PER_TOKEN,
        }
    }

    fn ended(self, reason: Reason) -> Ended {
        Ended {
            reason,
            turns: self.turns,
            calls: self.calls,
            context_tokens: self.context_tokens,
            generated_tokens: self.generated_tokens,
            final_text: self.final_text,
            elapsed: self.started.elapsed(),
        }
    }
}

fn n_bytes(message: &Message) -> u64 {
    let n_bytes = match message {
        Message::System { content } | Message::User { content } | Message::Tool { content, .. } => {
            content.len()
        }
        Message::Assistant { content, reasoning, calls } => {
            let calls: usize =
                calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
            content.len() + reasoning.len() + calls
        }
    };
    n_bytes as u64
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
