//! What the ends of commands have in common, whatever runs them: each is ended even if nobody waits for it any more, by a
//! thread then, and a death that cannot be proven is remembered for good.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use super::SetupError;

/// How long the kernel may take to end every process of a command.
pub(super) const DEATH: Duration = Duration::from_secs(10);

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

    /// Returns when every command that nobody waits for is dead.
    ///
    /// # Errors
    /// One may still live.
    pub(super) async fn quiet(&self) -> Result<(), SetupError> {
        if self.none_left().await { Ok(()) } else { Err(SetupError::Unsure) }
    }

    /// The work of ending a command. It counts from now on, and what cannot be proven is noted.
    fn ending<M: Mortal>(
        &self,
        parts: M,
    ) -> impl FnOnce() -> io::Result<M::Gone> + Send + 'static + use<M> {
        let (counted, dying) = (self.count(), self.clone());
        move || {
            let ended = parts.end().inspect_err(|error| dying.note_unproven(error));
            drop(counted);
            ended
        }
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

/// A started command, as the one backend that runs it knows it.
pub(super) trait Mortal: Send + 'static {
    /// How it ended.
    type Gone: Send + 'static;

    /// The process of this machine that is gone when the command is.
    fn process(&self) -> &OwnedFd;

    /// Ends whatever still lives and returns once it is proven dead. Blocks.
    fn end(self) -> io::Result<Self::Gone>;
}

/// A started command. Dropped, it is ended.
pub(super) struct Living<M: Mortal> {
    parts: Option<M>,
    dying: Dying,
}

impl<M: Mortal> Living<M> {
    pub(super) fn new(parts: M, dying: Dying) -> Self {
        Self { parts: Some(parts), dying }
    }

    pub(super) fn parts(&mut self) -> &mut M {
        self.parts.as_mut().expect("only `end` takes the parts")
    }

    /// Waits until it is gone by itself. Dropping the future changes nothing.
    pub(super) async fn gone(&mut self) -> io::Result<()> {
        let process = self.parts().process().try_clone()?;
        // A thread of the pool waits along; it is free again when the process is dead, which every path leads to.
        let waited = tokio::task::spawn_blocking(move || {
            while !is_readable(&process, DEATH)? {}
            Ok(())
        });
        waited.await.map_err(io::Error::other)?
    }

    /// Ends whatever still lives and returns once it is proven dead.
    pub(super) async fn end(mut self) -> io::Result<M::Gone> {
        let parts = self.parts.take().expect("`end` is called once");
        let work = self.dying.ending(parts);
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }
}

impl<M: Mortal> Drop for Living<M> {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        let work = self.dying.ending(parts);
        // What became of it is noted.
        let work = move || _ = work();
        if let Err(error) = std::thread::Builder::new().name("sandbox-end".into()).spawn(work) {
            self.dying.note_unproven(&error);
        }
    }
}

/// Opens a child, to wait for it.
pub(super) fn handle(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("the child has no number"))?;
    Ok(pidfd_open(pid, PidfdFlags::NONBLOCK)?)
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
