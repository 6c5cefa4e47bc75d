//! `try-hyla`: the main job for somebody who wants to see it. A small forge, the real `hyla` binary, an issue, a label; at
//! the end the draft pull request is printed. In the model's place stands a recording, unless a real server is named.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bot::forge::Permission;
use bot::job::RepoName;
use bot::model::Model;
use bot::model::endpoint::Endpoint;
use clap::Parser;
use tests::forge::{Dialect, FakeForge};
use tests::house::{
    WEBHOOK_SECRET, configuration, demo_folder, demo_issue, demo_recording, hyla_binary, way,
};
use tests::model::ModelServer;

/// How often the forge is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How long the service may take to start: it proves its sandbox first.
const START: Duration = Duration::from_secs(60);
/// How long the job may take with the recording, and with a real model.
const RECORDED: Duration = Duration::from_secs(300);
const REAL: Duration = Duration::from_secs(4 * 3600);

/// Shows the main job: a label on an issue becomes a draft pull request.
#[derive(Parser)]
#[command(name = "try-hyla")]
struct Arguments {
    /// A real model's server, up to and with /v1, instead of the recording.
    #[arg(long, value_name = "URL", value_parser = config::endpoint)]
    endpoint: Option<url::Url>,
    /// The model's name at that server.
    #[arg(long, value_name = "NAME", default_value = "FrogNano-4B-2609")]
    model: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("\nIt did not work: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let (forge, repo, token) = forge().await;
    say(&format!(
        "A small forge for trying things out runs at {} until this command ends, with the repository {repo}.\n",
        forge.url()
    ));

    let recorded = ModelServer::start(demo_recording()).await?;
    let is_recorded = arguments.endpoint.is_none();
    let endpoint = arguments.endpoint.map_or(recorded.url(), String::from);
    let folder = way();
    let mut text = configuration(folder.path(), &forge, &endpoint, &token);
    if is_recorded {
        say(
            "In the model's place stands a recording: it shows the way, not what a model can do.\n",
        );
    } else {
        say(&format!("The model is `{}` at {endpoint}.\n", arguments.model));
        text = text
            .replace(&format!("\"{}\"", tests::model::MODEL), &format!("{:?}", arguments.model));
        text.push_str(&session(&endpoint, &arguments.model).await?);
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    text.push_str(&format!("\n[server]\nlisten = \"127.0.0.1:{port}\"\n"));
    let mut service = start(folder.path(), &text, port).await?;
    forge.register_hook(&repo, &format!("http://127.0.0.1:{port}/hooks/main"), WEBHOOK_SECRET);

    let (title, body) = demo_issue();
    let issue = forge.person("ann").open_issue(&repo, title, body, &[]).await;
    say(&format!("\nann opens issue #{issue}: {title}\nann puts the label `hyla` on it.\n\n"));
    forge.person("ann").add_label(&repo, issue, "hyla").await;
    let limit = if is_recorded { RECORDED } else { REAL };
    let followed = follow(&forge, &repo, issue, limit, &mut service).await;
    stop(service)?;
    followed?;
    show(&forge, &repo)
}

/// A forge with the demonstration's repository, a person and the bot's user.
async fn forge() -> (FakeForge, RepoName, String) {
    let forge = FakeForge::start(Dialect::Gitea127).await;
    let repo = forge.add_repository("acme", "hours", demo_folder().join("repository").as_path());
    for (login, permission) in [("ann", Permission::Write), ("hyla", Permission::Admin)] {
        forge.add_user(login, Permission::None);
        forge.set_permission(&repo, login, permission);
    }
    forge.add_label(&repo, "hyla");
    let token = forge.token_for("hyla");
    (forge, repo, token)
}

/// The session's settings for a real server: as much context as it has.
async fn session(endpoint: &str, name: &str) -> anyhow::Result<String> {
    let settings = config::Model {
        endpoint: endpoint.parse()?,
        name: name.to_owned(),
        ..config::Model::default()
    };
    let window = Endpoint::new(settings, None)?.context_window().await?;
    let context = window.unwrap_or(131_072).min(131_072);
    let turn = (context / 4).min(8192);
    Ok(format!("\n[session]\ncontext_tokens = {context}\nturn_tokens = {turn}\n"))
}

async fn start(folder: &Path, text: &str, port: u16) -> anyhow::Result<Child> {
    let file = folder.join("hyla.toml");
    std::fs::write(&file, text)?;
    let log = std::fs::File::create(folder.join("log"))?;
    let mut service = Command::new(hyla_binary())
        .args(["serve", "--config"])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("cannot start `hyla serve`")?;
    let begun = Instant::now();
    while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        if service.try_wait()?.is_some() || begun.elapsed() > START {
            let _ = service.kill();
            let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            bail!("`hyla serve` did not start:\n{log}");
        }
        tokio::time::sleep(LOOK).await;
    }
    say("`hyla serve` runs; its sandbox has proven that it holds.\n");
    Ok(service)
}

/// Shows each news on the issue until the job has ended.
async fn follow(
    forge: &FakeForge,
    repo: &RepoName,
    issue: u64,
    limit: Duration,
    service: &mut Child,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut seen = String::new();
    while begun.elapsed() < limit {
        let comments = forge.comments(repo, issue);
        let body = comments.last().map(|comment| comment.body.clone()).unwrap_or_default();
        if body != seen {
            let words: Vec<&str> =
                body.lines().filter(|line| !line.is_empty() && !line.starts_with('<')).collect();
            say(&format!("  {}\n", unlinked(&words.join("\n  "))));
            seen.clone_from(&body);
        }
        if ["draft ready", "no change", "not done", "could not finish", "stopped"]
            .iter()
            .any(|end| body.contains(&format!("Hyla: {end}")))
        {
            return Ok(());
        }
        if let Some(status) = service.try_wait()? {
            bail!("`hyla serve` ended with {status}");
        }
        tokio::time::sleep(LOOK).await;
    }
    bail!("the job did not end within {} s", limit.as_secs())
}

/// A text without the targets of its links: the forge that they lead to ends with this command.
fn unlinked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](http") {
        let Some((_, after)) = after.split_once(')') else { break };
        match before.rsplit_once('[') {
            Some((before, words)) => out.push_str(&format!("{before}{words}")),
            None => out.push_str(before),
        }
        rest = after;
    }
    out + rest
}

fn stop(mut service: Child) -> anyhow::Result<()> {
    let pid = i32::try_from(service.id()).context("the service has no number")?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM)?;
    service.wait()?;
    Ok(())
}

fn show(forge: &FakeForge, repo: &RepoName) -> anyhow::Result<()> {
    let pulls = forge.pulls(repo);
    let Some(pull) = pulls.first() else {
        bail!("no draft was opened; the comment above says why")
    };
    let line = "─".repeat(72);
    say(&format!(
        "\n{line}\nPull request #{} ({}): {}\n{line}\n{}\n{line}\n{}\n{line}\n",
        pull.number,
        if pull.is_draft { "draft" } else { "not a draft" },
        pull.title,
        pull.body,
        forge.diff(repo, pull.number).trim_end(),
    ));
    Ok(())
}

fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // Whoever closed the terminal wants no more of it.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
