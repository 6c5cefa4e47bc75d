//! What real forges have sent: captured webhooks through the whole door, and recorded answers through the client. They
//! lie beside the checkout of those who develop the bot.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bot::forge::gitea::{Gitea, Options};
use bot::forge::{Error, Forge, NewDraft};
use bot::job::RepoName;
use config::ForgeKind;
use futures_util::StreamExt;
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::Value;
use tests::forge::{Dialect, signature};
use tests::house::{House, Setup, WEBHOOK_SECRET};
use tests::outside::{Outside, send};

use crate::storms::database;

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/forges");

/// One captured webhook.
#[derive(Deserialize)]
struct Captured {
    path: String,
    forge: String,
    event: Option<String>,
    event_type: Option<String>,
}

/// The captured webhooks, if they are at hand.
#[expect(clippy::print_stderr, reason = "a test says that it was skipped")]
fn captured() -> Option<Vec<Captured>> {
    let manifest = Path::new(SHARED).join("payloads/manifest.json");
    let Ok(text) = std::fs::read_to_string(manifest) else {
        eprintln!("skipped: the captured webhooks are not at hand");
        return None;
    };
    Some(serde_json::from_str(&text).expect("the manifest is JSON"))
}

impl Captured {
    fn payload(&self) -> Vec<u8> {
        let path = Path::new(SHARED).join("payloads").join(&self.path);
        std::fs::read(path).expect("the manifest names files that are there")
    }

    /// The event's name; GitHub's captures have it as their folder's name.
    fn name(&self) -> String {
        let folder = Path::new(&self.path).parent().and_then(Path::file_name);
        let folder = folder.map(|name| name.to_string_lossy().into_owned());
        self.event.clone().or(folder).expect("every file lies in a folder")
    }

    /// The headers that its forge sends, with `id` for the delivery.
    fn headers(&self, id: &str, signature: &str) -> Vec<(String, String)> {
        let name = self.name();
        let fine = self.event_type.clone().unwrap_or_else(|| name.clone());
        let prefixes: &[&str] = match self.forge.as_str() {
            "gitea" => &["x-gitea", "x-gogs"],
            "forgejo" => &["x-forgejo", "x-gitea", "x-gogs"],
            _ => &[],
        };
        let mut headers = vec![
            ("x-github-delivery".to_owned(), id.to_owned()),
            ("x-github-event".to_owned(), name.clone()),
            ("x-hub-signature-256".to_owned(), format!("sha256={signature}")),
        ];
        for prefix in prefixes {
            headers.push((format!("{prefix}-delivery"), id.to_owned()));
            headers.push((format!("{prefix}-event"), name.clone()));
            headers.push((format!("{prefix}-event-type"), fine.clone()));
            headers.push((format!("{prefix}-signature"), signature.to_owned()));
        }
        headers
    }
}

/// Posts a webhook. Returns the status and the body of the answer.
async fn post(
    http: &reqwest::Client,
    hook: &str,
    headers: Vec<(String, String)>,
    payload: Vec<u8>,
) -> reqwest::Result<(u16, String)> {
    let mut request = http.post(hook).header("content-type", "application/json").body(payload);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let answer = request.send().await?;
    Ok((answer.status().as_u16(), answer.text().await?))
}

fn client_without_proxy() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().expect("it is made")
}

#[tokio::test]
async fn every_captured_webhook_is_kept_and_none_makes_a_job_elsewhere() {
    let Some(captured) = captured() else { return };
    let http = client_without_proxy();
    for dialect in [Dialect::Gitea127, Dialect::Forgejo15] {
        let house = House::start(Setup { dialect, ..Setup::default() }).await;
        let mut n_kept = 0;
        for (number, webhook) in captured.iter().enumerate() {
            let payload = webhook.payload();
            let headers =
                webhook.headers(&format!("d-{number}"), &signature(WEBHOOK_SECRET, &payload));
            let answer = post(&http, &house.hook, headers, payload).await;
            let (status, body) = answer.expect("the bot answers");
            // GitHub's headers alone are not those of this forge: there is no delivery to believe.
            let expected =
                if webhook.forge.starts_with("g") && webhook.forge != "gitea" { 400 } else { 202 };
            assert_eq!(status, expected, "{dialect:?} {}: {body}", webhook.path);
            n_kept += usize::from(status == 202);
        }
        assert!(n_kept > 60, "{n_kept}");
        house.work().await;
        assert!(house.jobs().await.is_empty());
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_github_payload_under_a_giteas_headers_is_read_or_ignored() {
    let Some(captured) = captured() else { return };
    let house = House::usual().await;
    let http = client_without_proxy();
    for (number, webhook) in captured.iter().enumerate() {
        let payload = webhook.payload();
        let name = webhook.name();
        let headers = vec![
            ("x-gitea-delivery".to_owned(), format!("d-{number}")),
            ("x-gitea-event".to_owned(), name),
            ("x-gitea-signature".to_owned(), signature(WEBHOOK_SECRET, &payload)),
        ];
        let answer = post(&http, &house.hook, headers, payload).await;
        let (status, body) = answer.expect("the bot answers");
        assert_eq!(status, 202, "{}: {body}", webhook.path);
    }
    house.work().await;
    assert!(house.jobs().await.is_empty());
    house.assert_clean().await;
}

/// Each once, twice and fifty times, all at once in any order, and the service killed in between: it is kept once.
#[tokio::test]
async fn captured_webhooks_in_any_number_and_order_are_each_kept_once_though_the_service_is_killed()
{
    let Some(captured) = captured() else { return };
    let captured: Vec<Captured> =
        captured.into_iter().filter(|each| ["gitea", "forgejo"].contains(&&*each.forge)).collect();
    assert!(captured.len() > 30, "{}", captured.len());
    let outside = Outside::usual().await;
    let mut first = outside.serve_logged();
    outside.listens().await;
    let hook = format!("http://{}/hooks/main", outside.address);
    let mut order: Vec<usize> = Vec::new();
    for number in 0..captured.len() {
        let n_copies = [1, 2, 50][number % 3];
        order.extend(std::iter::repeat_n(number, n_copies));
    }
    fastrand::Rng::with_seed(7).shuffle(&mut order);
    let http = client_without_proxy();
    let posts = |numbers: &[usize]| {
        let posts = numbers.iter().map(|&number| {
            let payload = captured[number].payload();
            let id = format!("d-{number}");
            let headers = captured[number].headers(&id, &signature(WEBHOOK_SECRET, &payload));
            post(&http, &hook, headers, payload)
        });
        futures_util::stream::iter(posts.collect::<Vec<_>>()).buffer_unordered(100)
    };

    // Some get no answer: the service dies while they wait for one.
    let mut answers = posts(&order);
    let mut n_kept = 0;
    while let Some(answer) = answers.next().await {
        let is_kept = answer.is_ok_and(|(status, _)| status == 202);
        n_kept += usize::from(is_kept);
        if is_kept && n_kept == order.len() / 2 {
            send(&first, Signal::SIGKILL);
        }
    }
    assert!(n_kept < order.len(), "none was lost");
    first.wait().await.expect("it is ours");
    let mut second = outside.serve_logged();
    outside.listens().await;
    let answers: Vec<_> = posts(&order).collect().await;
    for answer in answers {
        let (status, body) = answer.expect("the bot answers");
        assert_eq!(status, 202, "{body}");
    }

    send(&second, Signal::SIGTERM);
    assert!(second.wait().await.expect("it is ours").success());
    let pool = database(&outside.data()).await;
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM deliveries")
        .fetch_one(&pool)
        .await
        .expect("the database answers");
    assert_eq!(usize::try_from(rows), Ok(captured.len()));
    assert!(outside.jobs().await.is_empty());
    outside.forge.assert_clean();
}

/// One recorded exchange.
#[derive(Deserialize)]
struct Exchange {
    method: String,
    url: String,
    status: u16,
    body: Value,
}

/// Answers as they were recorded, by method and path. A list has one page.
type Answers = Arc<BTreeMap<(String, String), (u16, Value)>>;

async fn answer(State(answers): State<Answers>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    if query.contains("page=") && !query.contains("page=1&") {
        return axum::Json(Value::Array(vec![])).into_response();
    }
    let asked = (request.method().to_string(), request.uri().path().to_owned());
    match answers.get(&asked) {
        Some((status, body)) => {
            let status = StatusCode::from_u16(*status).expect("it was recorded");
            (status, axum::Json(body.clone())).into_response()
        }
        None => {
            (StatusCode::NOT_FOUND, axum::Json(serde_json::json!({ "message": "not recorded" })))
                .into_response()
        }
    }
}

/// The client of a server that has nothing but these exchanges.
async fn client(exchanges: &[Exchange]) -> Gitea {
    let answers: BTreeMap<_, _> = exchanges
        .iter()
        .filter_map(|each| {
            let path = each.url.split_once("/api/")?.1.split('?').next()?;
            let asked = (each.method.clone(), format!("/api/{path}"));
            Some((asked, (each.status, each.body.clone())))
        })
        .collect();
    let router = axum::Router::new().fallback(answer).with_state(Arc::new(answers));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let options = Options {
        kind: ForgeKind::Forgejo,
        url: url.parse().expect("that is an address"),
        public_url: None,
        token: "a-token".to_owned().into(),
        draft_prefix: "WIP:".into(),
        ca_file: None,
        proxy: None,
        timeout: std::time::Duration::from_secs(5),
    };
    Gitea::new(options).expect("the client is made")
}

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(SHARED).join("recordings/forgejo-ogr");
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    files
}

/// Whether an outcome is that of the recorded status: an answer where there was one, a named error otherwise.
fn is_that_of<T>(status: u16, outcome: &Result<T, Error>) -> bool {
    match outcome {
        Ok(_) => (200..300).contains(&status),
        Err(Error::Missing { .. }) => status == 404,
        Err(Error::Declined { .. }) => (400..500).contains(&status),
        Err(Error::Unwell { .. }) => status >= 500,
        Err(_) => false,
    }
}

/// Asks the client for what one exchange was about; none if the bot never asks for such a thing.
async fn asked_again(forge: &Gitea, exchange: &Exchange) -> Option<(bool, String)> {
    let path = exchange.url.split_once("/api/v1/")?.1.split('?').next()?;
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    let status = exchange.status;
    let shown = |outcome: &dyn std::fmt::Debug| format!("{outcome:?}");
    macro_rules! told {
        ($call:expr) => {{
            let outcome = $call.await;
            Some((is_that_of(status, &outcome), shown(&outcome.err())))
        }};
    }
    let repo: Option<RepoName> = match parts[..] {
        ["repos", owner, name, ..] => format!("{owner}/{name}").parse().ok(),
        _ => None,
    };
    let number = |text: &str| text.parse::<u64>().ok();
    match (exchange.method.as_str(), parts.as_slice(), repo) {
        ("GET", ["user"], _) => told!(forge.whoami()),
        ("GET", ["repos", _, _], Some(repo)) => told!(forge.repository(&repo)),
        ("GET", ["repos", _, _, "issues", n], Some(repo)) => told!(forge.issue(&repo, number(n)?)),
        ("GET", ["repos", _, _, "issues", n, "comments"], Some(repo)) => {
            told!(forge.comments(&repo, number(n)?))
        }
        ("POST", ["repos", _, _, "issues", n, "comments"], Some(repo)) => {
            told!(forge.comment(&repo, number(n)?, "x"))
        }
        ("PATCH", ["repos", _, _, "issues", "comments", n], Some(repo)) => {
            told!(forge.edit_comment(&repo, n.parse().ok()?, "x"))
        }
        ("GET", ["repos", _, _, "branches", name], Some(repo)) if status == 200 => {
            let head = forge.branch_head(&repo, name).await;
            Some((matches!(head, Ok(Some(_))), shown(&head)))
        }
        ("GET", ["repos", _, _, "collaborators", login, "permission"], Some(repo)) => {
            let id = exchange.body["user"]["id"].as_i64()?;
            let user = bot::forge::User { id, login: (*login).to_owned() };
            told!(forge.permission(&repo, &user))
        }
        ("POST", ["repos", _, _, "pulls"], Some(repo)) => {
            let side = |side: &str| exchange.body[side]["label"].as_str().map(str::to_owned);
            let (head, base) = (side("head")?, side("base")?);
            let draft = NewDraft { title: "x".into(), body: "x".into(), head, base };
            told!(forge.open_draft(&repo, &draft))
        }
        ("GET", ["repos", _, _, "pulls"], Some(repo)) => {
            // A base with a slash is looked for in the list.
            told!(forge.pull_by_head(&repo, "a/b", "c"))
        }
        _ => None,
    }
}

#[tokio::test]
async fn every_recorded_answer_is_understood() {
    let files = recordings();
    if files.is_empty() {
        eprintln!("skipped: the recorded exchanges are not at hand");
        return;
    }
    let mut n_asked = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("it is there");
        let exchanges: Vec<Exchange> = serde_json::from_str(&text).expect("a recording is JSON");
        for exchange in &exchanges {
            // One at a time: a test of that library changes what it reads.
            let forge = client(std::slice::from_ref(exchange)).await;
            if let Some((holds, outcome)) = asked_again(&forge, exchange).await {
                let Exchange { method, url, status, .. } = exchange;
                assert!(holds, "{}: {method} {url} {status}: {outcome}", file.display());
                n_asked += 1;
            }
        }
    }
    assert!(n_asked > 150, "{n_asked}");
}
