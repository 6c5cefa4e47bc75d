//! Webhooks in GitHub's shape.

use super::*;

use axum::body::Bytes;
use axum::http::HeaderMap;
use tests::forge::{ContentType, signature};
use tokio::sync::mpsc;

/// A receiver that hands on headers and payloads, of forms too, and answers 202.
pub(super) async fn receiver() -> (String, mpsc::UnboundedReceiver<(HeaderMap, Value)>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let handler = move |headers: HeaderMap, body: Bytes| {
        let sender = sender.clone();
        async move {
            let form = url::form_urlencoded::parse(&body).find(|(key, _)| key == "payload");
            let text = form.map_or(body.to_vec(), |(_, value)| value.into_owned().into_bytes());
            if let Some(signed) = headers.get("x-hub-signature-256") {
                assert_eq!(signed, &format!("sha256={}", signature("hush", &body)));
            }
            sender.send((headers, serde_json::from_slice(&text).unwrap())).unwrap();
            axum::http::StatusCode::ACCEPTED
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hooks/main", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(handler);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, receiver)
}

/// What was sent so far, as event, action and label.
fn told(forge: &FakeForge) -> Vec<String> {
    let deliveries = forge.deliveries().into_iter();
    let lines = deliveries.map(|it| {
        assert_eq!(it.status, Some(202), "{}", it.answer);
        let payload: Value = serde_json::from_str(&it.payload).unwrap();
        let label = payload["label"]["name"].as_str().unwrap_or_default().to_owned();
        format!("{} {} {label}", it.event, it.action).trim_end().to_owned()
    });
    lines.collect()
}

#[tokio::test]
async fn each_act_makes_githubs_events_and_no_others() {
    let scene = Scene::new(Dialect::Ghes319).await;
    let (url, _received) = receiver().await;
    scene.forge.register_hook(&scene.repo, &url, "hush");
    scene.forge.settle().await;
    let ada = scene.forge.person("ada");
    let number = scene.issue(&["bug", "hyla"]).await;
    ada.add_label(&scene.repo, number, "hyla").await;
    ada.remove_label(&scene.repo, number, "bug").await;
    ada.add_label(&scene.repo, number, "bug").await;
    ada.clear_labels(&scene.repo, number).await;
    let comment = ada.comment(&scene.repo, number, "Well?").await;
    ada.edit_comment(&scene.repo, number, comment, "Well!").await;
    ada.retitle(&scene.repo, number, "It breaks badly").await;
    ada.toggle_assignee(&scene.repo, number, "ada").await;
    ada.close(&scene.repo, number).await;
    ada.reopen(&scene.repo, number).await;
    scene.post("/repos/acme/app/pulls", scene.draft("topic")).await;
    scene.forge.settle().await;
    ada.add_label(&scene.repo, 2, "hyla").await;
    ada.commit(&scene.repo, "topic", [("c", "c")]);
    scene.forge.settle().await;
    ada.mark_ready(&scene.repo, 2).await;
    ada.merge(&scene.repo, 2).await;
    let expected = [
        "ping",
        "issues opened",
        "issues labeled bug",
        "issues labeled hyla",
        "issues unlabeled bug",
        "issues labeled bug",
        "issues unlabeled hyla",
        "issues unlabeled bug",
        "issue_comment created",
        "issue_comment edited",
        "issues edited",
        "issues assigned",
        "issues closed",
        "issues reopened",
        "pull_request opened",
        "pull_request labeled hyla",
        "pull_request synchronize",
        "pull_request ready_for_review",
        "pull_request closed",
    ];
    assert_eq!(told(&scene.forge), expected);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn headers_are_githubs_and_an_app_is_told_its_installation() {
    let scene = Scene::new(Dialect::Ghes319).await;
    let (url, mut received) = receiver().await;
    let app = scene.forge.register_app("hyla");
    scene.forge.install_app(&scene.repo);
    let hook = scene.forge.set_app_hook(&url, "hush");
    scene.forge.settle().await;
    scene.issue(&[]).await;
    let (_, ping) = received.recv().await.unwrap();
    assert_eq!((&ping["hook_id"], ping.get("repository")), (&json!(hook), None));
    let (headers, payload) = received.recv().await.unwrap();
    assert!(payload["installation"]["id"].is_i64());
    let value = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let table = [
        ("x-github-event", "issues"),
        ("x-github-enterprise-version", "3.19.0"),
        ("x-github-hook-id", &hook.to_string()),
        ("x-github-hook-installation-target-type", "integration"),
        ("x-github-hook-installation-target-id", &app.id.to_string()),
        ("content-type", "application/json"),
    ];
    for (name, expected) in table {
        assert_eq!(value(name).as_deref(), Some(expected), "{name}");
    }
    assert!(value("user-agent").unwrap().starts_with("GitHub-Hookshot/"));
    assert!(value("x-hub-signature-256").is_some());
    let foreign = headers.keys().map(|name| name.as_str());
    let foreign: Vec<_> =
        foreign.filter(|it| it.contains("gitea") || it.contains("gogs")).collect();
    assert_eq!(foreign, [""; 0]);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn a_form_is_signed_as_it_is_sent_and_no_secret_means_no_signature() {
    let scene = Scene::new(Dialect::Ghes314).await;
    let (url, mut received) = receiver().await;
    scene.forge.register_hook_as(&scene.repo, &url, "hush", ContentType::Form);
    scene.forge.settle().await;
    let (headers, ping) = received.recv().await.unwrap();
    assert_eq!(headers["x-github-hook-installation-target-type"], "repository");
    assert_eq!(headers["content-type"], "application/x-www-form-urlencoded");
    assert!(headers.contains_key("x-hub-signature-256"));
    assert_eq!(ping["repository"]["full_name"], "acme/app");
    scene.forge.register_hook(&scene.repo, &url, "");
    scene.forge.settle().await;
    let (headers, _) = received.recv().await.unwrap();
    assert!(!headers.contains_key("x-hub-signature-256"));
    scene.forge.assert_clean();
}
