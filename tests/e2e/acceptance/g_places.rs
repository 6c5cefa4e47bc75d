//! Check G, place by place: what comes from a forge, a model's server, the repository or a command, and goes into the
//! database, the log, a conversation or what a command prints. Each redaction there has a test here that fails without it.

use std::process::Stdio;

use axum::Router;
use axum::routing::get;
use bot::clock::Clock as _;
use bot::forge::{Error, Permission};
use bot::job::{Outcome, RepoName};
use bot::model::Model as _;
use bot::model::endpoint::Endpoint;
use bot::session::{self, Record};
use nix::sys::signal::Signal;
use tests::forge::{Fault, Matcher};
use tests::house::{House, WEBHOOK_SECRET, demo_recording};
use tests::model::{MODEL, ModelServer, Recording, Turn};
use tests::outside::{Outside, files_below, send, until};

use super::g::{Canary, FIX, MODEL_KEY, assert_none, house, sightings};
use crate::commands::{folder, git, hyla};

/// Somebody who may write, and whose login is a secret.
fn secret_person(house: &House) {
    house.forge.add_user(WEBHOOK_SECRET, Permission::None);
    house.forge.set_permission(&house.repo, WEBHOOK_SECRET, Permission::Write);
}

#[tokio::test]
async fn check_g_the_digest_is_of_what_is_kept_without_secrets() {
    let file =
        format!("test_command = 'python3 -m unittest discover -s tests # {WEBHOOK_SECRET}'\n");
    let house = house(vec![Turn::says("Nothing.")], &[(".hyla.toml", &file)]).await;
    secret_person(&house);
    let issue = house.open_issue().await;
    house.forge.person(WEBHOOK_SECRET).comment(&house.repo, issue, "It is the loop.").await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work_through_retries().await;
    let told = house.model.requests()[0].to_string();
    assert_none("what the model is told", &told);
    assert!(told.contains("It is the loop."), "{told}");
    let transcript = house.bot.folder(house.jobs().await[0].job.id).transcript();
    let records = session::read(&transcript).expect("it is kept");
    let input = records.iter().find(|record| matches!(record, Record::Input { .. }));
    let shown = input.expect("it is the first").to_string();
    assert!(shown.contains("it is that of what this transcript keeps"), "{shown}");
}

#[tokio::test]
async fn check_g_the_database_keeps_no_secret_that_people_published() {
    let house = house(vec![Turn::bash(FIX), Turn::says("Done.")], &[]).await;
    secret_person(&house);
    let person = house.forge.person(WEBHOOK_SECRET);
    let title = format!("TITLE {WEBHOOK_SECRET}");
    let issue =
        person.open_issue(&house.repo, &title, &format!("BODY {WEBHOOK_SECRET}"), &[]).await;
    person.comment(&house.repo, issue, &format!("COMMENT {WEBHOOK_SECRET}")).await;
    person.add_label(&house.repo, issue, "hyla").await;
    house.forge.settle().await;
    // A delivery that is read again says the same of the issue as the forge does, though it is kept without the secret.
    let deliveries = house.forge.deliveries();
    let labelled = deliveries.iter().find(|each| each.action == "label_updated");
    let id = &labelled.expect("it was delivered").id;
    let forges = &house.bot.config.forges;
    let replayed = bot::replay::plan(house.bot.store.as_ref(), forges, id, None).await;
    let replayed = replayed.expect("it is kept");
    let inbox = crate::replay::inbox(&house);
    bot::replay::act(&inbox, &replayed).await.expect("it is kept");
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);

    let subject = &house.jobs().await[0].job.subject;
    let history = house.bot.store.history(subject).await.expect("the store answers");
    let explained = bot::explain::explain(&history, &forges["main"], house.clock.now());
    assert_none("what happened", &bot::explain::text(&explained));
    let canary = [Canary::of("the webhook secret", WEBHOOK_SECRET)];
    let files = files_below(&house.bot.config.data_dir);
    let of_database = |file: &&std::path::PathBuf| file.to_string_lossy().contains("hyla.db");
    let found: Vec<String> = files
        .iter()
        .filter(of_database)
        .flat_map(|file| {
            let content = std::fs::read(file).expect("it is ours");
            sightings(&canary, &file.display().to_string(), &content)
        })
        .collect();
    assert!(found.is_empty(), "{found:?}");
    let kept = String::from_utf8_lossy(&replayed.delivery.payload);
    assert!(kept.contains("BODY [secret]"), "{kept}");
}

#[tokio::test]
async fn check_g_the_log_says_no_secret_that_stands_in_a_name() {
    let outside = Outside::start(demo_recording(), "[queue]\nsettle = \"100ms\"\n").await;
    outside.forge.add_user(WEBHOOK_SECRET, Permission::None);
    outside.forge.set_permission(&outside.repo, WEBHOOK_SECRET, Permission::Write);
    let log = std::fs::File::create(outside.log()).expect("it is ours");
    let mut command = outside.command();
    command.env("HYLA_LOG", "trace,bot=trace").stdout(Stdio::null());
    let mut service = command.stderr(log).spawn().expect("it starts");
    outside.is_heard().await;
    let issue = outside.open_issue(&[]).await;
    outside.forge.person(WEBHOOK_SECRET).add_label(&outside.repo, issue, "hyla").await;
    let read = || std::fs::read_to_string(outside.log()).expect("it is ours");
    until("the job ends", || read().contains("\"message\":\"ended\"")).await;
    send(&service, Signal::SIGTERM);
    assert!(service.wait().await.expect("it is ours").success());
    let log = read();
    assert_none("the log", &log);
    assert!(log.contains("read the permission of `[secret]`"), "{log}");
}

#[tokio::test]
async fn check_g_a_forge_that_repeats_the_token_beside_its_words_is_not_repeated() {
    let house = House::usual().await;
    let canary = [Canary::of("the token", &house.token)];
    let (_, forge) = house.bot.forges().next().expect("there is one");
    let assert_none = |text: &str| {
        let found = sightings(&canary, "an error", text.as_bytes());
        assert!(found.is_empty() && text.contains("[secret]"), "{found:?}: {text}");
    };
    // Each time it is cut within the token.
    let cut = format!("{}{}", "x".repeat(280), house.token);
    for status in [200, 403] {
        let headers = vec![("content-type".to_owned(), cut.clone())];
        let fault = Fault::Status { status, body: String::new(), headers };
        house.forge.fault(Matcher::new("GET", "/api/v1/user"), fault, 1);
        assert_none(&forge.whoami().await.expect_err("it is no answer").to_string());
    }
    let odd = RepoName { owner: "acme".into(), name: format!("{cut}\u{7}") };
    let error = forge.repository(&odd).await;
    let Err(Error::Missing { message, .. }) = error else { panic!("{error:?}") };
    assert_none(&message);
    let headers = vec![("location".to_owned(), format!("/api/v1/repos/{cut}/x"))];
    let fault = Fault::Status { status: 307, body: String::new(), headers };
    house.forge.fault(Matcher::new("GET", "/api/v1/repos/acme/hours"), fault, 1);
    let error = forge.repository(&house.repo).await;
    let Err(Error::Moved { to, .. }) = error else { panic!("{error:?}") };
    assert_none(&to);
}

#[tokio::test]
async fn check_g_the_body_holds_no_part_of_a_secret_in_a_name_that_is_cut() {
    let after = |start: &str| format!("{start}{}{WEBHOOK_SECRET}", "x".repeat(185 - start.len()));
    let file = format!(
        "setup_command = '{}'\ntest_command = '{}'\n",
        after("true # "),
        after("python3 -m unittest discover -s tests # ")
    );
    let house = house(vec![Turn::bash(FIX), Turn::says("Done.")], &[(".hyla.toml", &file)]).await;
    let branch = after("b");
    git(&house.forge.git_dir(&house.repo), &["branch", &branch, "main"]);
    house.forge.set_default_branch(&house.repo, &branch);
    house.labelled_and_worked().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    let body = house.forge.pulls(&house.repo)[0].body.clone();
    assert_none("the body", &body);
    assert_eq!(body.matches("[secret]").count(), 3, "{body}");
}

/// A server that answers every question for its models with this.
async fn serving(models: serde_json::Value) -> String {
    let router = Router::new()
        .route("/v1/models", get(move || std::future::ready(axum::Json(models.clone()))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/v1")
}

#[tokio::test]
async fn check_g_a_server_that_calls_its_model_by_the_key_is_not_repeated() {
    let id = format!("{}{MODEL_KEY}", "x".repeat(280));
    let url = serving(serde_json::json!({ "data": [{ "id": id }] })).await;
    let endpoint = url.parse().expect("that is an address");
    let settings = config::Model { endpoint, name: MODEL.into(), ..config::Model::default() };
    let endpoint = Endpoint::new(settings, Some(&MODEL_KEY.into())).expect("it is built");
    let error = endpoint.context_window().await.expect_err("it serves another model");
    assert_none("the error", &error.to_string());
}

#[tokio::test]
async fn check_g_the_model_is_not_told_a_secret_that_a_file_holds() {
    let notes = format!("The hook has {WEBHOOK_SECRET}.\n");
    let turns = vec![Turn::bash("cat notes.txt"), Turn::says("Nothing.")];
    let house = house(turns, &[("notes.txt", &notes)]).await;
    house.labelled_and_worked().await;
    let told = house.model.requests()[1].to_string();
    assert_none("what the model is told", &told);
    assert!(told.contains("The hook has [secret]."), "{told}");
}

#[tokio::test]
async fn check_g_doctor_prints_no_secret() {
    let outside = Outside::start(Recording::default(), "").await;
    let body = serde_json::json!({ "version": format!("15.0.3 {WEBHOOK_SECRET}") }).to_string();
    let fault = Fault::Status { status: 200, body, headers: vec![] };
    outside.forge.fault(Matcher::new("GET", "/api/v1/version"), fault, 4);
    for more in [&[][..], &["--json"]] {
        let ran = hyla(&[&["doctor", "--config", &outside.file], more].concat()).await;
        assert_none("what it prints", &format!("{}{}", ran.stdout, ran.stderr));
    }
}

#[tokio::test]
async fn check_g_fix_prints_no_secret() {
    let keys = tempfile::NamedTempFile::new().expect("the temp folder can be written");
    std::fs::write(keys.path(), MODEL_KEY).expect("it is ours");
    let key = keys.path().display().to_string();
    let issue = tests::house::demo_folder().join("issue.md").display().to_string();
    let turns = vec![Turn { content: format!("I use {MODEL_KEY}."), ..Turn::bash(FIX) }];
    let server = ModelServer::start(Recording::of([turns, vec![Turn::says("Done.")]].concat()));
    let server = server.await.expect("it starts");
    let url = server.url();
    let place = folder();
    let repo = place.path().display().to_string();
    let commit = |file: &str| {
        std::fs::write(place.path().join(".hyla.toml"), file).expect("it is ours");
        git(place.path(), &["add", "-A"]);
        git(place.path(), &["commit", "-qm", "settings"]);
    };
    let start = ["fix", "--repo", &repo, "--issue", &issue, "--model", MODEL, "--key-file", &key];
    let start = [&start[..], &["--endpoint", &url]].concat();

    commit(&format!("\"{MODEL_KEY}\" = 1\n"));
    let ran = hyla(&start).await;
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_none("the error", &ran.stderr);

    commit(&format!("test_command = 'python3 -m unittest discover -s tests # {MODEL_KEY}'\n"));
    let ran = hyla(&start).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_none("the session", &ran.stderr);
    assert_none("patch and evidence", &ran.stdout);
}
