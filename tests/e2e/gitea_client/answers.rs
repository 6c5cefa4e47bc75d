//! What each call gives when all is well, on every dialect.

use super::*;

#[tokio::test]
async fn the_bot_reads_itself_and_the_repository() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        assert_eq!(scene.client.whoami().await.unwrap(), scene.user("hyla"));
        let repo = scene.client.repository(&scene.repo).await.unwrap();
        assert_eq!(repo.default_branch, "main");
        assert!(repo.can_push && repo.has_pulls && !repo.archived);
        scene.forge.archive(&scene.repo);
        scene.forge.disable_pulls(&scene.repo);
        scene.forge.set_permission(&scene.repo, "hyla", Permission::Read);
        let repo = scene.client.repository(&scene.repo).await.unwrap();
        assert!(!repo.can_push && !repo.has_pulls && repo.archived);
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn an_issue_is_read_with_its_labels_and_state() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let ada = scene.forge.person("ada");
        let number = ada.open_issue(&scene.repo, "It breaks", "Badly.", &["bug", "hyla"]).await;
        let issue = scene.client.issue(&scene.repo, number).await.unwrap();
        assert_eq!(issue.title, "It breaks");
        assert_eq!(issue.body, "Badly.");
        assert_eq!(issue.author, scene.user("ada"));
        assert_eq!(issue.labels, ["bug", "hyla"]);
        assert!(issue.is_open && !issue.is_locked && !issue.is_pull);
        ada.lock(&scene.repo, number);
        ada.close(&scene.repo, number).await;
        let issue = scene.client.issue(&scene.repo, number).await.unwrap();
        assert!(!issue.is_open && issue.is_locked);
        let pull = scene.client.open_draft(&scene.repo, &scene.draft()).await.unwrap();
        assert!(scene.client.issue(&scene.repo, pull.number).await.unwrap().is_pull);
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn label_events_tell_who_did_what_in_order() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        scene.forge.add_user("eve", Permission::Read);
        let number = scene.issue().await;
        let (ada, eve) = (scene.forge.person("ada"), scene.forge.person("eve"));
        ada.add_label(&scene.repo, number, "hyla").await;
        ada.add_label(&scene.repo, number, "hyla").await;
        ada.add_label(&scene.repo, number, "bug").await;
        eve.remove_label(&scene.repo, number, "hyla").await;
        ada.comment(&scene.repo, number, "1").await;
        ada.add_label(&scene.repo, number, "hyla").await;
        ada.clear_labels(&scene.repo, number).await;
        let history = scene.client.history(&scene.repo, number, "hyla").await.unwrap();
        let events = history.labels;
        let told: Vec<_> = events.iter().map(|e| (e.actor.login.as_str(), e.change)).collect();
        use LabelChange::{Added, Removed};
        assert_eq!(told, [("ada", Added), ("eve", Removed), ("ada", Added), ("ada", Removed)]);
        assert!(events.is_sorted_by_key(|event| (event.at, event.id)));
        let history = scene.client.history(&scene.repo, number, "none").await.unwrap();
        assert!(history.labels.is_empty());
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn an_issue_without_a_timeline_has_no_label_events() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let number = scene.issue().await;
        let history = scene.client.history(&scene.repo, number, "hyla").await.unwrap();
        assert!(history.labels.is_empty() && history.pulls.is_empty());
    }
}

#[tokio::test]
async fn a_long_timeline_is_read_to_its_end() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    let ada = scene.forge.person("ada");
    for i in 0..120 {
        ada.comment(&scene.repo, number, &format!("Comment {i}")).await;
    }
    ada.add_label(&scene.repo, number, "hyla").await;
    let history = scene.client.history(&scene.repo, number, "hyla").await.unwrap();
    let events = history.labels;
    assert_eq!(events.len(), 1);
    assert_eq!(scene.n_requests("GET", "/timeline"), 4);
    let comments = scene.client.comments(&scene.repo, number).await.unwrap();
    assert_eq!(comments.len(), 120);
    assert_eq!(comments[119].body, "Comment 119");
    assert!(comments.is_sorted_by_key(|comment| comment.created_at));
    scene.forge.assert_clean();
}

#[tokio::test]
async fn a_list_that_never_ends_is_an_error() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    let entry = r#"[{"id": 1, "type": "comment", "created_at": "2026-01-05T09:00:00Z"}]"#;
    let fault = Fault::Status { status: 200, body: entry.into(), headers: vec![] };
    scene.forge.fault(Matcher::new("GET", "*/timeline"), fault, usize::MAX);
    let error = scene.client.history(&scene.repo, number, "hyla").await.unwrap_err();
    assert!(error.to_string().contains("more than 200 pages"), "{error}");
    assert_eq!(scene.n_requests("GET", "/timeline"), 200);
}

#[tokio::test]
async fn comments_are_written_read_edited_and_deleted() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let number = scene.issue().await;
        let id = scene.client.comment(&scene.repo, number, "Working…\n\n<b>&</b>").await.unwrap();
        let comments = scene.client.comments(&scene.repo, number).await.unwrap();
        assert_eq!(comments.len(), 1);
        assert_eq!((comments[0].id, comments[0].author.login.as_str()), (id, "hyla"));
        scene.client.edit_comment(&scene.repo, id, "Done.").await.unwrap();
        assert_eq!(scene.forge.comments(&scene.repo, number)[0].body, "Done.");
        for _ in 0..2 {
            scene.client.delete_comment(&scene.repo, id).await.unwrap();
            assert!(scene.forge.comments(&scene.repo, number).is_empty());
        }
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn a_reaction_that_is_there_is_no_error() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let number = scene.issue().await;
        scene.client.react(&scene.repo, number, "eyes").await.unwrap();
        scene.client.react(&scene.repo, number, "eyes").await.unwrap();
        assert_eq!(scene.forge.reactions(&scene.repo, number), [("hyla".into(), "eyes".into())]);
        let error = scene.client.react(&scene.repo, number, "tada").await.unwrap_err();
        assert!(matches!(error, Error::Denied { .. }), "{error}");
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn an_admin_bot_learns_every_permission() {
    for dialect in Dialect::ALL {
        let scene = Scene::with_admin_bot(dialect).await;
        scene.forge.add_site_admin("root");
        let table = [
            ("none", Permission::None, Permission::None),
            ("reader", Permission::Read, Permission::Read),
            ("writer", Permission::Write, Permission::Write),
            ("admin", Permission::Admin, Permission::Admin),
        ];
        for (login, given, _) in table {
            scene.forge.add_user(login, given);
        }
        scene.forge.make_private(&scene.repo);
        for (login, _, expected) in table {
            let user = scene.user(login);
            let permission = scene.client.permission(&scene.repo, &user).await.unwrap();
            assert_eq!(permission, expected, "{login}");
        }
        for login in ["root", "acme"] {
            let user = scene.user(login);
            let permission = scene.client.permission(&scene.repo, &user).await.unwrap();
            assert_eq!(permission, Permission::Admin, "{login}");
        }
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn people_who_are_gone_have_no_permission() {
    let scene = Scene::with_admin_bot(Dialect::Gitea127).await;
    // A login proves nothing without its id.
    scene.forge.add_user("Ghost", Permission::Admin);
    for (id, login) in [(-1, "Ghost"), (0, ""), (-2, "gitea-actions"), (9999, "left")] {
        let user = User { id, login: login.into() };
        let permission = scene.client.permission(&scene.repo, &user).await.unwrap();
        assert_eq!(permission, Permission::None, "{login}");
    }
    scene.forge.assert_clean();
}

#[tokio::test]
async fn a_login_that_passed_to_someone_else_is_an_error() {
    let scene = Scene::with_admin_bot(Dialect::Gitea127).await;
    let former = scene.user("ada");
    scene.forge.rename_user("ada", "lovelace");
    scene.forge.add_user("ada", Permission::Admin);
    let error = scene.client.permission(&scene.repo, &former).await.unwrap_err();
    assert!(matches!(error, Error::Answer { .. }), "{error}");
}

#[tokio::test]
async fn a_bot_without_admin_rights_learns_who_may_write() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        scene.forge.add_user("eve", Permission::Read);
        let table = [
            ("ada", Permission::Write),
            ("eve", Permission::None),
            ("acme", Permission::Admin),
            ("hyla", Permission::Write),
        ];
        for (login, expected) in table {
            let user = scene.user(login);
            let permission = scene.client.permission(&scene.repo, &user).await.unwrap();
            assert_eq!(permission, expected, "{login}");
        }
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn a_token_limited_to_repositories_learns_who_may_write() {
    let scene = Scene::with_admin_bot(Dialect::Forgejo15).await;
    let token = scene.forge.token_limited_to("hyla", &[&scene.repo]);
    let client = client(&scene.forge, Dialect::Forgejo15, &token);
    let permission = client.permission(&scene.repo, &scene.user("ada")).await.unwrap();
    assert_eq!(permission, Permission::Write);
}

#[tokio::test]
async fn an_organisations_team_readers_never_pass_as_writers() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        scene.forge.add_organization("guild");
        let repo = scene.forge.add_repository("guild", "tool", [("a", "a")]);
        scene.forge.add_user("eve", Permission::Read);
        scene.forge.add_user("mel", Permission::Read);
        scene.forge.add_team_reader(&repo, "eve");
        let error = scene.client.permission(&repo, &scene.user("eve")).await.unwrap_err();
        assert!(matches!(error, Error::Denied { .. }), "{error}");
        let permission = scene.client.permission(&repo, &scene.user("mel")).await.unwrap();
        assert_eq!(permission, Permission::None);
        scene.forge.set_permission(&repo, "hyla", Permission::Admin);
        let permission = scene.client.permission(&repo, &scene.user("eve")).await.unwrap();
        assert_eq!(permission, Permission::Read);
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn a_branchs_head_is_its_commit_or_none() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let commit = scene.forge.person("ada").commit(&scene.repo, "a/b#c%2Fd", [("x", "y")]);
        let head = scene.client.branch_head(&scene.repo, "a/b#c%2Fd").await.unwrap();
        assert_eq!(head.unwrap().0, commit);
        assert!(scene.client.branch_head(&scene.repo, "nowhere").await.unwrap().is_none());
        let hidden = RepoName { owner: "acme".into(), name: "none".into() };
        let error = scene.client.branch_head(&hidden, "main").await.unwrap_err();
        assert!(matches!(error, Error::Missing { .. }), "{error}");
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn a_draft_is_opened_with_the_prefix_once() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let mut draft = scene.draft();
        draft.title = "wip: Mend it".into();
        let pull = scene.client.open_draft(&scene.repo, &draft).await.unwrap();
        assert!(pull.is_draft && pull.is_open && !pull.is_merged);
        assert_eq!(pull.title, "wip: Mend it");
        scene.forge.person("ada").close(&scene.repo, pull.number).await;
        let pull = scene.client.open_draft(&scene.repo, &scene.draft()).await.unwrap();
        assert_eq!(pull.title, "WIP: Mend it");
        assert_eq!(pull.link, format!("{}acme/app/pulls/{}", scene.forge.url(), pull.number));
        assert_eq!(pull.author, scene.user("hyla").id);
        let seen = &scene.forge.pulls(&scene.repo)[1];
        assert_eq!((seen.body.as_str(), seen.base.as_str()), ("For #1.", "main"));
        assert!(scene.forge.diff(&scene.repo, pull.number).contains("+a"));
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn a_prefix_that_the_server_does_not_know_shows_in_the_answer() {
    let scene = Scene::new(Dialect::Gitea127).await;
    scene.forge.set_draft_prefixes(&["Draft:"]);
    let pull = scene.client.open_draft(&scene.repo, &scene.draft()).await.unwrap();
    assert!(!pull.is_draft);
    let mut options = options(&scene.forge, Dialect::Gitea127, &scene.token);
    options.draft_prefix = "Draft:".into();
    scene.forge.person("ada").close(&scene.repo, pull.number).await;
    let client = Gitea::new(options).unwrap();
    let pull = client.open_draft(&scene.repo, &scene.draft()).await.unwrap();
    assert!(pull.is_draft);
    assert_eq!(pull.title, "Draft: Mend it");
}

#[tokio::test]
async fn the_bots_own_open_draft_is_adopted() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let draft = scene.draft();
        let first = scene.client.open_draft(&scene.repo, &draft).await.unwrap();
        let second = scene.client.open_draft(&scene.repo, &draft).await.unwrap();
        assert_eq!(first.number, second.number);
        assert_eq!(scene.forge.pulls(&scene.repo).len(), 1);
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn somebody_elses_pull_request_is_not_adopted() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let draft = scene.draft();
    scene.forge.person("ada").open_pull(&scene.repo, "Mine", &draft.head, "main").await;
    let error = scene.client.open_draft(&scene.repo, &draft).await.unwrap_err();
    assert!(matches!(error, Error::Declined { status: 409, .. }), "{error}");
}

#[tokio::test]
async fn a_pull_request_is_found_by_its_branches_in_any_state() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let (repo, ada) = (&scene.repo, scene.forge.person("ada"));
        let draft = scene.draft();
        let find = || scene.client.pull_by_head(repo, "main", &draft.head);
        assert!(find().await.unwrap().is_none());
        let first = scene.client.open_draft(repo, &draft).await.unwrap();
        assert_eq!(find().await.unwrap().unwrap().number, first.number);
        ada.close(repo, first.number).await;
        ada.delete_branch(repo, &draft.head);
        let closed = find().await.unwrap().unwrap();
        assert!(!closed.is_open && !closed.is_merged && closed.is_draft);
        scene.draft();
        let second = scene.client.open_draft(repo, &draft).await.unwrap();
        assert_eq!(find().await.unwrap().unwrap().number, second.number);
        ada.retitle(repo, second.number, "Ready").await;
        assert!(!find().await.unwrap().unwrap().is_draft);
        ada.merge(repo, second.number).await;
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn a_base_with_a_slash_finds_its_pull_request() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        scene.forge.person("ada").commit(&scene.repo, "release/1", [("r", "1")]);
        let draft = NewDraft { base: "release/1".into(), ..scene.draft() };
        let pull = scene.client.open_draft(&scene.repo, &draft).await.unwrap();
        let again = scene.client.open_draft(&scene.repo, &draft).await.unwrap();
        assert_eq!(pull.number, again.number);
        let other = scene.client.pull_by_head(&scene.repo, "main", &draft.head).await.unwrap();
        assert!(other.is_none());
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn links_use_the_address_for_people() {
    let scene = Scene::below(Dialect::Gitea127, "/git").await;
    let mut options = options(&scene.forge, Dialect::Gitea127, &scene.token);
    options.public_url = Some("https://forge.example.org/code/".parse().unwrap());
    let client = Gitea::new(options).unwrap();
    let pull = client.open_draft(&scene.repo, &scene.draft()).await.unwrap();
    assert_eq!(pull.link, "https://forge.example.org/code/acme/app/pulls/1");
    let again = scene.client.open_draft(&scene.repo, &scene.draft()).await.unwrap();
    assert_eq!(again.link, format!("{}/acme/app/pulls/1", scene.forge.url()));
    scene.forge.assert_clean();
}

#[tokio::test]
async fn open_pull_requests_that_would_close_an_issue_are_named_once() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let number = scene.issue().await;
        let ada = scene.forge.person("ada");
        for branch in ["one", "two", "three"] {
            ada.commit(&scene.repo, branch, [(branch, "x\n")]);
            let words = format!("Fixes #{number}");
            ada.open_pull_saying(&scene.repo, (&words, &words), branch, "main").await;
        }
        ada.close(&scene.repo, number + 1).await;
        ada.rewrite(&scene.repo, number + 2, "Resolves nothing").await;
        ada.retitle(&scene.repo, number + 2, "Nothing").await;
        ada.rewrite(&scene.repo, number + 2, "Resolves nothing").await;
        let history = scene.client.history(&scene.repo, number, "hyla").await.unwrap();
        let [linked] = history.pulls.as_slice() else { panic!("{:?}", history.pulls) };
        assert_eq!((linked.number, linked.author), (number + 3, scene.user("ada").id));
        assert_eq!(linked.repo, scene.repo);
        assert!(linked.link.ends_with(&format!("/acme/app/pulls/{}", number + 3)));
        let pull = scene.client.pull(&scene.repo, linked.number).await.unwrap().unwrap();
        assert_eq!((pull.head.as_str(), pull.is_open), ("three", true));
        let head = scene.forge.branch_head(&scene.repo, "three");
        assert_eq!(pull.head_commit.map(|commit| commit.0), head);
        assert!(scene.client.pull(&scene.repo, 999).await.unwrap().is_none());
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn a_timeline_with_entries_that_the_server_could_not_load_is_read() {
    let scene = Scene::new(Dialect::Forgejo15).await;
    let number = scene.issue().await;
    let entries = r#"[null,
        {"id": 1, "type": "pull_ref", "ref_action": "closes", "created_at": "2026-01-05T09:00:00Z",
         "ref_issue": {"number": 8, "state": "open", "pull_request": {"merged": false},
                       "user": {"id": 5, "login": "eve"},
                       "repository": {"full_name": "other/place"}}},
        {"id": 2, "type": "issue_ref", "ref_action": "none", "created_at": "2026-01-05T09:00:00Z",
         "ref_issue": {"number": 9, "state": "open", "pull_request": null}},
        {"id": 3, "type": "commit_ref", "ref_action": "closes", "ref_issue": null,
         "created_at": "2026-01-05T09:00:00Z"}]"#;
    let fault = Fault::Status { status: 200, body: entries.into(), headers: vec![] };
    scene.forge.fault(Matcher::new("GET", "*/timeline"), fault, 1);
    let history = scene.client.history(&scene.repo, number, "hyla").await.unwrap();
    assert!(history.labels.is_empty());
    let [linked] = history.pulls.as_slice() else { panic!("{:?}", history.pulls) };
    assert_eq!((linked.repo.to_string().as_str(), linked.number), ("other/place", 8));
}

#[tokio::test]
async fn open_issues_with_a_label_are_listed_to_the_last_page_and_no_others() {
    for dialect in Dialect::ALL {
        let scene = Scene::new(dialect).await;
        let ada = scene.forge.person("ada");
        let labelled = scene.client.labelled(&scene.repo, "hyla").await.unwrap();
        assert!(labelled.is_empty());
        for number in 0..70 {
            let labels: &[&str] = if number % 7 == 0 { &["bug"] } else { &["hyla"] };
            ada.open_issue(&scene.repo, "It breaks", "Badly.", labels).await;
        }
        ada.close(&scene.repo, 2).await;
        ada.commit(&scene.repo, "topic", [("x", "x\n")]);
        let pull = ada.open_pull(&scene.repo, "Mend it", "topic", "main").await;
        ada.add_label(&scene.repo, pull, "hyla").await;
        let labelled = scene.client.labelled(&scene.repo, "hyla").await.unwrap();
        assert_eq!(labelled.len(), 59);
        assert!(labelled.iter().all(|issue| issue.is_open && issue.labels == ["hyla"]));
        scene.forge.assert_clean();
    }
}

#[tokio::test]
async fn a_repository_that_was_renamed_is_named_and_not_followed() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let number = scene.issue().await;
    let present = scene.forge.rename_repository(&scene.repo, "elsewhere");
    let error = scene.client.issue(&scene.repo, number).await.unwrap_err();
    let Error::Moved { to, .. } = &error else { panic!("{error}") };
    assert_eq!(*to, present.to_string());
    scene.forge.assert_clean();
}
