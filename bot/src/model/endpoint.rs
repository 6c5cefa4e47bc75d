//! A model behind any server that speaks the OpenAI chat-completions protocol.
//!
//! A busy server is asked again; a broken answer is not, because the server may have done the work. The key goes into one
//! header and nowhere else, and no proxy and no redirect ever sees it.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use config::Secret;
use engine::{Message, Piece, Reply, Request};
use futures_util::StreamExt;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use secrecy::ExposeSecret;
use serde_json::Value;

use super::gather::{Events, Gather};
use super::{Error, Model, wire};
use crate::clock::shown;
use crate::redact::Redactor;

/// The first wait before a busy server is asked again; it doubles.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// How long a short question, such as the list of models, may take.
const SHORT: Duration = Duration::from_secs(30);
/// Bytes of an error's body that are read.
const ERROR_BYTES: usize = 64 << 10;
/// What servers say when a conversation has grown too long.
const CONTEXT_WORDS: [&str; 8] = [
    "context length",
    "context_length",
    "context size",
    "context window",
    "maximum context",
    "exceeds the available context",
    "longer than the model",
    "too many tokens",
];

/// A client of one server.
pub struct Endpoint {
    settings: config::Model,
    base: String,
    client: Client,
    redactor: Redactor,
    refused: Mutex<Vec<&'static str>>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The file of certificate authorities cannot be used.
    #[error("cannot use the certificate authorities in `{file}`")]
    Authorities {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The key holds characters that no header can carry.
    #[error("cannot send the model server's key: it holds characters that no header can carry")]
    Key,
    /// The HTTP client does not start.
    #[error("cannot start an HTTP client")]
    Client(#[source] reqwest::Error),
}

impl Endpoint {
    /// A client. Nothing is asked of the server yet.
    ///
    /// # Errors
    /// The key or the file of certificate authorities cannot be used.
    pub fn new(settings: config::Model, key: Option<&Secret>) -> Result<Self, BuildError> {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
                .map_err(|_| BuildError::Key)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut client = Client::builder()
            .default_headers(headers)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(settings.connect_timeout);
        if let Some(file) = &settings.ca_file {
            for authority in authorities(file)? {
                client = client.add_root_certificate(authority);
            }
        }
        Ok(Self {
            base: settings.endpoint.as_str().trim_end_matches('/').to_owned(),
            client: client.build().map_err(BuildError::Client)?,
            redactor: Redactor::new(&key.into_iter().collect::<Vec<_>>()),
            refused: Mutex::new(Vec::new()),
            settings,
        })
    }

    /// Sends until the server takes the request, or until the attempts are used up.
    async fn send(&self, request: &Request) -> Result<Response, Error> {
        let mut attempt = 1;
        loop {
            let left_out = self.refused.lock().expect("no holder of this lock panics").clone();
            let body = wire::body(&self.settings.name, request, &left_out);
            let sent =
                self.client.post(format!("{}/chat/completions", self.base)).json(&body).send();
            let failure = match tokio::time::timeout(self.settings.idle_timeout, sent).await {
                Err(_) => return Err(self.silent()),
                Ok(Ok(response)) if response.status().is_success() => return Ok(response),
                Ok(Ok(response)) => self.refusal(response, attempt).await,
                Ok(Err(error)) => {
                    Failure { error: self.unreachable(error), wait: None, is_passing: true }
                }
            };
            if let Error::Refused { status: 400 | 422, message, .. } = &failure.error
                && self.leave_out(message, &left_out)
            {
                continue;
            }
            if !failure.is_passing || attempt >= self.settings.attempts {
                return Err(failure.error);
            }
            let wait = match failure.wait {
                Some(wait) if wait > self.settings.retry_after_limit => return Err(failure.error),
                Some(wait) => wait,
                None => FIRST_WAIT.saturating_mul(1 << (attempt - 1).min(6)),
            };
            tracing::warn!(error = %failure.error, wait = %shown(wait), "asking the model again");
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    /// Notes an optional field that the server has refused by name. False if there is none.
    fn leave_out(&self, message: &str, left_out: &[&str]) -> bool {
        let field = wire::OPTIONAL
            .iter()
            .find(|field| message.contains(**field) && !left_out.contains(field));
        let Some(field) = field else { return false };
        tracing::info!(field, "the model's server does not take this field; leaving it out");
        self.refused.lock().expect("no holder of this lock panics").push(field);
        true
    }

    async fn refusal(&self, response: Response, attempts: u32) -> Failure {
        let status = response.status();
        let wait = retry_after(response.headers());
        let text = read_some(response).await;
        let words = serde_json::from_str::<Value>(&text).map_or(text, |value| wire::words(&value));
        // Behind JSON, which may write a key in another way, and before it is cut.
        let message = wire::cut(&self.redactor.redact(&words));
        let endpoint = self.base.clone();
        let is_passing = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
        let lower = message.to_lowercase();
        let error = if is_passing {
            Error::Busy { endpoint, status: status.as_u16(), attempts, message }
        } else if CONTEXT_WORDS.iter().any(|words| lower.contains(words)) {
            Error::ContextFull { message }
        } else {
            Error::Refused { endpoint, status: status.as_u16(), message }
        };
        Failure { error, wait, is_passing }
    }

    async fn read(
        &self,
        response: Response,
        known: &[&str],
        pieces: &mut (dyn FnMut(Piece) + Send),
    ) -> Result<Reply, Error> {
        let answer = |reason: String| Error::Answer {
            endpoint: self.base.clone(),
            // Before it is cut: half a key is found by no redaction.
            reason: wire::cut(&self.redactor.redact(&reason)),
        };
        if let Some(page) = page(&response) {
            return Err(answer(page));
        }
        let is_stream = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_none_or(|value| !value.starts_with("application/json"));
        let (mut events, mut gather) = (Events::default(), Gather::default());
        let mut whole = Vec::new();
        let mut is_done = false;
        let mut bytes = response.bytes_stream();
        while !is_done {
            let next = tokio::time::timeout(self.settings.idle_timeout, bytes.next()).await;
            let chunk = match next.map_err(|_| self.silent())? {
                None => break,
                // Some servers close without the last chunk although they have said all.
                Some(Err(_)) if gather.is_complete() => break,
                Some(Err(error)) => {
                    return Err(answer(format!("the stream broke off: {}", cause(&error))));
                }
                Some(Ok(chunk)) => chunk,
            };
            if !is_stream {
                whole.extend_from_slice(&chunk);
            }
            for data in events.feed(&chunk).map_err(answer)? {
                if data.trim() == "[DONE]" {
                    is_done = true;
                    break;
                }
                gather.take(&data, pieces).map_err(answer)?;
            }
        }
        let rest = if is_stream {
            events.finish()
        } else {
            Some(String::from_utf8_lossy(&whole).into_owned())
        };
        if let Some(data) = rest.filter(|data| !is_done && data.trim() != "[DONE]") {
            gather.take(&data, pieces).map_err(answer)?;
        }
        gather.reply(known, pieces).map_err(answer)
    }

    async fn json(&self, address: String) -> Result<Option<Value>, Error> {
        let sent = self.client.get(address).timeout(SHORT).send().await;
        let response = sent.map_err(|error| self.unreachable(error))?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        if !response.status().is_success() {
            return Err(self.refusal(response, 1).await.error);
        }
        if let Some(page) = page(&response) {
            return Err(Error::Answer { endpoint: self.base.clone(), reason: page });
        }
        Ok(serde_json::from_str(&read_some(response).await).ok())
    }

    /// Whether the protocol is spoken one step below the address that was given.
    async fn is_without_v1(&self) -> bool {
        !self.base.ends_with("/v1")
            && matches!(self.json(format!("{}/v1/models", self.base)).await, Ok(Some(_)))
    }

    fn silent(&self) -> Error {
        Error::Silent { endpoint: self.base.clone(), silent: self.settings.idle_timeout }
    }

    fn unreachable(&self, error: reqwest::Error) -> Error {
        Error::Unreachable { endpoint: self.base.clone(), source: error.without_url().into() }
    }
}

/// What came of one attempt.
struct Failure {
    error: Error,
    wait: Option<Duration>,
    is_passing: bool,
}

#[async_trait]
impl Model for Endpoint {
    async fn turn(
        &self,
        request: &Request,
        pieces: &mut (dyn FnMut(Piece) + Send),
    ) -> Result<Reply, Error> {
        let known: Vec<&str> = request.messages.iter().flat_map(call_ids).collect();
        let turn = async {
            let response = self.send(request).await?;
            self.read(response, &known, pieces).await
        };
        let limit = self.settings.turn_timeout;
        let late = |_| Error::Slow { endpoint: self.base.clone(), limit };
        tokio::time::timeout(limit, turn).await.map_err(late)?
    }

    async fn context_window(&self) -> Result<Option<u64>, Error> {
        let Some(list) = self.json(format!("{}/models", self.base)).await? else {
            return if self.is_without_v1().await {
                Err(Error::WithoutV1 { endpoint: self.base.clone() })
            } else {
                Ok(None)
            };
        };
        let models = list.get("data").and_then(Value::as_array).cloned().unwrap_or_default();
        let id =
            |model: &Value| model.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(model) = models.iter().find(|model| id(model) == self.settings.name) else {
            if models.is_empty() {
                return Ok(None);
            }
            let served: Vec<String> = models.iter().take(5).map(id).collect();
            return Err(Error::OtherModel {
                endpoint: self.base.clone(),
                name: self.settings.name.clone(),
                served: wire::cut(&self.redactor.redact(&served.join(", "))),
            });
        };
        if let Some(window) = model.get("max_model_len").and_then(Value::as_u64) {
            return Ok(Some(window));
        }
        // llama.cpp tells the window that it was started with at another address, beside /v1.
        let beside = self.base.strip_suffix("/v1").unwrap_or(&self.base);
        let props = self.json(format!("{beside}/props")).await.ok().flatten();
        let served = props.as_ref().and_then(|props| {
            props
                .pointer("/default_generation_settings/n_ctx")
                .or_else(|| props.get("n_ctx"))?
                .as_u64()
        });
        Ok(served.or_else(|| model.pointer("/meta/n_ctx_train").and_then(Value::as_u64)))
    }

    fn name(&self) -> &str {
        &self.settings.name
    }
}

/// What is said of a page for people, which no model writes.
fn page(response: &Response) -> Option<String> {
    let kind = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    let is_page = kind.trim().get(..9).is_some_and(|start| start.eq_ignore_ascii_case("text/html"));
    is_page.then(|| "it is a web page, so something else answers at this address".to_owned())
}

fn call_ids(message: &Message) -> Vec<&str> {
    match message {
        Message::Assistant { calls, .. } => calls.iter().map(|call| call.id.as_str()).collect(),
        Message::System { .. } | Message::User { .. } | Message::Tool { .. } => Vec::new(),
    }
}

fn authorities(file: &Path) -> Result<Vec<reqwest::Certificate>, BuildError> {
    let wrong = |source: Box<dyn std::error::Error + Send + Sync>| BuildError::Authorities {
        file: file.display().to_string(),
        source,
    };
    let pem = std::fs::read(file).map_err(|error| wrong(error.into()))?;
    reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| wrong(error.into()))
}

/// How long the server asks to wait, in seconds or until a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO))
}

async fn read_some(response: Response) -> String {
    let mut text = Vec::new();
    let mut bytes = response.bytes_stream();
    let reading = async {
        while let Some(Ok(chunk)) = bytes.next().await {
            text.extend_from_slice(&chunk);
            if text.len() > ERROR_BYTES {
                break;
            }
        }
    };
    // What has arrived by then is enough to say what is wrong.
    let _ = tokio::time::timeout(SHORT, reading).await;
    text.truncate(ERROR_BYTES);
    String::from_utf8_lossy(&text).into_owned()
}

fn cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
