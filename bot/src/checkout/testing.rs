//! What the tests of the git stages share: repositories made by the real `git`, kept apart from the machine's settings.

pub(crate) mod http;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{Base, Error, Mirrors};
use crate::forge::Remote;
use crate::job::RepoName;
use crate::workspace::{Owner, Workspace};

/// Runs the real `git` in a folder, without the settings of this machine, and returns what it printed.
pub(crate) fn git(dir: &Path, arguments: &[&str]) -> String {
    let output = try_git(dir, arguments);
    let said = [output.stdout.clone(), output.stderr].concat();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&said));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Runs the real `git` and returns how it ended.
pub(crate) fn try_git(dir: &Path, arguments: &[&str]) -> Output {
    alone(&mut Command::new("git"), dir, arguments)
}

/// Runs the real `git` with a file as its input.
pub(crate) fn git_reading(dir: &Path, arguments: &[&str], input: File) -> Output {
    alone(Command::new("git").stdin(input), dir, arguments)
}

/// Runs the real `git` as another user, which only root may.
pub(crate) fn git_as(uid: u32, gid: u32, dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
    alone(command.args(["--clear-groups", "git"]), dir, arguments)
}

fn alone(command: &mut Command, dir: &Path, arguments: &[&str]) -> Output {
    command
        .current_dir(dir)
        .args(["-c", "core.autocrlf=false", "-c", "core.safecrlf=false"])
        .args(["-c", "protocol.file.allow=always", "-c", "safe.directory=*"])
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .envs([("GIT_AUTHOR_NAME", "Ada"), ("GIT_AUTHOR_EMAIL", "ada@example.org")])
        .envs([("GIT_COMMITTER_NAME", "Ada"), ("GIT_COMMITTER_EMAIL", "ada@example.org")])
        .envs([("GIT_AUTHOR_DATE", "1700000000 +0000"), ("GIT_COMMITTER_DATE", "1700000000 +0000")])
        .output()
        .expect("git is installed where the tests run")
}

impl Base {
    /// A workspace with a stock of its own.
    pub(crate) async fn workspace(&self, root: &Path, owner: Owner) -> Result<Workspace, Error> {
        let folder = tempfile::tempdir().unwrap();
        self.stock(folder.path().join("stock")).workspace(&self.commit, root, owner).await
    }
}

/// A work tree of Ada's, a bare repository that it pushes to, and the bot's mirrors.
pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) mirrors: Mirrors,
}

impl World {
    /// An empty repository.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        git(dir.path(), &["init", "--quiet", "-b", "main", "ada"]);
        git(dir.path(), &["init", "--quiet", "--bare", "-b", "main", "forge.git"]);
        let mirrors = Mirrors::new(dir.path().join("mirrors"));
        Self { dir, mirrors }
    }

    /// A repository with these files in its first commit.
    pub(crate) fn with(files: &[(&str, &[u8])]) -> Self {
        let world = Self::new();
        for (path, content) in files {
            world.write(path, content);
        }
        world.commit();
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn ada(&self) -> PathBuf {
        self.path("ada")
    }

    pub(crate) fn write(&self, path: &str, content: &[u8]) {
        let file = self.ada().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    }

    /// Commits everything and pushes it.
    pub(crate) fn commit(&self) -> String {
        git(&self.ada(), &["add", "--all", "--force"]);
        git(&self.ada(), &["commit", "--quiet", "--allow-empty", "-m", "a change"]);
        self.push();
        git(&self.ada(), &["rev-parse", "HEAD"])
    }

    pub(crate) fn push(&self) {
        git(&self.ada(), &["push", "--quiet", "--force", "../forge.git", "HEAD:refs/heads/main"]);
    }

    pub(crate) fn remote(&self) -> Remote {
        remote(&format!("file://{}", self.path("forge.git").display()))
    }

    pub(crate) async fn fetch(&self) -> Base {
        self.mirrors.fetch("home", &repo(), &self.remote(), "main").await.unwrap()
    }
}

/// `acme/app`.
pub(crate) fn repo() -> RepoName {
    "acme/app".parse().unwrap()
}

/// A remote with a token that is easy to find.
pub(crate) fn remote(url: &str) -> Remote {
    Remote {
        url: url.parse().unwrap(),
        user: "hyla".into(),
        password: String::from("canary-token").into(),
        ca_file: None,
        proxy: None,
    }
}
