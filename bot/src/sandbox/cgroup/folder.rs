//! One folder of groups in one hierarchy, for the commands of one process of ours: made beside the service's own group,
//! locked for as long as it is used, and cleared away when it was left behind.
//!
//! It leaves every process but this one and those of commands where they are.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::find::{Controller, Hierarchy, Version};
use super::settings::{self, Limits, Setting};

/// What the names of our folders begin with.
const PREFIX: &str = "hyla-";
/// Where the service itself goes: no group of version 2 may hold both processes and limited groups.
const SUPERVISOR: &str = "supervisor";
/// The members of a group. A process joins it by writing a zero.
pub(super) const MEMBERS: &str = "cgroup.procs";
const SELF: &str = "0";
/// How long the kernel may take to end what was left behind.
const DEATH: Duration = Duration::from_secs(2);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(5);
/// Names tried at most: each is of another folder of this very process, or of one that had its number.
const NAMES: u32 = 1000;

/// Why commands get no group.
#[derive(Debug, thiserror::Error)]
pub(in crate::sandbox) enum Error {
    #[error("`{path}` cannot be {what}: {source}")]
    File { path: PathBuf, what: &'static str, source: io::Error },
    #[error("other processes are in the service's group `{path}`")]
    Shared { path: PathBuf },
    #[error("no name is free in `{path}`")]
    Full { path: PathBuf },
}

fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { path: path.into(), what, source }
}

/// The folder, and what its groups limit.
pub(super) struct Folder {
    pub(super) version: Version,
    pub(super) controllers: Vec<Controller>,
    pub(super) path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Makes one, and clears away what processes that are gone have left there.
    pub(super) fn make(hierarchy: &Hierarchy) -> Result<Self, Error> {
        let base = match hierarchy.own.parent() {
            Some(parent) if hierarchy.own.ends_with(SUPERVISOR) => parent,
            Some(_) | None => &hierarchy.own,
        };
        let controllers = match hierarchy.version {
            Version::One => hierarchy.controllers.clone(),
            Version::Two => hand_on(base, base == hierarchy.own)?,
        };
        clear_left(hierarchy.version, base);
        let (path, lock) = claim(base)?;
        let folder = Self { version: hierarchy.version, controllers, path, _lock: lock };
        if folder.version == Version::Two {
            enable(&folder.path, &folder.controllers)?;
        }
        write(&folder.path, settings::of_all(folder.version, &folder.controllers))?;
        Ok(folder)
    }

    /// Makes the group of a command.
    pub(super) fn make_group(&self, name: &str, limits: &Limits) -> Result<(), Error> {
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(failed(&path, "made"))?;
        for controller in &self.controllers {
            write(&path, settings::of_command(self.version, *controller, limits))?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is cleared away by the next start.
        remove_groups(&self.path);
        let _ = fs::remove_dir(&self.path);
    }
}

/// Lets the groups below the service's own limit what it may limit itself. Returns what that is.
fn hand_on(base: &Path, is_inside: bool) -> Result<Vec<Controller>, Error> {
    let path = base.join("cgroup.controllers");
    let offered = fs::read_to_string(&path).map_err(failed(&path, "read"))?;
    let offered = Controller::named(&offered, ' ');
    let enabled = fs::read_to_string(base.join("cgroup.subtree_control")).unwrap_or_default();
    let enabled = Controller::named(&enabled, ' ');
    if offered.iter().all(|controller| enabled.contains(controller)) {
        return Ok(offered);
    }
    // The kernel's first group is the only one that may hold both, and the only one without a type.
    if !is_inside || !base.join("cgroup.type").exists() {
        enable(base, &offered)?;
        return Ok(offered);
    }
    let members = fs::read_to_string(base.join(MEMBERS)).unwrap_or_default();
    if members.lines().any(|member| member != std::process::id().to_string()) {
        return Err(Error::Shared { path: base.into() });
    }
    let supervisor = base.join(SUPERVISOR);
    if let Err(error) = fs::create_dir(&supervisor)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(failed(&supervisor, "made")(error));
    }
    let entry = supervisor.join(MEMBERS);
    fs::write(&entry, SELF).map_err(failed(&entry, "written"))?;
    enable(base, &offered).inspect_err(|_| {
        // As it was; whoever reads the error learns of the first failure.
        let _ = fs::write(base.join(MEMBERS), SELF);
        let _ = fs::remove_dir(&supervisor);
    })?;
    Ok(offered)
}

fn enable(group: &Path, controllers: &[Controller]) -> Result<(), Error> {
    if controllers.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = controllers.iter().map(|one| format!("+{}", one.name())).collect();
    let path = group.join("cgroup.subtree_control");
    fs::write(&path, names.join(" ")).map_err(failed(&path, "written"))
}

fn write(group: &Path, settings: Vec<Setting>) -> Result<(), Error> {
    for Setting { file, value, is_must } in settings {
        let path = group.join(file);
        match fs::write(&path, value) {
            Err(error) if is_must => return Err(failed(&path, "written")(error)),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// A new folder that is locked. The lock ends with this process, however it ends.
fn claim(base: &Path) -> Result<(PathBuf, File), Error> {
    for number in 0..NAMES {
        let path = base.join(format!("{PREFIX}{}-{number}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(failed(&path, "made")(error)),
        }
        // Until the lock is held, another process may take the folder for one that was left, and clear it away.
        let lock = File::open(&path).ok().filter(|folder| is_locked(folder) && path.exists());
        if let Some(lock) = lock {
            return Ok((path, lock));
        }
    }
    Err(Error::Full { path: base.into() })
}

fn is_locked(folder: &File) -> bool {
    flock(folder, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Ends and removes what processes that are gone have left.
fn clear_left(version: Version, base: &Path) {
    for path in folders(base) {
        let is_ours =
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        let Some(left) = File::open(&path).ok().filter(|left| is_ours && is_locked(left)) else {
            continue;
        };
        match clear(version, &path) {
            Ok(()) => {
                tracing::info!(path = %path.display(), "removed control groups that an earlier run left")
            }
            Err(error) => tracing::warn!(
                path = %path.display(), %error, "cannot remove control groups that an earlier run left"
            ),
        }
        drop(left);
    }
}

fn clear(version: Version, path: &Path) -> io::Result<()> {
    let deadline = Instant::now() + DEATH;
    loop {
        let is_ended = version == Version::Two && fs::write(path.join("cgroup.kill"), "1").is_ok();
        if !is_ended {
            folders(path).iter().try_for_each(|group| kill_each(group))?;
        }
        remove_groups(path);
        match fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound && Instant::now() > deadline => {
                return Err(error);
            }
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Ends each process of a group that no single word ends.
fn kill_each(group: &Path) -> io::Result<()> {
    // Where processes are limited, nothing starts another one meanwhile.
    if group.join("pids.max").exists() {
        fs::write(group.join("pids.max"), "0")?;
    }
    let members = || fs::read_to_string(group.join(MEMBERS));
    for member in members()?.lines() {
        let pid = member.parse().ok().and_then(Pid::from_raw);
        let Some(process) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            continue;
        };
        // The number may have been another process's by the time that it was opened.
        if members()?.lines().any(|still| still == member) {
            // Whoever is dead by now needs no signal.
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
    Ok(())
}

fn remove_groups(path: &Path) {
    for group in folders(path) {
        // One that is still in use stays, and so does the folder around it.
        let _ = fs::remove_dir(group);
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.filter(is_folder).map(|entry| entry.path()).collect()
}
