//! From a started guard to the proof that all processes of its command are dead. Whoever drops a running command leaves this
//! work to a thread; a death that cannot be proven is remembered for good.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::sandbox::cgroup::Group;
use crate::sandbox::child::FIRST_FILE;
use crate::sandbox::guard::{self, Told};
use crate::sandbox::lifecycle::{Dying, is_readable};

/// How long a guard may take to kill and outlive everything.
const DEATH: Duration = Duration::from_secs(10);

/// What to start.
pub(super) struct Start {
    /// The `hyla` binary.
    pub(super) helper: PathBuf,
    /// The orders, to be read from their start.
    pub(super) orders: OwnedFd,
    /// The command's standard output and error.
    pub(super) streams: [OwnedFd; 2],
    /// The control group that the command joins.
    pub(super) group: Group,
}

/// A started guard. Dropped, its command is ended.
pub(super) struct Running {
    parts: Option<Parts>,
    dying: Dying,
}

struct Parts {
    child: Child,
    process: OwnedFd,
    /// Closed, it tells the guard that it is over.
    control: io::PipeWriter,
    status: io::PipeReader,
    group: Group,
}

/// How a command ended.
pub(super) struct Gone {
    /// Why it did not begin.
    pub(super) failed: Option<String>,
    /// Its exit code, if it began.
    pub(super) code: Option<i32>,
    /// Whether a process of it was killed because its memory was used up.
    pub(super) is_out_of_memory: bool,
}

impl Running {
    /// Starts a guard with its command. If nobody waits for it any more, what was started is ended.
    pub(super) async fn start(start: Start, dying: Dying) -> io::Result<Self> {
        // Until there is something that can be dropped, this count is all that quiet waits for.
        let (starting, handle) = (dying.count(), dying);
        let work = move || {
            let running = spawn(start, handle);
            drop(starting);
            running
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }

    /// Waits until the guard is gone by itself. Dropping the future changes nothing.
    pub(super) async fn gone(&mut self) -> io::Result<()> {
        let parts = self.parts.as_ref().expect("only `end` takes the parts");
        let process = parts.process.try_clone()?;
        // A thread of the pool waits along; it is free again when the process is dead, which every path leads to.
        let waited = tokio::task::spawn_blocking(move || {
            while !is_readable(&process, DEATH)? {}
            Ok(())
        });
        waited.await.map_err(io::Error::other)?
    }

    /// Ends whatever still lives and returns once it is proven dead.
    pub(super) async fn end(mut self) -> io::Result<Gone> {
        let parts = self.parts.take().expect("`end` is called once");
        let (counted, dying) = (self.dying.count(), self.dying.clone());
        let work = move || {
            let ended = end(parts).inspect_err(|error| dying.note_unproven(error));
            drop(counted);
            ended
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        let (counted, dying) = (self.dying.count(), self.dying.clone());
        let work = move || {
            if let Err(error) = end(parts) {
                dying.note_unproven(&error);
            }
            drop(counted);
        };
        if let Err(error) = std::thread::Builder::new().name("sandbox-end".into()).spawn(work) {
            self.dying.note_unproven(&error);
        }
    }
}

fn spawn(start: Start, dying: Dying) -> io::Result<Running> {
    let (input, control) = io::pipe()?;
    let (status, to_status) = io::pipe()?;
    let [stdout, stderr] = start.streams;
    let files = [start.orders, to_status.into()];
    let mapping = |(child_fd, parent_fd)| FdMapping { parent_fd, child_fd };
    let mut command = Command::new(start.helper);
    command
        .arg(guard::NAME)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr))
        .fd_mappings((FIRST_FILE..).zip(files).map(mapping).collect())
        .map_err(io::Error::other)?;
    let child = command.spawn()?;
    // Whoever reads them waits for the last one who could write.
    drop(command);
    let opened = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the guard has no number"))
        .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::NONBLOCK)?));
    // On an error the control pipe closes here, and the guard ends by itself what it has begun.
    let process = opened.inspect_err(|error| dying.note_unproven(error))?;
    let parts = Parts { child, process, control, status, group: start.group };
    Ok(Running { parts: Some(parts), dying })
}

fn end(parts: Parts) -> io::Result<Gone> {
    let Parts { mut child, process, control, status, group } = parts;
    group.kill()?;
    drop(control);
    if !is_readable(&process, DEATH)? {
        return Err(io::Error::other("not all of its processes have ended"));
    }
    let own = child.wait()?;
    let told = told(status)?;
    if !told.are_all_dead {
        let why = told.failed.unwrap_or_else(|| format!("its guard was ended ({own})"));
        return Err(io::Error::other(why));
    }
    group.kill()?;
    if !group.is_empty(DEATH)? {
        return Err(io::Error::other("its control group is not empty"));
    }
    let is_out_of_memory = group.killed().is_some_and(|killed| killed.has_grown());
    group.done();
    Ok(Gone { failed: told.failed, code: told.code, is_out_of_memory })
}

/// All that was told, by the guard and by the step before the command.
fn told(mut status: io::PipeReader) -> io::Result<Told> {
    let deadline = Instant::now() + DEATH;
    let mut text = Vec::new();
    loop {
        if !is_readable(&status, deadline.saturating_duration_since(Instant::now()))? {
            return Err(io::Error::other("its status is still open"));
        }
        let mut bytes = [0; 1024];
        match status.read(&mut bytes)? {
            0 => break,
            n => text.extend_from_slice(&bytes[..n]),
        }
    }
    let pieces = serde_json::Deserializer::from_slice(&text).into_iter::<Told>();
    Ok(pieces.map_while(Result::ok).fold(Told::default(), |all, piece| Told {
        failed: all.failed.or(piece.failed),
        code: all.code.or(piece.code),
        are_all_dead: all.are_all_dead || piece.are_all_dead,
    }))
}

/// A living process of a user, by its number and its name; none if there is none.
pub(super) fn of_user(uid: u32) -> Option<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.find_map(|number| {
        if !is_process(&number) {
            return None;
        }
        let text = std::fs::read_to_string(format!("/proc/{number}/status")).ok()?;
        let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        // Real, effective, saved and file system's.
        let is_own = line("Uid:")?.split_ascii_whitespace().any(|one| one.parse() == Ok(uid));
        let is_dead = line("State:")?.trim_start().starts_with(['Z', 'X']);
        (is_own && !is_dead).then(|| format!("{number} {}", line("Name:").unwrap_or("").trim()))
    })
}
