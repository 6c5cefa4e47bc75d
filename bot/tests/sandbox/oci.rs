//! The backend of a container engine, with real podman: what it promises is what bubblewrap does.
//!
//! The image is made of this machine's own programs. Where podman is not here or cannot run a container, each test says so.

use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bot::sandbox::{self, Command, End, Extras, Options, SetupError, Verdict};
use bot::workspace::{Owner, Workspace};

use super::bench::{Answers, Bench, IF_POSSIBLE, bench, command, compare, lives, living, marker, options, outside, until};
use super::own_process::service;

const PODMAN: &str = "/usr/bin/podman";

/// What works here.
struct Here {
    image: String,
    runtime: Option<String>,
}

/// The image and a runtime that starts it; or why there is none.
fn here() -> Option<&'static Here> {
    static HERE: OnceLock<Result<Here, String>> = OnceLock::new();
    match HERE.get_or_init(find) {
        Ok(here) => Some(here),
        Err(reason) => {
            eprintln!("oci: not run here: {reason}");
            None
        }
    }
}

fn podman(words: &[&str]) -> std::process::Output {
    Process::new(PODMAN).args(words).stdin(Stdio::null()).output().unwrap()
}

fn find() -> Result<Here, String> {
    if !Path::new(PODMAN).exists() {
        return Err(format!("there is no {PODMAN}; install the package `podman`"));
    }
    let image = image()?;
    let mut reasons = Vec::new();
    for runtime in [None, Some("runc"), Some("crun")] {
        let here = Here { image: image.clone(), runtime: runtime.map(str::to_owned) };
        match tried(&here) {
            Ok(()) => return Ok(here),
            Err(reason) => reasons.push(format!("with {}: {reason}", runtime.unwrap_or("its own runtime"))),
        }
    }
    Err(reasons.join("; "))
}

/// Made once for each state of the programs that go into it.
fn image() -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sandbox/image.sh");
    let name = format!("localhost/hyla-test-{}:1", std::process::id());
    let built = Process::new("bash")
        .args([script.as_os_str(), PODMAN.as_ref(), name.as_ref(), env!("CARGO_BIN_EXE_hyla").as_ref()])
        .output()
        .map_err(|error| error.to_string())?;
    if built.status.success() {
        return Ok(name);
    }
    Err(format!("no image can be made: {}", String::from_utf8_lossy(&built.stderr)))
}

/// Whether one command runs.
fn tried(here: &Here) -> Result<(), String> {
    // A thread of its own, as one that runs a test's future may not wait for another one.
    let attempt = std::thread::scope(|scope| {
        let attempt = || {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            let folder = tempfile::tempdir().unwrap();
            let options = in_containers(here, folder.path(), |_| {});
            let owner = sandbox::workspace_owner(&options);
            bot::folder::open_way(folder.path(), owner).unwrap();
            let workspace = Workspace::create(&folder.path().join("w"), owner).unwrap();
            let sandbox = sandbox::build(options)?;
            runtime.block_on(sandbox.run(&workspace, &command("true")))
        };
        scope.spawn(attempt).join().unwrap()
    });
    match attempt {
        Ok(finished) if finished.end == End::Exited(0) => Ok(()),
        Ok(finished) => Err(format!("`true` ended with {}", finished.end)),
        Err(error) => Err(error.to_string()),
    }
}

fn in_containers(here: &Here, data: &Path, change: impl FnOnce(&mut config::Sandbox)) -> Options {
    let options = options(|config| {
        config.backend = config::Backend::Oci;
        config.oci.engine = PODMAN.into();
        config.oci.image.clone_from(&here.image);
        config.oci.runtime.clone_from(&here.runtime);
        change(config);
    });
    Options { data: data.into(), ..options }
}

/// A bench with a data folder of its own; none where no container runs.
fn containers(change: impl FnOnce(&mut config::Sandbox)) -> Option<(Bench, tempfile::TempDir)> {
    let data = tempfile::tempdir().unwrap();
    let bench = bench(in_containers(here()?, data.path(), change));
    Some((bench, data))
}

#[tokio::test]
async fn oci_every_property_holds_here() {
    let Some((bench, _data)) = containers(|_| {}) else { return };
    let report = bench.sandbox.probe().await;
    let failed: Vec<_> =
        report.checks.iter().filter(|check| check.verdict != Verdict::Holds).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(report.checks.len() > 20);
    assert!(report.backend.starts_with("podman ") && report.backend.contains(" with "), "{}", report.backend);
    assert_eq!(report.backend, bench.sandbox.name());
}

#[tokio::test]
async fn oci_debug() {
    let Some((bench, _data)) = containers(|_| {}) else { return };
    let begun = Instant::now();
    let f = bench.run("ls -la / /home /home/agent /tmp /workspace; tr '\\0' '\\n' </proc/1/environ; grep -e /home -e /tmp -e workspace /proc/self/mountinfo; id; touch /workspace/a /tmp/b /home/agent/c").await;
    println!("{} {}", String::from_utf8_lossy(&f.stdout.head), String::from_utf8_lossy(&f.stderr.head));
    println!("{:?} {:?}", f.elapsed, begun.elapsed());
}
