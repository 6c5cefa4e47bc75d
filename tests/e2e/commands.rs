//! The `hyla` command itself, as a person or a service manager starts it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bot::forge::Permission;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::forge::{Dialect, FakeForge};
use tests::house::{
    WEBHOOK_SECRET, configuration, demo_folder, demo_issue, demo_recording, hyla_binary, way,
};
use tests::model::{Call, MODEL, ModelServer, PATIENCE, Recording, Turn};
use tokio::process::Command;

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn hyla(arguments: &[&str]) -> Ran {
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

fn git(folder: &Path, arguments: &[&str]) -> String {
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
fn folder() -> tempfile::TempDir {
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
        (&good, &issue, none, MODEL, 1, "start the model's server"),
        (&good, &issue, url.as_str(), "other", 1, "serves no model called `other`"),
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
    ] {
        let mut arguments =
            vec!["fix", "--endpoint", "http://127.0.0.1:9/v1", "--repo", repo, "--issue", issue];
        arguments.extend(more);
        let ran = hyla(&arguments).await;
        assert_eq!(ran.code, Some(1), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
        assert!(!ran.stderr.contains("model"), "{words}: {}", ran.stderr);
    }
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

/// A forge with a repository and a configuration for it.
struct Outside {
    forge: FakeForge,
    _model: ModelServer,
    folder: tempfile::TempDir,
    file: String,
    port: u16,
}

async fn outside() -> Outside {
    outside_with(demo_recording()).await
}

async fn outside_with(recording: Recording) -> Outside {
    let forge = FakeForge::start(Dialect::Forgejo15).await;
    let repo = forge.add_repository("acme", "hours", demo_folder().join("repository").as_path());
    for (login, permission) in [("ann", Permission::Write), ("hyla", Permission::Admin)] {
        forge.add_user(login, Permission::None);
        forge.set_permission(&repo, login, permission);
    }
    let token = forge.token_for("hyla");
    let model = ModelServer::start(recording).await.expect("it starts");
    let folder = way();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = socket.local_addr().expect("it is bound").port();
    let text = configuration(folder.path(), &forge, &model.url(), &token);
    let path = folder.path().join("hyla.toml");
    std::fs::write(&path, format!("{text}\n[server]\nlisten = \"127.0.0.1:{port}\"\n"))
        .expect("it is ours");
    Outside { forge, _model: model, file: path.display().to_string(), folder, port }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_service_does_the_main_job_and_stops_when_told() {
    let outside = outside().await;
    let repo = "acme/hours".parse().expect("that is a name");
    let log = outside.folder.path().join("log");
    let mut service = Command::new(hyla_binary())
        .args(["serve", "--config", &outside.file])
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(&log).expect("it is ours"))
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    until("it listens", || std::net::TcpStream::connect(("127.0.0.1", outside.port)).is_ok()).await;
    let hook = format!("http://127.0.0.1:{}/hooks/main", outside.port);
    outside.forge.register_hook(&repo, &hook, WEBHOOK_SECRET);
    let (title, body) = demo_issue();
    let ann = outside.forge.person("ann");
    let issue = ann.open_issue(&repo, title, body, &[]).await;
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

fn send(service: &tokio::process::Child, signal: Signal) {
    let number = i32::try_from(service.id().expect("it runs")).expect("it is a pid");
    kill(Pid::from_raw(number), signal).expect("it is ours");
}

/// Whether any process on this machine has these words in its command line.
fn lives(words: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("Linux has it").filter_map(Result::ok);
    processes.map(|entry| entry.path().join("cmdline")).any(|path| {
        let line = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(words)
    })
}

#[tokio::test]
async fn a_service_that_ends_leaves_no_process_and_the_next_one_finishes_the_job() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        ended_by(signal).await;
    }
}

async fn ended_by(signal: Signal) {
    let sleep = Call {
        name: "Bash".into(),
        arguments: r#"{"command": "setsid sleep 4720 & sleep 4720"}"#.into(),
    };
    let mut recording = demo_recording();
    recording.turns.insert(0, Turn { calls: vec![sleep], ..Turn::default() });
    let outside = outside_with(recording).await;
    let short = "\n[queue]\nlease = \"3s\"\nheartbeat = \"1s\"\n";
    let text = std::fs::read_to_string(&outside.file).expect("it is ours");
    std::fs::write(&outside.file, text + short).expect("it is ours");
    let repo = "acme/hours".parse().expect("that is a name");
    let serve = || {
        let arguments = ["serve", "--config", &outside.file];
        let mut command = Command::new(hyla_binary());
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        command.spawn().expect("it starts")
    };
    let mut first = serve();
    until("it listens", || std::net::TcpStream::connect(("127.0.0.1", outside.port)).is_ok()).await;
    let hook = format!("http://127.0.0.1:{}/hooks/main", outside.port);
    outside.forge.register_hook(&repo, &hook, WEBHOOK_SECRET);
    let (title, body) = demo_issue();
    let ann = outside.forge.person("ann");
    let issue = ann.open_issue(&repo, title, body, &["hyla"]).await;
    until("the agent sleeps", || lives("sleep 4720")).await;

    send(&first, signal);
    first.wait().await.expect("it is ours");
    until("the agent is dead", || !lives("sleep 4720")).await;
    let mut second = serve();
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
    let outside = outside().await;
    let repo = "acme/hours".parse().expect("that is a name");
    let (title, body) = demo_issue();
    let issue = outside.forge.person("ann").open_issue(&repo, title, body, &[]).await;
    let ran = hyla(&["run", "--config", &outside.file, &format!("main:acme/hours#{issue}")]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("The draft is ready"), "{}", ran.stdout);
    assert!(outside.forge.pulls(&repo)[0].body.contains("asked by an operator"));
    let wrong = hyla(&["run", "--config", &outside.file, "acme/hours#1"]).await;
    assert!(
        wrong.code == Some(2) && wrong.stderr.contains("FORGE:OWNER/REPO#NUMBER"),
        "{}",
        wrong.stderr
    );
    outside.forge.assert_clean();
}

#[tokio::test]
async fn doctor_names_what_is_out_of_order() {
    let outside = outside().await;
    let sound = hyla(&["doctor", "--config", &outside.file]).await;
    assert_eq!(sound.code, Some(0), "{}{}", sound.stdout, sound.stderr);
    std::fs::write(outside.folder.path().join("token"), "not-a-token-of-the-forge")
        .expect("it is ours");
    let wrong = hyla(&["doctor", "--config", &outside.file, "--json"]).await;
    assert_eq!(wrong.code, Some(5));
    let lines: serde_json::Value = serde_json::from_str(&wrong.stdout).expect("it is JSON");
    let failed: Vec<&serde_json::Value> = lines
        .as_array()
        .expect("it is a list")
        .iter()
        .filter(|line| line["verdict"] == "fails")
        .collect();
    assert!(failed.len() == 1 && failed[0]["subject"] == "forge main", "{failed:?}");
    assert!(!wrong.stdout.contains("not-a-token"), "{}", wrong.stdout);
}
