//! The fake GitHub Enterprise Server itself: who may ask what, its refusals, its shapes, its webhooks, its App. It is asked
//! with plain HTTP; the bot's own client is tested elsewhere.

#![expect(clippy::unwrap_used, reason = "the scenes and helpers belong to the tests")]

use bot::forge::Permission;
use bot::job::RepoName;
use reqwest::Method;
use serde_json::{Value, json};
use tests::forge::{Dialect, FakeForge};

mod app;
mod hooks;
mod rest;
mod shapes;

/// A forge with one repository, a maintainer, and the bot's user, which may write.
struct Scene {
    forge: FakeForge,
    repo: RepoName,
    token: String,
    http: reqwest::Client,
}

/// An answer, read to its end.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: reqwest::header::HeaderMap,
    body: Value,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// What is said of the one thing that is invalid.
    fn invalid(&self) -> &Value {
        assert_eq!((self.status, self.message()), (422, "Validation Failed"));
        &self.body["errors"][0]
    }
}

impl Scene {
    async fn new(dialect: Dialect) -> Self {
        Self::below(dialect, "").await
    }

    async fn below(dialect: Dialect, sub_path: &str) -> Self {
        let forge = FakeForge::start_below(dialect, sub_path).await;
        forge.add_user("ada", Permission::Write);
        forge.add_user("hyla", Permission::Write);
        let repo = forge.add_repository("acme", "app", [("README.md", "Hello\n")]);
        let token = forge.token_for("hyla");
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Self { forge, repo, token, http }
    }

    async fn ask(&self, method: Method, path: &str, token: &str, body: &Value) -> Answer {
        let root = self.forge.url().to_string();
        let url = match path.strip_prefix("http") {
            Some(_) => path.to_owned(),
            None => format!("{}{path}", root.trim_end_matches('/')),
        };
        let mut request = self.http.request(method, url);
        if !token.is_empty() {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if !body.is_null() {
            request = request.json(body);
        }
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default();
        Answer { status, headers, body }
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, &format!("/api/v3{path}"), &self.token, &Value::Null).await
    }

    async fn get_as(&self, path: &str, token: &str) -> Answer {
        self.ask(Method::GET, &format!("/api/v3{path}"), token, &Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::POST, &format!("/api/v3{path}"), &self.token, &body).await
    }

    async fn issue(&self, labels: &[&str]) -> u64 {
        self.forge.person("ada").open_issue(&self.repo, "It breaks", "Badly.", labels).await
    }

    /// A branch with a change, and what asks for its draft.
    fn draft(&self, branch: &str) -> Value {
        self.forge.person("hyla").commit(&self.repo, branch, [("a.txt", branch)]);
        json!({ "title": "A change", "head": branch, "base": "main", "body": "", "draft": true })
    }
}
