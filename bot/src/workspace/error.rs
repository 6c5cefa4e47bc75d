//! Why an access was refused or failed. Paths are shown as the caller gave them, never as paths of the host, so that
//! every text here may be shown to the model. It decides nothing.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// An access to a workspace was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path breaks a rule; the disk was not touched.
    #[error("cannot use path `{}`: {reason}", .path.display())]
    Refused {
        /// As given.
        path: PathBuf,
        /// The rule.
        reason: Refusal,
    },
    /// Nothing is there.
    #[error("cannot find `{}`", .path.display())]
    Missing {
        /// As given.
        path: PathBuf,
    },
    /// A folder, where a file was asked for.
    #[error("cannot open `{}` as a file: it is a folder", .path.display())]
    Folder {
        /// As given.
        path: PathBuf,
    },
    /// A file, where a folder was needed.
    #[error("cannot open `{}`: a part of it is not a folder", .path.display())]
    NotFolder {
        /// As given.
        path: PathBuf,
    },
    /// A symbolic link, at the end of the path or on the way. Links are never followed.
    #[error("cannot open `{}`: it is or passes through a symbolic link, and links are not followed", .path.display())]
    Link {
        /// As given.
        path: PathBuf,
    },
    /// A pipe, socket or device.
    #[error("cannot open `{}`: it is neither a file nor a folder", .path.display())]
    Special {
        /// As given.
        path: PathBuf,
    },
    /// The file has other names, which a change would reach or part from.
    #[error("cannot write `{}`: it has {links} hard links", .path.display())]
    HardLinked {
        /// As given.
        path: PathBuf,
        /// Names of the file.
        links: u64,
    },
    /// The file is longer than the caller takes.
    #[error("cannot read `{}`: it has {size_bytes} bytes, more than the limit of {limit_bytes}", .path.display())]
    TooLarge {
        /// As given.
        path: PathBuf,
        /// The file's size; at least this when it grows.
        size_bytes: u64,
        /// The caller's limit.
        limit_bytes: u64,
    },
    /// The file's mode forbids it.
    #[error("cannot open `{}`: permission denied", .path.display())]
    Denied {
        /// As given.
        path: PathBuf,
    },
    /// A walk met a folder deeper than its limit.
    #[error("cannot walk into `{}`: it is deeper than {limit} folders", .path.display())]
    TooDeep {
        /// The folder.
        path: PathBuf,
        /// The walk's limit.
        limit: usize,
    },
    /// A walk met more entries than its limit, and ended.
    #[error("cannot walk `{}`: more than {limit} entries", .path.display())]
    TooMany {
        /// Where the limit was met.
        path: PathBuf,
        /// The walk's limit.
        limit: usize,
    },
    /// The kernel has no `openat2`, or a system call filter forbids it. There is no weaker way in.
    #[error(
        "cannot confine file access: the kernel or its container refuses `openat2` (Linux 5.6 or later is needed)"
    )]
    Unsupported {
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// Anything else.
    #[error("cannot access `{}`", .path.display())]
    Io {
        /// As given.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

/// A rule of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No path at all.
    #[error("it is empty")]
    Empty,
    /// A zero byte.
    #[error("it contains a NUL byte")]
    Nul,
    /// Not beneath the workspace.
    #[error("it is outside of the workspace")]
    Outside,
    /// Longer than the kernel takes.
    #[error("it is longer than {} bytes", super::path::PATH_BYTES)]
    Long,
    /// A component longer than a file system takes.
    #[error("one of its names is longer than {} bytes", super::path::NAME_BYTES)]
    LongName,
    /// Too many components.
    #[error("it is deeper than {} folders", super::path::DEPTH)]
    Deep,
}

impl Error {
    /// What a kernel's answer to `openat2` or to an access beneath it means.
    pub(super) fn of(errno: Errno, path: &Path) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::NOENT => Self::Missing { path },
            Errno::NOTDIR => Self::NotFolder { path },
            Errno::ISDIR => Self::Folder { path },
            Errno::LOOP => Self::Link { path },
            Errno::XDEV => Self::Refused { path, reason: Refusal::Outside },
            // A socket or a device without driver does not even open.
            Errno::NXIO | Errno::NODEV => Self::Special { path },
            Errno::NAMETOOLONG => Self::Refused { path, reason: Refusal::Long },
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Denied { path },
            Errno::NOSYS => Self::Unsupported { source: errno.into() },
            _ => Self::Io { path, source: errno.into() },
        }
    }
}
