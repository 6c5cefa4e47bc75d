//! From a started bubblewrap to the proof that all of its processes are dead.
//!
//! Ending bubblewrap alone may leave the sandbox running: at its start it can die before the inside has tied its own death
//! to it. So the control group is ended first, where one word does that, and then the inner process, by the number that
//! bubblewrap tells; with it the kernel ends every process of its PID namespace. Whoever drops a running command leaves this work to
//! a thread. A death that cannot be proven is remembered for good.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use super::cgroup::Group;

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

/// Counts a command while it is started or ended: whoever asked for that may be gone by then, and whoever wants quiet must
/// wait for it all the same.
pub(super) struct Counted(Dying);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| count.n_dying -= 1);
    }
}

impl Dying {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Count::default())))
    }

    /// A command that will start, or that is being ended.
    pub(super) fn count(&self) -> Counted {
        self.0.send_modify(|count| count.n_dying += 1);
        Counted(self.clone())
    }

    /// Returns when there are none left; false if one may still live.
    pub(super) async fn none_left(&self) -> bool {
        let mut count = self.0.subscribe();
        // This value holds the sender, so it cannot be gone.
        let seen = count.wait_for(|count| count.n_dying == 0).await;
        seen.is_ok_and(|count| !count.is_unproven)
    }

    /// Notes that one may live on.
    pub(super) fn note_unproven(&self, error: &io::Error) {
        tracing::error!(
            %error,
            "cannot prove that a sandboxed command is dead; no command runs until the service is started again"
        );
        self.0.send_modify(|count| count.is_unproven = true);
    }

    /// Whether one may live on.
    pub(super) fn is_unproven(&self) -> bool {
        self.0.borrow().is_unproven
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
    group: Group,
}

/// What bubblewrap tells of itself, read as it comes.
struct Status {
    pipe: io::PipeReader,
    text: Vec<u8>,
    inner: Inner,
}

/// The first process of the sandbox, whose death is the death of all.
enum Inner {
    /// Bubblewrap has told no number.
    Untold,
    /// It was dead by the time that its number was read.
    Gone,
    /// Open.
    Open(OwnedFd),
}

/// How bubblewrap ended.
pub(super) struct Gone {
    /// The command's exit code, if it ran and ended by itself.
    pub(super) exit_code: Option<i32>,
    /// Bubblewrap's own.
    pub(super) status: ExitStatus,
    /// Whether a process of it was killed because its memory was used up.
    pub(super) is_out_of_memory: bool,
}

impl Running {
    /// Takes over a child. `status` is the reading end of its status file.
    pub(super) fn new(
        mut child: Child,
        status: io::PipeReader,
        group: Group,
        dying: Dying,
    ) -> io::Result<Self> {
        let opened = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the child has no number"))
            .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::NONBLOCK)?));
        let outer = opened.inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        let status = Status { pipe: status, text: Vec::new(), inner: Inner::Untold };
        Ok(Self { parts: Some(Parts { child, outer, status, group }), dying })
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

fn end(mut parts: Parts) -> io::Result<Gone> {
    // Each of these ends the command, so none waits for another to succeed.
    let by_group = parts.group.kill();
    // As long as bubblewrap is starting, its number for the inner process is still to come.
    let told = parts.status.read_until(TOLD, |status| !matches!(status.inner, Inner::Untold));
    let inner = parts.status.end_inner();
    let outer = kill(&parts.outer);
    by_group.and(told).and(inner).and(outer)?;
    let status = parts.child.wait()?;
    if !parts.status.read_until(DEATH, |_| false)? {
        return Err(io::Error::other("its status is still open"));
    }
    // The number may have come at the last moment.
    parts.status.end_inner()?;
    // Whoever joined the group after its first end is no longer there to start anybody.
    parts.group.kill()?;
    if !parts.group.is_empty(DEATH)? {
        return Err(io::Error::other("its control group is not empty"));
    }
    let is_out_of_memory = parts.group.killed().is_some_and(|killed| killed.has_grown());
    parts.group.done();
    Ok(Gone { exit_code: parts.status.told().1, status, is_out_of_memory })
}

impl Status {
    /// Ends the inner process, as far as it is known, and returns once it is dead.
    fn end_inner(&self) -> io::Result<()> {
        let Inner::Open(inner) = &self.inner else { return Ok(()) };
        kill(inner)?;
        if is_readable(inner, DEATH)? {
            return Ok(());
        }
        Err(io::Error::other("the inner process does not end"))
    }

    /// Reads until `enough` or the end of the pipe; false if the time is up before.
    fn read_until(&mut self, limit: Duration, enough: impl Fn(&Self) -> bool) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        while !enough(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            if !is_readable(&self.pipe, left)? {
                return Ok(false);
            }
            let mut bytes = [0; 1024];
            let n = self.pipe.read(&mut bytes)?;
            if n == 0 {
                return Ok(true);
            }
            self.text.extend_from_slice(&bytes[..n]);
            if let (Inner::Untold, Some(number)) = (&self.inner, self.told().0) {
                self.inner = open_inner(number)?;
            }
        }
        Ok(true)
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

fn open_inner(number: i32) -> io::Result<Inner> {
    let pid = Pid::from_raw(number).filter(|_| number > 1);
    let pid = pid.ok_or_else(|| io::Error::other("the inner process has no number"))?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(Inner::Open(fd)),
        // The kernel lets go of a namespace's first process only after every other one.
        Err(rustix::io::Errno::SRCH) => Ok(Inner::Gone),
        Err(errno) => Err(errno.into()),
    }
}

/// Ends a process that may be gone.
pub(super) fn kill(process: &OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(process, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until something can be read of it; of a process, until it has ended. False if the time is up before.
pub(super) fn is_readable(fd: impl AsFd, limit: Duration) -> io::Result<bool> {
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
