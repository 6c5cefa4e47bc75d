//! A commit as a fresh branch of a repository on this machine's disk. Its work tree, its index and its `HEAD` stay as they
//! are.

use std::path::Path;

use git2::{BranchType, ObjectType, Odb, Oid, Repository};

use super::Error;
use crate::checkout::{Mirror, blocking, open_local};
use crate::job::CommitId;

/// Whether a branch of that name can be made in the repository in `dir`. Asked before the work that would fill it.
///
/// # Errors
/// The branch exists, or no branch can have that name.
pub async fn check_branch(dir: &Path, branch: &str) -> Result<(), Error> {
    let (dir, branch) = (dir.to_owned(), branch.to_owned());
    blocking(move || check(&open_local(&dir)?, &branch).map(drop)).await
}

/// The name of the branch's ref, if it is free.
fn check(local: &Repository, branch: &str) -> Result<String, Error> {
    let name = format!("refs/heads/{branch}");
    if branch.starts_with('-') || branch == "HEAD" || !git2::Reference::is_valid_name(&name) {
        return Err(Error::BranchName { branch: branch.to_owned() });
    }
    if local.find_reference(&name).is_ok() {
        return Err(Error::BranchExists { branch: branch.to_owned() });
    }
    // A ref is a file, so `a` and `a/b` exclude each other.
    let mut above = branch.match_indices('/').map(|(at, _)| branch[..at].to_owned());
    let above = above.find(|other| local.find_branch(other, BranchType::Local).is_ok());
    let below = || {
        let mut names = local.references_glob(&format!("{name}/*")).ok()?;
        let other = names.names().next()?.ok()?.strip_prefix("refs/heads/")?.to_owned();
        Some(other)
    };
    match above.or_else(below) {
        Some(other) => Err(Error::BranchBeside { branch: branch.to_owned(), other }),
        None => Ok(name),
    }
}

/// Copies a commit of the mirror, whose parent the repository in `dir` has, and makes a branch of it.
///
/// # Errors
/// The branch exists, no branch can have that name, or the repository does not take it.
pub async fn write_branch(
    dir: &Path,
    mirror: &Mirror,
    commit: &CommitId,
    branch: &str,
) -> Result<(), Error> {
    let (dir, mirror) = (dir.to_owned(), mirror.clone());
    let (commit, branch) = (commit.clone(), branch.to_owned());
    blocking(move || {
        let local = open_local(&dir)?;
        let name = check(&local, &branch)?;
        let written = || -> Result<(), git2::Error> {
            let id = Oid::from_str(&commit.0)?;
            copy(
                &mirror.open().map_err(|error| git2::Error::from_str(&error.to_string()))?,
                &local,
                id,
            )?;
            local.reference(&name, id, false, "written by hyla").map(drop)
        };
        written().map_err(|source| Error::Local { dir, source })
    })
    .await
}

/// Copies a commit and what the other repository lacks of its tree. What is there already is there with all below it.
fn copy(from: &Repository, to: &Repository, commit: Oid) -> Result<(), git2::Error> {
    let (source, target) = (from.odb()?, to.odb()?);
    let mut waiting = vec![from.find_commit(commit)?.tree_id()];
    while let Some(id) = waiting.pop() {
        if target.exists(id) {
            continue;
        }
        copy_object(&source, &target, id)?;
        if let Ok(tree) = from.find_tree(id) {
            let is_object = |kind| matches!(kind, Some(ObjectType::Blob | ObjectType::Tree));
            waiting.extend(tree.iter().filter(|e| is_object(e.kind())).map(|e| e.id()));
        }
    }
    copy_object(&source, &target, commit)
}

fn copy_object(source: &Odb<'_>, target: &Odb<'_>, id: Oid) -> Result<(), git2::Error> {
    let object = source.read(id)?;
    target.write(object.kind(), object.data()).map(drop)
}
