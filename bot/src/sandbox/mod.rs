//! The sandbox, seen as three verbs: prove that it holds, run one command, end everything of a job.
//!
//! A set-up failure is its own type: it is never shown to the model as the failure of a command, and no caller may
//! answer it by running the command elsewhere.

mod absent;
mod arguments;
mod backend;
mod bubblewrap;
mod capture;
mod cgroup;
pub mod child;
mod doctor;
mod ending;
pub mod forward;
pub mod guarded;
mod lifecycle;
mod oci;
mod seccomp;
mod shown;
mod spawner;
mod streams;
mod trusted;
mod usage;
mod watch;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::workspace::{MOUNT, Owner, Workspace};

/// Runs commands that nobody trusts.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// What confines the commands, for people: a name and a version.
    fn name(&self) -> String;

    /// How far commands are kept in, for people, and for whoever tells a model where its files are.
    fn confinement(&self) -> Confinement {
        Confinement::Sealed
    }

    /// Proves each property with canaries. Cheap enough for every start.
    async fn probe(&self) -> Report;

    /// Runs one command with the workspace at [`Confinement::workspace`], and returns when every process of it is dead.
    /// Dropping the future ends the command.
    ///
    /// # Errors
    /// The command was not run, or its death could not be proven.
    async fn run(&self, workspace: &Workspace, command: &Command) -> Result<Finished, SetupError>;

    /// Returns when every command whose future was dropped is dead. Only then may anybody look at its workspace.
    ///
    /// # Errors
    /// The death of one could not be proven; see [`Sandbox::is_sure`].
    async fn quiet(&self) -> Result<(), SetupError>;

    /// Whether every command that was ended is proven dead. Once one is not, it may write any workspace that it can reach,
    /// so no command runs any more until the service is started again, which ends it.
    fn is_sure(&self) -> bool;
}

/// How far a backend keeps commands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// They see a machine of their own.
    Sealed,
    /// They see this machine, and can open hardly any of its files and reach nobody on its network.
    Degraded,
    /// They can do all that the service's user can.
    None,
}

impl Confinement {
    /// Where a command sees its workspace.
    pub fn workspace<'a>(&self, workspace: &'a Workspace) -> &'a Path {
        match self {
            Self::Sealed => Path::new(MOUNT),
            Self::Degraded | Self::None => workspace.root(),
        }
    }
}

/// One command.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// A script for `/bin/bash -lc`, as the model or a configuration wrote it.
    pub script: String,
    /// How long it may run.
    pub timeout: Duration,
    /// Bytes kept from the head of each stream.
    pub head_bytes: usize,
    /// Bytes kept from the tail of each stream, after the head.
    pub tail_bytes: usize,
    /// What it is shown besides the workspace and its home.
    pub extras: Extras,
}

impl Command {
    /// A command of which so many bytes of each stream are kept, half from its head and half from its tail.
    pub fn new(script: &str, timeout: Duration, output_bytes: usize) -> Self {
        Self {
            script: script.to_owned(),
            timeout,
            head_bytes: output_bytes / 2,
            tail_bytes: output_bytes / 2,
            extras: Extras::default(),
        }
    }
}

/// What one command is shown besides the workspace and its home.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// Folders that it may read, each by the path at which it sees it.
    pub folders: Vec<(&'static str, Arc<OwnedFd>)>,
    /// The socket of a proxy, opened by its path: its only way out.
    pub proxy: Option<Arc<OwnedFd>>,
}

/// What became of a command.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub end: End,
    /// What it wrote to its standard output.
    pub stdout: Stream,
    /// What it wrote to its standard error.
    pub stderr: Stream,
    /// How long it ran.
    pub elapsed: Duration,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It exited, with this code; 128 + n when a signal n ended it.
    Exited(i32),
    /// It reached its time limit.
    TimedOut,
    /// It filled the workspace beyond its limit.
    DiskFull,
    /// It used up the memory that it may have.
    OutOfMemory,
}

impl std::fmt::Display for End {
    /// In two words, such as `exit 1`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit {code}"),
            Self::TimedOut => f.write_str("time limit"),
            Self::DiskFull => f.write_str("disk limit"),
            Self::OutOfMemory => f.write_str("memory limit"),
        }
    }
}

/// A captured stream.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// The first bytes, at most the command's `head_bytes`.
    pub head: Vec<u8>,
    /// The last bytes after the head, at most the command's `tail_bytes`.
    pub tail: Vec<u8>,
    /// Bytes between head and tail that were not kept.
    pub dropped_bytes: u64,
}

/// The command was not run, or its death could not be proven. For the operator, never for the model.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The backend refuses to work at all here.
    #[error("cannot run commands safely: {reason}; {remedy}")]
    Unusable {
        /// What is missing.
        reason: String,
        /// The sentence that fixes it.
        remedy: String,
    },
    /// Starting one command failed.
    #[error("cannot start a sandboxed command: {reason}")]
    Start {
        /// What bubblewrap, the engine or the kernel said.
        reason: String,
        /// The underlying error, where there is one.
        #[source]
        source: Option<std::io::Error>,
    },
    /// Processes of the command may still live.
    #[error("cannot prove that the sandboxed command is dead: {reason}")]
    StillAlive {
        /// What was tried.
        reason: String,
    },
    /// Processes of an earlier command may still live, perhaps of another job. Nothing was run.
    #[error(
        "cannot run commands any more, because an earlier one may still live; restart the service"
    )]
    Unsure,
}

/// What a probe found.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Report {
    /// The backend's name and version.
    pub backend: String,
    /// One entry for each property, in order.
    pub checks: Vec<Check>,
}

/// One property.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Check {
    /// A short name, such as `no-network`.
    pub name: &'static str,
    /// What was seen.
    pub verdict: Verdict,
    /// Details and, where it fails, the sentence that fixes it.
    pub detail: String,
}

/// What was seen of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It holds in part, or is not enforced here and not required.
    Warns,
    /// It does not hold: no agent may run.
    Fails,
}

impl Report {
    /// Whether an agent may run.
    pub fn holds(&self) -> bool {
        self.checks.iter().all(|check| check.verdict != Verdict::Fails)
    }
}

/// How a backend is built. Converted from the configuration by the caller.
#[derive(Debug, Clone)]
pub struct Options {
    /// The settings of `[sandbox]`.
    pub config: config::Sandbox,
    /// The `hyla` binary, which starts commands through its hidden commands.
    pub helper: PathBuf,
    /// The data folder, which need not be there: a backend may keep something of its own in it.
    pub data: PathBuf,
}

/// The sandbox that the configuration asks for, and no other.
///
/// # Errors
/// The `bwrap` binary or the container engine is not there, cannot be trusted, or is too old; or what a lesser backend needs is
/// not there.
pub fn build(options: Options) -> Result<Arc<dyn Sandbox>, SetupError> {
    match options.config.backend {
        config::Backend::Auto | config::Backend::Bubblewrap => {
            Ok(Arc::new(bubblewrap::Bubblewrap::new(options)?))
        }
        config::Backend::Oci => Ok(Arc::new(oci::Oci::new(options)?)),
        config::Backend::LandlockDegraded => Ok(Arc::new(guarded::Guarded::degraded(options)?)),
        config::Backend::None => {
            let is_accepted = config::accepts_unsandboxed();
            Ok(Arc::new(guarded::Guarded::unconfined(options, is_accepted)?))
        }
    }
}

/// The sandbox that the configuration asks for, or one that runs nothing and says why, until a probe finds that it can be
/// built: a service stays up without it.
pub fn build_or_none(options: Options) -> Arc<dyn Sandbox> {
    build(options.clone()).unwrap_or_else(|error| Arc::new(absent::Absent::new(options, error)))
}

/// Who owns the workspaces: the sandbox's own user where the service runs as root.
pub fn workspace_owner(options: &Options) -> Owner {
    if rustix::process::geteuid().is_root() {
        Owner::Sandbox { uid: options.config.uid, gid: options.config.gid }
    } else {
        Owner::Service
    }
}
