//! The four runs, with a sandbox that decides by what lies in the workspace.

use std::path::PathBuf;
use std::sync::Mutex;

use async_trait::async_trait;

use super::*;
use crate::checkout::Base;
use crate::checkout::testing::World;
use crate::patch::{Limits, import};
use crate::sandbox::{Command, Finished, Report, SetupError, Stream};
use crate::workspace::Workspace;

type Verdict = dyn Fn(&Path, &str) -> Result<End, SetupError> + Send + Sync;

/// Runs nothing: a function of the workspace and the script tells how it ends.
struct Scripted {
    verdict: Box<Verdict>,
    seen: Mutex<Vec<PathBuf>>,
    output: &'static str,
}

impl Scripted {
    fn new(
        verdict: impl Fn(&Path, &str) -> Result<End, SetupError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            verdict: Box::new(verdict),
            seen: Mutex::default(),
            output: "1 passed in 0.10s\n```\n",
        }
    }
}

#[async_trait]
impl Sandbox for Scripted {
    fn name(&self) -> String {
        "scripted".into()
    }

    async fn quiet(&self) -> Result<(), SetupError> {
        Ok(())
    }

    fn is_sure(&self) -> bool {
        true
    }

    async fn probe(&self) -> Report {
        Report { backend: "scripted".into(), checks: Vec::new() }
    }

    async fn run(&self, workspace: &Workspace, command: &Command) -> Result<Finished, SetupError> {
        let root = workspace.root();
        let trace = root.join(format!("trace of {}", command.script));
        assert!(!trace.exists(), "each run has a fresh workspace");
        std::fs::write(trace, "").unwrap();
        self.seen.lock().unwrap().push(root.to_owned());
        let end = (self.verdict)(root, &command.script)?;
        let stdout = Stream { head: self.output.into(), ..Stream::default() };
        let elapsed = Duration::from_millis(1500);
        Ok(Finished { end, stdout, stderr: Stream::default(), elapsed })
    }
}

/// A program and a test that fit when both say the same.
async fn repository(edit: &[(&str, Option<&str>)]) -> (World, Base, Patch) {
    let world = World::with(&[("app.txt", b"bug"), ("tests/old.txt", b"bug fix")]);
    let base = world.fetch().await;
    let root = world.path("workspace");
    base.workspace(&root, Owner::Service).await.unwrap();
    for (path, content) in edit {
        match content {
            Some(content) => std::fs::write(root.join(path), content).unwrap(),
            None => std::fs::remove_file(root.join(path)).unwrap(),
        }
    }
    let workspace = Workspace::open(&root, Owner::Service).unwrap();
    let limits = Limits::for_gate(&config::Gate::default());
    let patch = import(&workspace, &base.mirror, &base.commit, &limits).await.unwrap();
    (world, base, patch)
}

/// Passes if every test names what the program says.
fn all_fit(root: &Path, _script: &str) -> Result<End, SetupError> {
    let app = std::fs::read_to_string(root.join("app.txt")).unwrap();
    let fits = |path: PathBuf| std::fs::read_to_string(path).unwrap().contains(&app);
    let tests = std::fs::read_dir(root.join("tests")).into_iter().flatten();
    let all = tests.map(|entry| entry.unwrap().path()).all(fits);
    Ok(End::Exited(i32::from(!all)))
}

fn command() -> TestCommand {
    TestCommand { command: "run tests".into(), setup: None, source: Source::Detected("tests/") }
}

fn options(scratch: &Path, output_bytes: usize) -> Options<'_> {
    let timeout = Duration::from_secs(5);
    Options { scratch, owner: Owner::Service, timeout, output_bytes, prepared: None }
}

async fn gathered(
    sandbox: &Scripted,
    world: &World,
    base: &Base,
    patch: &Patch,
    command: &TestCommand,
) -> Result<Evidence, Error> {
    let scratch = world.path("scratch");
    std::fs::create_dir_all(&scratch).unwrap();
    let options = options(&scratch, 1000);
    let stock = base.stock(world.path("stock"));
    let evidence = gather(sandbox, &stock, patch, Some(command), &options).await;
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "a workspace was left");
    evidence
}

fn passed(evidence: &Evidence) -> Vec<Option<bool>> {
    let passed = |run: &Run| match &run.outcome {
        Outcome::Ran(ran) => Some(ran.end == End::Exited(0)),
        Outcome::Skipped { .. } | Outcome::SetupFailed(_) => None,
    };
    evidence.runs.iter().map(passed).collect()
}

#[tokio::test]
async fn a_good_fix_with_a_test_passes_all_four() {
    let edit = [("app.txt", Some("fix")), ("tests/new.txt", Some("fix"))];
    let (world, base, patch) = repository(&edit).await;
    let sandbox = Scripted::new(all_fit);
    let evidence = gathered(&sandbox, &world, &base, &patch, &command()).await.unwrap();
    assert_eq!(passed(&evidence), [Some(true), Some(true), Some(false), None]);
    assert_eq!(sandbox.seen.lock().unwrap().len(), 3);
    insta::assert_snapshot!(evidence.table());
}

#[tokio::test]
async fn a_patch_that_bends_the_tests_is_seen() {
    let edit = [("app.txt", Some("worse")), ("tests/old.txt", Some("worse"))];
    let (world, base, patch) = repository(&edit).await;
    let evidence =
        gathered(&Scripted::new(all_fit), &world, &base, &patch, &command()).await.unwrap();
    assert_eq!(passed(&evidence), [Some(true), Some(true), Some(false), Some(false)]);
    let table = evidence.table();
    assert!(table.contains("**but failed**: the patch changed what the tests ask for"), "{table}");
}

/// What the run of the original tests means, by how the runs of the base commit, of the patch and of those tests end.
#[tokio::test]
async fn original_tests_that_fail_say_only_what_the_other_runs_allow() {
    let edit = [("app.txt", Some("fix")), ("tests/old.txt", Some("fix"))];
    let (world, base, patch) = repository(&edit).await;
    let (good, bad, late) = (End::Exited(0), End::Exited(1), End::TimedOut);
    for (ends, expected) in [
        (
            [good, good],
            "expected to pass, **but failed**: the patch changed what the tests ask for",
        ),
        ([good, bad], "expected to pass, **but failed** |"),
        ([bad, good], "failed, which says little, because the base commit fails too"),
        ([bad, bad], "failed, which says little, because the base commit fails too"),
        (
            [late, good],
            "failed, which says little, because the run of the base commit says nothing",
        ),
    ] {
        let sandbox = Scripted::new(move |root, _| {
            let said = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
            Ok(match (said("app.txt").as_str(), said("tests/old.txt").as_str()) {
                ("bug", "bug fix") => ends[0],
                ("fix", "fix") => ends[1],
                _ => End::Exited(1),
            })
        });
        let evidence = gathered(&sandbox, &world, &base, &patch, &command()).await.unwrap();
        let table = evidence.table();
        let row = table.lines().find(|line| line.starts_with("| d |")).unwrap();
        assert!(row.contains(expected), "{ends:?}: {row}");
        assert_eq!(
            table.contains("as the base commit does"),
            ends == [bad, bad],
            "{ends:?}: {table}"
        );
    }
}

#[tokio::test]
async fn the_log_has_what_the_table_cuts() {
    let (world, base, patch) = repository(&[("app.txt", Some("fix"))]).await;
    let sandbox =
        Scripted { output: "line of a test\n".repeat(1000).leak(), ..Scripted::new(all_fit) };
    let evidence = gathered(&sandbox, &world, &base, &patch, &command()).await.unwrap();
    assert!(evidence.table().matches("line of a test").count() < 1000);
    let log = evidence.log().unwrap();
    assert!(log.starts_with("== run a: base commit; exit 0"), "{}", &log[..60]);
    assert_eq!(log.matches("line of a test").count(), 2000);
    let none = Evidence { command: None, runs: Vec::new(), ..evidence };
    assert!(none.log().is_none());
}

#[tokio::test]
async fn what_is_taken_from_the_tests_is_said_first_with_and_without_a_command() {
    let edit = [("tests/old.txt", None)];
    let (world, base, patch) = repository(&edit).await;
    let sandbox = Scripted::new(all_fit);
    let evidence = gathered(&sandbox, &world, &base, &patch, &command()).await.unwrap();
    for evidence in [Evidence { command: None, runs: Vec::new(), ..evidence.clone() }, evidence] {
        let table = evidence.table();
        let head = table.split("\n|").next().unwrap();
        assert!(
            head.contains("takes something away from the tests: `tests/old.txt` (deleted)"),
            "{table}"
        );
        assert!(head.contains("changes nothing but tests"), "{table}");
    }
}

#[tokio::test]
async fn a_deleted_test_is_brought_back() {
    let edit = [("app.txt", Some("worse")), ("tests/old.txt", None)];
    let (world, base, patch) = repository(&edit).await;
    let evidence =
        gathered(&Scripted::new(all_fit), &world, &base, &patch, &command()).await.unwrap();
    assert_eq!(passed(&evidence), [Some(true), Some(true), None, Some(false)]);
}

#[tokio::test]
async fn a_test_that_shows_nothing_is_seen() {
    let edit = [("app.txt", Some("fix")), ("tests/new.txt", Some("bug fix"))];
    let (world, base, patch) = repository(&edit).await;
    let evidence =
        gathered(&Scripted::new(all_fit), &world, &base, &patch, &command()).await.unwrap();
    assert_eq!(passed(&evidence), [Some(true), Some(true), Some(true), None]);
    assert!(evidence.table().contains("**but passed**"));
}

#[tokio::test]
async fn runs_that_do_not_end_say_nothing() {
    let (world, base, patch) = repository(&[("app.txt", Some("fix"))]).await;
    for (end, named) in [
        (End::TimedOut, "time limit"),
        (End::DiskFull, "disk limit"),
        (End::OutOfMemory, "memory limit"),
    ] {
        let sandbox = Scripted::new(move |_, _| Ok(end));
        let evidence = gathered(&sandbox, &world, &base, &patch, &command()).await.unwrap();
        assert_eq!(passed(&evidence)[1], Some(false));
        let table = evidence.table();
        assert!(table.contains("did not finish") && table.contains(named), "{table}");
    }
}

#[tokio::test]
async fn a_failing_setup_is_not_a_failing_test() {
    let (world, base, patch) = repository(&[("app.txt", Some("fix"))]).await;
    let sandbox = Scripted::new(|_, script| Ok(End::Exited(i32::from(script == "make deps"))));
    let command = TestCommand { setup: Some("make deps".into()), ..command() };
    let evidence = gathered(&sandbox, &world, &base, &patch, &command).await.unwrap();
    assert_eq!(passed(&evidence), [None; 4]);
    assert!(evidence.table().contains("the setup command failed"));
}

#[tokio::test]
async fn a_sandbox_that_cannot_run_is_an_error_and_leaves_no_workspace() {
    let (world, base, patch) = repository(&[("app.txt", Some("fix"))]).await;
    let sandbox =
        Scripted::new(|_, _| Err(SetupError::Start { reason: "no".into(), source: None }));
    let error = gathered(&sandbox, &world, &base, &patch, &command()).await.unwrap_err();
    assert!(matches!(error, Error::Sandbox(_)), "{error:?}");
}

#[tokio::test]
async fn a_workspace_that_a_crash_left_is_removed_first() {
    let (world, base, patch) = repository(&[("app.txt", Some("fix"))]).await;
    std::fs::create_dir_all(world.path("scratch/evidence/tests")).unwrap();
    std::fs::write(world.path("scratch/evidence/tests/x"), "old").unwrap();
    gathered(&Scripted::new(all_fit), &world, &base, &patch, &command()).await.unwrap();
}

#[tokio::test]
async fn a_workspace_that_something_may_still_write_is_left_alone() {
    let (world, base, patch) = repository(&[("app.txt", Some("fix"))]).await;
    let scratch = world.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let options = options(&scratch, 10);
    for dead in [false, true] {
        let sandbox = Scripted::new(move |_, _| {
            let reason = || "as scripted".to_owned();
            Err(match dead {
                false => SetupError::StillAlive { reason: reason() },
                true => SetupError::Start { reason: reason(), source: None },
            })
        });
        let command = command();
        let stock = base.stock(world.path("stock"));
        let gathered = gather(&sandbox, &stock, &patch, Some(&command), &options).await;
        assert!(matches!(gathered, Err(Error::Sandbox(_))));
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), usize::from(!dead));
    }
}

#[tokio::test]
async fn a_run_that_is_given_up_leaves_its_workspace_to_whoever_waits_for_quiet() {
    let (world, base, patch) = repository(&[("app.txt", Some("fix"))]).await;
    struct Never(tokio::sync::Notify);
    #[async_trait]
    impl Sandbox for Never {
        fn name(&self) -> String {
            "scripted".into()
        }

        async fn quiet(&self) -> Result<(), SetupError> {
            Ok(())
        }

        fn is_sure(&self) -> bool {
            true
        }

        async fn probe(&self) -> Report {
            Report { backend: "never".into(), checks: Vec::new() }
        }
        async fn run(&self, _: &Workspace, _: &Command) -> Result<Finished, SetupError> {
            self.0.notify_one();
            std::future::pending().await
        }
    }
    let scratch = world.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let options = options(&scratch, 10);
    let (sandbox, command) = (Never(tokio::sync::Notify::new()), command());
    let stock = base.stock(world.path("stock"));
    tokio::select! {
        _ = gather(&sandbox, &stock, &patch, Some(&command), &options) => panic!("it cannot end"),
        () = sandbox.0.notified() => {}
    }
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 1);
}

#[tokio::test]
async fn without_a_command_it_says_so() {
    let (world, base, patch) = repository(&[("app.txt", Some("fix"))]).await;
    let none = world.path("none");
    let options = Options { timeout: Duration::ZERO, ..options(&none, 0) };
    let stock = base.stock(world.path("stock"));
    let evidence = gather(&Scripted::new(all_fit), &stock, &patch, None, &options).await.unwrap();
    assert!(evidence.runs.is_empty());
    assert!(evidence.table().contains("No test command was found"));
}

#[tokio::test]
async fn the_command_is_found_in_a_commit() {
    let world = World::with(&[("package.json", br#"{"scripts":{"test":"jest"}}"#)]);
    let base = world.fetch().await;
    let found =
        find_in(&base.mirror, &base.commit, None, &config::RepoFile::default()).await.unwrap();
    assert_eq!(found.unwrap().command, "npm test");
}
