//! The bubblewrap backend: one fresh sandbox for each command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::process::{Command as Process, Stdio};
use std::time::Instant;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::backend::Backend;
use super::capture::Capture;
use super::cgroup::{self, Controller, Group, Groups};
use super::child::{FIRST_FILE, Limits, Orders};
use super::ending::Dying;
use super::lifecycle::Running;
use super::spawner::{Spawner, Start};
use super::streams::{memory, read, read_after_ready};
use super::watch::{drained, start, still_alive};
use super::{
    Command, End, Extras, Finished, Options, Report, SetupError, arguments, doctor, seccomp, shown,
    trusted, watch,
};
use crate::workspace::Workspace;

/// Runs each command in a bubblewrap of its own.
pub(super) struct Bubblewrap {
    options: Options,
    spawner: Spawner,
    groups: Groups,
    dying: Dying,
    program: Vec<u8>,
    version: String,
}

impl Bubblewrap {
    /// Checks the binary and prepares what all commands share.
    ///
    /// # Errors
    /// The binary cannot be trusted or is too old, or this processor has no filter.
    pub(super) fn new(mut options: Options) -> Result<Self, SetupError> {
        let unusable =
            |reason: String, remedy: &str| SetupError::Unusable { reason, remedy: remedy.into() };
        // From here on it is the binary that was looked at, whatever becomes of a link that led to it.
        options.config.bwrap =
            trusted::binary(&options.config.bwrap, "sandbox.bwrap", "bubblewrap")?;
        shown::check(&options)?;
        let bwrap = &options.config.bwrap;
        let ask = |flag: &str| {
            let asked = Process::new(bwrap).arg(flag).env_clear().stdin(Stdio::null()).output();
            asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).map_err(
                |error| {
                    unusable(
                        format!("`{}` does not run: {error}", bwrap.display()),
                        "install the package `bubblewrap`",
                    )
                },
            )
        };
        if !ask("--help")?.contains("--bind-fd") {
            let reason = format!("`{}` is too old: it has no `--bind-fd`", bwrap.display());
            return Err(unusable(
                reason,
                "install bubblewrap 0.8 or later with its security updates",
            ));
        }
        let program = seccomp::program()
            .map_err(|error| unusable(error.to_string(), "run the bot on x86-64 or AArch64"))?;
        let groups = Groups::open(cgroup::Limits {
            memory_bytes: options.config.memory_bytes,
            processes: options.config.processes,
            cpus: options.config.cpus,
        });
        let dying = Dying::new();
        let spawner = Spawner::new(dying.clone()).map_err(|source| SetupError::Start {
            reason: "its starting thread cannot be made".into(),
            source: Some(source),
        })?;
        let version = ask("--version")?.trim().to_owned();
        Ok(Self { version, options, spawner, groups, dying, program })
    }

    /// Starts one command. Returns it with the reading ends of its two streams, and with what lets it begin.
    async fn start(
        &self,
        workspace: &Workspace,
        command: &Command,
        group: Group,
    ) -> Result<(Running, [io::PipeReader; 2], io::PipeWriter), SetupError> {
        let (input, gate) = io::pipe().map_err(start("its pipes cannot be made"))?;
        let (orders, mut files, status) =
            self.prepare(workspace, command, &group).map_err(start("its files cannot be made"))?;
        files.push(input.into());
        let (stdout, to_stdout) = io::pipe().map_err(start("its pipes cannot be made"))?;
        let (stderr, to_stderr) = io::pipe().map_err(start("its pipes cannot be made"))?;
        let begin = Start {
            helper: self.options.helper.clone(),
            orders,
            streams: [to_stdout.into(), to_stderr.into()],
            files,
            status,
            group,
        };
        let helper = self.options.helper.display().to_string();
        let running = self.spawner.start(begin).await.map_err(|source| SetupError::Start {
            reason: format!("`{helper}` does not start"),
            source: Some(source),
        })?;
        Ok((running, [stdout, stderr], gate))
    }

    /// The orders, the files that bubblewrap is given, and the reading end of its status file.
    fn prepare(
        &self,
        workspace: &Workspace,
        command: &Command,
        group: &Group,
    ) -> io::Result<(OwnedFd, Vec<OwnedFd>, io::PipeReader)> {
        let (status, to_status) = io::pipe()?;
        let number =
            |at: usize| FIRST_FILE + RawFd::try_from(at).unwrap_or(RawFd::MAX - FIRST_FILE);
        let mut files: Vec<OwnedFd> = Vec::new();
        let mut add = |file: OwnedFd| {
            files.push(file);
            number(files.len() - 1)
        };
        let Extras { folders, proxy } = &command.extras;
        let numbers = arguments::Files {
            seccomp: add(memory(&self.program)?),
            status: add(to_status.into()),
            workspace: add(workspace.dir().try_clone_to_owned()?),
            home: match workspace.home() {
                Some(home) => Some(add(home.dir().try_clone_to_owned()?)),
                None => None,
            },
            folders: folders
                .iter()
                .map(|(_, folder)| folder.try_clone().map(&mut add))
                .collect::<io::Result<_>>()?,
            proxy: match proxy {
                Some(socket) => {
                    let program = File::open(&self.options.helper)?;
                    Some([add(socket.try_clone()?), add(program.into())])
                }
                None => None,
            },
            data: arguments::files(command)
                .iter()
                .map(|(_, content)| memory(content.as_bytes()).map(&mut add))
                .collect::<io::Result<_>>()?,
        };
        let settings = &self.options.config;
        let mut options = Vec::new();
        for word in arguments::options(settings, command, &numbers) {
            let word = word.into_vec();
            // It would end there, and the rest of it would be options of their own.
            if word.contains(&0) {
                return Err(io::Error::other("an option holds a NUL byte"));
            }
            options.extend(word);
            options.push(0);
        }
        files.push(memory(&options)?);
        let mut argv: Vec<OsString> =
            vec!["--args".into(), number(files.len() - 1).to_string().into()];
        argv.extend(arguments::argv(command));
        let is_root = rustix::process::geteuid().is_root();
        let orders = Orders {
            program: settings.bwrap.to_string_lossy().into_owned(),
            arguments: argv.into_iter().map(OsString::into_vec).collect(),
            n_files: files.len(),
            service: std::process::id(),
            identity: is_root.then_some((settings.uid, settings.gid)),
            groups: group
                .entries()
                .into_iter()
                .map(|path| path.into_os_string().into_vec())
                .collect(),
            limits: Limits {
                open_files: settings.open_files,
                file_bytes: settings.file_bytes,
                processes: self.processes_of_user(),
            },
        };
        Ok((memory(&serde_json::to_vec(&orders)?)?, files, status))
    }

    /// The control groups that commands get.
    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// A control group with limits of its own.
    pub(super) fn make_group(&self, limits: &cgroup::Limits) -> Result<Group, SetupError> {
        self.groups.make_with(limits).map_err(no_group)
    }

    /// Runs one command in this group, whatever is required.
    pub(super) async fn run_in(
        &self,
        workspace: &Workspace,
        command: &Command,
        group: Group,
    ) -> Result<Finished, SetupError> {
        if let Some(refused) = watch::refused(command) {
            return Ok(refused);
        }
        if self.dying.is_unproven() {
            return Err(SetupError::Unsure);
        }
        watch::let_in(workspace)?;
        let begun = Instant::now();
        let killed = group.killed();
        let (mut running, [stdout, stderr], mut gate) =
            self.start(workspace, command, group).await?;
        let (say_begun, mut is_begun) = oneshot::channel();
        let begin = move || {
            // Whoever has died meanwhile reads neither.
            let _ = gate.write_all(b"\n");
            let _ = say_begun.send(());
        };
        let capture = || Capture::new(command.head_bytes, command.tail_bytes);
        let stdout = tokio::spawn(read(stdout, capture()));
        let stderr = tokio::spawn(read_after_ready(stderr, begin, capture()));
        let ended =
            watch::over(&mut running, workspace, command, &self.options.config, killed).await;
        let elapsed = begun.elapsed();
        let gone = running.end().await.map_err(still_alive)?;
        let ended = ended.map_err(start("it cannot be watched"))?;
        let [stdout, stderr] =
            [drained(stdout, &self.dying).await?, drained(stderr, &self.dying).await?];
        let end = match (ended, gone.exit_code) {
            (Some(end), _) => end,
            // Bubblewrap itself may be among the killed, and then there is no exit code.
            (None, _) if gone.is_out_of_memory => End::OutOfMemory,
            (None, Some(code)) if is_begun.try_recv().is_ok() => End::Exited(code),
            (None, _) => {
                let words = String::from_utf8_lossy(&stderr.head).trim().to_owned();
                let reason = if words.is_empty() { gone.status.to_string() } else { words };
                let reason = match doctor::remedy(&reason) {
                    Some(remedy) => format!("{reason} ({remedy})"),
                    None => reason,
                };
                return Err(SetupError::Start { reason, source: None });
            }
        };
        Ok(Finished { end, stdout, stderr, elapsed })
    }
}

#[async_trait]
impl Backend for Bubblewrap {
    fn name(&self) -> String {
        self.version.clone()
    }

    async fn probe(&self) -> Report {
        doctor::probe(self, &self.version, &self.options).await
    }

    fn refusal(&self) -> Option<SetupError> {
        doctor::refusal(&self.groups, &self.options.config)
    }

    async fn run_anyway(
        &self,
        workspace: &Workspace,
        command: &Command,
    ) -> Result<Finished, SetupError> {
        let group = self.groups.take().map_err(no_group)?;
        self.run_in(workspace, command, group).await
    }

    fn dying(&self) -> &Dying {
        &self.dying
    }

    fn settings(&self) -> &config::Sandbox {
        &self.options.config
    }

    fn counts_processes(&self) -> bool {
        self.groups.enforces(Controller::Pids).is_ok()
    }
}

fn no_group(error: cgroup::Error) -> SetupError {
    SetupError::Start {
        reason: "its control group cannot be made".into(),
        source: Some(io::Error::other(error)),
    }
}
