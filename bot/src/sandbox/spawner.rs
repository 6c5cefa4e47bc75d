//! The one thread that starts bubblewrap, and lives as long as the service.
//!
//! Bubblewrap dies with the thread that started it (`prctl(PR_SET_PDEATHSIG)` counts threads, not processes), so it must
//! not be a thread of a pool that may end.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use command_fds::{CommandFdExt, FdMapping};
use tokio::sync::oneshot;

use super::cgroup::Group;
use super::child;
use super::ending::{Counted, Dying};
use super::lifecycle::{Running, take_over};

/// What to start.
pub(super) struct Start {
    /// The `hyla` binary.
    pub(super) helper: PathBuf,
    /// Its standard input: the orders.
    pub(super) orders: OwnedFd,
    /// Its standard output and error.
    pub(super) streams: [OwnedFd; 2],
    /// Its other files, from [`child::FIRST_FILE`] on.
    pub(super) files: Vec<OwnedFd>,
    /// The reading end of bubblewrap's status file.
    pub(super) status: io::PipeReader,
    /// The control group that it joins.
    pub(super) group: Group,
}

struct Request {
    start: Start,
    answer: oneshot::Sender<io::Result<Running>>,
    starting: Counted,
}

/// A handle to the thread.
pub(super) struct Spawner {
    requests: Sender<Request>,
    dying: Dying,
}

impl Spawner {
    /// Starts the thread.
    pub(super) fn new(dying: Dying) -> io::Result<Self> {
        let (requests, receiver) = channel();
        let handle = dying.clone();
        std::thread::Builder::new()
            .name("sandbox-spawner".into())
            .spawn(move || work(&receiver, &dying))?;
        Ok(Self { requests, dying: handle })
    }

    /// Starts one process.
    pub(super) async fn start(&self, start: Start) -> io::Result<Running> {
        let (answer, answered) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts sandboxes has ended");
        let request = Request { start, answer, starting: self.dying.count() };
        self.requests.send(request).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

fn work(requests: &Receiver<Request>, dying: &Dying) {
    while let Ok(Request { start, answer, starting }) = requests.recv() {
        // If whoever asked is gone, the answer is dropped here, and that ends it.
        let _ = answer.send(spawn(start, dying.clone()));
        // Only now: an answer dropped is counted as dying, and the count must not touch zero between the two.
        drop(starting);
    }
}

fn spawn(start: Start, dying: Dying) -> io::Result<Running> {
    let mut command = Command::new(start.helper);
    let [stdout, stderr] = start.streams;
    let mapping = |(at, parent_fd): (usize, OwnedFd)| FdMapping {
        parent_fd,
        child_fd: child::FIRST_FILE + RawFd::try_from(at).unwrap_or(0),
    };
    command
        .arg(child::NAME)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(start.orders))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr))
        .fd_mappings(start.files.into_iter().enumerate().map(mapping).collect())
        .map_err(io::Error::other)?;
    take_over(command.spawn()?, start.status, start.group, dying)
}
