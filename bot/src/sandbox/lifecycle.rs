//! From a started bubblewrap to the proof that all of its processes are dead.
//!
//! Ending bubblewrap alone may leave the sandbox running: at its start it can die before the inside has tied its own death
//! to it. So the inner process is ended first, by the number that bubblewrap tells; with it the kernel ends every process
//! of its PID namespace. Whoever drops a running command leaves this work to a thread.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

/// How long bubblewrap may take to tell the inner process's number.
const TOLD: Duration = Duration::from_secs(5);
/// How long the kernel may take to end every process of a namespace.
const DEATH: Duration = Duration::from_secs(10);

/// Commands that are about to start, and those that nobody waits for any more and that are being ended.
#[derive(Clone)]
pub(super) struct Dying(Arc<watch::Sender<Count>>);

/// How many there are, and whether the death of one could not be proven.
#[derive(Default)]
struct Count {
    n_dying: usize,
    is_unproven: bool,
}

/// Counts a command from its request until it is handed over: whoever asked for it may be gone by then, and whoever wants
/// quiet must wait for it all the same.
pub(super) struct Starting(Dying);

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| count.n_dying -= 1);
    }
}

impl Dying {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Count::default())))
    }

    /// A command that will start.
    pub(super) fn starting(&self) -> Starting {
        self.0.send_modify(|count| count.n_dying += 1);
        Starting(self.clone())
    }

    /// Returns when there are none left; false if one may still live.
    pub(super) async fn none_left(&self) -> bool {
        let mut count = self.0.subscribe();
        // This value holds the sender, so it cannot be gone.
        let seen = count.wait_for(|count| count.n_dying == 0).await;
        seen.is_ok_and(|count| !count.is_unproven)
    }
}

/// A started bubblewrap. Dropped, it is ended.
pub(super) struct Running {
    parts: Option<Parts>,
    dying: Dying,
}

struct Parts {
    child: Child,
    outer: OwnedFd,
    status: Status,
}

/// What bubblewrap tells of itself, read as it comes.
struct Status {
    pipe: io::PipeReader,
    text: Vec<u8>,
    inner: Option<OwnedFd>,
}

/// How bubblewrap ended.
pub(super) struct Gone {
    /// The command's exit code, if it ran and ended by itself.
    pub(super) exit_code: Option<i32>,
    /// Bubblewrap's own.
    pub(super) status: ExitStatus,
}

impl Running {
    /// Takes over a child. `status` is the reading end of its status file.
    pub(super) fn new(mut child: Child, status: io::PipeReader, dying: Dying) -> io::Result<Self> {
        let opened = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the child has no number"))
            .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::NONBLOCK)?));
        let outer = opened.inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        let status = Status { pipe: status, text: Vec::new(), inner: None };
        Ok(Self { parts: Some(Parts { child, outer, status }), dying })
    }

    /// Waits until bubblewrap is gone by itself. Dropping the future changes nothing.
    pub(super) async fn gone(&mut self) -> io::Result<()> {
        let parts = self.parts.as_ref().expect("only `end` takes the parts");
        let outer = parts.outer.try_clone()?;
        // A thread of the pool waits along; it is free again when the process is dead, which every path leads to.
        let waited = tokio::task::spawn_blocking(move || {
            while !is_readable(&outer, DEATH)? {}
            Ok(())
        });
        waited.await.map_err(io::Error::other)?
    }

    /// Ends whatever still lives and returns once it is proven dead.
    pub(super) async fn end(mut self) -> io::Result<Gone> {
        let parts = self.parts.take().expect("`end` is called once");
        tokio::task::spawn_blocking(move || end(parts)).await.map_err(io::Error::other)?
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        self.dying.0.send_modify(|count| count.n_dying += 1);
        let dying = self.dying.clone();
        let work = move || {
            let ended = end(parts);
            if let Err(error) = &ended {
                tracing::error!(%error, "cannot prove that a sandboxed command is dead");
            }
            dying.0.send_modify(|count| {
                count.n_dying -= 1;
                count.is_unproven |= ended.is_err();
            });
        };
        if let Err(error) = std::thread::Builder::new().name("sandbox-end".into()).spawn(work) {
            tracing::error!(%error, "cannot end a sandboxed command");
            self.dying.0.send_modify(|count| {
                count.n_dying -= 1;
                count.is_unproven = true;
            });
        }
    }
}

fn end(mut parts: Parts) -> io::Result<Gone> {
    // As long as bubblewrap is starting, its number for the inner process is still to come.
    parts.status.read_until(TOLD, |status| status.inner.is_some())?;
    if let Some(inner) = &parts.status.inner {
        kill(inner)?;
        if !is_readable(inner, DEATH)? {
            return Err(io::Error::other("the inner process does not end"));
        }
    }
    kill(&parts.outer)?;
    let status = parts.child.wait()?;
    // Nobody holds the other end any more.
    parts.status.read_until(DEATH, |_| false)?;
    if parts.status.inner.is_none() && parts.status.told().0.is_some() {
        // It was told too late to be opened: the process is gone, or its number could not be opened.
        return Err(io::Error::other("the inner process could not be watched"));
    }
    Ok(Gone { exit_code: parts.status.told().1, status })
}

impl Status {
    /// Reads until `enough`, the end of the pipe, or the time limit.
    fn read_until(&mut self, limit: Duration, enough: impl Fn(&Self) -> bool) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        while !enough(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            if !is_readable(&self.pipe, left)? {
                return Ok(());
            }
            let mut bytes = [0; 1024];
            let n = self.pipe.read(&mut bytes)?;
            if n == 0 {
                return Ok(());
            }
            self.text.extend_from_slice(&bytes[..n]);
            if let (None, Some(number)) = (&self.inner, self.told().0) {
                self.inner = open_inner(number)?;
            }
        }
        Ok(())
    }

    /// The inner process's number and the exit code, as far as they have been told: JSON objects in a row.
    fn told(&self) -> (Option<i32>, Option<i32>) {
        let objects =
            serde_json::Deserializer::from_slice(&self.text).into_iter::<serde_json::Value>();
        let mut told = (None, None);
        for object in objects.map_while(Result::ok) {
            let number = |key: &str| {
                object
                    .get(key)
                    .and_then(serde_json::Value::as_i64)
                    .and_then(|n| i32::try_from(n).ok())
            };
            told = (told.0.or(number("child-pid")), told.1.or(number("exit-code")));
        }
        told
    }
}

/// None if it is gone already.
fn open_inner(number: i32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(number) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn kill(process: &OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(process, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn is_readable(fd: impl AsFd, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(n) => return Ok(n > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
