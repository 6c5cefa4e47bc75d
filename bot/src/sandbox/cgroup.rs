//! Control groups: what one command may use in all, enforced by the kernel for the whole of it.
//!
//! Each command runs in a group of its own, which it joins before bubblewrap starts. Groups are used again: what an earlier
//! command read stays in the kernel's cache, as it should, and a command starts faster. Where the machine has no groups for
//! the service, that is remembered with its reason, and whoever requires them refuses to run.

mod find;
mod folder;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Seek};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

pub(super) use find::{Controller, Version, is_unit};
pub(super) use folder::Error;
pub(super) use settings::Limits;

use find::Hierarchy;
use folder::{Folder, MEMBERS};
use settings::Event;

/// Above it, a limit of version 1 is none: the kernel writes the largest number of pages, in bytes.
const NO_LIMIT: u64 = 1 << 60;

/// The groups of this process's commands.
pub(super) struct Groups {
    pool: Arc<Pool>,
    missing: BTreeMap<Controller, String>,
    /// Whether the service manager started this process as a unit of its own.
    pub(super) is_unit: bool,
    /// What the service itself may use of memory, and the file that says so.
    pub(super) own_memory: Option<(u64, PathBuf)>,
}

struct Pool {
    folders: Vec<Folder>,
    limits: Limits,
    idle: Mutex<Vec<u64>>,
    next: AtomicU64,
}

impl Groups {
    /// Finds and prepares what there is. What is missing is no error here.
    pub(super) fn open(limits: Limits) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let groups = read("/proc/self/cgroup");
        let hierarchies = find::hierarchies(&groups, &read("/proc/self/mountinfo"));
        let mut opened = Self::open_at(&hierarchies, limits);
        opened.is_unit = find::is_unit(&groups, std::os::unix::process::parent_id());
        opened
    }

    fn open_at(hierarchies: &[Hierarchy], limits: Limits) -> Self {
        let mut hierarchies = hierarchies.to_vec();
        // Version 2 first: where both are, it ends at once what version 1 must count and end one by one.
        hierarchies.sort_by_key(|hierarchy| hierarchy.version != Version::Two);
        let mut missing: BTreeMap<Controller, String> = Controller::ALL
            .iter()
            .map(|one| (*one, format!("the kernel offers no control group for {}", one.name())))
            .collect();
        let mut folders: Vec<Folder> = Vec::new();
        for hierarchy in &hierarchies {
            match Folder::make(hierarchy).and_then(|folder| {
                // The kernel may refuse a value; better now than at the first command.
                folder.make_group("0", &limits).map(|()| folder)
            }) {
                Ok(folder) => {
                    missing.retain(|controller, _| !folder.controllers.contains(controller));
                    folders.push(folder);
                }
                Err(error) => {
                    let concerned = |controller: &Controller| match hierarchy.version {
                        Version::One => hierarchy.controllers.contains(controller),
                        Version::Two => true,
                    };
                    let reasons = missing.iter_mut().filter(|(one, _)| concerned(one));
                    reasons.for_each(|(_, reason)| *reason = error.to_string());
                }
            }
        }
        let idle = Mutex::new(vec![0]);
        Self {
            pool: Arc::new(Pool { folders, limits, idle, next: AtomicU64::new(1) }),
            missing,
            is_unit: false,
            own_memory: own_memory(&hierarchies),
        }
    }

    /// Which version limits this for each command; or why none does.
    pub(super) fn enforces(&self, controller: Controller) -> Result<Version, &str> {
        if let Some(reason) = self.missing.get(&controller) {
            return Err(reason);
        }
        let mut folders = self.pool.folders.iter();
        let has = |folder: &&Folder| folder.controllers.contains(&controller);
        folders.find(has).map(|folder| folder.version).ok_or("no group has it")
    }

    /// Whether one word ends a whole group.
    pub(super) fn ends_whole(&self) -> bool {
        self.pool.folders.iter().any(|folder| folder.version == Version::Two)
    }

    /// A group that nothing is in, with the limits of all commands.
    pub(super) fn take(&self) -> Result<Group, Error> {
        let idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(number) => Ok(Group::new(&self.pool, number, Kept::ForTheNext)),
            None => self.make(&self.pool.limits, Kept::ForTheNext),
        }
    }

    /// A group with limits of its own.
    pub(super) fn make_with(&self, limits: &Limits) -> Result<Group, Error> {
        self.make(limits, Kept::Once)
    }

    fn make(&self, limits: &Limits, kept: Kept) -> Result<Group, Error> {
        let number = self.pool.next.fetch_add(1, Ordering::Relaxed);
        for folder in &self.pool.folders {
            folder.make_group(&number.to_string(), limits)?;
        }
        Ok(Group::new(&self.pool, number, kept))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    ForTheNext,
    Once,
}

/// The group of one command, in each hierarchy. Dropped without [`Group::done`], it is not used again.
pub(super) struct Group {
    pool: Arc<Pool>,
    number: u64,
    kept: Kept,
    killed: Option<Counter>,
    refused: Option<Counter>,
}

impl Group {
    fn new(pool: &Arc<Pool>, number: u64, kept: Kept) -> Self {
        let mut group = Self { pool: Arc::clone(pool), number, kept, killed: None, refused: None };
        group.killed = group.counter(Controller::Memory, Event::Killed);
        group.refused = group.counter(Controller::Pids, Event::Refused);
        group
    }

    fn paths(&self) -> impl Iterator<Item = (&Folder, PathBuf)> {
        let number = self.number.to_string();
        self.pool.folders.iter().map(move |folder| (folder, folder.path.join(&number)))
    }

    fn counter(&self, controller: Controller, event: Event) -> Option<Counter> {
        let (folder, path) =
            self.paths().find(|(folder, _)| folder.controllers.contains(&controller))?;
        let (file, word) = event.place(folder.version);
        let counter = Counter { path: path.join(file), word, before: 0 };
        Some(Counter { before: counter.read(), ..counter })
    }

    /// The files by which a process joins it.
    pub(super) fn entries(&self) -> Vec<PathBuf> {
        self.paths().map(|(_, path)| path.join(MEMBERS)).collect()
    }

    /// Counts processes killed because memory was used up, where memory is limited.
    pub(super) fn killed(&self) -> Option<Counter> {
        self.killed.clone()
    }

    /// Counts processes that were refused, where they are limited.
    pub(super) fn refused(&self) -> Option<Counter> {
        self.refused.clone()
    }

    /// Ends everything in it, where one word does that.
    pub(super) fn kill(&self) -> io::Result<()> {
        for (_, path) in self.paths().filter(|(folder, _)| folder.version == Version::Two) {
            match fs::write(path.join("cgroup.kill"), "1") {
                Ok(()) => {}
                // Kernels before 5.14 have no such file, and nobody may make one. The inner process is ended in any case.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether nothing is left in it; it waits for that. True where the kernel does not tell.
    pub(super) fn is_empty(&self, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        for (_, path) in self.paths().filter(|(folder, _)| folder.version == Version::Two) {
            let mut events = fs::File::open(path.join("cgroup.events"))?;
            loop {
                let mut text = String::new();
                events.rewind()?;
                events.read_to_string(&mut text)?;
                if settings::number(&text, "populated") == Some(0) {
                    break;
                }
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(false);
                }
                // The kernel wakes whoever waits for such a file when its text changes.
                let left = left.try_into().map_err(io::Error::other)?;
                poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&left))?;
            }
        }
        Ok(true)
    }

    /// Gives it back: nothing is in it any more.
    pub(super) fn done(self) {
        match self.kept {
            Kept::ForTheNext => {
                self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
            }
            // What cannot be removed goes with the folder.
            Kept::Once => self.paths().for_each(|(_, path)| drop(fs::remove_dir(path))),
        }
    }
}

/// How often something has happened in a group since a command got it.
#[derive(Debug, Clone)]
pub(super) struct Counter {
    path: PathBuf,
    word: &'static str,
    before: u64,
}

impl Counter {
    /// Counts processes killed because memory was used up, in the group that another process is in; none where the kernel
    /// does not tell.
    pub(super) fn killed_beside(process: i32) -> Option<Self> {
        let read = |path: String| fs::read_to_string(path).unwrap_or_default();
        let groups = read(format!("/proc/{process}/cgroup"));
        let found = find::hierarchies(&groups, &read("/proc/self/mountinfo".into()));
        let counters = found.into_iter().filter(|hierarchy| match hierarchy.version {
            Version::One => hierarchy.controllers.contains(&Controller::Memory),
            Version::Two => true,
        });
        let mut counters = counters.map(|hierarchy| {
            let (file, word) = Event::Killed.place(hierarchy.version);
            Self { path: hierarchy.own.join(file), word, before: 0 }
        });
        let counter = counters.find(|counter| counter.path.exists())?;
        Some(Self { before: counter.read(), ..counter })
    }

    fn read(&self) -> u64 {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        settings::number(&text, self.word).unwrap_or(0)
    }

    /// Whether it has happened.
    pub(super) fn has_grown(&self) -> bool {
        self.read() > self.before
    }
}

/// The smallest limit of memory on the service's own group and those around it.
fn own_memory(hierarchies: &[Hierarchy]) -> Option<(u64, PathBuf)> {
    let limits = hierarchies.iter().flat_map(|hierarchy| {
        let file = match hierarchy.version {
            Version::Two => "memory.max",
            Version::One => "memory.limit_in_bytes",
        };
        hierarchy.own.ancestors().map(move |group| group.join(file))
    });
    let read = |path: PathBuf| {
        let bytes = fs::read_to_string(&path).ok()?.trim().parse::<u64>().ok()?;
        (bytes < NO_LIMIT).then_some((bytes, path))
    };
    limits.filter_map(read).min()
}
