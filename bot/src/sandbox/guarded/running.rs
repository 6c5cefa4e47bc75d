//! From a started guard to the proof that all processes of its command are dead.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use command_fds::{CommandFdExt, FdMapping};

use super::guard::{self, Told};
use crate::sandbox::cgroup::Group;
use crate::sandbox::child::FIRST_FILE;
use crate::sandbox::ending::{DEATH, Dying, Living, Mortal, handle, is_readable};

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

/// A started guard with its command.
pub(super) type Running = Living<Parts>;

/// What it takes to end one.
pub(super) struct Parts {
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

/// Starts a guard with its command. If nobody waits for it any more, what was started is ended.
pub(super) async fn begin(start: Start, dying: Dying) -> io::Result<Running> {
    // Until there is something that can be dropped, this count is all that quiet waits for.
    let (starting, handle) = (dying.count(), dying);
    let work = move || {
        let running = spawn(start, handle);
        drop(starting);
        running
    };
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
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
    // On an error the control pipe closes here, and the guard ends by itself what it has begun.
    let process = handle(&child).inspect_err(|error| dying.note_unproven(error))?;
    let parts = Parts { child, process, control, status, group: start.group };
    Ok(Living::new(parts, dying))
}

impl Mortal for Parts {
    type Gone = Gone;

    fn process(&self) -> &OwnedFd {
        &self.process
    }

    fn end(self) -> io::Result<Gone> {
        let Parts { mut child, process, control, status, group } = self;
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
