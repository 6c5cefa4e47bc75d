//! The bot as it runs in earnest: the real `hyla serve`, a process that can be killed, beside a fake forge and a recording
//! in the model's place. Its clock is the machine's.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use bot::forge::Permission;
use bot::job::RepoName;
use bot::store::sqlite::Sqlite;
use bot::store::{Row, Store};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::forge::{Dialect, FakeForge};
use crate::house::{
    WEBHOOK_SECRET, configuration, demo_folder, demo_issue, demo_recording, hyla_binary, way,
};
use crate::model::{ModelServer, PATIENCE, Recording};

/// How often something is looked at that nobody tells.
pub const LOOK: Duration = Duration::from_millis(20);

/// Lines of the service's log that are shown when a test fails.
const LOG_LINES: usize = 40;

/// A forge with the repository `acme/hours`, `ann` who may write and the bot's user `hyla`, and a configuration for it.
pub struct Outside {
    /// The forge.
    pub forge: FakeForge,
    /// The model's server.
    pub model: ModelServer,
    /// The repository.
    pub repo: RepoName,
    /// The token of the bot's user.
    pub token: String,
    /// The configuration.
    pub file: String,
    /// The folder with configuration and data.
    pub folder: tempfile::TempDir,
    /// Where the service listens.
    pub address: SocketAddr,
}

impl Outside {
    /// The usual one.
    pub async fn usual() -> Self {
        Self::start(demo_recording(), "").await
    }

    /// One with this recording, and with these lines behind its configuration, whose last section is `[model]`.
    pub async fn start(recording: Recording, more: &str) -> Self {
        Self::start_as(Dialect::Forgejo15, recording, more).await
    }

    /// The same with another forge.
    ///
    /// # Panics
    /// Something cannot be started.
    pub async fn start_as(dialect: Dialect, recording: Recording, more: &str) -> Self {
        let forge = FakeForge::start(dialect).await;
        let files = demo_folder().join("repository");
        let repo = forge.add_repository("acme", "hours", files.as_path());
        for (login, permission) in [("ann", Permission::Write), ("hyla", Permission::Admin)] {
            forge.add_user(login, Permission::None);
            forge.set_permission(&repo, login, permission);
        }
        let token = forge.token_for("hyla");
        let model = ModelServer::start(recording).await.expect("loopback has a free port");
        let folder = way();
        let address = free_address();
        let text = configuration(folder.path(), &forge, &model.url(), &token);
        let path = folder.path().join("hyla.toml");
        let server = format!("{text}{more}\n[server]\nlisten = \"{address}\"\n");
        std::fs::write(&path, server).expect("the temp folder can be written");
        let file = path.display().to_string();
        Self { forge, model, repo, token, file, folder, address }
    }

    /// The service's command.
    pub fn command(&self) -> Command {
        let mut command = Command::new(hyla_binary());
        command.args(["serve", "--config", &self.file]).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Starts the service; it ends with the value.
    ///
    /// # Panics
    /// It does not start.
    pub fn serve(&self, errors: impl Into<Stdio>) -> Child {
        self.command().stderr(errors).spawn().expect("it starts")
    }

    /// The same, with what it logs in a file beside the configuration.
    ///
    /// # Panics
    /// It does not start.
    pub fn serve_logged(&self) -> Child {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log());
        self.serve(log.expect("the temp folder can be written"))
    }

    /// Where [`Self::serve_logged`] logs.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// The folder with the data.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Waits until the service listens.
    pub async fn listens(&self) {
        until("it listens", || std::net::TcpStream::connect(self.address).is_ok()).await;
    }

    /// Waits until the service listens, and has the repository send it its deliveries.
    pub async fn is_heard(&self) {
        self.listens().await;
        let hook = format!("http://{}/hooks/main", self.address);
        self.forge.register_hook(&self.repo, &hook, WEBHOOK_SECRET);
    }

    /// Opens the demonstration's issue as `ann`, with these labels.
    pub async fn open_issue(&self, labels: &[&str]) -> u64 {
        let (title, body) = demo_issue();
        self.forge.person("ann").open_issue(&self.repo, title, body, labels).await
    }

    /// All jobs, the newest first.
    ///
    /// # Panics
    /// The database cannot be read.
    pub async fn jobs(&self) -> Vec<Row> {
        let store = self.store().await;
        store.jobs(1000).await.expect("the store answers")
    }

    /// The service's own database.
    ///
    /// # Panics
    /// It cannot be opened.
    pub async fn store(&self) -> Sqlite {
        Sqlite::open(&self.data().join("hyla.db")).await.expect("the store opens")
    }

    /// Waits until no job is due any more.
    ///
    /// # Panics
    /// One still is, for longer than any test should take.
    pub async fn is_done(&self, when: &str) {
        let store = self.store().await;
        let begun = Instant::now();
        while let Some(due) = store.next_due().await.expect("the store answers") {
            assert!(begun.elapsed() < PATIENCE, "{when}: a job is due at {due}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What must hold once the service has ended: no process of the agent, which is known by these words, nor of the
    /// service, no workspace, no lock that is held, and the token nowhere in its data.
    ///
    /// # Panics
    /// It does not hold.
    pub fn assert_nothing_is_left(&self, words: &str, when: &str) {
        assert!(!lives(words), "{when}: a process of the agent");
        assert!(!lives(&self.data().display().to_string()), "{when}: a process about the data");
        assert_eq!(self.workspaces(), Vec::<PathBuf>::new(), "{when}");
        for path in files_below(&self.data()) {
            assert!(!is_held(&path), "{when}: somebody holds {}", path.display());
            let content = std::fs::read(&path).unwrap_or_default();
            let token = self.token.as_bytes();
            let is_there = content.windows(token.len()).any(|window| window == token);
            assert!(!is_there, "{when}: the token is in {}", path.display());
        }
    }

    /// What is left of jobs on the disk besides what is kept of them: their workspaces, and what those are made from.
    pub fn workspaces(&self) -> Vec<PathBuf> {
        let jobs = std::fs::read_dir(self.data().join("jobs")).into_iter().flatten().flatten();
        let names = ["workspace", "runs", "stock"];
        let inside = jobs.flat_map(|job| names.map(|name| job.path().join(name)));
        inside.filter(|path| path.exists()).collect()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        show_if_failed(&self.log());
    }
}

/// A test that fails shows what the service logged.
#[expect(clippy::print_stderr, reason = "it is read where the test's own output is")]
pub fn show_if_failed(log: &Path) {
    if std::thread::panicking() {
        let log = std::fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        // The end of it: whoever runs the tests may keep only the last part of what they print.
        eprintln!("{}", lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"));
    }
}

/// An address of this machine for a service that is started later, and perhaps again: nothing else gets it in between. A
/// port of 127.0.0.1 that was free once may belong to any outgoing connection a moment later; this is another address of
/// the loopback network, one for each process of tests, from which no connection goes out.
pub fn free_address() -> SocketAddr {
    static PORTS: AtomicU16 = AtomicU16::new(20_000);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 64 | (high & 63), middle, low);
    SocketAddr::from((address, PORTS.fetch_add(1, Ordering::Relaxed)))
}

/// Waits until something holds.
///
/// # Panics
/// It does not, for longer than any test should take.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Sends a signal to a service.
///
/// # Panics
/// It has ended.
pub fn send(service: &Child, signal: Signal) {
    let number = i32::try_from(service.id().expect("it runs")).expect("it is a pid");
    kill(Pid::from_raw(number), signal).expect("it is ours");
}

/// Whether any process on this machine has these words in its command line.
pub fn lives(words: &str) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|entry| entry.path().join("cmdline")).any(|path| {
        let line = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(words)
    })
}

/// All files below a folder.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) | Err(_) => files.push(entry.path()),
            }
        }
    }
    files
}

fn is_held(path: &Path) -> bool {
    let is_lock = path.extension().is_some_and(|extension| extension == "lock");
    let file = is_lock.then(|| std::fs::File::open(path).expect("it is ours"));
    file.is_some_and(|file| file.try_lock().is_err())
}
