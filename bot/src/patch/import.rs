//! The walk over the workspace, against the base commit's tree.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use git2::{ObjectType, Oid, Repository, Tree};

use super::ignore::{Rules, RulesError, Untracked, is_artefact};
use super::{Barred, LeftOut, Limits, Mode, Patch, Swap, TreeId, Why, compose, describe};
use crate::checkout::{self, Mirror, blocking, tree_of};
use crate::git_name::is_dot_git;
use crate::job::{CommitId, Failure, Rule};
use crate::workspace::{self, Entry as Found, Kind as FoundKind, Workspace};

/// Entries kept of each list: no person reads more, and the gate refuses by the first.
const LISTED: usize = 500;

/// The longest target of a symbolic link on Linux.
const TARGET_BYTES: usize = 4095;

/// Why a workspace could not be imported. None of these is the agent's doing: what it left is barred, not an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mirror cannot be used, or the base commit is not in it.
    #[error("cannot read the base commit")]
    Base(#[from] checkout::Error),
    /// The ignore rules of the base commit could not be taken out.
    #[error("cannot apply the ignore rules of the base commit")]
    Rules(#[from] RulesError),
    /// The mirror did not take an object.
    #[error("cannot write the patch into the mirror")]
    Objects {
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// The workspace cannot be opened.
    #[error("cannot open the workspace")]
    Open {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The workspace's root cannot be read.
    #[error("cannot read the workspace")]
    Workspace {
        /// Why.
        #[source]
        source: workspace::Error,
    },
    /// There is more in the workspace than an import looks at.
    #[error("cannot import a workspace with more than {limit} files and folders")]
    TooMany {
        /// The limit.
        limit: usize,
    },
}

impl Error {
    /// What broke, for the job's end.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Base(source) => source.failure(),
            Self::Rules(_) | Self::Open { .. } | Self::Workspace { .. } => Failure::Internal,
            Self::Objects { .. } | Self::TooMany { .. } => Failure::Git,
        }
    }
}

impl From<git2::Error> for Error {
    fn from(source: git2::Error) -> Self {
        Self::Objects { source }
    }
}

/// One entry of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: Oid,
    pub(super) mode: Mode,
}

/// Everything in the base commit, by path.
#[derive(Debug, Default)]
pub(super) struct BaseTree {
    pub(super) entries: BTreeMap<Vec<u8>, Entry>,
    folders: BTreeSet<Vec<u8>>,
}

/// Compares a workspace with the base commit that it was made from. No process may write the workspace meanwhile.
///
/// # Errors
/// The mirror or the disk failed, or there is more in the workspace than the limit of entries.
pub async fn import(
    workspace: &Workspace,
    mirror: &Mirror,
    base: &CommitId,
    limits: &Limits,
) -> Result<Patch, Error> {
    let (root, owner) = (workspace.root().to_owned(), workspace.owner());
    let (mirror, base, limits) = (mirror.clone(), base.clone(), limits.clone());
    blocking(move || {
        let workspace = Workspace::open(&root, owner).map_err(|source| Error::Open { source })?;
        import_blocking(&workspace, &mirror, &base, &limits)
    })
    .await
}

fn import_blocking(
    workspace: &Workspace,
    mirror: &Mirror,
    base: &CommitId,
    limits: &Limits,
) -> Result<Patch, Error> {
    let repository = mirror.open()?;
    let tree = tree_of(&repository, base)?;
    let mut base_tree = BaseTree::default();
    read_tree(&repository, &tree, &mut Vec::new(), &mut base_tree)?;
    let rules = Rules::of(mirror.path(), &base_tree)?;
    let mut import = Import {
        workspace,
        repository: &repository,
        base: &base_tree,
        rules: &rules,
        limits,
        changed: BTreeMap::new(),
        seen: BTreeSet::new(),
        barred: Vec::new(),
        left_out: Vec::new(),
        n_entries: 0,
        bytes: 0,
    };
    import.walk()?;
    import.deletions();
    import.finish(base, &tree)
}

fn read_tree(
    repository: &Repository,
    tree: &Tree<'_>,
    path: &mut Vec<u8>,
    base: &mut BaseTree,
) -> Result<(), git2::Error> {
    for entry in tree {
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(entry.name_bytes());
        let mode = match (entry.kind(), entry.filemode()) {
            (Some(ObjectType::Tree), _) => None,
            (Some(ObjectType::Commit), _) => Some(Mode::Submodule),
            (_, 0o120_000) => Some(Mode::Link),
            (_, 0o100_755) => Some(Mode::Executable),
            (_, _) => Some(Mode::Regular),
        };
        match mode {
            Some(mode) => {
                base.entries.insert(path.clone(), Entry { id: entry.id(), mode });
            }
            None => {
                base.folders.insert(path.clone());
                read_tree(repository, &repository.find_tree(entry.id())?, path, base)?;
            }
        }
        path.truncate(length);
    }
    Ok(())
}

struct Import<'i> {
    workspace: &'i Workspace,
    repository: &'i Repository,
    base: &'i BaseTree,
    rules: &'i Rules,
    limits: &'i Limits,
    /// Paths whose entry differs from the base commit; none for one that is gone.
    changed: BTreeMap<String, Option<Entry>>,
    /// Paths of the base commit that are no deletion, whatever else they are.
    seen: BTreeSet<Vec<u8>>,
    barred: Vec<Barred>,
    left_out: Vec<LeftOut>,
    n_entries: usize,
    bytes: u64,
}

impl Import<'_> {
    fn walk(&mut self) -> Result<(), Error> {
        let mut waiting = vec![Vec::new()];
        while let Some(folder) = waiting.pop() {
            let found = match self.list(&folder) {
                Ok(found) => found,
                Err(workspace::Error::TooMany { .. }) => {
                    return Err(Error::TooMany { limit: self.limits.entries });
                }
                Err(source) if folder.is_empty() => return Err(Error::Workspace { source }),
                Err(error) => {
                    self.bar_unreadable(&folder, &error);
                    continue;
                }
            };
            self.n_entries += found.len();
            let names: BTreeSet<&[u8]> = found.iter().map(name_of).collect();
            let is_cache = !folder.is_empty()
                && names.contains(b"CACHEDIR.TAG".as_slice())
                && !self.base.folders.contains(&folder);
            if is_cache {
                self.leave_out(&folder, Why::Artefact, FoundKind::Folder);
                continue;
            }
            for entry in &found {
                if self.enters(&folder, entry, &names)? {
                    waiting.push(joined(&folder, name_of(entry)));
                }
            }
        }
        Ok(())
    }

    /// What a folder itself holds.
    fn list(&self, folder: &[u8]) -> Result<Vec<Found>, workspace::Error> {
        let entries = self.limits.entries.saturating_sub(self.n_entries);
        let start = if folder.is_empty() { Path::new(".") } else { as_path(folder) };
        let limits = workspace::Limits { entries, depth: 1 };
        let mut walk = self.unlocking(start, || self.workspace.walk(start, limits))?;
        let mut found = Vec::new();
        while let Some(entry) = walk.next() {
            found.push(entry?);
            walk.skip_folder();
        }
        Ok(found)
    }

    /// Looks at something, and looks again with leave to read where its mode forbids that to an ordinary user. A mode means
    /// nothing to git but for the executable bit, and root sees what it forbids anyway.
    fn unlocking<T>(
        &self,
        path: &Path,
        look: impl Fn() -> Result<T, workspace::Error>,
    ) -> Result<T, workspace::Error> {
        match look() {
            Err(workspace::Error::Denied { .. }) => {
                self.workspace.unlock(path)?;
                look()
            }
            answer => answer,
        }
    }

    /// Judges one name; whether it is a folder to look into.
    fn enters(
        &mut self,
        folder: &[u8],
        found: &Found,
        names: &BTreeSet<&[u8]>,
    ) -> Result<bool, Error> {
        let path = joined(folder, name_of(found));
        let kind = found.metadata.kind;
        if name_of(found) == b".git" {
            if !folder.is_empty() {
                self.leave_out(&path, Why::NestedGit, kind);
            }
            return Ok(false);
        }
        if is_dot_git(name_of(found)) {
            self.bar(&path, Rule::PathName, "some file systems take its name for `.git`");
            return Ok(false);
        }
        let name = String::from_utf8_lossy(name_of(found)).into_owned();
        if self.base.entries.get(&path).is_some_and(|entry| entry.mode == Mode::Submodule)
            && kind == FoundKind::Folder
        {
            self.seen.insert(path.clone());
            if !self.list(&path).is_ok_and(|inside| inside.is_empty()) {
                self.leave_out(&path, Why::InSubmodule, kind);
            }
            return Ok(false);
        }
        let is_folder = kind == FoundKind::Folder;
        let is_tracked = self.base.entries.contains_key(&path)
            || (is_folder && self.base.folders.contains(&path));
        if !is_tracked && let Some(why) = self.reason_to_leave_out(&path, &name, found, names)? {
            self.leave_out(&path, why, kind);
            return Ok(false);
        }
        if is_folder {
            return Ok(true);
        }
        self.entry(&path, found)?;
        Ok(false)
    }

    fn reason_to_leave_out(
        &self,
        path: &[u8],
        name: &str,
        found: &Found,
        names: &BTreeSet<&[u8]>,
    ) -> Result<Option<Why>, Error> {
        let kind = match found.metadata.kind {
            FoundKind::Other => return Ok(Some(Why::Special)),
            FoundKind::Folder => Untracked::Folder,
            FoundKind::File | FoundKind::Symlink => Untracked::File,
        };
        if kind == Untracked::File && workspace::is_partial(name.as_bytes()) {
            return Ok(Some(Why::Partial));
        }
        if is_artefact(name, kind, |other| names.contains(other.as_bytes())) {
            return Ok(Some(Why::Artefact));
        }
        let is_ignored = self.rules.ignores(path, kind)?;
        Ok(is_ignored.then_some(Why::Ignored))
    }

    /// Compares one file or link with the base commit, and keeps it if it differs.
    fn entry(&mut self, path: &[u8], found: &Found) -> Result<(), Error> {
        let old = self.base.entries.get(path).copied();
        let (mode, content) = match found.metadata.kind {
            FoundKind::Folder => return Ok(()),
            FoundKind::Other => {
                self.leave_out(path, Why::Special, found.metadata.kind);
                return Ok(());
            }
            FoundKind::Symlink => {
                let target = self.workspace.read_link(as_path(path));
                (Mode::Link, target.map(|target| target.as_os_str().as_bytes().to_vec()))
            }
            FoundKind::File => {
                let is_executable = found.metadata.is_executable();
                let mode = if is_executable { Mode::Executable } else { Mode::Regular };
                let Some(limit) = self.limit_of(path, old, found.metadata.size_bytes)? else {
                    return Ok(());
                };
                let path = as_path(path);
                (mode, self.unlocking(path, || self.workspace.read(path, limit)))
            }
        };
        match content {
            Ok(content) => self.compare(path, old, mode, &content),
            Err(error) => {
                self.bar_unreadable(path, &error);
                Ok(())
            }
        }
    }

    /// How much of a file to read; none if it is barred for its size. A file as large as the base commit's may be that
    /// file, whatever the limit for changes is.
    fn limit_of(
        &mut self,
        path: &[u8],
        old: Option<Entry>,
        size_bytes: u64,
    ) -> Result<Option<u64>, Error> {
        if size_bytes <= self.limits.file_bytes {
            return Ok(Some(self.limits.file_bytes));
        }
        if let Some(old) = old
            && old.mode != Mode::Submodule
            && self.repository.odb()?.read_header(old.id)?.0 as u64 == size_bytes
        {
            return Ok(Some(size_bytes));
        }
        self.bar_large(path, size_bytes);
        Ok(None)
    }

    fn compare(
        &mut self,
        path: &[u8],
        old: Option<Entry>,
        mode: Mode,
        content: &[u8],
    ) -> Result<(), Error> {
        let id = checkout::object_id(ObjectType::Blob, content);
        if old.is_some_and(|old| old.mode == mode && old.id.as_bytes() == id) {
            self.seen.insert(path.to_vec());
            return Ok(());
        }
        let Ok(name) = std::str::from_utf8(path) else {
            self.bar(path, Rule::PathName, "its name is not UTF-8");
            return Ok(());
        };
        if mode == Mode::Link && (content.is_empty() || content.len() > TARGET_BYTES) {
            self.bar(path, Rule::Symlink, "its target is no path");
            return Ok(());
        }
        let size_bytes = content.len() as u64;
        let total = self.bytes.saturating_add(size_bytes);
        if size_bytes > self.limits.file_bytes || total > self.limits.total_bytes {
            self.bar_large(path, size_bytes);
            return Ok(());
        }
        if self.changed.len() >= self.limits.files {
            let detail = format!("more than {} files are changed", self.limits.files);
            self.bar(path, Rule::TooLarge, &detail);
            return Ok(());
        }
        self.bytes = total;
        self.seen.insert(path.to_vec());
        let id = self.repository.blob(content)?;
        self.changed.insert(name.to_owned(), Some(Entry { id, mode }));
        Ok(())
    }

    /// What the base commit has and the walk has not seen is deleted. A submodule without its folder is not: the folder is
    /// empty and means nothing.
    fn deletions(&mut self) {
        let gone: Vec<_> = self
            .base
            .entries
            .iter()
            .filter(|(path, entry)| !self.seen.contains(*path) && entry.mode != Mode::Submodule)
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            match String::from_utf8(path) {
                Ok(path) => {
                    self.changed.insert(path, None);
                }
                Err(error) => self.bar(error.as_bytes(), Rule::PathName, "its name is not UTF-8"),
            }
        }
    }

    fn finish(self, base: &CommitId, tree: &Tree<'_>) -> Result<Patch, Error> {
        let swaps: Vec<Swap> = self
            .changed
            .iter()
            .map(|(path, entry)| Swap {
                path: path.clone(),
                to: entry.map(|entry| (entry.id, entry.mode)),
            })
            .collect();
        let new_tree = compose(self.repository, tree, &swaps)?;
        let folded = self.folded_paths();
        let mut changes = Vec::new();
        for (path, new) in &self.changed {
            let old = self.base.entries.get(path.as_bytes()).copied();
            let is_lfs = new.is_some() && self.rules.gives_to_lfs(path)?;
            let mut change = describe::change(self.repository, path, old, *new, is_lfs)?;
            if new.is_some() {
                change.collides_with = collision(&folded, path);
            }
            changes.push(change);
        }
        let limit = self.limits.text_bytes;
        let text = describe::text(self.repository, tree.id(), new_tree, &self.barred, limit)?;
        Ok(Patch {
            base: base.clone(),
            tree: TreeId(new_tree.to_string()),
            changes,
            barred: self.barred,
            left_out: self.left_out,
            text,
        })
    }

    /// Every path of the resulting tree, and every folder in it, by its lower-case form.
    fn folded_paths(&self) -> BTreeMap<String, BTreeSet<String>> {
        let kept = self
            .base
            .entries
            .keys()
            .filter_map(|path| std::str::from_utf8(path).ok())
            .filter(|path| self.changed.get(*path) != Some(&None));
        let added =
            self.changed.iter().filter(|(_, new)| new.is_some()).map(|(path, _)| path.as_str());
        let mut folded: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for path in kept.chain(added) {
            for prefix in prefixes(path) {
                folded.entry(prefix.to_lowercase()).or_default().insert(prefix.to_owned());
            }
        }
        folded
    }

    fn bar_large(&mut self, path: &[u8], size_bytes: u64) {
        let detail = format!("it has {size_bytes} bytes, or all changes together have too many");
        self.bar(path, Rule::TooLarge, &detail);
    }

    fn bar_unreadable(&mut self, path: &[u8], error: &workspace::Error) {
        let rule = match error {
            workspace::Error::Refused { .. } => Rule::PathName,
            workspace::Error::TooLarge { .. } => Rule::TooLarge,
            _ => Rule::FileMode,
        };
        self.bar(path, rule, &error.to_string());
    }

    /// Keeps a path, and what the base commit has below it, out of the patch, with the rule that it breaks.
    fn bar(&mut self, path: &[u8], rule: Rule, detail: &str) {
        let below = joined(path, b"");
        let inside = self.base.entries.range(below.clone()..);
        let inside = inside.map(|(path, _)| path).take_while(|path| path.starts_with(&below));
        self.seen.extend(inside.cloned());
        self.seen.insert(path.to_vec());
        if self.barred.len() < LISTED {
            let path = String::from_utf8_lossy(path).into_owned();
            self.barred.push(Barred { path, rule, detail: detail.to_owned() });
        }
    }

    fn leave_out(&mut self, path: &[u8], why: Why, kind: FoundKind) {
        if self.left_out.len() < LISTED {
            let slash = if kind == FoundKind::Folder { "/" } else { "" };
            let path = format!("{}{slash}", String::from_utf8_lossy(path));
            self.left_out.push(LeftOut { path, why });
        }
    }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn name_of(found: &Found) -> &[u8] {
    found.path.file_name().unwrap_or_default().as_bytes()
}

fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = folder.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at]).chain([path])
}

/// Another path, or a folder on another path, that differs from this one or a folder on it in case only.
fn collision(folded: &BTreeMap<String, BTreeSet<String>>, path: &str) -> Option<String> {
    prefixes(path).find_map(|prefix| {
        folded.get(&prefix.to_lowercase())?.iter().find(|other| *other != prefix).cloned()
    })
}
