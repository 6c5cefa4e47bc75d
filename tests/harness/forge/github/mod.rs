//! The same forge as a GitHub Enterprise Server: its door, who asks, what they may, and which route it is. It plays personal
//! tokens and one GitHub App.
//!
//! It answers in GitHub's shapes and checks every request against GitHub's published schemas. Rate limits are off, as
//! shipped; organisations, teams, reviews and files have no routes here.

mod app;
mod checks;
mod closing;
mod deliveries;
mod hooks;
mod issues;
mod jwt;
mod pulls;
mod shapes;
mod timeline;
mod world;

use std::sync::Arc;

use bot::job::RepoName;
use serde_json::{Value, json};
use url::form_urlencoded;

use super::hooks::Event;
use super::schema::segments;
use super::server::{Reply, Request};
use super::state::{Access, Repo, State, Token};
use super::{Dialect, Shared, lock};

pub use self::checks::SeenCheck;
pub(super) use self::hooks::{comment_event, events, headers, payload, ping};
pub(super) use self::pulls::follow;
pub use self::world::AppCredentials;
pub(super) use self::world::World;

/// Most entries of one page.
const PAGE: usize = 100;

/// Who asks.
enum Who {
    /// The app itself, by an assertion that it signed.
    App,
    /// A user, or an installation of the app.
    Token(Token),
}

/// A request of somebody known.
struct Call<'a> {
    shared: &'a Arc<Shared>,
    state: &'a mut State,
    user: i64,
    token: Token,
    method: &'a str,
    /// The path below `/api/v3`, as it is asked for and as links repeat it.
    path: &'a str,
    query: Vec<(String, String)>,
    body: Value,
    events: Vec<Event>,
}

/// Answers a request below `/api`.
pub(super) fn answer(
    shared: &Arc<Shared>,
    asked: &Request,
    authorization: &str,
) -> (Reply, Vec<Event>) {
    let mut state = lock(&shared.state);
    let (reply, events) = match asked.path.strip_prefix("/api/v3") {
        Some(path) if path.starts_with('/') => {
            let path = by_number(&state, path).unwrap_or_else(|| path.to_owned());
            below_v3(shared, &mut state, asked, &path, authorization)
        }
        _ if asked.path == "/api/graphql" => {
            (closing::answer(shared, &mut state, asked, authorization), vec![])
        }
        _ => (shared.strange(asked, "GitHub's API is below `/api/v3`"), vec![]),
    };
    let now = state.github.now();
    let number = state.id();
    let reply = reply
        .with("x-github-enterprise-version", state.dialect.version())
        .with("x-github-media-type", "github.v3; format=json")
        .with("x-github-request-id", super::hooks::uuid(number))
        .with("date", now.format("%a, %d %b %Y %H:%M:%S GMT").to_string());
    (reply, events)
}

fn below_v3(
    shared: &Arc<Shared>,
    state: &mut State,
    asked: &Request,
    path: &str,
    authorization: &str,
) -> (Reply, Vec<Event>) {
    let query: Vec<(String, String)> =
        form_urlencoded::parse(asked.query.as_bytes()).into_owned().collect();
    let wrong = shared.checker.check(&asked.method, path, &query, &asked.body);
    if let Some(first) = wrong.first() {
        let reply = shared.strange(asked, first);
        lock(&shared.violations).extend(wrong.into_iter().skip(1));
        return (reply, vec![]);
    }
    let who = match who(state, authorization) {
        Ok(who) => who,
        Err(reply) => return (reply, vec![]),
    };
    let segments = segments(path);
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let body = serde_json::from_slice(&asked.body).unwrap_or(Value::Null);
    let method = asked.method.as_str();
    let is_for_the_app = matches!(
        segments[..],
        ["app", ..] | ["orgs" | "users", _, "installation"] | ["repos", _, _, "installation"]
    );
    let (reply, events) = match who {
        Who::App if is_for_the_app => {
            (app::answer(shared, state, method, &segments, &query, &body), vec![])
        }
        // An assertion is good for nothing else, and nothing else for these.
        Who::App => (Some(state.refused(401, "Bad credentials")), vec![]),
        Who::Token(_) if is_for_the_app => {
            (Some(state.refused(401, "A JSON web token could not be decoded")), vec![])
        }
        Who::Token(token) => {
            let scopes = token.grant.is_none().then(|| token.scopes.join(", "));
            let user = token.user;
            let events = vec![];
            let mut call = Call { shared, state, user, token, method, path, query, body, events };
            let reply = call.route(&segments);
            let events = call.events;
            let reply = reply.map(|reply| match scopes {
                Some(scopes) => reply.with("x-oauth-scopes", scopes),
                None => reply,
            });
            (reply, events)
        }
    };
    (reply.unwrap_or_else(|| shared.strange(asked, "this fake does not know it")), events)
}

/// The path by names of one that gives a repository's number, as redirects and links do.
fn by_number(state: &State, path: &str) -> Option<String> {
    let rest = path.strip_prefix("/repositories/")?;
    let (id, rest) =
        rest.split_once('/').map_or((rest, String::new()), |(id, rest)| (id, format!("/{rest}")));
    let repo = state.repos.iter().find(|repo| id.parse() == Ok(repo.id))?;
    Some(format!("/repos/{}{rest}", repo.name))
}

/// Whoever a header names, or what they are told.
fn who(state: &State, authorization: &str) -> Result<Who, Reply> {
    if authorization.is_empty() {
        return Err(state.refused(401, "Must authenticate to access this API."));
    }
    let value =
        authorization.strip_prefix("Bearer ").or_else(|| authorization.strip_prefix("token "));
    let value = value.ok_or_else(|| state.refused(401, "Bad credentials"))?;
    if value.matches('.').count() == 2 {
        return jwt::check(state, value).map(|()| Who::App);
    }
    let token = state.token(value).cloned();
    token.map(Who::Token).ok_or_else(|| state.refused(401, "Bad credentials"))
}

impl Dialect {
    /// The version of a GitHub Enterprise Server.
    fn version(self) -> &'static str {
        match self {
            Self::Ghes314 => "3.14.2",
            Self::Ghes319 => "3.19.0",
            Self::Gitea124 | Self::Gitea127 | Self::Forgejo15 => "",
        }
    }
}

impl State {
    fn documentation(&self) -> String {
        let version = self.dialect.version();
        let line = version.rsplit_once('.').map_or(version, |(line, _)| line);
        format!("https://docs.github.com/enterprise-server@{line}/rest")
    }

    /// An error in GitHub's shape.
    fn refused(&self, status: u16, message: &str) -> Reply {
        let body = json!({
            "message": message,
            "documentation_url": self.documentation(),
            "status": status.to_string(),
        });
        Reply::json(status, &body)
    }

    /// A request that says something impossible.
    fn invalid(&self, error: &Value) -> Reply {
        let body = json!({
            "message": "Validation Failed",
            "errors": [error],
            "documentation_url": self.documentation(),
            "status": "422",
        });
        Reply::json(422, &body)
    }
}

impl Call<'_> {
    fn route(&mut self, segments: &[&str]) -> Option<Reply> {
        match (self.method, segments) {
            ("GET", ["meta"]) => {
                let version = self.state.dialect.version();
                let shape = json!({
                    "verifiable_password_authentication": true,
                    "installed_version": version,
                });
                Some(Reply::json(200, &shape))
            }
            // Rate limits are off, as shipped.
            ("GET", ["rate_limit"]) => Some(self.refused(404, "Rate limiting is not enabled.")),
            ("GET", ["user"]) if self.token.grant.is_some() => {
                Some(self.refused(403, "Resource not accessible by integration"))
            }
            ("GET", ["user"]) => Some(Reply::json(200, &self.state.own_user(self.user))),
            ("GET", ["users", login]) => Some(match self.state.user_by_login(login) {
                Some(user) => Reply::json(200, &self.state.own_user(user.id)),
                None => self.missing(),
            }),
            (_, ["repos", owner, name, rest @ ..]) => self.in_repo(owner, name, rest),
            _ => None,
        }
    }

    fn in_repo(&mut self, owner: &str, name: &str, rest: &[&str]) -> Option<Reply> {
        if let Some(present) = self.state.moved_to(owner, name).cloned() {
            return Some(self.moved(&present, rest));
        }
        let Some((repo, access)) = self.visible(owner, name) else { return Some(self.missing()) };
        if self.method != "GET" && self.repo(&repo).is_archived {
            return Some(self.refused(403, "Repository was archived so is read-only."));
        }
        if let Some(reply) = self.not_granted(&repo, rest) {
            return Some(reply);
        }
        match (self.method, rest) {
            ("GET", []) => {
                let found = self.repo(&repo);
                Some(Reply::json(200, &self.state.full_repository(found, access)))
            }
            ("GET", ["labels"]) => {
                let found = self.repo(&repo);
                let labels = found.labels.iter();
                let labels = labels.map(|label| self.state.github_label(found, label.id));
                let labels: Vec<Value> = labels.collect();
                Some(self.page(&repo, &labels))
            }
            ("GET", ["labels", name]) => Some(self.label(&repo, name)),
            ("GET", ["collaborators", login, "permission"]) => {
                Some(self.permission(&repo, login, access))
            }
            ("GET", ["git", "ref", reference @ ..]) => Some(self.reference(&repo, reference)),
            ("GET", ["branches", branch @ ..]) if !branch.is_empty() => {
                Some(self.branch(&repo, &branch.join("/")))
            }
            ("POST", ["statuses", sha]) => Some(self.status(&repo, sha, access)),
            ("POST", ["check-runs"]) => Some(self.check_run(&repo)),
            (_, ["hooks", rest @ ..]) => self.hooks(&repo, rest, access),
            (_, ["issues", rest @ ..]) => self.issues(&repo, rest, access),
            (_, ["pulls", rest @ ..]) => self.pulls(&repo, rest, access),
            _ => None,
        }
    }

    fn moved(&self, present: &RepoName, rest: &[&str]) -> Reply {
        let rest: String = rest.iter().map(|segment| format!("/{segment}")).collect();
        let id = self.repo(present).id;
        let to = format!("{}/api/v3/repositories/{id}{rest}", self.state.root_url);
        let body = json!({
            "message": "Moved Permanently",
            "url": to,
            "documentation_url": self.state.documentation(),
        });
        Reply::json(301, &body).with("location", to)
    }

    /// The repository, if the token may know of it.
    fn visible(&self, owner: &str, name: &str) -> Option<(RepoName, Access)> {
        let repo = self.state.repo(owner, name)?;
        let access = self.state.access(self.user, repo);
        let is_there = !repo.is_gone && access > Access::None && covers(&self.token, repo);
        is_there.then(|| (repo.name.clone(), access))
    }

    /// What the token is told that may see a repository and not do this there.
    fn not_granted(&self, repo: &RepoName, rest: &[&str]) -> Option<Reply> {
        let is_write = self.method != "GET";
        let Some(grant) = &self.token.grant else {
            // A token of a user that lacks a scope for writing learns nothing.
            return (is_write && !has_repo_scope(&self.token)).then(|| self.missing());
        };
        let is_pull = match rest {
            ["issues", number, ..] => {
                let issue = number.parse().ok().and_then(|number| self.repo(repo).issue(number));
                issue.is_some_and(|issue| issue.pull.is_some())
            }
            _ => false,
        };
        let wanted: &[&str] = match rest {
            ["issues", ..] if is_pull => &["issues", "pull_requests"],
            ["issues" | "labels", ..] => &["issues"],
            ["pulls", ..] => &["pull_requests"],
            ["git" | "branches", ..] => &["contents"],
            ["statuses", ..] => &["statuses"],
            ["check-runs", ..] => &["checks"],
            ["hooks", ..] => &["repository_hooks"],
            _ => return None,
        };
        let has = |name: &&str| match grant.permissions.get(*name).map(String::as_str) {
            Some("write" | "admin") => true,
            Some("read") => !is_write,
            _ => false,
        };
        let is_granted = wanted.iter().any(has);
        (!is_granted).then(|| self.refused(403, "Resource not accessible by integration"))
    }

    fn repo(&self, repo: &RepoName) -> &Repo {
        self.state.repo(&repo.owner, &repo.name).expect("it was found before")
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// One page of a list, with links that give the repository's number in place of its name, as the real ones do.
    fn page(&self, repo: &RepoName, list: &[Value]) -> Reply {
        let number = |name: &str, default: usize| {
            self.parameter(name).and_then(|value| value.parse().ok()).unwrap_or(default)
        };
        let size = number("per_page", 30).clamp(1, PAGE);
        let page = number("page", 1).max(1);
        let last = list.len().div_ceil(size).max(1);
        let entries: Vec<&Value> = list.iter().skip((page - 1) * size).take(size).collect();
        let mut links = Vec::new();
        if page > 1 {
            links.push(self.link(repo, page - 1, "prev"));
        }
        if page < last {
            links.push(self.link(repo, page + 1, "next"));
            links.push(self.link(repo, last, "last"));
        }
        if page > 1 {
            links.push(self.link(repo, 1, "first"));
        }
        let reply = Reply::json(200, &json!(entries));
        match links.is_empty() {
            true => reply,
            false => reply.with("link", links.join(", ")),
        }
    }

    fn link(&self, repo: &RepoName, page: usize, relation: &str) -> String {
        let others = self.query.iter().filter(|(key, _)| key != "page");
        let query = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(others)
            .append_pair("page", &page.to_string())
            .finish();
        let rest = self.path.splitn(5, '/').nth(4).unwrap_or_default();
        let root = &self.state.root_url;
        let id = self.repo(repo).id;
        format!("<{root}/api/v3/repositories/{id}/{rest}?{query}>; rel=\"{relation}\"")
    }

    fn refused(&self, status: u16, message: &str) -> Reply {
        self.state.refused(status, message)
    }

    fn missing(&self) -> Reply {
        self.refused(404, "Not Found")
    }

    fn text(&self, key: &str) -> String {
        self.body[key].as_str().unwrap_or_default().to_owned()
    }
}

/// Whether a token is for a repository at all.
pub(super) fn covers(token: &Token, repo: &Repo) -> bool {
    let is_named = token.only.as_ref().is_none_or(|only| only.contains(&repo.id));
    is_named && (!repo.is_private || token.grant.is_some() || has_repo_scope(token))
}

fn has_repo_scope(token: &Token) -> bool {
    token.scopes.iter().any(|scope| scope == "repo" || scope == "all")
}

/// Whether a token may read, or write, what git moves.
pub(super) fn may_move(token: &Token, is_push: bool) -> bool {
    match &token.grant {
        None => !is_push || has_repo_scope(token),
        Some(grant) => match grant.permissions.get("contents").map(String::as_str) {
            Some("write" | "admin") => true,
            Some("read") => !is_push,
            _ => false,
        },
    }
}
