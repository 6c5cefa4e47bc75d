//! What the agent left, as a patch on the base commit: an own walk over the workspace, never through its `.git`.
//!
//! A patch is data that the gate can judge without a disk. Its objects are in the mirror; nothing of the workspace's own
//! repository is read, and nothing of the workspace is run. Importing does not judge: what may not be published is kept
//! apart and named, so that the gate can refuse it with a reason.

mod compose;
mod describe;
mod ignore;
mod import;
#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;
mod variants;

use std::fmt;

pub use ignore::RulesError;
pub use import::{Error, import};
pub(crate) use variants::variants;

use compose::{Swap, compose};

use crate::job::{CommitId, Rule};

/// A tree's id in a mirror, as lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeId(pub String);

impl fmt::Display for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How much an import reads and keeps. What is beyond is barred, not read.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of one changed file.
    pub file_bytes: u64,
    /// Bytes of all changed files together.
    pub total_bytes: u64,
    /// Changed files.
    pub files: usize,
    /// Files and folders that are looked at, ignored ones aside.
    pub entries: usize,
    /// Bytes of the diff's text.
    pub text_bytes: usize,
}

impl Limits {
    /// The limits that go with a gate's: a file that the gate would refuse for its size is not read.
    pub fn for_gate(gate: &config::Gate) -> Self {
        Self {
            file_bytes: gate.file_bytes,
            // Enough for every patch that the gate lets pass, and an end for one that it does not.
            total_bytes: gate.file_bytes.saturating_mul(gate.files.max(1) as u64).max(64 << 20),
            // Enough of a patch that is refused for people to see what went wrong.
            files: gate.files.saturating_mul(20).max(1000),
            entries: 2_000_000,
            // A refused patch is kept as this text and nothing else; a hundred thousand long lines fit.
            text_bytes: 16 << 20,
        }
    }
}

/// A patch.
#[derive(Debug, Clone)]
pub struct Patch {
    /// The commit that it is made on.
    pub base: CommitId,
    /// The tree that results, in the mirror.
    pub tree: TreeId,
    /// What differs from the base commit, by path.
    pub changes: Vec<Change>,
    /// What was changed and can be no part of any tree or is over a limit of the import. The gate refuses it.
    pub barred: Vec<Barred>,
    /// What lies in the workspace and is no part of the patch, such as ignored files.
    pub left_out: Vec<LeftOut>,
    /// A unified diff for people, cut to its limit with a note.
    pub text: String,
}

impl Patch {
    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.barred.is_empty()
    }

    /// Changed lines, added and removed together.
    pub fn n_lines(&self) -> usize {
        self.changes.iter().map(|change| change.added + change.removed).sum()
    }
}

/// One changed file.
#[derive(Debug, Clone)]
pub struct Change {
    /// Its path from the root, with `/`.
    pub path: String,
    /// What happened to it.
    pub kind: Kind,
    /// What it was in the base commit; none if it is added.
    pub old_mode: Option<Mode>,
    /// What it is; none if it is deleted.
    pub new_mode: Option<Mode>,
    /// Lines added; 0 for a binary.
    pub added: usize,
    /// Lines removed; 0 for a binary.
    pub removed: usize,
    /// Whether the old or the new content has a NUL byte near its beginning, as git decides it.
    pub is_binary: bool,
    /// Bytes of the new content; 0 if it is deleted.
    pub size_bytes: u64,
    /// The added lines of a text with their ends, the whole new content of a binary, the target of a link.
    pub added_bytes: Vec<u8>,
    /// The removed lines of a text with their ends; nothing of a binary.
    pub removed_bytes: Vec<u8>,
    /// What became of the encoding of a text that was edited.
    pub encoding: Encoding,
    /// The line ends of the old content.
    pub old_endings: Endings,
    /// The line ends of the new content.
    pub new_endings: Endings,
    /// What it is to Git LFS.
    pub lfs: Lfs,
    /// Another path of the resulting tree that a file system without upper and lower case takes for the same.
    pub collides_with: Option<String>,
    /// Whether the new content begins with `#!`.
    pub has_interpreter: bool,
}

/// What happened to a file. A renamed file is one that is deleted and one that is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It is in the patch's tree only.
    Added,
    /// Its content or mode differs.
    Modified,
    /// It is in the base commit only.
    Deleted,
}

/// What an entry of a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A file.
    Regular,
    /// A file that may be executed.
    Executable,
    /// A symbolic link.
    Link,
    /// A submodule's commit.
    Submodule,
}

impl Mode {
    /// As git writes it.
    pub fn octal(self) -> u32 {
        match self {
            Self::Regular => 0o100_644,
            Self::Executable => 0o100_755,
            Self::Link => 0o120_000,
            Self::Submodule => 0o160_000,
        }
    }
}

/// How many lines end in which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Endings {
    /// In a line feed.
    pub lf: usize,
    /// In a carriage return and a line feed.
    pub crlf: usize,
    /// In a carriage return.
    pub cr: usize,
}

/// What became of the encoding of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// It is as it was, as far as its bytes tell.
    Kept,
    /// Replacement characters stand where other bytes stood: somebody read it as UTF-8, which it is not.
    Lost,
    /// It was UTF-8 and is not any more, or the other way round.
    Changed,
    /// The byte order mark at its beginning came or went.
    Mark,
}

/// What a changed file is to Git LFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lfs {
    /// Nothing.
    Nothing,
    /// A pointer was changed or made; the bot can upload no object for it.
    Pointer,
    /// The base commit's attributes give the path to LFS, and the new content is not a pointer.
    Content,
}

/// Something changed that can be no part of a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Barred {
    /// Its path, with replacement characters for bytes that are not UTF-8.
    pub path: String,
    /// The rule that it breaks.
    pub rule: Rule,
    /// Why, for people.
    pub detail: String,
}

/// Something that lies in the workspace and is no part of the patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Its path; folders end in `/`.
    pub path: String,
    /// Why.
    pub why: Why,
}

/// Why something is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The base commit's `.gitignore` files say so.
    Ignored,
    /// It is what tools leave behind, such as `__pycache__/`.
    Artefact,
    /// It is what a write of the bot's own leaves when it is cut off.
    Partial,
    /// It is a repository within the workspace.
    NestedGit,
    /// It is a socket, a pipe or a device.
    Special,
    /// It lies in the folder of a submodule.
    InSubmodule,
}

impl Why {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Ignored => "ignored by the repository's .gitignore",
            Self::Artefact => "left behind by tools",
            Self::Partial => "half written by Hyla",
            Self::NestedGit => "a git repository of its own",
            Self::Special => "neither a file, a folder nor a symbolic link",
            Self::InSubmodule => "inside a submodule",
        }
    }
}
