//! The REST calls: who asks, whether the token may, and which route it is. The routes themselves are in `issues` and
//! `pulls`.
//!
//! An operation that the schemas know but this fake does not is refused as loudly as an unknown one.

use bot::job::RepoName;
use serde_json::{Value, json};
use url::form_urlencoded;

use super::hooks::Event;
use super::schema::{decode, segments};
use super::server::{Reply, Request};
use super::state::{Access, Repo, State, Token, UserKind};
use super::{Dialect, Shared, lock};

/// A request whose token is good.
pub(super) struct Ask<'a> {
    pub shared: &'a Shared,
    pub state: &'a mut State,
    pub user: i64,
    pub token: Token,
    pub method: &'a str,
    pub query: Vec<(String, String)>,
    pub body: Value,
    /// What hooks will hear.
    pub events: Vec<Event>,
}

/// Answers a request below `/api/v1`.
pub(super) fn answer(shared: &Shared, asked: &Request, authorization: &str) -> (Reply, Vec<Event>) {
    let path = asked.path.strip_prefix("/api/v1").unwrap_or_default();
    let query: Vec<(String, String)> =
        form_urlencoded::parse(asked.query.as_bytes()).into_owned().collect();
    let wrong = shared.checker.check(&asked.method, path, &query, &asked.body);
    if let Some(first) = wrong.first() {
        let reply = shared.strange(asked, first);
        lock(&shared.violations).extend(wrong.into_iter().skip(1));
        return (reply, vec![]);
    }
    let mut state = lock(&shared.state);
    let Some(token) = bearer(&state, authorization) else {
        let message = match authorization {
            "" => "token is required",
            _ => "invalid username, password or token",
        };
        return (refusal(&state, 401, message), vec![]);
    };
    let segments = segments(path);
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    if let Some(reply) = missing_scope(&state, &token, &asked.method, &segments) {
        return (reply, vec![]);
    }
    let mut ask = Ask {
        shared,
        state: &mut state,
        user: token.user,
        token,
        method: &asked.method,
        query,
        body: serde_json::from_slice(&asked.body).unwrap_or(Value::Null),
        events: vec![],
    };
    let reply = ask.route(&segments);
    let events = ask.events;
    drop(state);
    let reply = reply.unwrap_or_else(|| shared.strange(asked, "this fake does not know it"));
    (reply.with("cache-control", "max-age=0, private, must-revalidate, no-transform"), events)
}

impl Ask<'_> {
    fn route(&mut self, segments: &[&str]) -> Option<Reply> {
        match (self.method, segments) {
            ("GET", ["version"]) => {
                let version = match self.state.dialect {
                    Dialect::Gitea124 => "1.24.7",
                    Dialect::Gitea127 => "1.27.0",
                    Dialect::Forgejo15 => "15.0.3+gitea-1.22.0",
                    Dialect::Ghes314 | Dialect::Ghes319 => return None,
                };
                Some(Reply::json(200, &json!({ "version": version })))
            }
            ("GET", ["user"]) => Some(Reply::json(200, &self.state.user_shape_of(self.user))),
            ("GET", ["orgs", name, "labels"]) => Some(self.shared_labels(name)),
            (_, ["repos", owner, name, rest @ ..]) => self.in_repo(owner, name, rest),
            _ => None,
        }
    }

    fn in_repo(&mut self, owner: &str, name: &str, rest: &[&str]) -> Option<Reply> {
        if let Some(present) = self.state.moved_to(owner, name) {
            let rest: String = rest.iter().map(|segment| format!("/{segment}")).collect();
            let to = format!("{}/api/v1/repos/{present}{rest}", self.state.root_url);
            return Some(Reply::text(301, "text/html; charset=utf-8", "").with("location", to));
        }
        let Some((repo, access)) = self.visible(owner, name) else {
            return Some(self.missing(&[]));
        };
        let is_write = self.method != "GET";
        if is_write && self.repo(&repo).is_archived {
            let message = format!("{repo} is archived and cannot be changed");
            return Some(self.refusal(423, &message));
        }
        match (self.method, rest) {
            ("GET", []) => Some(Reply::json(200, &self.state.repo_shape(self.repo(&repo), access))),
            ("GET", ["branches", branch @ ..]) if !branch.is_empty() => {
                Some(self.branch(&repo, &branch.join("/"), access))
            }
            ("GET", ["collaborators", user, "permission"]) => {
                Some(self.permission(&repo, user, access))
            }
            ("GET", ["assignees"]) => Some(self.assignees(&repo)),
            ("GET", ["teams"]) => Some(self.teams(&repo)),
            ("GET", ["labels"]) => {
                let repo = self.repo(&repo);
                let labels = repo.labels.iter().map(|label| self.state.label_shape(repo, label.id));
                Some(self.page(&labels.collect::<Vec<_>>()))
            }
            (_, ["issues", rest @ ..]) => self.issues(&repo, rest, access),
            (_, ["pulls", rest @ ..]) => self.pulls(&repo, rest, access),
            _ => None,
        }
    }

    /// The repository, if the token may know of it.
    fn visible(&self, owner: &str, name: &str) -> Option<(RepoName, Access)> {
        let repo = self.state.repo(owner, name)?;
        let is_covered = self.token.only.as_ref().is_none_or(|only| only.contains(&repo.id));
        let access = self.state.access(self.user, repo);
        (is_covered && access > Access::None && !repo.is_gone).then(|| (repo.name.clone(), access))
    }

    pub(super) fn repo(&self, repo: &RepoName) -> &Repo {
        self.state.repo(&repo.owner, &repo.name).expect("it was found before")
    }

    fn branch(&self, repo: &RepoName, branch: &str, access: Access) -> Reply {
        let Some(commit) = self.shared.git.head(&self.repo(repo).git_dir, branch) else {
            return self.missing(&[&format!("branch does not exist [name: {branch}]")]);
        };
        let person =
            json!({ "name": "Ada Maintainer", "email": "ada@example.org", "username": "" });
        let shape = json!({
            "name": branch,
            "commit": {
                "id": commit,
                "message": "",
                "url": format!("{}/{repo}/commit/{commit}", self.state.root_url),
                "author": person,
                "committer": person,
                "verification": null,
                "timestamp": "2026-01-05T09:00:00Z",
                "added": null,
                "removed": null,
                "modified": null,
            },
            "protected": false,
            "required_approvals": 0,
            "enable_status_check": false,
            "status_check_contexts": [],
            "user_can_push": access >= Access::Write,
            "user_can_merge": access >= Access::Write,
            "effective_branch_protection_name": "",
        });
        Reply::json(200, &shape)
    }

    /// Site admins, admins of the repository, and everyone about themselves may ask.
    fn permission(&self, repo: &RepoName, login: &str, access: Access) -> Reply {
        let me = self.state.user(self.user);
        let is_admin = access >= Access::Admin && self.token.only.is_none();
        if !is_admin && !me.login.eq_ignore_ascii_case(login) {
            let message = "Only admins can query all permissions, repo admins can query all repo \
                           permissions, collaborators can query only their own";
            return self.refusal(403, message);
        }
        let Some(user) = self.state.user_by_login(login) else {
            return self.missing(&[&format!("user does not exist [uid: 0, name: {login}]")]);
        };
        let access = self.state.access(user.id, self.repo(repo));
        Reply::json(200, &self.state.permission_shape(user, access))
    }

    /// Whoever may write, and members of an organisation's teams that may only read.
    fn assignees(&self, repo: &RepoName) -> Reply {
        let repo = self.repo(repo);
        let people = self.state.users.iter().filter(|user| {
            let is_reader = repo.team_readers.contains(&user.id);
            let is_person = user.kind != UserKind::Organization;
            // A site admin is no collaborator by that alone.
            let is_own = user.kind != UserKind::SiteAdmin || repo.owner == user.id;
            let can_write = is_own && self.state.access(user.id, repo) >= Access::Write;
            is_person && (can_write || is_reader)
        });
        Reply::json(200, &people.map(|user| self.state.user_shape(user)).collect())
    }

    fn teams(&self, repo: &RepoName) -> Reply {
        if !self.state.is_organization(self.repo(repo).owner) {
            return self.refusal(405, "repo is not owned by an organization");
        }
        Reply::json(200, &json!([{ "id": 1, "name": "Owners", "permission": "owner" }]))
    }

    /// An organisation's labels, of which there are none here.
    fn shared_labels(&self, name: &str) -> Reply {
        match self.state.user_by_login(name) {
            Some(user) if user.kind == UserKind::Organization => self.page(&[]),
            Some(_) | None => self.missing(&[]),
        }
    }

    /// One page of a list, with the headers that must not be trusted.
    pub(super) fn page(&self, list: &[Value]) -> Reply {
        let number = |name: &str, default: usize| {
            let found = self.query.iter().find(|(key, _)| key == name);
            found.and_then(|(_, value)| value.parse().ok()).unwrap_or(default)
        };
        let limit = number("limit", 30).clamp(1, 50);
        let start = (number("page", 1).max(1) - 1) * limit;
        let entries: Vec<Value> = list.iter().skip(start).take(limit).cloned().collect();
        let total = list.len().to_string();
        let body = match entries.is_empty() {
            true => Value::Null,
            false => json!(entries),
        };
        Reply::json(200, &body).with("x-total-count", total)
    }

    pub(super) fn refusal(&self, status: u16, message: &str) -> Reply {
        refusal(self.state, status, message)
    }

    pub(super) fn missing(&self, errors: &[&str]) -> Reply {
        let body = json!({
            "errors": errors,
            "message": "The target couldn't be found.",
            "url": format!("{}/api/swagger", self.state.root_url),
        });
        Reply::json(404, &body)
    }

    pub(super) fn text(&self, key: &str) -> String {
        self.body[key].as_str().unwrap_or_default().to_owned()
    }
}

fn refusal(state: &State, status: u16, message: &str) -> Reply {
    let url = format!("{}/api/swagger", state.root_url);
    Reply::json(status, &json!({ "message": message, "url": url }))
}

/// The token of an API request.
fn bearer(state: &State, authorization: &str) -> Option<Token> {
    let value =
        authorization.strip_prefix("token ").or_else(|| authorization.strip_prefix("Bearer "))?;
    find_token(state, value)
}

pub(super) fn find_token(state: &State, value: &str) -> Option<Token> {
    state.token(value).cloned()
}

/// The token of a git request: the password of HTTP Basic, whatever the user's name. GitHub wants a fixed name for the
/// tokens of apps.
pub(super) fn basic(state: &State, authorization: &str) -> Option<Token> {
    use base64::Engine as _;
    let encoded = authorization.strip_prefix("Basic ")?;
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded).ok()?;
    let decoded = String::from_utf8(decoded).ok()?;
    let (name, password) = decoded.split_once(':')?;
    let token = find_token(state, &decode(password))?;
    (token.grant.is_none() || name == "x-access-token").then_some(token)
}

/// Whether a token has a scope for reading or for writing.
pub(super) fn has_scope(token: &Token, category: &str, is_write: bool) -> bool {
    let write = format!("write:{category}");
    let read = format!("read:{category}");
    token
        .scopes
        .iter()
        .any(|scope| scope == "all" || *scope == write || (!is_write && *scope == read))
}

fn missing_scope(state: &State, token: &Token, method: &str, segments: &[&str]) -> Option<Reply> {
    let category = match segments {
        ["user", ..] => "user",
        ["orgs", ..] => "organization",
        ["repos", _, _, "issues" | "labels", ..] => "issue",
        ["repos", ..] => "repository",
        _ => return None,
    };
    let is_write = method != "GET";
    if has_scope(token, category, is_write) {
        return None;
    }
    let wanted = format!("{}:{category}", if is_write { "write" } else { "read" });
    let message = format!(
        "token does not have at least one of required scope(s), required=[{wanted}], token scope={}",
        token.scopes.join(",")
    );
    Some(refusal(state, 403, &message))
}
