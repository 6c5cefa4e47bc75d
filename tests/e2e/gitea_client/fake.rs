//! The fake forge is itself held to something: its watchers catch what they are for, its hooks are the real ones'
//! likeness, its answers have the published shapes.

use super::*;

use std::path::Path;

use axum::body::Bytes;
use axum::http::HeaderMap;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use tests::forge::ContentType;
use tokio::sync::mpsc;

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/forges");

#[test]
fn the_schemas_catch_requests_that_the_api_does_not_know() {
    for dialect in Dialect::ALL {
        for checker in [Checker::new(dialect), Checker::own(dialect)] {
            let check = |method: &str, path: &str, query: &[(&str, &str)], body: &str| {
                checker.complaints(method, path, query, body)
            };
            let repo = "/repos/acme/app";
            let pulls = format!("{repo}/pulls");
            let good = r#"{"title": "WIP: x", "body": "", "head": "a/b", "base": "main"}"#;
            assert_eq!(check("POST", &pulls, &[], good), "");
            assert_eq!(check("GET", &pulls, &[("page", "1"), ("limit", "50")], ""), "");
            assert_eq!(check("GET", &format!("{repo}/branches/a/b"), &[], ""), "");
            assert_eq!(check("GET", &format!("{repo}/pulls/main/hyla/issue-1-1"), &[], ""), "");
            assert_eq!(check("GET", &format!("{repo}/teams"), &[], ""), "");
            let base = check("GET", &pulls, &[("base_branch", "main")], "");
            assert_eq!(base.is_empty(), dialect != Dialect::Forgejo15, "{base}");
            let wrong = [
                check("POST", &pulls, &[], r#"{"title": "x", "draft": true}"#),
                check("POST", &pulls, &[], r#"{"title": 7}"#),
                check("POST", &pulls, &[], "no json"),
                check("GET", &pulls, &[("per_page", "50")], ""),
                check("GET", &pulls, &[("page", "one")], ""),
                check("GET", &pulls, &[("state", "merged")], ""),
                check("GET", &format!("{repo}/issues/seven"), &[], ""),
                check("GET", &format!("{repo}/issues/7/comments"), &[("page", "1")], ""),
                check("POST", &format!("{repo}/issues/7/comments"), &[], "{}"),
                check("GET", &format!("{repo}/issues/7"), &[], "{}"),
                check("GET", &format!("{repo}/check-runs"), &[], ""),
                check("PUT", "/user", &[], ""),
            ];
            for (i, complaint) in wrong.iter().enumerate() {
                assert!(!complaint.is_empty(), "case {i} of {dialect:?} was let through");
            }
        }
    }
}

#[test]
fn our_own_schema_has_nothing_that_the_published_ones_lack() {
    for dialect in Dialect::ALL {
        let published = Checker::new(dialect);
        if !published.is_published {
            eprintln!("skipped: the published schemas are not at hand");
            return;
        }
        let known = published.operations();
        for operation in Checker::own(dialect).operations() {
            assert!(known.contains(&operation), "{operation}");
        }
    }
}

#[tokio::test]
async fn an_unknown_request_is_answered_visibly_and_fails_the_end_of_the_test() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let base = scene.forge.url();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let token = format!("token {}", scene.token);
    for (method, path) in [
        ("GET", "api/v1/repos/acme/app/invented"),
        ("GET", "api/v1/repos/acme/app/hooks"),
        ("PATCH", "api/v1/repos/acme/app/pulls/1"),
        ("GET", "acme/app"),
        ("GET", "acme/app.git/HEAD"),
    ] {
        let before = scene.forge.violations().len();
        let url = base.join(path).unwrap();
        let request = http.request(method.parse().unwrap(), url).header("Authorization", &token);
        let request = if method == "PATCH" { request.body("{}") } else { request };
        assert_eq!(request.send().await.unwrap().status(), 418, "{method} {path}");
        assert_eq!(scene.forge.violations().len(), before + 1, "{method} {path}");
    }
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        scene.forge.assert_clean();
    }));
    assert!(caught.is_err());
}

#[tokio::test]
async fn a_token_outside_its_header_is_seen_wherever_it_stands() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    assert_eq!(scene.forge.token_sightings(), [""; 0]);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let user = scene.forge.url().join("api/v1/user").unwrap();
    http.get(user.clone()).query(&[("token", &scene.token)]).send().await.unwrap();
    assert_eq!(scene.forge.token_sightings().len(), 1);
    http.get(user).header("x-debug", &scene.token).send().await.unwrap();
    assert_eq!(scene.forge.token_sightings().len(), 2);
    scene.client.comment(&scene.repo, number, &format!("see {}", scene.token)).await.unwrap();
    assert_eq!(scene.forge.token_sightings().len(), 3);
    let file: (&str, &str) = ("leak", &scene.token);
    scene.forge.person("ada").commit(&scene.repo, "leak", [file]);
    assert_eq!(scene.forge.token_sightings().len(), 4);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        scene.forge.assert_clean();
    }));
    assert!(caught.is_err());
}

/// A receiver of hooks that hands on what it got and answers 202.
async fn receiver() -> (String, mpsc::UnboundedReceiver<(HeaderMap, Vec<u8>)>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let handler = move |headers: HeaderMap, body: Bytes| {
        let sender = sender.clone();
        async move {
            sender.send((headers, body.to_vec())).unwrap();
            axum::http::StatusCode::ACCEPTED
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hooks/main", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(handler);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, receiver)
}

fn signature(text: &[u8]) -> String {
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(b"hush").unwrap();
    mac.update(text);
    hex::encode(mac.finalize().into_bytes())
}

#[tokio::test]
async fn hooks_carry_the_headers_and_signatures_of_their_dialect() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let (url, mut received) = receiver().await;
        scene.forge.register_hook(&scene.repo, &url, "hush");
        scene.forge.register_hook_as(&scene.repo, &url, "hush", ContentType::Form);
        let number = scene.issue().await;
        let ada = scene.forge.person("ada");
        let delivered = ada.add_label(&scene.repo, number, "a<b>&c").await;
        assert_eq!(delivered.iter().map(|d| d.status).collect::<Vec<_>>(), [Some(202); 2]);
        assert_ne!(delivered[0].id, delivered[1].id);
        let (opened, _) = received.recv().await.unwrap();
        assert_eq!(opened["x-gitea-event-type"], "issues");
        received.recv().await.unwrap();
        let (headers, body) = received.recv().await.unwrap();
        assert_eq!(headers["x-gitea-event"], "issues");
        assert_eq!(headers["x-github-event-type"], "issue_label");
        assert_eq!(headers["x-gitea-delivery"], delivered[0].id);
        assert_eq!(headers["x-gitea-signature"], signature(&body));
        let prefixed = format!("sha256={}", signature(&body));
        assert_eq!(headers["x-hub-signature-256"], prefixed.as_str());
        let is_forgejo = dialect == Dialect::Forgejo15;
        assert_eq!(headers.contains_key("x-forgejo-event"), is_forgejo);
        let level = "x-gitea-hook-installation-target-type";
        assert_eq!(headers.contains_key(level), !is_forgejo);
        let payload: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(payload["action"], "label_updated");
        assert!(payload.get("label").is_none());
        assert_eq!(payload["issue"]["labels"][0]["name"], "a<b>&c");
        assert!(body.windows(6).any(|window| window == b"\\u003c"));
        let (headers, form) = received.recv().await.unwrap();
        let (_, json) = url::form_urlencoded::parse(&form).next().unwrap();
        assert_eq!(headers["x-gitea-signature"], signature(json.as_bytes()));
    }
}

#[tokio::test]
async fn a_hook_without_a_secret_has_empty_signatures() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let (url, mut received) = receiver().await;
    scene.forge.register_hook(&scene.repo, &url, "");
    scene.issue().await;
    let (headers, _) = received.recv().await.unwrap();
    assert_eq!(headers["x-gitea-signature"], "");
    assert_eq!(headers["x-hub-signature-256"], "sha256=");
}

#[tokio::test]
async fn a_replay_has_the_same_text_under_another_id() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let (url, mut received) = receiver().await;
    scene.forge.register_hook(&scene.repo, &url, "hush");
    scene.forge.hold_hooks(true);
    scene.issue().await;
    assert!(received.try_recv().is_err());
    let held = scene.forge.deliveries()[0].clone();
    assert_eq!(held.status, None);
    let first = scene.forge.redeliver(&held.id).await;
    let second = scene.forge.redeliver(&held.id).await;
    assert_eq!((first.status, second.status), (Some(202), Some(202)));
    let (a, b) = (received.recv().await.unwrap(), received.recv().await.unwrap());
    assert_eq!(a.1, b.1);
    assert_ne!(a.0["x-gitea-delivery"], b.0["x-gitea-delivery"]);
    assert_eq!(scene.forge.deliveries().len(), 3);
}

#[tokio::test]
async fn what_the_bot_does_comes_back_as_hooks() {
    let scene = Scene::new(Dialect::Forgejo15).await;
    let (url, _received) = receiver().await;
    let number = scene.issue().await;
    scene.forge.register_hook(&scene.repo, &url, "hush");
    let id = scene.client.comment(&scene.repo, number, "hello").await.unwrap();
    scene.client.edit_comment(&scene.repo, id, "bye").await.unwrap();
    scene.client.open_draft(&scene.repo, &scene.draft()).await.unwrap();
    scene.forge.settle().await;
    let mut told: Vec<String> = scene
        .forge
        .deliveries()
        .iter()
        .map(|d| format!("{} {} {:?}", d.event, d.action, d.status))
        .collect();
    told.sort();
    assert_eq!(
        told,
        [
            "issue_comment created Some(202)",
            "issue_comment edited Some(202)",
            "pull_request opened Some(202)",
        ]
    );
}

/// Every answer that the bot reads, against the component of the published description that it should be.
#[tokio::test]
async fn answers_have_the_published_shapes() {
    let specs = [
        (Dialect::Gitea127, "gitea-1.27.0.openapi3.reduced.json"),
        (Dialect::Forgejo15, "forgejo-16.0.openapi3.reduced.json"),
    ];
    for (dialect, file) in specs {
        let Ok(text) = std::fs::read_to_string(Path::new(SHARED).join("specs").join(file)) else {
            eprintln!("skipped: the published descriptions are not at hand");
            return;
        };
        let spec: Value = serde_json::from_str(&text).unwrap();
        let scene = Scene::with_admin_bot(dialect).await;
        let number = scene.forge.person("ada").open_issue(&scene.repo, "a", "b", &["hyla"]).await;
        let ada = scene.forge.person("ada");
        ada.toggle_assignee(&scene.repo, number, "ada").await;
        ada.retitle(&scene.repo, number, "c").await;
        ada.remove_label(&scene.repo, number, "hyla").await;
        scene.client.comment(&scene.repo, number, "x").await.unwrap();
        scene.client.react(&scene.repo, number, "eyes").await.unwrap();
        scene.client.open_draft(&scene.repo, &scene.draft()).await.unwrap();
        let table = [
            ("user", "User"),
            ("repos/acme/app", "Repository"),
            ("repos/acme/app/issues/1", "Issue"),
            ("repos/acme/app/issues/1/comments", "Comment"),
            ("repos/acme/app/issues/1/timeline", "TimelineComment"),
            ("repos/acme/app/issues/1/reactions", "Reaction"),
            ("repos/acme/app/collaborators/ada/permission", "RepoCollaboratorPermission"),
            ("repos/acme/app/assignees", "User"),
            ("repos/acme/app/branches/main", "Branch"),
            ("repos/acme/app/pulls/2", "PullRequest"),
            ("repos/acme/app/pulls/main/hyla/issue-1-1", "PullRequest"),
            ("repos/acme/app/pulls", "PullRequest"),
        ];
        for (path, component) in table {
            let answer = scene.raw(path).await;
            let entries = answer.as_array().cloned().unwrap_or_else(|| vec![answer]);
            assert!(!entries.is_empty(), "{path}");
            for entry in entries {
                let mut wrong = Vec::new();
                compare(&spec, component, &entry, path, &mut wrong);
                assert!(wrong.is_empty(), "{dialect:?}: {wrong:#?}");
            }
        }
        scene.forge.assert_clean();
    }
}

impl Scene {
    async fn raw(&self, path: &str) -> Value {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = self.forge.url().join(&format!("api/v1/{path}")).unwrap();
        let token = format!("token {}", self.token);
        let answer = http.get(url).header("Authorization", token).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.unwrap()
    }
}

/// Every key must be published, and every value must have its published type, or be null.
fn compare(spec: &Value, component: &str, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let schema = &spec["components"]["schemas"][component];
    let (Some(object), Some(known)) = (value.as_object(), schema["properties"].as_object()) else {
        return wrong.push(format!("{at}: no object"));
    };
    for (key, value) in object {
        let at = format!("{at}.{key}");
        // Written twice by the servers, described once.
        if key == "username" {
            continue;
        }
        match known.get(key) {
            None => wrong.push(format!("{at} is not published in {component}")),
            Some(schema) => compare_value(spec, schema, value, &at, wrong),
        }
    }
}

fn compare_value(spec: &Value, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    if let Some(reference) = reference {
        let name = reference.rsplit('/').next().unwrap();
        if value.is_object() {
            compare(spec, name, value, at, wrong);
        }
        return;
    }
    let fits = match schema["type"].as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some("array") => {
            for entry in value.as_array().into_iter().flatten() {
                compare_value(spec, &schema["items"], entry, at, wrong);
            }
            value.is_array()
        }
        Some("object") => value.is_object(),
        _ => true,
    };
    if !fits && !value.is_null() {
        wrong.push(format!("{at} has another type than published"));
    }
}
