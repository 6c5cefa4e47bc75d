//! The main job on a GitHub that others wrote: the npm package `emulate` in a process of its own, reached through a proxy
//! (`emulate::door`), with the real `hyla serve` as its app. What came of it is asked of the emulator.

mod door;
mod mirror;
mod server;

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bot::job::{End, Job, Outcome, RepoName, Rule, State, Subject};
use bot::store::Store as _;
use bot::store::sqlite::Sqlite;
use serde_json::{Value, json};
use tests::forge::AppCredentials;
use tests::house::{
    Credential, WEBHOOK_SECRET, configuration_at, demo_issue, demo_recording, hyla_binary, way,
};
use tests::model::{ModelServer, PATIENCE};
use tests::outside::{LOOK, files_below, free_address, show_if_failed, until};
use tokio::process::{Child, Command};

use self::door::Door;
use self::server::{APP, Emulator, INSTALLATION};

/// The login of the app's user.
const BOT: &str = "hyla[bot]";

/// The emulator, the proxy before it, and `hyla serve` as an app there.
struct Scene {
    emulator: Emulator,
    door: Door,
    model: ModelServer,
    folder: tempfile::TempDir,
    _service: Child,
}

impl Scene {
    async fn start(package: &Path) -> Self {
        let address = free_address();
        let emulator = Emulator::start(package, &format!("http://{address}/hooks/main")).await;
        emulator.furnish().await;
        let door = Door::start(&emulator.url, &server::token("ann")).await;
        let model = ModelServer::start(demo_recording()).await.expect("loopback has a free port");
        let folder = way();
        let login = BOT.to_owned();
        let app = AppCredentials { id: APP, login, private_key: emulator.key.clone() };
        let (place, app) = ((config::ForgeKind::GitHub, &door.url), Credential::App(app));
        let text = configuration_at(folder.path(), place, &model.url(), &app);
        // Nothing but a webhook brings an issue to the bot's notice within this test.
        let more = format!(
            "\n[queue]\nsettle = \"10ms\"\nreconcile = \"1d\"\n\n[server]\nlisten = \"{address}\"\n"
        );
        let file = folder.path().join("hyla.toml");
        std::fs::write(&file, text + &more).expect("the temp folder can be written");
        let log = std::fs::File::create(folder.path().join("log")).expect("the folder is ours");
        let service = Command::new(hyla_binary())
            .arg("serve")
            .arg("--config")
            .arg(file)
            .stdin(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        until("it listens", || std::net::TcpStream::connect(address).is_ok()).await;
        Self { emulator, door, model, folder, _service: service }
    }

    async fn store(&self) -> Sqlite {
        let file = self.folder.path().join("data/hyla.db");
        Sqlite::open(&file).await.expect("the store opens")
    }

    /// The job of an issue and its end, once nothing is due any more.
    async fn ended(&self, issue: u64) -> (Job, End) {
        let store = self.store().await;
        let begun = Instant::now();
        loop {
            let jobs = store.jobs(10).await.expect("the store answers");
            let due = store.next_due().await.expect("the store answers");
            let job = jobs.iter().map(|row| &row.job).find(|job| job.subject.issue == issue);
            if let (Some(job), None) = (job, due)
                && let State::Ended { end } = &job.state
            {
                return (job.clone(), end.clone());
            }
            assert!(begun.elapsed() < PATIENCE, "issue {issue} is not done: {jobs:?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What the bot wrote on an issue or pull request, as the emulator has it.
    async fn comments(&self, number: u64) -> Vec<String> {
        let path = format!("/repos/acme/hours/issues/{number}/comments");
        let comments = self.emulator.read(&path).await;
        let comments = comments.as_array().expect("it is a list").iter();
        let own = comments.filter(|comment| comment["user"]["login"] == BOT);
        own.map(|comment| words(&comment["body"])).collect()
    }

    /// Secrets stand in no comment, no pull request, no commit, no file of the bot's, and nothing that it sent besides in an
    /// `Authorization`.
    async fn assert_no_secret(&self, published: &[String]) {
        let mut places = self.door.sent();
        places.push(("a commit".to_owned(), self.door.commits().into_bytes()));
        places.extend(
            published
                .iter()
                .map(|text| ("what was published".to_owned(), text.clone().into_bytes())),
        );
        let (data, log) = (self.folder.path().join("data"), self.folder.path().join("log"));
        for path in files_below(&data).into_iter().chain([log]) {
            places.push((path.display().to_string(), std::fs::read(&path).unwrap_or_default()));
        }
        places.extend(
            self.model
                .requests()
                .iter()
                .map(|request| ("a prompt".to_owned(), request.to_string().into_bytes())),
        );
        let mut secrets = self.door.tokens();
        assert!(secrets.iter().any(|token| token.starts_with("ghs_")), "no token was minted");
        // Its middle: the first and the last line of every key are the same.
        let key = self.emulator.key.lines().nth(3).expect("a key has lines").to_owned();
        secrets.extend([key, WEBHOOK_SECRET.to_owned()]);
        for (place, content) in places {
            for secret in &secrets {
                let mut parts = content.windows(secret.len());
                assert!(!parts.any(|part| part == secret.as_bytes()), "a secret is in {place}");
            }
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        show_if_failed(&self.folder.path().join("log"));
    }
}

fn words(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_label_becomes_a_draft_on_a_github_that_others_wrote() {
    let Some(package) = server::package() else {
        eprintln!("skipped: the package `emulate` is not installed; `bash tests/run.sh` does it");
        return;
    };
    let scene = Scene::start(&package).await;

    // Who may triage may label, and may not ask.
    let other = scene.emulator.open_issue(demo_issue()).await;
    scene.emulator.label("rob", other).await;
    let (_, end) = scene.ended(other).await;
    assert_eq!(end.outcome, Outcome::Refused(Rule::AdderCannotWrite), "{}", end.operator);
    assert_eq!(scene.comments(other).await.len(), 1);
    assert!(scene.model.requests().is_empty());

    let issue = scene.emulator.open_issue(demo_issue()).await;
    scene.emulator.label("ann", issue).await;
    let (job, end) = scene.ended(issue).await;
    assert_eq!(job.asked_by.as_deref(), Some("ann"));
    assert_eq!(end.outcome, Outcome::DraftPr, "{}", end.operator);
    let name = RepoName { owner: "acme".to_owned(), name: "hours".to_owned() };
    let subject = Subject { forge: "main".to_owned(), repo: name, issue };
    let history = scene.store().await.history(&subject).await.expect("the store answers");
    let asked = history.deliveries.iter().find(|delivered| delivered.job == Some(job.id));
    assert_eq!(asked.map(|delivered| delivered.event.as_str()), Some("issues"), "{history:?}");

    let pulls = scene.emulator.read("/repos/acme/hours/pulls?state=all").await;
    let [pull] = pulls.as_array().expect("it is a list").as_slice() else { panic!("{pulls}") };
    assert_eq!((&pull["draft"], &pull["state"]), (&json!(true), &json!("open")));
    let author = json!([pull["user"]["login"], pull["user"]["type"], pull["base"]["ref"]]);
    assert_eq!(author, json!([BOT, "Bot", "main"]));
    let comments = scene.comments(issue).await;
    assert_eq!(comments.len(), 1, "{comments:?}");
    let link = format!("{}acme/hours/pull/{}", scene.door.url, pull["number"]);
    assert!(comments[0].contains(&link), "{comments:?}");

    assert_branches_agree(&scene, pull).await;
    assert_tokens_are_narrow(&scene).await;
    let mut published = comments;
    published.extend([words(&pull["title"]), words(&pull["body"])]);
    published.extend(scene.comments(other).await);
    scene.assert_no_secret(&published).await;
    assert_eq!(scene.door.wrong(), Vec::<String>::new());
    assert_eq!(scene.model.violations(), Vec::<String>::new());
}

/// The emulator and git have the same branches, and the draft's holds the repair, by the app's own user.
async fn assert_branches_agree(scene: &Scene, pull: &Value) {
    let refs = scene.emulator.read("/repos/acme/hours/git/matching-refs/heads").await;
    let refs = refs.as_array().expect("it is a list").iter();
    let refs = refs.map(|entry| (words(&entry["ref"]), words(&entry["object"]["sha"])));
    let mut refs: Vec<(String, String)> = refs.collect();
    let branches = scene.door.branches().into_iter();
    let mut branches: Vec<(String, String)> =
        branches.map(|(name, commit)| (format!("refs/heads/{name}"), commit)).collect();
    refs.sort();
    branches.sort();
    assert_eq!((refs.len(), &refs), (2, &branches));
    let head = &pull["head"];
    let pushed = (format!("refs/heads/{}", words(&head["ref"])), words(&head["sha"]));
    assert!(branches.contains(&pushed), "{pushed:?} {branches:?}");

    let path = format!("/repos/acme/hours/contents/hours.py?ref={}", words(&head["sha"]));
    let file = scene.emulator.read(&path).await;
    let content = words(&file["content"]).replace('\n', "");
    let content = STANDARD.decode(content).expect("it comes in base 64");
    let content = String::from_utf8_lossy(&content).into_owned();
    assert!(content.contains("return at >= opens or at < closes"), "{content}");

    let user = scene.emulator.read("/users/hyla%5Bbot%5D").await;
    let path = format!("/repos/acme/hours/git/commits/{}", words(&head["sha"]));
    let commit = scene.emulator.read(&path).await;
    let email = format!("{}+{BOT}@users.noreply.127.0.0.1", user["id"]);
    assert_eq!(words(&commit["author"]["email"]), email);
}

/// Each token of the app was asked for this repository alone, though the app is in another one too.
async fn assert_tokens_are_narrow(scene: &Scene) {
    let repo = scene.emulator.read("/repos/acme/hours").await;
    let minted = scene.emulator.read("/_emulate/installation-tokens").await;
    let minted = minted["installation_tokens"].as_array().expect("it is a list");
    assert!(!minted.is_empty());
    for token in minted {
        assert_eq!(token["repository_ids"], json!([repo["id"]]), "{token}");
        assert_eq!(token["installation"]["id"], INSTALLATION, "{token}");
    }
}
