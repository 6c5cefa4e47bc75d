//! The `hyla` command: arguments in, one of the bot's jobs, an exit code out. What each command does lives in the library.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use bot::bot::{Bot, check_window, prove, workshop};
use bot::clock::{Clock, System};
use bot::halt::chain;
use bot::job::{Ask, JobId, Outcome, Subject};
use bot::store::{Store, sqlite::Sqlite};
use bot::worker::Stop;
use bot::{doctor, fix, jobs, model, sandbox, serve, session, telemetry};
use clap::{Parser, Subcommand};
use config::{Config, ModelKind, Secrets};

/// A label on an issue becomes a draft pull request, made by a model on your own machine.
#[derive(Parser)]
#[command(name = "hyla", version, after_help = EXIT_CODES)]
struct Arguments {
    /// The configuration.
    #[arg(long, global = true, default_value = "/etc/hyla/hyla.toml", value_name = "FILE")]
    config: PathBuf,
    #[command(subcommand)]
    command: Commands,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 an error, told on the standard error stream; 2 wrong arguments; 3 no change was \
made; 4 the gate or another rule refused; 5 `doctor` found something that must be changed.";

/// Columns of a table: as wide as most terminals are today, and no line of a log breaks.
const WIDTH: usize = 160;

#[derive(Subcommand)]
enum Commands {
    /// Receive webhooks and work on jobs until stopped.
    #[command(after_help = "Example: hyla serve --config /etc/hyla/hyla.toml")]
    Serve,
    /// Work on an issue in a file, in a folder of this machine, with no forge; print the patch and the test runs.
    #[command(
        after_help = "Example: hyla fix --repo . --issue issue.md --endpoint http://127.0.0.1:8000/v1 --write fix-it"
    )]
    Fix(Fix),
    /// Work on one issue of a forge, as if its label had been added.
    #[command(after_help = "Example: hyla run main:acme/app#7")]
    Run {
        /// The issue, as FORGE:OWNER/REPO#NUMBER.
        issue: Subject,
    },
    /// Prove the sandbox, and check the model's server, the forges and the repositories.
    #[command(after_help = "Example: hyla doctor --json")]
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the newest jobs.
    #[command(after_help = "Example: hyla jobs --limit 5 --json")]
    Jobs {
        /// How many.
        #[arg(long, default_value_t = 20)]
        limit: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Look at a model's folder, or serve it.
    #[command(subcommand)]
    Model(Model),
    /// Show the session of a job.
    #[command(after_help = "Example: hyla transcript 12")]
    Transcript {
        /// The job's number.
        job: i64,
    },
}

#[derive(Subcommand)]
enum Model {
    /// Print a model's shape, its size, and the memory that it needs; every tensor is checked to be there.
    #[command(after_help = "Example: hyla model info ~/models/FrogNano-4B-2609 --context 32768")]
    Info {
        /// The folder with config.json and safetensors files.
        folder: PathBuf,
        /// Tokens of context to compute the memory for.
        #[arg(long, default_value_t = 131_072)]
        context: u64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Answer the OpenAI protocol with a model in this process, until stopped.
    #[command(
        after_help = "Example: hyla model serve --model ~/models/FrogNano-4B-2609 --dtype int8 --listen 127.0.0.1:8080"
    )]
    Serve(model::serve::Arguments),
}

#[derive(clap::Args)]
struct Fix {
    /// The repository's folder; its last commit is what is worked on.
    #[arg(long, value_name = "DIR")]
    repo: PathBuf,
    /// A text file: the title in its first line, the description below.
    #[arg(long, value_name = "FILE")]
    issue: PathBuf,
    /// The model's server, up to and with /v1; instead of the configured one.
    #[arg(long, value_name = "URL")]
    endpoint: Option<url::Url>,
    /// The model's name at that server.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// A model's folder, to run it in this process instead of asking a server.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["endpoint", "model"])]
    model_dir: Option<PathBuf>,
    /// Put the change on this new branch of the folder's repository.
    #[arg(long, value_name = "BRANCH", num_args = 0..=1, default_missing_value = "hyla/fix")]
    write: Option<String>,
    /// Keep the transcript in this file.
    #[arg(long, value_name = "FILE")]
    transcript: Option<PathBuf>,
}

fn main() -> ExitCode {
    // Before anything else: this start is the sandbox's, and it must not have a thread or an open file of ours.
    if std::env::args_os().nth(1).is_some_and(|name| name == sandbox::child::NAME) {
        return sandbox::child::main();
    }
    let arguments = Arguments::parse();
    // `fix` shows its session itself.
    let usual = matches!(arguments.command, Commands::Fix(_)).then(|| "warn".to_owned());
    if let Err(error) = telemetry::init(config::log_filter().or(usual).as_deref()) {
        return told(&anyhow::Error::from(error).context("cannot use the filter in `HYLA_LOG`"));
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return told(&anyhow::Error::from(error).context("cannot start")),
    };
    runtime.block_on(run(arguments)).unwrap_or_else(|error| told(&error))
}

#[expect(clippy::print_stderr, reason = "this is where the command speaks to its user")]
fn told(error: &anyhow::Error) -> ExitCode {
    eprintln!("hyla: {}", chain(error.as_ref()));
    ExitCode::FAILURE
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let file = &arguments.config;
    match arguments.command {
        Commands::Serve => run_serve(file).await,
        Commands::Fix(fix) => run_fix(file, fix).await,
        Commands::Run { issue } => run_one(file, issue).await,
        Commands::Doctor { json } => run_doctor(file, json).await,
        Commands::Jobs { limit, json } => run_jobs(file, limit, json).await,
        Commands::Model(Model::Info { folder, context, json }) => {
            run_model_info(&folder, context, json)
        }
        Commands::Model(Model::Serve(arguments)) => {
            model::serve::run(arguments, Arc::new(System), quit()).await?;
            Ok(ExitCode::SUCCESS)
        }
        Commands::Transcript { job } => run_transcript(file, job),
    }
}

async fn run_serve(file: &Path) -> anyhow::Result<ExitCode> {
    let (bot, secrets) = open(file).await?;
    prove(bot.workshop.sandbox.as_ref()).await?;
    check_window(bot.workshop.model.as_ref(), &bot.config).await?;
    serve::serve(bot, &secrets, quit()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn run_fix(file: &Path, arguments: Fix) -> anyhow::Result<ExitCode> {
    // A folder needs no forge, so it needs no configuration either.
    let mut config = if file.exists() { config::load(file)? } else { Config::default() };
    if let Some(endpoint) = arguments.endpoint {
        config.model.endpoint = endpoint;
        config.model.key = None;
    }
    if let Some(name) = arguments.model {
        config.model.name = name;
    }
    if let Some(folder) = arguments.model_dir {
        config.model.kind = ModelKind::Local;
        config.model.local.folder = Some(std::path::absolute(folder)?);
    }
    config.forges.clear();
    let secrets = config.secrets(file)?;
    let workshop = workshop(&config, &secrets, helper(), Arc::new(System))?;
    prove(workshop.sandbox.as_ref()).await?;
    workshop.model.context_window().await.with_context(|| match config.model.kind {
        ModelKind::Endpoint => format!(
            "cannot ask `{}`; start the model's server, or name another with --endpoint and --model, or a folder with --model-dir",
            config.model.endpoint
        ),
        ModelKind::Local => "cannot use the model's folder".to_owned(),
    })?;
    check_window(workshop.model.as_ref(), &config).await?;
    let options = fix::Options {
        repo: arguments.repo,
        issue: arguments.issue,
        write: arguments.write,
        transcript: arguments.transcript,
    };
    let outcome = tokio::select! {
        outcome = fix::fix(&workshop, &options, System.now()) => outcome?,
        () = quit() => anyhow::bail!("stopped; nothing was written"),
    };
    Ok(match outcome {
        fix::Outcome::Patch => ExitCode::SUCCESS,
        fix::Outcome::NoChange => ExitCode::from(3),
        fix::Outcome::Refused => ExitCode::from(4),
    })
}

async fn run_one(file: &Path, issue: Subject) -> anyhow::Result<ExitCode> {
    let (bot, _secrets) = open(file).await?;
    prove(bot.workshop.sandbox.as_ref()).await?;
    let now = bot.clock.now();
    let key = bot::job::key(&issue, &Ask::Command { at: now.timestamp() });
    let job = bot.store.ask(&issue, &key, now).await?;
    let worker = bot.worker(format!("{}-run", std::process::id()));
    let stop = Stop::default();
    let ended = tokio::select! {
        ended = serve::until_ended(&bot, &worker, job, &stop) => ended?,
        () = quit() => anyhow::bail!("stopped; job {job} waits for `hyla serve`"),
    };
    say(&format!("{}\n{}\n", ended.person, ended.next))?;
    Ok(match ended.outcome {
        Outcome::DraftPr => ExitCode::SUCCESS,
        Outcome::NoFix(_) => ExitCode::from(3),
        Outcome::Refused(_) | Outcome::Cancelled => ExitCode::from(4),
        Outcome::Failed(_) => ExitCode::FAILURE,
    })
}

async fn run_doctor(file: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let (bot, _secrets) = open(file).await?;
    let mut lines = doctor::sandbox(bot.workshop.sandbox.as_ref()).await;
    lines.extend(doctor::outside(&bot).await);
    say(&if json {
        format!("{:#}\n", serde_json::to_value(&lines)?)
    } else {
        doctor::text(&lines)
    })?;
    Ok(if doctor::is_sound(&lines) { ExitCode::SUCCESS } else { ExitCode::from(5) })
}

async fn run_jobs(file: &Path, limit: u32, json: bool) -> anyhow::Result<ExitCode> {
    let config = config::load(file)?;
    let database = config.data_dir.join("hyla.db");
    // Looking makes nothing: a database appears when the service first runs.
    let rows = match database.exists() {
        true => Sqlite::open(&database).await?.jobs(limit).await?,
        false => Vec::new(),
    };
    say(&if json {
        format!("{:#}\n", jobs::json(&rows))
    } else {
        jobs::table(&rows, System.now(), WIDTH)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn run_model_info(folder: &Path, context: u64, json: bool) -> anyhow::Result<ExitCode> {
    let summary = engine::Summary::read(folder)?;
    if json {
        let mut value = serde_json::to_value(&summary)?;
        value["context_tokens"] = context.into();
        value["bytes_at_context"] = summary.bytes_at(context).into();
        say(&format!("{value:#}\n"))?;
    } else {
        say(&summary.text(context))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_transcript(file: &Path, job: i64) -> anyhow::Result<ExitCode> {
    let config = config::load(file)?;
    let path = config.data_dir.join("jobs").join(JobId(job).to_string()).join("transcript.jsonl");
    let records = session::read(&path).with_context(|| {
        format!("cannot read the transcript of job {job}; `hyla jobs` lists the jobs")
    })?;
    for record in records {
        say(&record.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn open(file: &Path) -> anyhow::Result<(Arc<Bot>, Secrets)> {
    let config = config::load(file)?;
    let secrets = config.secrets(file)?;
    let bot = Bot::open(config, &secrets, helper(), Arc::new(System)).await?;
    Ok((Arc::new(bot), secrets))
}

/// This very binary, which the sandbox starts again: by a name that still holds when an upgrade has replaced the file.
fn helper() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// Ready when the service is asked to stop.
async fn quit() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

fn say(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
