//! Deliveries as a forge sends them, through the router.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use crate::{Accepted, Cause, Delivery, Dialect, Event, Hook, Inbox, InboxError, Options, router};

const LABEL: &str = r#"{"action":"label_updated","number":7,"issue":{"number":7,"labels":[]},
  "repository":{"full_name":"acme/app"},"sender":{"id":3,"login":"ann"}}"#;

#[derive(Default)]
struct Kept {
    deliveries: Mutex<Vec<(Delivery, Event)>>,
    is_broken: bool,
}

#[async_trait]
impl Inbox for Kept {
    async fn accept(&self, delivery: Delivery, event: Event) -> Result<Accepted, InboxError> {
        if self.is_broken {
            let (forge, id) = (delivery.forge, delivery.id);
            return Err(InboxError { forge, id, source: "the disk is full".into() });
        }
        let mut kept = self.deliveries.lock().unwrap();
        if kept.iter().any(|(known, _)| known.id == delivery.id) {
            return Ok(Accepted::Repeated);
        }
        let accepted = match event {
            Event::IssueSeen { .. } | Event::CommentWritten { .. } => Accepted::Queued,
            Event::Other { .. } => Accepted::Ignored,
        };
        kept.push((delivery, event));
        Ok(accepted)
    }
}

fn options(secrets: &[&str]) -> Options {
    let hook = |dialect| Hook { dialect, secrets: secrets.iter().map(|&s| s.into()).collect() };
    Options {
        body_limit_bytes: 4096,
        body_timeout: Duration::from_secs(5),
        hooks: BTreeMap::from([
            ("main".to_owned(), hook(Dialect::Gitea)),
            ("other".to_owned(), hook(Dialect::Forgejo)),
            ("ghe".to_owned(), hook(Dialect::GitHub)),
        ]),
    }
}

fn sign(secret: &str, text: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text);
    hex::encode(mac.finalize().into_bytes())
}

/// A delivery that is right in everything; a test spoils one thing.
fn request(body: impl Into<Body>, signature: &str) -> Request<Body> {
    Request::post("/hooks/main")
        .header("content-type", "application/json")
        .header("x-gitea-event", "issues")
        .header("x-gitea-event-type", "issue_label")
        .header("x-gitea-delivery", "d-1")
        .header("x-gitea-signature", signature)
        .body(body.into())
        .unwrap()
}

async fn send(inbox: &Arc<Kept>, request: Request<Body>) -> (StatusCode, String) {
    let router =
        router(options(&["first", "second"]), Arc::clone(inbox) as Arc<dyn Inbox>).unwrap();
    let response = router.oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn a_signed_label_delivery_is_kept_once() {
    let inbox = Arc::new(Kept::default());
    let (status, body) = send(&inbox, request(LABEL, &sign("first", LABEL.as_bytes()))).await;
    assert_eq!((status, body.as_str()), (StatusCode::ACCEPTED, r#"{"status":"queued"}"#));
    let (status, body) = send(&inbox, request(LABEL, &sign("second", LABEL.as_bytes()))).await;
    assert_eq!((status, body.as_str()), (StatusCode::ACCEPTED, r#"{"status":"repeated"}"#));

    let kept = inbox.deliveries.lock().unwrap();
    let (delivery, event) = &kept[0];
    assert_eq!((delivery.forge.as_str(), delivery.event.as_str()), ("main", "issue_label"));
    assert_eq!(delivery.payload, LABEL.as_bytes());
    let Event::IssueSeen { repo, number, cause, .. } = event else { panic!("{event:?}") };
    assert_eq!((repo.to_string().as_str(), *number), ("acme/app", 7));
    assert_eq!(*cause, Cause::LabelsMayHaveChanged);
}

#[test]
fn a_delivery_that_may_ask_shows_how_the_issue_read() {
    let payload = |action: &str, words: &str| {
        let labels = r#"[{"name":"bug"},{"name":"hyla"}]"#;
        format!(
            r#"{{"action":"{action}","issue":{{"number":7,{words}"labels":{labels}}},
              "repository":{{"full_name":"acme/app"}}}}"#
        )
    };
    let words = r#""title":"t","body":"b","#;
    let whole = crate::Snapshot {
        title: "t".into(),
        body: "b".into(),
        labels: vec!["bug".into(), "hyla".into()],
    };
    let empty = crate::Snapshot { body: String::new(), ..whole.clone() };
    for (action, words, expected) in [
        ("label_updated", words, Some(whole.clone())),
        ("opened", words, Some(whole)),
        ("label_updated", r#""title":"t","body":null,"#, Some(empty)),
        ("label_updated", "", None),
        ("edited", words, None),
    ] {
        let event = crate::payload::event("issues", payload(action, words).as_bytes()).unwrap();
        let Event::IssueSeen { seen, .. } = event else { panic!("{event:?}") };
        assert_eq!(seen, expected, "{action} {words}");
    }
}

#[tokio::test]
async fn what_the_bot_does_not_read_may_be_missing() {
    let body = LABEL.replace(r#","sender":{"id":3,"login":"ann"}"#, "");
    assert_ne!(body, LABEL);
    let signature = sign("first", body.as_bytes());
    assert_eq!(send(&Arc::default(), request(body, &signature)).await.0, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn what_is_not_signed_with_our_secret_is_refused() {
    let good = sign("first", LABEL.as_bytes());
    let cases: Vec<(&str, Vec<(&str, String)>)> = vec![
        ("none", vec![]),
        ("empty", vec![("x-gitea-signature", String::new())]),
        ("empty with prefix", vec![("x-hub-signature-256", "sha256=".into())]),
        ("of an empty secret", vec![("x-gitea-signature", sign("", LABEL.as_bytes()))]),
        ("of another secret", vec![("x-gitea-signature", sign("third", LABEL.as_bytes()))]),
        ("of another body", vec![("x-gitea-signature", sign("first", b"{}"))]),
        ("not hex", vec![("x-gitea-signature", "z".repeat(64))]),
        ("too short", vec![("x-gitea-signature", good[..62].into())]),
        ("too long", vec![("x-gitea-signature", format!("{good}00"))]),
        ("bare where a prefix belongs", vec![("x-hub-signature-256", good.clone())]),
        ("prefix where none belongs", vec![("x-gitea-signature", format!("sha256={good}"))]),
        ("sha1 only", vec![("x-hub-signature", "sha1=00".into())]),
        (
            "two that disagree",
            vec![("x-gitea-signature", good.clone()), ("x-hub-signature-256", "sha256=".into())],
        ),
        (
            "a good one and a bad one",
            vec![("x-gitea-signature", good.clone()), ("x-gitea-signature", sign("third", b""))],
        ),
    ];
    for (name, headers) in cases {
        let inbox = Arc::new(Kept::default());
        let mut request = request(LABEL, "");
        request.headers_mut().remove("x-gitea-signature");
        for (header, value) in headers {
            request.headers_mut().append(header, value.parse().unwrap());
        }
        let (status, body) = send(&inbox, request).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{name}: {body}");
        assert!(!body.contains("first") && !body.contains("second"), "{name}: {body}");
        assert!(inbox.deliveries.lock().unwrap().is_empty(), "{name}");
    }
}

#[tokio::test]
async fn every_spelling_of_a_good_signature_is_believed() {
    let good = sign("second", LABEL.as_bytes());
    for (header, value) in [
        ("x-gitea-signature", good.clone()),
        ("x-gitea-signature", good.to_uppercase()),
        ("x-gogs-signature", good.clone()),
        ("x-forgejo-signature", good.clone()),
        ("x-hub-signature-256", format!("sha256={good}")),
    ] {
        let inbox = Arc::new(Kept::default());
        let mut request = request(LABEL, "");
        request.headers_mut().remove("x-gitea-signature");
        request.headers_mut().append(header, value.parse().unwrap());
        assert_eq!(send(&inbox, request).await.0, StatusCode::ACCEPTED, "{header}");
    }
}

#[tokio::test]
async fn of_a_form_the_json_text_is_signed() {
    let form =
        url::form_urlencoded::Serializer::new(String::new()).append_pair("payload", LABEL).finish();
    for (signed, expected) in
        [(LABEL.as_bytes(), StatusCode::ACCEPTED), (form.as_bytes(), StatusCode::UNAUTHORIZED)]
    {
        let inbox = Arc::new(Kept::default());
        let mut request = request(form.clone(), &sign("first", signed));
        let content_type = "application/x-www-form-urlencoded; charset=utf-8".parse().unwrap();
        request.headers_mut().insert("content-type", content_type);
        assert_eq!(send(&inbox, request).await.0, expected);
    }
    for form in ["", "other=1", "payload=a&payload=b"] {
        let mut request = request(form, &sign("first", b""));
        let content_type = "application/x-www-form-urlencoded".parse().unwrap();
        request.headers_mut().insert("content-type", content_type);
        assert_eq!(send(&Arc::new(Kept::default()), request).await.0, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn a_body_above_the_limit_is_413() {
    let large = "x".repeat(4097);
    let announced = request(large.clone(), &sign("first", large.as_bytes()));
    assert_eq!(send(&Arc::default(), announced).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let chunks =
        futures_util::stream::iter(vec![Ok::<_, std::io::Error>("x".repeat(4096)), Ok("x".into())]);
    let chunked = request(Body::from_stream(chunks), &sign("first", b""));
    assert_eq!(send(&Arc::default(), chunked).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408() {
    let inbox = Arc::new(Kept::default());
    let options = Options { body_timeout: Duration::from_millis(10), ..options(&["first"]) };
    let router = router(options, inbox as Arc<dyn Inbox>).unwrap();
    let first = futures_util::stream::iter([Ok::<_, std::io::Error>("{")]);
    let never = futures_util::StreamExt::chain(first, futures_util::stream::pending());
    let response =
        router.oneshot(request(Body::from_stream(never), &sign("first", b""))).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
}

/// A body of one piece whose end never comes; `n_read` counts the pieces that were asked for.
fn endless(piece: String, n_read: &Arc<AtomicUsize>) -> Body {
    let n_read = Arc::clone(n_read);
    let first = futures_util::stream::once(async move {
        n_read.fetch_add(1, Ordering::SeqCst);
        Ok::<_, std::io::Error>(piece)
    });
    Body::from_stream(futures_util::StreamExt::chain(first, futures_util::stream::pending()))
}

#[tokio::test]
async fn nothing_is_read_of_a_request_that_cannot_be_believed() {
    let n_read = Arc::new(AtomicUsize::new(0));
    let spoil = |header: &'static str, value: &str| {
        let mut request = request(endless("{".into(), &n_read), &sign("first", b"{"));
        request.headers_mut().insert(header, value.parse().unwrap());
        request
    };
    let mut elsewhere = spoil("x-other", "");
    *elsewhere.uri_mut() = "/hooks/elsewhere".parse().unwrap();
    for (request, expected) in [
        (elsewhere, StatusCode::NOT_FOUND),
        (spoil("x-gitea-signature", ""), StatusCode::UNAUTHORIZED),
        (spoil("content-type", "text/plain"), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (spoil("x-gitea-delivery", ""), StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(send(&Arc::default(), request).await.0, expected);
    }
    assert_eq!(n_read.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn bodies_that_do_not_end_leave_room_for_no_more_than_four() {
    let router = router(options(&["first"]), Arc::new(Kept::default()) as Arc<dyn Inbox>).unwrap();
    let n_read = Arc::new(AtomicUsize::new(0));
    let mut slow = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let request = request(endless("x".repeat(4096), &n_read), &sign("first", b""));
        slow.spawn(router.clone().oneshot(request));
    }
    while n_read.load(Ordering::SeqCst) < 4 {
        tokio::task::yield_now().await;
    }
    let good = || request(LABEL, &sign("first", LABEL.as_bytes()));
    let refused = router.clone().oneshot(good()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    slow.shutdown().await;
    assert_eq!(router.oneshot(good()).await.unwrap().status(), StatusCode::ACCEPTED);
}

async fn listening(limits: crate::Limits) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = router(options(&["first"]), Arc::new(Kept::default()) as Arc<dyn Inbox>).unwrap();
    tokio::spawn(crate::serve(listener, router, limits, std::future::pending()));
    address
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_its_connection() {
    let limits = crate::Limits { head_timeout: Duration::from_millis(20), ..Default::default() };
    let mut slow = tokio::net::TcpStream::connect(listening(limits).await).await.unwrap();
    slow.write_all(b"POST /hooks/main HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), slow.read_to_end(&mut answer)).await;
    ended.expect("the connection ends").unwrap();
    assert!(!answer.starts_with(b"HTTP/1.1 2"));
}

#[tokio::test]
async fn a_connection_too_many_waits_for_one_to_end() {
    let address = listening(crate::Limits { connections: 1, ..Default::default() }).await;
    let ask = b"GET /hooks/main HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut first = tokio::net::TcpStream::connect(address).await.unwrap();
    first.write_all(b"GET ").await.unwrap();
    let mut second = tokio::net::TcpStream::connect(address).await.unwrap();
    second.write_all(ask).await.unwrap();
    let mut answer = Vec::new();
    let early = tokio::time::timeout(Duration::from_millis(50), second.read_to_end(&mut answer));
    assert!(early.await.is_err() && answer.is_empty(), "the first has the only place");
    drop(first);
    second.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 405"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn what_cannot_be_kept_is_503() {
    let inbox = Arc::new(Kept { is_broken: true, ..Kept::default() });
    let (status, body) = send(&inbox, request(LABEL, &sign("first", LABEL.as_bytes()))).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("deliver it again"), "{body}");
}

#[tokio::test]
async fn odd_requests_are_refused_by_name() {
    let good = sign("first", LABEL.as_bytes());
    let spoil = |name: &'static str, value: Option<&str>| {
        let mut request = request(LABEL, &good);
        request.headers_mut().remove(name);
        if let Some(value) = value {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        request
    };
    let long = "d".repeat(129);
    for (request, expected) in [
        (spoil("x-gitea-delivery", None), StatusCode::BAD_REQUEST),
        (spoil("x-gitea-delivery", Some("")), StatusCode::BAD_REQUEST),
        (spoil("x-gitea-delivery", Some(&long)), StatusCode::BAD_REQUEST),
        (spoil("content-type", None), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (spoil("content-type", Some("text/plain")), StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        assert_eq!(send(&Arc::default(), request).await.0, expected);
    }
    let mut unknown = request(LABEL, &good);
    *unknown.uri_mut() = "/hooks/elsewhere".parse().unwrap();
    assert_eq!(send(&Arc::default(), unknown).await.0, StatusCode::NOT_FOUND);
    let get = Request::get("/hooks/main").body(Body::empty()).unwrap();
    let (status, words) = send(&Arc::default(), get).await;
    assert!(status == StatusCode::METHOD_NOT_ALLOWED && words.contains("webhook"), "{words}");
}

#[tokio::test]
async fn hostile_payloads_end_as_a_named_refusal() {
    let deep = "[".repeat(2000);
    let bodies: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"null".to_vec(),
        b"[]".to_vec(),
        deep.into_bytes(),
        b"\xff\xfe{}".to_vec(),
        LABEL.replace("\"number\":7", "\"number\":-7").into_bytes(),
        LABEL.replace("\"number\":7", "\"number\":0").into_bytes(),
        LABEL.replace("\"number\":7", "\"number\":18446744073709551615").into_bytes(),
        LABEL.replace("\"number\":7", "\"number\":1e400").into_bytes(),
        LABEL.replace("acme/app", "../../etc").into_bytes(),
        LABEL.replace("acme/app", "acme/a\\u0000b").into_bytes(),
    ];
    for body in bodies {
        let signature = sign("first", &body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let (status, _) = send(&Arc::default(), request(body, &signature)).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{shown}");
    }
}

#[test]
fn secrets_that_prove_nothing_are_refused_at_build() {
    for secrets in [&[][..], &[""], &["  "], &["a", ""], &["a", "b", "c"]] {
        let inbox = Arc::new(Kept::default()) as Arc<dyn Inbox>;
        assert!(router(options(secrets), inbox).is_err(), "{secrets:?}");
    }
}

/// A delivery as GitHub sends it.
fn of_github(event: &str, content_type: &str, body: &str, signed: &str) -> Request<Body> {
    Request::post("/hooks/ghe")
        .header("content-type", content_type)
        .header("x-github-event", event)
        .header("x-github-delivery", "d-1")
        .header("x-hub-signature-256", format!("sha256={}", sign("first", signed.as_bytes())))
        .body(body.to_owned().into())
        .unwrap()
}

#[tokio::test]
async fn github_signs_the_body_as_it_is() {
    let text = LABEL.replace("label_updated", "labeled");
    let form =
        url::form_urlencoded::Serializer::new(String::new()).append_pair("payload", &text).finish();
    let (json, urlencoded) = ("application/json", "application/x-www-form-urlencoded");
    for (content_type, body, signed, expected) in [
        (json, &text, &text, StatusCode::ACCEPTED),
        (urlencoded, &form, &form, StatusCode::ACCEPTED),
        (urlencoded, &form, &text, StatusCode::UNAUTHORIZED),
        (json, &text, &form, StatusCode::UNAUTHORIZED),
    ] {
        let inbox = Arc::new(Kept::default());
        let (status, words) = send(&inbox, of_github("issues", content_type, body, signed)).await;
        assert_eq!(status, expected, "{content_type} {words}");
        let kept = inbox.deliveries.lock().unwrap();
        let Some((delivery, event)) = kept.first() else { continue };
        assert_eq!(delivery.payload, text.as_bytes());
        let Event::IssueSeen { cause, .. } = event else { panic!("{event:?}") };
        assert_eq!(*cause, Cause::LabelsMayHaveChanged);
    }
}

#[tokio::test]
async fn a_gitea_delivery_is_none_of_github() {
    let inbox = Arc::new(Kept::default());
    let mut delivery = request(LABEL, &sign("first", LABEL.as_bytes()));
    *delivery.uri_mut() = "/hooks/ghe".parse().unwrap();
    let (status, words) = send(&inbox, delivery).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{words}");
}

/// Every real payload of GitHub lies beside the checkout of those who develop the bot, in a folder called like its event.
#[test]
fn every_payload_of_github_is_read_or_ignored() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/forges/payloads/github");
    let Ok(kinds) = std::fs::read_dir(root) else {
        eprintln!("skipped: there are no shared fixtures here");
        return;
    };
    let folders = |folder: std::path::PathBuf| std::fs::read_dir(folder).into_iter().flatten();
    let (mut n_read, mut n_labels) = (0, 0);
    for event in kinds.flatten().flat_map(|kind| folders(kind.path())).flatten() {
        let name = event.file_name().into_string().unwrap();
        for file in folders(event.path()).flatten() {
            let payload = std::fs::read(file.path()).unwrap();
            let read = crate::payload::event(&name, &payload);
            let event = read.unwrap_or_else(|reason| panic!("{}: {reason}", file.path().display()));
            n_read += 1;
            let is_label =
                matches!(event, Event::IssueSeen { cause: Cause::LabelsMayHaveChanged, .. });
            n_labels += usize::from(is_label);
        }
    }
    assert!(n_read > 100 && n_labels > 0, "{n_read} read, {n_labels} about labels");
}

/// Real and derived payloads lie beside the checkout of those who develop the bot.
#[test]
fn every_known_payload_becomes_its_event() {
    let root =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/forges/payloads"));
    if !root.is_dir() {
        eprintln!("skipped: there are no shared fixtures here");
        return;
    }
    let cases: &[(&str, &str, Option<Cause>)] = &[
        (
            "derived/gitea/issues_label_updated_added.json",
            "issue_label",
            Some(Cause::LabelsMayHaveChanged),
        ),
        (
            "derived/gitea/issues_label_updated_removed_all.json",
            "issue_label",
            Some(Cause::LabelsMayHaveChanged),
        ),
        (
            "derived/gitea/issues_label_cleared.json",
            "issue_label",
            Some(Cause::LabelsMayHaveChanged),
        ),
        ("derived/gitea/issues_opened_with_labels.json", "issues", Some(Cause::Opened)),
        ("derived/gitea/issues_assigned.json", "issue_assign", Some(Cause::Changed)),
        ("derived/gitea/issues_edited_title_1.25plus.json", "issues", Some(Cause::Changed)),
        ("drone-go-scm/gitea/issues_opened.json", "issues", Some(Cause::Opened)),
        ("drone-go-scm/gitea/issues_closed.json", "issues", Some(Cause::Changed)),
        ("drone-go-scm/gitea/issue_comment_created.json", "issue_comment", None),
        ("drone-go-scm/gitea/pull_request_comment_created.json", "issue_comment", None),
        ("drone-go-scm/gitea/pull_request_opened.json", "pull_request", None),
        ("drone-go-scm/gitea/push.json", "push", None),
    ];
    for (file, name, expected) in cases {
        let payload = std::fs::read(root.join(file)).unwrap();
        let cause = match crate::payload::event(name, &payload) {
            Ok(Event::IssueSeen { cause, .. }) => Some(cause),
            Ok(Event::CommentWritten { comment, seen, .. }) => {
                assert!(comment.id > 0 && comment.author > 0 && seen.is_some(), "{comment:?}");
                assert_eq!(file.rsplit('/').next(), Some("issue_comment_created.json"));
                None
            }
            Ok(Event::Other { .. }) => None,
            Err(reason) => panic!("{file}: {reason}"),
        };
        assert_eq!(cause, *expected, "{file}");
    }
}
