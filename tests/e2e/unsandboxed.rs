//! A machine whose sandbox does not hold: no agent runs, no webhook is lost, and everybody who asks is told why.

use bot::job::{Outcome, State};
use nix::sys::signal::Signal;
use tests::house::demo_recording;
use tests::outside::{Outside, send, until};

#[tokio::test]
async fn without_a_sandbox_webhooks_are_kept_and_no_agent_runs_until_there_is_one() {
    let missing = "[sandbox]\nbwrap = \"/usr/bin/no-such-bwrap\"\n[queue]\nsettle = \"100ms\"\n";
    let outside = Outside::start(demo_recording(), missing).await;
    let mut first = outside.serve_logged();
    outside.is_heard().await;
    let issue = outside.open_issue(&["hyla"]).await;
    let health = async || {
        let answer = reqwest::get(format!("http://{}/healthz", outside.address)).await;
        let answer = answer.expect("the service answers");
        (answer.status().as_u16(), answer.text().await.expect("it has a body"))
    };
    let (status, words) = health().await;
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
    let (status, words) = health().await;
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
