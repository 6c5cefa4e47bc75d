//! `hyla fix` on a folder from a stranger, in front of a person's terminal.

use std::process::Stdio;

use tests::house::{demo_folder, hyla_binary};
use tests::model::{MODEL, ModelServer, PATIENCE, Recording, Turn};
use tokio::process::Command;

use crate::commands::git;

/// What `fix` prints, on both streams, for a folder of these files and a model with one command.
async fn fixed(files: &[(&str, &str)], script: &str) -> String {
    let turns = vec![Turn::bash(script), Turn::default()];
    let server = ModelServer::start(Recording::of(turns)).await;
    let server = server.expect("it starts");
    let folder = tempfile::tempdir().expect("the temp folder can be written");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("it is ours");
    }
    git(folder.path(), &["init", "-q"]);
    git(folder.path(), &["add", "-A"]);
    git(folder.path(), &["commit", "-qm", "first"]);
    let output = Command::new(hyla_binary())
        .arg("fix")
        .arg("--repo")
        .arg(folder.path())
        .arg("--issue")
        .arg(demo_folder().join("issue.md"))
        .args(["--endpoint", &server.url(), "--model", MODEL])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("it ends").expect("it starts");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[tokio::test]
async fn a_refused_file_name_cannot_steer_the_terminal() {
    let printed = fixed(&[("a.txt", "a\n")], "echo x > $'\\e]0;title\\a\\e[2J'").await;
    let words = printed.lines().find(|line| line.contains("The gate refuses"));
    let words = words.expect("it is refused").to_owned();
    assert!(!words.contains('\u{1b}'), "{words:?}");
}

#[tokio::test]
async fn a_key_of_the_repositorys_file_cannot_steer_the_terminal() {
    let printed =
        fixed(&[("a.txt", "a\n"), (".hyla.toml", "\"\\u001b[2Jkey\" = 1\n")], "true").await;
    assert!(printed.contains(".hyla.toml"), "{printed:?}");
    assert!(!printed.contains('\u{1b}'), "{printed:?}");
}
