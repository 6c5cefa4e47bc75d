//! From a started bubblewrap to the proof that all of its processes are dead.
//!
//! Ending bubblewrap alone may leave the sandbox running: at its start it can die before the inside has tied its own death
//! to it. So the control group is ended first, where one word does that, and then the inner process, by the number that
//! bubblewrap tells; with it the kernel ends every process of its PID namespace.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::cgroup::Group;
use super::ending::{DEATH, Dying, Living, Mortal, handle, is_readable, kill};

/// How long bubblewrap may take to tell the inner process's number.
const TOLD: Duration = Duration::from_secs(5);

/// A started bubblewrap.
pub(super) type Running = Living<Parts>;

/// What it takes to end one.
pub(super) struct Parts {
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

/// Takes over a child. `status` is the reading end of its status file.
pub(super) fn take_over(
    mut child: Child,
    status: io::PipeReader,
    group: Group,
    dying: Dying,
) -> io::Result<Running> {
    let outer = handle(&child).inspect_err(|_| {
        let _ = child.kill();
        let _ = child.wait();
    })?;
    let status = Status { pipe: status, text: Vec::new(), inner: Inner::Untold };
    Ok(Living::new(Parts { child, outer, status, group }, dying))
}

impl Mortal for Parts {
    type Gone = Gone;

    fn process(&self) -> &OwnedFd {
        &self.outer
    }

    fn end(mut self) -> io::Result<Gone> {
        // Each of these ends the command, so none waits for another to succeed.
        let by_group = self.group.kill();
        // As long as bubblewrap is starting, its number for the inner process is still to come.
        let told = self.status.read_until(TOLD, |status| !matches!(status.inner, Inner::Untold));
        let inner = self.status.end_inner();
        let outer = kill(&self.outer);
        by_group.and(told).and(inner).and(outer)?;
        let status = self.child.wait()?;
        if !self.status.read_until(DEATH, |_| false)? {
            return Err(io::Error::other("its status is still open"));
        }
        // The number may have come at the last moment.
        self.status.end_inner()?;
        // Whoever joined the group after its first end is no longer there to start anybody.
        self.group.kill()?;
        if !self.group.is_empty(DEATH)? {
            return Err(io::Error::other("its control group is not empty"));
        }
        let is_out_of_memory = self.group.killed().is_some_and(|killed| killed.has_grown());
        self.group.done();
        Ok(Gone { exit_code: self.status.told().1, status, is_out_of_memory })
    }
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
