//! Webhooks as GitHub sends them: which events an act makes, their payloads, their headers.
//!
//! A signature is over the body as it is sent, so over the form if it is one. Without a secret there is none.

use bot::job::RepoName;
use serde_json::{Value, json};

use super::super::Shared;
use super::super::hooks::{Act, ContentType, Delivered, Event, Hook, Target, signature};
use super::super::lock;
use super::super::state::{Issue, Repo, State};
use super::shapes::node;

/// What hooks hear of an act: one event for each label, and the others besides.
pub(in super::super) fn events(
    state: &State,
    shared: &Shared,
    repo: &RepoName,
    number: u64,
    sender: i64,
    act: &Act,
) -> Vec<Event> {
    let (home, issue) = about(state, repo, number);
    let event = |action: &str, more: Value| {
        let (coarse, mut payload) = match &issue.pull {
            None => {
                let issue = state.github_issue(home, issue);
                ("issues", json!({ "action": action, "issue": issue }))
            }
            Some(pull) => {
                let pull = state.full_pull(&shared.git, home, issue, pull);
                let number = issue.number;
                let payload = json!({ "action": action, "number": number, "pull_request": pull });
                ("pull_request", payload)
            }
        };
        if let Value::Object(more) = more {
            payload.as_object_mut().expect("it was just made as one").extend(more);
        }
        finish(state, home, sender, coarse, payload)
    };
    let labels = |action: &'static str, labels: &[i64]| {
        let labels: Vec<i64> = labels.to_vec();
        labels
            .into_iter()
            .map(|label| event(action, json!({ "label": state.github_label(home, label) })))
            .collect::<Vec<Event>>()
    };
    match act {
        Act::Opened => {
            let mut events = vec![event("opened", json!({}))];
            events.extend(labels("labeled", &issue.labels));
            events
        }
        Act::LabelsAdded(fresh) => labels("labeled", fresh),
        Act::LabelsRemoved(gone) | Act::LabelsCleared(gone) => labels("unlabeled", gone),
        Act::Closed => vec![event("closed", json!({}))],
        Act::Reopened => vec![event("reopened", json!({}))],
        Act::Edited { field, from } => {
            vec![event("edited", json!({ "changes": { *field: { "from": from } } }))]
        }
        Act::Ready => vec![event("ready_for_review", json!({}))],
        Act::Assigned(user) => {
            vec![event("assigned", json!({ "assignee": state.github_user(*user) }))]
        }
        Act::Unassigned(user) => {
            vec![event("unassigned", json!({ "assignee": state.github_user(*user) }))]
        }
        Act::Pushed { before, after } => {
            vec![event("synchronize", json!({ "before": before, "after": after }))]
        }
    }
}

/// Something about a comment, on an issue or on a pull request alike.
pub(in super::super) fn comment_event(
    state: &State,
    repo: &RepoName,
    number: u64,
    comment: i64,
    action: &str,
) -> Event {
    let (home, issue) = about(state, repo, number);
    let entry = issue.entries.iter().find(|entry| entry.id == comment);
    let entry = entry.expect("events are about what is there");
    let mut payload = json!({
        "action": action,
        "issue": state.github_issue(home, issue),
        "comment": state.github_comment(home, issue, entry),
    });
    if action == "edited" {
        payload["changes"] = json!({ "body": { "from": "" } });
    }
    finish(state, home, entry.user, "issue_comment", payload)
}

/// What a fresh hook hears at once.
pub(in super::super) fn ping(state: &State, hook: &Hook, repo: Option<&RepoName>) -> Event {
    let content_type = match hook.content_type {
        ContentType::Json => "json",
        ContentType::Form => "form",
    };
    let mut config = json!({ "content_type": content_type, "insecure_ssl": "0", "url": hook.url });
    if !hook.secret.is_empty() {
        config["secret"] = json!("********");
    }
    let mut payload = json!({
        "zen": "Approachable is better than simple.",
        "hook_id": hook.id,
        "hook": {
            "type": target_name(hook.target, ("Repository", "App")),
            "id": hook.id,
            "name": "web",
            "active": true,
            "events": ["issue_comment", "issues", "pull_request"],
            "config": config,
            "updated_at": "2026-01-05T09:00:00Z",
            "created_at": "2026-01-05T09:00:00Z",
        },
    });
    if let Target::App(id) = hook.target {
        payload["hook"]["app_id"] = json!(id);
    }
    if let Some(repo) = repo {
        let home = state.repo(&repo.owner, &repo.name).expect("events are about what is there");
        payload["repository"] = state.github_repository(home);
        payload["sender"] = state.github_user(home.owner);
    }
    let (coarse, fine) = ("ping", "ping");
    Event { repo: repo.cloned(), hook: Some(hook.id), coarse, fine, payload }
}

/// The text for one hook: the app's is told besides which installation it is about.
pub(in super::super) fn payload(state: &State, event: &Event, hook: &Hook) -> String {
    let mut payload = event.payload.clone();
    let repo = event.repo.as_ref().and_then(|name| state.repo(&name.owner, &name.name));
    let installation = repo.and_then(|repo| state.github.installation(repo.id));
    if let (Target::App(_), Some(id)) = (hook.target, installation) {
        payload["installation"] = json!({ "id": id, "node_id": node("IN", id) });
    }
    payload.to_string()
}

/// All headers of a delivery but the type of its body.
pub(in super::super) fn headers(
    shared: &Shared,
    hook: &Hook,
    delivered: &Delivered,
    body: &str,
) -> Vec<(String, String)> {
    let (version, host) = {
        let state = lock(&shared.state);
        let (_, host) = state.root_url.split_once("://").unwrap_or_default();
        (state.dialect.version(), host.to_owned())
    };
    let target = match hook.target {
        Target::Repository(id) | Target::App(id) => id.to_string(),
    };
    let mut headers = vec![
        ("Accept", "*/*".to_owned()),
        ("User-Agent", "GitHub-Hookshot/5ec2e70".to_owned()),
        ("X-GitHub-Delivery", delivered.id.clone()),
        ("X-GitHub-Enterprise-Host", host),
        ("X-GitHub-Enterprise-Version", version.to_owned()),
        ("X-GitHub-Event", delivered.coarse.to_owned()),
        ("X-GitHub-Hook-ID", hook.id.to_string()),
        ("X-GitHub-Hook-Installation-Target-ID", target),
        (
            "X-GitHub-Hook-Installation-Target-Type",
            target_name(hook.target, ("repository", "integration")).to_owned(),
        ),
    ];
    if !hook.secret.is_empty() {
        let signed = signature(&hook.secret, body.as_bytes());
        headers.push(("X-Hub-Signature-256", format!("sha256={signed}")));
    }
    headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn target_name(target: Target, (repository, app): (&'static str, &'static str)) -> &'static str {
    match target {
        Target::Repository(_) => repository,
        Target::App(_) => app,
    }
}

fn about<'a>(state: &'a State, repo: &RepoName, number: u64) -> (&'a Repo, &'a Issue) {
    let home = state.repo(&repo.owner, &repo.name).expect("events are about what is there");
    (home, home.issue(number).expect("events are about what is there"))
}

fn finish(
    state: &State,
    repo: &Repo,
    sender: i64,
    coarse: &'static str,
    mut payload: Value,
) -> Event {
    payload["repository"] = state.github_repository(repo);
    if state.is_organization(repo.owner) {
        let owner = state.github_user(repo.owner);
        payload["organization"] = json!({
            "login": owner["login"],
            "id": owner["id"],
            "node_id": owner["node_id"],
            "avatar_url": owner["avatar_url"],
            "description": null,
        });
    }
    payload["sender"] = state.github_user(sender);
    Event { repo: Some(repo.name.clone()), hook: None, coarse, fine: coarse, payload }
}
