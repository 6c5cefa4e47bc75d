//! The model, seen as one method: a conversation goes in, a turn comes out. The OpenAI-compatible endpoint implements
//! it, and so do the engine in this process and the tests' script. `server` is the other side of the same protocol.

pub mod bench;
pub mod chat;
pub mod endpoint;
mod gather;
pub mod local;
pub mod quantize;
pub mod serve;
pub mod server;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use async_trait::async_trait;
use config::{Config, ModelKind, Secret};
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

    /// Makes ready what a turn needs, where waiting for it hurts less than within a job.
    ///
    /// # Errors
    /// See [`Error`].
    async fn prepare(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The name to show to people, such as `FrogNano-4B-2609`.
    fn name(&self) -> &str;
}

/// The model that the configuration names. Nothing is asked of a server yet, and nothing is loaded.
///
/// # Errors
/// The endpoint's settings cannot be used.
pub fn build(config: &Config, key: Option<&Secret>) -> anyhow::Result<Arc<dyn Model>> {
    let settings = &config.model;
    match (settings.kind, &settings.local.folder) {
        (ModelKind::Local, Some(folder)) => {
            let context_tokens = config.session.context_tokens;
            Ok(Arc::new(local::Local::new(folder.clone(), &settings.local, context_tokens)))
        }
        (ModelKind::Local, None) => bail!("`model.local.folder` is not set"),
        (ModelKind::Endpoint, _) => Ok(Arc::new(endpoint::Endpoint::new(settings.clone(), key)?)),
    }
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
    #[error("the model's server at `{endpoint}` said nothing for {}", crate::clock::shown(*.silent))]
    Silent {
        /// The server's address.
        endpoint: String,
        /// How long the bot waited.
        silent: Duration,
    },
    /// The server was still at one turn when its time was over.
    #[error("the model's server at `{endpoint}` was not done with one turn after {}", crate::clock::shown(*.limit))]
    Slow {
        /// The server's address.
        endpoint: String,
        /// How long a turn may take.
        limit: Duration,
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
    /// The protocol is spoken under `/v1` of the address, which was left out.
    #[error("nothing is at `{endpoint}/models`, but `{endpoint}/v1/models` answers")]
    WithoutV1 {
        /// The server's address as it was given.
        endpoint: String,
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
    /// The model in this process cannot be loaded.
    #[error("cannot load the model in `{folder}`")]
    Load {
        /// Its folder.
        folder: String,
        /// Why.
        #[source]
        source: engine::Error,
    },
    /// The model in this process gave no turn.
    #[error("the model in this process gave no answer")]
    Local {
        /// Why.
        #[source]
        source: engine::GenerateError,
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
            Self::Slow { .. } => {
                "give a turn more time in `model.turn_timeout`, or look at what the server does"
            }
            Self::Busy { .. } => "the server's own log says why; ask again once it is well",
            Self::ContextFull { .. } => "give the model a larger context",
            Self::Load { .. } if in_file => "set `model.local.folder`, or make the folder whole",
            Self::Load { .. } => "name a whole folder with --model-dir",
            Self::Local { .. } => "ask again; `hyla doctor` looks at the folder",
            Self::OtherModel { .. } if in_file => "set `model.name`",
            Self::OtherModel { .. } => "name one with --model",
            Self::WithoutV1 { .. } if in_file => "add `/v1` to `model.endpoint`",
            Self::WithoutV1 { .. } => "add `/v1` to --endpoint",
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
