//! Histories in, words out.

use std::collections::BTreeMap;

use super::*;
use crate::job::{Failure, Job, JobId, NoFix, Rule, Stage, State};
use crate::store::{Delivered, Heard, Row, Step, Stepped};

fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
}

fn forge(url: &str, repositories: &[&str]) -> config::Forge {
    let forge = serde_json::json!({
        "kind": "gitea",
        "url": url,
        "token": { "file": "/t" },
        "webhook_secrets": [],
        "repositories": repositories,
    });
    serde_json::from_value(forge).unwrap()
}

fn subject() -> Subject {
    "main:acme/app#7".parse().unwrap()
}

fn nothing() -> History {
    History::nothing(subject())
}

fn delivered(id: &str, second: i64, job: Option<i64>, note: Option<&str>) -> Delivered {
    Delivered {
        forge: "main".into(),
        id: id.into(),
        event: "issue_label".into(),
        at: at(second),
        job: job.map(JobId),
        note: note.map(str::to_owned),
        has_label: None,
    }
}

fn row(id: i64, state: State) -> Row {
    let row = Row::example(id, state);
    let job = Job {
        key: Some("main:acme/app#7@label:5".into()),
        ask_number: Some(1),
        asked_by: Some("ann".into()),
        ..row.job
    };
    Row { job, updated_at: at(50), ..row }
}

fn story(job: i64, steps: Vec<(i64, Step)>) -> Vec<Stepped> {
    let number =
        |(number, (second, step))| Stepped { job: JobId(job), number, at: at(second), step };
    (1..).zip(steps).map(number).collect()
}

fn drafted() -> History {
    let pull = crate::forge::Pull {
        number: 12,
        link: "https://git.example.org/acme/app/pulls/12".into(),
        author: 9,
        is_open: true,
        is_draft: true,
        is_merged: false,
        title: "WIP: x".into(),
        head: "hyla/issue-7-1".into(),
        is_from_here: true,
        head_commit: None,
    };
    let own = crate::job::CommitId("1".repeat(40));
    let end = crate::reply::opened(&pull, "WIP:", &own);
    let key = "main:acme/app#7@label:5";
    let mut row = row(3, State::Ended { end: end.clone() });
    row.job.pull = Some(12);
    History {
        deliveries: vec![
            Delivered { has_label: Some(false), ..delivered("d1", 0, None, Some("\u{1b}[31mno")) },
            Delivered { has_label: Some(true), ..delivered("d2", 1, Some(3), None) },
        ],
        steps: story(
            3,
            vec![
                (1, Step::Queued),
                (2, Step::Claimed { attempt: 1, worker: "77-1".into() }),
                (
                    3,
                    Step::Identified {
                        key: key.into(),
                        ask_number: 1,
                        asked_by: Some("ann".into()),
                    },
                ),
                (4, Step::Entered { stage: Stage::Checkout }),
                (5, Step::Waits { why: "the forge is down".into(), due: at(35) }),
                (35, Step::Claimed { attempt: 1, worker: "77-1".into() }),
                (99, Step::TakenOver { attempt: 2, worker: "99-1".into() }),
                (100, Step::Entered { stage: Stage::Session }),
                (101, Step::Parked),
                (102, Step::Retried { why: "the model is down".into(), due: at(132) }),
                (140, Step::Owed { end: end.clone(), why: "down".into(), due: at(150) }),
                (150, Step::Ended { end }),
            ],
        ),
        jobs: vec![row],
        ..nothing()
    }
}

fn told(history: &History) -> String {
    text(&explain(history, &forge("https://git.example.org", &["acme/app"]), at(60)))
}

#[test]
fn a_draft_is_explained_with_all_that_led_to_it() {
    insta::assert_snapshot!(told(&drafted()));
}

#[test]
fn every_standing_says_why_and_what_to_do_next() {
    let end = |end| State::Ended { end };
    let with = |row: Row| History { jobs: vec![row], ..nothing() };
    let mut waiting = row(3, State::Queued);
    waiting.last_error = Some("cannot read issue 7: the forge answered 503".into());
    waiting.due_at = at(90);
    let mut forgotten = row(3, State::Queued);
    forgotten.job.key = None;
    forgotten.due_at = at(-500);
    let running = |until| {
        let row = row(3, State::Running { stage: Stage::Session });
        Row { held_until: Some(until), ..row }
    };
    let mut untold = row(3, State::Queued);
    untold.job.untold = Some(crate::reply::no_fix(NoFix::Budget));
    untold.last_error = Some("the forge is down".into());
    let dropped =
        |why: &str| story(4, vec![(2, Step::Queued), (3, Step::Dropped { why: why.into() })]);
    let looked = History { steps: dropped("the issue is closed"), ..nothing() };
    let later = History { steps: dropped("the issue is closed"), ..drafted() };
    let ignored = |notes: &[&str]| {
        let note = |(n, note): (usize, &&str)| delivered(&format!("d{n}"), 1, None, Some(note));
        History { deliveries: notes.iter().enumerate().map(note).collect(), ..nothing() }
    };
    let heard = |forge, repository| History { heard: Heard { forge, repository }, ..nothing() };
    let refused = crate::reply::refused(Rule::AdderCannotWrite, "user 5 has read access");
    let cases = [
        ("running", with(running(at(90)))),
        ("broken off", with(running(at(20)))),
        ("waiting", with(waiting)),
        ("taken by nobody", with(forgotten)),
        ("untold", with(untold)),
        ("no fix", with(row(3, end(crate::reply::no_fix(NoFix::NoChange))))),
        ("refused", with(row(3, end(refused)))),
        ("failed", with(row(3, end(crate::reply::failed(Failure::ModelDown, "no answer".into()))))),
        ("cancelled", with(row(3, end(crate::reply::cancelled())))),
        ("looked", looked),
        ("looked again after a draft", later),
        ("ignored", ignored(&["this change alone asks for nothing"])),
        ("ignored twice", ignored(&["a", "it is about a pull request"])),
        ("unheard, others of the repository", heard(Some(at(9)), Some(at(8)))),
        ("unheard, others of the forge", heard(Some(at(9)), None)),
        ("unheard at all", nothing()),
    ];
    let mut out = String::new();
    for (name, history) in cases {
        let standing =
            explain(&history, &forge("https://git.example.org", &["acme/app"]), at(60)).standing;
        out.push_str(&format!(
            "{name}: {} {}\n  {}\n  {}\n",
            standing.state, standing.acted, standing.sentence, standing.next
        ));
    }
    let elsewhere = forge("https://git.example.org", &["acme/other"]);
    let standing = explain(&nothing(), &elsewhere, at(60)).standing;
    out.push_str(&format!(
        "not allowed: {}\n  {}\n  {}\n",
        standing.state, standing.sentence, standing.next
    ));
    insta::assert_snapshot!(out);
}

#[test]
fn what_is_left_out_is_said_and_old_jobs_have_a_beginning_and_an_end() {
    let mut history = drafted();
    history.n_older_deliveries = 5;
    history.steps.remove(5);
    history.jobs.insert(0, row(1, State::Ended { end: crate::reply::no_fix(NoFix::NoChange) }));
    let shown = told(&history);
    for words in [
        "… 5 older deliveries and steps are not shown",
        "… 1 steps of job 3 were not kept",
        "job 1 is queued",
        "job 1 ended as no_fix(no_change)",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(!shown.contains('\u{1b}'), "{shown}");
    let json = json(&explain(&history, &forge("https://git.example.org", &["acme/app"]), at(60)));
    assert_eq!((&json["state"], &json["acted"]), (&"draft_pr".into(), &true.into()));
    let kinds: Vec<&str> = json["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|each| each["kind"].as_str().unwrap())
        .collect();
    assert!(kinds.contains(&"delivery") && kinds.contains(&"taken_over"), "{kinds:?}");
    assert_eq!(json["timeline"][0]["at"], "2027-01-15T08:00:00.000000Z");
}

#[test]
fn an_issue_is_found_as_people_write_or_paste_it() {
    let one =
        BTreeMap::from([("main".to_owned(), forge("https://git.example.org/sub/", &["acme/app"]))]);
    let two = BTreeMap::from([
        ("main".to_owned(), forge("https://git.example.org", &["acme/app", "acme/both"])),
        ("other".to_owned(), forge("https://code.example.org", &["Acme/Lib", "acme/both"])),
    ]);
    for (text, forges, expected) in [
        ("main:acme/app#7", &one, Ok("main:acme/app#7")),
        ("acme/app#7", &one, Ok("main:acme/app#7")),
        ("acme/unknown#7", &one, Ok("main:acme/unknown#7")),
        ("acme/lib#7", &two, Ok("other:acme/lib#7")),
        ("https://git.example.org/sub/acme/app/issues/7", &one, Ok("main:acme/app#7")),
        (
            "https://GIT.example.org/sub/acme/app/issues/7/#issuecomment-3",
            &one,
            Ok("main:acme/app#7"),
        ),
        ("https://code.example.org/acme/lib/pulls/7?x=1", &two, Ok("other:acme/lib#7")),
        ("acme/both#7", &two, Err("say on which forge: `main:acme/both#…` or `other:acme/both#…`")),
        ("acme/none#7", &two, Err("say on which forge")),
        (
            "nope:acme/app#7",
            &two,
            Err("no forge is called `nope`; the configuration has `main`, `other`"),
        ),
        (
            "https://git.example.org/acme/app/issues/7",
            &one,
            Err("https://git.example.org/sub/OWNER/REPO/issues/NUMBER"),
        ),
        ("https://git.example.org.evil/acme/app/issues/7", &two, Err("an issue's link is written")),
        ("https://git.example.org/acme/app/issues/0", &two, Err("an issue's link is written")),
        ("acme/app", &one, Err("or is its link on the forge")),
        ("acme/app#0", &one, Err("the first issue of a repository is #1")),
        ("acme/app#x", &one, Err("an issue is written")),
        ("../app#1", &one, Err("an issue is written")),
        ("é://é", &one, Err("an issue is written")),
        ("http://é", &one, Err("an issue's link is written")),
        ("", &one, Err("an issue is written")),
    ] {
        match (find(text, forges), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found.to_string(), expected, "{text}"),
            (Err(error), Err(words)) => assert!(error.contains(words), "{text}: {error}"),
            (found, _) => panic!("{text}: {found:?}"),
        }
    }
}
