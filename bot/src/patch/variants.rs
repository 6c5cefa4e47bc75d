//! Commits that mix a patch with its base, for test runs. They are in the mirror under no ref and are never published.

use std::path::Path;

use git2::{Oid, Repository, Tree};

use super::{Error, Kind, Mode, Patch, Swap, compose};
use crate::checkout::{Mirror, blocking};
use crate::job::CommitId;

/// The mixtures of a patch and its base.
#[derive(Debug)]
pub(crate) struct Variants {
    /// The base with the whole patch.
    pub(crate) patched: CommitId,
    /// The base with only the chosen files that the patch adds or edits; none if there are none.
    pub(crate) brought: Option<CommitId>,
    /// The patch without its changes to the chosen files that the base has; none if there are none.
    pub(crate) restored: Option<CommitId>,
}

/// Writes the mixtures. `is_chosen` tells by its path whether a file is one of those that are brought or restored.
pub(crate) async fn variants(
    mirror: &Mirror,
    patch: &Patch,
    is_chosen: fn(&str) -> bool,
) -> Result<Variants, Error> {
    let (mirror, patch) = (mirror.clone(), patch.clone());
    blocking(move || Ok(write(&mirror.open()?, &patch, is_chosen)?)).await
}

fn write(
    repository: &Repository,
    patch: &Patch,
    is_chosen: fn(&str) -> bool,
) -> Result<Variants, git2::Error> {
    let base = repository.find_commit(Oid::from_str(&patch.base.0)?)?;
    let base_tree = base.tree()?;
    let patched = repository.find_tree(Oid::from_str(&patch.tree.0)?)?;
    let (mut brought, mut restored) = (Vec::new(), Vec::new());
    for change in patch.changes.iter().filter(|change| is_chosen(&change.path)) {
        if change.kind != Kind::Deleted {
            brought.push(taken(&patched, &change.path)?);
        }
        if change.kind != Kind::Added {
            restored.push(taken(&base_tree, &change.path)?);
        }
    }
    let commit = |tree: Oid| -> Result<CommitId, git2::Error> {
        let tree = repository.find_tree(tree)?;
        let signature = git2::Signature::new("Hyla", "hyla@localhost", &base.time())?;
        let message = "for a test run\n";
        let id = repository.commit(None, &signature, &signature, message, &tree, &[&base])?;
        Ok(CommitId(id.to_string()))
    };
    let mixed = |tree: &Tree<'_>, swaps: &[Swap]| match swaps {
        [] => Ok(None),
        swaps => commit(compose(repository, tree, swaps)?).map(Some),
    };
    Ok(Variants {
        patched: commit(patched.id())?,
        brought: mixed(&base_tree, &brought)?,
        restored: mixed(&patched, &restored)?,
    })
}

/// A path set to what it is in a tree.
fn taken(tree: &Tree<'_>, path: &str) -> Result<Swap, git2::Error> {
    let entry = tree.get_path(Path::new(path))?;
    let mode = match entry.filemode() {
        0o100_755 => Mode::Executable,
        0o120_000 => Mode::Link,
        0o160_000 => Mode::Submodule,
        _ => Mode::Regular,
    };
    Ok(Swap { path: path.to_owned(), to: Some((entry.id(), mode)) })
}
