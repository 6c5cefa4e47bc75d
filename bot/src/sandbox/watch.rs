//! What every backend watches while a command runs: the room that is left, the workspace's size, memory that was used up,
//! and the ends of the two streams. It ends nothing; whoever waits for it does.

use std::io;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::cgroup::Counter;
use super::ending::{Dying, Living, Mortal};
use super::{Command, End, Finished, SetupError, Stream, usage};
use crate::workspace::{Workspace, let_owner_in};

/// How often the workspace's size is looked at, at most.
const LOOK: Duration = Duration::from_millis(500);
/// How often the space that is left to everybody is looked at, and whether memory was used up: a fast disk takes some
/// hundred megabytes meanwhile.
const QUICK_LOOK: Duration = Duration::from_millis(100);
/// How long the streams may take to end once every process is dead.
const DRAIN: Duration = Duration::from_secs(2);

/// Waits until a command is gone by itself, and then is none, or until it must be ended, and then is why.
pub(super) async fn over<M: Mortal>(
    running: &mut Living<M>,
    workspace: &Workspace,
    command: &Command,
    settings: &config::Sandbox,
    killed: Option<Counter>,
) -> io::Result<Option<End>> {
    tokio::select! {
        gone = running.gone() => gone.map(|()| None),
        () = tokio::time::sleep(command.timeout) => Ok(Some(End::TimedOut)),
        full = disk(workspace, settings) => full.map(|()| Some(End::DiskFull)),
        () = out_of_memory(killed) => Ok(Some(End::OutOfMemory)),
    }
}

/// Ready when the workspace has grown too large, or when little is left of its file system.
pub(super) async fn disk(workspace: &Workspace, settings: &config::Sandbox) -> io::Result<()> {
    tokio::select! {
        full = overfull(workspace, settings) => full,
        full = full(workspace, settings.free_bytes) => full,
    }
}

/// Ready when little is left of the file system.
async fn full(workspace: &Workspace, free_bytes: u64) -> io::Result<()> {
    loop {
        tokio::time::sleep(QUICK_LOOK).await;
        let folder = workspace.dir().try_clone_to_owned()?;
        let looked = tokio::task::spawn_blocking(move || usage::is_full(&folder, free_bytes));
        if looked.await.map_err(io::Error::other)?? {
            return Ok(());
        }
    }
}

/// Ready when the workspace has grown too large.
async fn overfull(workspace: &Workspace, settings: &config::Sandbox) -> io::Result<()> {
    let config::Sandbox { workspace_bytes, workspace_files, .. } = *settings;
    let mut rest = LOOK;
    loop {
        tokio::time::sleep(rest).await;
        let begun = Instant::now();
        for place in places(workspace) {
            let folder = place.dir().try_clone_to_owned()?;
            let look = move || usage::is_over(&folder, workspace_bytes, workspace_files);
            if tokio::task::spawn_blocking(look).await.map_err(io::Error::other)?? {
                return Ok(());
            }
        }
        // Looking takes at most a tenth of the time.
        rest = LOOK.max(begun.elapsed() * 10);
    }
}

/// Ready when a process of a command was killed because the command's memory was used up. The kernel may kill one and leave
/// the others; half a command is of no use.
async fn out_of_memory(killed: Option<Counter>) {
    let Some(killed) = killed else { return std::future::pending().await };
    while !killed.has_grown() {
        tokio::time::sleep(QUICK_LOOK).await;
    }
}

/// What a stream held. Every process that could write to it is dead.
pub(super) async fn drained(
    reader: JoinHandle<io::Result<Stream>>,
    dying: &Dying,
) -> Result<Stream, SetupError> {
    match tokio::time::timeout(DRAIN, reader).await {
        Ok(Ok(stream)) => stream.map_err(start("its output cannot be read")),
        Ok(Err(error)) => Err(start("its output cannot be read")(io::Error::other(error))),
        Err(_) => {
            let reason = "its output is still open";
            dying.note_unproven(&io::Error::other(reason));
            Err(SetupError::StillAlive { reason: reason.into() })
        }
    }
}

/// The folders of the host that a command may write.
pub(super) fn places(workspace: &Workspace) -> impl Iterator<Item = &Workspace> {
    [Some(workspace), workspace.home()].into_iter().flatten()
}

/// Opens the folders to their owner again: an earlier command may have closed the one that this one starts in.
pub(super) fn let_in(workspace: &Workspace) -> Result<(), SetupError> {
    for own in places(workspace) {
        let_owner_in(own.dir())
            .map_err(|errno| start("its workspace cannot be opened")(errno.into()))?;
    }
    Ok(())
}

/// What a shell would answer to a script that no shell can be given; none for all others.
pub(super) fn refused(command: &Command) -> Option<Finished> {
    let head = b"bash: the command holds a NUL byte\n".to_vec();
    command.script.contains('\0').then(|| Finished {
        end: End::Exited(126),
        stdout: Stream::default(),
        stderr: Stream { head, ..Stream::default() },
        elapsed: Duration::ZERO,
    })
}

/// The error that the death of a command could not be proven.
pub(super) fn still_alive(error: io::Error) -> SetupError {
    SetupError::StillAlive { reason: error.to_string() }
}

/// The error that something of a command's start failed.
pub(super) fn start(reason: &'static str) -> impl Fn(io::Error) -> SetupError {
    move |source| SetupError::Start { reason: reason.into(), source: Some(source) }
}
