//! Copies the newest commits of a history, with everything that they need, into another repository as one pack. Where
//! the history is cut, the `shallow` file says so, and git treats the cut as the beginning.

use std::collections::{BTreeSet, BinaryHeap};
use std::path::Path;

use git2::{Commit, ObjectType, Odb, Oid, Repository};

use super::pack::{Lasting, Writer};
use crate::checkout::Error;

/// How much of a history is copied. The newest commit is always copied whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Commits, the newest ones.
    pub(crate) n_commits: usize,
    /// Bytes of all objects that the newest commit does not need, as they are without compression.
    pub(crate) bytes: u64,
}

/// Copies the history from `tip` backwards in time into the bare layout at `into`, but nothing that is there already.
///
/// A parent that the source does not have, because it is shallow itself, is a cut like any other.
pub(crate) fn copy(
    source: &Repository,
    tip: Oid,
    into: &Path,
    limits: Limits,
    lasting: Lasting,
) -> Result<(), Error> {
    let find = || -> Result<(Vec<Oid>, Vec<Oid>), git2::Error> {
        let there = Repository::open_bare(into)?;
        let there = there.odb()?;
        let mut wanted = Wanted::new(source, &there)?;
        let cuts = wanted.history(tip, limits)?;
        Ok((wanted.objects, cuts))
    };
    let (objects, cuts) = find().map_err(|error| unreadable(source, error))?;
    write(source, &objects, into, lasting)?;
    if cuts.is_empty() {
        return Ok(());
    }
    let shallow = into.join("shallow");
    let lines: String = cuts.iter().map(|id| format!("{id}\n")).collect();
    std::fs::write(&shallow, lines).map_err(|source| Error::Disk { path: shallow, source })
}

/// Copies what one commit has beyond the objects of `there`, which has its parents, into the bare layout at `into`.
pub(super) fn copy_one(
    source: &Repository,
    commit: Oid,
    there: &Odb<'_>,
    into: &Path,
) -> Result<(), Error> {
    let find = || -> Result<Vec<Oid>, git2::Error> {
        let mut wanted = Wanted::new(source, there)?;
        wanted.commit(&source.find_commit(commit)?)?;
        Ok(wanted.objects)
    };
    let objects = find().map_err(|error| unreadable(source, error))?;
    write(source, &objects, into, Lasting::No)
}

fn unreadable(source: &Repository, error: git2::Error) -> Error {
    Error::Mirror { path: source.path().to_owned(), source: error }
}

fn write(source: &Repository, objects: &[Oid], into: &Path, lasting: Lasting) -> Result<(), Error> {
    if objects.is_empty() {
        return Ok(());
    }
    let folder = into.join("objects/pack");
    let unreadable = |error| unreadable(source, error);
    let unwritable = |error| Error::Disk { path: folder.clone(), source: error };
    let odb = source.odb().map_err(unreadable)?;
    let mut pack = Writer::new(&folder, objects.len()).map_err(unwritable)?;
    for &id in objects {
        let object = odb.read(id).map_err(unreadable)?;
        let is = pack.add(object.kind(), object.data()).map_err(unwritable)?;
        if is != id.as_bytes() {
            let message = format!("object `{id}` has the content of `{}`", hex::encode(is));
            return Err(unreadable(git2::Error::from_str(&message)));
        }
    }
    pack.finish(lasting).map_err(unwritable)
}

/// What is to be copied, in this order.
struct Wanted<'r> {
    source: &'r Repository,
    odb: Odb<'r>,
    there: &'r Odb<'r>,
    objects: Vec<Oid>,
    seen: BTreeSet<Oid>,
    bytes: u64,
}

impl<'r> Wanted<'r> {
    fn new(source: &'r Repository, there: &'r Odb<'r>) -> Result<Self, git2::Error> {
        let (odb, objects, seen) = (source.odb()?, Vec::new(), BTreeSet::new());
        Ok(Self { source, odb, there, objects, seen, bytes: 0 })
    }

    /// Adds the newest commits that can be reached from the tip, by commit time, and returns those whose parents were
    /// left out.
    fn history(&mut self, tip: Oid, limits: Limits) -> Result<Vec<Oid>, git2::Error> {
        let age = |commit: &Commit<'_>| (commit.time().seconds(), commit.id());
        let mut waiting = BinaryHeap::from([age(&self.source.find_commit(tip)?)]);
        let (mut known, mut taken) = (BTreeSet::from([tip]), BTreeSet::new());
        while let Some((_time, id)) = waiting.pop() {
            let commit = self.source.find_commit(id)?;
            let n_before = self.objects.len();
            self.commit(&commit)?;
            if id == tip {
                self.bytes = 0;
            } else if taken.len() == limits.n_commits || self.bytes > limits.bytes {
                self.objects.truncate(n_before);
                break;
            }
            taken.insert(id);
            for parent in commit.parent_ids() {
                if known.insert(parent)
                    && let Ok(parent) = self.source.find_commit(parent)
                {
                    waiting.push(age(&parent));
                }
            }
        }
        let is_cut = |id: &Oid| -> Result<bool, git2::Error> {
            let commit = self.source.find_commit(*id)?;
            Ok(written_parents(&commit).any(|parent| !taken.contains(&parent)))
        };
        taken.iter().filter_map(|id| is_cut(id).map(|cut| cut.then_some(*id)).transpose()).collect()
    }

    fn commit(&mut self, commit: &Commit<'_>) -> Result<(), git2::Error> {
        if self.take(commit.id())? {
            self.tree(commit.tree_id())?;
        }
        Ok(())
    }

    /// Adds a tree and what is below it, each object once: neighbouring commits share nearly all of theirs.
    fn tree(&mut self, root: Oid) -> Result<(), git2::Error> {
        let mut waiting = vec![root];
        while let Some(id) = waiting.pop() {
            if !self.take(id)? {
                continue;
            }
            for entry in &self.source.find_tree(id)? {
                match entry.kind() {
                    Some(ObjectType::Tree) => waiting.push(entry.id()),
                    Some(ObjectType::Blob) => {
                        self.take(entry.id())?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Whether an object is to be copied and has not been seen before.
    fn take(&mut self, id: Oid) -> Result<bool, git2::Error> {
        if !self.seen.insert(id) || self.there.exists_ext(id, git2::OdbLookupFlags::NO_REFRESH) {
            return Ok(false);
        }
        let (size, _kind) = self.odb.read_header(id)?;
        self.bytes += size as u64;
        self.objects.push(id);
        Ok(true)
    }
}

/// The parents as they stand in the commit. libgit2 hides those that a shallow source does not have.
fn written_parents(commit: &Commit<'_>) -> impl Iterator<Item = Oid> {
    let header = String::from_utf8_lossy(commit.raw_header_bytes()).into_owned();
    let parent = |line: &str| Oid::from_str(line.strip_prefix("parent ")?).ok();
    header.lines().filter_map(parent).collect::<Vec<_>>().into_iter()
}
