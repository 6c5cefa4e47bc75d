//! The routes, and what they refuse.

use super::*;

const PULLS: &str = "/repos/acme/app/pulls";

#[tokio::test]
async fn every_answer_says_what_server_it_is() {
    for (dialect, version) in [(Dialect::Ghes314, "3.14.2"), (Dialect::Ghes319, "3.19.0")] {
        let scene = Scene::below(dialect, "/git").await;
        let meta = scene.get("/meta").await;
        assert_eq!(meta.body["installed_version"], version);
        let user = scene.get("/user").await;
        assert_eq!((user.status, user.header("x-github-enterprise-version")), (200, version));
        assert_eq!((&user.body["login"], &user.body["type"]), (&json!("hyla"), &json!("User")));
        assert_eq!(user.header("x-github-request-id").len(), 36);
        assert_eq!(scene.get("/rate_limit").await.status, 404);
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn errors_have_githubs_shape_and_hide_what_may_not_be_seen() {
    let scene = Scene::new(Dialect::Ghes319).await;
    let nobody = scene.get_as("/user", "").await;
    assert_eq!((nobody.status, nobody.message()), (401, "Must authenticate to access this API."));
    let wrong = scene.get_as("/user", "nonsense").await;
    assert_eq!((wrong.status, wrong.message()), (401, "Bad credentials"));
    assert_eq!(wrong.body["status"], "401");
    assert!(wrong.body["documentation_url"].as_str().unwrap().contains("@3.19/"));
    scene.forge.add_user("rob", Permission::None);
    let rob = scene.forge.token_for("rob");
    assert_eq!(scene.get_as("/repos/acme/app", &rob).await.status, 200);
    scene.forge.make_private(&scene.repo);
    let hidden = scene.get_as("/repos/acme/app", &rob).await;
    assert_eq!((hidden.status, hidden.message()), (404, "Not Found"));
    let narrow = scene.forge.token_with_scopes("hyla", &["read:user"]);
    assert_eq!(scene.get_as("/repos/acme/app", &narrow).await.status, 404);
    scene.forge.revoke(&scene.token);
    assert_eq!(scene.get("/user").await.status, 401);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn what_github_does_not_take_is_refused_and_recorded() {
    for dialect in Dialect::GITHUB {
        let scene = Scene::new(dialect).await;
        let number = scene.issue(&[]).await;
        let paths = [
            (Method::GET, "/api/v1/user", Value::Null),
            (Method::GET, "/api/v3/repos/acme/app/invented", Value::Null),
            (Method::GET, "/api/v3/repos/acme/app/issues?limit=50", Value::Null),
            (Method::GET, "/api/v3/repos/acme/app/issues?assignee=ada", Value::Null),
            (Method::POST, "/api/v3/repos/acme/app/issues/1/comments", json!({ "text": "x" })),
            (Method::POST, "/api/v3/repos/acme/app/issues/1/reactions", json!({ "content": "x" })),
            (Method::PATCH, "/api/v3/repos/acme/app/pulls/1", json!({ "draft": false })),
            (Method::POST, "/api/graphql", json!({ "query": "{ viewer { login } }" })),
            (Method::GET, "/acme/app", Value::Null),
        ];
        assert_eq!(number, 1);
        for (method, path, body) in paths {
            let before = scene.forge.violations().len();
            let answer = scene.ask(method, path, &scene.token, &body).await;
            assert_eq!(answer.status, 418, "{path}: {}", answer.body);
            assert!(scene.forge.violations().len() > before, "{path}");
        }
        let status = scene.get("/app/hook/deliveries?status=failure").await.status;
        assert_eq!(status, if dialect == Dialect::Ghes314 { 418 } else { 401 });
    }
}

#[tokio::test]
async fn a_long_list_comes_in_pages_whose_links_give_the_repositorys_number() {
    let scene = Scene::below(Dialect::Ghes319, "/git").await;
    for _ in 0..5 {
        scene.issue(&["hyla"]).await;
    }
    let page = scene.get("/repos/acme/app/issues?labels=HYLA&per_page=2").await;
    let mut numbers: Vec<Value> = Vec::new();
    let mut answer = page;
    loop {
        numbers.extend(answer.body.as_array().unwrap().iter().map(|it| it["number"].clone()));
        let link = answer.header("link").to_owned();
        let Some(next) = link.split(", ").find(|link| link.ends_with("rel=\"next\"")) else {
            break;
        };
        let (address, _) = next.trim_start_matches('<').split_once('>').unwrap();
        assert!(address.contains("/git/api/v3/repositories/"), "{address}");
        answer = scene.ask(Method::GET, address, &scene.token, &Value::Null).await;
        assert_eq!(answer.status, 200);
    }
    assert_eq!(numbers, [5, 4, 3, 2, 1]);
    let unknown = scene.get("/repos/acme/app/issues?labels=nothing").await;
    assert_eq!(unknown.body, json!([]));
    scene.forge.assert_clean();
}

#[tokio::test]
async fn lists_of_issues_hold_pull_requests() {
    let scene = Scene::new(Dialect::Ghes314).await;
    let issue = scene.issue(&["hyla"]).await;
    let made = scene.post(PULLS, scene.draft("hyla/issue-1-1")).await;
    let both = scene.get("/repos/acme/app/issues").await;
    assert_eq!(both.body[0]["number"], made.body["number"]);
    assert_eq!(
        (both.body[0]["pull_request"].is_object(), &both.body[0]["draft"]),
        (true, &json!(true))
    );
    assert_eq!(both.body[1]["number"], issue);
    assert_eq!(both.body[1].get("pull_request"), None);
    scene.forge.person("ada").close(&scene.repo, issue).await;
    let open = scene.get("/repos/acme/app/issues?labels=hyla&state=open").await;
    assert_eq!(open.body, json!([]));
    scene.forge.assert_clean();
}

#[tokio::test]
async fn the_timeline_tells_who_put_the_label_on() {
    let scene = Scene::new(Dialect::Ghes319).await;
    let number = scene.issue(&["bug"]).await;
    let ada = scene.forge.person("ada");
    ada.add_label(&scene.repo, number, "hyla").await;
    ada.add_label(&scene.repo, number, "hyla").await;
    ada.remove_label(&scene.repo, number, "hyla").await;
    ada.comment(&scene.repo, number, "Well?").await;
    ada.commit(&scene.repo, "topic", [("b", "b")]);
    ada.open_pull_saying(&scene.repo, ("A way", "Closes #1"), "topic", "main").await;
    let names = |answer: &Answer| -> Vec<String> {
        let entries = answer.body.as_array().unwrap().iter();
        entries.map(|it| it["event"].as_str().unwrap().to_owned()).collect()
    };
    let timeline = scene.get("/repos/acme/app/issues/1/timeline?per_page=100").await;
    let expected = ["labeled", "labeled", "unlabeled", "commented", "cross-referenced"];
    assert_eq!(names(&timeline), expected);
    let label = &timeline.body[1];
    assert_eq!(
        (&label["label"]["name"], &label["actor"]["login"]),
        (&json!("hyla"), &json!("ada"))
    );
    assert_eq!(timeline.body[4]["source"]["issue"]["number"], 2);
    let events = scene.get("/repos/acme/app/issues/1/events").await;
    assert_eq!(names(&events), expected[..3]);
    assert_eq!(events.body[1]["id"], label["id"]);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn comments_and_reactions_are_written_once_and_by_whoever_may() {
    let scene = Scene::new(Dialect::Ghes319).await;
    let number = scene.issue(&[]).await;
    let path = format!("/repos/acme/app/issues/{number}/comments");
    let made = scene.post(&path, json!({ "body": "On it." })).await;
    assert_eq!((made.status, &made.body["body"]), (201, &json!("On it.")));
    let own = format!("/api/v3/repos/acme/app/issues/comments/{}", made.body["id"]);
    let edited = scene.ask(Method::PATCH, &own, &scene.token, &json!({ "body": "Done." })).await;
    assert_eq!((edited.status, &edited.body["body"]), (200, &json!("Done.")));
    let empty = scene.post(&path, json!({ "body": " " })).await;
    assert_eq!(empty.invalid()["code"], "missing_field");
    let long = scene.post(&path, json!({ "body": "a".repeat(65_537) })).await;
    assert_eq!(long.invalid()["field"], "body");
    let reactions = format!("/repos/acme/app/issues/{number}/reactions");
    for status in [201, 200] {
        let answer = scene.post(&reactions, json!({ "content": "eyes" })).await;
        assert_eq!(answer.status, status);
    }
    assert_eq!(scene.forge.reactions(&scene.repo, number), [("hyla".into(), "eyes".into())]);
    let rob = scene.forge.add_user("rob", Permission::None);
    assert!(rob > 0);
    let rob = scene.forge.token_for("rob");
    let foreign = scene.ask(Method::DELETE, &own, &rob, &Value::Null).await;
    assert_eq!(foreign.status, 403);
    assert_eq!(scene.ask(Method::DELETE, &own, &scene.token, &Value::Null).await.status, 204);
    assert_eq!(scene.ask(Method::DELETE, &own, &scene.token, &Value::Null).await.status, 404);
    scene.forge.person("ada").lock(&scene.repo, number);
    let body = json!({ "body": "x" });
    let locked = scene.ask(Method::POST, &format!("/api/v3{path}"), &rob, &body).await;
    assert_eq!(locked.status, 403);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn permissions_are_told_to_whoever_may_push() {
    let scene = Scene::new(Dialect::Ghes314).await;
    scene.forge.add_user("rob", Permission::Read);
    let ask = |who: &str| format!("/repos/acme/app/collaborators/{who}/permission");
    for (who, word) in [("ada", "write"), ("rob", "read"), ("acme", "admin")] {
        let answer = scene.get(&ask(who)).await;
        let words = (&answer.body["permission"], &answer.body["role_name"]);
        assert_eq!(words, (&json!(word), &json!(word)), "{who}");
        assert_eq!(answer.body["user"]["login"], who);
    }
    assert_eq!(scene.get(&ask("nobody")).await.status, 404);
    let rob = scene.forge.token_for("rob");
    assert_eq!(scene.get_as(&ask("ada"), &rob).await.status, 403);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn a_draft_is_opened_once_and_found_by_owner_and_branch() {
    let scene = Scene::new(Dialect::Ghes319).await;
    let body = scene.draft("hyla/issue-1-1");
    let made = scene.post(PULLS, body.clone()).await;
    assert_eq!((made.status, &made.body["draft"]), (201, &json!(true)));
    assert_eq!(made.body["head"]["label"], "acme:hyla/issue-1-1");
    let again = scene.post(PULLS, body).await;
    let text = "A pull request already exists for acme:hyla/issue-1-1.";
    assert_eq!(
        (&again.invalid()["code"], &again.invalid()["message"]),
        (&json!("custom"), &json!(text))
    );
    scene.post(PULLS, scene.draft("other")).await;
    let numbers = async |query: &str| {
        let answer = scene.get(&format!("{PULLS}?{query}")).await;
        let pulls = answer.body.as_array().unwrap().iter();
        pulls.map(|pull| pull["number"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers("head=acme:hyla/issue-1-1&state=all").await, [1]);
    assert_eq!(numbers("head=acme:hyla/issue-1").await, [0; 0]);
    assert_eq!(numbers("head=other:other").await, [0; 0]);
    // A head that names no owner is no filter.
    assert_eq!(numbers("head=hyla/issue-1-1").await, [2, 1]);
    assert_eq!(numbers("base=elsewhere").await, [0; 0]);
    scene.forge.person("ada").mark_ready(&scene.repo, 1).await;
    assert_eq!(scene.get(&format!("{PULLS}/1")).await.body["draft"], false);
    assert_eq!(scene.get(&format!("{PULLS}/7")).await.status, 404);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn a_pull_request_that_cannot_be_is_refused_in_githubs_words() {
    let scene = Scene::new(Dialect::Ghes319).await;
    scene.forge.person("hyla").commit(&scene.repo, "topic", [("a", "a")]);
    let open = async |head: &str, base: &str| {
        let body = json!({ "title": "x", "head": head, "base": base, "draft": true });
        scene.post(PULLS, body).await
    };
    assert_eq!(open("absent", "main").await.invalid()["field"], "head");
    assert_eq!(open("topic", "absent").await.invalid()["field"], "base");
    assert_eq!(
        open("main", "topic").await.invalid()["message"],
        "No commits between topic and main"
    );
    scene.forge.refuse_drafts();
    let refused = open("topic", "main").await;
    let text = "Draft pull requests are not supported in this repository.";
    assert_eq!((refused.status, refused.message()), (422, text));
    assert_eq!(scene.forge.pulls(&scene.repo), []);
    let body = json!({ "title": "x", "head": "topic", "base": "main" });
    assert_eq!(scene.post(PULLS, body).await.status, 201);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn a_branch_is_found_by_its_whole_name() {
    let scene = Scene::new(Dialect::Ghes314).await;
    let commit = scene.forge.person("hyla").commit(&scene.repo, "hyla/issue-1-1", [("a", "a")]);
    let found = scene.get("/repos/acme/app/git/ref/heads/hyla/issue-1-1").await;
    assert_eq!((found.status, &found.body["object"]["sha"]), (200, &json!(commit)));
    assert_eq!(scene.get("/repos/acme/app/git/ref/heads/hyla/issue-1").await.status, 404);
    assert_eq!(scene.get("/repos/acme/app/git/ref/heads/hyla").await.status, 404);
    let branch = scene.get("/repos/acme/app/branches/hyla/issue-1-1").await;
    assert_eq!(branch.body["commit"]["sha"], commit);
    assert_eq!(scene.get("/repos/acme/app/branches/hyla").await.status, 404);
    scene.forge.add_label(&scene.repo, "hyla");
    assert_eq!(scene.get("/repos/acme/app/labels/HYLA").await.body["name"], "hyla");
    assert_eq!(scene.get("/repos/acme/app/labels/other").await.status, 404);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn statuses_are_kept_and_check_runs_are_for_apps() {
    let scene = Scene::new(Dialect::Ghes319).await;
    let commit = scene.forge.branch_head(&scene.repo, "main").unwrap();
    let path = format!("/repos/acme/app/statuses/{commit}");
    let long = json!({ "state": "success", "description": "a".repeat(141) });
    assert_eq!(scene.post(&path, long).await.invalid()["field"], "description");
    let good = json!({ "state": "success", "context": "hyla", "description": "It works." });
    assert_eq!(scene.post(&path, good.clone()).await.status, 201);
    let absent = format!("/repos/acme/app/statuses/{}", "0".repeat(40));
    assert_eq!(scene.post(&absent, good).await.status, 422);
    let seen = scene.forge.checks(&scene.repo);
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].name.as_str(), seen[0].state.as_str()), ("hyla", "success"));
    let run = json!({ "name": "hyla", "head_sha": commit });
    assert_eq!(scene.post("/repos/acme/app/check-runs", run).await.status, 403);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn a_moved_repository_is_found_by_its_number_and_an_archived_one_is_read_only() {
    let scene = Scene::new(Dialect::Ghes319).await;
    scene.issue(&[]).await;
    let present = scene.forge.rename_repository(&scene.repo, "tool");
    let moved = scene.get("/repos/acme/app/issues/1").await;
    assert_eq!(moved.status, 301);
    let to = moved.header("location").to_owned();
    assert!(to.contains("/api/v3/repositories/"), "{to}");
    let found = scene.ask(Method::GET, &to, &scene.token, &Value::Null).await;
    assert_eq!((found.status, &found.body["number"]), (200, &json!(1)));
    scene.forge.archive(&present);
    let late = scene.post("/repos/acme/tool/issues/1/comments", json!({ "body": "x" })).await;
    assert_eq!(late.status, 403);
    assert_eq!(scene.get("/repos/acme/tool").await.body["archived"], true);
    scene.forge.delete_repository(&present);
    assert_eq!(scene.get("/repos/acme/tool").await.status, 404);
    scene.forge.assert_clean();
}

#[tokio::test]
async fn graphql_tells_which_pull_requests_close_an_issue() {
    let scene = Scene::new(Dialect::Ghes319).await;
    let number = scene.issue(&[]).await;
    let ada = scene.forge.person("ada");
    for branch in ["one", "two"] {
        ada.commit(&scene.repo, branch, [("b", branch)]);
        ada.open_pull_saying(&scene.repo, (branch, "Fixes #1"), branch, "main").await;
    }
    ada.close(&scene.repo, 3).await;
    let query = "query($owner:String!,$name:String!,$number:Int!){repository(owner:$owner,name:$name){\
                 issue(number:$number){closedByPullRequestsReferences(first:9, includeClosedPrs: true){\
                 nodes{number}}}}}";
    let ask = async |query: &str, name: &str| {
        let variables = json!({ "owner": "acme", "name": name, "number": number });
        let body = json!({ "query": query, "variables": variables });
        scene.ask(Method::POST, "/api/graphql", &scene.token, &body).await
    };
    let nodes = |answer: &Answer| {
        let issue = &answer.body["data"]["repository"]["issue"];
        issue["closedByPullRequestsReferences"]["nodes"].clone()
    };
    let all = nodes(&ask(query, "app").await);
    assert_eq!((&all[0]["number"], &all[1]["state"]), (&json!(2), &json!("CLOSED")));
    assert_eq!(all[0]["author"]["login"], "ada");
    let open = nodes(&ask(&query.replace(", includeClosedPrs: true", ""), "app").await);
    assert_eq!(open.as_array().unwrap().len(), 1);
    let hidden = ask(query, "other").await;
    assert_eq!((hidden.status, &hidden.body["errors"][0]["type"]), (200, &json!("NOT_FOUND")));
    scene.forge.assert_clean();
}
