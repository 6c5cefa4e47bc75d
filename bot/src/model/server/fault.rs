//! What goes wrong with a request, in the form that OpenAI's clients read: a status and a JSON body with `error`.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use engine::{Failure, Refused};
use serde_json::{Value, json};

use crate::halt::chain;

/// How long a client should wait before it asks a full or stopping server again. A turn takes seconds to minutes.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Characters of a name that is told back at most; the longest names of models have half as many.
const NAME_CHARS: usize = 200;

/// An answer that is not 2xx.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub(super) status: StatusCode,
    /// OpenAI's class of error.
    kind: &'static str,
    code: Option<&'static str>,
    /// The field of the request, such as `messages[2].content`.
    param: Option<String>,
    message: String,
    retry_after: Option<Duration>,
}

impl Fault {
    /// A field has a value that it must not have.
    pub(super) fn field(param: impl Into<String>, reason: &str) -> Self {
        let param = param.into();
        let message = format!("`{param}`: {reason}");
        Self { param: Some(param), ..Self::request(StatusCode::BAD_REQUEST, None, message) }
    }

    /// A field asks for something that this server does not do.
    pub(super) fn unsupported(param: &str, what: &str) -> Self {
        let reason = format!("{what} not supported by this server");
        Self { code: Some("unsupported_value"), ..Self::field(param, &reason) }
    }

    /// The request as a whole is wrong.
    pub(super) fn request(
        status: StatusCode,
        code: Option<&'static str>,
        message: impl Into<String>,
    ) -> Self {
        let (kind, message) = ("invalid_request_error", message.into());
        Self { status, kind, code, param: None, message, retry_after: None }
    }

    /// Somebody asks for a model that is not served.
    pub(super) fn no_model(asked: &str, name: &str) -> Self {
        // Not all of it: what a client sends may be long.
        let asked: String = asked.chars().take(NAME_CHARS).collect();
        let message = format!("there is no model `{asked}` here, but `{name}`");
        Self::request(StatusCode::NOT_FOUND, Some("model_not_found"), message)
    }

    /// The server does not take turns any more.
    pub(super) fn stopping() -> Self {
        let (status, kind) = (StatusCode::SERVICE_UNAVAILABLE, "server_error");
        let retry_after = Some(RETRY_AFTER);
        let base = Self::request(status, Some("stopping"), "the server is stopping");
        Self { kind, retry_after, ..base }
    }

    /// Something of ours broke.
    pub(super) fn defect(message: impl Into<String>) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self { kind: "server_error", ..Self::request(status, None, message) }
    }

    /// The status of the answer.
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// The body, which is also how a stream that has begun tells what broke it off.
    pub fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        } })
    }
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        let bad = |code| Self::request(StatusCode::BAD_REQUEST, code, chain(&refused));
        match &refused {
            Refused::Busy { .. } => Self {
                status: StatusCode::TOO_MANY_REQUESTS,
                kind: "rate_limit_error",
                retry_after: Some(RETRY_AFTER),
                ..bad(Some("queue_full"))
            },
            // In OpenAI's words, by which clients know that they must shorten the conversation.
            Refused::TooLong { n_tokens, context_tokens } => Self {
                message: format!(
                    "This model's maximum context length is {context_tokens} tokens, and the prompt has {n_tokens}; \
                     shorten it"
                ),
                ..bad(Some("context_length_exceeded"))
            },
            Refused::NoTool => Self { param: Some("tool_choice".into()), ..bad(None) },
            Refused::Empty | Refused::Encode(_) | Refused::UnknownToken(_) => bad(None),
            Refused::Closed => Self::stopping(),
        }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Closed => Self::stopping(),
            Failure::Cancelled | Failure::Defect | Failure::Sink => {
                Self::defect(failure.to_string())
            }
        }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(wait) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs()));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
