//! The whole bot in one process: real store, real git over HTTP, real sandbox; a fake forge, a recording in the model's
//! place, and a clock that the test moves.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bot::bot::Bot;
use bot::clock::{Clock, Manual};
use bot::egress::Internet;
use bot::forge::Permission;
use bot::job::{End, RepoName, State};
use bot::obey;
use bot::serve;
use bot::store::Row;
use bot::worker::Stop;
use chrono::DateTime;
use tokio::task::JoinHandle;
use url::Url;

use crate::forge::{AppCredentials, Dialect, FakeForge, Fault, Files, Matcher};
use crate::model::{MODEL, ModelServer, Recording};
use crate::outside::files_below;
use crate::proxy::Proxy;
use crate::tls::{NOWHERE, TlsFront};

/// The secret of every webhook in tests.
pub const WEBHOOK_SECRET: &str = "a-webhook-secret-of-tests";
/// How often a test steps the worker before it gives up: far more than any story needs.
const STEPS: usize = 50;

/// As whom the bot works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// As the user `hyla`, with a token.
    User,
    /// As the GitHub App `hyla`, installed for the repository, with a hook of its own.
    App,
}

/// A forge and as whom the bot works there: a row of the table that stories of every forge run through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which forge.
    pub dialect: Dialect,
    /// As whom.
    pub identity: Identity,
}

impl Place {
    /// The newest Gitea.
    pub const GITEA: Self = Self::new(Dialect::Gitea127, Identity::User);
    /// Forgejo.
    pub const FORGEJO: Self = Self::new(Dialect::Forgejo15, Identity::User);
    /// GitHub Enterprise Server, as an app.
    pub const GITHUB_APP: Self = Self::new(Dialect::Ghes314, Identity::App);
    /// GitHub Enterprise Server, with a user's token.
    pub const GITHUB_USER: Self = Self::new(Dialect::Ghes319, Identity::User);

    /// One of each kind, GitHub both ways.
    pub const ALL: [Self; 4] = [Self::GITEA, Self::FORGEJO, Self::GITHUB_APP, Self::GITHUB_USER];

    /// The other versions, and GitHub's versions the other way.
    pub const OTHERS: [Self; 3] = [
        Self::new(Dialect::Gitea124, Identity::User),
        Self::new(Dialect::Ghes314, Identity::User),
        Self::new(Dialect::Ghes319, Identity::App),
    ];

    const fn new(dialect: Dialect, identity: Identity) -> Self {
        Self { dialect, identity }
    }

    /// The usual house in this place.
    pub fn setup(self) -> Setup {
        self.with(Setup::default())
    }

    /// Another house in this place.
    pub fn with(self, setup: Setup) -> Setup {
        Setup { dialect: self.dialect, identity: self.identity, ..setup }
    }

    /// The path of what is in the repository, below the forge's address.
    pub fn in_repo(self, rest: &str) -> String {
        format!("{}/repos/acme/hours{rest}", self.dialect.api())
    }

    /// Whether the bot is an app here.
    pub fn is_app(self) -> bool {
        self.identity == Identity::App
    }

    /// The login of the bot here.
    pub fn login(self) -> &'static str {
        match self.identity {
            Identity::User => "hyla",
            Identity::App => "hyla[bot]",
        }
    }

    /// What a draft's title begins with here.
    pub fn draft_prefix(self) -> &'static str {
        if self.dialect.is_github() { "" } else { "WIP: " }
    }
}

/// How a house is set up.
pub struct Setup {
    /// Which forge.
    pub dialect: Dialect,
    /// As whom the bot works there.
    pub identity: Identity,
    /// The path that the forge lies below, such as `/git`.
    pub sub_path: &'static str,
    /// What the model does.
    pub recording: Recording,
    /// What the repository holds.
    pub files: Files,
    /// Names and connections for setup commands; the machine's own without any.
    pub internet: Option<Arc<dyn Internet>>,
    /// Changes the configuration.
    pub change: Box<dyn FnOnce(&mut config::Config) + Send>,
    /// Whether the bot reaches the forge through a proxy that speaks TLS, with a certificate that only its `ca_file` knows.
    pub is_behind_tls: bool,
    /// Whether the bot reaches what speaks TLS before the forge through a proxy alone: its host has no address.
    pub is_behind_proxy: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            dialect: Dialect::Gitea127,
            identity: Identity::User,
            sub_path: "",
            recording: demo_recording(),
            files: demo_folder().join("repository").as_path().into(),
            internet: None,
            change: Box::new(|_| {}),
            is_behind_tls: false,
            is_behind_proxy: false,
        }
    }
}

/// The folder with the demonstration: a repository, an issue, a recording.
pub fn demo_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo")
}

/// The recorded conversation of the demonstration.
pub fn demo_recording() -> Recording {
    Recording::from_json(include_str!("../demo/recording.json")).expect("a test reads this file")
}

/// Title and text of the demonstration's issue.
pub fn demo_issue() -> (&'static str, &'static str) {
    let text = include_str!("../demo/issue.md").trim_start_matches("# ");
    text.split_once("\n\n").expect("the issue has a title and a text")
}

/// The built `hyla` binary, beside the test's own.
///
/// # Panics
/// It is not there.
pub fn hyla_binary() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its own path");
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("hyla")).find(|path| path.is_file());
    found.expect("the binary `hyla` is not built; run `cargo build --workspace` first")
}

/// The same in a folder, for a user to whom the way to what was built may be closed.
///
/// # Panics
/// It cannot be written there.
pub fn copy_of_hyla(folder: &Path) -> PathBuf {
    let copy = folder.join("hyla");
    // Another process copies it: what other tests fork meanwhile would inherit a file of ours that is open for writing, and
    // the kernel starts no program that somebody may write ("text file busy").
    if !copy.exists() {
        let copied = std::process::Command::new("cp").arg(hyla_binary()).arg(&copy).status();
        assert!(copied.expect("`cp` is there").success(), "cannot write {}", copy.display());
    }
    copy
}

/// The bot with everything around it.
pub struct House {
    /// The forge.
    pub forge: FakeForge,
    /// The model's server.
    pub model: ModelServer,
    /// The bot.
    pub bot: Arc<Bot>,
    /// Its clock.
    pub clock: Arc<Manual>,
    /// The repository `acme/hours`.
    pub repo: RepoName,
    /// The login of the bot.
    pub login: String,
    /// The token of the bot's user, or the private key of the app that it is.
    pub token: String,
    /// The address of the bot's webhook.
    pub hook: String,
    folder: tempfile::TempDir,
    server: JoinHandle<()>,
    /// The proxy that leads to the forge, if there is one.
    pub proxy: Option<Proxy>,
    _front: Option<TlsFront>,
}

impl House {
    /// The usual one.
    pub async fn usual() -> Self {
        Self::start(Setup::default()).await
    }

    /// A forge with one repository, `ann` who may write, `rob` who may read, the bot's user `hyla`, a hook, and the bot.
    ///
    /// # Panics
    /// Something cannot be started.
    pub async fn start(setup: Setup) -> Self {
        let forge = FakeForge::start_below(setup.dialect, setup.sub_path).await;
        let repo = forge.add_repository("acme", "hours", setup.files);
        for (login, permission) in
            [("ann", Permission::Write), ("rob", Permission::Read), ("hyla", Permission::Admin)]
        {
            forge.add_user(login, Permission::None);
            forge.set_permission(&repo, login, permission);
        }
        forge.add_label(&repo, "hyla");
        let credential = match setup.identity {
            Identity::User => Credential::Token(forge.token_for("hyla")),
            Identity::App => {
                let app = forge.register_app("hyla");
                forge.install_app(&repo);
                Credential::App(app)
            }
        };
        let model = ModelServer::start(setup.recording).await.expect("loopback has a free port");
        let folder = way();
        let text = configuration_as(folder.path(), &forge, &model.url(), &credential);
        let file = folder.path().join("hyla.toml");
        std::fs::write(&file, text).expect("the temp folder can be written");
        let mut config = config::load(&file).expect("the configuration of tests is right");
        let front = match setup.is_behind_tls {
            true => Some(tls_before(&forge, &mut config).await),
            false => None,
        };
        let proxy = match setup.is_behind_proxy {
            true => Some(proxy_before(&mut config).await),
            false => None,
        };
        (setup.change)(&mut config);
        let secrets = config.secrets(&file).expect("the secrets of tests are there");
        let start = DateTime::from_timestamp(1_800_000_000, 0).expect("that is an instant");
        let clock = Arc::new(Manual::new(start));
        let bot = Bot::open(config, &secrets, hyla_binary(), Arc::clone(&clock) as Arc<dyn Clock>);
        let mut bot = bot.await.expect("the bot of tests opens");
        if let Some(internet) = setup.internet {
            bot.workshop.internet = internet;
        }
        let bot = Arc::new(bot);
        let router = serve::router(&bot, &secrets).expect("the webhooks of tests are right");
        let (hook, server) = listen(router).await;
        let (login, token) = match credential {
            Credential::Token(token) => {
                forge.register_hook(&repo, &hook, WEBHOOK_SECRET);
                ("hyla".to_owned(), token)
            }
            Credential::App(app) => {
                forge.set_app_hook(&hook, WEBHOOK_SECRET);
                (app.login, app.private_key)
            }
        };
        // GitHub pings a fresh hook.
        forge.settle().await;
        Self {
            forge,
            model,
            bot,
            clock,
            repo,
            login,
            token,
            hook,
            folder,
            server,
            proxy,
            _front: front,
        }
    }

    /// A second bot on the same data, as a second process on this machine would be.
    ///
    /// # Panics
    /// It does not open.
    pub async fn second_bot(&self) -> Bot {
        self.second_bot_at(Arc::clone(&self.clock) as Arc<dyn Clock>).await
    }

    /// The same, with a clock of its own.
    ///
    /// # Panics
    /// It does not open.
    pub async fn second_bot_at(&self, clock: Arc<dyn Clock>) -> Bot {
        let bot = Bot::open(self.bot.config.clone(), &self.secrets(), hyla_binary(), clock).await;
        bot.expect("the second bot of tests opens")
    }

    /// The secrets of the configuration.
    ///
    /// # Panics
    /// They are gone.
    pub fn secrets(&self) -> config::Secrets {
        let secrets = self.bot.config.secrets(&self.folder.path().join("hyla.toml"));
        secrets.expect("the secrets of tests are there")
    }

    /// The folder with configuration and data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Opens the demonstration's issue as `ann`.
    pub async fn open_issue(&self) -> u64 {
        let (title, body) = demo_issue();
        self.forge.person("ann").open_issue(&self.repo, title, body, &[]).await
    }

    /// Opens the demonstration's issue, puts the label on as `ann`, and works until nothing is due.
    pub async fn labelled_and_worked(&self) -> u64 {
        let issue = self.open_issue().await;
        self.forge.person("ann").add_label(&self.repo, issue, "hyla").await;
        self.work().await;
        issue
    }

    /// Lets the clock pass the short wait for more webhooks, and works until nothing is due.
    ///
    /// # Panics
    /// It never ends.
    pub async fn work(&self) {
        self.clock.advance(self.bot.config.queue.settle);
        for _ in 0..STEPS {
            if !self.step().await {
                return;
            }
        }
        panic!("there is always one more job");
    }

    /// Has `ann` put the label on the demonstration's issue and works until the branch is pushed and the forge, for once,
    /// does not open the draft. Returns the issue.
    pub async fn pushed_without_a_draft(&self) -> u64 {
        let issue = self.open_issue().await;
        let pulls = format!("{}/repos/acme/hours/pulls", self.forge.dialect().api());
        let open = Matcher::new("POST", &pulls);
        self.forge.fault(open, Fault::status(500, "down"), 1);
        self.forge.person("ann").add_label(&self.repo, issue, "hyla").await;
        self.work().await;
        issue
    }

    /// Works, waiting out every retry, until the queue is empty.
    ///
    /// # Panics
    /// It never ends.
    pub async fn work_through_retries(&self) {
        for _ in 0..STEPS {
            self.work().await;
            match self.bot.store.next_due().await.expect("the store answers") {
                None => return,
                Some(due) => {
                    let wait = (due - self.clock.now()).to_std().unwrap_or(Duration::from_secs(1));
                    self.clock.advance(wait);
                }
            }
        }
        panic!("it is tried again and again");
    }

    /// Works for so long, waiting out every retry on the way.
    ///
    /// # Panics
    /// It never ends.
    pub async fn work_for(&self, time: Duration) {
        let end = self.clock.now() + time;
        for _ in 0..STEPS {
            self.work().await;
            let due = self.bot.store.next_due().await.expect("the store answers");
            let Some(due) = due.filter(|due| *due < end) else {
                self.clock.advance((end - self.clock.now()).to_std().unwrap_or_default());
                return;
            };
            self.clock.advance((due - self.clock.now()).to_std().unwrap_or_default());
        }
        panic!("it is tried again and again");
    }

    /// One command, or one job, if one is due.
    pub async fn step(&self) -> bool {
        let worker = self.bot.worker("test".into());
        self.obey().await
            || worker.step(self.bot.as_ref(), &Stop::default()).await.expect("the store answers")
    }

    /// One command, if one is due.
    pub async fn obey(&self) -> bool {
        let worker = self.bot.worker("commands".into());
        obey::step(&self.bot, &worker, &Stop::default()).await.expect("the store answers")
    }

    /// All jobs, the newest first.
    pub async fn jobs(&self) -> Vec<Row> {
        self.bot.store.jobs(100).await.expect("the store answers")
    }

    /// How the newest job ended.
    ///
    /// # Panics
    /// There is none, or it has not ended.
    pub async fn end(&self) -> End {
        end_of(self.jobs().await.first())
    }

    /// How the oldest job ended.
    ///
    /// # Panics
    /// There is none, or it has not ended.
    pub async fn first_end(&self) -> End {
        end_of(self.jobs().await.last())
    }

    /// The end of every story: the queue is empty, no workspace is left, no process is alive, no token anywhere, no
    /// request that the forge does not know, no conversation that a model's server would refuse.
    ///
    /// # Panics
    /// One of these does not hold.
    pub async fn assert_clean(&self) {
        assert_eq!(
            self.bot.store.next_due().await.expect("the store answers"),
            None,
            "the queue is not empty"
        );
        let order = self.bot.store.next_order_due().await.expect("the store answers");
        assert_eq!(order, None, "a command waits");
        self.forge.settle().await;
        self.forge.assert_clean();
        assert_eq!(self.model.violations(), Vec::<String>::new());
        let data = &self.bot.config.data_dir;
        for path in files_below(data) {
            let shown = path.display().to_string();
            let is_left = ["/workspace/", "/runs/", "/stock/"].iter().any(|it| shown.contains(it));
            assert!(!is_left, "a workspace, or what it is made from, is left: {shown}");
            let content = std::fs::read(&path).unwrap_or_default();
            for secret in [self.token.as_str(), WEBHOOK_SECRET] {
                let is_there =
                    content.windows(secret.len()).any(|window| window == secret.as_bytes());
                assert!(!is_there, "a secret is in {shown}");
            }
        }
    }

    /// One job, one draft, and one comment of the bot's on its only issue.
    ///
    /// # Panics
    /// There are more or fewer; `when` is told with it.
    pub async fn assert_one_of_each(&self, issue: u64, when: impl std::fmt::Debug) {
        assert_eq!(self.jobs().await.len(), 1, "{when:?}");
        assert_eq!(self.forge.pulls(&self.repo).len(), 1, "{when:?}");
        assert_eq!(self.status_comments(issue).len(), 1, "{when:?}");
    }

    /// The status comments on an issue.
    pub fn status_comments(&self, issue: u64) -> Vec<String> {
        let comments = self.forge.comments(&self.repo, issue);
        comments
            .into_iter()
            .filter(|comment| comment.author == self.login)
            .map(|comment| comment.body)
            .collect()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Serves webhooks. Returns where, for `main`, and what serves.
async fn listen(router: axum::Router) -> (String, JoinHandle<()>) {
    let listener =
        tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let hook = format!("http://{}/hooks/main", listener.local_addr().expect("it is bound"));
    let server = tokio::spawn(async move {
        let _ = axum::serve(listener, router).await;
    });
    (hook, server)
}

/// Puts a proxy that speaks TLS before the forge, and has the bot go through it.
async fn tls_before(forge: &FakeForge, config: &mut config::Config) -> TlsFront {
    let url = forge.url();
    let port = url.port().expect("a loopback port is not the usual one");
    let front = TlsFront::start(format!("127.0.0.1:{port}")).await;
    let front = front.expect("there is an `openssl` command");
    for forge in config.forges.values_mut() {
        forge.url = format!("{}{}", front.url(), url.path()).parse().expect("it is an address");
        forge.ca_file = Some(front.ca_file());
    }
    front
}

fn end_of(row: Option<&Row>) -> End {
    let row = row.expect("there is a job");
    match row.job.state.clone() {
        State::Ended { end } => end,
        other => panic!("the job is {other:?}: {:?}", row.last_error),
    }
}

/// Takes the forge's address away, and has the bot go through a proxy that knows it.
async fn proxy_before(config: &mut config::Config) -> Proxy {
    let forge = config.forges.values_mut().next().expect("there is a forge");
    let at = forge.url.socket_addrs(|| None).expect("it has an address");
    let at = at.into_iter().find(std::net::SocketAddr::is_ipv4).expect("it is on loopback");
    let proxy = Proxy::start(at.to_string()).await;
    forge.url.set_host(Some(NOWHERE)).expect("that is a name");
    forge.proxy = Some(proxy.url().parse().expect("it is an address"));
    proxy
}

/// The configuration of a bot for this forge and model, with its secrets in files beside it.
///
/// # Panics
/// The folder cannot be written.
pub fn configuration(folder: &Path, forge: &FakeForge, endpoint: &str, token: &str) -> String {
    configuration_as(folder, forge, endpoint, &Credential::Token(token.to_owned()))
}

/// What the bot proves itself with.
pub enum Credential {
    /// The token of a user.
    Token(String),
    /// The private key of an app.
    App(AppCredentials),
}

/// The same, for a user or for an app.
///
/// # Panics
/// The folder cannot be written.
pub fn configuration_as(
    folder: &Path,
    forge: &FakeForge,
    endpoint: &str,
    credential: &Credential,
) -> String {
    configuration_at(folder, (forge.dialect().kind(), &forge.url()), endpoint, credential)
}

/// The same, for any forge of a kind at an address.
///
/// # Panics
/// The folder cannot be written.
pub fn configuration_at(
    folder: &Path,
    (kind, url): (config::ForgeKind, &Url),
    endpoint: &str,
    credential: &Credential,
) -> String {
    let is_github = kind == config::ForgeKind::GitHub;
    let kind = match kind {
        config::ForgeKind::Gitea => "gitea",
        config::ForgeKind::Forgejo => "forgejo",
        config::ForgeKind::GitHub => "github",
    };
    let path = folder.join("token");
    let path = path.display();
    let (line, secret) = match credential {
        Credential::Token(token) => (format!("token = {{ file = \"{path}\" }}"), token),
        Credential::App(app) => {
            let key = format!("private_key = {{ file = \"{path}\" }}");
            (format!("app = {{ id = {}, {key} }}", app.id), &app.private_key)
        }
    };
    for (name, secret) in [("token", secret.as_str()), ("webhook", WEBHOOK_SECRET)] {
        let path = folder.join(name);
        std::fs::write(&path, secret).expect("the temp folder can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .expect("the file is ours");
    }
    let folder = folder.display();
    // GitHub asks for a second between writes; nobody is there to wait for.
    let pause = if is_github { "write_pause = \"1ms\"\n" } else { "" };
    format!(
        "data_dir = \"{folder}/data\"\n\n\
         [forge.main]\nkind = \"{kind}\"\nurl = \"{url}\"\n{line}\n\
         webhook_secrets = [{{ file = \"{folder}/webhook\" }}]\nrepositories = [\"acme/hours\"]\ntimeout = \"5s\"\n{pause}\n\
         [model]\nendpoint = \"{endpoint}\"\nname = \"{MODEL}\"\nattempts = 2\n"
    )
}

/// A temporary folder that workspaces may lie in: the sandbox's user sees the way to them.
///
/// # Panics
/// The folder for temporary files cannot be written.
pub fn way() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("the temp folder can be written");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode).expect("the folder is ours");
    folder
}

/// What differs from run to run in what people see: durations, commits, digests, ports.
pub fn filters() -> Vec<(&'static str, &'static str)> {
    vec![
        (r"\b[0-9a-f]{64}\b", "[digest]"),
        (r"`[0-9a-f]{10}`", "`[commit]`"),
        (r"diff [0-9a-f]{10}\.", "diff [commit]."),
        (r"\b\d+(\.\d+)? ?m?s\b", "[time]"),
        (r"http://127\.0\.0\.1:\d+", "http://forge.example"),
        (r"in \d+\.\d+s", "in [time]"),
        (r"bubblewrap \d+(\.\d+)+", "bubblewrap [version]"),
    ]
}
