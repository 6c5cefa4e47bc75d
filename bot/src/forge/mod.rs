//! A forge, seen as about a dozen calls. The quirks of each kind stay inside its own file.

mod client;
pub mod gitea;
mod github;
mod http;
mod own_app;
mod redirect;
mod shorten;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use config::Credential;

pub(crate) use redirect::redirect_of;

use crate::job::{CommitId, RepoName};

pub use client::SetupError;
pub use own_app::{Delivery, Installation, OwnApp, Webhook};

/// The client for a configured forge, with its secrets read. Nothing is sent yet.
///
/// # Errors
/// An address, a certificate or a secret cannot be used.
pub fn build(
    forge: &config::Forge,
    credential: &config::Credential,
) -> Result<Arc<dyn Forge>, SetupError> {
    match (forge.kind, credential) {
        (config::ForgeKind::GitHub, _) => Ok(Arc::new(github::GitHub::new(forge, credential)?)),
        (config::ForgeKind::Gitea | config::ForgeKind::Forgejo, Credential::Token(token)) => {
            Ok(Arc::new(gitea::Gitea::new(gitea::Options::new(forge, token.clone()))?))
        }
        // The check of the configuration lets no such thing through.
        (config::ForgeKind::Gitea | config::ForgeKind::Forgejo, Credential::App { .. }) => {
            Err(SetupError::Token)
        }
    }
}

/// One forge.
#[async_trait]
pub trait Forge: Send + Sync {
    /// The bot's own user.
    async fn whoami(&self) -> Result<User, Error>;
    /// The address that a user's commits may bear there without telling another one; none where only the server's own
    /// configuration knows it.
    fn email_of(&self, user: &User) -> Option<String>;
    /// A repository as the bot's token sees it.
    async fn repository(&self, repo: &RepoName) -> Result<Repository, Error>;
    /// An issue.
    async fn issue(&self, repo: &RepoName, number: u64) -> Result<Issue, Error>;
    /// What an issue's timeline, read to its end, tells of one label and of pull requests.
    async fn history(&self, repo: &RepoName, number: u64, label: &str) -> Result<History, Error>;
    /// The open issues that carry a label, all pages.
    async fn labelled(&self, repo: &RepoName, label: &str) -> Result<Vec<Issue>, Error>;
    /// All open issues, all pages; pull requests are none.
    async fn open_issues(&self, repo: &RepoName) -> Result<Vec<Issue>, Error>;
    /// What a user may do with a repository. Fails closed: an unclear answer is an error, not a permission.
    async fn permission(&self, repo: &RepoName, user: &User) -> Result<Permission, Error>;
    /// All comments of an issue, oldest first.
    async fn comments(&self, repo: &RepoName, number: u64) -> Result<Vec<Comment>, Error>;
    /// Writes a comment and returns its id.
    async fn comment(&self, repo: &RepoName, number: u64, body: &str) -> Result<i64, Error>;
    /// Replaces a comment's body.
    async fn edit_comment(&self, repo: &RepoName, comment: i64, body: &str) -> Result<(), Error>;
    /// Deletes a comment of the bot's own. One that is gone already is no error.
    async fn delete_comment(&self, repo: &RepoName, comment: i64) -> Result<(), Error>;
    /// Puts a reaction, such as `eyes`, on an issue. One that is there already is no error.
    async fn react(&self, repo: &RepoName, number: u64, reaction: &str) -> Result<(), Error>;
    /// Puts a reaction on a comment. One that is there already is no error.
    async fn react_to_comment(
        &self,
        repo: &RepoName,
        comment: i64,
        reaction: &str,
    ) -> Result<(), Error>;
    /// A pull request by its number, or none if it is not there.
    async fn pull(&self, repo: &RepoName, number: u64) -> Result<Option<Pull>, Error>;
    /// The pull request from `head` into `base`, in any state, the newest first choice.
    async fn pull_by_head(
        &self,
        repo: &RepoName,
        base: &str,
        head: &str,
    ) -> Result<Option<Pull>, Error>;
    /// Opens a draft, or adopts the one that is open for the same head. The answer says whether it is a draft.
    async fn open_draft(&self, repo: &RepoName, draft: &NewDraft) -> Result<Pull, Error>;
    /// The head commit of a branch, or none if there is no such branch.
    async fn branch_head(&self, repo: &RepoName, branch: &str) -> Result<Option<CommitId>, Error>;
    /// Where and how git reaches a repository.
    ///
    /// # Errors
    /// No token can be had for it now.
    async fn remote(&self, repo: &RepoName) -> Result<Remote, Error>;
    /// The software's own version, such as `1.27.0` or `15.0.3+gitea-1.22.0`.
    async fn version(&self) -> Result<String, Error>;
    /// The forge's time, where it tells it. It is asked without a token, so that a clock that is wrong is no hindrance.
    async fn clock(&self) -> Result<Option<DateTime<Utc>>, Error>;
    /// Whether the bot may see what others may do with a repository. Where it may not, every ask is refused.
    async fn sees_permissions(&self, repo: &RepoName) -> Result<bool, Error>;
    /// Whether people can put a label on the repository's issues: it is the repository's own, or its organisation's.
    async fn has_label(&self, repo: &RepoName, label: &str) -> Result<bool, Error>;
    /// The bot's own app there. None where it speaks as a user.
    fn own_app(&self) -> Option<&dyn OwnApp> {
        None
    }
}

/// Where and how git reaches a repository. `Debug` prints no secret.
#[derive(Debug, Clone)]
pub struct Remote {
    /// The address, without credentials.
    pub url: url::Url,
    /// User name for HTTP Basic.
    pub user: String,
    /// Password or token for HTTP Basic.
    pub password: secrecy::SecretString,
    /// A PEM file with further certificate authorities.
    pub ca_file: Option<std::path::PathBuf>,
    /// A proxy that leads there.
    pub proxy: Option<url::Url>,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The forge's numeric id.
    pub id: i64,
    /// The login.
    pub login: String,
}

/// A repository.
#[derive(Debug, Clone)]
pub struct Repository {
    /// The branch that work is based on.
    pub default_branch: String,
    /// Whether it is read-only.
    pub archived: bool,
    /// Whether the token may push.
    pub can_push: bool,
    /// Whether pull requests are switched on.
    pub has_pulls: bool,
}

/// An issue.
#[derive(Debug, Clone)]
pub struct Issue {
    /// The forge's own id of it, which no other issue of the forge has.
    pub id: i64,
    /// Its number.
    pub number: u64,
    /// Its title.
    pub title: String,
    /// Its text.
    pub body: String,
    /// Who opened it.
    pub author: User,
    /// Whether it is open.
    pub is_open: bool,
    /// Whether only collaborators may comment.
    pub is_locked: bool,
    /// Whether it is a pull request.
    pub is_pull: bool,
    /// The names of its labels.
    pub labels: Vec<String>,
    /// Who works on it.
    pub assignees: Vec<User>,
    /// When it was opened.
    pub created_at: DateTime<Utc>,
    /// When anything on it last changed.
    pub updated_at: DateTime<Utc>,
    /// When it was closed; none while it is open.
    pub closed_at: Option<DateTime<Utc>>,
}

/// What an issue's timeline tells.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Every addition and removal of the label, oldest first.
    pub labels: Vec<LabelEvent>,
    /// Open pull requests whose words would close the issue, each once, the oldest reference first.
    pub pulls: Vec<LinkedPull>,
}

/// A pull request that would close an issue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkedPull {
    /// Its repository, which may be another one than the issue's.
    pub repo: RepoName,
    /// Its number there.
    pub number: u64,
    /// Its link for people.
    pub link: String,
    /// The id of the user who opened it.
    pub author: i64,
}

/// One addition or removal of a label.
#[derive(Debug, Clone)]
pub struct LabelEvent {
    /// The timeline event's id.
    pub id: i64,
    /// When.
    pub at: DateTime<Utc>,
    /// Who.
    pub actor: User,
    /// Added, or removed.
    pub change: LabelChange,
}

/// What happened to a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelChange {
    /// It was put on.
    Added,
    /// It was taken off.
    Removed,
}

/// What a user may do with a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// Nothing.
    None,
    /// Read.
    Read,
    /// Push.
    Write,
    /// Change settings.
    Admin,
}

impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "no access",
            Self::Read => "read access",
            Self::Write => "write access",
            Self::Admin => "administrator access",
        })
    }
}

/// A comment.
#[derive(Debug, Clone)]
pub struct Comment {
    /// Its id.
    pub id: i64,
    /// Who wrote it.
    pub author: User,
    /// Its text.
    pub body: String,
    /// When it was written.
    pub created_at: DateTime<Utc>,
}

/// A draft to open.
#[derive(Debug, Clone)]
pub struct NewDraft {
    /// The title, without any draft prefix.
    pub title: String,
    /// The body.
    pub body: String,
    /// The branch with the change.
    pub head: String,
    /// The branch to merge into.
    pub base: String,
}

/// A pull request.
#[derive(Debug, Clone)]
pub struct Pull {
    /// Its number.
    pub number: u64,
    /// Its link for people.
    pub link: String,
    /// Whether it is open.
    pub is_open: bool,
    /// Whether it has been merged.
    pub is_merged: bool,
    /// Whether the forge says that it is a draft.
    pub is_draft: bool,
    /// Its title.
    pub title: String,
    /// The id of the user who opened it.
    pub author: i64,
    /// The branch with the change.
    pub head: String,
    /// Whether that is a branch of the repository itself, and not one of the same name in a fork.
    pub is_from_here: bool,
    /// The last commit of that branch, where the forge says so.
    pub head_commit: Option<CommitId>,
}

/// Why a call gave nothing. No variant's text holds a token or a body.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// 401: the token is wrong or has expired.
    #[error("cannot {call}: the forge refused the token (401): {message}")]
    Auth {
        /// What was asked, such as `read issue 7 of acme/app`.
        call: String,
        /// The forge's words, cut.
        message: String,
    },
    /// 403: a scope or a right is missing.
    #[error("cannot {call}: the forge denied it (403): {message}")]
    Denied {
        /// What was asked.
        call: String,
        /// The forge's words, cut.
        message: String,
    },
    /// 404: not there, or hidden from this token.
    #[error("cannot {call}: not found, or hidden from the token (404): {message}")]
    Missing {
        /// What was asked.
        call: String,
        /// The forge's words, cut.
        message: String,
    },
    /// 3xx: the repository has another name or owner. A token is never carried along.
    #[error(
        "cannot {call}: the repository is called `{to}` by now; write that name in the configuration"
    )]
    Moved {
        /// What was asked.
        call: String,
        /// Its present name, as `owner/name`.
        to: String,
    },
    /// 409, 412, 422, 423 and the like: the forge does not want this now.
    #[error("cannot {call}: the forge declined it ({status}): {message}")]
    Declined {
        /// What was asked.
        call: String,
        /// The status.
        status: u16,
        /// The forge's words, cut.
        message: String,
    },
    /// 429 or 5xx, after the client's own retries where the call may be repeated.
    #[error("cannot {call}: the forge is unwell ({status}): {message}")]
    Unwell {
        /// What was asked.
        call: String,
        /// The status.
        status: u16,
        /// The forge's words, cut.
        message: String,
        /// How long the forge asks to wait.
        retry_after: Option<Duration>,
    },
    /// No answer.
    #[error("cannot {call}: the forge did not answer")]
    Unreachable {
        /// What was asked.
        call: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An answer that is not what the API says.
    #[error("cannot {call}: the answer makes no sense: {reason}")]
    Answer {
        /// What was asked.
        call: String,
        /// What is wrong.
        reason: String,
    },
}
