//! Answers against GitHub's published description, whole: every key that it requires, every type. And our own request schema
//! against the published one.

use super::*;

use std::path::Path;

use tests::forge::Checker;

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/forges");

#[test]
fn the_schemas_catch_requests_that_github_does_not_know() {
    for dialect in Dialect::GITHUB {
        for checker in [Checker::new(dialect), Checker::own(dialect)] {
            let check = |method: &str, path: &str, query: &[(&str, &str)], body: &str| {
                checker.complaints(method, path, query, body)
            };
            let repo = "/repos/acme/app";
            let pulls = format!("{repo}/pulls");
            let tokens = "/app/installations/7/access_tokens";
            let good =
                r#"{"title": "x", "body": "", "head": "a/b", "base": "main", "draft": true}"#;
            assert_eq!(check("POST", &pulls, &[], good), "");
            assert_eq!(check("POST", tokens, &[], ""), "");
            assert_eq!(check("POST", tokens, &[], r#"{"permissions": {"issues": "read"}}"#), "");
            assert_eq!(check("GET", &format!("{repo}/git/ref/heads/a/b"), &[], ""), "");
            assert_eq!(check("GET", &format!("{repo}/labels/a%2Fb"), &[], ""), "");
            let wrong = [
                check("POST", &pulls, &[], r#"{"title": "x", "head": "a"}"#),
                check("POST", &pulls, &[], r#"{"head": "a", "base": "b", "labels": [1]}"#),
                check("POST", &pulls, &[], ""),
                check("POST", tokens, &[], r#"{"repositories": "app"}"#),
                check("GET", &pulls, &[("limit", "50")], ""),
                check("GET", &format!("{repo}/issues"), &[("state", "any")], ""),
                check("GET", &format!("{repo}/teams/7"), &[], ""),
                check("GET", "/version", &[], ""),
            ];
            for (i, complaint) in wrong.iter().enumerate() {
                assert!(!complaint.is_empty(), "case {i} of {dialect:?} was let through");
            }
        }
        let published = Checker::new(dialect);
        if published.is_published {
            let known = published.operations();
            for operation in Checker::own(dialect).operations() {
                assert!(known.contains(&operation), "{operation}");
            }
        }
    }
}

/// A published description of answers, in plain JSON Schema.
struct Published(Value);

impl Published {
    fn read() -> Option<Self> {
        let path = Path::new(SHARED).join("specs/ghes-3.19.openapi3.reduced.json");
        let mut spec: Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).unwrap();
        plain(&mut spec);
        Some(Self(spec))
    }

    fn check(&self, method: &str, path: &str, answer: &Answer) {
        let operation = &self.0["paths"][path][method.to_lowercase()];
        let mut response = &operation["responses"][answer.status.to_string()];
        if let Some(name) = response["$ref"].as_str() {
            response = self.0.pointer(name.trim_start_matches('#')).unwrap();
        }
        let schema = &response["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {path} has no answer {}", answer.status);
        let mut schema = schema.clone();
        schema["components"] = self.0["components"].clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let wrong: Vec<String> = validator
            .iter_errors(&answer.body)
            .map(|error| format!("{}: {error:.300}", error.instance_path()))
            .collect();
        assert!(wrong.is_empty(), "{method} {path}: {wrong:#?}");
    }
}

/// `nullable`, which OpenAPI 3.0 has and JSON Schema has not, as a further type. Of what is a user or an enterprise the
/// published text says in places that it is both, which nothing is.
fn plain(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.values_mut().for_each(plain);
            if object.get("nullable") == Some(&Value::Bool(true)) {
                let both = object.get("allOf").and_then(Value::as_array).map_or(0, Vec::len) > 1;
                if both && let Some(all) = object.remove("allOf") {
                    object.insert("anyOf".into(), all);
                }
                let rest = Value::Object(std::mem::take(object));
                object.insert("anyOf".into(), json!([{ "type": "null" }, rest]));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(plain),
        _ => {}
    }
}

#[tokio::test]
async fn answers_have_the_published_shapes() {
    let Some(published) = Published::read() else {
        eprintln!("skipped: the published descriptions are not at hand");
        return;
    };
    let scene = Scene::new(Dialect::Ghes319).await;
    let number = scene.issue(&["hyla"]).await;
    let ada = scene.forge.person("ada");
    ada.toggle_assignee(&scene.repo, number, "ada").await;
    ada.retitle(&scene.repo, number, "c").await;
    ada.remove_label(&scene.repo, number, "hyla").await;
    ada.close(&scene.repo, number).await;
    let commit = scene.forge.branch_head(&scene.repo, "main").unwrap();
    let writes = [
        ("issues/1/comments", "issues/{issue_number}/comments", json!({ "body": "x" })),
        ("issues/1/reactions", "issues/{issue_number}/reactions", json!({ "content": "eyes" })),
        ("pulls", "pulls", {
            let mut draft = scene.draft("topic");
            draft["body"] = json!("Closes #1");
            draft
        }),
        (&*format!("statuses/{commit}"), "statuses/{sha}", json!({ "state": "success" })),
    ];
    for (path, template, body) in writes {
        let answer = scene.post(&format!("/repos/acme/app/{path}"), body).await;
        published.check("POST", &format!("/repos/{{owner}}/{{repo}}/{template}"), &answer);
    }
    let reads = [
        ("/user", "/user"),
        ("/meta", "/meta"),
        ("", ""),
        ("issues", "issues"),
        ("issues/1", "issues/{issue_number}"),
        ("issues/2", "issues/{issue_number}"),
        ("issues/1/comments", "issues/{issue_number}/comments"),
        ("issues/1/timeline", "issues/{issue_number}/timeline"),
        ("issues/1/events", "issues/{issue_number}/events"),
        ("issues/1/reactions", "issues/{issue_number}/reactions"),
        ("labels", "labels"),
        ("collaborators/ada/permission", "collaborators/{username}/permission"),
        ("git/ref/heads/main", "git/ref/{ref}"),
        ("branches/main", "branches/{branch}"),
        ("pulls", "pulls"),
        ("pulls/2", "pulls/{pull_number}"),
    ];
    for (path, template) in reads {
        let whole = |part: &str, repo: &str| match part {
            "" => repo.to_owned(),
            part if part.starts_with('/') => part.to_owned(),
            part => format!("{repo}/{part}"),
        };
        let answer = scene.get(&whole(path, "/repos/acme/app")).await;
        assert!(answer.body.as_array().is_none_or(|list| !list.is_empty()), "{path}");
        published.check("GET", &whole(template, "/repos/{owner}/{repo}"), &answer);
    }
    scene.forge.assert_clean();
}

#[tokio::test]
async fn what_the_app_is_told_has_the_published_shapes() {
    let Some(published) = Published::read() else {
        eprintln!("skipped: the published descriptions are not at hand");
        return;
    };
    let it = app::Installed::new().await;
    let (url, _received) = hooks::receiver().await;
    it.scene.forge.set_app_hook(&url, "hush");
    it.scene.forge.settle().await;
    it.scene.issue(&["hyla"]).await;
    let newest = it.as_app(Method::GET, "/app/hook/deliveries?per_page=1", Value::Null).await;
    let delivery = format!("/app/hook/deliveries/{}", newest.body[0]["id"]);
    let installation = it.as_app(Method::GET, "/repos/acme/app/installation", Value::Null).await;
    let own = format!("/app/installations/{}", installation.body["id"]);
    let table = [
        ("/app", "/app"),
        ("/app/installations", "/app/installations"),
        (&*own, "/app/installations/{installation_id}"),
        ("/repos/acme/app/installation", "/repos/{owner}/{repo}/installation"),
        ("/app/hook/config", "/app/hook/config"),
        ("/app/hook/deliveries", "/app/hook/deliveries"),
        (&*delivery, "/app/hook/deliveries/{delivery_id}"),
    ];
    for (path, template) in table {
        let answer = it.as_app(Method::GET, path, Value::Null).await;
        assert!(answer.body.as_array().is_none_or(|list| !list.is_empty()), "{path}");
        published.check("GET", template, &answer);
    }
    let minted = it.mint(json!({ "repositories": ["app"] })).await;
    published.check("POST", "/app/installations/{installation_id}/access_tokens", &minted);
    let token = minted.body["token"].as_str().unwrap();
    let commit = it.scene.forge.branch_head(&it.scene.repo, "main").unwrap();
    let run = json!({ "name": "hyla", "head_sha": commit, "conclusion": "success",
                      "output": { "title": "It works", "summary": "All of it." } });
    let path = "/api/v3/repos/acme/app/check-runs";
    let made = it.scene.ask(Method::POST, path, token, &run).await;
    published.check("POST", "/repos/{owner}/{repo}/check-runs", &made);
    it.scene.forge.assert_clean();
}
