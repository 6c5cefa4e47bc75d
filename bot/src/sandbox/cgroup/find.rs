//! Where the service's own control groups are, from what the kernel says of it. Pure.
//!
//! A machine has version 2 (one hierarchy for all), version 1 (one for each controller), or both beside each other.

use std::path::{Path, PathBuf};

/// What a group can limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sandbox) enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    pub(super) const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// As the kernel calls it.
    pub(in crate::sandbox) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    pub(super) fn named(names: &str, separator: char) -> Vec<Self> {
        let names: Vec<&str> = names.trim().split(separator).collect();
        Self::ALL.into_iter().filter(|controller| names.contains(&controller.name())).collect()
    }
}

/// Which of the kernel's two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sandbox) enum Version {
    One,
    Two,
}

/// A mounted hierarchy that the service is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// Of version 1. A group of version 2 says itself which it has.
    pub(super) controllers: Vec<Controller>,
    /// The folder of the service's own group.
    pub(super) own: PathBuf,
}

/// The hierarchies with a controller of ours, and that of version 2 in any case: it can end a whole group at once.
/// `groups` is `/proc/self/cgroup`, `mounts` is `/proc/self/mountinfo`.
pub(super) fn hierarchies(groups: &str, mounts: &str) -> Vec<Hierarchy> {
    groups.lines().filter_map(|line| hierarchy(line, mounts)).collect()
}

/// A line is `number:names:path`; of version 2 it is `0::path`.
fn hierarchy(line: &str, mounts: &str) -> Option<Hierarchy> {
    let (names, path) = line.split_once(':')?.1.split_once(':')?;
    let controllers = Controller::named(names, ',');
    let version = if names.is_empty() { Version::Two } else { Version::One };
    if version == Version::One && controllers.is_empty() {
        return None;
    }
    let is_same = |mount: &Mount<'_>| match version {
        Version::Two => mount.kind == "cgroup2",
        Version::One => {
            mount.kind == "cgroup" && Controller::named(mount.options, ',') == controllers
        }
    };
    mounts.lines().filter_map(Mount::parse).filter(is_same).find_map(|mount| {
        // What lies outside of the mounted part, as in some containers, cannot be reached.
        let beneath = Path::new(path).strip_prefix(&mount.root).ok()?;
        let is_inside = !path.contains("/..");
        let own = mount.point.components().chain(beneath.components()).collect();
        is_inside.then_some(Hierarchy { version, controllers: controllers.clone(), own })
    })
}

/// A line of `mountinfo`: `id parent device root point options.. - kind source options`.
struct Mount<'a> {
    root: String,
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (first, last) = line.split_once(" - ")?;
        let mut first = first.split(' ').skip(3);
        let (root, point) = (first.next()?, first.next()?);
        let mut last = last.split(' ');
        let (kind, _source, options) = (last.next()?, last.next()?, last.next()?);
        Some(Self { root: unescaped(root), point: unescaped(point).into(), kind, options })
    }
}

/// The kernel writes what would end a field as a backslash and three octal digits.
fn unescaped(field: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(field.to_owned(), |field, (escape, letter)| field.replace(escape, letter))
}

/// Whether systemd started this process as the one of a system service: then its unit says what it is handed.
/// `parent` is the parent's number.
pub(in crate::sandbox) fn is_unit(groups: &str, parent: u32) -> bool {
    let is_service = |line: &str| {
        let path = line.splitn(3, ':').nth(2).unwrap_or_default();
        let path = path.strip_suffix("/supervisor").unwrap_or(path);
        path.ends_with(".service") && !path.starts_with("/user.slice")
    };
    parent == 1 && groups.lines().any(is_service)
}
