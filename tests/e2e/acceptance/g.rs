//! Check G: the token canary. While jobs of every kind run in the real service, and after them, no secret of the bot's
//! is where it does not belong, in any spelling, whole or cut. Each redaction has a test here that fails without it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bot::forge::Permission;
use bot::job::{Failure, Outcome, Rule};
use bot::worker::{Stop, Verdict, Work};
use nix::sys::signal::Signal;
use tests::forge::{Dialect, FakeForge, Fault, Files, Matcher};
use tests::house::{House, Setup, WEBHOOK_SECRET, demo_folder, hyla_binary};
use tests::model::{Fault as ModelFault, PATIENCE, Recording, Turn};
use tests::outside::{Outside, files_below, send, until};
use tokio::process::{Child, Command};

pub(super) const FIX: &str =
    "sed -i 's/return opens <=/return closes < opens or opens <=/' hours.py";
/// The key of the model's server: with letters that are written in several ways.
pub(super) const MODEL_KEY: &str = "model/key+of=tests&0123456789";
/// Characters by which a cut secret is known.
const PART_CHARS: usize = 12;

/// A secret in every spelling that something in between may give it, each by its name, and its first characters.
pub(super) struct Canary {
    spellings: Vec<(String, Vec<u8>)>,
}

impl Canary {
    pub(super) fn of(name: &str, secret: &str) -> Self {
        let percent = |upper: bool| -> String {
            let digits =
                |byte: u8| if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") };
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            secret
                .bytes()
                .map(|byte| if plain(byte) { char::from(byte).to_string() } else { digits(byte) })
                .collect()
        };
        let mut spellings = vec![
            ("itself".to_owned(), secret.to_owned()),
            ("percent-encoded".to_owned(), percent(true)),
            ("percent-encoded in small digits".to_owned(), percent(false)),
            ("hex".to_owned(), hex::encode(secret)),
            ("its beginning".to_owned(), secret.chars().take(PART_CHARS).collect()),
        ];
        for before in ["", "x", "xx"] {
            let text = format!("{before}{secret}");
            // The digits that what stands before and behind has no part in.
            let start = if before.is_empty() { 0 } else { 4 };
            for digits in [STANDARD.encode(&text), URL_SAFE_NO_PAD.encode(&text)] {
                let digits = digits.trim_end_matches('=');
                spellings.push(("base64".to_owned(), digits[start..digits.len() - 4].to_owned()));
                spellings.push((
                    "the beginning of base64".to_owned(),
                    digits[start..start + PART_CHARS].to_owned(),
                ));
            }
        }
        let named =
            spellings.into_iter().map(|(how, text)| (format!("{name}, {how}"), text.into_bytes()));
        Self { spellings: named.collect() }
    }
}

/// Where which secret was seen.
pub(super) fn sightings(canaries: &[Canary], place: &str, content: &[u8]) -> Vec<String> {
    let spellings = canaries.iter().flat_map(|canary| &canary.spellings);
    let found =
        spellings.filter(|(_, text)| content.windows(text.len()).any(|window| window == text));
    found.map(|(name, _)| format!("{name}, in {place}")).collect()
}

/// Every object of a repository, unpacked.
fn objects(git_dir: &Path) -> Vec<u8> {
    let output = std::process::Command::new("git")
        .arg("--git-dir")
        .arg(git_dir)
        .args([
            "-c",
            "safe.directory=*",
            "cat-file",
            "--batch-all-objects",
            "--batch",
            "--unordered",
        ])
        .output()
        .expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// What a look at the processes below one, and at the workspaces, has seen.
#[derive(Default)]
struct Seen {
    sightings: BTreeSet<String>,
    programs: BTreeSet<String>,
    n_environments: usize,
    n_workspace_files: usize,
}

/// The processes that descend from one.
fn descendants(of: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let all = std::fs::read_dir("/proc").expect("Linux has it").flatten();
    let all: Vec<u32> = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let pairs: Vec<(u32, u32)> =
        all.into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![of];
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        found.extend(pairs.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| child));
        at += 1;
    }
    found.remove(0);
    found
}

/// Looks at arguments and environments of a process and of all below it, and at the workspaces, until it is told to stop.
fn watch(
    pid: u32,
    data: PathBuf,
    canaries: Arc<Vec<Canary>>,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
) {
    while !stop.load(Ordering::SeqCst) {
        let mut found = Vec::new();
        let (mut programs, mut n_environments, mut n_files) = (Vec::new(), 0, 0);
        let own = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        found.extend(sightings(&canaries, "the service's arguments", &own));
        for child in descendants(pid) {
            let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            // A fork that has not become another program yet: it still is the service, whose environment is its own.
            if line == own {
                continue;
            }
            let shown = String::from_utf8_lossy(&line).replace('\0', " ");
            found.extend(sightings(&canaries, &format!("the arguments `{shown}`"), &line));
            programs.push(shown.split(' ').next().unwrap_or_default().to_owned());
            if let Ok(environment) = std::fs::read(format!("/proc/{child}/environ")) {
                found.extend(sightings(
                    &canaries,
                    &format!("the environment of `{shown}`"),
                    &environment,
                ));
                n_environments += 1;
            }
        }
        for job in std::fs::read_dir(data.join("jobs")).into_iter().flatten().flatten() {
            for file in files_below(&job.path()) {
                let content = std::fs::read(&file).unwrap_or_default();
                found.extend(sightings(&canaries, &file.display().to_string(), &content));
                n_files += usize::from(file.to_string_lossy().contains("/workspace/"));
            }
        }
        let mut seen = seen.lock().expect("no holder of this lock panics");
        seen.sightings.extend(found);
        seen.programs.extend(programs);
        seen.n_environments += n_environments;
        seen.n_workspace_files += n_files;
        drop(seen);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The service as a process of its own, a forge and a model's server.
struct Watched {
    outside: Outside,
    service: Child,
    canaries: Arc<Vec<Canary>>,
}

impl Watched {
    /// A service that logs all that it can, with its model's key in its environment.
    async fn start(recording: Recording) -> Self {
        let more = "key = { env = \"CANARY_KEY\" }\n[queue]\nsettle = \"100ms\"\nattempts = 1\nworkers = 1\n";
        let outside = Outside::start_as(Dialect::Gitea127, recording, more).await;
        let log = std::fs::File::create(outside.log()).expect("it is ours");
        let mut command = outside.command();
        command
            .env("CANARY_KEY", MODEL_KEY)
            .env("HYLA_LOG", "info,bot=trace,webhooks=trace,config=trace,engine=trace");
        let service = command.stderr(log).spawn().expect("it starts");
        outside.is_heard().await;
        let canaries = vec![
            Canary::of("the token", &outside.token),
            Canary::of("the webhook secret", WEBHOOK_SECRET),
            Canary::of("the model's key", MODEL_KEY),
        ];
        Self { outside, service, canaries: Arc::new(canaries) }
    }

    fn log(&self) -> String {
        let log = std::fs::read(self.outside.log()).expect("it is ours");
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Opens an issue about a case with the label on it, and waits until its job has ended `n_ended` of them in all.
    async fn ask(&self, about: &str, n_ended: usize) {
        let ann = self.outside.forge.person("ann");
        let issue =
            ann.open_issue(&self.outside.repo, "A change", &format!("case {about}."), &[]).await;
        ann.add_label(&self.outside.repo, issue, "hyla").await;
        until(about, || self.log().matches("\"message\":\"ended").count() >= n_ended).await;
    }

    /// Every object of the mirrors, with the mirror.
    fn mirrors(&self) -> Vec<(String, Vec<u8>)> {
        let files = files_below(&self.outside.data().join("mirrors"));
        let heads = files.iter().filter(|file| file.ends_with("HEAD"));
        let folders =
            heads.filter_map(|head| head.parent()).filter(|folder| folder.join("objects").is_dir());
        folders
            .map(|mirror| (format!("an object of {}", mirror.display()), objects(mirror)))
            .collect()
    }

    /// Everything that is left anywhere, with the place where it is.
    async fn everything(&mut self) -> Vec<(String, Vec<u8>)> {
        let mut places = Vec::new();
        for arguments in [vec!["jobs", "--json"], vec!["jobs"], vec!["transcript", "1"]] {
            let output = Command::new(hyla_binary())
                .args(&arguments)
                .args(["--config", &self.outside.file])
                .env("CANARY_KEY", MODEL_KEY)
                .output();
            let output = output.await.expect("it starts");
            places.push((
                format!("`hyla {}`", arguments.join(" ")),
                [output.stdout, output.stderr].concat(),
            ));
        }
        send(&self.service, Signal::SIGTERM);
        let ended = tokio::time::timeout(PATIENCE, self.service.wait()).await;
        assert!(ended.expect("it stops").expect("it is ours").success(), "{}", self.log());
        for file in files_below(&self.outside.data()) {
            places.push((file.display().to_string(), std::fs::read(&file).expect("it is ours")));
        }
        places.push((
            "an object of the forge".into(),
            objects(&self.outside.forge.git_dir(&self.outside.repo)),
        ));
        places.push(("the log".into(), self.log().into_bytes()));
        for request in self.outside.forge.requests() {
            let what = format!("{} {}", request.method, request.path);
            let headers = request
                .headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}\n"))
                .collect::<String>();
            places.push((
                format!("the address of {what}"),
                format!("{what}?{}", request.query).into_bytes(),
            ));
            places.push((format!("a header of {what}"), headers.into_bytes()));
            places.push((format!("the body of {what}"), request.body));
        }
        for request in self.outside.model.requests() {
            places.push(("what the model is told".into(), request.to_string().into_bytes()));
        }
        places
    }
}

/// The header that git sends, and that of the API, as a forge or a proxy may repeat them in an error.
fn echoes(token: &str) -> String {
    format!(
        "bad header: Authorization: token {token}; Authorization: Basic {}; access_token={token}",
        STANDARD.encode(format!("hyla:{token}"))
    )
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one story, from the start of the service to what it leaves"
)]
async fn check_g_no_secret_is_anywhere_while_the_service_works_or_after() {
    // The model looks for secrets, and says those that it was told somewhere else.
    let look = "env; cat /proc/*/environ /proc/*/cmdline; ps aux; grep -r . /proc/self/mountinfo; git config --list --show-origin; \
                git remote -v; grep -rIn -e token -e secret -e Basic / --include='*.toml' --include=config 2>/dev/null | head -50";
    let all = |token: &str| {
        format!("{token} {WEBHOOK_SECRET} {MODEL_KEY} {}", STANDARD.encode(format!("hyla:{token}")))
    };
    // The forge's tokens are made when it starts, so the first is known only then; the model learns it from a file.
    let recording = |token: &str| {
        let says = all(token);
        let print = format!("sed -i '1i print(\"\"\"{says}\"\"\")' tests/test_hours.py");
        let put = |path: &str| format!("{FIX}; echo '{says}' > {path}");
        Recording::of_stories([
            (
                "case good.".to_owned(),
                vec![
                    Turn::bash(look),
                    Turn { reasoning: says.clone(), ..Turn::bash(FIX) },
                    Turn::says(&says),
                ],
            ),
            (
                "case printed.".to_owned(),
                vec![Turn::bash(&format!("{print}; {FIX}")), Turn::says("Done.")],
            ),
            ("case kept.".to_owned(), vec![Turn::bash(&put("notes.txt")), Turn::says(&says)]),
            (
                "case named.".to_owned(),
                vec![
                    Turn::bash(&format!("{FIX}; mkdir -p x; echo x > x/{WEBHOOK_SECRET}")),
                    Turn::says(&says),
                ],
            ),
            ("case push.".to_owned(), vec![Turn::bash(FIX), Turn::says("Done.")]),
            (
                "case break.".to_owned(),
                vec![Turn {
                    fault: Some(ModelFault::Breaks(format!("{}{MODEL_KEY}", "x".repeat(264)))),
                    ..Turn::default()
                }],
            ),
            (
                "case answer.".to_owned(),
                vec![Turn {
                    fault: Some(ModelFault::Status {
                        status: 400,
                        message: format!("{}{MODEL_KEY}", "x".repeat(285)),
                        retry_after: None,
                    }),
                    ..Turn::default()
                }],
            ),
        ])
    };
    // Another forge gives its first user the same token.
    let probe = FakeForge::start(Dialect::Gitea127).await;
    probe.add_repository("acme", "hours", demo_folder().join("repository").as_path());
    probe.add_user("ann", Permission::None);
    probe.add_user("hyla", Permission::None);
    let token = probe.token_for("hyla");
    let mut watched = Watched::start(recording(&token)).await;
    assert_eq!(watched.outside.token, token, "the model knows the token");

    let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Seen::default())));
    let pid = watched.service.id().expect("it runs");
    let watcher = {
        let (data, canaries) = (watched.outside.data(), Arc::clone(&watched.canaries));
        let (stop, seen) = (Arc::clone(&stop), Arc::clone(&seen));
        std::thread::spawn(move || watch(pid, data, canaries, stop, seen))
    };
    watched.ask("good", 1).await;
    watched.ask("answer", 2).await;
    watched.ask("break", 3).await;
    fail_a_push(&watched, 4).await;
    repeat_headers(&watched, 5).await;
    redirect(&watched, 7).await;
    stop.store(true, Ordering::SeqCst);
    watcher.join().expect("it does not panic");
    let mirrors = watched.mirrors();
    assert!(!mirrors.is_empty());
    // From here on the agent itself writes secrets into its files, which are judged as objects of the mirror.
    watched.ask("kept", 8).await;
    watched.ask("named", 9).await;
    watched.ask("printed", 10).await;

    let seen = std::mem::take(&mut *seen.lock().expect("no holder of this lock panics"));
    assert!(seen.sightings.is_empty(), "{:#?}", seen.sightings);
    assert!(seen.programs.iter().any(|program| program.ends_with("bwrap")), "{:?}", seen.programs);
    assert!(
        seen.n_environments > 20 && seen.n_workspace_files > 20,
        "{} {}",
        seen.n_environments,
        seen.n_workspace_files
    );

    let canaries = Arc::clone(&watched.canaries);
    let mut found = BTreeSet::new();
    for (place, content) in mirrors.into_iter().chain(watched.everything().await) {
        // What the scripted model says goes back to it, as every conversation does.
        if place != "what the model is told" {
            found.extend(sightings(&canaries, &place, &content));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
    let told = watched.outside.model.requests_about("case good.")[1].to_string();
    assert!(sightings(&canaries, "the sandbox", told.as_bytes()).is_empty(), "{told}");
    assert!(
        told.contains("PATH=") && told.contains("Exit code"),
        "the sandbox was looked at: {told}"
    );
    // Each of these would have shown one.
    let log = watched.log();
    for words in ["no reaction", "redirects", "rejected", "[secret]"] {
        assert!(log.contains(words), "{words}: {log}");
    }
}

/// The server's hook says no, and repeats what it was sent.
async fn fail_a_push(watched: &Watched, n_ended: usize) {
    use std::os::unix::fs::PermissionsExt;
    let hook = watched.outside.forge.git_dir(&watched.outside.repo).join("hooks/pre-receive");
    let token = watched.outside.token.clone();
    let long = "y".repeat(1000 - 20 - echoes(&token).len() - 1);
    let script = format!("#!/bin/sh\necho '{} {long} {token}'\nexit 1\n", echoes(&token));
    std::fs::create_dir_all(hook.parent().expect("it lies in a folder")).expect("it is ours");
    std::fs::write(&hook, script).expect("it is ours");
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).expect("it is ours");
    watched.ask("push", n_ended).await;
    std::fs::remove_file(&hook).expect("it is ours");
}

/// The forge, or a proxy before it, repeats the headers of what it refuses, once so that they are cut.
async fn repeat_headers(watched: &Watched, n_ended: usize) {
    let words = echoes(&watched.outside.token);
    let cut = format!("{} {}", "z".repeat(285), watched.outside.token);
    watched.outside.forge.fault(Matcher::new("POST", "*/reactions"), Fault::status(400, &words), 1);
    watched.outside.forge.fault(
        Matcher::new("GET", "/api/v1/repos/acme/hours"),
        Fault::status(403, &cut),
        1,
    );
    watched.ask("headers", n_ended).await;
}

/// The forge sends the bot elsewhere, with the token in the address.
async fn redirect(watched: &Watched, n_ended: usize) {
    let token = watched.outside.token.clone();
    let to = |path: String| Fault::Status {
        status: 302,
        body: String::new(),
        headers: vec![("location".into(), format!("http://127.0.0.1:9/{path}"))],
    };
    // Long enough to be cut within the token.
    let cut = format!("{}/{token}", "w".repeat(262));
    watched.outside.forge.fault(Matcher::new("GET", "/api/v1/repos/acme/hours"), to(cut), 1);
    watched.ask("redirect", n_ended - 1).await;
    let cut = format!("{}/{token}", "v".repeat(162));
    watched.outside.forge.fault(Matcher::new("GET", "/acme/hours.git/info/refs"), to(cut), 1);
    watched.ask("git redirect", n_ended).await;
}

#[test]
fn check_g_the_search_finds_every_spelling() {
    let canary = [Canary::of("it", MODEL_KEY)];
    for text in [
        MODEL_KEY.to_owned(),
        "model%2Fkey%2Bof%3Dtests%260123456789".to_owned(),
        "model%2fkey%2bof%3dtests%260123456789".to_owned(),
        STANDARD.encode(MODEL_KEY),
        STANDARD.encode(format!("hyla:{MODEL_KEY}")),
        STANDARD.encode(format!("user:{MODEL_KEY}:more")),
        URL_SAFE_NO_PAD.encode(format!("ann:{MODEL_KEY}")),
        hex::encode(MODEL_KEY),
        MODEL_KEY[..15].to_owned(),
    ] {
        assert!(!sightings(&canary, "a text", format!("x{text}x").as_bytes()).is_empty(), "{text}");
    }
    assert!(sightings(&canary, "a text", b"model key of tests").is_empty());
}

/// A house in which the model plays this, and the repository holds files besides those of the demonstration.
pub(super) async fn house(turns: Vec<Turn>, more: &[(&str, &str)]) -> House {
    let mut files: Vec<(String, Vec<u8>)> = ["README.md", "hours.py", "tests/test_hours.py"]
        .iter()
        .map(|path| {
            (
                (*path).to_owned(),
                std::fs::read(demo_folder().join("repository").join(path)).expect("it is there"),
            )
        })
        .collect();
    files.extend(more.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())));
    House::start(Setup {
        recording: Recording::of(turns),
        files: Files::from(files),
        ..Setup::default()
    })
    .await
}

pub(super) fn assert_none(place: &str, text: &str) {
    let canaries = [
        Canary::of("the webhook secret", WEBHOOK_SECRET),
        Canary::of("the model's key", MODEL_KEY),
    ];
    let found = sightings(&canaries, place, text.as_bytes());
    assert!(found.is_empty(), "{found:?}: {text}");
    assert!(text.contains("[secret]"), "nothing was taken out of {place}: {text}");
}

#[tokio::test]
async fn check_g_people_who_publish_a_secret_do_not_tell_the_model() {
    let instructions = format!("Use {WEBHOOK_SECRET} for the hook.\n");
    let house = house(vec![Turn::says("Nothing.")], &[("AGENTS.md", &instructions)]).await;
    let ann = house.forge.person("ann");
    let issue = ann
        .open_issue(
            &house.repo,
            &format!("TITLE {WEBHOOK_SECRET}"),
            &format!("BODY {WEBHOOK_SECRET}"),
            &[],
        )
        .await;
    ann.comment(&house.repo, issue, &format!("COMMENT {WEBHOOK_SECRET}")).await;
    ann.add_label(&house.repo, issue, "hyla").await;
    house.work_through_retries().await;
    let told = house.model.requests()[0].to_string();
    assert_none("what the model is told", &told);
    for words in
        ["TITLE [secret]", "BODY [secret]", "COMMENT [secret]", "Use [secret] for the hook"]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[tokio::test]
async fn check_g_what_is_kept_of_a_job_holds_no_secret() {
    let print = format!("sed -i '1i print(\"{WEBHOOK_SECRET}\")' tests/test_hours.py");
    let words = format!("{}{WEBHOOK_SECRET}", "x".repeat(2990));
    let turns =
        vec![Turn::bash(&format!("{print}; {FIX}; echo {WEBHOOK_SECRET}")), Turn::says(&words)];
    let first = house(turns, &[]).await;
    first.labelled_and_worked().await;
    assert_eq!(first.end().await.outcome, Outcome::Refused(Rule::Secret));
    let folder = first.bot.folder(first.jobs().await[0].job.id);
    let read = |path: PathBuf| std::fs::read_to_string(path).expect("it is kept");
    assert_none("the transcript", &read(folder.transcript()));
    assert_none("the patch", &read(folder.patch()));

    // The gate takes no secret; so the test puts it together.
    let (head, tail) = WEBHOOK_SECRET.split_at(9);
    let print = format!(
        "sed -i '1i print(\"{head}\" + \"{tail}\")' tests/test_hours.py; mkdir '{}'; mkfifo '{}/{WEBHOOK_SECRET}'",
        "p".repeat(190),
        "p".repeat(190)
    );
    let second = house(vec![Turn::bash(&format!("{print}; {FIX}")), Turn::says(&words)], &[]).await;
    second.labelled_and_worked().await;
    assert_eq!(second.end().await.outcome, Outcome::DraftPr, "{}", second.end().await.operator);
    let folder = second.bot.folder(second.jobs().await[0].job.id);
    assert_none("the output of the tests", &read(folder.root().join("tests.log")));
    let body = second.forge.pulls(&second.repo)[0].body.clone();
    assert_none("the body", &body);
    // Twice what the tests print, the end of the model's words, and the path that was left out, each before it is cut.
    assert_eq!(body.matches("[secret]").count(), 4, "{body}");
}

#[tokio::test]
async fn check_g_what_the_bot_writes_itself_holds_no_secret() {
    // Somebody's login, the base branch and a command are written as they are.
    let file =
        format!("test_command = 'python3 -m unittest discover -s tests # {WEBHOOK_SECRET}'\n");
    let house = house(vec![Turn::bash(FIX), Turn::says("Done.")], &[(".hyla.toml", &file)]).await;
    house.forge.add_user(WEBHOOK_SECRET, Permission::None);
    house.forge.set_permission(&house.repo, WEBHOOK_SECRET, Permission::Write);
    let issue = house.open_issue().await;
    house.forge.person(WEBHOOK_SECRET).add_label(&house.repo, issue, "hyla").await;
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert_none("the body", &house.forge.pulls(&house.repo)[0].body);
    assert_none("the comment", &house.status_comments(issue)[0]);
    // Nor did the comment hold it while the job ran.
    let canary = [Canary::of("the webhook secret", WEBHOOK_SECRET)];
    for request in house.forge.requests() {
        let found = sightings(&canary, &request.path, &request.body);
        assert!(found.is_empty(), "{found:?}: {}", String::from_utf8_lossy(&request.body));
    }
}

#[tokio::test]
async fn check_g_a_refusal_says_no_secret_whole_or_cut() {
    let name = format!("{}/{WEBHOOK_SECRET}", "n".repeat(180));
    let house = house(
        vec![
            Turn::bash(&format!("mkdir {}; echo x > {name}", "n".repeat(180))),
            Turn::says("Done."),
        ],
        &[],
    )
    .await;
    let issue = house.labelled_and_worked().await;
    assert_eq!(house.end().await.outcome, Outcome::Refused(Rule::Secret));
    assert_none("the comment", &house.status_comments(issue)[0]);

    let rules = config::RepoFile::default();
    let input = bot::input::Input::of("t", "b", &house.bot.redactor);
    let task = bot::workshop::Task {
        input,
        digest: String::new(),
        repo_file: rules,
        server_command: None,
    };
    let barred = bot::patch::Barred {
        path: "x".into(),
        rule: Rule::Symlink,
        detail: format!("to {WEBHOOK_SECRET}"),
    };
    let patch = bot::patch::Patch {
        base: bot::job::CommitId("0".repeat(40)),
        tree: bot::patch::TreeId("0".repeat(40)),
        changes: Vec::new(),
        barred: vec![barred],
        left_out: Vec::new(),
        text: String::new(),
    };
    let refusal = house
        .bot
        .workshop
        .gate(&patch, &task)
        .expect("the rules are right")
        .expect_err("it is barred");
    assert_none("the reason", &refusal.detail);
}

#[tokio::test]
async fn check_g_a_verdict_is_without_secrets_before_and_after_people_are_told() {
    let file = format!("protected_paths = ['[{WEBHOOK_SECRET}']\n");
    let house = house(vec![], &[(".hyla.toml", &file)]).await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.clock.advance(house.bot.config.queue.settle);
    let now = bot::clock::Clock::now(house.clock.as_ref());
    let (job, lease) = house
        .bot
        .store
        .claim("test", now, now + chrono::Duration::minutes(5))
        .await
        .expect("the store answers")
        .expect("a job is due");
    let verdict = house.bot.job(&job, &lease, &Stop::default()).await;
    let Verdict::Ended(end) = &verdict else { panic!("{verdict:?}") };
    assert_eq!(end.outcome, Outcome::Refused(Rule::RepositoryFile));
    assert_none("the verdict", &end.operator);

    let chain = format!("what a server said: {WEBHOOK_SECRET}");
    let verdict = Verdict::Ended(bot::reply::failed(Failure::Git, chain));
    let Verdict::Ended(end) = house.bot.close(&job, &lease, verdict).await else {
        panic!("it ended")
    };
    assert_none("the end", &end.operator);
}
