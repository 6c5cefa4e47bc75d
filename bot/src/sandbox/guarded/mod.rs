//! The two backends without namespaces: `landlock-degraded`, whose commands are kept in by Landlock, by a filter that denies
//! every socket and by a user of their own; and `none`, whose commands are kept in by nothing.
//!
//! Both say of themselves what they are, wherever people look. A command runs in its workspace at the workspace's own path,
//! with a home and a folder for temporary files that are gone after it. Neither is ever used in place of another backend.

pub mod confine;
pub mod guard;
mod landlock;
mod probe;
mod refusal;
mod running;
mod scratch;
#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::backend::Backend;
use super::capture::Capture;
use super::cgroup::{self, Group, Groups};
use super::child::Limits;
use super::ending::Dying;
use super::streams::{memory, read};
use super::watch::{self, drained, start, still_alive};
use super::{
    Command, Confinement, End, Finished, Options, Report, SetupError, arguments, doctor, seccomp,
    shown,
};
use crate::workspace::Workspace;

use confine::{Orders, Walls};
use running::{Running, Start};
use scratch::Scratch;

/// How long the sandbox's user may have processes of others before a command is given up.
const IDLE: Duration = Duration::from_secs(10);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(20);

/// Runs commands one at a time, each under a guard of its own.
pub(super) struct Guarded {
    kind: Kind,
    options: Options,
    groups: Groups,
    dying: Dying,
    /// One command at a time: the end of one is the end of all that its user runs.
    turn: tokio::sync::Mutex<()>,
}

/// Which of the two it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Kept in by Landlock of this version.
    Degraded { landlock: String },
    /// Not kept in.
    Unconfined,
}

impl Guarded {
    /// The backend `landlock-degraded`.
    ///
    /// # Errors
    /// It was not accepted, has no user to switch to, or the kernel lacks what it needs.
    pub(super) fn degraded(options: Options) -> Result<Self, SetupError> {
        let is_root = rustix::process::geteuid().is_root();
        let landlock = refusal::of_degraded(&options.config, is_root, landlock::version())?;
        seccomp::alone().map_err(|error| SetupError::Unusable {
            reason: error.to_string(),
            remedy: "run the bot on x86-64 or AArch64".into(),
        })?;
        shown::check(&options)?;
        Ok(Self::new(Kind::Degraded { landlock }, options))
    }

    /// The backend `none`. `is_accepted`: whoever started the service said so in its environment.
    ///
    /// # Errors
    /// It was not accepted, or the service is root.
    pub(super) fn unconfined(options: Options, is_accepted: bool) -> Result<Self, SetupError> {
        refusal::of_none(is_accepted, rustix::process::geteuid().is_root())?;
        Ok(Self::new(Kind::Unconfined, options))
    }

    fn new(kind: Kind, mut options: Options) -> Self {
        // The machine's own settings of git are no business of a command, and git gives up over a file that it may not read.
        options.config.env.insert("GIT_CONFIG_NOSYSTEM".into(), "1".into());
        let groups = Groups::open(cgroup::Limits {
            memory_bytes: options.config.memory_bytes,
            processes: options.config.processes,
            cpus: options.config.cpus,
        });
        Self { kind, options, groups, dying: Dying::new(), turn: tokio::sync::Mutex::default() }
    }

    /// The user that commands become; none where they stay who the service is.
    fn identity(&self) -> Option<(u32, u32)> {
        match self.kind {
            Kind::Degraded { .. } => Some((self.options.config.uid, self.options.config.gid)),
            Kind::Unconfined => None,
        }
    }

    async fn run_in(
        &self,
        workspace: &Workspace,
        scratch: &Scratch,
        command: &Command,
    ) -> Result<Finished, SetupError> {
        let group = self
            .groups
            .take()
            .map_err(|error| start("its control group cannot be made")(io::Error::other(error)))?;
        let begun = Instant::now();
        let killed = group.killed();
        let (mut running, [stdout, stderr]) = self
            .start(workspace, scratch, group)
            .await
            .map_err(start("its guard does not start"))?;
        let capture = || Capture::new(command.head_bytes, command.tail_bytes);
        let stdout = tokio::spawn(read(stdout, capture()));
        let stderr = tokio::spawn(read(stderr, capture()));
        let settings = &self.options.config;
        // What is beside the workspace has no size of its own here, so it is looked at as the workspace is.
        let temporary = config::Sandbox {
            workspace_bytes: settings.tmp_bytes.saturating_add(settings.home_bytes),
            ..settings.clone()
        };
        let ended = tokio::select! {
            ended = watch::over(&mut running, workspace, command, settings, killed) => ended,
            full = watch::disk(scratch.folder(), &temporary) => full.map(|()| Some(End::DiskFull)),
        };
        let elapsed = begun.elapsed();
        let gone = running.end().await.map_err(still_alive)?;
        let ended = ended.map_err(start("it cannot be watched"))?;
        let [stdout, stderr] =
            [drained(stdout, &self.dying).await?, drained(stderr, &self.dying).await?];
        let end = match (ended, gone.failed, gone.code) {
            (Some(end), _, _) => end,
            (None, Some(reason), _) => return Err(SetupError::Start { reason, source: None }),
            (None, None, _) if gone.is_out_of_memory => End::OutOfMemory,
            (None, None, Some(code)) => End::Exited(code),
            (None, None, None) => {
                let reason = "its guard did not say how it ended".into();
                return Err(SetupError::Start { reason, source: None });
            }
        };
        Ok(Finished { end, stdout, stderr, elapsed })
    }

    /// Starts one command. Returns it with the reading ends of its two streams.
    async fn start(
        &self,
        workspace: &Workspace,
        scratch: &Scratch,
        group: Group,
    ) -> io::Result<(Running, [io::PipeReader; 2])> {
        let orders = memory(&serde_json::to_vec(&self.orders(workspace, scratch, &group))?)?;
        let (stdout, to_stdout) = io::pipe()?;
        let (stderr, to_stderr) = io::pipe()?;
        let begin = Start {
            helper: self.options.helper.clone(),
            orders,
            streams: [to_stdout.into(), to_stderr.into()],
            group,
        };
        let running = running::begin(begin, self.dying.clone()).await?;
        Ok((running, [stdout, stderr]))
    }

    fn orders(&self, workspace: &Workspace, scratch: &Scratch, group: &Group) -> Orders {
        let settings = &self.options.config;
        let bytes = |path: &std::path::Path| path.as_os_str().as_bytes().to_vec();
        let places = [("HOME", scratch.home()), ("TMPDIR", scratch.temporary())];
        let variables =
            arguments::variables(settings).into_iter().map(|(name, value)| {
                match places.iter().find(|(own, _)| *own == name) {
                    Some((_, path)) => (name, bytes(path)),
                    None => (name, value.into_bytes()),
                }
            });
        let walls = match self.kind {
            Kind::Degraded { .. } => Some(Walls {
                read: settings.read_only.iter().map(|path| bytes(path)).collect(),
                written: vec![bytes(workspace.root()), bytes(scratch.folder().root())],
            }),
            Kind::Unconfined => None,
        };
        Orders {
            script: scratch.script().to_owned(),
            folder: bytes(workspace.root()),
            variables: variables.collect(),
            identity: self.identity(),
            groups: group.entries().iter().map(|path| bytes(path)).collect(),
            limits: Limits {
                open_files: settings.open_files,
                file_bytes: settings.file_bytes,
                processes: self.processes_of_user(),
            },
            walls,
        }
    }

    /// Waits until no process of the sandbox's user lives. Everything of that user is ended with a command, so nothing else
    /// may be: not another service's commands, and not somebody's programs.
    async fn has_user_to_itself(&self) -> Result<(), SetupError> {
        let Some((uid, _)) = self.identity() else { return Ok(()) };
        let begun = Instant::now();
        loop {
            let looked = tokio::task::spawn_blocking(move || running::of_user(uid)).await;
            let Some(other) =
                looked.map_err(|error| start("nobody looks")(io::Error::other(error)))?
            else {
                return Ok(());
            };
            if begun.elapsed() > IDLE {
                let reason = format!(
                    "user {uid} has a process already (`{other}`), and all that it runs would end with the command; set `sandbox.uid` to a user that nothing else uses"
                );
                return Err(SetupError::Start { reason, source: None });
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[async_trait]
impl Backend for Guarded {
    fn name(&self) -> String {
        match &self.kind {
            Kind::Degraded { landlock } => format!("landlock-degraded (Landlock ABI {landlock})"),
            Kind::Unconfined => "none".into(),
        }
    }

    fn confinement(&self) -> Confinement {
        match self.kind {
            Kind::Degraded { .. } => Confinement::Degraded,
            Kind::Unconfined => Confinement::None,
        }
    }

    async fn probe(&self) -> Report {
        probe::probe(self).await
    }

    fn refusal(&self) -> Option<SetupError> {
        doctor::refusal(&self.groups, &self.options.config)
    }

    async fn run_anyway(
        &self,
        workspace: &Workspace,
        command: &Command,
    ) -> Result<Finished, SetupError> {
        let extras = &command.extras;
        if !extras.folders.is_empty() || extras.proxy.is_some() || workspace.home().is_some() {
            return Err(refusal::of_extras(self.confinement()));
        }
        if let Some(refused) = watch::refused(command) {
            return Ok(refused);
        }
        let _turn = self.turn.lock().await;
        // A command whose future was dropped may be about to die; what ends it would end this one too.
        self.dying.quiet().await?;
        watch::let_in(workspace)?;
        self.has_user_to_itself().await?;
        let scratch = Scratch::make(workspace, command, &self.dying)
            .await
            .map_err(start("its folder for temporary files cannot be made"))?;
        let finished = self.run_in(workspace, &scratch, command).await;
        if !matches!(finished, Err(SetupError::StillAlive { .. })) {
            scratch.remove(&self.dying).await;
        }
        finished
    }

    fn dying(&self) -> &Dying {
        &self.dying
    }

    fn settings(&self) -> &config::Sandbox {
        &self.options.config
    }

    /// They run one at a time.
    fn counts_processes(&self) -> bool {
        false
    }
}
