//! The emulator as a process of its own, with an organisation, three people, two repositories and an app in both; and what
//! is asked of it as one of the people, past the proxy and the bot.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tests::house::WEBHOOK_SECRET;
use tests::model::PATIENCE;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use url::Url;

/// The number of the app.
pub(super) const APP: i64 = 17;
/// The number of its installation.
pub(super) const INSTALLATION: i64 = 23;

/// A running emulator. It ends with its value.
pub(super) struct Emulator {
    pub(super) url: Url,
    /// The private key of the app, which the emulator made.
    pub(super) key: String,
    client: reqwest::Client,
    _process: Child,
    _input: ChildStdin,
}

/// What the process says once it listens.
#[derive(Deserialize)]
struct Started {
    url: Url,
    key: String,
}

/// The package's own file, if it is installed.
pub(super) fn package() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulate");
    let file = folder.join("node_modules/emulate/dist/api.js");
    folder.join("ready").exists().then_some(file)
}

/// A person's token.
pub(super) fn token(login: &str) -> String {
    format!("the-token-of-{login}-at-the-emulator")
}

/// What is in it. Whoever comes with a token that it does not know is taken for the first user, so that is nobody, and the
/// repository is private: nothing is granted by mistake.
fn seed(hook: &str) -> Value {
    let people = ["olga", "ann", "rob"];
    let known = people.map(|login| (token(login), json!({ "login": login, "scopes": ["repo"] })));
    let users = ["nobody"].into_iter().chain(people).map(|login| json!({ "login": login }));
    let repos = ["hours", "other"]
        .map(|name| json!({ "owner": "acme", "name": name, "private": true, "auto_init": false }));
    json!({
        "tokens": serde_json::Map::from_iter(known),
        "github": {
            "users": users.collect::<Vec<_>>(),
            "orgs": [{ "login": "acme", "members": [{ "login": "olga", "role": "admin" }] }],
            "repos": repos,
            "apps": [{
                "app_id": APP,
                "slug": "hyla",
                "name": "Hyla",
                "permissions": {
                    "contents": "write", "issues": "write", "metadata": "read", "pull_requests": "write",
                },
                "events": ["issues", "issue_comment", "pull_request"],
                "webhook_url": hook,
                "webhook_secret": WEBHOOK_SECRET,
                "installations": [{
                    "installation_id": INSTALLATION,
                    "account": "acme",
                    "repository_selection": "selected",
                    "repositories": ["hours", "other"],
                }],
            }],
        },
    })
}

impl Emulator {
    /// Starts it; the app's deliveries go to this address.
    pub(super) async fn start(package: &Path, hook: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/emulate/server.mjs");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut process = Command::new("node")
            .arg(script)
            .arg(package)
            .env_clear()
            .env("PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("`node` starts");
        let mut input = process.stdin.take().expect("it was asked for as a pipe");
        let line = format!("{}\n", seed(hook));
        input.write_all(line.as_bytes()).await.expect("it reads its input");
        let output = process.stdout.take().expect("it was asked for as a pipe");
        let mut lines = BufReader::new(output).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("it starts");
        let line = line.expect("it writes text").expect("it says where it listens");
        let Started { mut url, key } = serde_json::from_str(&line).expect("it says it in JSON");
        // It listens there alone, whatever `localhost` is on this machine.
        url.set_host(Some("127.0.0.1")).expect("that is a host");
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build();
        let client = client.expect("a client without options can be made");
        Self { url, key, client, _process: process, _input: input }
    }

    /// Gives people their rights and the repository its label, as the organisation's owner.
    pub(super) async fn furnish(&self) {
        for (login, permission) in [("ann", "push"), ("rob", "triage")] {
            let path = format!("/repos/acme/hours/collaborators/{login}");
            self.write("olga", Method::PUT, &path, json!({ "permission": permission })).await;
        }
        let label = json!({ "name": "hyla", "color": "5e8c31" });
        self.write("olga", Method::POST, "/repos/acme/hours/labels", label).await;
    }

    /// Opens an issue as `ann`. Returns its number.
    pub(super) async fn open_issue(&self, (title, body): (&str, &str)) -> u64 {
        let issue = json!({ "title": title, "body": body });
        let issue = self.write("ann", Method::POST, "/repos/acme/hours/issues", issue).await;
        issue["number"].as_u64().expect("an issue has a number")
    }

    /// Puts the label on an issue.
    pub(super) async fn label(&self, login: &str, issue: u64) {
        let path = format!("/repos/acme/hours/issues/{issue}/labels");
        self.write(login, Method::POST, &path, json!({ "labels": ["hyla"] })).await;
    }

    /// What stands at a path of the API, as the organisation's owner sees it.
    pub(super) async fn read(&self, path: &str) -> Value {
        self.ask("olga", self.client.get(self.at(path)), path).await
    }

    async fn write(&self, login: &str, method: Method, path: &str, body: Value) -> Value {
        self.ask(login, self.client.request(method, self.at(path)).json(&body), path).await
    }

    async fn ask(&self, login: &str, request: reqwest::RequestBuilder, path: &str) -> Value {
        let answer = request.bearer_auth(token(login)).send().await.expect("the emulator answers");
        let (status, text) = (answer.status(), answer.text().await.expect("it answers whole"));
        assert!(status.is_success(), "{path} as {login}: {status} {text}");
        serde_json::from_str(&text).expect("it answers in JSON")
    }

    fn at(&self, path: &str) -> Url {
        self.url.join(path).expect("that is a path")
    }
}
