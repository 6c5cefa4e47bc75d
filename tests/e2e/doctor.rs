//! `hyla doctor`, as a person starts it: what it finds out of order, and what it says to do.

use std::process::Stdio;

use bot::forge::Permission;
use tests::forge::{AppCredentials, Dialect, FakeForge, Fault, Matcher};
use tests::house::{
    Credential, WEBHOOK_SECRET, configuration, configuration_as, demo_folder, hyla_binary, way,
};
use tests::model::{ModelServer, Recording};
use tests::outside::{Outside, free_address, until};
use tests::tls::TlsFront;
use tokio::process::Command;

use crate::commands::hyla;

/// What the doctor does not like, as `VERDICT SUBJECT DETAIL`, and its exit code.
pub(crate) async fn complaints(file: &str) -> (Option<i32>, Vec<String>) {
    let ran = hyla(&["doctor", "--config", file, "--json"]).await;
    let lines: serde_json::Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    let word = |line: &serde_json::Value, key: &str| line[key].as_str().unwrap_or("").to_owned();
    let lines = lines.as_array().expect("it is a list").iter();
    let found = lines
        .filter(|line| line["verdict"] != "holds" && line["subject"] != "sandbox: memory-limit")
        .map(|line| ["verdict", "subject", "detail"].map(|key| word(line, key)).join(" "));
    (ran.code, found.collect())
}

#[tokio::test]
async fn doctor_names_what_is_out_of_order() {
    let outside = Outside::usual().await;
    let repo = outside.repo.clone();
    let change = |from: &str, to: &str| {
        let text = std::fs::read_to_string(&outside.file).expect("it is ours");
        std::fs::write(&outside.file, text.replace(from, to)).expect("it is ours");
    };

    let (code, found) = complaints(&outside.file).await;
    assert!(code == Some(0) && found.len() == 1, "{found:?}");
    assert!(found[0].starts_with("warns forge main: acme/hours it has no label `hyla`"));
    outside.forge.add_label(&repo, "hyla");
    let sound = hyla(&["doctor", "--config", &outside.file]).await;
    assert_eq!(sound.code, Some(0), "{}{}", sound.stdout, sound.stderr);
    let next = "start `hyla serve` if it does not run, and put the label on an issue.\n";
    assert!(sound.stdout.ends_with(next), "{}", sound.stdout);
    assert!(!outside.data().exists(), "the doctor looks and makes nothing");

    let old = r#"{"version": "1.20.3+gitea-1.20.3"}"#.to_owned();
    let fault = Fault::Status { status: 200, body: old, headers: vec![] };
    // It is asked for its time first.
    outside.forge.fault(Matcher::new("GET", "/api/v1/version"), fault, 2);
    let (code, found) = complaints(&outside.file).await;
    assert!(code == Some(5) && found.len() == 1, "{found:?}");
    assert!(found[0].contains("`1.20.3+gitea-1.20.3` is too old"), "{found:?}");

    change("[\"acme/hours\"]", "[]");
    let (code, found) = complaints(&outside.file).await;
    assert!(code == Some(5) && found.len() == 1, "{found:?}");
    assert!(found[0].contains("`forge.main.repositories` is empty"), "{found:?}");
    change("repositories = []", "repositories = [\"acme/hours\", \"acme/nope\"]");
    let (code, found) = complaints(&outside.file).await;
    assert!(code == Some(5) && found.len() == 1, "{found:?}");
    assert!(found[0].contains("check its name in `forge.main.repositories`"), "{found:?}");
    change(", \"acme/nope\"", "");

    let url = outside.forge.url().to_string();
    for (status, body, words) in [
        (401, "{}", "make a new token for the bot's user and put it into the file"),
        (403, "{}", "`write:repository`, `write:issue` and `read:user`"),
        (404, "{}", "check `forge.main.url`"),
        (200, "<html>", "any proxy or login page"),
    ] {
        let headers = match body {
            "<html>" => vec![("content-type".to_owned(), "text/html".to_owned())],
            _ => vec![],
        };
        let fault = Fault::Status { status, body: body.to_owned(), headers };
        outside.forge.fault(Matcher::new("GET", "/api/v1/user"), fault, 1);
        let (code, found) = complaints(&outside.file).await;
        assert!(code == Some(5) && found.len() == 1, "{found:?}");
        assert!(found[0].starts_with(&format!("fails forge main `{url}`: ")), "{found:?}");
        assert!(found[0].contains(words), "{found:?}");
    }
    outside.forge.fault(Matcher::new("GET", "/api/v1/user"), Fault::Hang, 1);
    let slow = hyla(&["doctor", "--config", &outside.file]).await;
    assert!(slow.stderr.contains(&format!("waiting for the forge at `{url}`")), "{}", slow.stderr);
    std::fs::write(outside.folder.path().join("token"), "not-a-token-of-the-forge")
        .expect("it is ours");
    let wrong = hyla(&["doctor", "--config", &outside.file]).await;
    assert!(wrong.code == Some(5) && wrong.stdout.contains("FAIL  forge main"), "{}", wrong.stdout);
    assert!(wrong.stdout.ends_with("then run `hyla doctor` again.\n"), "{}", wrong.stdout);
    assert!(!wrong.stdout.contains("not-a-token"), "{}", wrong.stdout);
    change(&url, "http://127.0.0.1:9/");
    let (_, found) = complaints(&outside.file).await;
    assert!(found[0].contains("`http://127.0.0.1:9/`") && found[0].contains("start the forge"));
    change("timeout = \"5s\"", "timeout = \"5s\"\n[sandbox]\nread_only = [\"/nope\"]");
    let wrong = hyla(&["doctor", "--config", &outside.file]).await;
    assert!(wrong.stderr.contains("`/nope` does not exist"), "{}", wrong.stderr);
    outside.forge.assert_clean();
}

#[tokio::test]
async fn doctor_sees_that_asks_in_an_organisation_would_be_refused() {
    let forge = FakeForge::start(Dialect::Gitea127).await;
    forge.add_organization("acme");
    let repo = forge.add_repository("acme", "hours", demo_folder().join("repository").as_path());
    forge.add_user("hyla", Permission::None);
    forge.set_permission(&repo, "hyla", Permission::Write);
    forge.add_label(&repo, "hyla");
    let model = ModelServer::start(Recording::default()).await.expect("it starts");
    let folder = way();
    let token = forge.token_for("hyla");
    let file = folder.path().join("hyla.toml");
    std::fs::write(&file, configuration(folder.path(), &forge, &model.url(), &token))
        .expect("it is ours");
    let (code, found) = complaints(&file.display().to_string()).await;
    assert!(code == Some(5) && found.len() == 1, "{found:?}");
    assert!(found[0].contains("make it an administrator of the repository"), "{found:?}");
    forge.set_permission(&repo, "hyla", Permission::Admin);
    let (code, found) = complaints(&file.display().to_string()).await;
    assert!(code == Some(0) && found.is_empty(), "{found:?}");
    forge.assert_clean();
}

/// A configured app, with a repository in which it is installed and which has the label.
struct Installed {
    forge: FakeForge,
    app: AppCredentials,
    folder: tempfile::TempDir,
    _model: ModelServer,
}

impl Installed {
    async fn new() -> Self {
        let forge = FakeForge::start(Dialect::Ghes319).await;
        let files = demo_folder().join("repository");
        let repo = forge.add_repository("acme", "hours", files.as_path());
        forge.add_label(&repo, "hyla");
        let app = forge.register_app("hyla");
        forge.install_app(&repo);
        let model = ModelServer::start(Recording::default()).await.expect("it starts");
        let folder = way();
        let credential = Credential::App(app.clone());
        let text = configuration_as(folder.path(), &forge, &model.url(), &credential);
        std::fs::write(folder.path().join("hyla.toml"), text).expect("it is ours");
        Self { forge, app, folder, _model: model }
    }

    fn change(&self, from: &str, to: &str) {
        let file = self.folder.path().join("hyla.toml");
        let text = std::fs::read_to_string(&file).expect("it is ours");
        assert!(text.contains(from), "{text}");
        std::fs::write(&file, text.replace(from, to)).expect("it is ours");
    }

    /// What the doctor says is all of this, in this order, each a part of one line.
    async fn assert_complaints(&self, expected: &[&str]) {
        let file = self.folder.path().join("hyla.toml");
        let (_, found) = complaints(&file.display().to_string()).await;
        let all = found.len() == expected.len()
            && found.iter().zip(expected).all(|(found, part)| found.contains(part));
        assert!(all, "{found:#?}\n{expected:#?}");
    }
}

#[tokio::test]
async fn doctor_follows_the_webhook_of_an_app() {
    let it = Installed::new().await;
    it.assert_complaints(&["webhook the app has none"]).await;
    it.forge.set_app_hook("http://127.0.0.1:9/hook", WEBHOOK_SECRET);
    it.assert_complaints(&["it must end in `/hooks/main`"]).await;
    it.forge.set_app_hook("http://127.0.0.1:9/hooks/main", "");
    it.assert_complaints(&["has no secret, so every delivery is refused"]).await;
    it.forge.set_app_hook("http://127.0.0.1:9/hooks/main", WEBHOOK_SECRET);
    it.forge.settle().await;
    it.assert_complaints(&["`ping` at 20"]).await;
    it.assert_complaints(&["(502); start `hyla serve`, and let the forge reach that address"])
        .await;

    let address = free_address();
    let server = format!("\n[server]\nlisten = \"{address}\"\n[model]");
    it.change("\n[model]", &server);
    let file = it.folder.path().join("hyla.toml");
    let _service = Command::new(hyla_binary())
        .args(["serve", "--config"])
        .arg(&file)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    until("it listens", || std::net::TcpStream::connect(address).is_ok()).await;
    it.forge.set_app_hook(&format!("http://{address}/hooks/main"), "another");
    it.forge.settle().await;
    it.assert_complaints(&["(401); compare the secret in the app's settings"]).await;
    it.forge.set_app_hook(&format!("http://{address}/hooks/main"), WEBHOOK_SECRET);
    it.forge.settle().await;
    it.assert_complaints(&[]).await;
    let sound = hyla(&["doctor", "--config", &file.display().to_string()]).await;
    assert!(sound.stdout.contains("arrive; the last was `ping`"), "{}", sound.stdout);
    assert!(sound.stdout.contains(&format!("the app is user `{}`", it.app.login)));
    it.forge.assert_clean();
}

#[tokio::test]
async fn doctor_names_what_an_app_is_not_granted() {
    let it = Installed::new().await;
    let repo = "acme/hours".parse().expect("that is a name");
    let hook = "webhook the app has none";
    it.forge.set_app_permissions(&[
        ("contents", "read"),
        ("issues", "write"),
        ("metadata", "read"),
    ]);
    it.assert_complaints(&[hook, "the app may not write `contents`, `pull_requests`; give it"])
        .await;
    it.forge.set_app_permissions(&[
        ("contents", "write"),
        ("issues", "write"),
        ("pull_requests", "write"),
        ("metadata", "read"),
    ]);
    it.forge.set_app_events(&["pull_request", "issue_comment"]);
    it.assert_complaints(&[hook, "tick `Issues` in its settings under Subscribe to events"]).await;
    it.forge.set_app_events(&["issues"]);
    it.assert_complaints(&[hook, "tick `Issue comment` in its settings"]).await;
    it.forge.set_app_events(&["issues", "issue_comment"]);
    it.forge.suspend_app(true);
    it.assert_complaints(&["end that in the settings under Installed GitHub Apps"]).await;
    it.forge.suspend_app(false);
    it.forge.uninstall_app(&repo);
    it.assert_complaints(&["install the app in each repository of `forge.main.repositories`"])
        .await;
    it.forge.assert_clean();
}

#[tokio::test]
async fn doctor_compares_the_clocks() {
    let it = Installed::new().await;
    let hook = "webhook the app has none";
    let meta = || Matcher::new("GET", "/api/v3/meta");
    for (seconds, words) in
        [(300, "seconds ahead of the forge"), (-300, "seconds behind the forge")]
    {
        let theirs = chrono::Utc::now() - chrono::TimeDelta::seconds(seconds);
        let date = theirs.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
        // A forge that is closed to strangers tells its time all the same.
        let headers = vec![("date".to_owned(), date)];
        let fault = Fault::Status { status: 401, body: "{}".into(), headers };
        it.forge.fault(meta(), fault, 1);
        it.assert_complaints(&[words, hook]).await;
    }
    it.assert_complaints(&[hook]).await;
}

#[tokio::test]
async fn doctor_knows_a_certificate_that_nobody_vouches_for() {
    let it = Installed::new().await;
    let url = it.forge.url();
    let behind = url.socket_addrs(|| None).expect("it is an address")[0].to_string();
    let Some(front) = TlsFront::start(behind).await else {
        eprintln!("skipped: there is no `openssl` command");
        return;
    };
    it.change(url.as_str().trim_end_matches('/'), &front.url());
    it.assert_complaints(&["let `forge.main.ca_file` name a PEM file"]).await;
    let ca_file = format!("timeout = \"5s\"\nca_file = \"{}\"", front.ca_file().display());
    it.change("timeout = \"5s\"", &ca_file);
    it.assert_complaints(&["webhook the app has none"]).await;
}

#[tokio::test]
async fn a_service_with_a_wrong_token_says_so_when_it_starts() {
    let outside = Outside::usual().await;
    std::fs::write(outside.folder.path().join("token"), "not-a-token").expect("it is ours");
    let log = outside.log();
    let _service = outside.serve(std::fs::File::create(&log).expect("it is ours"));
    let seen = || std::fs::read_to_string(&log).unwrap_or_default();
    until("it warns", || seen().contains("make a new token for the bot's user")).await;
    until("it listens all the same", || seen().contains("listening")).await;
}

#[tokio::test]
async fn files_of_another_user_in_the_data_folder_are_named_with_what_to_do() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let outside = Outside::usual().await;
    outside.forge.add_label(&"acme/hours".parse().expect("that is a name"), "hyla");
    let data = outside.data();
    std::fs::create_dir(&data).expect("it is ours");
    std::fs::write(data.join("hyla.db"), "").expect("it is ours");
    std::os::unix::fs::chown(data.join("hyla.db"), Some(64_023), None).expect("root may");
    let (code, found) = complaints(&outside.file).await;
    let words = format!("run `sudo chown -R root {}`", data.display());
    assert!(code == Some(5) && found.len() == 1 && found[0].contains(&words), "{found:?}");

    // What a service sees that is not root: it cannot open what root has made.
    let output = Command::new("setpriv")
        .args(["--reuid", "64023", "--regid", "64023", "--clear-groups"])
        .arg(hyla_binary())
        .args(["run", "main:acme/hours#1", "--config", &outside.file])
        .output();
    for path in ["token", "webhook"] {
        let path = outside.folder.path().join(path);
        std::os::unix::fs::chown(path, Some(64_023), None).expect("root may");
    }
    std::os::unix::fs::chown(&data, Some(64_023), None).expect("root may");
    std::os::unix::fs::chown(data.join("hyla.db"), Some(0), Some(0)).expect("root may");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(data.join("hyla.db"), mode).expect("it is ours");
    let output = output.await.expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("hyla.db` belongs to `root`"), "{stderr}");
    assert!(stderr.contains("run `sudo chown -R 64023"), "{stderr}");

    // Its own folder, which it may not write.
    std::os::unix::fs::chown(data.join("hyla.db"), Some(64_023), None).expect("root may");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o500);
    std::fs::set_permissions(&data, mode).expect("it is ours");
    let output = Command::new("setpriv")
        .args(["--reuid", "64023", "--regid", "64023", "--clear-groups"])
        .arg(hyla_binary())
        .args(["doctor", "--config", &outside.file])
        .output();
    let output = output.await.expect("it starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let words = format!("its mode is 500; run `chmod u+rwx {}`", data.display());
    assert!(stdout.contains(&words), "{stdout}");
}
