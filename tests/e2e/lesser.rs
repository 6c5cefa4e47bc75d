//! The whole service with the backends without namespaces: both refuse until somebody has accepted them, and then what they
//! are stands in the log, in `/healthz`, in each comment and in the draft.

use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;
use std::process::Stdio;

use bot::job::{Outcome, State};
use nix::sys::signal::Signal;
use tests::house::{copy_of_hyla, demo_recording};
use tests::outside::{Outside, send, until};
use tokio::process::{Child, Command};

/// A user without a name and without processes. Other tests of this machine have others.
fn user(number: u32) -> u32 {
    4_000_000 + (std::process::id() % 100_000) * 8 + number
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").expect("it is there").uid() == 0
}

/// `/healthz`.
async fn health(outside: &Outside) -> (u16, String) {
    let answer = reqwest::get(format!("http://{}/healthz", outside.address)).await;
    let answer = answer.expect("the service answers");
    (answer.status().as_u16(), answer.text().await.expect("it has a body"))
}

/// Waits for a draft, and looks at every place where people look.
async fn says_everywhere_what_it_is(outside: &Outside, name: &str, banner: &str, words: &str) {
    let issue = outside.open_issue(&["hyla"]).await;
    until("the draft is open", || !outside.forge.pulls(&outside.repo).is_empty()).await;
    outside.is_done("at the end").await;
    let jobs = outside.jobs().await;
    let State::Ended { end } = &jobs[0].job.state else { panic!("{jobs:?}") };
    assert_eq!((jobs.len(), end.outcome), (1, Outcome::DraftPr), "{}", end.operator);
    let pull = outside.forge.pulls(&outside.repo).remove(0);
    let (head, _) = pull.body.split_once("### Changed files").expect("it has files");
    assert!(head.contains(words), "{}", pull.body);
    assert!(pull.body.contains(&format!(": {name}")), "{}", pull.body);
    assert!(!pull.body.contains("fresh sandbox"), "{}", pull.body);
    // The tests ran, and told the difference.
    assert!(pull.body.contains("| exit 0"), "{}", pull.body);
    assert!(!pull.body.contains(&outside.data().display().to_string()), "{}", pull.body);
    let comments = outside.forge.comments(&outside.repo, issue);
    assert!(comments.iter().all(|comment| comment.body.contains(words)), "{comments:?}");
    assert!(!comments.is_empty());
    let (status, text) = health(outside).await;
    assert!(status == 200 && text.contains(&format!("sandbox: {name}")), "{status} {text}");
    assert!(text.contains(banner), "{text}");
    let log = std::fs::read_to_string(outside.log()).expect("it was logged");
    assert!(log.contains(banner) && log.contains("gap: "), "{log}");
}

async fn stop(mut service: Child, outside: &Outside) {
    send(&service, Signal::SIGTERM);
    assert!(service.wait().await.expect("it is ours").success());
    outside.assert_nothing_is_left("unittest discover", "at the end");
}

/// The service without a sandbox, by a user who is not root.
fn unsandboxed(outside: &Outside, accepted: Option<&str>) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(outside.log());
    let log = log.expect("the temp folder can be written");
    let binary = copy_of_hyla(outside.folder.path());
    let mut command = match is_root() {
        true => {
            let uid = user(0);
            hand_over(outside.folder.path(), uid);
            let mut command = Command::new("setpriv");
            command.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
            command.arg("--clear-groups").arg(&binary);
            command
        }
        false => Command::new(&binary),
    };
    command.args(["serve", "--config", &outside.file]).env_clear();
    if let Some(value) = accepted {
        command.env("HYLA_I_ACCEPT_UNSANDBOXED_AGENT", value);
    }
    command.stdin(Stdio::null()).stderr(log).kill_on_drop(true).spawn().expect("it starts")
}

/// Gives a folder with all that is in it to a user.
fn hand_over(path: &Path, uid: u32) {
    lchown(path, Some(uid), Some(uid)).expect("it is ours");
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        hand_over(&entry.path(), uid);
    }
}

#[tokio::test]
async fn t37_no_sandbox_refuses_until_it_is_accepted_and_says_so_from_then_on() {
    let settings = "[sandbox]\nbackend = \"none\"\n[queue]\nsettle = \"100ms\"\n";
    let outside = Outside::start(demo_recording(), settings).await;
    for accepted in [None, Some("yes")] {
        let mut refusing = unsandboxed(&outside, accepted);
        outside.listens().await;
        let (status, text) = health(&outside).await;
        assert!(status == 503 && text.contains("HYLA_I_ACCEPT_UNSANDBOXED_AGENT=1"), "{text}");
        send(&refusing, Signal::SIGTERM);
        assert!(refusing.wait().await.expect("it is ours").success());
    }
    let service = unsandboxed(&outside, Some("1"));
    outside.is_heard().await;
    says_everywhere_what_it_is(&outside, "none", "NO SANDBOX", "made without a sandbox").await;
    stop(service, &outside).await;
}

#[tokio::test]
async fn t37_no_sandbox_never_runs_as_root() {
    if !is_root() {
        return;
    }
    let outside = Outside::start(demo_recording(), "[sandbox]\nbackend = \"none\"\n").await;
    let mut command = outside.command();
    let mut service =
        command.env("HYLA_I_ACCEPT_UNSANDBOXED_AGENT", "1").spawn().expect("it starts");
    outside.listens().await;
    let (status, text) = health(&outside).await;
    assert!(status == 503 && text.contains("never run as root"), "{status} {text}");
    send(&service, Signal::SIGTERM);
    assert!(service.wait().await.expect("it is ours").success());
}

#[tokio::test]
async fn t39_a_degraded_sandbox_refuses_until_it_is_accepted_and_says_so_from_then_on() {
    let uid = user(1);
    let settings = |is_allowed: bool| {
        format!(
            "[sandbox]\nbackend = \"landlock-degraded\"\nallow_degraded = {is_allowed}\nuid = {uid}\ngid = {uid}\n[queue]\nsettle = \"100ms\"\n"
        )
    };
    let outside = Outside::start(demo_recording(), &settings(false)).await;
    let mut refusing = outside.serve_logged();
    outside.listens().await;
    let (status, text) = health(&outside).await;
    assert!(status == 503 && text.contains("`sandbox.allow_degraded = true`"), "{status} {text}");
    send(&refusing, Signal::SIGTERM);
    assert!(refusing.wait().await.expect("it is ours").success());

    let text = std::fs::read_to_string(&outside.file).expect("it is ours");
    let text = text.replace("allow_degraded = false", "allow_degraded = true");
    std::fs::write(&outside.file, text).expect("it is ours");
    let service = outside.serve_logged();
    outside.is_heard().await;
    let (status, text) = health(&outside).await;
    if status == 503 {
        eprintln!("no degraded sandbox here, and so no draft: {text}");
        assert!(text.contains("root") || text.contains("Landlock"), "{text}");
        return;
    }
    let (name, words) = ("landlock-degraded (Landlock ABI ", "made in a degraded sandbox");
    says_everywhere_what_it_is(&outside, name, "DEGRADED SANDBOX", words).await;
    stop(service, &outside).await;
}
