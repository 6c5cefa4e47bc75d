//! Repositories with git's own HTTP before them, for a test whose forge is another than the fake one. Who may read and who
//! may push is for that test to decide.

use std::path::{Path, PathBuf};

use bot::job::RepoName;
use tokio::sync::Semaphore;

use super::backend;
use super::git::{Files, Git};
use super::server::{Reply, Request};

/// Git processes at a time.
const SLOTS: usize = 4;

/// A folder with repositories. It ends with its value.
pub struct GitHost {
    git: Git,
    slots: Semaphore,
    _folder: tempfile::TempDir,
}

impl Default for GitHost {
    fn default() -> Self {
        let folder = tempfile::tempdir().expect("the temp folder can be written");
        Self { git: Git::new(folder.path()), slots: Semaphore::new(SLOTS), _folder: folder }
    }
}

impl GitHost {
    /// A bare repository whose branch `main` holds the files in one commit. Returns its folder.
    pub fn add_repository(&self, name: &RepoName, files: impl Into<Files>) -> PathBuf {
        self.git.create(name, &files.into())
    }

    /// All branches of a repository with their commits.
    pub fn branches(&self, dir: &Path) -> Vec<(String, String)> {
        self.git.branches(dir)
    }

    /// Author, committer, message and changes of every commit that any ref of a repository holds.
    pub fn everything(&self, dir: &Path) -> String {
        self.git.everything(dir)
    }

    /// Answers a request for `/owner/name.git/...`.
    pub async fn answer(&self, asked: &Request) -> Reply {
        backend::run(&self.git, &self.slots, asked, &asked.path).await
    }
}
