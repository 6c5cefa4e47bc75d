//! What people read when something fails: every job ends in a named state, with a sentence and what to do next.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bot::clock::Clock;
use bot::job::{Failure, NoFix, Outcome, State};
use bot::worker::{Stop, Verdict, Work};
use tests::forge::{Fault, Matcher};
use tests::house::{House, Identity, Place, Setup};
use tests::model::{Call, Fault as ModelFault, Recording, Turn};

/// A repository without tests and a model that changes one file: the shortest way through every stage.
fn short() -> Setup {
    short_at(Place::GITEA)
}

fn short_at(place: Place) -> Setup {
    let call = Call {
        name: "Write".into(),
        arguments: r#"{"file_path": "a.txt", "content": "better\n"}"#.into(),
    };
    let turns = vec![Turn { calls: vec![call], ..Turn::default() }];
    Setup {
        recording: Recording { turns, ..Recording::default() },
        files: [("a.txt", "good\n"), ("README.md", "a\n")].into(),
        change: Box::new(|config| {
            config.queue.attempts = 2;
            config.queue.forge_patience = Duration::from_secs(120);
            for forge in config.forges.values_mut() {
                forge.timeout = Duration::from_millis(400);
            }
        }),
        ..place.setup()
    }
}

fn model(turns: Vec<Turn>) -> Setup {
    Setup {
        recording: Recording { turns, ..Recording::default() },
        change: Box::new(|config| {
            config.model.idle_timeout = Duration::from_millis(400);
            config.queue.attempts = 2;
        }),
        ..short()
    }
}

fn fault(fault: ModelFault) -> Turn {
    Turn { fault: Some(fault), ..Turn::default() }
}

/// A call: what it is for, its method, its path.
type Asked = (&'static str, &'static str, String);

/// The calls that the bot makes in one job, in order, as the forge sees them.
fn calls(place: Place) -> Vec<Asked> {
    let is_github = place.dialect.is_github();
    let api = |name, method, rest: &str| (name, method, format!("{}/{rest}", place.dialect.api()));
    let ours = |name, method, rest: &str| api(name, method, &format!("repos/acme/hours{rest}"));
    let git = |name, method, rest: &str| (name, method, format!("/acme/hours.git/{rest}"));
    let who = match place.identity {
        Identity::User => vec![api("who am I", "GET", "user")],
        Identity::App => vec![
            api("who am I", "GET", "app"),
            api("read the app's user", "GET", "users/hyla*"),
            ours("find the installation", "GET", "/installation"),
            api("mint a token", "POST", "app/installations/*/access_tokens"),
        ],
    };
    let branch = if is_github { "/git/ref/heads/hyla*" } else { "/branches/hyla*" };
    let pulls = if is_github { "/pulls" } else { "/pulls/main/*" };
    let rest = [
        ours("read the issue", "GET", "/issues/1"),
        ours("read the timeline", "GET", "/issues/1/timeline"),
        ours("ask for a permission", "GET", "/collaborators/*/permission"),
        ours("react", "POST", "/issues/1/reactions"),
        ours("read the repository", "GET", ""),
        ours("read the comments", "GET", "/issues/1/comments"),
        ours("write the comment", "POST", "/issues/1/comments"),
        ours("edit the comment", "PATCH", "/issues/comments/*"),
        git("fetch", "*", "git-upload-pack"),
        ours("look for a branch", "GET", branch),
        ours("look for a pull request", "GET", pulls),
        git("find the push address", "GET", "info/refs"),
        git("push", "POST", "git-receive-pack"),
        ours("open the draft", "POST", "/pulls"),
    ];
    who.into_iter().chain(rest).collect()
}

/// One job with one call failing for longer than anybody waits, and then no longer. Returns the job's end in one line.
async fn ended(place: Place, call: &Asked, status: u16) -> String {
    let house = House::start(short_at(place)).await;
    let issue = house.open_issue().await;
    let message = "words of the forge";
    let fault =
        if status < 500 { Fault::status(status, message) } else { Fault::down(status, message) };
    house.forge.fault(Matcher::new(call.1, &call.2), fault, usize::MAX);
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work_for(Duration::from_secs(3600)).await;
    house.forge.clear_faults();
    house.work_through_retries().await;
    let jobs = house.jobs().await;
    let line = match jobs.first() {
        None => "no job".to_owned(),
        Some(_) => {
            let end = house.end().await;
            assert!(!end.person.is_empty() && !end.next.is_empty() && !end.operator.is_empty());
            assert!(house.forge.pulls(&house.repo).len() <= 1);
            let comments = house.status_comments(issue).join("\n=====\n");
            assert!(!comments.contains("====="), "{comments}");
            // What no wait and no renewed token mends is not tried for ever.
            let is_mute = call.0.ends_with("comment") || call.0.ends_with("comments");
            if jobs[0].job.key.is_some() && !(is_mute && matches!(status, 403..500)) {
                assert!(
                    comments.contains(&end.person) && comments.contains(&end.next),
                    "{comments}"
                );
            }
            format!("{} | {}", end.outcome, end.operator)
        }
    };
    house.assert_clean().await;
    line
}

/// What becomes of a job at each call that is refused, in one line each.
async fn refusals(place: Place) -> String {
    // GitHub has no word for a conflict but this one.
    let conflict = if place.dialect.is_github() { 422 } else { 409 };
    let mut lines = Vec::new();
    for status in [401, 403, 404, conflict] {
        for call in &calls(place) {
            lines.push(format!("{status} {}: {}", call.0, ended(place, call, status).await));
        }
    }
    lines.join("\n")
}

#[tokio::test]
async fn every_refusal_of_the_forge_ends_in_a_named_state() {
    let lines = refusals(Place::GITEA).await;
    insta::with_settings!({ filters => tests::house::filters() }, {
        insta::assert_snapshot!(lines);
    });
}

#[tokio::test]
async fn every_refusal_of_forgejo_ends_in_a_named_state() {
    let lines = refusals(Place::FORGEJO).await;
    insta::with_settings!({ filters => tests::house::filters() }, {
        insta::assert_snapshot!("every_refusal_of_the_forge_ends_in_a_named_state", lines);
    });
}

#[tokio::test]
async fn every_refusal_of_github_to_an_app_ends_in_a_named_state() {
    let lines = refusals(Place::GITHUB_APP).await;
    insta::with_settings!({ filters => tests::house::filters() }, {
        insta::assert_snapshot!(lines);
    });
}

#[tokio::test]
async fn every_refusal_of_github_to_a_user_ends_in_a_named_state() {
    let lines = refusals(Place::GITHUB_USER).await;
    insta::with_settings!({ filters => tests::house::filters() }, {
        insta::assert_snapshot!(lines);
    });
}

#[tokio::test]
async fn a_forge_that_is_down_is_asked_again_and_then_named() {
    let mut lines = Vec::new();
    for place in [Place::GITEA, Place::GITHUB_APP] {
        lines.push(format!("{:?}", place.dialect.kind()));
        for call in &calls(place) {
            lines.push(format!("500 {}: {}", call.0, ended(place, call, 500).await));
        }
    }
    insta::with_settings!({ filters => tests::house::filters() }, {
        insta::assert_snapshot!(lines.join("\n"));
    });
}

#[tokio::test]
async fn an_answer_to_an_app_that_makes_no_sense_is_not_taken_for_silence() {
    let place = Place::GITHUB_APP;
    for call in calls(place)
        .iter()
        .filter(|call| ["who am I", "find the installation", "mint a token"].contains(&call.0))
    {
        let house = House::start(short_at(place)).await;
        let issue = house.open_issue().await;
        house.forge.fault(Matcher::new(call.1, &call.2), Fault::Garbage, 100);
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        house.work_through_retries().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::Failed(Failure::ForgeAnswer), "{}", call.0);
        let reason = "the answer makes no sense: its JSON is not as documented at line 1, column ";
        assert!(end.operator.contains(reason), "{}: {}", call.0, end.operator);
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_forge_that_says_nothing_is_not_waited_for() {
    for place in [Place::GITEA, Place::GITHUB_APP] {
        // Every read goes through one door; what only GitHub has does not.
        let is_meant = |call: &&Asked| place == Place::GITEA || call.1 != "GET";
        let calls = calls(place);
        for call in calls.iter().filter(|call| call.2.starts_with("/api/")).filter(is_meant) {
            let house = House::start(short_at(place)).await;
            let issue = house.open_issue().await;
            house.forge.fault(Matcher::new(call.1, &call.2), Fault::Hang, 1);
            house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
            house.work_through_retries().await;
            let end = house.end().await;
            assert_eq!(end.outcome, Outcome::DraftPr, "{place:?} {}: {}", call.0, end.operator);
            assert_eq!(house.forge.pulls(&house.repo).len(), 1, "{place:?} {}", call.0);
            house.assert_clean().await;
        }
    }
}

#[tokio::test]
async fn an_effect_whose_answer_is_lost_is_found_again() {
    for place in Place::ALL {
        for call in calls(place).iter().filter(|call| call.1 != "GET") {
            let house = House::start(short_at(place)).await;
            let issue = house.open_issue().await;
            house.forge.fault(Matcher::new(call.1, &call.2), Fault::AfterEffect(502), 1);
            house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
            house.work_through_retries().await;
            let end = house.end().await;
            assert_eq!(end.outcome, Outcome::DraftPr, "{place:?} {}: {}", call.0, end.operator);
            assert_eq!(house.forge.pulls(&house.repo).len(), 1, "{place:?} {}", call.0);
            assert_eq!(house.status_comments(issue).len(), 1, "{place:?} {}", call.0);
            house.assert_clean().await;
        }
    }
}

#[tokio::test]
async fn whatever_the_model_does_the_job_ends_by_its_name() {
    let broken =
        Call { name: "Write".into(), arguments: r#"{"file_path": "a.txt", "content": "#.into() };
    let unknown = Call { name: "Deploy".into(), arguments: "{}".into() };
    let outside = Call {
        name: "Write".into(),
        arguments: r#"{"file_path": "/etc/passwd", "content": "x"}"#.into(),
    };
    let calls = |calls: Vec<Call>| Turn { calls, ..Turn::default() };
    let cut = Turn { finish: Some("length".into()), ..calls(vec![outside.clone()]) };
    let failed = |failure| Outcome::Failed(failure);
    let cases = vec![
        ("nothing", vec![Turn::default()], Outcome::NoFix(NoFix::NoChange)),
        ("a broken call", vec![calls(vec![broken])], Outcome::NoFix(NoFix::NoChange)),
        ("an unknown tool", vec![calls(vec![unknown])], Outcome::NoFix(NoFix::NoChange)),
        ("a path outside", vec![calls(vec![outside])], Outcome::NoFix(NoFix::NoChange)),
        ("a turn cut by length", vec![cut], Outcome::NoFix(NoFix::Budget)),
        (
            "garbage",
            vec![fault(ModelFault::Garbage), fault(ModelFault::Garbage)],
            failed(Failure::ModelAnswer),
        ),
        (
            "an endless turn",
            vec![fault(ModelFault::Endless), fault(ModelFault::Endless)],
            failed(Failure::ModelAnswer),
        ),
        (
            "silence",
            vec![fault(ModelFault::Hang), fault(ModelFault::Hang)],
            failed(Failure::ModelDown),
        ),
    ];
    let mut lines = Vec::new();
    for (name, turns, outcome) in cases {
        let house = House::start(model(turns)).await;
        let issue = house.labelled_and_worked().await;
        house.work_through_retries().await;
        let end = house.end().await;
        assert_eq!(end.outcome, outcome, "{name}: {}", end.operator);
        assert!(house.forge.pulls(&house.repo).is_empty(), "{name}");
        let comment = house.status_comments(issue).join("\n");
        assert!(comment.contains(&end.person) && comment.contains(&end.next), "{name}: {comment}");
        lines.push(format!("{name}: {} {}", end.person, end.next));
        house.assert_clean().await;
    }
    insta::assert_snapshot!(lines.join("\n"));
}

/// A `bwrap` that tells a number which nobody can watch, so that no death can be proven.
fn unwatched(folder: &std::path::Path) -> std::path::PathBuf {
    let fake = folder.join("bwrap");
    let script = "#!/bin/bash\n\
        case $1 in --help) echo --bind-fd; exit;; --version) echo fake; exit;; esac\n\
        echo '{\"child-pid\": 0}' >&4\n";
    std::fs::write(&fake, script).expect("the folder can be written");
    for path in [folder, &fake] {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("it is ours");
    }
    fake
}

#[tokio::test]
async fn after_a_death_that_cannot_be_proven_jobs_wait_for_a_restart() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can plant a trusted binary");
        return;
    }
    let folder = tempfile::Builder::new().prefix("hyla-fake-").tempdir_in("/usr/local/lib");
    let folder = folder.expect("root may write there");
    let bwrap = unwatched(folder.path());
    let call = Call { name: "Bash".into(), arguments: r#"{"command": "true"}"#.into() };
    let house = House::start(Setup {
        recording: Recording {
            turns: vec![Turn { calls: vec![call], ..Turn::default() }],
            ..Recording::default()
        },
        change: Box::new(move |config| config.sandbox.bwrap = bwrap),
        ..short()
    })
    .await;
    let health = async || {
        let answer = reqwest::get(house.hook.replace("/hooks/main", "/healthz")).await;
        let answer = answer.expect("the service answers");
        (answer.status().as_u16(), answer.text().await.expect("it has a body"))
    };
    let (status, words) = health().await;
    assert!(status == 200 && words.starts_with("ok\nsandbox: "), "{words}");
    let ann = house.forge.person("ann");
    house.labelled_and_worked().await;
    assert_eq!(house.end().await.outcome, Outcome::Failed(Failure::Sandbox));
    let first = house.bot.folder(house.jobs().await[0].job.id);
    assert!(first.workspace().exists(), "something may still write there");
    let (status, words) = health().await;
    assert!(status == 503 && words.contains("restart the service"), "{words}");

    // No further job is claimed, and one that was claimed just before spends no session.
    let issue = house.open_issue().await;
    ann.add_label(&house.repo, issue, "hyla").await;
    let n_requests = house.model.requests().len();
    house.work().await;
    let waiting = house.jobs().await.remove(0).job;
    assert_eq!((waiting.state, waiting.attempt), (State::Queued, 0));
    let now = house.clock.now();
    let claimed = house.bot.store.claim("test", now, now + house.bot.config.queue.lease).await;
    let (job, lease) = claimed.expect("the store answers").expect("a job is due");
    let verdict = house.bot.job(&job, &lease, &Stop::default()).await;
    assert!(matches!(verdict, Verdict::Parked), "{verdict:?}");
    assert_eq!(house.model.requests().len(), n_requests);
    assert!(first.workspace().exists());
}
