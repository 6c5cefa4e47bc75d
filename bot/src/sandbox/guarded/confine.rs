//! The last step before a command that has no namespaces of its own: a process that gives up everything and becomes the
//! command's shell. It differs from the step before bubblewrap in who builds the walls: here it is this process itself.
//!
//! What does not work is told through the status file, so that it is never taken for something that the command said.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use nix::sys::signal::SigSet;
use serde::{Deserialize, Serialize};

use super::guard::{STATUS, Told};
use super::landlock;
use crate::sandbox::child::{self, Limits};
use crate::sandbox::seccomp;

/// The hidden command's name. Its argument is the guard's own number.
pub const NAME: &str = "sandbox-confine";
/// Exit code when the command was not started.
const NOT_STARTED: u8 = 125;

/// What to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// The script of the command.
    pub(super) script: String,
    /// Where it runs.
    pub(super) folder: Vec<u8>,
    /// Its whole environment.
    pub(super) variables: Vec<(String, Vec<u8>)>,
    /// User and group to become; none where commands run as the service's own user.
    pub(super) identity: Option<(u32, u32)>,
    /// Files by which it joins its control groups, as bytes.
    pub(super) groups: Vec<Vec<u8>>,
    /// Limits of one process, or of the user for processes.
    pub(super) limits: Limits,
    /// What it may reach; everything if none.
    pub(super) walls: Option<Walls>,
}

/// What a command may reach besides the system's programs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Walls {
    /// Folders to read.
    pub(super) read: Vec<Vec<u8>>,
    /// Folders to write.
    pub(super) written: Vec<Vec<u8>>,
}

/// Becomes the command's shell, or tells why not. The first word is the number of the guard.
pub fn main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let guard = words.next().and_then(|word| word.to_str()?.parse().ok());
    let Ok(mut status) = File::options().write(true).open(STATUS) else {
        return ExitCode::from(NOT_STARTED);
    };
    let Err(error) = become_shell(guard, &status);
    let told = Told { failed: Some(error.to_string()), ..Told::default() };
    // Nobody is left to be told if even this fails.
    let _ = serde_json::to_writer(&mut status, &told);
    let _ = status.flush();
    ExitCode::from(NOT_STARTED)
}

/// The status file is open besides; the kernel closes it when the shell begins.
fn become_shell(guard: Option<u32>, status: &File) -> io::Result<std::convert::Infallible> {
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text)?;
    let orders: Orders = serde_json::from_slice(&text)?;
    child::join(orders.groups)?;
    child::limit(&orders.limits)?;
    let kept = status.as_raw_fd();
    child::close_all(|number| number < child::FIRST_FILE || number == kept)?;
    // So that nothing of it shares a terminal, or a group of processes, with the service.
    rustix::process::setsid()?;
    child::give_up(orders.identity)?;
    if nix::unistd::geteuid().is_root() {
        return Err(io::Error::other("refusing to run a command as root"));
    }
    // A change of identity would undo it.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if guard != Some(std::os::unix::process::parent_id()) {
        return Err(io::Error::other("its guard is gone"));
    }
    let folder = PathBuf::from(OsString::from_vec(orders.folder));
    rustix::process::chdir(&folder).map_err(|error| {
        io::Error::other(format!("its user cannot enter `{}`: {error}", folder.display()))
    })?;
    if let Some(Walls { read, written }) = orders.walls {
        let paths = |list: Vec<Vec<u8>>| -> Vec<PathBuf> {
            list.into_iter().map(|path| OsString::from_vec(path).into()).collect()
        };
        landlock::restrict(&paths(read), &paths(written))?;
        let filter = seccomp::alone().map_err(io::Error::other)?;
        seccompiler::apply_filter(&filter).map_err(io::Error::other)?;
    }
    // Its guard blocks some, and that would be handed on.
    SigSet::all().thread_unblock()?;
    let variables = orders.variables.iter().map(|(name, value)| (name, OsStr::from_bytes(value)));
    Err(Command::new("/bin/bash")
        .args(["--noprofile", "-lc", &orders.script])
        .env_clear()
        .envs(variables)
        .stdin(Stdio::null())
        .exec())
}
