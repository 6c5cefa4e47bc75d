//! The HTTP side: one door for every request, which writes it down, lets an armed fault happen, and hands it to the
//! API or to git.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::faults::Fault;
use super::hooks::Event;
use super::{Shared, api, backend, github, hooks, lock};

/// Largest request that is taken: a push of this size is no test's purpose.
const BODY_LIMIT_BYTES: usize = 64 << 20;

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The path below the forge's address, as sent.
    pub path: String,
    /// The query, as sent.
    pub query: String,
    /// All headers but the one that may carry a token.
    pub headers: Vec<(String, String)>,
    /// The body. Of git requests, packed data.
    pub body: Vec<u8>,
    /// What it was answered; none while it hangs or when the connection was closed on it.
    pub status: Option<u16>,
}

impl Request {
    /// Takes one in, and apart from it what its `Authorization` says.
    ///
    /// # Errors
    /// It is too large, or it breaks off.
    pub async fn read(request: axum::extract::Request) -> Result<(Self, String), axum::Error> {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, BODY_LIMIT_BYTES).await?;
        let authorization = parts.headers.get("authorization");
        let authorization = authorization.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let request = Self {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            headers: printable(&parts.headers),
            body: body.to_vec(),
            status: None,
        };
        Ok((request, authorization.to_owned()))
    }
}

/// What a request is answered.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// All headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// Words, and what they are.
    pub fn text(status: u16, content_type: &str, body: &str) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        Self { status, headers, body: body.as_bytes().to_vec() }
    }

    /// A value.
    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        Self::text(status, "application/json;charset=utf-8", &body.to_string())
    }

    /// The same with one more header.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

/// Serves until the task is aborted.
pub(super) fn start(listener: TcpListener, shared: Arc<Shared>) -> JoinHandle<()> {
    let router = Router::new().fallback(serve).with_state(shared);
    tokio::spawn(async move {
        axum::serve(listener, router).await.expect("accepting on loopback does not end");
    })
}

async fn serve(State(shared): State<Arc<Shared>>, request: axum::extract::Request) -> Response {
    let Ok((asked, authorization)) = Request::read(request).await else {
        return Reply::text(413, "text/plain", "too large or cut off").into_response();
    };
    let authorization = authorization.as_str();
    let Some(below) = asked.path.strip_prefix(&shared.sub_path).map(str::to_owned) else {
        return shared.strange(&asked, "it is outside the forge's sub-path").into_response();
    };
    let asked = Request { path: below, ..asked };
    let number = {
        let mut requests = lock(&shared.requests);
        requests.push(asked.clone());
        requests.len() - 1
    };
    let fault = lock(&shared.faults).take(&asked.method, &asked.path);
    let reply = match fault {
        Some(Fault::Hang) => shared.hang().await,
        Some(Fault::Waits(gate)) => {
            gate.notified().await;
            shared.carry_out(&asked, authorization).await
        }
        Some(Fault::HangAfterEffect) => {
            shared.carry_out(&asked, authorization).await;
            shared.hang().await
        }
        Some(Fault::CloseConnection) => return broken(),
        Some(Fault::Garbage) => Reply::text(200, "application/json", "{\"id\": 1, \"na"),
        Some(Fault::Status { status, body, headers }) => overridden(status, body, headers),
        Some(Fault::AfterEffect(status)) => {
            shared.carry_out(&asked, authorization).await;
            Reply::json(status, &serde_json::json!({ "message": "", "url": "" }))
        }
        None | Some(Fault::Pass) => shared.carry_out(&asked, authorization).await,
    };
    lock(&shared.requests)[number].status = Some(reply.status);
    reply.into_response()
}

impl Shared {
    /// Does what a request asks, and sends what hooks want to hear of it.
    async fn carry_out(self: &Arc<Self>, asked: &Request, authorization: &str) -> Reply {
        let is_github = self.checker.is_github;
        if asked.path.starts_with("/api/v1/") && !is_github {
            let (reply, events) = api::answer(self, asked, authorization);
            self.announce(events);
            return reply;
        }
        if is_github && asked.path.starts_with("/api/") {
            let (reply, events) = github::answer(self, asked, authorization);
            self.announce(events);
            return reply;
        }
        if asked.path.contains(".git/") {
            return backend::serve(self, asked, authorization).await;
        }
        self.strange(asked, "the bot has no business with pages for people")
    }

    async fn hang(&self) -> Reply {
        self.n_hung.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }

    pub(super) fn announce(self: &Arc<Self>, events: Vec<Event>) {
        for event in events {
            let shared = Arc::clone(self);
            lock(&self.pending).spawn(async move {
                hooks::deliver(&shared, event).await;
            });
        }
    }

    /// Records a request that the bot must never make, and answers it so that nobody overlooks it.
    pub(super) fn strange(&self, asked: &Request, reason: &str) -> Reply {
        let violation = format!("{} {}: {reason}", asked.method, asked.path);
        let body = serde_json::json!({ "message": format!("fake forge: {violation}"), "url": "" });
        lock(&self.violations).push(violation);
        Reply::json(418, &body)
    }
}

fn overridden(status: u16, body: String, headers: Vec<(String, String)>) -> Reply {
    let mut reply = Reply { status, headers, body: body.into_bytes() };
    let has_type = reply.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    if !has_type {
        reply = reply.with("content-type", "application/json;charset=utf-8");
    }
    reply
}

fn printable(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .filter(|(name, _)| *name != "authorization")
        .map(|(name, value)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect()
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(name, value);
        }
        response.body(Body::from(self.body)).expect("a test's status and headers are valid")
    }
}

/// An answer whose body fails on the way, upon which the server closes the connection.
fn broken() -> Response {
    let cut = std::io::Error::other("the test closes the connection");
    let body = Body::from_stream(stream::iter([Ok(Bytes::from_static(b"{")), Err(cut)]));
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    response
}
