//! The parts of GitHub's JSON that are read, and what they become. Everything else in an answer is ignored.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::Deserialize;

use crate::forge::client::is_commit_id;
use crate::forge::{self, LabelChange, Permission};
use crate::job::CommitId;

#[derive(Debug, Deserialize)]
pub(super) struct User {
    pub id: i64,
    pub login: String,
}

impl From<User> for forge::User {
    fn from(user: User) -> Self {
        Self { id: user.id, login: user.login }
    }
}

/// A deleted account stands in an answer as `null`, and on pages as `ghost`.
pub(super) fn author(user: Option<User>) -> forge::User {
    user.map_or_else(|| forge::User { id: -1, login: "ghost".into() }, Into::into)
}

/// `GET /app`.
#[derive(Debug, Deserialize)]
pub(super) struct App {
    pub slug: String,
}

/// Of what nothing but the number is needed.
#[derive(Debug, Deserialize)]
pub(super) struct Id {
    pub id: i64,
}

/// `GET /repos/{owner}/{repo}/installation`.
#[derive(Debug, Deserialize)]
pub(super) struct Installation {
    pub id: u64,
    #[serde(default)]
    permissions: BTreeMap<String, String>,
    #[serde(default)]
    events: BTreeSet<String>,
}

impl From<Installation> for forge::Installation {
    fn from(it: Installation) -> Self {
        Self { permissions: it.permissions, events: it.events }
    }
}

/// `GET /app/hook/config`.
#[derive(Debug, Deserialize)]
pub(super) struct Webhook {
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    secret: Option<String>,
}

impl From<Webhook> for Option<forge::Webhook> {
    /// The secret itself is never told, only that there is one.
    fn from(hook: Webhook) -> Self {
        let url = hook.url.filter(|url| !url.is_empty())?;
        let has_secret = hook.secret.is_some_and(|secret| !secret.is_empty());
        Some(forge::Webhook { url, has_secret })
    }
}

/// `GET /app/hook/deliveries`.
#[derive(Debug, Deserialize)]
pub(super) struct Delivery {
    id: u64,
    guid: String,
    delivered_at: DateTime<Utc>,
    #[serde(default)]
    event: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    status_code: u16,
}

impl From<Delivery> for forge::Delivery {
    fn from(it: Delivery) -> Self {
        let Delivery { id, guid, delivered_at: at, event, status, status_code } = it;
        Self { id, guid, at, event, status, status_code }
    }
}

/// `GET /meta`. Only Enterprise Server tells its version.
#[derive(Debug, Deserialize)]
pub(super) struct Meta {
    pub installed_version: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Repository {
    pub full_name: String,
    pub owner: User,
    #[serde(default)]
    pub default_branch: String,
    #[serde(default)]
    pub archived: bool,
    #[serde(default)]
    pub permissions: Option<Permissions>,
}

/// The token's own rights.
#[derive(Debug, Deserialize)]
pub(super) struct Permissions {
    #[serde(default)]
    pub push: bool,
}

impl From<Repository> for forge::Repository {
    fn from(repo: Repository) -> Self {
        Self {
            default_branch: repo.default_branch,
            archived: repo.archived,
            can_push: repo.permissions.is_some_and(|own| own.push),
            // They cannot be switched off here.
            has_pulls: true,
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Issue {
    pub id: i64,
    pub number: u64,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub body: Option<String>,
    pub user: Option<User>,
    pub state: String,
    #[serde(default)]
    pub locked: bool,
    #[serde(default)]
    pub pull_request: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    pub labels: Vec<Label>,
    #[serde(default)]
    pub assignees: Option<Vec<User>>,
    pub created_at: DateTime<Utc>,
    #[serde(default)]
    pub updated_at: Option<DateTime<Utc>>,
    #[serde(default)]
    pub closed_at: Option<DateTime<Utc>>,
}

impl From<Issue> for forge::Issue {
    fn from(issue: Issue) -> Self {
        Self {
            id: issue.id,
            number: issue.number,
            title: issue.title,
            body: issue.body.unwrap_or_default(),
            author: author(issue.user),
            is_open: issue.state == "open",
            is_locked: issue.locked,
            is_pull: issue.pull_request.is_some(),
            labels: issue.labels.into_iter().map(Label::name).collect(),
            assignees: issue.assignees.unwrap_or_default().into_iter().map(Into::into).collect(),
            created_at: issue.created_at,
            updated_at: issue.updated_at.unwrap_or(issue.created_at),
            closed_at: issue.closed_at,
        }
    }
}

/// The description of the API allows a bare name in place of an object.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Label {
    Object { name: Option<String> },
    Name(String),
}

impl Label {
    pub(super) fn name(self) -> String {
        match self {
            Self::Object { name } => name.unwrap_or_default(),
            Self::Name(name) => name,
        }
    }

    pub(super) fn is_called(&self, other: &str) -> bool {
        match self {
            Self::Object { name } => name.as_deref().is_some_and(|name| same(name, other)),
            Self::Name(name) => same(name, other),
        }
    }
}

/// GitHub's labels are the same in small and in capital letters.
fn same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// One entry of an issue's timeline, of whatever kind. A commit or a review has neither id nor time of this form.
#[derive(Debug, Deserialize)]
pub(super) struct TimelineEntry {
    #[serde(default)]
    pub event: String,
    #[serde(default)]
    pub id: Option<i64>,
    #[serde(default)]
    pub created_at: Option<DateTime<Utc>>,
    #[serde(default)]
    pub actor: Option<User>,
    #[serde(default)]
    pub label: Option<Label>,
    #[serde(default)]
    pub source: Option<Source>,
}

/// Where a reference comes from.
#[derive(Debug, Deserialize)]
pub(super) struct Source {
    #[serde(default)]
    pub issue: Option<Referrer>,
}

/// The issue or pull request whose words refer to this one.
#[derive(Debug, Deserialize)]
pub(super) struct Referrer {
    pub number: u64,
    #[serde(default)]
    pub state: String,
    #[serde(default)]
    pub body: Option<String>,
    #[serde(default)]
    pub user: Option<User>,
    #[serde(default)]
    pub pull_request: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    pub repository: Option<NamedRepository>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedRepository {
    #[serde(default)]
    pub full_name: String,
}

impl TimelineEntry {
    /// The open pull request that refers to the issue, if it is about one.
    pub(super) fn referring_pull(&mut self) -> Option<Referrer> {
        if self.event != "cross-referenced" {
            return None;
        }
        let from = self.source.take()?.issue?;
        (from.pull_request.is_some() && from.state == "open").then_some(from)
    }

    /// What it says of a label, if it is about that one. The error is an entry without what the API promises.
    pub(super) fn label_event(self, name: &str) -> Result<Option<forge::LabelEvent>, String> {
        let change = match self.event.as_str() {
            "labeled" => LabelChange::Added,
            "unlabeled" => LabelChange::Removed,
            _ => return Ok(None),
        };
        if !self.label.is_some_and(|label| label.is_called(name)) {
            return Ok(None);
        }
        let (Some(id), Some(at)) = (self.id, self.created_at) else {
            return Err(format!("a `{}` event has no id or no time", self.event));
        };
        Ok(Some(forge::LabelEvent { id, at, actor: author(self.actor), change }))
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Comment {
    pub id: i64,
    pub user: Option<User>,
    #[serde(default)]
    pub body: Option<String>,
    pub created_at: DateTime<Utc>,
}

impl From<Comment> for forge::Comment {
    fn from(comment: Comment) -> Self {
        Self {
            id: comment.id,
            author: author(comment.user),
            body: comment.body.unwrap_or_default(),
            created_at: comment.created_at,
        }
    }
}

/// What a user may do. `role_name` may be one of the organisation's own; `permission` is the plain right that it stands on.
#[derive(Debug, Deserialize)]
pub(super) struct CollaboratorPermission {
    pub permission: String,
    pub user: Option<User>,
}

impl CollaboratorPermission {
    pub(super) fn level(&self) -> Option<Permission> {
        match self.permission.as_str() {
            "admin" => Some(Permission::Admin),
            "write" | "maintain" => Some(Permission::Write),
            "read" | "triage" => Some(Permission::Read),
            "none" => Some(Permission::None),
            _ => None,
        }
    }
}

/// `GET /repos/{owner}/{repo}/git/ref/heads/{branch}`.
#[derive(Debug, Deserialize)]
pub(super) struct Ref {
    #[serde(rename = "ref")]
    pub name: String,
    pub object: Object,
}

#[derive(Debug, Deserialize)]
pub(super) struct Object {
    pub sha: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Pull {
    pub number: u64,
    pub title: String,
    pub state: String,
    #[serde(default)]
    pub merged_at: Option<DateTime<Utc>>,
    #[serde(default)]
    pub draft: bool,
    pub user: Option<User>,
    pub head: PullSide,
    pub base: PullSide,
}

#[derive(Debug, Deserialize)]
pub(super) struct PullSide {
    /// The branch's name.
    #[serde(rename = "ref")]
    pub branch: String,
    #[serde(default)]
    pub sha: String,
    /// None for a fork that is gone.
    #[serde(default)]
    pub repo: Option<Id>,
}

impl Pull {
    /// Whether it goes from one branch to another within the same repository.
    pub(super) fn is_between(&self, base: &str, head: &str) -> bool {
        self.base.branch == base && self.head.branch == head && self.is_from_here()
    }

    /// Whether its branch is one of the repository, and not of a fork.
    pub(super) fn is_from_here(&self) -> bool {
        let id = |side: &PullSide| side.repo.as_ref().map(|repo| repo.id);
        id(&self.head).is_some() && id(&self.head) == id(&self.base)
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == "open"
    }

    pub(super) fn head_commit(&self) -> Option<CommitId> {
        is_commit_id(&self.head.sha).then(|| CommitId(self.head.sha.clone()))
    }
}
