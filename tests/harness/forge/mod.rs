//! A fake Gitea, Forgejo or GitHub Enterprise Server on a loopback port: plain state, the REST calls that the bot makes, git over real smart
//! HTTP, signed webhooks, failures on demand.
//!
//! It answers in the forges' own shapes and checks every API request against their published schemas. It has no pages
//! for people; what people do is a method call ([`FakeForge::person`]). What it does not know it refuses and records,
//! and [`FakeForge::assert_clean`] fails the test at its end.

mod api;
mod backend;
mod faults;
mod git;
mod github;
mod hooks;
mod host;
mod issues;
mod look;
mod people;
mod pulls;
mod schema;
mod server;
mod shapes;
mod state;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bot::forge::Permission;
use bot::job::RepoName;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use url::Url;

use self::faults::Faults;
use self::git::Git;
use self::state::{Label, Repo, State, Token, User, UserKind};

pub use self::faults::{Fault, Matcher};
pub use self::git::Files;
pub use self::github::{AppCredentials, SeenCheck};
pub use self::hooks::{ContentType, Delivered, signature};
pub use self::host::GitHost;
pub use self::look::{SeenComment, SeenPull};
pub use self::people::Person;
pub use self::schema::Checker;
pub use self::server::{Reply, Request};

/// Which forge is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Gitea 1.24.
    Gitea124,
    /// Gitea 1.27.
    Gitea127,
    /// Forgejo 15.
    Forgejo15,
    /// GitHub Enterprise Server 3.14.
    Ghes314,
    /// GitHub Enterprise Server 3.19.
    Ghes319,
}

impl Dialect {
    /// All that are Gitea or come from it, for tests that hold there.
    pub const ALL: [Self; 3] = [Self::Gitea124, Self::Gitea127, Self::Forgejo15];

    /// All GitHub Enterprise Servers.
    pub const GITHUB: [Self; 2] = [Self::Ghes314, Self::Ghes319];

    /// Whether it is a GitHub Enterprise Server.
    pub fn is_github(self) -> bool {
        Self::GITHUB.contains(&self)
    }

    /// What the paths of its API begin with.
    pub fn api(self) -> &'static str {
        if self.is_github() { "/api/v3" } else { "/api/v1" }
    }

    /// What the configuration calls it.
    pub fn kind(self) -> config::ForgeKind {
        match self {
            Self::Gitea124 | Self::Gitea127 => config::ForgeKind::Gitea,
            Self::Forgejo15 => config::ForgeKind::Forgejo,
            Self::Ghes314 | Self::Ghes319 => config::ForgeKind::GitHub,
        }
    }
}

/// A running fake forge. It ends with its value.
pub struct FakeForge {
    shared: Arc<Shared>,
    server: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

/// What requests and tests share. Each lock is held for one step and never across an await.
struct Shared {
    state: Mutex<State>,
    faults: Mutex<Faults>,
    requests: Mutex<Vec<Request>>,
    violations: Mutex<Vec<String>>,
    deliveries: Mutex<Vec<Delivered>>,
    /// Deliveries that the bot's own calls caused and nobody waits for yet.
    pending: Mutex<JoinSet<()>>,
    hooks_are_held: AtomicBool,
    n_hung: AtomicUsize,
    checker: Checker,
    git: Git,
    git_slots: Semaphore,
    client: reqwest::Client,
    sub_path: String,
}

impl Drop for FakeForge {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeForge {
    /// A forge at the root of its own port.
    pub async fn start(dialect: Dialect) -> Self {
        Self::start_below(dialect, "").await
    }

    /// A forge below a path such as `/git`, as behind a proxy.
    pub async fn start_below(dialect: Dialect, sub_path: &str) -> Self {
        let folder = tempfile::tempdir().expect("the temp folder can be written");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(hooks::TIMEOUT)
            .build()
            .expect("a client without options can be made");
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(dialect, format!("http://{address}{sub_path}"))),
            faults: Mutex::default(),
            requests: Mutex::default(),
            violations: Mutex::default(),
            deliveries: Mutex::default(),
            pending: Mutex::default(),
            hooks_are_held: AtomicBool::new(false),
            n_hung: AtomicUsize::new(0),
            checker: Checker::new(dialect),
            git: Git::new(folder.path()),
            git_slots: Semaphore::new(4),
            client,
            sub_path: sub_path.to_owned(),
        });
        let server = server::start(listener, Arc::clone(&shared));
        Self { shared, server, _folder: folder }
    }

    /// Which forge is played.
    pub fn dialect(&self) -> Dialect {
        self.state().dialect
    }

    /// Where it is, as it stands in a configuration.
    pub fn url(&self) -> Url {
        self.state().root_url.parse().expect("the address was made from an address")
    }

    /// A repository whose branch `main` holds the files in one commit. Its owner is made if there is none. It may have
    /// the name of a deleted one, of which nothing is left then.
    pub fn add_repository(&self, owner: &str, name: &str, files: impl Into<Files>) -> RepoName {
        let name = RepoName { owner: owner.to_owned(), name: name.to_owned() };
        self.state().repos.retain(|repo| !(repo.is_gone && repo.name == name));
        let git_dir = self.shared.git.create(&name, &files.into());
        if self.state().user_by_login(owner).is_none() {
            self.add(owner, Permission::None, UserKind::Person);
        }
        let mut state = self.state();
        let (id, owner) = (state.id(), state.known(owner));
        state.repos.push(Repo {
            id,
            name: name.clone(),
            owner,
            is_private: false,
            is_archived: false,
            is_gone: false,
            has_pulls: true,
            default_branch: "main".to_owned(),
            permissions: Default::default(),
            team_readers: vec![],
            labels: vec![],
            issues: vec![],
            hooks: vec![],
            git_dir,
        });
        name
    }

    /// A person, or a bot: the forges know no difference. The permission holds in every repository that says nothing
    /// else. Returns the user's id.
    pub fn add_user(&self, login: &str, permission: Permission) -> i64 {
        self.add(login, permission, UserKind::Person)
    }

    /// A site administrator.
    pub fn add_site_admin(&self, login: &str) -> i64 {
        self.add(login, Permission::Admin, UserKind::SiteAdmin)
    }

    /// An organisation, to own repositories.
    pub fn add_organization(&self, login: &str) -> i64 {
        self.add(login, Permission::None, UserKind::Organization)
    }

    fn add(&self, login: &str, permission: Permission, kind: UserKind) -> i64 {
        let mut state = self.state();
        assert!(state.user_by_login(login).is_none(), "there is a user `{login}` already");
        let id = state.id();
        state.users.push(User { id, login: login.to_owned(), kind, permission });
        id
    }

    /// Gives a user another login, as people and admins can. The id stays.
    pub fn rename_user(&self, login: &str, to: &str) {
        let mut state = self.state();
        let id = state.known(login);
        let user = state.users.iter_mut().find(|user| user.id == id).expect("it was just found");
        user.login = to.to_owned();
    }

    /// Gives a user another permission in one repository.
    pub fn set_permission(&self, repo: &RepoName, login: &str, permission: Permission) {
        let mut state = self.state();
        let user = state.known(login);
        state.repo_mut(repo).permissions.insert(user, permission);
    }

    /// Makes a user a member of a team that may read a repository: assignable, without more rights.
    pub fn add_team_reader(&self, repo: &RepoName, login: &str) {
        let mut state = self.state();
        let user = state.known(login);
        state.repo_mut(repo).team_readers.push(user);
    }

    /// Hides a repository from everyone without permission.
    pub fn make_private(&self, repo: &RepoName) {
        self.state().repo_mut(repo).is_private = true;
    }

    /// Makes a repository read-only.
    pub fn archive(&self, repo: &RepoName) {
        self.state().repo_mut(repo).is_archived = true;
    }

    /// Takes a repository out of the archive.
    pub fn unarchive(&self, repo: &RepoName) {
        self.state().repo_mut(repo).is_archived = false;
    }

    /// Deletes a repository: everybody is told that there is none. A test may still look at it.
    pub fn delete_repository(&self, repo: &RepoName) {
        self.state().repo_mut(repo).is_gone = true;
    }

    /// Gives a repository another name, under which tests find it from then on. Whoever asks for the former one is sent
    /// to it.
    pub fn rename_repository(&self, repo: &RepoName, name: &str) -> RepoName {
        let present = RepoName { owner: repo.owner.clone(), name: name.to_owned() };
        let mut state = self.state();
        state.repo_mut(repo).name = present.clone();
        state.moved.push((repo.clone(), present.clone()));
        present
    }

    /// Makes another branch the default one.
    pub fn set_default_branch(&self, repo: &RepoName, branch: &str) {
        self.state().repo_mut(repo).default_branch = branch.to_owned();
    }

    /// Switches pull requests off.
    pub fn disable_pulls(&self, repo: &RepoName) {
        self.state().repo_mut(repo).has_pulls = false;
    }

    /// What people may put on issues. The labels that a test uses are made on the way; this is for more of them.
    pub fn add_label(&self, repo: &RepoName, name: &str) {
        label_id(&mut self.state(), repo, name);
    }

    /// Replaces the title prefixes that make a draft.
    pub fn set_draft_prefixes(&self, prefixes: &[&str]) {
        self.state().draft_prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
    }

    /// A token with every scope.
    pub fn token_for(&self, login: &str) -> String {
        self.token(login, &["all"], None)
    }

    /// A token with some scopes, such as `write:issue`.
    pub fn token_with_scopes(&self, login: &str, scopes: &[&str]) -> String {
        self.token(login, scopes, None)
    }

    /// Forgejo 15: a token for some repositories only, which has no admin powers there.
    pub fn token_limited_to(&self, login: &str, repos: &[&RepoName]) -> String {
        let only = repos.iter().map(|repo| self.state().repo_mut(repo).id).collect();
        self.token(login, &["write:repository", "write:issue", "read:user"], Some(only))
    }

    fn token(&self, login: &str, scopes: &[&str], only: Option<Vec<i64>>) -> String {
        let mut state = self.state();
        let user = state.known(login);
        let number = state.id();
        // Long and recognisable, so that a sighting is one.
        let value = format!("5ec2e7{number:034x}");
        let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        let token =
            Token { value: value.clone(), user, scopes, only, grant: None, is_revoked: false };
        state.tokens.push(token);
        value
    }

    /// Makes a token worthless, as its owner or an expiry date would.
    pub fn revoke(&self, token: &str) {
        self.set_revoked(token, true);
    }

    /// Makes a revoked token good again, as a forge does whose users were away for a while.
    pub fn restore(&self, token: &str) {
        self.set_revoked(token, false);
    }

    fn set_revoked(&self, token: &str, is_revoked: bool) {
        for known in self.state().tokens.iter_mut().filter(|known| known.value == token) {
            known.is_revoked = is_revoked;
        }
    }

    /// Makes the next `times` requests that match fail. The earliest armed fault that matches is the one.
    pub fn fault(&self, matcher: Matcher, fault: Fault, times: usize) {
        lock(&self.shared.faults).arm(matcher, fault, times);
    }

    /// Takes back all faults.
    pub fn clear_faults(&self) {
        lock(&self.shared.faults).clear();
    }

    /// How many requests have met a fault that never answers.
    pub fn n_hung(&self) -> usize {
        self.shared.n_hung.load(Ordering::SeqCst)
    }

    /// Records deliveries without sending them, or stops doing so. A held one can be sent by `redeliver`.
    pub fn hold_hooks(&self, hold: bool) {
        self.shared.hooks_are_held.store(hold, Ordering::SeqCst);
    }

    /// The id of a user.
    pub fn user_id(&self, login: &str) -> i64 {
        self.state().known(login)
    }

    /// A person at work.
    pub fn person(&self, login: &str) -> Person<'_> {
        Person { forge: self, id: self.state().known(login) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.state)
    }
}

/// A test that panicked while it held a lock has failed already; what it left may still be looked at.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The id of a label, which is made if there is none.
fn label_id(state: &mut State, repo: &RepoName, name: &str) -> i64 {
    if let Some(label) = state.repo_mut(repo).labels.iter().find(|label| label.name == name) {
        return label.id;
    }
    let id = state.id();
    state.repo_mut(repo).labels.push(Label { id, name: name.to_owned() });
    id
}
