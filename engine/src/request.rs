//! The plain data of one turn, shared by every backend and every endpoint. No behaviour lives here.

use serde::{Deserialize, Serialize};

/// Everything a model needs for one turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The conversation so far, oldest first. The chat template renders it.
    pub messages: Vec<Message>,
    /// The tools that the model may call in this turn.
    pub tools: Vec<Tool>,
    /// How the next tokens are drawn, and how many at most.
    pub sampling: Sampling,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Message {
    /// What the model is and how it should work.
    System {
        /// Plain text.
        content: String,
    },
    /// What a person asked for.
    User {
        /// Plain text.
        content: String,
    },
    /// What the model answered in an earlier turn. Reasoning is kept: the model was trained to see it again.
    Assistant {
        /// Plain text, possibly empty.
        content: String,
        /// The text between the think tags, possibly empty.
        #[serde(default)]
        reasoning: String,
        /// The calls of that turn, in order.
        #[serde(default)]
        calls: Vec<ToolCall>,
    },
    /// What a tool answered.
    Tool {
        /// The id of the call that this answers.
        call_id: String,
        /// The observation.
        content: String,
    },
}

/// One call of a tool, as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique within a conversation.
    pub id: String,
    /// The tool's name, as written: it may name no tool.
    pub name: String,
    /// JSON text, as written: it may be broken.
    pub arguments: String,
}

/// A tool as the model is told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// The name, case-sensitive.
    pub name: String,
    /// What the tool does, for the model.
    pub description: String,
    /// A JSON Schema object.
    pub parameters: serde_json::Value,
}

/// How tokens are drawn. The defaults are those that FrogNano-4B-2609 was evaluated with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass.
    pub top_p: f32,
    /// Number of candidates; 0 is all of them.
    pub top_k: u32,
    /// Smallest probability kept, relative to the largest.
    pub min_p: f32,
    /// Taken from the logit of every token that was generated before; 0 is nothing.
    pub presence_penalty: f32,
    /// Divides the logit of every token that stands in the conversation, or multiplies it where it is negative; 1 is
    /// nothing.
    pub repetition_penalty: f32,
    /// Makes the drawing repeatable behind the same tokens of a prompt; drawn anew for each turn where it is none.
    pub seed: Option<u64>,
    /// Tokens at most in this turn, reasoning included.
    pub max_tokens: u32,
    /// Whether the generation prompt opens a think block.
    pub thinking: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.6,
            top_p: 0.95,
            top_k: 20,
            min_p: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: None,
            max_tokens: 8192,
            thinking: true,
        }
    }
}

/// A part of a turn, as it is generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// More reasoning.
    Reasoning(String),
    /// More answer text.
    Text(String),
    /// A call, complete.
    Call(ToolCall),
}

/// A whole turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The answer text, possibly empty.
    pub content: String,
    /// The reasoning, possibly empty.
    pub reasoning: String,
    /// The calls, in order, possibly none.
    pub calls: Vec<ToolCall>,
    /// Why the turn ended.
    pub stop: Stop,
    /// Token counts, where the backend knows them.
    pub usage: Option<Usage>,
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// The model ended its turn, with or without calls.
    End,
    /// The turn reached `max_tokens` and is cut.
    Length,
}

/// Token counts of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the rendered conversation.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
}

impl Usage {
    /// All tokens that the turn occupies in the context.
    pub fn total(&self) -> u64 {
        self.prompt_tokens + self.completion_tokens
    }
}
