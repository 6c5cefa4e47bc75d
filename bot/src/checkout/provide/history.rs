//! Copies the newest commits of a history, with everything that they need, into another repository as one pack. Where
//! the history is cut, the `shallow` file says so, and git treats the cut as the beginning.

use std::collections::{BTreeSet, BinaryHeap};
use std::path::Path;

use git2::{Commit, ObjectType, Oid, PackBuilder, Repository};

/// Copies at most `n_commits` commits from `tip` backwards in time into the bare layout at `into`.
///
/// A parent that the source does not have, because it is shallow itself, is a cut like any other.
pub(crate) fn copy(
    source: &Repository,
    tip: Oid,
    into: &Path,
    n_commits: usize,
) -> Result<(), git2::Error> {
    let taken = newest(source, tip, n_commits)?;
    let mut pack = PackBuilderOf { source, pack: source.packbuilder()?, seen: BTreeSet::new() };
    let mut cuts = String::new();
    for &id in &taken {
        let commit = source.find_commit(id)?;
        pack.pack.insert_object(id, None)?;
        pack.tree(commit.tree_id())?;
        if written_parents(&commit).any(|parent| !taken.contains(&parent)) {
            cuts.push_str(&format!("{id}\n"));
        }
    }
    // All cores for a moment: the compression of the copy is what a job waits for.
    pack.pack.set_threads(0);
    pack.pack.write(&into.join("objects/pack"), 0o444)?;
    if !cuts.is_empty() {
        std::fs::write(into.join("shallow"), cuts)
            .map_err(|error| git2::Error::from_str(&format!("cannot write `shallow`: {error}")))?;
    }
    Ok(())
}

/// The parents as they stand in the commit. libgit2 hides those that a shallow source does not have.
fn written_parents(commit: &Commit<'_>) -> impl Iterator<Item = Oid> {
    let header = String::from_utf8_lossy(commit.raw_header_bytes()).into_owned();
    let parent = |line: &str| Oid::from_str(line.strip_prefix("parent ")?).ok();
    header.lines().filter_map(parent).collect::<Vec<_>>().into_iter()
}

/// The newest commits that can be reached from the tip, by commit time.
fn newest(source: &Repository, tip: Oid, n_commits: usize) -> Result<BTreeSet<Oid>, git2::Error> {
    let age = |commit: &Commit<'_>| (commit.time().seconds(), commit.id());
    let mut waiting = BinaryHeap::from([age(&source.find_commit(tip)?)]);
    let mut taken = BTreeSet::new();
    while let Some((_time, id)) = waiting.pop() {
        if taken.len() == n_commits {
            break;
        }
        if !taken.insert(id) {
            continue;
        }
        for parent in source.find_commit(id)?.parent_ids() {
            if let Ok(parent) = source.find_commit(parent) {
                waiting.push(age(&parent));
            }
        }
    }
    Ok(taken)
}

struct PackBuilderOf<'r> {
    source: &'r Repository,
    pack: PackBuilder<'r>,
    seen: BTreeSet<Oid>,
}

impl PackBuilderOf<'_> {
    /// Adds a tree and what is below it, each object once: neighbouring commits share nearly all of theirs.
    fn tree(&mut self, root: Oid) -> Result<(), git2::Error> {
        let mut waiting = vec![root];
        while let Some(id) = waiting.pop() {
            if !self.seen.insert(id) {
                continue;
            }
            self.pack.insert_object(id, None)?;
            for entry in &self.source.find_tree(id)? {
                match entry.kind() {
                    Some(ObjectType::Tree) => waiting.push(entry.id()),
                    Some(ObjectType::Blob) if self.seen.insert(entry.id()) => {
                        let name = entry.name().ok();
                        self.pack.insert_object(entry.id(), name)?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
