//! The App: its assertions, its installations, tokens that end and that are for some repositories, and git with them.

use super::*;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bot::clock::{Clock as _, Manual};
use chrono::{DateTime, Utc};
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::rsa::Rsa;
use openssl::sign::Signer;
use tests::forge::AppCredentials;

/// A forge with an app and a clock that the test moves.
pub(super) struct Installed {
    pub(super) scene: Scene,
    app: AppCredentials,
    clock: Arc<Manual>,
}

impl Installed {
    pub(super) async fn new() -> Self {
        let scene = Scene::new(Dialect::Ghes319).await;
        let start = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let clock = Arc::new(Manual::new(start));
        scene.forge.keep_time(clock.clone());
        let app = scene.forge.register_app("hyla");
        scene.forge.install_app(&scene.repo);
        Self { scene, app, clock }
    }

    fn now(&self) -> i64 {
        let now: DateTime<Utc> = self.clock.now();
        now.timestamp()
    }

    fn assertion(&self) -> String {
        let now = self.now();
        let claims = json!({ "iat": now - 60, "exp": now + 540, "iss": self.app.id });
        signed(&self.app.private_key, &claims)
    }

    pub(super) async fn as_app(&self, method: Method, path: &str, body: Value) -> Answer {
        self.scene.ask(method, &format!("/api/v3{path}"), &self.assertion(), &body).await
    }

    /// A token for the installation, as it is asked for.
    pub(super) async fn mint(&self, body: Value) -> Answer {
        let path = "/repos/acme/app/installation";
        let installation = self.as_app(Method::GET, path, Value::Null).await;
        let path = format!("/app/installations/{}/access_tokens", installation.body["id"]);
        self.as_app(Method::POST, &path, body).await
    }
}

fn signed(private_key: &str, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&json!({ "alg": "RS256", "typ": "JWT" })), part(claims));
    let key = PKey::private_key_from_pem(private_key.as_bytes()).unwrap();
    let mut signer = Signer::new(MessageDigest::sha256(), &key).unwrap();
    signer.update(text.as_bytes()).unwrap();
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signer.sign_to_vec().unwrap()))
}

#[tokio::test]
async fn an_assertion_is_verified_and_must_be_short_and_present() {
    let it = Installed::new().await;
    let now = it.now();
    let key = &it.app.private_key;
    assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY-----"));
    let foreign = Rsa::generate(2048).unwrap().private_key_to_pem().unwrap();
    let foreign = String::from_utf8(foreign).unwrap();
    let claims = |iat: i64, exp: i64| json!({ "iat": iat, "exp": exp, "iss": it.app.id });
    let good = claims(now - 60, now + 540);
    let text = claims(now, now + 600)
        .to_string()
        .replace(&it.app.id.to_string(), &format!("\"{}\"", it.app.id));
    let table = [
        (signed(key, &good), 200, ""),
        (signed(key, &serde_json::from_str(&text).unwrap()), 200, ""),
        (signed(&foreign, &good), 401, "could not be decoded"),
        (signed(key, &claims(now + 5, now + 300)), 401, "'iat'"),
        (signed(key, &claims(now - 60, now + 601)), 401, "too far in the future"),
        (signed(key, &claims(now - 600, now)), 401, "must be a numeric value"),
        (
            signed(key, &json!({ "iat": now, "exp": now + 60, "iss": 7 })),
            404,
            "Integration not found",
        ),
        ("a.b.c".to_owned(), 401, "could not be decoded"),
        (it.scene.token.clone(), 401, "could not be decoded"),
    ];
    for (token, status, message) in table {
        let answer = it.scene.get_as("/app", &token).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.message().contains(message), "{}", answer.body);
    }
    let app = it.as_app(Method::GET, "/app", Value::Null).await;
    assert_eq!((&app.body["id"], &app.body["slug"]), (&json!(it.app.id), &json!("hyla")));
    assert_eq!(it.scene.get_as("/repos/acme/app", &it.assertion()).await.status, 401);
    it.scene.forge.assert_clean();
}

#[tokio::test]
async fn a_token_is_for_an_hour_and_for_its_repositories() {
    let it = Installed::new().await;
    let other = it.scene.forge.add_repository("acme", "other", [("a", "a")]);
    it.scene.forge.install_app(&other);
    let hidden = it.scene.forge.add_repository("else", "where", [("a", "a")]);
    let minted = it.mint(json!({ "repositories": ["app"] })).await;
    assert_eq!(minted.status, 201);
    assert_eq!(minted.body["expires_at"], "2027-01-15T09:00:00Z");
    assert_eq!(minted.body["repositories"].as_array().unwrap().len(), 1);
    let token = minted.body["token"].as_str().unwrap();
    assert_eq!(it.scene.get_as("/repos/acme/app", token).await.status, 200);
    assert_eq!(it.scene.get_as("/repos/acme/other", token).await.status, 404);
    let both = it.mint(Value::Null).await;
    let both = both.body["token"].as_str().unwrap().to_owned();
    assert_eq!(it.scene.get_as("/repos/acme/other", &both).await.status, 200);
    assert_eq!(it.scene.get_as(&format!("/repos/{hidden}"), &both).await.status, 404);
    let absent = it.mint(json!({ "repositories": ["where"] })).await;
    assert_eq!(absent.status, 422);
    it.clock.advance(Duration::from_secs(3599));
    assert_eq!(it.scene.get_as("/repos/acme/app", token).await.status, 200);
    it.clock.advance(Duration::from_secs(1));
    let over = it.scene.get_as("/repos/acme/app", token).await;
    assert_eq!((over.status, over.message()), (401, "Bad credentials"));
    let fresh = it.mint(Value::Null).await.body["token"].as_str().unwrap().to_owned();
    it.scene.forge.uninstall_app(&it.scene.repo);
    assert_eq!(it.scene.get_as("/repos/acme/app", &fresh).await.status, 404);
    let gone = it.as_app(Method::GET, "/repos/acme/app/installation", Value::Null).await;
    assert_eq!(gone.status, 404);
    it.scene.forge.assert_clean();
}

#[tokio::test]
async fn the_app_acts_as_its_bot_user_within_its_permissions() {
    let it = Installed::new().await;
    let number = it.scene.issue(&[]).await;
    let token = it.mint(json!({ "permissions": { "issues": "write" } })).await;
    let token = token.body["token"].as_str().unwrap().to_owned();
    let path = format!("/api/v3/repos/acme/app/issues/{number}/comments");
    let body = json!({ "body": "On it." });
    let made = it.scene.ask(Method::POST, &path, &token, &body).await;
    let user = &made.body["user"];
    assert_eq!((&user["login"], &user["type"]), (&json!("hyla[bot]"), &json!("Bot")));
    assert_eq!(it.app.login, "hyla[bot]");
    let refused = it.scene.get_as("/repos/acme/app/pulls", &token).await;
    assert_eq!(
        (refused.status, refused.message()),
        (403, "Resource not accessible by integration")
    );
    assert_eq!(it.scene.get_as("/user", &token).await.status, 403);
    let beyond = it.mint(json!({ "permissions": { "administration": "write" } })).await;
    assert_eq!(beyond.status, 422);
    let all = it.mint(Value::Null).await.body["token"].as_str().unwrap().to_owned();
    let commit = it.scene.forge.branch_head(&it.scene.repo, "main").unwrap();
    let run = json!({ "name": "hyla", "head_sha": commit, "conclusion": "success" });
    let made = it.scene.ask(Method::POST, "/api/v3/repos/acme/app/check-runs", &all, &run).await;
    assert_eq!((made.status, &made.body["status"]), (201, &json!("completed")));
    assert!(it.scene.forge.checks(&it.scene.repo)[0].is_run);
    it.scene.forge.assert_clean();
}

#[tokio::test]
async fn git_takes_an_apps_token_with_the_apps_name_alone() {
    let it = Installed::new().await;
    it.scene.forge.make_private(&it.scene.repo);
    let other = it.scene.forge.add_repository("acme", "other", [("a", "a")]);
    it.scene.forge.install_app(&other);
    let token = it.mint(json!({ "repositories": ["app"] })).await;
    let token = token.body["token"].as_str().unwrap().to_owned();
    let narrow = it.mint(json!({ "permissions": { "contents": "read" } })).await;
    let narrow = narrow.body["token"].as_str().unwrap().to_owned();
    let ask = async |repo: &str, service: &str, user: &str, password: &str| {
        let root = it.scene.forge.url();
        let url = format!("{root}acme/{repo}.git/info/refs?service={service}");
        let answer = it.scene.http.get(url).basic_auth(user, Some(password)).send().await.unwrap();
        answer.status().as_u16()
    };
    let (pull, push, name) = ("git-upload-pack", "git-receive-pack", "x-access-token");
    assert_eq!(ask("app", pull, name, &token).await, 200);
    assert_eq!(ask("app", push, name, &token).await, 200);
    assert_eq!(ask("app", pull, "hyla", &token).await, 401);
    assert_eq!(ask("app", pull, "anything", &it.scene.token).await, 200);
    assert_eq!(ask("other", push, name, &token).await, 404);
    assert_eq!(ask("app", pull, name, &narrow).await, 200);
    assert_eq!(ask("app", push, name, &narrow).await, 403);
    it.clock.advance(Duration::from_secs(3600));
    assert_eq!(ask("app", pull, name, &token).await, 401);
    it.scene.forge.assert_clean();
}

#[tokio::test]
async fn failed_deliveries_are_listed_and_sent_again_under_the_same_name() {
    let it = Installed::new().await;
    let (url, mut received) = hooks::receiver().await;
    it.scene.forge.set_app_hook(&url, "hush");
    it.scene.forge.settle().await;
    let (_, ping) = received.recv().await.unwrap();
    assert_eq!(ping["hook"]["type"], "App");
    it.scene.forge.hold_hooks(true);
    it.scene.issue(&["hyla"]).await;
    it.scene.forge.hold_hooks(false);
    let config = it.as_app(Method::GET, "/app/hook/config", Value::Null).await;
    assert_eq!(config.body["url"], url);
    let failed = "/app/hook/deliveries?per_page=1&status=failure";
    let first = it.as_app(Method::GET, failed, Value::Null).await;
    assert_eq!(first.body[0]["action"], "labeled");
    let link = first.header("link").to_owned();
    let (next, _) = link.trim_start_matches('<').split_once('>').unwrap();
    let second = it.scene.ask(Method::GET, next, &it.assertion(), &Value::Null).await;
    let (id, guid) = (&second.body[0]["id"], &second.body[0]["guid"]);
    assert_eq!(
        (second.body.as_array().unwrap().len(), &second.body[0]["action"]),
        (1, &json!("opened"))
    );
    assert_eq!(second.header("link"), "");
    let whole = it.as_app(Method::GET, &format!("/app/hook/deliveries/{id}"), Value::Null).await;
    assert_eq!(whole.body["request"]["payload"]["action"], "opened");
    let attempt = format!("/app/hook/deliveries/{id}/attempts");
    assert_eq!(it.as_app(Method::POST, &attempt, Value::Null).await.status, 202);
    it.scene.forge.settle().await;
    let (headers, payload) = received.recv().await.unwrap();
    assert_eq!(headers["x-github-delivery"], guid.as_str().unwrap());
    assert_eq!(payload["action"], "opened");
    assert_eq!(headers["x-github-hook-installation-target-type"], "integration");
    let all = it.as_app(Method::GET, "/app/hook/deliveries", Value::Null).await;
    let newest = &all.body[0];
    assert_eq!((&newest["guid"], &newest["redelivery"]), (guid, &json!(true)));
    assert_ne!(&newest["id"], id);
    it.scene.forge.assert_clean();
}
