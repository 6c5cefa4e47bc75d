//! The parts of the API's JSON that are read, and what they become. Everything else in an answer is ignored.

use chrono::{DateTime, Utc};
use serde::Deserialize;

use crate::forge;

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

/// A deleted account, as both forges present it.
pub(super) fn ghost() -> forge::User {
    forge::User { id: -1, login: "Ghost".into() }
}

/// Some answers leave out whoever is gone.
pub(super) fn author(user: Option<User>) -> forge::User {
    user.map_or_else(ghost, Into::into)
}

#[derive(Debug, Deserialize)]
pub(super) struct Version {
    pub version: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Repository {
    pub owner: User,
    #[serde(default)]
    pub default_branch: String,
    #[serde(default)]
    pub archived: bool,
    #[serde(default)]
    pub has_pull_requests: bool,
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
            can_push: repo.permissions.is_some_and(|p| p.push),
            has_pulls: repo.has_pull_requests,
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Issue {
    pub id: i64,
    pub number: u64,
    pub title: String,
    #[serde(default)]
    pub body: Option<String>,
    pub user: Option<User>,
    pub state: String,
    #[serde(default)]
    pub is_locked: bool,
    #[serde(default)]
    pub pull_request: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    pub labels: Option<Vec<Label>>,
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
        let labels = issue.labels.unwrap_or_default().into_iter().map(|label| label.name);
        Self {
            id: issue.id,
            number: issue.number,
            title: issue.title,
            body: issue.body.unwrap_or_default(),
            author: author(issue.user),
            is_open: issue.state == "open",
            is_locked: issue.is_locked,
            is_pull: issue.pull_request.is_some(),
            labels: labels.collect(),
            assignees: issue.assignees.unwrap_or_default().into_iter().map(Into::into).collect(),
            created_at: issue.created_at,
            updated_at: issue.updated_at.unwrap_or(issue.created_at),
            closed_at: issue.closed_at,
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Label {
    pub name: String,
}

/// One entry of an issue's timeline, of whatever type.
#[derive(Debug, Deserialize)]
pub(super) struct TimelineEntry {
    pub id: i64,
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Of a `label` entry: `1` for added, empty for removed.
    #[serde(default)]
    pub body: Option<String>,
    #[serde(default)]
    pub user: Option<User>,
    /// Missing when the label itself has been deleted since.
    #[serde(default)]
    pub label: Option<Label>,
    /// Of a reference: what would become of this issue; empty once the words are gone from where they stood.
    #[serde(default)]
    pub ref_action: Option<String>,
    /// Of a reference: the issue or pull request whose words refer to this one.
    #[serde(default)]
    pub ref_issue: Option<Referrer>,
    pub created_at: DateTime<Utc>,
}

/// Where a reference comes from.
#[derive(Debug, Deserialize)]
pub(super) struct Referrer {
    pub number: u64,
    #[serde(default)]
    pub user: Option<User>,
    #[serde(default)]
    pub state: String,
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
    /// The open pull request that would close the issue, if it is about one.
    pub(super) fn closing_pull(&mut self) -> Option<Referrer> {
        if self.ref_action.as_deref() != Some("closes") {
            return None;
        }
        self.ref_issue.take().filter(|from| from.pull_request.is_some() && from.state == "open")
    }

    /// What it says of a label, if it is about that one. The error is a body that the API does not know.
    pub(super) fn label_event(self, name: &str) -> Result<Option<forge::LabelEvent>, String> {
        if self.kind != "label" || self.label.is_none_or(|label| label.name != name) {
            return Ok(None);
        }
        let change = match self.body.as_deref().unwrap_or_default() {
            "1" => forge::LabelChange::Added,
            "" => forge::LabelChange::Removed,
            _ => return Err(format!("label event {} is neither added nor removed", self.id)),
        };
        let actor = author(self.user);
        Ok(Some(forge::LabelEvent { id: self.id, at: self.created_at, actor, change }))
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Comment {
    pub id: i64,
    pub user: Option<User>,
    #[serde(default)]
    pub body: String,
    pub created_at: DateTime<Utc>,
}

impl From<Comment> for forge::Comment {
    fn from(comment: Comment) -> Self {
        Self {
            id: comment.id,
            author: author(comment.user),
            body: comment.body,
            created_at: comment.created_at,
        }
    }
}

/// An answer of which only the id matters.
#[derive(Debug, Deserialize)]
pub(super) struct Id {
    pub id: i64,
}

/// What a user may do.
#[derive(Debug, Deserialize)]
pub(super) struct CollaboratorPermission {
    pub permission: String,
    pub user: User,
}

#[derive(Debug, Deserialize)]
pub(super) struct Branch {
    pub commit: Commit,
}

#[derive(Debug, Deserialize)]
pub(super) struct Commit {
    pub id: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Pull {
    pub number: u64,
    pub title: String,
    pub state: String,
    #[serde(default)]
    pub merged: bool,
    /// Left out by a server that does not know the word.
    #[serde(default)]
    pub draft: Option<bool>,
    pub user: Option<User>,
    pub head: PullSide,
    pub base: PullSide,
}

#[derive(Debug, Deserialize)]
pub(super) struct PullSide {
    /// The branch's name, also when the branch is gone; `ref` then names the pull request's own ref.
    pub label: String,
    /// Its last commit.
    #[serde(default)]
    pub sha: String,
    /// Differs between the two sides for a fork, and is -1 for a deleted one.
    pub repo_id: i64,
}

impl Pull {
    /// Whether it goes from one branch to another within the same repository.
    pub(super) fn is_between(&self, base: &str, head: &str) -> bool {
        self.is_named(base, head) && self.is_from_here()
    }

    /// Whether its branches are called so, whichever repository they are of.
    pub(super) fn is_named(&self, base: &str, head: &str) -> bool {
        self.base.label == base && self.head.label == head
    }

    /// Whether its branch is one of the repository, and not of a fork.
    pub(super) fn is_from_here(&self) -> bool {
        self.head.repo_id == self.base.repo_id
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == "open"
    }
}
