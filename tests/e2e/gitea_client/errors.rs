//! What each kind of failure becomes, what is sent again, and what never leaves the client.

use super::*;

fn status(status: u16, headers: &[(&str, &str)]) -> Fault {
    let body = r#"{"message": "the forge's\nwords", "url": ""}"#.to_owned();
    let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    Fault::Status { status, body, headers: headers.collect() }
}

#[tokio::test]
async fn each_status_has_its_error() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    let table = [
        (400, "declined it (400)"),
        (401, "refused the token (401)"),
        (403, "denied it (403)"),
        (404, "not found, or hidden from the token (404)"),
        (409, "declined it (409)"),
        (412, "declined it (412)"),
        (413, "declined it (413)"),
        (422, "declined it (422)"),
        (423, "declined it (423)"),
        (500, "is unwell (500)"),
        (503, "is unwell (503)"),
    ];
    for (code, expected) in table {
        scene.forge.fault(Matcher::new("POST", "*/comments"), status(code, &[]), 1);
        let error = scene.client.comment(&scene.repo, number, "x").await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("cannot comment on issue {number} of acme/app: ")));
        assert!(text.contains(expected), "{text}");
        assert!(text.ends_with("the forge's words"), "{text}");
    }
    assert!(scene.forge.comments(&scene.repo, number).is_empty());
}

#[tokio::test]
async fn a_read_is_repeated_until_it_is_answered() {
    let scene = Scene::new(Dialect::Gitea127).await;
    for fault in [
        status(500, &[("retry-after", "0")]),
        status(502, &[("retry-after", "0")]),
        status(503, &[("retry-after", "Thu, 01 Jan 2026 00:00:00 GMT")]),
        status(504, &[("retry-after", "0")]),
        status(429, &[("retry-after", "0")]),
    ] {
        scene.forge.fault(Matcher::new("GET", "/api/v1/user"), fault, 2);
        assert_eq!(scene.client.whoami().await.unwrap().login, "hyla");
    }
    assert_eq!(scene.n_requests("GET", "/user"), 15);
    scene.forge.fault(Matcher::new("GET", "/api/v1/user"), Fault::CloseConnection, 1);
    scene.client.whoami().await.unwrap();
}

#[tokio::test]
async fn a_read_is_given_up_after_three_tries() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let fault = status(503, &[("retry-after", "0")]);
    scene.forge.fault(Matcher::new("GET", "/api/v1/user"), fault, usize::MAX);
    let error = scene.client.whoami().await.unwrap_err();
    assert!(matches!(error, Error::Unwell { status: 503, .. }), "{error}");
    assert_eq!(scene.n_requests("GET", "/user"), 3);
}

#[tokio::test]
async fn a_long_wait_is_left_to_the_caller() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let date = [
        ("date", "Thu, 01 Jan 2026 00:00:00 GMT"),
        ("retry-after", "Thu, 01 Jan 2026 00:10:00 GMT"),
    ];
    for headers in [&[("retry-after", "600")][..], &date] {
        scene.forge.fault(Matcher::new("GET", "/api/v1/user"), status(429, headers), 1);
        let error = scene.client.whoami().await.unwrap_err();
        let Error::Unwell { status: 429, retry_after, .. } = error else { panic!("{error}") };
        assert_eq!(retry_after, Some(Duration::from_secs(600)));
    }
    assert_eq!(scene.n_requests("GET", "/user"), 2);
}

#[tokio::test]
async fn a_comment_is_never_sent_twice() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    let doubtful =
        [Fault::AfterEffect(500), Fault::AfterEffect(502), Fault::CloseConnection, Fault::Garbage];
    for (i, fault) in doubtful.into_iter().enumerate() {
        scene.forge.fault(Matcher::new("POST", "*/comments"), fault, 1);
        scene.client.comment(&scene.repo, number, "once").await.unwrap_err();
        assert_eq!(scene.n_requests("POST", "/comments"), i + 1);
    }
    assert_eq!(scene.forge.comments(&scene.repo, number).len(), 2);
}

#[tokio::test]
async fn a_comment_that_was_not_carried_out_is_sent_again() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    let fault = status(429, &[("retry-after", "0")]);
    scene.forge.fault(Matcher::new("POST", "*/comments"), fault, 1);
    scene.client.comment(&scene.repo, number, "once").await.unwrap();
    assert_eq!(scene.forge.comments(&scene.repo, number).len(), 1);
}

#[tokio::test]
async fn an_edit_that_something_else_answered_is_an_error() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    let id = scene.client.comment(&scene.repo, number, "a").await.unwrap();
    scene.forge.fault(Matcher::new("PATCH", "*"), Fault::Garbage, 1);
    let error = scene.client.edit_comment(&scene.repo, id, "b").await.unwrap_err();
    assert!(matches!(error, Error::Answer { .. }), "{error}");
    assert_eq!(scene.forge.comments(&scene.repo, number)[0].body, "a");
    scene.forge.assert_clean();
}

#[tokio::test]
async fn an_edit_and_a_reaction_are_sent_again() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    let id = scene.client.comment(&scene.repo, number, "a").await.unwrap();
    scene.forge.fault(Matcher::new("PATCH", "*"), Fault::AfterEffect(500), 1);
    scene.client.edit_comment(&scene.repo, id, "b").await.unwrap();
    scene.forge.fault(Matcher::new("POST", "*/reactions"), Fault::AfterEffect(503), 1);
    scene.client.react(&scene.repo, number, "eyes").await.unwrap();
    assert_eq!(scene.forge.reactions(&scene.repo, number).len(), 1);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn a_draft_whose_answer_was_lost_is_found_again() {
    let scene = Scene::new(Dialect::Gitea127).await;
    scene.forge.fault(Matcher::new("POST", "*/pulls"), Fault::AfterEffect(500), 1);
    let pull = scene.client.open_draft(&scene.repo, &scene.draft()).await.unwrap();
    assert_eq!(pull.number, 1);
    assert_eq!(scene.n_requests("POST", "/pulls"), 1);
    assert_eq!(scene.forge.pulls(&scene.repo).len(), 1);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn a_draft_that_was_not_opened_is_an_error() {
    let scene = Scene::new(Dialect::Gitea127).await;
    scene.forge.fault(Matcher::new("POST", "*/pulls"), status(500, &[]), 1);
    let draft = scene.draft();
    let error = scene.client.open_draft(&scene.repo, &draft).await.unwrap_err();
    assert!(matches!(error, Error::Unwell { status: 500, .. }), "{error}");
    let missing = NewDraft { head: "nowhere".into(), ..draft };
    let error = scene.client.open_draft(&scene.repo, &missing).await.unwrap_err();
    assert!(matches!(error, Error::Declined { status: 422, .. }), "{error}");
    assert!(scene.forge.pulls(&scene.repo).is_empty());
}

#[tokio::test]
async fn a_redirect_is_refused_and_carries_no_token_along() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let other = Scene::new(Dialect::Gitea127).await;
    let location = format!("{}api/v1/user?token=x", other.forge.url());
    for code in [301, 302, 307, 308] {
        let fault = status(code, &[("location", &location)]);
        scene.forge.fault(Matcher::new("GET", "/api/v1/user"), fault, 1);
        let text = scene.client.whoami().await.unwrap_err().to_string();
        assert!(
            text.contains(&format!("redirects ({code}) to `{}api/v1/user`", other.forge.url()))
        );
        assert!(text.contains("write the final address as `url`"), "{text}");
    }
    assert!(other.forge.requests().is_empty());
}

#[tokio::test]
async fn an_answer_that_is_no_json_is_an_error_without_its_text() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let page = |status| Fault::Status {
        status,
        body: "<html>SECRET-PAGE</html>".into(),
        headers: vec![("content-type".into(), "text/html".into())],
    };
    let secret = r#"{"id": "SECRET-PAGE"}"#;
    let shape = Fault::Status { status: 200, body: secret.into(), headers: vec![] };
    let table = [
        (page(200), "it is no JSON but `text/html`"),
        (page(403), "no words, but `text/html`"),
        (page(404), "no words, but `text/html`"),
        (shape, "its JSON is not as documented at line 1"),
        (Fault::Garbage, "its JSON is not as documented at line 1"),
    ];
    for (fault, expected) in table {
        scene.forge.fault(Matcher::new("GET", "/api/v1/user"), fault, 1);
        let text = scene.client.whoami().await.unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("SECRET-PAGE"), "{text}");
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let body = " ".repeat((64 << 20) + 1);
    let fault = Fault::Status { status: 200, body, headers: vec![] };
    scene.forge.fault(Matcher::new("GET", "/api/v1/user"), fault, 1);
    let text = scene.client.whoami().await.unwrap_err().to_string();
    assert!(text.contains("longer than 67108864 bytes"), "{text}");
}

#[tokio::test]
async fn a_forge_that_hangs_or_is_gone_is_unreachable() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let mut options = options(&scene.forge, Dialect::Gitea127, &scene.token);
    options.timeout = Duration::from_millis(300);
    let client = Gitea::new(options.clone()).unwrap();
    scene.forge.fault(Matcher::new("GET", "/api/v1/user"), Fault::Hang, 1);
    let error = client.whoami().await.unwrap_err();
    let Error::Unreachable { source, .. } = &error else { panic!("{error}") };
    let source: Option<&reqwest::Error> = source.downcast_ref();
    assert!(source.is_some_and(reqwest::Error::is_timeout));
    assert_eq!(scene.n_requests("GET", "/user"), 1);
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    options.url = format!("http://{}", socket.local_addr().unwrap()).parse().unwrap();
    drop(socket);
    let error = Gitea::new(options).unwrap().whoami().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn no_error_and_no_debug_text_holds_the_token() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let body = format!(r#"{{"message": "bad token {}, {}"}}"#, scene.token, "x".repeat(500));
    for code in [401, 403, 404, 422, 500] {
        let fault = Fault::Status { status: code, body: body.clone(), headers: vec![] };
        scene.forge.fault(Matcher::new("POST", "*"), fault, 1);
        let error = scene.client.comment(&scene.repo, 1, "x").await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains(&scene.token), "{text}");
        assert!(text.contains("[secret]") && text.contains('…'), "{text}");
    }
    let options = options(&scene.forge, Dialect::Gitea127, &scene.token);
    let remote = scene.remote().await;
    assert!(!format!("{options:?} {remote:?}").contains(&scene.token));
}

#[tokio::test]
async fn a_revoked_token_is_an_auth_error() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        scene.forge.revoke(&scene.token);
        let error = scene.client.whoami().await.unwrap_err();
        assert!(matches!(error, Error::Auth { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_missing_scope_is_named() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let token = scene.forge.token_with_scopes("hyla", &["write:repository", "read:issue"]);
    let narrow = client(&scene.forge, Dialect::Gitea127, &token);
    let number = scene.issue().await;
    narrow.issue(&scene.repo, number).await.unwrap();
    let error = narrow.comment(&scene.repo, number, "x").await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error}");
    assert!(error.to_string().contains("required=[write:issue]"), "{error}");
    let error = narrow.whoami().await.unwrap_err();
    assert!(error.to_string().contains("required=[read:user]"), "{error}");
}

#[tokio::test]
async fn an_archived_repository_declines() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    scene.forge.archive(&scene.repo);
    let error = scene.client.comment(&scene.repo, number, "x").await.unwrap_err();
    assert!(matches!(error, Error::Declined { status: 423, .. }), "{error}");
}

#[tokio::test]
async fn a_hidden_repository_is_missing_and_not_empty() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    scene.forge.make_private(&scene.repo);
    scene.forge.set_permission(&scene.repo, "hyla", Permission::None);
    let missing = |error: Error| assert!(matches!(error, Error::Missing { .. }), "{error}");
    let (client, repo, ada) = (&scene.client, &scene.repo, scene.user("ada"));
    missing(client.repository(repo).await.unwrap_err());
    missing(client.issue(repo, number).await.unwrap_err());
    missing(client.history(repo, number, "hyla").await.unwrap_err());
    missing(client.branch_head(repo, "main").await.unwrap_err());
    missing(client.pull_by_head(repo, "main", "x").await.unwrap_err());
    missing(client.permission(repo, &ada).await.unwrap_err());
}

#[tokio::test]
async fn a_name_that_would_lead_elsewhere_is_not_asked_for() {
    let scene = Scene::new(Dialect::Gitea127).await;
    for (owner, name) in [("..", "app"), ("acme", "."), ("acme", ""), ("acme", ".\t.")] {
        let repo = RepoName { owner: owner.into(), name: name.into() };
        let error = scene.client.repository(&repo).await.unwrap_err();
        assert!(matches!(error, Error::Missing { .. }), "{error}");
    }
    let odd = RepoName { owner: "acme".into(), name: "a/../app?x=1#y%2e".into() };
    scene.client.repository(&odd).await.unwrap_err();
    let requests = scene.forge.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].path, "/api/v1/repos/acme/a%2F..%2Fapp%3Fx=1%23y%252e");
    assert_eq!(requests[0].query, "");
}

#[tokio::test]
async fn bad_options_are_refused_before_anything_is_sent() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let good = options(&scene.forge, Dialect::Gitea127, &scene.token);
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "no certificate").unwrap();
    let url = |text: &str| text.parse::<url::Url>().unwrap();
    let table = [
        (Options { url: url("ftp://h/"), ..good.clone() }, "cannot use forge address `ftp://h/`"),
        (Options { url: url("http://u:pw@h/x"), ..good.clone() }, "address `http://h/x`"),
        (Options { url: url("http://h/?a"), ..good.clone() }, "without user, query"),
        (Options { token: "".to_owned().into(), ..good.clone() }, "cannot use the forge token"),
        (Options { token: "a\nb".to_owned().into(), ..good.clone() }, "forge token"),
        (Options { draft_prefix: " ".into(), ..good.clone() }, "empty draft prefix"),
        (Options { ca_file: Some("/nowhere".into()), ..good.clone() }, "from `/nowhere`"),
        (Options { ca_file: Some(empty), ..good }, "cannot find PEM certificates"),
    ];
    for (options, expected) in table {
        let Err(error) = Gitea::new(options) else { panic!("not refused: {expected}") };
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(scene.forge.requests().is_empty());
}
