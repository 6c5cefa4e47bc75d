//! The step between the service and bubblewrap: a process of its own that gives up everything before bubblewrap starts.
//!
//! The service cannot do this for itself, and between `fork` and `exec` only little is allowed; a small program that is
//! started afresh may do it in plain safe code. It reads its orders from its standard input, so that none of them shows in
//! a process list. Order matters: groups, limits, files, privileges, identity, then bubblewrap with an empty environment.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Uid};
use serde::{Deserialize, Serialize};

/// The hidden command's name.
pub const NAME: &str = "sandbox-child";
/// Exit code when bubblewrap was not started.
const NOT_STARTED: u8 = 125;
/// The kernel's highest: what is ended first when memory is used up. Nothing inside can go below what the service has.
const OOM_SCORE: &str = "1000";
/// Whatever else the machine does comes first, where no control group weighs the two.
const NICE: i32 = 10;
/// What a process writes to join a control group itself.
const SELF: &str = "0";
/// The first file that bubblewrap is given.
pub(super) const FIRST_FILE: RawFd = 3;

/// What to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// The program to become.
    pub(super) program: String,
    /// Its arguments, as bytes.
    pub(super) arguments: Vec<Vec<u8>>,
    /// How many files, from [`FIRST_FILE`] on, it keeps. The one behind them becomes its standard input.
    pub(super) n_files: usize,
    /// The service's process. Without it nothing is started.
    pub(super) service: u32,
    /// User and group to become; none if the service is no root.
    pub(super) identity: Option<(u32, u32)>,
    /// Files by which it joins its control groups, as bytes.
    pub(super) groups: Vec<Vec<u8>>,
    /// Limits of one process, or of the user for processes.
    pub(super) limits: Limits,
}

/// Limits that the kernel keeps for each process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Limits {
    /// Open files.
    pub(super) open_files: u64,
    /// Bytes of one file.
    pub(super) file_bytes: u64,
    /// Processes and threads of the user.
    pub(super) processes: u64,
}

/// Becomes bubblewrap, or says on the standard error stream why not.
pub fn main() -> ExitCode {
    let Err(error) = become_program();
    let mut stderr = std::io::stderr();
    // Nobody is left to be told if even this fails.
    let _ =
        std::io::Write::write_all(&mut stderr, format!("hyla sandbox-child: {error}\n").as_bytes());
    ExitCode::from(NOT_STARTED)
}

fn become_program() -> std::io::Result<std::convert::Infallible> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let orders: Orders = serde_json::from_slice(&text)?;
    let kept = FIRST_FILE + RawFd::try_from(orders.n_files).unwrap_or(RawFd::MAX - FIRST_FILE);
    rustix::stdio::dup2_stdin(std::fs::File::open(format!("/proc/self/fd/{kept}"))?)?;

    join(orders.groups)?;
    limit(&orders.limits)?;
    close_all(|number| number < kept)?;
    give_up(orders.identity)?;
    if nix::unistd::geteuid().is_root() {
        return Err(std::io::Error::other("refusing to start bubblewrap as root"));
    }
    // Bubblewrap asks for this itself, but only some time after it has started. A change of identity would undo it.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if std::os::unix::process::parent_id() != orders.service {
        return Err(std::io::Error::other("the service is gone"));
    }
    let arguments = orders.arguments.into_iter().map(OsString::from_vec);
    // Even bubblewrap's own environment can be read inside, through /proc/1/environ.
    Err(Command::new(&orders.program).args(arguments).env_clear().exec())
}

/// Joins control groups, each given by the file that takes members.
pub(super) fn join(groups: Vec<Vec<u8>>) -> std::io::Result<()> {
    groups.iter().try_for_each(|group| std::fs::write(Path::new(OsStr::from_bytes(group)), SELF))
}

/// Takes these limits, and the last place in line for processor and memory.
pub(super) fn limit(limits: &Limits) -> std::io::Result<()> {
    let limit = |resource, value| setrlimit(resource, value, value);
    // Where these are not allowed the command may still run; the doctor says so of the first.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let _ = rustix::process::nice(NICE);
    limit(Resource::RLIMIT_CORE, 0)?;
    limit(Resource::RLIMIT_NOFILE, limits.open_files)?;
    limit(Resource::RLIMIT_FSIZE, limits.file_bytes)?;
    // Nobody but root may raise it, and it is no more than a second fence where a group counts processes.
    let (_, most) = getrlimit(Resource::RLIMIT_NPROC)?;
    limit(Resource::RLIMIT_NPROC, limits.processes.min(most))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(())
}

/// Gives up what new programs could gain, and becomes this user, if any, in no group but its own.
pub(super) fn give_up(identity: Option<(u32, u32)>) -> std::io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    if let Some((uid, gid)) = identity {
        nix::unistd::setgroups(&[])?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        nix::unistd::setresgid(gid, gid, gid)?;
        nix::unistd::setresuid(uid, uid, uid)?;
    }
    Ok(())
}

/// Closes every file that is not among the kept ones.
pub(super) fn close_all(is_kept: impl Fn(RawFd) -> bool) -> std::io::Result<()> {
    let mut open = BTreeSet::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        if let Some(number) =
            std::str::from_utf8(name.as_bytes()).ok().and_then(|n| n.parse::<RawFd>().ok())
        {
            open.insert(number);
        }
    }
    for number in open.into_iter().filter(|number| !is_kept(*number)) {
        match nix::unistd::close(number) {
            // The folder that was being listed is closed by now.
            Ok(()) | Err(nix::errno::Errno::EBADF) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
