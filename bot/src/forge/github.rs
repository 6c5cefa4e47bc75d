//! GitHub Enterprise Server from 3.14, as an app or with a user's token. It fails closed: what an answer leaves unclear is an
//! error.
//!
//! Tokens of an app come from `octocrab`; every call goes through the door of all forges, which bounds answers, waits as the
//! server asks and repeats what may be repeated. It never marks a draft as ready, never merges and never closes.

mod app;
mod closes;
mod list;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use config::{Credential, WithoutDrafts};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::OnceCell;
use url::Url;

use self::app::App;
use crate::forge::client::{Client, SetupError, in_repo, is_commit_id};
use crate::forge::http::{Bearer, Call, Http, Mint, Profile, Repeat, join};
use crate::forge::{
    Comment, Error, Forge, History, Issue, NewDraft, OwnApp, Permission, Pull, Remote, Repository,
    User,
};
use crate::job::{CommitId, RepoName};

/// The git user name. The server looks at the token alone.
const GIT_USER: &str = "x-access-token";

/// What every call asks for: JSON of a version that all supported servers know.
const HEADERS: &[(&str, &str)] =
    &[("accept", "application/vnd.github+json"), ("x-github-api-version", "2022-11-28")];

/// A GitHub Enterprise Server.
pub(super) struct GitHub {
    settings: config::Forge,
    /// Where people find it: the address without what belongs to the API.
    web: Url,
    http: Http,
    who: Who,
    own: OnceCell<User>,
}

/// As whom the bot speaks.
enum Who {
    User(SecretString),
    App(Arc<App>),
}

impl GitHub {
    /// A client. Nothing is sent yet.
    ///
    /// # Errors
    /// An address, a certificate or a secret cannot be used.
    pub(super) fn new(
        settings: &config::Forge,
        credential: &Credential,
    ) -> Result<Self, SetupError> {
        let client = Client {
            url: &settings.url,
            public_url: settings.public_url.as_ref(),
            ca_file: settings.ca_file.as_ref(),
            proxy: settings.proxy.as_ref(),
            timeout: settings.timeout,
        };
        let client = client.build()?;
        let web = web(&settings.url);
        let api = join(&web, ["api", "v3"]);
        let (bearer, who) = match credential {
            Credential::Token(token) => {
                let bearer = Bearer::fixed(&format!("Bearer {}", token.expose_secret()), token)?;
                (bearer, Who::User(token.clone()))
            }
            Credential::App { id, private_key } => {
                let home = settings.repositories.first().and_then(|name| name.parse().ok());
                let home = home.ok_or(SetupError::NoRepository)?;
                let app = App::new(client.clone(), &api, (*id, private_key), home)?;
                let app = Arc::new(app);
                (Bearer::Minted(Arc::clone(&app) as Arc<dyn Mint>), Who::App(app))
            }
        };
        let profile = Profile { api, headers: HEADERS, pause: settings.write_pause, bearer };
        let http = Http::new(client, profile);
        Ok(Self { settings: settings.clone(), web, http, who, own: OnceCell::new() })
    }

    /// Sends a call. Of a repository that was renamed, the server tells a number alone; its name is asked for.
    async fn send<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        match self.http.send(call).await {
            Ok(answer) => answer.json(call),
            Err(Error::Moved { call: what, to }) => {
                let path = to.split('/').map(str::to_owned).collect();
                let named = Call::read(format!("read the name of {to}"), path);
                match self.http.send(&named).await.and_then(|answer| answer.json(&named)) {
                    Ok(wire::Repository { full_name, .. }) => {
                        Err(Error::Moved { call: what, to: full_name })
                    }
                    Err(_) => Err(Error::Moved { call: what, to }),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn wire_repository(&self, repo: &RepoName) -> Result<wire::Repository, Error> {
        self.send(&Call::read(format!("read repository {repo}"), in_repo(repo, []))).await
    }

    /// None where it is not there. Hidden and absent look alike, so the repository itself must be there.
    async fn find<T: DeserializeOwned>(
        &self,
        repo: &RepoName,
        call: &Call,
    ) -> Result<Option<T>, Error> {
        match self.send(call).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::Missing { .. }) => {
                self.wire_repository(repo).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn as_pull(&self, repo: &RepoName, pull: wire::Pull) -> Pull {
        Pull {
            number: pull.number,
            link: self.link(repo, pull.number),
            is_open: pull.is_open(),
            is_merged: pull.merged_at.is_some(),
            is_draft: pull.draft,
            head_commit: pull.head_commit(),
            is_from_here: pull.is_from_here(),
            title: pull.title,
            author: wire::author(pull.user).id,
            head: pull.head.branch,
        }
    }

    /// A link for people to a pull request.
    fn link(&self, repo: &RepoName, number: u64) -> String {
        let base = self.settings.public_url.as_ref().unwrap_or(&self.web);
        join(base, [&repo.owner, &repo.name, "pull", &number.to_string()]).into()
    }

    async fn open(
        &self,
        repo: &RepoName,
        draft: &NewDraft,
        (title, is_draft): (&str, bool),
    ) -> Result<Pull, Error> {
        let call = Call::write(
            format!("open a draft from `{}` into `{}` of {repo}", draft.head, draft.base),
            Method::POST,
            in_repo(repo, ["pulls"]),
            json!({
                "title": title,
                "body": draft.body,
                "head": draft.head,
                "base": draft.base,
                "draft": is_draft,
            }),
            Repeat::Doubles,
        );
        let pull: wire::Pull = self.send(&call).await?;
        if !pull.is_between(&draft.base, &draft.head) {
            return Err(call.nonsense(format!("it is about pull request {}", pull.number)));
        }
        Ok(self.as_pull(repo, pull))
    }

    /// The open pull request for a draft's branches, if the bot itself made it.
    async fn adoptable(&self, repo: &RepoName, draft: &NewDraft) -> Result<Option<Pull>, Error> {
        let pull = self.pull_by_head(repo, &draft.base, &draft.head).await?;
        let own = self.whoami().await?.id;
        Ok(pull.filter(|pull| pull.is_open && pull.author == own))
    }
}

/// The address without a final slash and without what belongs to the API.
fn web(url: &Url) -> Url {
    let mut web = url.clone();
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix("/api/v3").unwrap_or(path).to_owned();
    web.set_path(&path);
    web
}

/// Whether the server says that the repository takes no drafts.
fn takes_no_drafts(error: &Error) -> bool {
    let Error::Declined { status: 422, message, .. } = error else { return false };
    message.to_ascii_lowercase().contains("draft pull requests are not supported")
}

#[async_trait]
impl Forge for GitHub {
    async fn whoami(&self) -> Result<User, Error> {
        let app = match &self.who {
            Who::User(_) => {
                let call = Call::read("read the bot's own user".into(), vec!["user".into()]);
                return Ok(self.send::<wire::User>(&call).await?.into());
            }
            Who::App(app) => app,
        };
        let ask = || async {
            let login = format!("{}[bot]", app.slug().await?);
            let what = format!("read the user `{login}` of the bot's own app");
            let call = Call::read(what, vec!["users".into(), login]);
            Ok(User::from(self.send::<wire::User>(&call).await?))
        };
        self.own.get_or_try_init(ask).await.cloned()
    }

    fn email_of(&self, user: &User) -> Option<String> {
        let host = self.settings.public_url.as_ref().unwrap_or(&self.web).host_str()?;
        Some(format!("{}+{}@users.noreply.{host}", user.id, user.login))
    }

    async fn repository(&self, repo: &RepoName) -> Result<Repository, Error> {
        Ok(self.wire_repository(repo).await?.into())
    }

    async fn issue(&self, repo: &RepoName, number: u64) -> Result<Issue, Error> {
        let path = in_repo(repo, ["issues", &number.to_string()]);
        let call = Call::read(format!("read issue {number} of {repo}"), path);
        let issue: wire::Issue = self.send(&call).await?;
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
            // A deleted account has no rights that anyone could ask for.
            return Ok(Permission::None);
        }
        let what = format!("read the permission of `{}` in {repo}", user.login);
        let path = in_repo(repo, ["collaborators", &user.login, "permission"]);
        let call = Call::read(what, path);
        let Some(answer) = self.find::<wire::CollaboratorPermission>(repo, &call).await? else {
            return Ok(Permission::None);
        };
        if answer.user.as_ref().is_some_and(|answered| answered.id != user.id) {
            return Err(call.nonsense(format!("`{}` is another user than before", user.login)));
        }
        answer.level().ok_or_else(|| call.nonsense("it names no known permission"))
    }

    async fn comments(&self, repo: &RepoName, number: u64) -> Result<Vec<Comment>, Error> {
        let what = format!("read the comments of issue {number} of {repo}");
        let path = in_repo(repo, ["issues", &number.to_string(), "comments"]);
        let comments: Vec<wire::Comment> = self.get_all(Call::read(what, path)).await?;
        let mut comments: Vec<Comment> = comments.into_iter().map(Into::into).collect();
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
        let comment: wire::Id = self.send(&call).await?;
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
        match self.send::<wire::Id>(&call).await? {
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
        match self.find::<wire::Pull>(repo, &call).await? {
            Some(pull) if pull.number != number => {
                Err(call.nonsense(format!("it is about pull request {}", pull.number)))
            }
            found => Ok(found.map(|pull| self.as_pull(repo, pull))),
        }
    }

    async fn pull_by_head(
        &self,
        repo: &RepoName,
        base: &str,
        head: &str,
    ) -> Result<Option<Pull>, Error> {
        let found = self.newest_pull(repo, base, head).await?;
        Ok(found.map(|pull| self.as_pull(repo, pull)))
    }

    async fn open_draft(&self, repo: &RepoName, draft: &NewDraft) -> Result<Pull, Error> {
        let mut opened = self.open(repo, draft, (&draft.title, true)).await;
        if opened.as_ref().is_err_and(takes_no_drafts)
            && self.settings.without_drafts == WithoutDrafts::Prefix
        {
            let title = format!("{} {}", self.settings.draft_prefix.trim(), draft.title);
            opened = self.open(repo, draft, (&title, false)).await;
        }
        let refused = match opened {
            Ok(pull) => return Ok(pull),
            Err(error) => error,
        };
        match &refused {
            // One is open already, or the call may have been carried out though its answer was lost.
            Error::Declined { status: 422, .. }
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
        let mut path = in_repo(repo, ["git", "ref", "heads"]);
        path.extend(branch.split('/').map(str::to_owned));
        let call = Call::read(format!("read branch `{branch}` of {repo}"), path);
        let Some(found) = self.find::<wire::Ref>(repo, &call).await? else { return Ok(None) };
        if found.name != format!("refs/heads/{branch}") || !is_commit_id(&found.object.sha) {
            return Err(call.nonsense("it is about another branch, or has no commit id"));
        }
        Ok(Some(CommitId(found.object.sha)))
    }

    async fn remote(&self, repo: &RepoName) -> Result<Remote, Error> {
        let password = match &self.who {
            Who::User(token) => token.clone(),
            Who::App(app) => {
                let what = format!("get a token for git in {repo}");
                app.token(&Call::read(what, in_repo(repo, []))).await?
            }
        };
        Ok(Remote {
            url: join(&self.web, [&repo.owner, &format!("{}.git", repo.name)]),
            user: GIT_USER.to_owned(),
            password,
            ca_file: self.settings.ca_file.clone(),
            proxy: self.settings.proxy.clone(),
        })
    }

    async fn version(&self) -> Result<String, Error> {
        let call = Call::read("read the forge's version".into(), vec!["meta".into()]);
        let meta: wire::Meta = self.send(&call).await?;
        meta.installed_version.ok_or_else(|| call.nonsense("it names no version"))
    }

    async fn clock(&self) -> Result<Option<DateTime<Utc>>, Error> {
        let call = Call::read("read the forge's clock".into(), vec!["meta".into()]);
        self.http.clock(&call).await
    }

    async fn sees_permissions(&self, repo: &RepoName) -> Result<bool, Error> {
        let owner = self.wire_repository(repo).await?.owner;
        match self.permission(repo, &owner.into()).await {
            // An organisation is no user whom a permission could be asked of.
            Ok(_) | Err(Error::Answer { .. }) => Ok(true),
            Err(Error::Denied { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn has_label(&self, repo: &RepoName, label: &str) -> Result<bool, Error> {
        let what = format!("read the label of {repo}");
        let call = Call::read(what, in_repo(repo, ["labels", label]));
        Ok(self.find::<serde::de::IgnoredAny>(repo, &call).await?.is_some())
    }

    fn own_app(&self) -> Option<&dyn OwnApp> {
        match &self.who {
            Who::User(_) => None,
            Who::App(app) => Some(app.as_ref()),
        }
    }
}
