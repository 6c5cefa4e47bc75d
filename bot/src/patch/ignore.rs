//! Which untracked files are no part of a patch, and which paths Git LFS keeps: by the rules of the base commit, and by a
//! short list of what tools leave behind.
//!
//! The base commit's rules, not the workspace's, so that the agent can neither hide a file from the people who review nor
//! bring in what the repository ignores by editing `.gitignore` first. libgit2 evaluates them, with all of git's
//! rules for folders, order and negation, over a folder of the bot's own that holds those files and nothing else.

use std::path::{Path, PathBuf};

use git2::{AttrCheckFlags, Repository};
use tempfile::TempDir;

use super::Mode;
use super::import::BaseTree;

/// Larger rule files are not read; no person wrote them.
const RULE_FILE_BYTES: usize = 1 << 20;

/// Folders that only tools make.
const FOLDERS: [&str; 14] = [
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".tox",
    ".nox",
    ".venv",
    ".eggs",
    ".ipynb_checkpoints",
    "node_modules",
    ".nyc_output",
    ".gradle",
    ".cache",
];

/// Files that only tools make.
const FILES: [&str; 3] = [".coverage", ".DS_Store", "CACHEDIR.TAG"];

/// Endings of files that only tools make.
const ENDINGS: [&str; 7] = [".pyc", ".pyo", ".class", ".swp", ".orig", ".rej", ".egg-info"];

/// The rules of a base commit.
pub(super) struct Rules {
    repository: Repository,
    _files: TempDir,
}

impl Rules {
    /// Takes the rule files out of the base commit.
    pub(super) fn of(mirror: &Path, base: &BaseTree) -> Result<Self, RulesError> {
        let files = TempDir::new()?;
        let repository = Repository::open_bare(mirror)?;
        for (path, entry) in &base.entries {
            let Ok(path) = std::str::from_utf8(path) else { continue };
            let name = path.rsplit('/').next().unwrap_or_default();
            let is_rule_file = name == ".gitignore" || name == ".gitattributes";
            if !is_rule_file || entry.mode == Mode::Link || entry.mode == Mode::Submodule {
                continue;
            }
            let blob = repository.find_blob(entry.id)?;
            if blob.size() <= RULE_FILE_BYTES && is_plain(path) {
                let file = files.path().join(path);
                std::fs::create_dir_all(file.parent().unwrap_or(files.path()))?;
                std::fs::write(file, blob.content())?;
            }
        }
        repository.set_workdir(files.path(), false)?;
        Ok(Self { repository, _files: files })
    }

    /// Whether the base commit's rules ignore an untracked path.
    pub(super) fn ignores(&self, path: &[u8], kind: Untracked) -> Result<bool, git2::Error> {
        let mut path = path.to_vec();
        if kind == Untracked::Folder {
            path.push(b'/');
        }
        self.repository.is_path_ignored(as_path(&path))
    }

    /// Whether the base commit's attributes give a path to Git LFS.
    pub(super) fn gives_to_lfs(&self, path: &str) -> Result<bool, git2::Error> {
        let flags = AttrCheckFlags::FILE_THEN_INDEX;
        let filter = self.repository.get_attr_bytes(Path::new(path), "filter", flags)?;
        Ok(filter == Some(b"lfs"))
    }
}

/// Why the rules could not be taken out.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// They could not be written where libgit2 reads them.
    #[error("cannot write the rule files")]
    Disk(#[from] std::io::Error),
    /// They could not be read from the mirror.
    #[error("cannot read the rule files")]
    Git(#[from] git2::Error),
}

/// What an untracked path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Untracked {
    File,
    Folder,
}

/// Whether a name is one that only tools make. `has_neighbour` tells whether another name lies in the same folder.
pub(super) fn is_artefact(
    name: &str,
    kind: Untracked,
    has_neighbour: impl Fn(&str) -> bool,
) -> bool {
    if ENDINGS.iter().any(|ending| name.ends_with(ending)) {
        return true;
    }
    match kind {
        Untracked::File => FILES.contains(&name),
        Untracked::Folder if name == "target" => {
            has_neighbour("Cargo.toml") || has_neighbour("pom.xml")
        }
        Untracked::Folder => FOLDERS.contains(&name),
    }
}

fn is_plain(path: &str) -> bool {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(is_plain)
}

fn as_path(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}
