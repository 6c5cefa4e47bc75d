//! Real bare repositories, made and read with real git in a temp folder and a clean environment.
//!
//! It serves nothing over HTTP (`backend` does) and knows no user.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bot::job::RepoName;

/// The files that a repository or a commit starts from.
#[derive(Debug)]
pub enum Files {
    /// A folder, taken whole, with its executable bits and links.
    Folder(PathBuf),
    /// Paths and contents.
    Map(Vec<(String, Vec<u8>)>),
}

impl From<&Path> for Files {
    fn from(folder: &Path) -> Self {
        Self::Folder(folder.to_owned())
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Files {
    fn from(files: [(&str, &str); N]) -> Self {
        let owned = files.iter().map(|(path, text)| ((*path).into(), text.as_bytes().to_vec()));
        Self::Map(owned.collect())
    }
}

impl From<Vec<(String, Vec<u8>)>> for Files {
    fn from(files: Vec<(String, Vec<u8>)>) -> Self {
        Self::Map(files)
    }
}

/// Git, and the folder with all repositories.
#[derive(Debug)]
pub(super) struct Git {
    root: PathBuf,
}

impl Git {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A bare repository whose branch `main` holds the files in one commit.
    pub(super) fn create(&self, name: &RepoName, files: &Files) -> PathBuf {
        let dir = self.root.join(&name.owner).join(format!("{}.git", name.name));
        let path = dir.to_str().expect("temp paths are text");
        if dir.exists() {
            std::fs::remove_dir_all(&dir).expect("the temp folder can be written");
        }
        std::fs::create_dir_all(&dir).expect("the temp folder can be written");
        self.must(&dir, &["init", "--quiet", "--bare", "--initial-branch=main", path]);
        self.must(&dir, &["config", "http.receivepack", "true"]);
        self.commit(&dir, "main", files, "Start\n");
        dir
    }

    /// A commit on top of a branch, which is made if it is not there. Returns its id.
    pub(super) fn commit(&self, dir: &Path, branch: &str, files: &Files, message: &str) -> String {
        let parent = self.head(dir, branch);
        let scratch = tempfile::tempdir().expect("the temp folder can be written");
        let index = scratch.path().join("index");
        let with_index = |args: &[&str], input: &[u8]| {
            let mut command = self.command(dir, args);
            command.env("GIT_INDEX_FILE", &index);
            finish(command, args, input).unwrap_or_else(|e| panic!("{e}"))
        };
        if let Some(parent) = &parent {
            with_index(&["read-tree", parent], b"");
        }
        match files {
            Files::Folder(folder) => {
                let tree = folder.to_str().expect("test folders are text");
                with_index(&["--work-tree", tree, "add", "--all", "--force", "."], b"");
            }
            Files::Map(files) => {
                for (path, content) in files {
                    let blob = with_index(&["hash-object", "-w", "--stdin"], content);
                    let entry = format!("100644,{blob},{path}");
                    with_index(&["update-index", "--add", "--cacheinfo", &entry], b"");
                }
            }
        }
        let tree = with_index(&["write-tree"], b"");
        let mut args = vec!["commit-tree", &tree, "-m", message];
        if let Some(parent) = &parent {
            args.extend(["-p", parent]);
        }
        let commit = with_index(&args, b"");
        self.must(dir, &["update-ref", &format!("refs/heads/{branch}"), &commit]);
        commit
    }

    /// A merge commit of a branch into another, without looking at conflicts: the head's tree wins.
    pub(super) fn merge(&self, dir: &Path, base: &str, head_commit: &str) -> String {
        let tree = format!("{head_commit}^{{tree}}");
        let parent = self.head(dir, base).expect("a pull request's base is there");
        let args = ["commit-tree", &tree, "-m", "Merge", "-p", &parent, "-p", head_commit];
        let commit = self.must(dir, &args);
        self.set(dir, &format!("refs/heads/{base}"), &commit);
        commit
    }

    pub(super) fn set(&self, dir: &Path, reference: &str, commit: &str) {
        self.must(dir, &["update-ref", reference, commit]);
    }

    pub(super) fn delete_branch(&self, dir: &Path, branch: &str) {
        self.must(dir, &["update-ref", "-d", &format!("refs/heads/{branch}")]);
    }

    /// Removes every object that no ref holds.
    pub(super) fn prune(&self, dir: &Path) {
        self.must(dir, &["prune", "--expire=now"]);
    }

    /// The commit of a branch.
    pub(super) fn head(&self, dir: &Path, branch: &str) -> Option<String> {
        self.resolve(dir, &format!("refs/heads/{branch}"))
    }

    /// The commit of a full ref name.
    pub(super) fn resolve(&self, dir: &Path, reference: &str) -> Option<String> {
        let name = format!("{reference}^{{commit}}");
        self.run(dir, &["rev-parse", "--verify", "--quiet", "--end-of-options", &name]).ok()
    }

    pub(super) fn merge_base(&self, dir: &Path, left: &str, right: &str) -> Option<String> {
        self.run(dir, &["merge-base", left, right]).ok()
    }

    /// All branches with their commits.
    pub(super) fn branches(&self, dir: &Path) -> Vec<(String, String)> {
        let format = "--format=%(refname:lstrip=2) %(objectname)";
        let lines = self.must(dir, &["for-each-ref", format, "refs/heads"]);
        let pairs = lines.lines().filter_map(|line| line.split_once(' '));
        pairs.map(|(name, commit)| (name.to_owned(), commit.to_owned())).collect()
    }

    /// What a head changes since it left its base.
    pub(super) fn diff(&self, dir: &Path, base: &str, head: &str) -> String {
        self.must(dir, &["diff", "--no-color", "--no-ext-diff", &format!("{base}...{head}")])
    }

    /// The text of a file at a commit.
    pub(super) fn show(&self, dir: &Path, commit: &str, path: &str) -> Option<Vec<u8>> {
        let mut command = self.command(dir, &["cat-file", "blob", &format!("{commit}:{path}")]);
        let output = command.output().expect("git can be started");
        output.status.success().then_some(output.stdout)
    }

    /// Author, committer, message and changes of every commit that any ref holds.
    pub(super) fn everything(&self, dir: &Path) -> String {
        self.must(dir, &["log", "--all", "--patch", "--text", "--format=fuller"])
    }

    fn must(&self, dir: &Path, args: &[&str]) -> String {
        self.run(dir, args).unwrap_or_else(|e| panic!("{e}"))
    }

    fn run(&self, dir: &Path, args: &[&str]) -> Result<String, String> {
        finish(self.command(dir, args), args, b"")
    }

    fn command(&self, dir: &Path, args: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.env_clear().envs(environment(&self.root)).arg("--git-dir").arg(dir).args(args);
        command
    }
}

/// The whole environment of every git process: nothing of the user's own configuration, fixed people and times.
pub(super) fn environment(root: &Path) -> Vec<(String, String)> {
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
    let home = root.to_string_lossy().into_owned();
    [
        ("PATH", path.as_str()),
        ("HOME", home.as_str()),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_AUTHOR_NAME", "Ada Maintainer"),
        ("GIT_AUTHOR_EMAIL", "ada@example.org"),
        ("GIT_AUTHOR_DATE", "2026-01-05T09:00:00Z"),
        ("GIT_COMMITTER_NAME", "Ada Maintainer"),
        ("GIT_COMMITTER_EMAIL", "ada@example.org"),
        ("GIT_COMMITTER_DATE", "2026-01-05T09:00:00Z"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

fn finish(mut command: Command, args: &[&str], input: &[u8]) -> Result<String, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("git can be started");
    let mut stdin = child.stdin.take().expect("stdin was asked for as a pipe");
    stdin.write_all(input).expect("git reads its input");
    drop(stdin);
    let output = child.wait_with_output().expect("git ends");
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("git {args:?} failed: {complaint}"))
}
