//! The bot with its model in the same process: tiny models, the real engine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bot::job::{NoFix, Outcome};
use bot::model::local::Local;
use bot::model::{Error, Model};
use engine::{Message, Piece, Request, Sampling, Stop};
use tests::house::{House, Setup, demo_folder, hyla_binary};
use tests::model::PATIENCE;
use tests::tiny::{self, Script};
use tokio::process::Command;

const TALKER: Script<'_> = &["Nothing is wrong.", "</think>", "All is well.", "<|im_end|>"];
/// It never comes to an end.
const THINKER: Script<'_> = &["hm", "hm"];

fn model(thinking: Script<'_>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny::scripted(folder.path(), thinking, &["Yes.", "<|im_end|>"]);
    folder
}

fn settings(folder: &Path) -> config::Local {
    config::Local {
        folder: Some(folder.to_owned()),
        threads: 1,
        sessions: 1,
        ..config::Local::default()
    }
}

fn local(folder: &Path) -> Local {
    Local::new(folder.to_owned(), &settings(folder), 8192)
}

fn request(sampling: Sampling) -> Request {
    let messages = vec![Message::User { content: "hello".into() }];
    Request { messages, tools: Vec::new(), sampling }
}

#[tokio::test]
async fn a_turn_arrives_in_pieces_and_whole() {
    let folder = model(TALKER);
    let model = local(folder.path());
    let mut pieces = Vec::new();
    let reply =
        model.turn(&request(Sampling::default()), &mut |piece| pieces.push(piece)).await.unwrap();
    assert_eq!(
        (reply.reasoning.as_str(), reply.content.as_str()),
        ("Nothing is wrong.", "All is well.")
    );
    assert_eq!(reply.stop, Stop::End);
    let text =
        |reply: &str| vec![Piece::Reasoning("Nothing is wrong.".into()), Piece::Text(reply.into())];
    assert_eq!(pieces, text("All is well."));
    assert!(reply.usage.unwrap().prompt_tokens > 5);
}

#[tokio::test]
async fn a_turn_that_nobody_waits_for_is_cancelled_and_the_runtime_goes_on() {
    let folder = model(THINKER);
    let model = local(folder.path());
    model.prepare().await.unwrap();
    let endless = Sampling { max_tokens: u32::MAX, ..Sampling::default() };
    // There is one place and one thread of this runtime: both are free again after each.
    for _ in 0..3 {
        let request = request(endless.clone());
        let mut nobody = |_| {};
        let turn = model.turn(&request, &mut nobody);
        assert!(tokio::time::timeout(Duration::from_millis(100), turn).await.is_err());
    }
    let short = request(Sampling { max_tokens: 3, ..Sampling::default() });
    let mut nobody = |_| {};
    let turn = model.turn(&short, &mut nobody);
    let reply = tokio::time::timeout(PATIENCE, turn).await.unwrap().unwrap();
    assert_eq!((reply.reasoning.as_str(), reply.stop), ("hmhmhm", Stop::Length));
}

#[tokio::test]
async fn what_is_wrong_has_a_name() {
    let folder = model(TALKER);
    let long = Request {
        messages: vec![Message::User { content: "x ".repeat(20_000) }],
        ..request(Sampling::default())
    };
    let error = local(folder.path()).turn(&long, &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, Error::ContextFull { .. }), "{error}");
    assert_eq!(local(folder.path()).context_window().await.unwrap(), Some(1 << 20));
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    for error in [
        local(folder.path()).context_window().await.unwrap_err(),
        local(folder.path()).prepare().await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Load { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_job_is_worked_on_without_a_server() {
    for (script, expected) in [(TALKER, NoFix::NoChange), (THINKER, NoFix::Budget)] {
        let folder = model(script);
        let local = settings(folder.path());
        let change = move |config: &mut config::Config| {
            config.model.kind = config::ModelKind::Local;
            config.model.local = local;
            config.session.turn_tokens = 200;
        };
        let house = House::start(Setup { change: Box::new(change), ..Setup::default() }).await;
        house.labelled_and_worked().await;
        assert_eq!(house.end().await.outcome, Outcome::NoFix(expected));
        assert_eq!(house.model.requests().len(), 0);
        let mut lines = Vec::new();
        let mut show = |line: bot::doctor::Line| lines.push(line);
        let needed = house.bot.config.session.context_tokens;
        bot::doctor::model(house.bot.workshop.model.as_ref(), needed, &mut show).await;
        assert!(bot::doctor::is_sound(&lines), "{}", bot::doctor::text(&lines[0]));
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn fix_takes_a_models_folder() {
    let good = model(TALKER);
    let empty = tempfile::tempdir().unwrap();
    let repo = tempfile::tempdir().unwrap();
    std::fs::write(repo.path().join("a.txt"), "a\n").unwrap();
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "first"]] {
        let git = std::process::Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@t"])
            .args(arguments)
            .current_dir(repo.path())
            .status();
        assert!(git.unwrap().success());
    }
    for (folder, code, words) in [(&good, 3, "All is well."), (&empty, 1, "chat_template.jinja")] {
        let ran = Command::new(hyla_binary())
            .args(["fix", "--repo"])
            .arg(repo.path())
            .arg("--issue")
            .arg(demo_folder().join("issue.md"))
            .arg("--model-dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let ran = tokio::time::timeout(PATIENCE, ran).await.unwrap().unwrap();
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(code), "{told}");
        assert!(told.contains(words), "{words}: {told}");
    }
}
