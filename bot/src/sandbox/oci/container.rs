//! From a started container to the proof that all of its processes are dead.
//!
//! The proof is the kernel's: before the first process is given its orders it is opened by its number, and that handle says
//! when it is dead; the kernel lets go of a namespace's first process only after every other one. Until then nothing of the
//! agent's runs: a container whose first process cannot be opened is never given any orders, and ends when its input does.
//! The engine is asked to remove the container, and whether it is gone, as well; its word alone is not enough.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;

use super::super::cgroup::Counter;
use super::super::ending::{DEATH, Dying, Living, Mortal, handle, is_readable, kill};
use super::engine::{Engine, Kind};
use super::gone;

/// How long a container that was given up while it started may take until it sees that its input has ended, and the engine
/// to forget it: it writes to disk for each, which takes as long as the disk is busy.
const STARTING: Duration = Duration::from_secs(60);

/// A started container.
pub(super) type Container = Living<Parts>;

/// What it takes to end one.
pub(super) struct Parts {
    engine: Arc<Engine>,
    name: String,
    client: Child,
    outer: OwnedFd,
    /// The first process's input.
    input: Option<Sender>,
    /// The first process, once it is opened.
    inner: Option<OwnedFd>,
}

/// How a container ended.
pub(super) struct Gone {
    /// The first process's exit code, if it was given orders.
    pub(super) exit_code: Option<i32>,
    /// Whether the engine says that memory was used up.
    pub(super) is_out_of_memory: bool,
    /// The engine's own.
    pub(super) status: ExitStatus,
}

impl Living<Parts> {
    /// Starts one. Returns it with the reading ends of its two streams.
    pub(super) fn start(
        engine: &Arc<Engine>,
        name: String,
        words: &[String],
        dying: &Dying,
    ) -> io::Result<(Self, [io::PipeReader; 2])> {
        let (input, to_input) = io::pipe()?;
        let (stdout, to_stdout) = io::pipe()?;
        let (stderr, to_stderr) = io::pipe()?;
        let input_of_ours = Sender::from_owned_fd(to_input.into())?;
        let mut command = engine.command();
        command.args(words).stdin(Stdio::from(input)).stdout(to_stdout).stderr(to_stderr);
        let mut client = command.spawn()?;
        let outer = handle(&client).inspect_err(|_| {
            // Without its input nothing of the agent's runs.
            let _ = client.kill();
            let _ = client.wait();
        })?;
        let parts = Parts {
            engine: Arc::clone(engine),
            name,
            client,
            outer,
            input: Some(input_of_ours),
            inner: None,
        };
        Ok((Self::new(parts, dying.clone()), [stdout, stderr]))
    }

    /// Opens the first process, which waits for its orders. Returns what counts processes killed for memory beside it.
    pub(super) async fn open(&mut self) -> io::Result<Option<Counter>> {
        let parts = self.parts();
        let (engine, name) = (Arc::clone(&parts.engine), parts.name.clone());
        let opened = tokio::task::spawn_blocking(move || open_first(&engine, &name));
        let (inner, counter) = opened.await.map_err(io::Error::other)??;
        // A number may be given to another process once its own is dead, and then the client is about to end.
        if is_readable(&parts.outer, Duration::ZERO)? {
            return Err(io::Error::other("its first process has ended before it was given orders"));
        }
        parts.inner = Some(inner);
        Ok(counter)
    }

    /// Gives the first process its orders. Its input stays open, as it ends with it.
    pub(super) async fn give(&mut self, orders: &[u8]) -> io::Result<()> {
        let Some(input) = &mut self.parts().input else { return Ok(()) };
        input.write_all(orders).await
    }
}

impl Mortal for Parts {
    type Gone = Gone;

    fn process(&self) -> &OwnedFd {
        &self.outer
    }

    fn end(mut self) -> io::Result<Gone> {
        drop(self.input.take());
        let limit = match &self.inner {
            Some(inner) => {
                match kill(inner) {
                    // A daemon's containers are not ours to signal; it ends them itself.
                    Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {}
                    killed => killed?,
                }
                if self.engine.kind == Kind::Docker {
                    self.engine.ask(&["kill", &self.name])?;
                }
                DEATH
            }
            None => STARTING,
        };
        if !is_readable(&self.outer, limit)? {
            kill(&self.outer)?;
        }
        let status = self.client.wait()?;
        let (exit_code, is_out_of_memory) = match &self.inner {
            Some(_) => outcome(&self)?,
            None => (None, false),
        };
        remove(&self)?;
        if let Some(inner) = &self.inner
            && !is_readable(inner, DEATH)?
        {
            return Err(io::Error::other("the container's first process does not end"));
        }
        Ok(Gone { exit_code, is_out_of_memory, status })
    }
}

/// What the engine says of the end; nothing where it has no container of this name any more.
fn outcome(parts: &Parts) -> io::Result<(Option<i32>, bool)> {
    let format = "{{.State.ExitCode}} {{.State.OOMKilled}}";
    let asked = parts.engine.ask(&["inspect", "--type=container", "--format", format, &parts.name]);
    let asked = asked?;
    let words: Vec<&str> = asked.stdout.split_whitespace().collect();
    Ok(match (asked.is_success, words.as_slice()) {
        (true, [code, oom]) => (code.parse().ok(), *oom == "true"),
        _ => (None, false),
    })
}

/// Removes the container. A client that was ended may have left the engine at work, so it is asked until it says so.
fn remove(parts: &Parts) -> io::Result<()> {
    let deadline = Instant::now() + STARTING;
    loop {
        let removed = parts.engine.ask(&["rm", "--force", &parts.name])?;
        if gone(&parts.engine, &parts.name)? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let words = removed.stderr.trim();
            return Err(io::Error::other(format!("the engine does not remove it: {words}")));
        }
    }
}

/// The first process by its number, and a counter of its control group.
fn open_first(engine: &Engine, name: &str) -> io::Result<(OwnedFd, Option<Counter>)> {
    let format = "{{.State.Pid}} {{.Id}}";
    let told = engine.told(&["inspect", "--type=container", "--format", format, name])?;
    let lost = || {
        io::Error::other(format!(
            "its first process is not among those of this machine (the engine says `{}`); the engine must run beside the service",
            told.trim()
        ))
    };
    let (number, id) = told.trim().split_once(' ').ok_or_else(lost)?;
    let number: i32 = number.parse().map_err(|_| lost())?;
    let pid = Pid::from_raw(number).filter(|_| number > 1).ok_or_else(lost)?;
    let inner = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    if !is_first(number, id) {
        return Err(lost());
    }
    Ok((inner, Counter::killed_beside(number)))
}

/// Whether a process is the first of a namespace within ours, or gVisor's, which names the container that it is.
fn is_first(number: i32, id: &str) -> bool {
    let read = |file: &str| fs::read(format!("/proc/{number}/{file}")).unwrap_or_default();
    let status = String::from_utf8_lossy(&read("status")).into_owned();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers: Vec<&str> = numbers.unwrap_or_default().split_whitespace().collect();
    let is_inner = numbers.len() > 1 && numbers.last() == Some(&"1");
    is_inner || String::from_utf8_lossy(&read("cmdline")).contains(id)
}
