//! Gitea from 1.24 and Forgejo from 11, through the REST calls that both have. It fails closed: what an answer leaves
//! unclear is an error.
//!
//! It never marks a draft as ready, never merges and never closes. Drafts are a title prefix on both forges.

mod inspect;
mod list;
mod wire;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::json;
use url::Url;

use crate::forge::client::{Client, SetupError, in_repo, is_commit_id};
use crate::forge::http::{Bearer, Call, Http, Profile, Repeat, join};
use crate::forge::{
    Comment, Error, Forge, History, Issue, NewDraft, Permission, Pull, Remote, Repository, User,
};
use crate::job::{CommitId, RepoName};

pub use config::ForgeKind as Kind;

/// The git user name. The servers look at the token alone.
const GIT_USER: &str = "hyla";

/// What the client needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which of the two it is.
    pub kind: Kind,
    /// The address that the bot reaches it at, with any sub-path, without `/api/v1`.
    pub url: Url,
    /// The address that people reach it at, when it differs.
    pub public_url: Option<Url>,
    /// The access token of the bot's user.
    pub token: SecretString,
    /// The title prefix that makes a draft.
    pub draft_prefix: String,
    /// A PEM file with certificate authorities to trust besides the system's.
    pub ca_file: Option<PathBuf>,
    /// A proxy that leads there.
    pub proxy: Option<Url>,
    /// How long one request may take, all in all.
    pub timeout: Duration,
}

impl Options {
    /// Those of a configured forge.
    pub fn new(forge: &config::Forge, token: SecretString) -> Self {
        Self {
            kind: forge.kind,
            url: forge.url.clone(),
            public_url: forge.public_url.clone(),
            token,
            draft_prefix: forge.draft_prefix.clone(),
            ca_file: forge.ca_file.clone(),
            proxy: forge.proxy.clone(),
            timeout: forge.timeout,
        }
    }
}

/// A Gitea or a Forgejo.
pub struct Gitea {
    options: Options,
    http: Http,
}

impl Gitea {
    /// A client. Nothing is sent yet.
    pub fn new(options: Options) -> Result<Self, SetupError> {
        if options.token.expose_secret().trim().is_empty() {
            return Err(SetupError::Token);
        }
        if options.draft_prefix.trim().is_empty() {
            return Err(SetupError::DraftPrefix);
        }
        let client = Client {
            url: &options.url,
            public_url: options.public_url.as_ref(),
            ca_file: options.ca_file.as_ref(),
            proxy: options.proxy.as_ref(),
            timeout: options.timeout,
        };
        let bearer = format!("token {}", options.token.expose_secret());
        let http = Http::new(
            client.build()?,
            Profile {
                api: join(&options.url, ["api", "v1"]),
                headers: &[("accept", "application/json")],
                pause: Duration::ZERO,
                bearer: Bearer::fixed(&bearer, &options.token)?,
            },
        );
        Ok(Self { options, http })
    }

    async fn get<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        self.http.send(call).await?.json(call)
    }

    async fn wire_repository(&self, repo: &RepoName) -> Result<wire::Repository, Error> {
        self.get(&Call::read(format!("read repository {repo}"), in_repo(repo, []))).await
    }

    /// What can be said of a user's rights without admin rights: whether they are at least `Write`. The list of
    /// possible assignees tells it, but in an organisation's repository that list also holds members of teams that
    /// may only read.
    async fn permission_by_assignees(
        &self,
        repo: &RepoName,
        user: &User,
        denied: Error,
    ) -> Result<Permission, Error> {
        if self.wire_repository(repo).await?.owner.id == user.id {
            return Ok(Permission::Admin);
        }
        let what = format!("list who can be assigned in {repo}");
        let assignees: Option<Vec<wire::User>> =
            self.get(&Call::read(what, in_repo(repo, ["assignees"]))).await?;
        if !assignees.unwrap_or_default().iter().any(|assignee| assignee.id == user.id) {
            return Ok(Permission::None);
        }
        if self.has_teams(repo).await? { Err(denied) } else { Ok(Permission::Write) }
    }

    /// Whether an organisation owns the repository: only such a one has teams.
    async fn has_teams(&self, repo: &RepoName) -> Result<bool, Error> {
        let teams = Call::read(format!("list the teams of {repo}"), in_repo(repo, ["teams"]));
        match self.http.send(&teams).await {
            Err(Error::Declined { status: 405, .. }) => Ok(false),
            Ok(_) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The pull requests of one state between two branches of the repository.
    async fn pulls(
        &self,
        repo: &RepoName,
        base: &str,
        head: &str,
        state: &str,
    ) -> Result<Vec<wire::Pull>, Error> {
        let mut call =
            Call::read(format!("list pull requests of {repo}"), in_repo(repo, ["pulls"]));
        call.query.push(("state", state.to_owned()));
        match self.options.kind {
            Kind::Gitea => call.query.push(("base_branch", base.to_owned())),
            // Forgejo has such a filter only from 16 on.
            Kind::Forgejo | Kind::GitHub => {}
        }
        let mut pulls: Vec<wire::Pull> = self.get_all(call).await?;
        pulls.retain(|pull| pull.is_between(base, head));
        Ok(pulls)
    }

    async fn wire_pull_by_head(
        &self,
        repo: &RepoName,
        base: &str,
        head: &str,
    ) -> Result<Option<wire::Pull>, Error> {
        if base.contains('/') {
            // The direct route takes the base as one segment and the rest as the head.
            let pulls = self.pulls(repo, base, head, "all").await?;
            return Ok(newest(pulls));
        }
        let what = format!("find the pull request from `{head}` into `{base}` of {repo}");
        let mut path = in_repo(repo, ["pulls", base]);
        path.extend(head.split('/').map(str::to_owned));
        let call = Call::read(what, path);
        let found: wire::Pull = match self.get(&call).await {
            Ok(pull) => pull,
            Err(Error::Missing { .. }) => {
                // Hidden and absent look alike, so the repository itself must be there.
                self.wire_repository(repo).await?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if !found.is_between(base, head) {
            return Err(call.nonsense(format!("it is about pull request {}", found.number)));
        }
        if found.is_open() {
            return Ok(Some(found));
        }
        // The route gives the first of several, whatever its state.
        let mut pulls = self.pulls(repo, base, head, "open").await?;
        pulls.push(found);
        Ok(newest(pulls))
    }

    /// The open pull request for a draft's branches, if the bot itself made it.
    async fn adoptable(&self, repo: &RepoName, draft: &NewDraft) -> Result<Option<Pull>, Error> {
        let found = self.wire_pull_by_head(repo, &draft.base, &draft.head).await?;
        let Some(found) = found.filter(wire::Pull::is_open) else { return Ok(None) };
        let me = self.whoami().await?;
        let pull = self.as_pull(repo, found);
        Ok((pull.author == me.id).then_some(pull))
    }

    fn as_pull(&self, repo: &RepoName, pull: wire::Pull) -> Pull {
        let is_open = pull.is_open();
        let is_from_here = pull.is_from_here();
        let has_prefix = starts_with(&pull.title, self.options.draft_prefix.trim());
        Pull {
            number: pull.number,
            link: self.link(repo, pull.number),
            is_open,
            is_merged: pull.merged,
            is_draft: pull.draft.unwrap_or(has_prefix),
            title: pull.title,
            author: wire::author(pull.user).id,
            head_commit: is_commit_id(&pull.head.sha).then_some(CommitId(pull.head.sha)),
            head: pull.head.label,
            is_from_here,
        }
    }

    /// A link for people to a pull request.
    fn link(&self, repo: &RepoName, number: u64) -> String {
        let base = self.options.public_url.as_ref().unwrap_or(&self.options.url);
        join(base, [&repo.owner, &repo.name, "pulls", &number.to_string()]).into()
    }

    /// The title with the prefix once.
    fn draft_title(&self, title: &str) -> String {
        let prefix = self.options.draft_prefix.trim();
        if starts_with(title, prefix) { title.to_owned() } else { format!("{prefix} {title}") }
    }
}

#[async_trait]
impl Forge for Gitea {
    async fn whoami(&self) -> Result<User, Error> {
        let call = Call::read("read the bot's own user".into(), vec!["user".into()]);
        let user: wire::User = self.get(&call).await?;
        Ok(user.into())
    }

    /// `NO_REPLY_ADDRESS` is told by no call.
    fn email_of(&self, _: &User) -> Option<String> {
        None
    }

    async fn repository(&self, repo: &RepoName) -> Result<Repository, Error> {
        Ok(self.wire_repository(repo).await?.into())
    }

    async fn issue(&self, repo: &RepoName, number: u64) -> Result<Issue, Error> {
        let path = in_repo(repo, ["issues", &number.to_string()]);
        let call = Call::read(format!("read issue {number} of {repo}"), path);
        let issue: wire::Issue = self.get(&call).await?;
        if issue.number != number {
            return Err(call.nonsense(format!("it is about issue {}", issue.number)));
        }
        Ok(issue.into())
    }

    async fn history(&self, repo: &RepoName, number: u64, label: &str) -> Result<History, Error> {
        self.timeline(repo, number, label).await
    }

    async fn labelled(&self, repo: &RepoName, label: &str) -> Result<Vec<Issue>, Error> {
        self.labelled_issues(repo, label).await
    }

    async fn open_issues(&self, repo: &RepoName) -> Result<Vec<Issue>, Error> {
        self.all_open_issues(repo).await
    }

    async fn permission(&self, repo: &RepoName, user: &User) -> Result<Permission, Error> {
        if user.id <= 0 {
            // Deleted accounts and the forge's own actors have no rights that anyone could ask for.
            return Ok(Permission::None);
        }
        let what = format!("read the permission of `{}` in {repo}", user.login);
        let path = in_repo(repo, ["collaborators", &user.login, "permission"]);
        let call = Call::read(what, path);
        let answer: wire::CollaboratorPermission = match self.get(&call).await {
            Ok(answer) => answer,
            Err(denied @ Error::Denied { .. }) => {
                return self.permission_by_assignees(repo, user, denied).await;
            }
            Err(Error::Missing { .. }) => {
                // Either is missing, and only a missing user has no rights.
                self.wire_repository(repo).await?;
                return Ok(Permission::None);
            }
            Err(error) => return Err(error),
        };
        if answer.user.id != user.id {
            return Err(call.nonsense(format!("`{}` is another user than before", user.login)));
        }
        match answer.permission.as_str() {
            "owner" | "admin" => Ok(Permission::Admin),
            "write" => Ok(Permission::Write),
            "read" => Ok(Permission::Read),
            "none" => Ok(Permission::None),
            _ => Err(call.nonsense("it names no known permission")),
        }
    }

    async fn comments(&self, repo: &RepoName, number: u64) -> Result<Vec<Comment>, Error> {
        let what = format!("read the comments of issue {number} of {repo}");
        let path = in_repo(repo, ["issues", &number.to_string(), "comments"]);
        // This list alone is not paged.
        let comments: Option<Vec<wire::Comment>> = self.get(&Call::read(what, path)).await?;
        let mut comments: Vec<Comment> =
            comments.unwrap_or_default().into_iter().map(Into::into).collect();
        comments.sort_by_key(|comment| (comment.created_at, comment.id));
        Ok(comments)
    }

    async fn comment(&self, repo: &RepoName, number: u64, body: &str) -> Result<i64, Error> {
        let call = Call::write(
            format!("comment on issue {number} of {repo}"),
            Method::POST,
            in_repo(repo, ["issues", &number.to_string(), "comments"]),
            json!({ "body": body }),
            Repeat::Doubles,
        );
        let comment: wire::Id = self.get(&call).await?;
        Ok(comment.id)
    }

    async fn edit_comment(&self, repo: &RepoName, comment: i64, body: &str) -> Result<(), Error> {
        let call = Call::write(
            format!("edit comment {comment} of {repo}"),
            Method::PATCH,
            in_repo(repo, ["issues", "comments", &comment.to_string()]),
            json!({ "body": body }),
            Repeat::Harmless,
        );
        // Something else may answer in the forge's place, such as a proxy with a page of its own.
        match self.get::<wire::Id>(&call).await? {
            wire::Id { id } if id == comment => Ok(()),
            wire::Id { id } => Err(call.nonsense(format!("it is about comment {id}"))),
        }
    }

    async fn delete_comment(&self, repo: &RepoName, comment: i64) -> Result<(), Error> {
        let call = Call::delete(
            format!("delete comment {comment} of {repo}"),
            in_repo(repo, ["issues", "comments", &comment.to_string()]),
        );
        match self.http.send(&call).await {
            Ok(_) | Err(Error::Missing { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn react(&self, repo: &RepoName, number: u64, reaction: &str) -> Result<(), Error> {
        let what = format!("issue {number}");
        let call = Call::react((what, repo), ["issues", &number.to_string()], reaction);
        self.http.send(&call).await?;
        Ok(())
    }

    async fn react_to_comment(
        &self,
        repo: &RepoName,
        comment: i64,
        reaction: &str,
    ) -> Result<(), Error> {
        let path = ["issues", "comments", &comment.to_string()];
        let call = Call::react((format!("comment {comment}"), repo), path, reaction);
        self.http.send(&call).await?;
        Ok(())
    }

    async fn pull(&self, repo: &RepoName, number: u64) -> Result<Option<Pull>, Error> {
        let path = in_repo(repo, ["pulls", &number.to_string()]);
        let call = Call::read(format!("read pull request {number} of {repo}"), path);
        match self.get::<wire::Pull>(&call).await {
            Ok(pull) if pull.number == number => Ok(Some(self.as_pull(repo, pull))),
            Ok(pull) => Err(call.nonsense(format!("it is about pull request {}", pull.number))),
            Err(Error::Missing { .. }) => {
                // Hidden and absent look alike, so the repository itself must be there.
                self.wire_repository(repo).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn pull_by_head(
        &self,
        repo: &RepoName,
        base: &str,
        head: &str,
    ) -> Result<Option<Pull>, Error> {
        let found = self.wire_pull_by_head(repo, base, head).await?;
        Ok(found.map(|pull| self.as_pull(repo, pull)))
    }

    async fn open_draft(&self, repo: &RepoName, draft: &NewDraft) -> Result<Pull, Error> {
        let call = Call::write(
            format!("open a draft from `{}` into `{}` of {repo}", draft.head, draft.base),
            Method::POST,
            in_repo(repo, ["pulls"]),
            json!({
                "title": self.draft_title(&draft.title),
                "body": draft.body,
                "head": draft.head,
                "base": draft.base,
            }),
            Repeat::Doubles,
        );
        let refused = match self.get::<wire::Pull>(&call).await {
            Ok(pull) if pull.is_named(&draft.base, &draft.head) => {
                return Ok(self.as_pull(repo, pull));
            }
            Ok(pull) => call.nonsense(format!("it is about pull request {}", pull.number)),
            Err(error) => error,
        };
        match &refused {
            // One is open already, or the call may have been carried out though its answer was lost.
            Error::Declined { status: 409, .. }
            | Error::Unwell { .. }
            | Error::Unreachable { .. }
            | Error::Answer { .. } => match self.adoptable(repo, draft).await {
                Ok(Some(pull)) => Ok(pull),
                // The first error says more than what came of looking after it.
                Ok(None) | Err(_) => Err(refused),
            },
            Error::Auth { .. }
            | Error::Denied { .. }
            | Error::Missing { .. }
            | Error::Moved { .. }
            | Error::Declined { .. } => Err(refused),
        }
    }

    async fn branch_head(&self, repo: &RepoName, branch: &str) -> Result<Option<CommitId>, Error> {
        let mut path = in_repo(repo, ["branches"]);
        path.extend(branch.split('/').map(str::to_owned));
        let call = Call::read(format!("read branch `{branch}` of {repo}"), path);
        let id = match self.get::<wire::Branch>(&call).await {
            Ok(branch) => branch.commit.id,
            Err(Error::Missing { .. }) => {
                // Hidden and absent look alike, so the repository itself must be there.
                self.wire_repository(repo).await?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if !is_commit_id(&id) {
            return Err(call.nonsense("the branch's commit has no commit id"));
        }
        Ok(Some(CommitId(id)))
    }

    async fn remote(&self, repo: &RepoName) -> Result<Remote, Error> {
        Ok(Remote {
            url: join(&self.options.url, [&repo.owner, &format!("{}.git", repo.name)]),
            user: GIT_USER.to_owned(),
            password: self.options.token.clone(),
            ca_file: self.options.ca_file.clone(),
            proxy: self.options.proxy.clone(),
        })
    }

    async fn version(&self) -> Result<String, Error> {
        self.own_version().await
    }

    async fn clock(&self) -> Result<Option<DateTime<Utc>>, Error> {
        let call = Call::read("read the forge's clock".into(), vec!["version".into()]);
        self.http.clock(&call).await
    }

    async fn sees_permissions(&self, repo: &RepoName) -> Result<bool, Error> {
        self.sees_others(repo).await
    }

    async fn has_label(&self, repo: &RepoName, label: &str) -> Result<bool, Error> {
        self.lists_label(repo, label).await
    }
}

/// An open one before a closed one, then the highest number.
fn newest(pulls: Vec<wire::Pull>) -> Option<wire::Pull> {
    pulls.into_iter().max_by_key(|pull| (pull.is_open(), pull.number))
}

/// Whether a title has a prefix, as the servers compare it: without regard to the case of ASCII letters.
fn starts_with(title: &str, prefix: &str) -> bool {
    title.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}
