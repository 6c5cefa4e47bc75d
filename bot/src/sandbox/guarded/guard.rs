//! The parent of one command that has no PID namespace: a process that outlives every process of the command and says so.
//!
//! Whatever the command leaves behind becomes this process's own child (`PR_SET_CHILD_SUBREAPER`), wherever it has moved to.
//! When the command ends, or the service says so, or the service is gone, everything is killed, again and again, until the
//! kernel says that there is no child left. That proves the death of all, as long as nothing of the command can end this
//! process: so it does for commands of another user, and for those of the service's own user only if none of them tries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, WaitOptions, pidfd_open, pidfd_send_signal, wait};
use serde::{Deserialize, Serialize};

use super::confine::{self, Orders};
use crate::sandbox::child;

/// The hidden command's name.
pub const NAME: &str = "sandbox-guard";
/// The orders, as the guard is given them.
const ORDERS: &str = "/proc/self/fd/3";
/// Where it tells what became of the command.
pub(super) const STATUS: &str = "/proc/self/fd/4";
/// How many files it is given, behind the three of every process.
pub(super) const N_FILES: i32 = 2;
/// Between two rounds of killing.
const PAUSE: Duration = Duration::from_millis(2);
/// Exit code when it did not do its work.
const BROKEN: u8 = 125;

/// What is told through the status file, in as many pieces as there are tellers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Told {
    /// Why the command did not begin.
    pub(super) failed: Option<String>,
    /// How the command ended: its exit code, or 128 + n when a signal n ended it.
    pub(super) code: Option<i32>,
    /// Whether every process of it is dead.
    pub(super) are_all_dead: bool,
}

/// Runs one command to the end of all its processes. Its standard input ends when the service wants it to end, or is gone.
pub fn main() -> ExitCode {
    let Ok(mut status) = File::options().write(true).open(STATUS) else {
        return ExitCode::from(BROKEN);
    };
    let told = match start() {
        Ok((command, end)) => match outlive(command, &end) {
            Ok(code) => Told { code, are_all_dead: true, ..Told::default() },
            Err(error) => Told { failed: Some(format!("its guard: {error}")), ..Told::default() },
        },
        // There is nobody to kill.
        Err(error) => {
            let failed = Some(format!("its guard: {error}"));
            Told { failed, are_all_dead: true, ..Told::default() }
        }
    };
    // Nobody is left to be told if even this fails.
    let _ = serde_json::to_writer(&mut status, &told);
    let _ = status.flush();
    if told.failed.is_none() { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) }
}

/// Starts the command. Returns its number, and what to tell when it is over. After an error nothing runs.
fn start() -> io::Result<(i32, Sender<()>)> {
    child::close_all(|number| number < child::FIRST_FILE + N_FILES + 1)?;
    // What ends the service, from a terminal or from a service manager, must not end this before its work is done.
    rustix::process::setsid()?;
    let polite = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP];
    polite.into_iter().collect::<SigSet>().thread_block()?;
    let orders: Orders = serde_json::from_reader(File::open(ORDERS)?)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let (end, ended) = channel();
    let user = orders.identity.map(|(uid, _)| uid);
    std::thread::Builder::new().spawn(move || kill_all(&ended, user))?;
    let told = end.clone();
    std::thread::Builder::new().spawn(move || {
        // However it ends, it is over.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        let _ = told.send(());
    })?;
    // By the thread that lives as long as this process: the command dies with it.
    let command = Command::new("/proc/self/exe")
        .args([confine::NAME, &std::process::id().to_string()])
        .env_clear()
        .stdin(File::open(ORDERS)?)
        .spawn()?;
    Ok((i32::try_from(command.id()).map_err(io::Error::other)?, end))
}

/// Returns how the command ended, once nothing of it lives.
fn outlive(command: i32, end: &Sender<()>) -> io::Result<Option<i32>> {
    let mut code = None;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_pid() == command => {
                code = status.exit_status().or(status.terminating_signal().map(|n| 128 + n));
                let _ = end.send(());
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No child is left, and none can come: only what descends from one could be made a child of this process.
            Err(rustix::io::Errno::CHILD) => return Ok(code),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits for the end, and then kills for as long as this process lives.
fn kill_all(ended: &Receiver<()>, user: Option<u32>) {
    if ended.recv().is_err() {
        return;
    }
    if let Some(uid) = user {
        // Of this thread alone: as this user it can signal every process of that user at one stroke, and no other. A process
        // that is about to fork cannot slip through, as it could through a list.
        let uid = rustix::process::Uid::from_raw(uid);
        if rustix::thread::set_thread_res_uid(uid, uid, uid).is_ok() {
            loop {
                let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
                std::thread::sleep(PAUSE);
            }
        }
    }
    loop {
        kill_descendants();
        std::thread::sleep(PAUSE);
    }
}

/// Kills what descends from this process, as far as it can be seen at this moment.
fn kill_descendants() {
    let own = own_number();
    for number in descendants(&parents(), own) {
        let Some(pid) = rustix::process::Pid::from_raw(number) else { continue };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // The number may have been another process's by the time that it was opened.
        if descendants(&parents_of(number), own).contains(&number) {
            // Whoever is dead by now needs no signal.
            let _ = pidfd_send_signal(&process, rustix::process::Signal::KILL);
        }
    }
}

fn own_number() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

/// The parent of each process.
fn parents() -> BTreeMap<i32, i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(|number: i32| Some((number, parent(number)?))).collect()
}

/// The same of one process and of those above it.
fn parents_of(number: i32) -> BTreeMap<i32, i32> {
    let mut found = BTreeMap::new();
    let mut number = number;
    while let Some(above) = parent(number).filter(|_| !found.contains_key(&number)) {
        found.insert(number, above);
        number = above;
    }
    found
}

fn parent(number: i32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name stands in brackets and may hold anything; the state and the parent's number come behind it.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The processes below one. Pure.
fn descendants(parents: &BTreeMap<i32, i32>, top: i32) -> BTreeSet<i32> {
    let mut below = BTreeSet::new();
    let mut n_before = None;
    while n_before != Some(below.len()) {
        n_before = Some(below.len());
        let found = parents.iter().filter(|(_, parent)| **parent == top || below.contains(*parent));
        let found: Vec<i32> = found.map(|(number, _)| *number).collect();
        below.extend(found);
    }
    below
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn whoever_descends_is_found_and_nobody_else() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (9, 3), (4, 9), (5, 1), (6, 5), (7, 7)]);
        assert_eq!(super::descendants(&parents, 2), BTreeSet::from([3, 4, 9]));
        assert_eq!(super::descendants(&parents, 4), BTreeSet::new());
    }
}
