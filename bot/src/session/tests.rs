//! The loop with a model and tools that a test writes down.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use engine::{Message, Piece, Reply, Request, Stop, ToolCall, Usage};

use super::{Budgets, Ended, Error, Parts, Profile, Reason, Record, Tools, Transcript};
use crate::clock::System;
use crate::model::{self, Model};
use crate::redact::Redactor;
use crate::sandbox::SetupError;

struct Script {
    turns: Mutex<VecDeque<Result<Reply, model::Error>>>,
    seen: Mutex<Vec<Request>>,
}

#[async_trait]
impl Model for Script {
    async fn turn(
        &self,
        request: &Request,
        _: &mut (dyn FnMut(Piece) + Send),
    ) -> Result<Reply, model::Error> {
        self.seen.lock().unwrap().push(request.clone());
        let next = self.turns.lock().unwrap().pop_front();
        match next {
            Some(turn) => turn,
            None => std::future::pending().await,
        }
    }

    async fn context_window(&self) -> Result<Option<u64>, model::Error> {
        Ok(None)
    }

    fn name(&self) -> &str {
        "script"
    }
}

/// Tools that answer with their own name, or fail.
struct Echo {
    is_broken: bool,
}

#[async_trait]
impl Tools for Echo {
    async fn call(&self, name: &str, arguments: &str) -> Result<String, SetupError> {
        if self.is_broken {
            return Err(SetupError::StillAlive { reason: "on purpose".into() });
        }
        Ok(format!("{name}({arguments})"))
    }
}

fn reply(calls: &[&str], stop: Stop, tokens: u64) -> Result<Reply, model::Error> {
    let call = |(at, name): (usize, &&str)| ToolCall {
        id: format!("c{at}"),
        name: (*name).into(),
        arguments: "{}".into(),
    };
    Ok(Reply {
        content: "words".into(),
        reasoning: "thoughts".into(),
        calls: calls.iter().enumerate().map(call).collect(),
        stop,
        usage: (tokens > 0).then_some(Usage { prompt_tokens: tokens, completion_tokens: 0 }),
    })
}

struct Ran {
    ended: Result<Ended, Error>,
    seen: Vec<Request>,
    records: Vec<Record>,
    text: String,
}

async fn session(
    turns: Vec<Result<Reply, model::Error>>,
    tools: impl Tools,
    settings: config::Session,
) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.jsonl");
    let model = Script { turns: Mutex::new(turns.into()), seen: Mutex::default() };
    let profile = Profile::built_in();
    let parts = Parts { model: &model, tools: &tools, profile: &profile, clock: &System };
    let secret = "Read({})".into();
    let redactor = Redactor::new(&[&secret]);
    let mut watch = |_: &Record| {};
    let mut transcript = Transcript::open(&file, &redactor, &mut watch).unwrap();
    let ended = super::run(&parts, "the task", &Budgets::from(&settings), &mut transcript).await;
    let text = std::fs::read_to_string(&file).unwrap();
    let records = super::read(&file).unwrap();
    Ran { ended, seen: model.seen.into_inner().unwrap(), records, text }
}

fn settings() -> config::Session {
    config::Session::default()
}

#[tokio::test]
async fn calls_run_in_order_and_a_turn_without_one_ends_the_session() {
    let turns = vec![reply(&["Read", "Glob"], Stop::End, 10), reply(&[], Stop::End, 20)];
    let ran = session(turns, Echo { is_broken: false }, settings()).await;
    let ended = ran.ended.unwrap();
    assert_eq!((ended.reason, ended.turns, ended.calls), (Reason::Finished, 2, 2));
    assert_eq!((ended.final_text.as_str(), ended.context_tokens), ("words", Some(20)));

    assert_eq!(ran.seen[0].messages.len(), 2);
    let Message::User { content } = &ran.seen[0].messages[1] else { panic!() };
    assert_eq!(content, "the task");
    let Message::Assistant { reasoning, .. } = &ran.seen[1].messages[2] else { panic!() };
    assert_eq!(reasoning, "thoughts", "reasoning is sent back");
    let observations: Vec<_> = ran.seen[1].messages[3..]
        .iter()
        .map(|message| match message {
            Message::Tool { call_id, content } => (call_id.as_str(), content.as_str()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(observations, [("c0", "Read({})"), ("c1", "Glob({})")]);

    assert_eq!(ran.records.len(), 6);
    assert!(!ran.text.contains("Read({})") && ran.text.contains("[secret]"), "{}", ran.text);
}

#[tokio::test]
async fn every_budget_ends_the_session_by_its_name() {
    let call = || reply(&["Read"], Stop::End, 0);
    let short = Duration::from_millis(20);
    let full = || Err(model::Error::ContextFull { message: "too long".into() });
    let cases = vec![
        ("cut", vec![reply(&["Write"], Stop::Length, 10)], settings(), Reason::TurnCut, 0),
        (
            "turns",
            vec![call(), call(), call()],
            config::Session { turns: 2, ..settings() },
            Reason::Turns,
            2,
        ),
        ("counted", vec![reply(&["Read"], Stop::End, 131_072)], settings(), Reason::Context, 1),
        (
            "guessed",
            vec![call()],
            config::Session { context_tokens: 50, turn_tokens: 10, ..settings() },
            Reason::Context,
            1,
        ),
        ("told", vec![call(), full()], settings(), Reason::Context, 1),
        ("time", vec![call()], config::Session { wall_time: short, ..settings() }, Reason::Time, 1),
    ];
    for (name, turns, settings, reason, calls) in cases {
        let ran = session(turns, Echo { is_broken: false }, settings).await;
        let ended = ran.ended.unwrap();
        assert_eq!((ended.reason, ended.calls), (reason, calls), "{name}");
        assert!(
            matches!(ran.records.last(), Some(Record::End { reason: last, .. }) if *last == reason),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_turn_whose_call_is_broken_is_not_the_end_of_the_work() {
    let says = |content: &str| {
        let mut turn = reply(&[], Stop::End, 10).unwrap();
        turn.content = content.into();
        Ok(turn)
    };
    for (content, reason) in [
        (
            "Let me write.\n\n<tool_call>\n<function=Write>\n<parameter=content>\nx",
            Reason::BrokenCall,
        ),
        ("<function=Write>\n<parameter=content>\nx", Reason::BrokenCall),
        ("The mark `<tool_call>` is read.", Reason::Finished),
    ] {
        let turns = vec![reply(&["Read"], Stop::End, 10), says(content)];
        let ran = session(turns, Echo { is_broken: false }, settings()).await;
        let ended = ran.ended.unwrap();
        assert_eq!((ended.reason, ended.calls), (reason, 1), "{content}");
    }
}

/// Tools whose answers run out of a list; the last one stays.
struct Answers(Mutex<Vec<&'static str>>);

#[async_trait]
impl Tools for Answers {
    async fn call(&self, _: &str, _: &str) -> Result<String, SetupError> {
        let mut answers = self.0.lock().unwrap();
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
        Ok(answer.to_owned())
    }
}

fn contents(request: &Request) -> Vec<String> {
    let tools = request.messages.iter().filter_map(|message| match message {
        Message::Tool { content, .. } => Some(content.clone()),
        Message::System { .. } | Message::User { .. } | Message::Assistant { .. } => None,
    });
    tools.collect()
}

#[tokio::test]
async fn a_model_that_goes_round_in_circles_is_told_once_and_then_ended() {
    let same = || (0..20).map(|_| reply(&["Read"], Stop::End, 10)).collect::<Vec<_>>();
    let ran = session(same(), Echo { is_broken: false }, settings()).await;
    let ended = ran.ended.unwrap();
    assert_eq!((ended.reason, ended.turns, ended.calls), (Reason::Repeated, 8, 8));
    let seen = contents(ran.seen.last().unwrap());
    let told: Vec<_> = (1..).zip(&seen).filter(|(_, text)| text.contains("[notice:")).collect();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].0, 4, "the fourth answer says so: {seen:?}");
    assert_eq!(ran.text.matches("[notice:").count(), 1, "the transcript keeps it");
    assert!(matches!(ran.records.last(), Some(Record::End { reason: Reason::Repeated, .. })));

    // Several calls in one turn: it is told before it is ended.
    let many = vec!["Glob"; 30];
    let turns = vec![reply(&many, Stop::End, 10), reply(&[], Stop::End, 10)];
    let ran = session(turns, Echo { is_broken: false }, settings()).await;
    assert_eq!(ran.ended.unwrap().reason, Reason::Finished);
    assert!(contents(&ran.seen[1])[29].contains("[notice:"));

    // Two calls by turns.
    let pairs = (0..20).map(|at| reply(&[["Read", "Glob"][at % 2]], Stop::End, 10)).collect();
    let ran = session(pairs, Echo { is_broken: false }, settings()).await;
    assert_eq!(ran.ended.unwrap().turns, 12);
}

#[tokio::test]
async fn a_model_that_goes_another_way_after_the_notice_goes_on() {
    let mut turns: Vec<_> = (0..4).map(|_| reply(&["Read"], Stop::End, 10)).collect();
    turns.extend([reply(&["Edit"], Stop::End, 10), reply(&[], Stop::End, 10)]);
    let ran = session(turns, Echo { is_broken: false }, settings()).await;
    let ended = ran.ended.unwrap();
    assert_eq!((ended.reason, ended.turns), (Reason::Finished, 6));
}

#[tokio::test]
async fn whoever_waits_for_something_is_in_no_circle() {
    let mut turns: Vec<_> = (0..12).map(|_| reply(&["Bash"], Stop::End, 10)).collect();
    turns.push(reply(&[], Stop::End, 10));
    let answers =
        ["1 %", "7 %", "9 %", "20 %", "31 %", "40 %", "55 %", "60 %", "75 %", "80 %", "99 %"];
    let answers = answers.into_iter().chain(["done"]).collect();
    let ran = session(turns, Answers(Mutex::new(answers)), settings()).await;
    assert_eq!(ran.ended.unwrap().reason, Reason::Finished);
    assert!(!ran.text.contains("[notice:"), "{}", ran.text);
}

#[tokio::test]
async fn a_failing_sandbox_or_model_ends_the_session_as_an_error() {
    let ran =
        session(vec![reply(&["Bash"], Stop::End, 10)], Echo { is_broken: true }, settings()).await;
    assert!(matches!(ran.ended, Err(Error::Sandbox(_))));
    assert_eq!(ran.seen.len(), 1, "the model is not told");
    let silent = model::Error::Answer { endpoint: "x".into(), reason: "y".into() };
    let ran = session(vec![Err(silent)], Echo { is_broken: false }, settings()).await;
    assert!(matches!(ran.ended, Err(Error::Model(_))));
}

#[test]
fn a_torn_line_is_left_out_and_the_next_session_starts_on_its_own_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.jsonl");
    let notice = Record::Notice { text: "a\u{1b}[31mb".into() };
    std::fs::write(
        &file,
        format!("{}\n{{\"kind\":\"noti", serde_json::to_string(&notice).unwrap()),
    )
    .unwrap();
    let redactor = Redactor::default();
    let mut watch = |_: &Record| {};
    Transcript::open(&file, &redactor, &mut watch).unwrap().append(&notice).unwrap();
    assert_eq!(super::read(&file).unwrap(), [notice.clone(), notice.clone()]);
    assert_eq!(notice.to_string(), "── a\\u{1b}[31mb ──\n");
}
