//! The proxy before the emulator: `/api/v3/...` is the emulator's `/...`, and git comes over HTTP.
//!
//! Issues, labels, comments, refs and pull requests are the emulator's alone. What it lacks or says otherwise than GitHub
//! Enterprise Server 3.14 is made good here, and only where the bot could not go on:
//!
//! - Git over HTTP: the harness's own. Whoever comes is asked about at the emulator, and what was pushed is put into the
//!   emulator through its API, under the same ids, with the token of the push (`mirror`).
//! - The user of an app: a real server has it from the app's registration on, the emulator only once the app has tried to
//!   write. So it is made to try before it is told that there is no such user ([`Shared::with_app_user`]).
//! - A collaborator's `permission`: `admin`, `write`, `read` or `none` on a real server, as in its API's description. The
//!   emulator says `push`, `pull`, `triage` and `maintain` as well, which stand for one of them ([`plain`]).
//!
//! - The repositories of a fresh token: each has a `url` on a real server, and the emulator leaves it out ([`with_urls`]).
//!
//! It has no reactions; the bot goes on without one. Nor does it tell a version of Enterprise Server.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bot::job::RepoName;
use serde_json::{Value, json};
use tests::forge::{GitHost, Reply, Request};
use tests::house::demo_folder;
use tests::model::PATIENCE;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use url::Url;

/// The proxy. It ends with its value.
pub(super) struct Door {
    pub(super) url: Url,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// What all requests share.
pub(super) struct Shared {
    /// The emulator's address, without a final slash.
    emulator: String,
    client: reqwest::Client,
    git: GitHost,
    /// The bare repository.
    pub(super) dir: PathBuf,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// Every token that stood in an `Authorization`.
    tokens: BTreeSet<String>,
    /// What each request was, and everything in it besides the `Authorization`.
    sent: Vec<(String, Vec<u8>)>,
    /// What the bot asked and should not have, and pushes that did not reach the emulator.
    wrong: Vec<String>,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Door {
    /// A proxy before the emulator, with the demonstration's repository, which is pushed with this token.
    pub(super) async fn start(emulator: &Url, token: &str) -> Self {
        let git = GitHost::default();
        let name = RepoName { owner: "acme".to_owned(), name: "hours".to_owned() };
        let dir = git.add_repository(&name, demo_folder().join("repository").as_path());
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(PATIENCE)
            .build()
            .expect("a client without options can be made");
        let emulator = emulator.as_str().trim_end_matches('/').to_owned();
        let shared = Arc::new(Shared { emulator, client, git, dir, log: Mutex::default() });
        shared.mirror(token).await.expect("the emulator takes the first commit");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let router = Router::new().fallback(serve).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("accepting on loopback does not end");
        });
        let url = format!("http://{address}").parse().expect("it was made from an address");
        Self { url, shared, task }
    }

    /// All branches with their commits, as git has them.
    pub(super) fn branches(&self) -> Vec<(String, String)> {
        self.shared.git.branches(&self.shared.dir)
    }

    /// Author, committer, message and changes of every commit.
    pub(super) fn commits(&self) -> String {
        self.shared.git.everything(&self.shared.dir)
    }

    /// Every token that was used here.
    pub(super) fn tokens(&self) -> BTreeSet<String> {
        self.shared.log().tokens.clone()
    }

    /// Everything that came besides an `Authorization`, with what it was.
    pub(super) fn sent(&self) -> Vec<(String, Vec<u8>)> {
        self.shared.log().sent.clone()
    }

    /// What should not have come.
    pub(super) fn wrong(&self) -> Vec<String> {
        self.shared.log().wrong.clone()
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: axum::extract::Request) -> Reply {
    let Ok((asked, authorization)) = Request::read(request).await else {
        return Reply::text(413, "text/plain", "too large or cut off");
    };
    shared.note(&asked, &authorization);
    if let Some(path) = asked.path.strip_prefix("/api/v3").map(str::to_owned) {
        return shared.api(Request { path, ..asked }, &authorization).await;
    }
    if asked.path.starts_with("/acme/hours.git/") {
        return shared.serve_git(&asked, &authorization).await;
    }
    let wrong = format!("{} {} is neither the API nor git", asked.method, asked.path);
    shared.log().wrong.push(wrong);
    Reply::text(404, "text/plain", "Not found.\n")
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, asked: &Request, authorization: &str) {
        let mut content = format!("{}?{}\n{:?}\n", asked.path, asked.query, asked.headers);
        content.push_str(&String::from_utf8_lossy(&asked.body));
        let mut log = self.log();
        log.sent.push((format!("{} {}", asked.method, asked.path), content.into_bytes()));
        log.tokens.extend(token(authorization));
    }

    async fn api(&self, asked: Request, authorization: &str) -> Reply {
        let reply = self.forward(&asked, authorization).await;
        let segments: Vec<&str> = asked.path.trim_start_matches('/').split('/').collect();
        match (asked.method.as_str(), segments.as_slice()) {
            ("GET", ["users", login]) if reply.status == 404 && is_app(login) => {
                self.with_app_user(&asked, authorization).await
            }
            ("GET", ["repos", _, _, "collaborators", _, "permission"]) if reply.status == 200 => {
                plain(reply)
            }
            ("POST", ["app", "installations", _, "access_tokens"]) if reply.status == 201 => {
                with_urls(reply)
            }
            _ => reply,
        }
    }

    /// The emulator's own answer.
    async fn forward(&self, asked: &Request, authorization: &str) -> Reply {
        let query = if asked.query.is_empty() { "" } else { "?" };
        let url = format!("{}{}{query}{}", self.emulator, asked.path, asked.query);
        let method = asked.method.parse::<Method>().expect("it came as a method");
        let mut request = self.client.request(method, url).body(asked.body.clone());
        for (name, value) in asked.headers.iter().filter(|(name, _)| !is_of_the_way(name)) {
            request = request.header(name, value);
        }
        if !authorization.is_empty() {
            request = request.header("authorization", authorization);
        }
        let answer = request.send().await.expect("the emulator answers");
        let status = answer.status().as_u16();
        let headers = answer.headers().iter().filter(|(name, _)| !is_of_the_way(name.as_str()));
        let headers = headers.map(|(name, value)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        });
        let headers = headers.collect();
        let body = answer.bytes().await.expect("it answers whole").to_vec();
        Reply { status, headers, body }
    }

    /// What is at a path of the emulator's API, with a token.
    pub(super) async fn get(&self, token: &str, path: &str) -> Result<Value, String> {
        self.call(token, (Method::GET, path), Value::Null).await
    }

    /// A call of the emulator's API, with a token. The error is what it says when it refuses.
    pub(super) async fn call(
        &self,
        token: &str,
        (method, path): (Method, &str),
        body: Value,
    ) -> Result<Value, String> {
        let asked = Request {
            method: method.to_string(),
            path: path.to_owned(),
            query: String::new(),
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: if body.is_null() { vec![] } else { body.to_string().into_bytes() },
            status: None,
        };
        let reply = self.forward(&asked, &format!("Bearer {token}")).await;
        let words = || format!("{method} {path}: {} {}", reply.status, text(&reply.body));
        if !(200..300).contains(&reply.status) {
            return Err(words());
        }
        serde_json::from_slice(&reply.body).map_err(|_| words())
    }

    /// The user of an app, after the app has tried to write.
    async fn with_app_user(&self, asked: &Request, authorization: &str) -> Reply {
        if let Some(token) = token(authorization) {
            self.may_push(&token).await;
        }
        self.forward(asked, authorization).await
    }

    async fn may_fetch(&self, token: &str) -> bool {
        self.get(token, "/repos/acme/hours/git/matching-refs/heads").await.is_ok()
    }

    /// A ref without a name is refused to all; whoever may not write is told that first.
    async fn may_push(&self, token: &str) -> bool {
        let refs = (Method::POST, "/repos/acme/hours/git/refs");
        let told = self.call(token, refs, json!({})).await;
        told.is_err_and(|words| words.contains(": 422 "))
    }

    async fn serve_git(&self, asked: &Request, authorization: &str) -> Reply {
        let Some(token) = token(authorization) else {
            let ask = "Basic realm=\"GitHub\"";
            return Reply::text(401, "text/plain", "Unauthorized\n").with("www-authenticate", ask);
        };
        if !self.may_fetch(&token).await {
            return Reply::text(404, "text/plain", "Repository not found.\n");
        }
        let is_push =
            asked.path.ends_with("/git-receive-pack") || asked.query.contains("git-receive-pack");
        if is_push && !self.may_push(&token).await {
            return Reply::text(403, "text/plain", "Write access is not granted.\n");
        }
        let reply = self.git.answer(asked).await;
        if !asked.path.ends_with("/git-receive-pack") {
            return reply;
        }
        match self.mirror(&token).await {
            Ok(()) => reply,
            Err(words) => {
                self.log().wrong.push(format!("a push did not reach the emulator: {words}"));
                Reply::text(500, "text/plain", "the push reached git alone\n")
            }
        }
    }
}

/// Headers that are about one connection, or that the client and the server make themselves.
fn is_of_the_way(name: &str) -> bool {
    matches!(name, "host" | "content-length" | "connection" | "transfer-encoding" | "keep-alive")
}

/// Whether a login in an address is an app's.
fn is_app(login: &str) -> bool {
    login.ends_with("[bot]") || login.ends_with("%5Bbot%5D")
}

/// The token of an `Authorization`, of the API or of git.
fn token(authorization: &str) -> Option<String> {
    if let Some(token) = authorization.strip_prefix("Bearer ") {
        return Some(token.to_owned());
    }
    let decoded = STANDARD.decode(authorization.strip_prefix("Basic ")?).ok()?;
    let decoded = String::from_utf8(decoded).ok()?;
    decoded.strip_prefix("x-access-token:").map(str::to_owned)
}

/// The answer with the plain right that a collaborator's stands on.
fn plain(reply: Reply) -> Reply {
    let mut body: Value = serde_json::from_slice(&reply.body).expect("it answers in JSON");
    let right = match body["permission"].as_str() {
        Some("push" | "maintain") => "write",
        Some("pull" | "triage") => "read",
        _ => return reply,
    };
    body["permission"] = right.into();
    Reply { body: body.to_string().into_bytes(), ..reply }
}

/// The answer with the address of each of its repositories.
fn with_urls(reply: Reply) -> Reply {
    let mut body: Value = serde_json::from_slice(&reply.body).expect("it answers in JSON");
    for repo in body["repositories"].as_array_mut().into_iter().flatten() {
        let name = repo["full_name"].as_str().unwrap_or_default();
        repo["url"] = format!("http://forge.example/api/v3/repos/{name}").into();
    }
    Reply { body: body.to_string().into_bytes(), ..reply }
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}
