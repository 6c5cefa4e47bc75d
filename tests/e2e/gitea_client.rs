//! The client for Gitea and Forgejo against the fake of both: each call, each class of error, paging, and what it must
//! never do. Then the fake itself: each of its watchers is seen to catch something once.

#![expect(clippy::unwrap_used, reason = "the scenes and helpers belong to the tests")]

use std::time::Duration;

use bot::forge::gitea::{Gitea, Options};
use bot::forge::{Error, Forge, LabelChange, NewDraft, Permission, Remote, User};
use bot::job::RepoName;
use tests::forge::{Checker, Dialect, FakeForge, Fault, Matcher};

mod answers;
mod errors;
mod fake;
mod git;
mod tls;

/// A forge with one repository, a maintainer, and the bot, which may write.
struct Scene {
    forge: FakeForge,
    repo: RepoName,
    token: String,
    client: Gitea,
}

impl Scene {
    async fn new(dialect: Dialect) -> Self {
        Self::below(dialect, "").await
    }

    async fn below(dialect: Dialect, sub_path: &str) -> Self {
        let forge = FakeForge::start_below(dialect, sub_path).await;
        forge.add_user("ada", Permission::Write);
        forge.add_user("hyla", Permission::Write);
        let repo = forge.add_repository("acme", "app", [("README.md", "Hello\n")]);
        let token = forge.token_for("hyla");
        let client = client(&forge, dialect, &token);
        Self { forge, repo, token, client }
    }

    /// The same, with the bot as an admin of the repository, so that it may ask for permissions.
    async fn with_admin_bot(dialect: Dialect) -> Self {
        let scene = Self::new(dialect).await;
        scene.forge.set_permission(&scene.repo, "hyla", Permission::Admin);
        scene
    }

    async fn remote(&self) -> Remote {
        self.client.remote(&self.repo).await.expect("its token is at hand")
    }

    async fn issue(&self) -> u64 {
        self.forge.person("ada").open_issue(&self.repo, "It breaks", "Badly.", &[]).await
    }

    fn user(&self, login: &str) -> User {
        let id = self.forge.user_id(login);
        User { id, login: login.to_owned() }
    }

    /// A branch with a change, as if the bot had pushed it, and the draft that goes with it.
    fn draft(&self) -> NewDraft {
        self.forge.person("hyla").commit(&self.repo, "hyla/issue-1-1", [("a.txt", "a\n")]);
        NewDraft {
            title: "Mend it".into(),
            body: "For #1.".into(),
            head: "hyla/issue-1-1".into(),
            base: "main".into(),
        }
    }

    fn n_requests(&self, method: &str, end: &str) -> usize {
        let requests = self.forge.requests();
        requests.iter().filter(|r| r.method == method && r.path.ends_with(end)).count()
    }
}

fn options(forge: &FakeForge, dialect: Dialect, token: &str) -> Options {
    Options {
        kind: dialect.kind(),
        url: forge.url(),
        public_url: None,
        token: token.to_owned().into(),
        draft_prefix: "WIP:".into(),
        ca_file: None,
        proxy: None,
        timeout: Duration::from_secs(20),
    }
}

fn client(forge: &FakeForge, dialect: Dialect, token: &str) -> Gitea {
    Gitea::new(options(forge, dialect, token)).expect("the options are good")
}
