//! A model's server that plays a recording over the OpenAI-compatible protocol, in small pieces, with the faults of real
//! servers where a test asks for them.
//!
//! It generates nothing. It checks that what it is sent is a conversation.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Pieces of an endless turn before the server gives up by itself.
const ENDLESS_PIECES: usize = 2_000;
/// Characters of one piece.
const PIECE_CHARS: usize = 24;

/// What is played.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// One for each request.
    pub turns: Vec<Turn>,
    /// Whether each conversation plays it from its beginning; otherwise it is played once, whoever asks.
    #[serde(default)]
    pub each_conversation: bool,
    /// What is played instead, from its beginning, in a conversation about certain words.
    #[serde(default)]
    pub stories: Vec<Story>,
}

/// What is played in a conversation about certain words.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Story {
    /// Words of the task.
    pub about: String,
    /// One for each request.
    pub turns: Vec<Turn>,
}

/// One turn.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Turn {
    /// The model's thoughts.
    pub reasoning: String,
    /// The model's words.
    pub content: String,
    /// The model's calls.
    pub calls: Vec<Call>,
    /// `stop`, `tool_calls` or `length`; by the calls if it is left out.
    pub finish: Option<String>,
    /// What goes wrong instead.
    pub fault: Option<Fault>,
    /// Tokens that the server counts in the prompt; a thousand if it is left out.
    pub prompt_tokens: Option<u64>,
}

impl Turn {
    /// A turn with one call.
    pub fn call(name: &str, arguments: &Value) -> Self {
        let call = Call { name: name.to_owned(), arguments: arguments.to_string() };
        Self { calls: vec![call], ..Self::default() }
    }

    /// A turn with one command.
    pub fn bash(script: &str) -> Self {
        Self::call("Bash", &json!({ "command": script }))
    }

    /// A turn of words, which ends a session.
    pub fn says(words: &str) -> Self {
        Self { content: words.to_owned(), ..Self::default() }
    }
}

/// One call.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// JSON text, possibly broken.
    pub arguments: String,
}

/// What a server does wrong.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It answers with this status, these words and perhaps a `Retry-After`.
    Status {
        /// The status.
        status: u16,
        /// The message of the error.
        message: String,
        /// The header's value.
        retry_after: Option<String>,
    },
    /// It never answers.
    Hang,
    /// It closes the stream in the middle.
    Truncate,
    /// It sends bytes that are no events.
    Garbage,
    /// It never stops talking.
    Endless,
    /// It begins to answer, and then tells of an error in these words.
    Breaks(String),
}

impl Recording {
    /// Plays these turns, once.
    pub fn of(turns: Vec<Turn>) -> Self {
        Self { turns, ..Self::default() }
    }

    /// Plays each story in the conversation that is about its words.
    pub fn of_stories(stories: impl IntoIterator<Item = (String, Vec<Turn>)>) -> Self {
        let stories = stories.into_iter().map(|(about, turns)| Story { about, turns });
        Self { stories: stories.collect(), ..Self::default() }
    }

    /// The same with another turn before all others.
    pub fn begun_by(mut self, turn: Turn) -> Self {
        self.turns.insert(0, turn);
        self
    }

    /// Reads a recording.
    ///
    /// # Errors
    /// It is not one.
    pub fn from_json(text: &str) -> anyhow::Result<Self> {
        serde_json::from_str(text).context("cannot read the recording")
    }
}

/// A running server. It ends with the value.
pub struct ModelServer {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    recording: Mutex<Recording>,
    window: u64,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    requests: Vec<Value>,
    headers: Vec<HeaderMap>,
    violations: Vec<String>,
    n_played: usize,
}

/// The name of the model that it serves.
pub const MODEL: &str = "recording";

impl ModelServer {
    /// Starts on a free port of the loopback interface.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start(recording: Recording) -> anyhow::Result<Self> {
        Self::with_window(recording, 131_072).await
    }

    /// The same with another context window.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn with_window(recording: Recording, window: u64) -> anyhow::Result<Self> {
        let shared =
            Arc::new(Shared { recording: Mutex::new(recording), window, log: Mutex::default() });
        let router = Router::new()
            .route("/v1/models", get(models))
            .route("/v1/chat/completions", post(complete))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the recording's server ended");
            }
        });
        Ok(Self { address, shared, task })
    }

    /// The base address, with `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Plays another recording from here on: one about what is known only now.
    pub fn plays(&self, recording: Recording) {
        *self.shared.recording() = recording;
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Value> {
        self.shared.log().requests.clone()
    }

    /// The requests so far of the conversation about certain words.
    pub fn requests_about(&self, words: &str) -> Vec<Value> {
        let is_about = |request: &Value| {
            request["messages"][1]["content"].as_str().is_some_and(|task| task.contains(words))
        };
        self.requests().into_iter().filter(is_about).collect()
    }

    /// What the model saw of its calls in the conversation about certain words.
    pub fn observations(&self, words: &str) -> Vec<String> {
        let last = self.requests_about(words).pop().unwrap_or_default();
        let messages = last["messages"].as_array().cloned().unwrap_or_default();
        let tools = messages.iter().filter(|message| message["role"] == "tool");
        tools.map(|message| message["content"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// The headers of the requests so far.
    pub fn headers(&self) -> Vec<HeaderMap> {
        self.shared.log().headers.clone()
    }

    /// What was wrong with the requests so far.
    pub fn violations(&self) -> Vec<String> {
        self.shared.log().violations.clone()
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().expect("no holder of this lock panics")
    }

    fn recording(&self) -> std::sync::MutexGuard<'_, Recording> {
        self.recording.lock().expect("no holder of this lock panics")
    }
}

async fn models(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(
        json!({ "object": "list", "data": [{ "id": MODEL, "object": "model", "max_model_len": shared.window }] }),
    )
}

async fn complete(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Json(request): Json<Value>,
) -> Response {
    let turn = {
        let mut log = shared.log();
        log.violations.extend(violations(&request));
        log.n_played += 1;
        let task = request["messages"][1]["content"].as_str().unwrap_or_default();
        let recording = shared.recording();
        let story = recording.stories.iter().find(|story| task.contains(&story.about));
        let at = match story {
            None if !recording.each_conversation => log.n_played - 1,
            Some(_) | None => n_answers(&request),
        };
        log.requests.push(request);
        log.headers.push(headers);
        story.map_or(&recording.turns, |story| &story.turns).get(at).cloned()
    };
    let turn = turn
        .unwrap_or_else(|| Turn { content: "The recording is over.".into(), ..Turn::default() });
    match &turn.fault {
        None | Some(Fault::Truncate) => stream(&turn),
        Some(Fault::Status { status, message, retry_after }) => {
            let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let mut response =
                (status, Json(json!({ "error": { "message": message } }))).into_response();
            if let Some(value) = retry_after.as_ref().and_then(|value| value.parse().ok()) {
                response.headers_mut().insert(header::RETRY_AFTER, value);
            }
            response
        }
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Garbage) => {
            events(vec![Bytes::from_static(b"data: <html>\xff\xfe</html>\n\n")])
        }
        Some(Fault::Endless) => endless(),
        Some(Fault::Breaks(message)) => {
            events(vec![event(&json!({ "error": { "message": message } }))])
        }
    }
}

/// How often the model has answered in a conversation.
fn n_answers(request: &Value) -> usize {
    let messages = request["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    messages.iter().filter(|message| message["role"] == "assistant").count()
}

fn endless() -> Response {
    let piece = event(
        &json!({ "choices": [{ "index": 0, "delta": { "content": "and then ".repeat(2000) } }] }),
    );
    let pieces = futures_util::stream::iter(
        (0..ENDLESS_PIECES).map(move |_| Ok::<_, Infallible>(piece.clone())),
    );
    event_stream(Body::from_stream(pieces))
}

fn stream(turn: &Turn) -> Response {
    let delta = |delta: Value| {
        event(&json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] }))
    };
    let mut pieces = vec![Bytes::from_static(b": a comment keeps the line open\n\n")];
    pieces.push(delta(json!({ "role": "assistant" })));
    pieces.extend(split(&turn.reasoning).map(|piece| delta(json!({ "reasoning_content": piece }))));
    pieces.extend(split(&turn.content).map(|piece| delta(json!({ "content": piece }))));
    for (index, call) in turn.calls.iter().enumerate() {
        let function = json!({ "name": call.name, "arguments": "" });
        let first = json!({ "index": index, "id": format!("rec-{index}"), "type": "function", "function": function });
        pieces.push(delta(json!({ "tool_calls": [first] })));
        pieces.extend(split(&call.arguments).map(|piece| {
            delta(json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] }))
        }));
    }
    if matches!(turn.fault, Some(Fault::Truncate)) {
        return events(pieces);
    }
    let by_calls = if turn.calls.is_empty() { "stop" } else { "tool_calls" };
    let finish = turn.finish.as_deref().unwrap_or(by_calls);
    pieces
        .push(event(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": finish }] })));
    let usage =
        json!({ "prompt_tokens": turn.prompt_tokens.unwrap_or(1000), "completion_tokens": 100 });
    pieces.push(event(&json!({ "choices": [], "usage": usage })));
    pieces.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events(pieces)
}

fn split(text: &str) -> impl Iterator<Item = String> {
    let chars: Vec<char> = text.chars().collect();
    let pieces: Vec<String> =
        chars.chunks(PIECE_CHARS).map(|piece| piece.iter().collect()).collect();
    pieces.into_iter()
}

fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

fn events(pieces: Vec<Bytes>) -> Response {
    event_stream(Body::from_stream(futures_util::stream::iter(
        pieces.into_iter().map(Ok::<_, Infallible>),
    )))
}

fn event_stream(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// What is not as the protocol wants it.
fn violations(request: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    if request["model"] != MODEL {
        wrong.push(format!("the model is {}", request["model"]));
    }
    if request["stream"] != true {
        wrong.push("it asks for no stream".into());
    }
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    let mut open: HashSet<String> = HashSet::new();
    let mut known: HashSet<String> = HashSet::new();
    for (number, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        let expected =
            matches!((number, role), (0, "system") | (1, "user") | (2.., "assistant" | "tool"));
        if !expected {
            wrong.push(format!("message {number} is of `{role}`"));
        }
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            if !open.remove(id) {
                wrong.push(format!("message {number} answers `{id}`, which nobody called"));
            }
            continue;
        }
        if !open.is_empty() {
            wrong.push(format!("message {number} comes before {} answers", open.len()));
        }
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        for call in calls {
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            if !serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()) {
                wrong.push(format!("message {number} has a call without arguments"));
            }
            let id = call["id"].as_str().unwrap_or_default().to_owned();
            open.insert(id.clone());
            if !known.insert(id) {
                wrong.push(format!("message {number} repeats a call's id"));
            }
        }
    }
    wrong
}

/// How long a test waits at most for what happens elsewhere.
pub const PATIENCE: Duration = Duration::from_secs(60);
