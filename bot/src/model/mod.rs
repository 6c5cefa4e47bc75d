//! The model, seen as one method: a conversation goes in, a turn comes out. The OpenAI-compatible endpoint implements
//! it, and so do the tests' script and, once it exists, the engine in this process.

pub mod endpoint;
mod gather;
mod wire;

use std::time::Duration;

use async_trait::async_trait;
use engine::{Piece, Reply, Request};

use crate::reply;

/// A model that answers one turn at a time.
#[async_trait]
pub trait Model: Send + Sync {
    /// Asks for one turn. `pieces` sees the parts as they arrive; the reply repeats them whole.
    ///
    /// # Errors
    /// See [`Error`]. Retries on a busy server have already happened.
    async fn turn(
        &self,
        request: &Request,
        pieces: &mut (dyn FnMut(Piece) + Send),
    ) -> Result<Reply, Error>;

    /// The context window in tokens, where the backend tells it.
    ///
    /// # Errors
    /// See [`Error`].
    async fn context_window(&self) -> Result<Option<u64>, Error>;

    /// The name to show to people, such as `FrogNano-4B-2609`.
    fn name(&self) -> &str;
}

/// Why there is no turn. No variant's text holds a prompt or a key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens, or the connection broke before an answer began.
    #[error("cannot reach the model's server at `{endpoint}`")]
    Unreachable {
        /// The server's address.
        endpoint: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server said nothing for too long.
    #[error("the model's server at `{endpoint}` said nothing for {}", humantime::format_duration(*.silent))]
    Silent {
        /// The server's address.
        endpoint: String,
        /// How long the bot waited.
        silent: Duration,
    },
    /// The server kept answering 429 or 5xx.
    #[error(
        "the model's server at `{endpoint}` answered {status} after {}: {message}",
        reply::count(*.attempts, "attempt")
    )]
    Busy {
        /// The server's address.
        endpoint: String,
        /// The last status.
        status: u16,
        /// How often it was asked.
        attempts: u32,
        /// The server's words, cut.
        message: String,
    },
    /// The conversation no longer fits the context. The work done so far is kept.
    #[error("the conversation no longer fits the model's context: {message}")]
    ContextFull {
        /// The server's words, cut.
        message: String,
    },
    /// The server has no model of that name.
    #[error("the model's server at `{endpoint}` serves no model called `{name}`, but {served}")]
    OtherModel {
        /// The server's address.
        endpoint: String,
        /// The name that was asked for.
        name: String,
        /// The names that it has, cut.
        served: String,
    },
    /// The server refused the request: a wrong key, an unknown parameter.
    #[error("the model's server at `{endpoint}` refused the request with {status}: {message}")]
    Refused {
        /// The server's address.
        endpoint: String,
        /// The status.
        status: u16,
        /// The server's words, cut.
        message: String,
    },
    /// The answer is not what the protocol says.
    #[error("cannot read the answer of the model's server at `{endpoint}`: {reason}")]
    Answer {
        /// The server's address.
        endpoint: String,
        /// What is wrong.
        reason: String,
    },
}

/// Where a person sets what the bot knows of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settings {
    /// The configuration.
    File,
    /// The arguments of a command.
    Arguments,
}

impl Error {
    /// What an operator does next.
    pub fn next(&self, settings: Settings) -> &'static str {
        let in_file = settings == Settings::File;
        match self {
            Self::Unreachable { .. } | Self::Silent { .. } if in_file => {
                "start the model's server, or set `model.endpoint` to another"
            }
            Self::Unreachable { .. } | Self::Silent { .. } => {
                "start the model's server, or name another with --endpoint"
            }
            Self::Busy { .. } => "the server's own log says why; ask again once it is well",
            Self::ContextFull { .. } => "give the server a larger context",
            Self::OtherModel { .. } if in_file => "set `model.name`",
            Self::OtherModel { .. } => "name one with --model",
            Self::Refused { status: 401 | 403, .. } if in_file => {
                "set `model.key` to a file with the server's key"
            }
            Self::Refused { status: 401 | 403, .. } => {
                "name a file with the server's key with --key-file"
            }
            Self::Refused { .. } | Self::Answer { .. } if in_file => {
                "check `model.endpoint`: it goes up to and with /v1, such as http://127.0.0.1:8000/v1"
            }
            Self::Refused { .. } | Self::Answer { .. } => {
                "check --endpoint: it goes up to and with /v1, such as http://127.0.0.1:8000/v1"
            }
        }
    }
}
