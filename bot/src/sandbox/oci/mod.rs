//! The backend of a container engine: podman, or what speaks docker's command line, with a runtime such as gVisor's.
//!
//! One fresh container for each command, not one for each job with the commands started inside: what a command leaves
//! running must end with it, and of a whole container that can be proven, by the death of its first process. It costs some
//! tenths of a second each. The image is the machine that commands see, and the workspace the only folder of the host that
//! they write. What an engine's settings may add of their own, the probe looks for.
//!
//! An engine that maps no users, or whose system call library lacks a name, denies less than bubblewrap does; the probe says
//! so. A daemon that the service may command makes the service as mighty as the daemon: podman has none.

mod arguments;
mod container;
mod doctor;
mod engine;
mod folder;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::oneshot;

use super::backend::Backend;
use super::capture::Capture;
use super::cgroup::{Counter, Limits};
use super::ending::Dying;
use super::watch::{self, drained, start, still_alive};
use super::{
    Command, End, Finished, Options, Report, SetupError, Stream, forward, shown, streams,
    workspace_owner,
};
use crate::workspace::{MOUNT, Workspace};
use arguments::Mount;
use container::{Container, Gone};
use engine::{Engine, Users, unusable};
use folder::Folder;

/// How long an engine may take until a command can begin. The first container of an image may be copied for its users.
const STARTING: Duration = Duration::from_secs(300);

/// Runs each command in a container of its own.
pub(super) struct Oci {
    options: Options,
    engine: Arc<Engine>,
    folder: Folder,
    dying: Dying,
    number: AtomicU64,
}

impl Oci {
    /// Asks the engine, and removes what a killed process of this data folder left.
    ///
    /// # Errors
    /// The engine or the image is not there, or it cannot keep what is promised.
    pub(super) fn new(options: Options) -> Result<Self, SetupError> {
        shown::check(&options)?;
        let settings = &options.config;
        let engine = Engine::open(&settings.oci)?;
        let is_below =
            settings.uid <= super::arguments::UID || settings.gid <= super::arguments::UID;
        if engine.users == Users::Mapped && is_below {
            return Err(unusable(
                format!(
                    "user {} and group {} are too low for a range of users",
                    settings.uid, settings.gid
                ),
                "set `sandbox.uid` and `sandbox.gid` to numbers above 1000 that nobody has".into(),
            ));
        }
        engine.need_image(&settings.oci.image)?;
        let user = arguments::inside(engine.users, workspace_owner(&options));
        let folder = Folder::make(&options.data, user, &engine)?;
        // The engine mounts it from a process of its own, where `/proc/self` is another.
        let helper = std::fs::canonicalize(&options.helper).map_err(|error| {
            unusable(
                format!("`{}` cannot be found: {error}", options.helper.display()),
                "start the service from a file that stays where it is".into(),
            )
        })?;
        let options = Options { helper, ..options };
        let (dying, number) = (Dying::new(), AtomicU64::new(0));
        Ok(Self { engine: Arc::new(engine), options, folder, dying, number })
    }

    /// The limits of every command.
    fn limits(&self) -> Limits {
        let config::Sandbox { memory_bytes, processes, cpus, .. } = self.options.config;
        Limits { memory_bytes, processes, cpus }
    }

    /// Everything of the host that a command sees.
    fn mounts(&self, workspace: &Workspace, command: &Command) -> io::Result<Vec<Mount>> {
        let mut mounts = self.folder.mounts.clone();
        for folder in &self.options.config.read_only {
            mounts.push(Mount::new(
                &std::fs::canonicalize(folder)?,
                &folder.to_string_lossy(),
                false,
            )?);
        }
        if let Some(socket) = &command.extras.proxy {
            mounts.push(Mount::new(&place(socket)?, forward::SOCKET, false)?);
            mounts.push(Mount::new(&self.options.helper, forward::PROGRAM, false)?);
        }
        for (path, folder) in &command.extras.folders {
            mounts.push(Mount::new(&place(folder)?, path, false)?);
        }
        if let Some(home) = workspace.home() {
            mounts.push(Mount::new(&place(home.dir())?, super::arguments::HOME, true)?);
        }
        mounts.push(Mount::new(&place(workspace.dir())?, MOUNT, true)?);
        Ok(mounts)
    }

    fn start(
        &self,
        workspace: &Workspace,
        command: &Command,
        limits: &Limits,
    ) -> io::Result<(Container, [io::PipeReader; 2])> {
        let mounts = self.mounts(workspace, command)?;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{number}", self.folder.prefix);
        let most = |resource| getrlimit(resource).map(|(_, most)| most);
        let words = arguments::words(&arguments::Container {
            engine: &self.engine,
            settings: &self.options.config,
            name: &name,
            label: &self.folder.label,
            profile: &self.folder.profile,
            owner: workspace.owner(),
            limits,
            seconds: command.timeout.as_secs(),
            has_home: workspace.home().is_some(),
            mounts: &mounts,
            most: [most(Resource::RLIMIT_NOFILE)?, most(Resource::RLIMIT_NPROC)?],
            processes_of_user: self.processes_of_user(),
        });
        Container::start(&self.engine, name, &words, &self.dying)
    }

    /// Runs one command with these limits, whatever is required.
    async fn run_with(
        &self,
        workspace: &Workspace,
        command: &Command,
        limits: &Limits,
    ) -> Result<Finished, SetupError> {
        if let Some(refused) = watch::refused(command) {
            return Ok(refused);
        }
        if self.dying.is_unproven() {
            return Err(SetupError::Unsure);
        }
        watch::let_in(workspace)?;
        let (mut container, [stdout, stderr]) = self
            .start(workspace, command, limits)
            .map_err(start("its container cannot be started"))?;
        let capture = || Capture::new(command.head_bytes, command.tail_bytes);
        let (say_ready, ready) = oneshot::channel();
        // Whoever waits may have given up.
        let say = move || _ = say_ready.send(());
        let stdout = tokio::spawn(streams::read(stdout, capture()));
        let stderr = tokio::spawn(streams::read_after_ready(stderr, say, capture()));
        let orders = arguments::orders(&self.options.config, command);
        let begun = tokio::time::timeout(STARTING, begin(&mut container, ready, &orders)).await;
        let Ok(Begun::Yes(killed)) = begun else {
            return Err(self.not_begun(container, begun.ok(), stderr).await);
        };
        let since = Instant::now();
        let ended =
            watch::over(&mut container, workspace, command, &self.options.config, killed).await;
        let elapsed = since.elapsed();
        let gone = container.end().await.map_err(still_alive)?;
        let ended = ended.map_err(start("it cannot be watched"))?;
        let [stdout, stderr] =
            [drained(stdout, &self.dying).await?, drained(stderr, &self.dying).await?];
        let end = match ended {
            Some(end) => end,
            None => end_of(&gone)?,
        };
        Ok(Finished { end, stdout, stderr, elapsed })
    }

    /// Ends a container whose command never began. Returns why it did not.
    async fn not_begun(
        &self,
        container: Container,
        begun: Option<Begun>,
        stderr: tokio::task::JoinHandle<io::Result<Stream>>,
    ) -> SetupError {
        let gone = match container.end().await {
            Ok(gone) => gone,
            Err(error) => return still_alive(error),
        };
        let said = match drained(stderr, &self.dying).await {
            Ok(said) => String::from_utf8_lossy(&said.head).trim().to_owned(),
            Err(error) => return error,
        };
        let reason = match begun {
            Some(Begun::Failed(error)) => {
                return start("its container cannot be given its orders")(error);
            }
            None => format!("its container was not ready within {} s; {said}", STARTING.as_secs()),
            Some(Begun::Ended | Begun::Yes(_)) if said.is_empty() => gone.status.to_string(),
            Some(Begun::Ended | Begun::Yes(_)) => said,
        };
        let reason = match doctor::remedy(&reason) {
            Some(remedy) => format!("{reason} ({remedy})"),
            None => reason,
        };
        SetupError::Start { reason, source: None }
    }
}

/// Whether a command has begun.
enum Begun {
    /// It has; this counts what is killed of it for memory.
    Yes(Option<Counter>),
    /// The engine ended before.
    Ended,
    /// Something failed on the way.
    Failed(io::Error),
}

/// Waits until the container is complete and gives it its orders.
async fn begin(container: &mut Container, ready: oneshot::Receiver<()>, orders: &[u8]) -> Begun {
    let is_ready = tokio::select! {
        gone = container.gone() => gone.map(|()| false),
        ready = ready => Ok(ready.is_ok()),
    };
    match is_ready {
        Ok(true) => {}
        // Its error stream has ended without the byte, so there will be none.
        Ok(false) => return Begun::Ended,
        Err(error) => return Begun::Failed(error),
    }
    match container.open().await {
        Ok(counter) => match container.give(orders).await {
            Ok(()) => Begun::Yes(counter),
            Err(error) => Begun::Failed(error),
        },
        Err(error) => Begun::Failed(error),
    }
}

#[async_trait]
impl Backend for Oci {
    fn name(&self) -> String {
        self.engine.name()
    }

    async fn probe(&self) -> Report {
        doctor::probe(self).await
    }

    fn refusal(&self) -> Option<SetupError> {
        let limit = doctor::unmet(&self.options.config, &self.engine).into_iter().next()?;
        Some(unusable(
            format!("`{limit}` of one command is not limited by {}", self.engine.name()),
            doctor::HAND_OVER.into(),
        ))
    }

    async fn run_anyway(
        &self,
        workspace: &Workspace,
        command: &Command,
    ) -> Result<Finished, SetupError> {
        self.run_with(workspace, command, &self.limits()).await
    }

    fn dying(&self) -> &Dying {
        &self.dying
    }

    fn settings(&self) -> &config::Sandbox {
        &self.options.config
    }

    fn counts_processes(&self) -> bool {
        self.engine.limits.processes
    }
}

/// How a command ended that nobody ended.
fn end_of(gone: &Gone) -> Result<End, SetupError> {
    match (gone.status.code(), gone.exit_code) {
        _ if gone.is_out_of_memory => Ok(End::OutOfMemory),
        (Some(_), Some(code)) => Ok(End::Exited(code)),
        (None, _) | (_, None) => {
            let reason =
                format!("somebody else ended its container or the engine ({})", gone.status);
            Err(SetupError::Start { reason, source: None })
        }
    }
}

/// Whether the engine has no container of this name.
fn gone(engine: &Engine, name: &str) -> io::Result<bool> {
    let filter = format!("name=^{name}$");
    let found = engine.told(&["ps", "--all", "--quiet", "--filter", &filter])?;
    Ok(found.trim().is_empty())
}

/// The path of an open folder or socket of ours. Every folder above it is the service's own, so nobody else puts another
/// thing there; an engine opens what it mounts by its path, in a process of its own.
fn place(open: impl std::os::fd::AsFd) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd;
    let open = open.as_fd();
    let path = std::fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd()))?;
    let (held, found) = (rustix::fs::fstat(open)?, rustix::fs::lstat(&path)?);
    if (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino) {
        return Ok(path);
    }
    Err(io::Error::other(format!("`{}` is another one by now", Path::new(&path).display())))
}
