//! A machine whose sandbox does not hold: no agent runs, no webhook is lost, and everybody who asks is told why.

use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use bot::job::{Outcome, State};
use nix::sys::signal::Signal;
use tests::house::{copy_of_hyla, demo_recording};
use tests::model::PATIENCE;
use tests::outside::{LOOK, Outside, send, until};
use tokio::process::{Child, Command};

/// `/healthz`.
async fn health(outside: &Outside) -> (u16, String) {
    let answer = reqwest::get(format!("http://{}/healthz", outside.address)).await;
    let answer = answer.expect("the service answers");
    (answer.status().as_u16(), answer.text().await.expect("it has a body"))
}

/// Waits until `/healthz` answers so, and returns its words.
async fn is_told(outside: &Outside, status: u16) -> String {
    let begun = Instant::now();
    loop {
        let (seen, words) = health(outside).await;
        if seen == status {
            return words;
        }
        assert!(begun.elapsed() < PATIENCE, "never {status}: {words}");
        tokio::time::sleep(LOOK).await;
    }
}

#[tokio::test]
async fn without_a_sandbox_webhooks_are_kept_and_no_agent_runs_until_there_is_one() {
    let missing = "[sandbox]\nbwrap = \"/usr/bin/no-such-bwrap\"\n[queue]\nsettle = \"100ms\"\n";
    let outside = Outside::start(demo_recording(), missing).await;
    let mut first = outside.serve_logged();
    outside.is_heard().await;
    let issue = outside.open_issue(&["hyla"]).await;
    let (status, words) = health(&outside).await;
    assert!(status == 503 && words.contains("/usr/bin/no-such-bwrap"), "{status} {words}");
    assert!(words.contains("install the package `bubblewrap`"), "{words}");
    let kept = outside.forge.deliveries();
    assert!(kept.iter().all(|each| each.status == Some(202)), "{kept:?}");
    let jobs = outside.jobs().await;
    assert!(matches!(jobs[0].job.state, State::Queued), "{jobs:?}");
    assert_eq!(jobs[0].job.attempt, 0);
    assert!(outside.model.requests().is_empty());
    assert!(outside.forge.comments(&outside.repo, issue).is_empty());
    send(&first, Signal::SIGTERM);
    assert!(first.wait().await.expect("it is ours").success());

    let text = std::fs::read_to_string(&outside.file).expect("it is ours");
    std::fs::write(&outside.file, text.replace("no-such-bwrap", "bwrap")).expect("it is ours");
    let _second = outside.serve_logged();
    outside.listens().await;
    until("the draft is open", || !outside.forge.pulls(&outside.repo).is_empty()).await;
    outside.is_done("at the end").await;
    let (status, words) = health(&outside).await;
    assert!(status == 200 && words.contains("sandbox: bubblewrap "), "{status} {words}");
    let jobs = outside.jobs().await;
    let State::Ended { end } = &jobs[0].job.state else { panic!("{jobs:?}") };
    assert_eq!((jobs.len(), end.outcome), (1, Outcome::DraftPr));
    let pull = outside.forge.pulls(&outside.repo).remove(0);
    assert!(
        pull.body.contains("sandboxes of their own without a network: bubblewrap "),
        "{}",
        pull.body
    );
}

/// A machine of the service's own, as far as user namespaces go: how many there may be is told of each namespace, and here
/// nobody else is in it. Its user 1000 is no root, and root's files are root's.
struct Machine {
    holder: Child,
    user: u32,
}

impl Machine {
    /// None where it cannot be made, which is said.
    async fn start(test: &str) -> Option<Self> {
        if std::fs::metadata("/proc/self").expect("it is there").uid() != 0 {
            let words = format!("not run: {test}: only root makes a namespace with two users\n");
            std::io::Write::write_all(&mut std::io::stderr(), words.as_bytes())
                .expect("it is ours");
            return None;
        }
        // It reads, for as long as this value lives.
        let holder = Command::new("unshare")
            .args(["--user", "cat"])
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("install `util-linux`");
        let machine = Self { holder, user: 4_500_000 + std::process::id() % 100_000 };
        let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user")).ok();
        let number = machine.number();
        until("it has a namespace", || namespace(&number) != namespace("self")).await;
        for map in ["uid_map", "gid_map"] {
            let users = format!("0 0 1\n1000 {} 1\n", machine.user);
            std::fs::write(format!("/proc/{number}/{map}"), users).expect("root may");
        }
        Some(machine)
    }

    fn number(&self) -> String {
        self.holder.id().expect("it runs").to_string()
    }

    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--target", &self.number()]);
        command
    }

    /// Says how many more namespaces of users there may be: none, or as many as anybody needs.
    async fn allow(&self, n_namespaces: u32) {
        let script = format!("echo {n_namespaces} > /proc/sys/user/max_user_namespaces");
        let mut command = self.enter();
        assert!(command.args(["sh", "-c", &script]).status().await.expect("it starts").success());
    }

    /// Starts the service as its user.
    fn serve(&self, outside: &Outside) -> Child {
        let binary = copy_of_hyla(outside.folder.path());
        hand_over(outside.folder.path(), self.user);
        let log = std::fs::OpenOptions::new().create(true).append(true).open(outside.log());
        let mut command = self.enter();
        command.args(["--setuid", "1000", "--setgid", "1000"]).arg(&binary);
        command.args(["serve", "--config", &outside.file]).stdin(Stdio::null()).kill_on_drop(true);
        command.stderr(log.expect("the temp folder can be written")).spawn().expect("it starts")
    }
}

/// Gives a folder with all that is in it to a user.
fn hand_over(path: &Path, uid: u32) {
    lchown(path, Some(uid), Some(uid)).expect("root may");
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        hand_over(&entry.path(), uid);
    }
}

/// What `/metrics` says of the sandbox.
async fn metric(outside: &Outside) -> String {
    let answer = reqwest::get(format!("http://{}/metrics", outside.address)).await;
    let text = answer.expect("the service answers").text().await.expect("it has a body");
    let line = text.lines().find(|line| line.starts_with("hyla_sandbox_holds "));
    line.expect("it is counted").to_owned()
}

#[tokio::test]
async fn on_sighup_the_sandbox_is_looked_at_again_and_a_machine_that_changed_is_seen() {
    let test = "on_sighup_the_sandbox_is_looked_at_again_and_a_machine_that_changed_is_seen";
    let Some(machine) = Machine::start(test).await else { return };
    let outside = Outside::start(demo_recording(), "[queue]\nsettle = \"100ms\"\n").await;
    let mut service = machine.serve(&outside);
    outside.is_heard().await;
    is_told(&outside, 200).await;

    machine.allow(0).await;
    // The control: nobody has looked, so nobody knows.
    assert_eq!(health(&outside).await.0, 200);
    send(&service, Signal::SIGHUP);
    let words = is_told(&outside, 503).await;
    assert!(words.contains("allow user namespaces"), "{words}");
    assert_eq!(metric(&outside).await, "hyla_sandbox_holds 0");
    let issue = outside.open_issue(&["hyla"]).await;
    until("the job is kept", || {
        outside.forge.deliveries().iter().any(|each| each.status == Some(202))
    })
    .await;
    // However often it is asked.
    for _ in 0..20 {
        send(&service, Signal::SIGHUP);
    }
    let log = || std::fs::read_to_string(outside.log()).unwrap_or_default();
    until("it has looked again", || log().matches("asked by SIGHUP").count() >= 2).await;
    let jobs = outside.jobs().await;
    assert!(matches!(jobs[0].job.state, State::Queued), "{jobs:?}");
    assert_eq!((jobs.len(), jobs[0].job.attempt), (1, 0));
    assert!(outside.model.requests().is_empty());
    assert!(outside.forge.comments(&outside.repo, issue).is_empty());

    machine.allow(10_000).await;
    send(&service, Signal::SIGHUP);
    is_told(&outside, 200).await;
    assert_eq!(metric(&outside).await, "hyla_sandbox_holds 1");
    until("the draft is open", || !outside.forge.pulls(&outside.repo).is_empty()).await;
    outside.is_done("at the end").await;
    send(&service, Signal::SIGHUP);
    send(&service, Signal::SIGTERM);
    assert!(service.wait().await.expect("it is ours").success(), "no signal but the last ends it");
    outside.assert_nothing_is_left(&outside.file, "at the end");
}

#[tokio::test]
async fn a_bubblewrap_that_is_installed_while_the_service_runs_is_used_without_a_restart() {
    let place = tests::house::way();
    let bwrap = place.path().join("bwrap");
    let settings = format!("[sandbox]\nbwrap = \"{}\"\n", bwrap.display());
    let outside = Outside::start(demo_recording(), &settings).await;
    let mut service = outside.serve_logged();
    outside.listens().await;
    let words = is_told(&outside, 503).await;
    assert!(words.contains("install the package `bubblewrap`"), "{words}");
    symlink("/usr/bin/bwrap", &bwrap).expect("the folder is ours");
    send(&service, Signal::SIGHUP);
    let words = is_told(&outside, 200).await;
    assert!(words.contains("sandbox: bubblewrap "), "{words}");
    send(&service, Signal::SIGTERM);
    assert!(service.wait().await.expect("it is ours").success());
}
