//! What a hook was told and what came of it, for whoever wants to have it told again: the app's hook, and those of
//! repositories.
//!
//! A delivery that was held back looks like one that found nobody: GitHub never repeats it by itself.

use std::sync::Arc;

use bot::job::RepoName;
use serde_json::{Value, json};

use super::super::hooks::{ContentType, Delivered, Hook, send};
use super::super::server::Reply;
use super::super::shapes::time;
use super::super::state::{Access, State};
use super::super::{Shared, lock};
use super::Call;

/// What GitHub calls a delivery that was not answered.
const UNANSWERED: (u16, &str) = (502, "failed to connect to host");

/// Answers requests below a hook's own path.
pub(super) fn answer(
    shared: &Arc<Shared>,
    state: &mut State,
    hook: &Hook,
    method: &str,
    rest: &[&str],
    query: &[(String, String)],
) -> Option<Reply> {
    let find = |id: &str| {
        let all = lock(&shared.deliveries);
        all.iter().find(|it| it.hook == hook.id && it.number.to_string() == id).cloned()
    };
    match (method, rest) {
        ("GET", ["config"]) => {
            let content_type = match hook.content_type {
                ContentType::Json => "json",
                ContentType::Form => "form",
            };
            let mut shape = json!({
                "content_type": content_type,
                "insecure_ssl": "0",
                "url": hook.url,
            });
            if !hook.secret.is_empty() {
                shape["secret"] = json!("********");
            }
            Some(Reply::json(200, &shape))
        }
        ("GET", ["deliveries"]) => Some(list(shared, state, hook, query)),
        ("GET", ["deliveries", id]) => Some(match find(id) {
            Some(delivered) => Reply::json(200, &whole(state, hook, &delivered)),
            None => state.refused(404, "Not Found"),
        }),
        ("POST", ["deliveries", id, "attempts"]) => Some(match find(id) {
            Some(delivered) => {
                let again = state.again(delivered);
                let shared_there = Arc::clone(shared);
                lock(&shared.pending).spawn(async move {
                    send(&shared_there, again).await;
                });
                Reply::json(202, &json!({}))
            }
            None => state.refused(404, "Not Found"),
        }),
        _ => None,
    }
}

/// The newest first, page by page. The cursor names the last delivery of the page before.
fn list(shared: &Shared, state: &State, hook: &Hook, query: &[(String, String)]) -> Reply {
    let parameter =
        |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let size = parameter("per_page").and_then(|size| size.parse().ok()).unwrap_or(30_usize);
    let size = size.clamp(1, super::PAGE);
    let cursor = parameter("cursor").map(|cursor| cursor.trim_start_matches("v1_").parse());
    let before = match cursor {
        None => i64::MAX,
        Some(Ok(before)) => before,
        Some(Err(_)) => return state.refused(400, "Invalid cursor"),
    };
    let is_success = |it: &Delivered| it.status.is_some_and(|status| (200..300).contains(&status));
    let mut found: Vec<Delivered> = lock(&shared.deliveries)
        .iter()
        .filter(|it| it.hook == hook.id && it.number < before)
        .filter(|it| match parameter("status") {
            Some("success") => is_success(it),
            Some(_) => !is_success(it),
            None => true,
        })
        .cloned()
        .collect();
    found.sort_by_key(|it| std::cmp::Reverse(it.number));
    let more = found.len() > size;
    found.truncate(size);
    let shapes: Value = found.iter().map(|it| item(state, it)).collect();
    let reply = Reply::json(200, &shapes);
    let Some(last) = found.last().filter(|_| more) else { return reply };
    let path = match hook.target {
        super::super::hooks::Target::App(_) => "app/hook".to_owned(),
        super::super::hooks::Target::Repository(id) => {
            format!("repositories/{id}/hooks/{}", hook.id)
        }
    };
    let status = parameter("status").map(|it| format!("&status={it}")).unwrap_or_default();
    let next = format!(
        "<{}/api/v3/{path}/deliveries?per_page={size}{status}&cursor=v1_{}>; rel=\"next\"",
        state.root_url, last.number
    );
    reply.with("link", next)
}

fn item(state: &State, delivered: &Delivered) -> Value {
    let repo = delivered.repo.as_ref().and_then(|name| state.repo(&name.owner, &name.name));
    let is_app = state.github.app_hook().is_some_and(|hook| hook.id == delivered.hook);
    let installation = repo.filter(|_| is_app);
    let installation = installation.and_then(|repo| state.github.installation(repo.id));
    let (status_code, status) = match delivered.status {
        Some(code) if (200..300).contains(&code) => (code, "OK"),
        Some(code) => (code, "Invalid HTTP Response"),
        None => UNANSWERED,
    };
    json!({
        "id": delivered.number,
        "guid": delivered.id,
        "delivered_at": time(delivered.at),
        "redelivery": delivered.is_again,
        "duration": 0.05,
        "status": status,
        "status_code": status_code,
        "event": delivered.coarse,
        "action": Some(&delivered.action).filter(|action| !action.is_empty()),
        "installation_id": installation,
        "repository_id": repo.map(|repo| repo.id),
        "throttled_at": null,
    })
}

fn whole(state: &State, hook: &Hook, delivered: &Delivered) -> Value {
    let mut shape = item(state, delivered);
    let payload: Value = serde_json::from_str(&delivered.payload).unwrap_or_default();
    shape["url"] = json!(hook.url);
    shape["request"] = json!({
        "headers": {
            "X-GitHub-Delivery": delivered.id,
            "X-GitHub-Event": delivered.coarse,
            "X-GitHub-Hook-ID": hook.id.to_string(),
        },
        "payload": payload,
    });
    shape["response"] = json!({
        "headers": {},
        "payload": delivered.status.map(|_| delivered.answer.as_str()),
    });
    shape
}

impl Call<'_> {
    /// The hooks of a repository, for whoever administers it.
    pub(super) fn hooks(
        &mut self,
        repo: &RepoName,
        rest: &[&str],
        access: Access,
    ) -> Option<Reply> {
        if access < Access::Admin {
            return Some(self.missing());
        }
        let [id, rest @ ..] = rest else { return None };
        let hooks = &self.repo(repo).hooks;
        let Some(hook) = hooks.iter().find(|hook| hook.id.to_string() == *id).cloned() else {
            return Some(self.missing());
        };
        answer(self.shared, self.state, &hook, self.method, rest, &self.query)
    }
}
