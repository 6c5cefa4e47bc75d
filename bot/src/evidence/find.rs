//! Which command runs a repository's tests: the server's, else the one in the repository's `.hyla.toml`, else what the
//! files in its root folder suggest. Detection knows the common build tools and no more; it starts nothing.

use std::collections::BTreeMap;

use super::Error;
use crate::checkout::{self, Mirror};
use crate::job::CommitId;

/// The files that detection may read; each is read at most this far.
const READ: [&str; 6] =
    ["package.json", "pyproject.toml", "setup.cfg", "tox.ini", "Makefile", "makefile"];

/// Larger ones are taken for absent.
const READ_BYTES: u64 = 1 << 20;

/// How the tests of a repository are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestCommand {
    /// The script that runs the tests, from the root of the repository.
    pub command: String,
    /// A script that runs before it in each fresh workspace.
    pub setup: Option<String>,
    /// Where the command comes from.
    pub source: Source,
}

/// Where a test command comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The server's configuration.
    Server,
    /// The repository's `.hyla.toml`.
    RepoFile,
    /// The presence of this file or folder.
    Detected(&'static str),
}

/// Finds the test command of a commit in a mirror.
///
/// # Errors
/// The commit cannot be read.
pub async fn find_in(
    mirror: &Mirror,
    commit: &CommitId,
    server: Option<&str>,
    repo_file: &config::RepoFile,
) -> Result<Option<TestCommand>, Error> {
    let root_entries = mirror.root_entries(commit).await?;
    let mut texts = BTreeMap::new();
    for name in READ.iter().filter(|name| root_entries.iter().any(|entry| entry == *name)) {
        match mirror.file_at(commit, name, READ_BYTES).await {
            Ok(Some(bytes)) => {
                texts.insert(*name, String::from_utf8_lossy(&bytes).into_owned());
            }
            Ok(None) | Err(checkout::Error::FileTooLarge { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let read = |name: &str| texts.get(name).cloned();
    Ok(find_command(server, repo_file, &root_entries, read))
}

/// Finds the test command. `root_entries` are the names in the root folder, folders with a final `/`; `read` gives the
/// text of a file there. The repository's own setup command goes with every test command; its own test command never
/// replaces the server's.
fn find_command(
    server: Option<&str>,
    repo_file: &config::RepoFile,
    root_entries: &[String],
    read: impl Fn(&str) -> Option<String>,
) -> Option<TestCommand> {
    let given = |command: &Option<String>| {
        command.as_deref().map(str::trim).filter(|c| !c.is_empty()).map(str::to_owned)
    };
    let (command, source) = if let Some(command) = given(&server.map(str::to_owned)) {
        (command, Source::Server)
    } else if let Some(command) = given(&repo_file.test_command) {
        (command, Source::RepoFile)
    } else {
        let root = Root { entries: root_entries, read: &read };
        let (file, command) = detect(&root)?;
        (command.to_owned(), Source::Detected(file))
    };
    Some(TestCommand { command, setup: given(&repo_file.setup_command), source })
}

struct Root<'a> {
    entries: &'a [String],
    read: &'a dyn Fn(&str) -> Option<String>,
}

impl Root<'_> {
    fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry == name)
    }

    fn has_ending(&self, ending: &str) -> bool {
        self.entries.iter().any(|entry| entry.ends_with(ending))
    }

    fn text(&self, name: &str) -> String {
        if self.has(name) { (self.read)(name).unwrap_or_default() } else { String::new() }
    }
}

/// The first tool that fits. A tool that would download is told to stay offline, where it can be told.
fn detect(root: &Root<'_>) -> Option<(&'static str, &'static str)> {
    if root.has("Cargo.toml") {
        return Some(("Cargo.toml", "cargo test --offline"));
    }
    if root.has("go.mod") {
        return Some(("go.mod", "go test ./..."));
    }
    node(root)
        .or_else(|| python(root))
        .or_else(|| java(root))
        .or_else(|| others(root))
        .or_else(|| make(root))
}

fn node(root: &Root<'_>) -> Option<(&'static str, &'static str)> {
    let package: serde_json::Value = serde_json::from_str(&root.text("package.json")).ok()?;
    let script = package.get("scripts")?.get("test")?.as_str()?;
    // What `npm init` writes when nobody has written a test.
    if script.trim().is_empty() || script.contains("no test specified") {
        return None;
    }
    let command = if root.has("pnpm-lock.yaml") {
        "pnpm test"
    } else if root.has("yarn.lock") {
        "yarn test"
    } else {
        "npm test"
    };
    Some(("package.json", command))
}

fn python(root: &Root<'_>) -> Option<(&'static str, &'static str)> {
    const PYTEST: &str = "python3 -m pytest";
    for name in ["pytest.ini", "conftest.py"] {
        if root.has(name) {
            return Some((name, PYTEST));
        }
    }
    let markers = [
        ("pyproject.toml", "[tool.pytest"),
        ("setup.cfg", "[tool:pytest]"),
        ("tox.ini", "[pytest]"),
    ];
    for (name, marker) in markers {
        if root.text(name).contains(marker) {
            return Some((name, PYTEST));
        }
    }
    let names = ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "tox.ini"];
    let is_python = names.iter().any(|name| root.has(name)) || root.has_ending(".py");
    match is_python {
        true if root.has("tests/") => Some(("tests/", "python3 -m unittest discover -s tests")),
        true if root.has("test/") => Some(("test/", "python3 -m unittest discover -s test")),
        _ => None,
    }
}

fn java(root: &Root<'_>) -> Option<(&'static str, &'static str)> {
    if root.has("mvnw") && root.has("pom.xml") {
        return Some(("mvnw", "./mvnw --offline --batch-mode test"));
    }
    if root.has("pom.xml") {
        return Some(("pom.xml", "mvn --offline --batch-mode test"));
    }
    if root.has("gradlew") {
        return Some(("gradlew", "./gradlew --offline test"));
    }
    let build = ["build.gradle", "build.gradle.kts"].into_iter().find(|name| root.has(name))?;
    Some((build, "gradle --offline test"))
}

fn others(root: &Root<'_>) -> Option<(&'static str, &'static str)> {
    if root.has("spec/") && root.has("Gemfile") {
        return Some(("spec/", "bundle exec rspec"));
    }
    if root.has("mix.exs") {
        return Some(("mix.exs", "mix test"));
    }
    let names = ["phpunit.xml", "phpunit.xml.dist"];
    if let Some(name) = names.into_iter().find(|name| root.has(name)) {
        return Some((name, "vendor/bin/phpunit"));
    }
    let endings = [".sln", ".slnx", ".csproj", ".fsproj"];
    let ending = endings.into_iter().find(|ending| root.has_ending(ending))?;
    Some((ending, "dotnet test"))
}

fn make(root: &Root<'_>) -> Option<(&'static str, &'static str)> {
    let is_target = |line: &str| {
        let after = line.strip_prefix("test").map(str::trim_start);
        after.is_some_and(|rest| rest.starts_with(':') && !rest.starts_with(":="))
    };
    let name =
        ["Makefile", "makefile"].into_iter().find(|n| root.text(n).lines().any(is_target))?;
    Some((name, "make test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detected(files: &[(&str, &str)]) -> Option<String> {
        let entries: Vec<String> = files.iter().map(|(name, _)| (*name).to_owned()).collect();
        let read = |name: &str| {
            files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned())
        };
        find_command(None, &config::RepoFile::default(), &entries, read).map(|found| found.command)
    }

    #[test]
    fn the_common_tools_are_detected() {
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
        let cases: &[Case<'_>] = &[
            (&[("Cargo.toml", ""), ("Makefile", "test:\n")], Some("cargo test --offline")),
            (&[("go.mod", "")], Some("go test ./...")),
            (&[("package.json", r#"{"scripts":{"test":"jest"}}"#)], Some("npm test")),
            (
                &[("package.json", r#"{"scripts":{"test":"jest"}}"#), ("yarn.lock", "")],
                Some("yarn test"),
            ),
            (
                &[("package.json", r#"{"scripts":{"test":"jest"}}"#), ("pnpm-lock.yaml", "")],
                Some("pnpm test"),
            ),
            (
                &[(
                    "package.json",
                    r#"{"scripts":{"test":"echo \"Error: no test specified\" && exit 1"}}"#,
                )],
                None,
            ),
            (&[("package.json", r#"{"scripts":{"test":7}}"#)], None),
            (&[("package.json", "{")], None),
            (&[("pytest.ini", "")], Some("python3 -m pytest")),
            (&[("pyproject.toml", "[tool.pytest.ini_options]\n")], Some("python3 -m pytest")),
            (&[("setup.cfg", "[tool:pytest]\n")], Some("python3 -m pytest")),
            (&[("tox.ini", "[pytest]\n")], Some("python3 -m pytest")),
            (&[("setup.py", ""), ("tests/", "")], Some("python3 -m unittest discover -s tests")),
            (&[("app.py", ""), ("test/", "")], Some("python3 -m unittest discover -s test")),
            (&[("tests/", "")], None),
            (&[("pom.xml", "")], Some("mvn --offline --batch-mode test")),
            (&[("pom.xml", ""), ("mvnw", "")], Some("./mvnw --offline --batch-mode test")),
            (&[("build.gradle.kts", ""), ("gradlew", "")], Some("./gradlew --offline test")),
            (&[("build.gradle", "")], Some("gradle --offline test")),
            (&[("Gemfile", ""), ("spec/", "")], Some("bundle exec rspec")),
            (&[("mix.exs", "")], Some("mix test")),
            (&[("phpunit.xml.dist", "")], Some("vendor/bin/phpunit")),
            (&[("App.sln", "")], Some("dotnet test")),
            (&[("Makefile", "all:\n\ntest: all\n\t./run\n")], Some("make test")),
            (&[("Makefile", "tests:\ntest := x\n")], None),
            (&[("README.md", "")], None),
            (&[], None),
        ];
        for (files, expected) in cases {
            assert_eq!(detected(files).as_deref(), *expected, "{files:?}");
        }
    }

    #[test]
    fn the_repository_may_not_replace_the_servers_command() {
        let repo_file = config::RepoFile {
            test_command: Some("true".into()),
            setup_command: Some("make deps".into()),
            ..Default::default()
        };
        let entries = ["Cargo.toml".to_owned()];
        let found = |server, file: &config::RepoFile| {
            find_command(server, file, &entries, |_| None).unwrap()
        };
        let server = found(Some("just test"), &repo_file);
        assert_eq!((server.command.as_str(), server.source), ("just test", Source::Server));
        assert_eq!(server.setup.as_deref(), Some("make deps"));
        let own = found(None, &repo_file);
        assert_eq!((own.command.as_str(), own.source), ("true", Source::RepoFile));
        let blank = config::RepoFile { test_command: Some("  ".into()), ..Default::default() };
        assert_eq!(found(Some(""), &blank).source, Source::Detected("Cargo.toml"));
    }
}
