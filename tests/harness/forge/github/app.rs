//! What the App asks as itself: who it is, where it is installed, a token for an installation.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::TimeDelta;
use serde_json::{Value, json};

use super::super::Shared;
use super::super::server::Reply;
use super::super::shapes::time;
use super::super::state::{Grant, State, Token};
use super::deliveries;
use super::shapes::node;
use super::world::{App, Installation};

/// How long an installation token is good.
const LIFE: TimeDelta = TimeDelta::hours(1);

/// Answers the App. None for what this fake does not know.
pub(super) fn answer(
    shared: &Arc<Shared>,
    state: &mut State,
    method: &str,
    segments: &[&str],
    query: &[(String, String)],
    body: &Value,
) -> Option<Reply> {
    let app = state.github.app.as_ref()?;
    let found = |installation: Option<&Installation>| match installation {
        Some(installation) => Reply::json(200, &state.installation_shape(app, installation)),
        None => state.refused(404, "Not Found"),
    };
    match (method, segments) {
        ("GET", ["app"]) => Some(Reply::json(200, &state.app_shape(app))),
        ("GET", ["app", "installations"]) => {
            let shapes = app.installations.iter();
            let shapes = shapes.map(|it| state.installation_shape(app, it));
            Some(Reply::json(200, &shapes.collect()))
        }
        ("GET", ["app", "installations", id]) => {
            Some(found(app.installations.iter().find(|it| it.id.to_string() == *id)))
        }
        ("GET", ["repos", owner, name, "installation"]) => {
            if let Some(present) = state.moved_to(owner, name) {
                let id = state.repo(&present.owner, &present.name)?.id;
                let to = format!("{}/api/v3/repositories/{id}/installation", state.root_url);
                return Some(state.refused(301, "Moved Permanently").with("location", to));
            }
            let repo = state.repo(owner, name).filter(|repo| !repo.is_gone);
            Some(found(
                repo.and_then(|repo| {
                    app.installations.iter().find(|it| it.repos.contains(&repo.id))
                }),
            ))
        }
        ("GET", ["orgs" | "users", login, "installation"]) => {
            let account = state.user_by_login(login).map(|user| user.id);
            Some(found(app.installations.iter().find(|it| Some(it.account) == account)))
        }
        ("POST", ["app", "installations", id, "access_tokens"]) => {
            let id = id.parse().unwrap_or_default();
            Some(match ask(state, id, body) {
                Ok((token, shape)) => {
                    state.tokens.push(token);
                    Reply::json(201, &shape)
                }
                Err(reply) => reply,
            })
        }
        (_, ["app", "hook", rest @ ..]) => {
            let hook = app.hook.clone();
            let Some(hook) = hook else { return Some(state.refused(404, "Not Found")) };
            deliveries::answer(shared, state, &hook, method, rest, query)
        }
        _ => None,
    }
}

/// A token for some or all repositories of an installation, with some or all of the App's permissions.
fn ask(state: &mut State, id: i64, body: &Value) -> Result<(Token, Value), Reply> {
    let number = state.id();
    let app = state.github.app.as_ref().expect("it is asking");
    let installation = app.installations.iter().find(|it| it.id == id);
    let installation = installation.ok_or_else(|| state.refused(404, "Not Found"))?;
    if app.is_suspended {
        return Err(state.refused(403, "This installation has been suspended"));
    }
    let unknown = || {
        state.refused(
            422,
            "There is at least one repository that does not exist or is not accessible to the parent installation.",
        )
    };
    let mut only = Vec::new();
    for name in body["repositories"].as_array().into_iter().flatten() {
        let owner = &state.user(installation.account).login;
        let repo = state.repo(owner, name.as_str().unwrap_or_default());
        only.push(repo.map_or(0, |repo| repo.id));
    }
    let ids = body["repository_ids"].as_array().into_iter().flatten();
    only.extend(ids.map(|id| id.as_i64().unwrap_or_default()));
    if only.iter().any(|id| !installation.repos.contains(id)) {
        return Err(unknown());
    }
    let is_selected = !only.is_empty();
    if !is_selected {
        only = installation.repos.clone();
    }
    let mut permissions = app.permissions.clone();
    if let Some(wanted) = body["permissions"].as_object() {
        let wanted = wanted
            .iter()
            .map(|(name, level)| (name.clone(), level.as_str().unwrap_or_default().to_owned()));
        let wanted: BTreeMap<String, String> = wanted.collect();
        let has = |name: &str, level: &str| {
            let own = app.permissions.get(name).map(String::as_str);
            own == Some(level) || (own == Some("write") && level == "read")
        };
        if !wanted.iter().all(|(name, level)| has(name, level)) {
            let message = "The permissions requested are not granted to this installation.";
            return Err(state.refused(422, message));
        }
        permissions = wanted;
        permissions.insert("metadata".to_owned(), "read".to_owned());
    }
    let expires_at = state.github.now() + LIFE;
    // Long and recognisable, so that a sighting is one. Nobody may count on a length or an alphabet.
    let value = format!("ghs_5ec2e7{number:030x}.{number:060x}-_");
    let mut shape = json!({
        "token": value,
        "expires_at": time(expires_at),
        "permissions": permissions,
        "repository_selection": "selected",
    });
    if is_selected {
        let repos = state.repos.iter().filter(|repo| only.contains(&repo.id));
        shape["repositories"] = repos.map(|repo| state.github_repository(repo)).collect();
    }
    let token = Token {
        value,
        user: app.user,
        scopes: vec![],
        only: Some(only),
        grant: Some(Grant { permissions, expires_at }),
        is_revoked: false,
    };
    Ok((token, shape))
}

impl State {
    pub(super) fn app_shape(&self, app: &App) -> Value {
        // Whoever owns the first repository with the app made it.
        let owner = app.installations.first().map_or(app.user, |it| it.account);
        json!({
            "id": app.id,
            "slug": app.slug,
            "node_id": node("A", app.id),
            "client_id": format!("Iv1.{:016x}", app.id),
            "owner": self.github_user(owner),
            "name": app.slug,
            "description": "",
            "external_url": "https://example.org",
            "html_url": format!("{}/github-apps/{}", self.root_url, app.slug),
            "created_at": "2026-01-05T09:00:00Z",
            "updated_at": "2026-01-05T09:00:00Z",
            "permissions": app.permissions,
            "events": app.events,
            "installations_count": app.installations.len(),
        })
    }

    fn installation_shape(&self, app: &App, installation: &Installation) -> Value {
        let root = &self.root_url;
        let id = installation.id;
        let account = self.github_user(installation.account);
        json!({
            "id": id,
            "account": account,
            "repository_selection": "selected",
            "access_tokens_url": format!("{root}/api/v3/app/installations/{id}/access_tokens"),
            "repositories_url": format!("{root}/api/v3/installation/repositories"),
            "html_url": format!("{root}/github-apps/{}/installations/{id}", app.slug),
            "app_id": app.id,
            "app_slug": app.slug,
            "target_id": installation.account,
            "target_type": account["type"],
            "permissions": app.permissions,
            "events": app.events,
            "created_at": "2026-01-05T09:00:00Z",
            "updated_at": "2026-01-05T09:00:00Z",
            "single_file_name": null,
            "has_multiple_single_files": false,
            "single_file_paths": [],
            "suspended_by": null,
            "suspended_at": app.is_suspended.then_some("2026-02-01T09:00:00Z"),
        })
    }
}
