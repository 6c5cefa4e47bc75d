//! What only GitHub has, and what a test sets up there: the App, its installations, its hook, the server's clock.
//!
//! One app is enough for one bot. Permissions are asked for and given all at once; no owner has to accept later ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use bot::clock::{Clock, System};
use bot::forge::Permission;
use bot::job::RepoName;
use chrono::{DateTime, Utc};
use openssl::pkey::{PKey, Public};

use super::super::hooks::{ContentType, Hook, Target};
use super::super::state::UserKind;
use super::super::{FakeForge, lock};
use super::checks::Check;
use super::{jwt, ping};

/// What an app is told of that says nothing else.
const EVENTS: [&str; 3] = ["issue_comment", "issues", "pull_request"];

/// What only GitHub has.
pub(in super::super) struct World {
    pub(super) app: Option<App>,
    pub(super) refuses_drafts: bool,
    pub(super) checks: Vec<Check>,
    clock: Arc<dyn Clock>,
}

impl Default for World {
    fn default() -> Self {
        Self { app: None, refuses_drafts: false, checks: vec![], clock: Arc::new(System) }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("app", &self.app).finish_non_exhaustive()
    }
}

/// The GitHub App.
#[derive(Debug)]
pub(super) struct App {
    pub id: i64,
    pub slug: String,
    /// The `[bot]` user that it acts as.
    pub user: i64,
    pub key: PKey<Public>,
    pub permissions: BTreeMap<String, String>,
    /// What its hook is told of.
    pub events: Vec<String>,
    pub is_suspended: bool,
    pub hook: Option<Hook>,
    pub installations: Vec<Installation>,
}

/// An account that has the App.
#[derive(Debug)]
pub(super) struct Installation {
    pub id: i64,
    pub account: i64,
    /// The ids of the account's repositories that the App may see.
    pub repos: Vec<i64>,
}

/// What the owner of an App knows of it.
#[derive(Debug, Clone)]
pub struct AppCredentials {
    /// Its number.
    pub id: i64,
    /// The login of the user that it acts as.
    pub login: String,
    /// Its private key, in PEM.
    pub private_key: String,
}

impl World {
    /// The server's time, by which tokens and assertions end.
    pub(in super::super) fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    pub(in super::super) fn app_hook(&self) -> Option<&Hook> {
        self.app.as_ref()?.hook.as_ref()
    }

    /// The installation of the app for a repository.
    pub(in super::super) fn installation(&self, repo: i64) -> Option<i64> {
        let installations = &self.app.as_ref()?.installations;
        installations.iter().find(|it| it.repos.contains(&repo)).map(|it| it.id)
    }
}

impl FakeForge {
    /// GitHub: makes the app, which may write contents, issues, pull requests, statuses and checks wherever it is installed.
    ///
    /// # Panics
    /// There is one already, or the forge is no GitHub.
    pub fn register_app(&self, slug: &str) -> AppCredentials {
        assert!(self.dialect().is_github(), "only GitHub has apps");
        let login = format!("{slug}[bot]");
        let user = self.add(&login, Permission::None, UserKind::Bot);
        let pair = jwt::key_pair();
        let mut state = self.state();
        assert!(state.github.app.is_none(), "there is an app already");
        let id = state.id();
        let permissions = ["checks", "contents", "issues", "pull_requests", "statuses"];
        let permissions = permissions.map(|name| (name.to_owned(), "write".to_owned()));
        let read = [("metadata".to_owned(), "read".to_owned())];
        state.github.app = Some(App {
            id,
            slug: slug.to_owned(),
            user,
            key: pair.public.clone(),
            permissions: permissions.into_iter().chain(read).collect(),
            events: EVENTS.map(str::to_owned).to_vec(),
            is_suspended: false,
            hook: None,
            installations: vec![],
        });
        AppCredentials { id, login, private_key: pair.private_pem.clone() }
    }

    /// Installs the app for a repository, besides those of the same owner that have it.
    pub fn install_app(&self, repo: &RepoName) {
        let mut state = self.state();
        let fresh = state.id();
        let found = state.repo_mut(repo);
        let (repo_id, account) = (found.id, found.owner);
        let app = state.github.app.as_mut().expect("the test made an app");
        let user = app.user;
        match app.installations.iter_mut().find(|it| it.account == account) {
            Some(installation) if installation.repos.contains(&repo_id) => {}
            Some(installation) => installation.repos.push(repo_id),
            None => {
                app.installations.push(Installation { id: fresh, account, repos: vec![repo_id] });
            }
        }
        state.repo_mut(repo).permissions.insert(user, Permission::Write);
    }

    /// Takes a repository from the app. Tokens that were for it are for nothing there any more.
    pub fn uninstall_app(&self, repo: &RepoName) {
        let mut state = self.state();
        let repo_id = state.repo_mut(repo).id;
        let app = state.github.app.as_mut().expect("the test made an app");
        let user = app.user;
        for installation in &mut app.installations {
            installation.repos.retain(|id| *id != repo_id);
        }
        app.installations.retain(|installation| !installation.repos.is_empty());
        state.repo_mut(repo).permissions.remove(&user);
        for token in state.tokens.iter_mut().filter(|token| token.grant.is_some()) {
            token.only.get_or_insert_default().retain(|id| *id != repo_id);
        }
    }

    /// Replaces what the app may do. Tokens that were minted before keep what they have.
    pub fn set_app_permissions(&self, permissions: &[(&str, &str)]) {
        let mut state = self.state();
        let app = state.github.app.as_mut().expect("the test made an app");
        app.permissions =
            permissions.iter().map(|(name, level)| ((*name).into(), (*level).into())).collect();
    }

    /// Replaces the events that the app's hook is told of, as its settings show them.
    pub fn set_app_events(&self, events: &[&str]) {
        let mut state = self.state();
        let app = state.github.app.as_mut().expect("the test made an app");
        app.events = events.iter().map(|event| (*event).to_owned()).collect();
    }

    /// Suspends every installation of the app, as their owners can, or ends that. Tokens are not minted meanwhile.
    pub fn suspend_app(&self, suspend: bool) {
        let mut state = self.state();
        state.github.app.as_mut().expect("the test made an app").is_suspended = suspend;
    }

    /// The app's hook, which is told of every repository that has the app. It is pinged. Returns its id.
    pub fn set_app_hook(&self, url: &str, secret: &str) -> i64 {
        let mut state = self.state();
        let id = state.id();
        let app = state.github.app.as_mut().expect("the test made an app");
        let target = Target::App(app.id);
        let (url, secret) = (url.to_owned(), secret.to_owned());
        let hook = Hook { id, url, secret, content_type: ContentType::Json, target };
        app.hook = Some(hook.clone());
        self.shared.announce(vec![ping(&state, &hook, None)]);
        id
    }

    /// The server's clock; the machine's without it. Assertions and tokens begin and end by it.
    pub fn keep_time(&self, clock: Arc<dyn Clock>) {
        self.state().github.clock = clock;
    }

    /// Ends every installation token, as an hour would.
    pub fn expire_app_tokens(&self) {
        let mut state = self.state();
        let now = state.github.now();
        for grant in state.tokens.iter_mut().filter_map(|token| token.grant.as_mut()) {
            grant.expires_at = now;
        }
    }

    /// GitHub: takes no drafts any more, as in private repositories of some plans.
    pub fn refuse_drafts(&self) {
        lock(&self.shared.state).github.refuses_drafts = true;
    }
}
