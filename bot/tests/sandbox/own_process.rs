//! A service in a process of its own, for attacks on what only a whole process has: its environment, its open files, its
//! terminal, its death. The process is this test program once more, with the one test below.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command as Process;

use super::bench::{Bench, command, options};
use bot::sandbox::{build, workspace_owner};
use bot::workspace::Workspace;

const SCRIPT: &str = "HYLA_TEST_SCRIPT";
const ROOT: &str = "HYLA_TEST_WORKSPACE";

/// A process that runs a script in the sandbox and writes what it said to `said` beside the workspace. `around` is the
/// command that starts it, such as one that gives it a terminal; the last word of it gets the rest as arguments.
pub(crate) fn service(bench: &Bench, around: &[&str], script: &str) -> Process {
    let own = std::env::current_exe().unwrap();
    let test = "own_process::runs_a_script_for_another_test";
    let arguments = [own.as_os_str()]
        .into_iter()
        .chain(["--exact", test, "--ignored", "--test-threads=1"].map(OsStr::new));
    let mut words = around.iter().map(OsStr::new).chain(arguments);
    let mut process = Process::new(words.next().unwrap());
    process.args(words).env(SCRIPT, script).env(ROOT, bench.workspace.root());
    process
}

/// What the script said in the process.
pub(crate) fn said_in(bench: &Bench) -> String {
    std::fs::read_to_string(bench.folder.path().join("said")).unwrap()
}

/// Runs it to its end.
pub(crate) fn service_says(bench: &Bench, around: &[&str], script: &str) -> String {
    let output = service(bench, around, script).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    said_in(bench)
}

#[tokio::test]
#[ignore = "started by the tests that need a service in a process of its own"]
async fn runs_a_script_for_another_test() {
    let (Some(script), Some(root)) = (std::env::var_os(SCRIPT), std::env::var_os(ROOT)) else {
        return;
    };
    let (options, root) = (options(|_| {}), Path::new(&root));
    let workspace = Workspace::open(root, workspace_owner(&options)).unwrap();
    let asked = command(script.to_str().unwrap());
    let finished = build(options).unwrap().run(&workspace, &asked).await.unwrap();
    std::fs::write(root.with_file_name("said"), finished.stdout.head).unwrap();
}
