//! The `hyla` command itself, as a person or a service manager starts it.

use std::path::Path;
use std::process::Stdio;

use bot::store::Store;
use nix::sys::signal::Signal;
use tests::forge::{Fault, Matcher};
use tests::house::{WEBHOOK_SECRET, demo_folder, demo_recording, hyla_binary};
use tests::model::{MODEL, ModelServer, PATIENCE, Recording, Turn};
use tests::outside::{Outside, lives, send, until};
use tokio::process::Command;

use crate::doctor::complaints;

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) async fn hyla(arguments: &[&str]) -> Ran {
    let output = Command::new(hyla_binary())
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("it ends").expect("it starts");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

pub(crate) fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = std::process::Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A copy of the demonstration's repository, with one commit.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("the temp folder can be written");
    for name in ["README.md", "hours.py", ".gitignore", "tests/test_hours.py"] {
        let target = folder.path().join(name);
        std::fs::create_dir_all(target.parent().expect("it has one")).expect("it is ours");
        std::fs::copy(demo_folder().join("repository").join(name), target).expect("it is there");
    }
    git(folder.path(), &["init", "-q"]);
    git(folder.path(), &["add", "-A"]);
    git(folder.path(), &["commit", "-qm", "first"]);
    folder
}

#[tokio::test]
async fn fix_prints_patch_and_evidence_and_writes_a_branch_only_when_asked() {
    let server = ModelServer::start(demo_recording()).await.expect("it starts");
    let folder = folder();
    let repo = folder.path().display().to_string();
    let issue = demo_folder().join("issue.md").display().to_string();
    let (url, transcript) =
        (server.url(), format!("{repo}/../transcript-{}.jsonl", std::process::id()));
    let arguments =
        ["fix", "--repo", &repo, "--issue", &issue, "--endpoint", &url, "--model", MODEL];
    let before = git(folder.path(), &["status", "--porcelain"]);

    let ran =
        hyla(&[&arguments[..], &["--write", "night", "--transcript", &transcript]].concat()).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    insta::with_settings!({ filters => tests::house::filters() }, {
        insta::assert_snapshot!(ran.stdout);
    });
    assert!(ran.stderr.contains("▶ Edit") && ran.stderr.contains("FAILED"), "{}", ran.stderr);
    assert_eq!(git(folder.path(), &["status", "--porcelain"]), before);
    assert_eq!(git(folder.path(), &["branch", "--show-current"]).trim(), "main");
    assert_eq!(
        git(folder.path(), &["log", "--format=%an %s", "night"]).trim(),
        "Hyla The night counter is never open\nt first"
    );
    assert!(
        std::fs::read_to_string(&transcript).expect("it was kept").contains("\"kind\":\"end\"")
    );
    std::fs::remove_file(&transcript).expect("it is ours");
}

#[tokio::test]
async fn fix_without_a_branch_says_what_to_do_with_what_it_printed() {
    let server = ModelServer::start(demo_recording()).await.expect("it starts");
    let folder = folder();
    let repo = folder.path().display().to_string();
    let issue = demo_folder().join("issue.md").display().to_string();
    let url = server.url();
    let arguments =
        ["fix", "--repo", &repo, "--issue", &issue, "--endpoint", &url, "--model", MODEL];
    let ran = hyla(&arguments).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.ends_with("`--write BRANCH` makes a branch instead.\n"), "{}", ran.stdout);
    // As it says: the whole output is what git takes.
    let output = tempfile::NamedTempFile::new().expect("the temp folder can be written");
    std::fs::write(output.path(), &ran.stdout).expect("it is ours");
    assert_eq!(git(folder.path(), &["status", "--porcelain"]), "");
    git(folder.path(), &["apply", &output.path().display().to_string()]);
    assert!(git(folder.path(), &["status", "--porcelain"]).contains("M hours.py"));
}

#[tokio::test]
async fn fix_says_what_to_do_about_a_folder_an_issue_or_a_server_that_is_not_in_order() {
    let server = ModelServer::start(Recording::default()).await.expect("it starts");
    let good = folder();
    let good = good.path().display().to_string();
    let empty = tempfile::tempdir().expect("the temp folder can be written");
    let no_repository = empty.path().display().to_string();
    let blank = empty.path().join("blank.md");
    std::fs::write(&blank, " \n").expect("it is ours");
    let blank = blank.display().to_string();
    let issue = demo_folder().join("issue.md").display().to_string();
    let url = server.url();
    let none = "http://127.0.0.1:9/v1";
    let small = ModelServer::with_window(Recording::default(), 4096).await.expect("it starts");
    let small = small.url();
    for (repo, issue, url, model, code, words) in [
        (&no_repository, &issue, url.as_str(), MODEL, 1, "git init"),
        (&good, &blank, url.as_str(), MODEL, 1, "title"),
        (&good, &"/no/such/file".to_owned(), url.as_str(), MODEL, 1, "cannot read the issue"),
        (&good, &issue, none, MODEL, 1, "or name another with --endpoint"),
        (&good, &issue, "localhost:18100/v1", MODEL, 2, "such as http://127.0.0.1:8000/v1"),
        (&good, &issue, "127.0.0.1:18100/v1", MODEL, 2, "such as http://127.0.0.1:8000/v1"),
        (
            &good,
            &issue,
            url.as_str(),
            "other",
            1,
            "serves no model called `other`, but recording; name one with --model",
        ),
        (&good, &issue, small.as_str(), MODEL, 1, "context of 4096 tokens"),
        (&good, &issue, url.as_str(), MODEL, 3, ""),
    ] {
        let ran =
            hyla(&["fix", "--repo", repo, "--issue", issue, "--endpoint", url, "--model", model])
                .await;
        assert_eq!(ran.code, Some(code), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
}

#[tokio::test]
async fn fix_checks_what_it_was_given_before_it_asks_the_model() {
    let folder = folder();
    git(folder.path(), &["branch", "hyla/fix"]);
    let repo = folder.path().display().to_string();
    let noise = folder.path().join("noise");
    std::fs::write(&noise, [0x9f, 0x00, 0xff, 0x0a, 0xc3]).expect("it is ours");
    let noise = noise.display().to_string();
    let issue = demo_folder().join("issue.md").display().to_string();
    for (repo, issue, more, words) in [
        ("nope", issue.as_str(), vec![], "cannot open the folder `nope`"),
        (&repo, &noise, vec![], "no text in UTF-8"),
        (&repo, &repo, vec![], "it is a folder"),
        (&repo, &issue, vec!["--transcript", "/nope/t.jsonl"], "`/nope/t.jsonl`"),
        (&repo, &issue, vec!["--transcript", &repo], "it is a folder"),
        (&repo, &issue, vec!["--write", "main"], "`main`: it exists already"),
        (&repo, &issue, vec!["--write", "main/x"], "beside `main`"),
        (&repo, &issue, vec!["--write", "hyla"], "beside `hyla/fix`"),
        (&repo, &issue, vec!["--write", "bad name.."], "such as `hyla/fix`"),
        (&repo, &issue, vec!["--write"], "git branch -D hyla/fix"),
        (&repo, &issue, vec!["--config", "/nope/hyla.toml"], "or name another with --config"),
    ] {
        let mut arguments =
            vec!["fix", "--endpoint", "http://127.0.0.1:9/v1", "--repo", repo, "--issue", issue];
        arguments.extend(more);
        let ran = hyla(&arguments).await;
        assert_eq!(ran.code, Some(1), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
        assert!(!ran.stderr.contains("model"), "{words}: {}", ran.stderr);
    }
    let ran = hyla(&["fix", "--repo", &repo, "--issue", &issue, "--model-dir", "/nope"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let words = "cannot use --model-dir `/nope`: there is no such folder; name the one with";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
}

#[tokio::test]
async fn fix_prints_the_patch_even_if_the_transcript_cannot_be_kept() {
    let server = ModelServer::start(demo_recording()).await.expect("it starts");
    let folder = folder();
    let repo = folder.path().display().to_string();
    let issue = demo_folder().join("issue.md").display().to_string();
    let url = server.url();
    let arguments =
        ["fix", "--repo", &repo, "--issue", &issue, "--endpoint", &url, "--model", MODEL];
    // Every write to it fails as on a full disk.
    let more = ["--write", "night", "--transcript", "/dev/full"];
    let ran = hyla(&[&arguments[..], &more].concat()).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stdout.contains("+++ b/hours.py") && ran.stdout.contains("branch `night`"));
    assert!(ran.stderr.contains("cannot keep the transcript as `/dev/full`"), "{}", ran.stderr);
}

/// A server on loopback, by its address.
async fn served(router: axum::Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// A model's server that speaks the protocol under `/v1` alone.
async fn server_with_v1() -> String {
    let list = r#"{"data": [{"id": "recording", "max_model_len": 131072}]}"#;
    let list = move || async move { ([("content-type", "application/json")], list) };
    served(axum::Router::new().route("/v1/models", axum::routing::get(list))).await
}

#[tokio::test]
async fn an_endpoint_without_v1_is_told_to_have_it() {
    let url = server_with_v1().await;
    let folder = folder();
    let file = folder.path().join("hyla.toml").display().to_string();
    let issue = demo_folder().join("issue.md").display().to_string();
    let repo = folder.path().display().to_string();
    for (endpoint, words) in [
        (url.clone(), Some("add `/v1` to `model.endpoint`")),
        (format!("{url}/"), Some("add `/v1` to `model.endpoint`")),
        (format!("{url}/v1"), None),
    ] {
        let text = format!("[model]\nendpoint = \"{endpoint}\"\nname = \"recording\"\n");
        std::fs::write(&file, text).expect("it is ours");
        let (_, found) = complaints(&file).await;
        let told: Vec<_> = found.iter().filter(|line| line.contains(" model ")).collect();
        let fits = match words {
            Some(words) => told.iter().any(|line| {
                line.starts_with("fails")
                    && line.contains(&format!("{url}/v1/models` answers; {words}"))
            }),
            None => told.is_empty(),
        };
        assert!(fits, "{endpoint}: {found:?}");
    }
    let arguments = ["fix", "--repo", &repo, "--issue", &issue, "--endpoint", &url];
    let ran = hyla(&[&arguments[..], &["--model", "recording"]].concat()).await;
    assert!(
        ran.code == Some(1) && ran.stderr.contains("add `/v1` to --endpoint"),
        "{}",
        ran.stderr
    );
}

/// A model's server that wants the key `k-123`, has no list of models, and is silent until it is asked twice.
async fn strict_server() -> String {
    use axum::http::{HeaderMap, StatusCode};
    let models = |headers: HeaderMap| async move {
        match headers.get("authorization").map(|value| value.as_bytes() == b"Bearer k-123") {
            Some(true) => (StatusCode::NOT_FOUND, "{}"),
            Some(false) | None => (StatusCode::UNAUTHORIZED, r#"{"error": "no key"}"#),
        }
    };
    let page = || async { axum::response::Html("<html>a page</html>") };
    let router = axum::Router::new()
        .route("/v1/models", axum::routing::get(models))
        .route("/v1/chat/completions", axum::routing::post(std::future::pending::<&str>))
        .fallback(page);
    served(router).await
}

#[tokio::test]
async fn fix_says_what_it_waits_for_and_which_key_is_missing() {
    let server = strict_server().await;
    let folder = folder();
    let repo = folder.path().display().to_string();
    let issue = demo_folder().join("issue.md").display().to_string();
    let key = folder.path().join("key");
    std::fs::write(&key, "k-123\n").expect("it is ours");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, mode).expect("it is ours");
    let key = key.display().to_string();
    let config = folder.path().join("hyla.toml");
    std::fs::write(&config, "[model]\nidle_timeout = \"7s\"\n").expect("it is ours");
    let config = config.display().to_string();
    let url = format!("{server}/v1");
    let start = ["fix", "--config", &config, "--repo", &repo, "--issue", &issue, "--endpoint"];

    let ran = hyla(&[&start[..], &[&url]].concat()).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("with --key-file"), "{}", ran.stderr);
    let ran = hyla(&[&start[..], &[&format!("{server}/ui")]].concat()).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("it is a web page"), "{}", ran.stderr);
    let ran = hyla(&[&start[..], &[&url, "--key-file", &repo]].concat()).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("name the file"), "{}", ran.stderr);

    let ran = hyla(&[&start[..], &[&url, "--key-file", &key]].concat()).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for words in [
        "note: the model's server does not tell its context; make sure that it has 131072 tokens",
        "waiting for the model for 5 s; it is given up after 7s of silence",
        "start the model's server, or name another with --endpoint",
    ] {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("{\"timestamp\""), "{}", ran.stderr);
    assert!(!ran.stderr.contains("k-123"), "{}", ran.stderr);
}

#[tokio::test]
async fn the_service_does_the_main_job_and_stops_when_told() {
    let outside = Outside::usual().await;
    let repo = outside.repo.clone();
    let log = outside.log();
    let mut service = outside.serve(std::fs::File::create(&log).expect("it is ours"));
    outside.is_heard().await;
    let ann = outside.forge.person("ann");
    let issue = outside.open_issue(&[]).await;
    ann.add_label(&repo, issue, "hyla").await;
    until("the draft is announced", || {
        outside
            .forge
            .comments(&repo, issue)
            .iter()
            .any(|comment| comment.body.contains("Hyla: draft ready"))
    })
    .await;
    assert!(outside.forge.pulls(&repo)[0].is_draft);

    let jobs = hyla(&["jobs", "--config", &outside.file, "--json"]).await;
    let jobs: serde_json::Value = serde_json::from_str(&jobs.stdout).expect("it is JSON");
    assert_eq!((jobs[0]["state"].as_str(), jobs[0]["pull"].as_u64()), (Some("draft_pr"), Some(2)));
    let transcript = hyla(&["transcript", "1", "--config", &outside.file]).await;
    assert!(transcript.stdout.contains("▶ Edit"), "{}", transcript.stderr);

    send(&service, Signal::SIGTERM);
    let status = tokio::time::timeout(PATIENCE, service.wait())
        .await
        .expect("it stops")
        .expect("it is ours");
    let log = std::fs::read_to_string(&log).expect("it is ours");
    assert!(status.success(), "{log}");
    let token = std::fs::read_to_string(outside.folder.path().join("token")).expect("it is ours");
    assert!(!log.contains(&token) && !log.contains(WEBHOOK_SECRET), "a secret is in the log");
    outside.forge.assert_clean();
}

#[tokio::test]
async fn a_service_that_ends_leaves_no_process_and_the_next_one_finishes_the_job() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        ended_by(signal).await;
    }
}

async fn ended_by(signal: Signal) {
    // Another run of the tests on this machine has another number.
    let words = format!("sleep {}", 100_000 + std::process::id());
    let recording = demo_recording().begun_by(Turn::bash(&format!("setsid {words} & {words}")));
    let short = "[queue]\nlease = \"3s\"\nheartbeat = \"1s\"\n";
    let outside = Outside::start(recording, short).await;
    let repo = outside.repo.clone();
    let mut first = outside.serve_logged();
    outside.is_heard().await;
    let issue = outside.open_issue(&["hyla"]).await;
    until("the agent sleeps", || lives(&words)).await;

    send(&first, signal);
    first.wait().await.expect("it is ours");
    until("the agent is dead", || !lives(&words)).await;
    let mut second = outside.serve_logged();
    until("the draft is announced", || {
        let comments = outside.forge.comments(&repo, issue);
        comments.iter().any(|comment| comment.body.contains("Hyla: draft ready"))
    })
    .await;
    assert_eq!(outside.forge.comments(&repo, issue).len(), 1);
    assert_eq!(outside.forge.pulls(&repo).len(), 1);
    second.kill().await.expect("it is ours");
    outside.forge.assert_clean();
}

#[tokio::test]
async fn run_works_on_one_issue_without_a_label() {
    let outside = Outside::usual().await;
    let repo = outside.repo.clone();
    let issue = outside.open_issue(&[]).await;
    let ran = hyla(&["run", "--config", &outside.file, &format!("acme/hours#{issue}")]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("The draft is ready"), "{}", ran.stdout);
    assert!(outside.forge.pulls(&repo)[0].body.contains("asked by an operator"));
    assert!(!ran.stderr.contains("{\"timestamp\""), "{}", ran.stderr);
    for (subject, code, words) in [
        ("acme/hours", 2, "FORGE:OWNER/REPO#NUMBER"),
        ("main:acme/hours#0", 2, "the first issue of a repository is #1"),
        ("other:acme/hours#1", 2, "the configuration has `main`"),
        ("main:acme/other#1", 1, "add it to `forge.main.repositories`"),
    ] {
        let wrong = hyla(&["run", "--config", &outside.file, subject]).await;
        assert_eq!(wrong.code, Some(code), "{subject}: {}", wrong.stderr);
        assert!(wrong.stderr.contains(words), "{subject}: {}", wrong.stderr);
    }
    outside.forge.person("ann").close(&repo, issue).await;
    let subject = format!("main:acme/hours#{issue}");
    let ended = hyla(&["run", "--config", &outside.file, &subject]).await;
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(!ended.stdout.contains("label"), "{}", ended.stdout);
    outside.forge.assert_clean();
}

#[tokio::test]
async fn run_that_is_interrupted_gives_its_job_back_uncounted() {
    let recording = demo_recording().begun_by(Turn::bash("sleep 4721"));
    let outside = Outside::start(recording, "").await;
    let issue = outside.open_issue(&[]).await;
    let subject = format!("main:acme/hours#{issue}");
    let running = Command::new(hyla_binary())
        .args(["run", "--config", &outside.file, &subject])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    until("the agent sleeps", || lives("sleep 4721")).await;
    send(&running, Signal::SIGINT);
    let ended = tokio::time::timeout(PATIENCE, running.wait_with_output()).await;
    let ended = ended.expect("it stops").expect("it is ours");
    let words = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && words.contains("waits for `hyla serve`"), "{words}");
    assert!(!lives("sleep 4721"));
    let jobs = hyla(&["jobs", "--config", &outside.file, "--json"]).await;
    let jobs: serde_json::Value = serde_json::from_str(&jobs.stdout).expect("it is JSON");
    assert_eq!((jobs[0]["state"].as_str(), jobs[0]["attempt"].as_u64()), (Some("queued"), Some(0)));
    outside.forge.assert_clean();
}

#[tokio::test]
async fn a_service_stops_though_a_fetch_does_not() {
    let outside = Outside::usual().await;
    let fetch = Matcher::new("POST", "/acme/hours.git/git-upload-pack");
    outside.forge.fault(fetch, Fault::Hang, usize::MAX);
    let mut service = outside.serve_logged();
    outside.is_heard().await;
    outside.open_issue(&["hyla"]).await;
    until("the fetch hangs", || {
        outside.forge.requests().iter().any(|request| request.path.ends_with("git-upload-pack"))
    })
    .await;
    send(&service, Signal::SIGTERM);
    let status = tokio::time::timeout(PATIENCE, service.wait()).await.expect("it stops");
    assert!(status.expect("it is ours").success());
}

#[tokio::test]
async fn run_leaves_a_pull_request_alone() {
    let outside = Outside::usual().await;
    let repo = outside.repo.clone();
    let ann = outside.forge.person("ann");
    ann.commit(&repo, "topic", [("a.txt", "a\n")]);
    let pull = ann.open_pull(&repo, "Mine", "topic", "main").await;
    let ran = hyla(&["run", "--config", &outside.file, &format!("main:acme/hours#{pull}")]).await;
    assert_eq!(ran.code, Some(4), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("this is a pull request"), "{}", ran.stdout);
    assert_eq!(outside.forge.pulls(&repo).len(), 1);
    outside.forge.assert_clean();
}

#[tokio::test]
async fn serve_says_what_to_do_before_it_makes_anything_and_when_it_is_not_alone() {
    let outside = Outside::usual().await;
    let text = std::fs::read_to_string(&outside.file).expect("it is ours");
    let section = text.find("[forge.main]").expect("it is there");
    let end = text.find("[model]").expect("it is there");
    let without = format!("{}{}", &text[..section], &text[end..]);
    std::fs::write(&outside.file, without).expect("it is ours");
    for command in [&["serve"][..], &["run", "acme/hours#1"]] {
        let ran = hyla(&[command, &["--config", &outside.file]].concat()).await;
        assert!(ran.code != Some(0) && ran.stderr.contains("add a section `[forge.NAME]`"));
    }
    assert!(!outside.data().exists(), "nothing was made");

    std::fs::write(&outside.file, &text).expect("it is ours");
    let _first = outside.serve_logged();
    outside.listens().await;
    let ran = hyla(&["serve", "--config", &outside.file]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let words = "stop it, or set `server.listen` to another";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
    let elsewhere = tests::outside::free_address().to_string();
    let text = text.replace(&outside.address.to_string(), &elsewhere);
    std::fs::write(&outside.file, text).expect("it is ours");
    let log = outside.folder.path().join("second");
    let _second = outside.serve(std::fs::File::create(&log).expect("it is ours"));
    let words = "another `hyla serve` works on this data folder; they share its jobs";
    let seen = |log: &Path| std::fs::read_to_string(log).unwrap_or_default().contains(words);
    until("the second one says so", || seen(&log)).await;
    assert!(!seen(&outside.log()), "the first one was alone");
}

#[tokio::test]
async fn transcript_says_which_job_has_none_and_what_to_do() {
    let outside = Outside::usual().await;
    std::fs::create_dir(outside.data()).expect("it is ours");
    let store = outside.store().await;
    let subject: bot::job::Subject = "main:acme/hours#7".parse().expect("that is an issue");
    let now = chrono::DateTime::from_timestamp(1_800_000_000, 0).expect("that is an instant");
    let job = store.ask(&subject, "main:acme/hours#7@command:1", now).await.expect("it is kept");
    let number = job.to_string();
    let told = async |number: &str| {
        let ran = hyla(&["transcript", number, "--config", &outside.file]).await;
        assert_eq!(ran.code, Some(1), "{}", ran.stdout);
        ran.stderr
    };
    let unknown = told("4711").await;
    assert!(unknown.contains("there is no job 4711; `hyla jobs` lists"), "{unknown}");
    let queued = told(&number).await;
    assert!(queued.contains("waits for a worker; `hyla explain main:acme/hours#7`"), "{queued}");
    let later = now + chrono::TimeDelta::days(1);
    let claimed = store.claim("w", now, later).await.expect("it answers");
    let (_, lease) = claimed.expect("it is due");
    store.enter(&lease, bot::job::Stage::Checkout, now).await.expect("it is kept");
    let running = told(&number).await;
    assert!(running.contains("it is in the stage `checkout`; ask again in a while"), "{running}");
    store.end(&lease, &bot::reply::cancelled(), now).await.expect("it is kept");
    let ended = told(&number).await;
    assert!(ended.contains("ended as cancelled, and no session of it is kept"), "{ended}");
}

#[tokio::test]
async fn jobs_says_where_it_looked() {
    let outside = Outside::usual().await;
    let data = outside.data();
    let shown = data.display().to_string();
    let ran = hyla(&["jobs", "--config", &outside.file, "--limit", "0"]).await;
    assert!(ran.code == Some(2) && ran.stderr.contains("--limit"), "{}", ran.stderr);
    let ran = hyla(&["jobs", "--config", &outside.file]).await;
    assert!(ran.code == Some(1) && ran.stderr.contains(&shown), "{}", ran.stderr);
    assert!(!data.exists(), "looking makes nothing");
    std::fs::write(&data, "").expect("it is ours");
    let ran = hyla(&["jobs", "--config", &outside.file]).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("is no folder"), "{}", ran.stderr);
    std::fs::remove_file(&data).expect("it is ours");
    std::fs::create_dir(&data).expect("it is ours");
    let ran = hyla(&["jobs", "--config", &outside.file]).await;
    assert!(ran.code == Some(0) && ran.stdout.contains(&shown), "{}", ran.stdout);
}
