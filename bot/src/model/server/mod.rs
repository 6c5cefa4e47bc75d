//! `hyla model serve`: the engine behind the OpenAI protocol, for editors and for bots on other machines.
//!
//! Every request is checked before the engine hears of it, and a wrong one is told which field is wrong. The engine's thread
//! waits for no client: events wait in a bounded queue, and a client that does not read is cut. It serves one model, keeps
//! no conversation, and speaks plain HTTP: put a TLS proxy in front if requests cross a network.

mod answer;
mod ask;
mod chat;
mod completions;
mod desk;
mod fault;
mod fields;
mod guard;
mod listen;
mod metrics;
mod turn;

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use config::Secret;
use engine::{Engine, Finished, Query};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::prometheus;
use answer::{Answer, Form, Head};
use ask::Asked;
use desk::Desk;
use metrics::{Gauges, Metrics, Outcome};

pub use fault::Fault;
pub use listen::serve;

/// How a model is served.
#[derive(Debug, Clone)]
pub struct Options {
    /// The model's name for clients.
    pub name: String,
    /// What clients must show, if anything.
    pub key: Option<Secret>,
    /// Whether only this machine can ask; then pages from elsewhere in a browser on it must not.
    pub is_local: bool,
    /// Turns that run at the same time.
    pub n_sessions: usize,
    /// Bytes that the engine may keep for later turns.
    pub memory_bytes: usize,
    /// How long running turns may take to end when the server is asked to stop.
    pub grace: Duration,
}

/// What all requests share.
pub struct App {
    engine: Engine,
    options: Options,
    clock: Arc<dyn Clock>,
    /// Seconds since 1970.
    started: i64,
    metrics: Metrics,
    seats: watch::Sender<Seats>,
    desk: Desk,
}

/// Who is there.
#[derive(Debug, Clone, Copy, Default)]
struct Seats {
    n_taken: usize,
    is_stopping: bool,
}

/// The place of one request in the counts.
struct Seat {
    app: Arc<App>,
    outcome: Outcome,
}

impl App {
    /// A server's state.
    pub fn new(engine: Engine, options: Options, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (started, metrics) = (clock.now().timestamp(), Metrics::new());
        let (seats, _) = watch::channel(Seats::default());
        let desk = Desk::new();
        Arc::new(Self { engine, options, clock, started, metrics, seats, desk })
    }

    /// A place for a turn, unless the server is stopping.
    fn seat(self: &Arc<Self>) -> Result<Seat, Fault> {
        let is_taken = self.seats.send_if_modified(|seats| {
            seats.n_taken += usize::from(!seats.is_stopping);
            !seats.is_stopping
        });
        if !is_taken {
            self.metrics.request(Outcome::Busy);
            return Err(Fault::stopping());
        }
        Ok(Seat { app: Arc::clone(self), outcome: Outcome::Cancelled })
    }

    /// Takes no more turns.
    fn stop(&self) {
        self.seats.send_modify(|seats| seats.is_stopping = true);
    }

    /// Ready when no turn is there.
    async fn idle(&self) {
        // The sender is our own, so it is there.
        let _ = self.seats.subscribe().wait_for(|seats| seats.n_taken == 0).await;
    }

    fn head(&self, form: Form, asked: &Asked) -> Head {
        let (kind, random) = match form {
            Form::Chat => ("chatcmpl", RandomState::new().hash_one(form as u8)),
            Form::Text => ("cmpl", RandomState::new().hash_one(form as u8)),
        };
        Head {
            form,
            id: format!("{kind}-{random:016x}"),
            created: self.clock.now().timestamp(),
            model: self.options.name.clone(),
            delivery: asked.delivery,
            has_logprobs: asked.query.n_logprobs.is_some(),
        }
    }
}

impl Seat {
    /// There is no turn.
    fn refused(&mut self, fault: &Fault) {
        self.outcome = match fault.status.as_u16() {
            429 | 503 => Outcome::Busy,
            400..=499 => Outcome::Refused,
            _ => Outcome::Failed,
        };
    }

    /// The turn came to its end.
    fn done(&mut self, finished: &Finished, outcome: Outcome) {
        self.outcome = outcome;
        self.app.metrics.turn(finished);
        let (usage, timings) = (finished.reply.usage.unwrap_or_default(), finished.timings);
        tracing::info!(
            outcome = outcome.name(),
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = timings.n_cached,
            completion_tokens = usage.completion_tokens,
            first_token_s = timings.first_token().as_secs_f64(),
            decode_s = timings.decode.as_secs_f64(),
            "answered"
        );
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.outcome == Outcome::Cancelled {
            tracing::info!(outcome = self.outcome.name(), "a turn was not finished");
        }
        self.app.metrics.request(self.outcome);
        self.app.seats.send_modify(|seats| seats.n_taken -= 1);
    }
}

/// Every address of the server.
fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(text_completions))
        .route("/metrics", get(show_metrics))
        .route("/health", get(health))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(app), guard::check))
        .with_state(Arc::clone(app))
}

async fn chat_completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    complete(&app, Form::Chat, &headers, body).await
}

async fn text_completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    complete(&app, Form::Text, &headers, body).await
}

async fn complete(
    app: &Arc<App>,
    form: Form,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    let mut seat = app.seat()?;
    let body = guard::body(body, headers).await.inspect_err(|fault| seat.refused(fault))?;
    let name = app.options.name.clone();
    let read = app.desk.work(move || read(form, &name, &body)).await;
    let read = read.and_then(|(asked, place)| Ok((asked?, place)));
    let (asked, place) = read.inspect_err(|fault| seat.refused(fault))?;
    let answer = Answer::new(app.head(form, &asked));
    let running = turn::start(seat, asked.query, place).await?;
    if asked.delivery.is_stream {
        return Ok(running.stream(answer));
    }
    Ok(Json(running.whole(answer).await?).into_response())
}

/// What a body of `/v1/chat/completions` asks of the engine, where the model has this name. Pure.
///
/// # Errors
/// Names the field that is wrong.
pub fn read_chat(name: &str, body: &[u8]) -> Result<Query, Fault> {
    Ok(read(Form::Chat, name, body)?.query)
}

fn read(form: Form, name: &str, bytes: &[u8]) -> Result<Asked, Fault> {
    let bad = |message: String| Fault::request(StatusCode::BAD_REQUEST, None, message);
    let body: Map<String, Value> = serde_json::from_slice(bytes)
        .map_err(|error| bad(format!("the body is not a JSON object: {error}")))?;
    if let Some(asked) = fields::Fields::top(&body).text("model")?.filter(|asked| *asked != name) {
        return Err(Fault::no_model(asked, name));
    }
    match form {
        Form::Chat => chat::read(&body),
        Form::Text => completions::read(&body),
    }
}

async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [card(&app)] }))
}

async fn model(
    State(app): State<Arc<App>>,
    asked: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Fault> {
    let bad = |_| {
        let message = "the model's name is not percent-encoded UTF-8";
        Fault::request(StatusCode::BAD_REQUEST, None, message)
    };
    let Path(asked) = asked.map_err(bad)?;
    if asked != app.options.name {
        return Err(Fault::no_model(&asked, &app.options.name));
    }
    Ok(Json(card(&app)))
}

/// The window has the name that vLLM gives it, by which `hyla` finds it too.
fn card(app: &App) -> Value {
    json!({ "id": app.options.name, "object": "model", "created": app.started, "owned_by": "hyla",
            "max_model_len": app.engine.context_tokens() })
}

async fn health(State(app): State<Arc<App>>) -> Result<&'static str, Fault> {
    if app.seats.borrow().is_stopping { Err(Fault::stopping()) } else { Ok("ok\n") }
}

async fn show_metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let n_turns = app.engine.n_turns();
    let n_running = n_turns.min(app.options.n_sessions);
    let text = app.metrics.text(Gauges {
        n_running,
        n_waiting: n_turns - n_running,
        n_generated: app.engine.n_generated(),
        cache_limit_bytes: app.options.memory_bytes,
    });
    ([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], text)
}

async fn nothing_here(uri: Uri) -> Fault {
    let message = format!("there is nothing at `{}`", uri.path());
    Fault::request(StatusCode::NOT_FOUND, Some("unknown_url"), message)
}

async fn wrong_method(method: Method, uri: Uri) -> Fault {
    let message = format!("`{}` does not take {method}", uri.path());
    Fault::request(StatusCode::METHOD_NOT_ALLOWED, None, message)
}
