//! The `hyla` command: arguments in, one of the bot's jobs, an exit code out. What each command does lives in the library.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bot::bot::{Bot, check_window, fits, prove, untold, workshop};
use bot::clock::{Clock, System};
use bot::halt::chain;
use bot::inbox::Inbox;
use bot::job::{Ask, JobId, Outcome, Subject};
use bot::model::Settings;
use bot::redact::Redactor;
use bot::store::{History, Store, sqlite::Sqlite};
use bot::telemetry::Reader;
use bot::waiting::Watched;
use bot::worker::Stop;
use bot::{
    audit, doctor, explain, fix, folder, jobs, model, replay, reply, sandbox, serve, session,
    sweep, telemetry,
};
use clap::{Parser, Subcommand};
use config::{Config, ModelKind, Secrets};

/// A label on an issue becomes a draft pull request, made by a model on your own machine.
#[derive(Parser)]
#[command(name = "hyla", version, after_help = EXIT_CODES)]
struct Arguments {
    /// The configuration [default: /etc/hyla/hyla.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Commands,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 an error, told on the standard error stream; 2 wrong arguments; 3 no change was \
made; 4 the gate or another rule refused; 5 `doctor` found something that must be changed.";

/// The configuration where nobody names another.
const CONFIG: &str = "/etc/hyla/hyla.toml";

/// Columns of a table: as wide as most terminals are today.
const WIDTH: usize = 160;

/// How long work that nothing can stop, such as a fetch, is waited for at the end. What it leaves half done is cleared
/// by the next one.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

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
    /// Work on one issue of a forge, as if its label had been added; jobs that are due already come first.
    #[command(after_help = "Example: hyla run main:acme/app#7")]
    Run {
        /// The issue: FORGE:OWNER/REPO#NUMBER, OWNER/REPO#NUMBER, or its link on the forge.
        issue: String,
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
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say whether and why an issue was worked on, what to do next, and what happened when; no forge is asked.
    #[command(after_help = "Example: hyla explain main:acme/app#7")]
    Explain {
        /// The issue: FORGE:OWNER/REPO#NUMBER, OWNER/REPO#NUMBER, or its link on the forge.
        issue: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read a kept delivery again and say what would follow; `hyla explain` shows the ids.
    #[command(after_help = "Example: hyla replay 7f0c3c5e-9a51-4a3f-8a3e-5a0d7c1f2b64 --act")]
    Replay {
        /// The delivery's id, as the forge calls it.
        delivery: String,
        /// The forge that sent it, where two forges have used the same id.
        #[arg(long, value_name = "NAME")]
        forge: Option<String>,
        /// Send it through the inbox again; what a job answers already is not done twice.
        #[arg(long)]
        act: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Work on the backlog as a sweep of the configuration says, until its caps are reached or no issue fits.
    #[command(after_help = "Example: hyla sweep nightly --dry-run")]
    Sweep {
        /// The sweep's name in the configuration.
        name: String,
        /// Print what it would take and why, and what it would leave alone; begin nothing.
        #[arg(long)]
        dry_run: bool,
        /// End its pause, and begin nothing.
        #[arg(long, conflicts_with = "dry_run")]
        resume: bool,
        /// With --dry-run, print JSON.
        #[arg(long, requires = "dry_run")]
        json: bool,
    },
    /// List the newest drafts with what became of them, and the sums for each repository and model.
    #[command(after_help = "Example: hyla outcomes --csv > outcomes.csv")]
    Outcomes {
        /// How many.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Print CSV.
        #[arg(long, conflicts_with = "json")]
        csv: bool,
    },
    /// Verify or print the record of who asked, what the model was given, what was refused and what was pushed.
    #[command(subcommand, after_help = "Example: hyla audit verify")]
    Audit(audit::command::Command),
    /// Look at a model's folder, make a smaller one of it, measure it, talk to it, or serve it.
    #[command(
        subcommand,
        after_help = "Example: hyla model info ~/models/FrogNano-4B-2609 --context 32768"
    )]
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
    /// Write a copy of a model's folder with weights of 8 or 4 bits: it needs less memory, and opens at once.
    #[command(
        after_help = "Example: hyla model quantize ~/models/FrogNano-4B-2609 ~/models/FrogNano-4B-2609-int8 --dtype int8"
    )]
    Quantize(model::quantize::Arguments),
    /// Answer the OpenAI protocol with a model in this process, until stopped.
    #[command(
        after_help = "Example: hyla model serve --model ~/models/FrogNano-4B-2609 --dtype int8 --listen 127.0.0.1:8080"
    )]
    Serve(model::serve::Arguments),
    /// Measure how fast a model runs on this machine, and how much of what its memory allows; takes minutes.
    #[command(
        after_help = "Example: hyla model bench ~/models/FrogNano-4B-2609 --dtype int8,int4 --depths 0,8192"
    )]
    Bench(model::bench::Arguments),
    /// Talk to a model in this process: at a terminal, or with each line of the standard input as a question.
    #[command(
        after_help = "Example: hyla model chat ~/models/FrogNano-4B-2609 --dtype int8 --system 'Answer in one sentence.'"
    )]
    Chat(model::chat::Arguments),
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
    endpoint: Option<String>,
    /// The model's name at that server.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// A file with the key of that server, if it wants one; readable by its owner alone.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
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
    let mut words = std::env::args_os().skip(1);
    let name = words.next();
    if name.as_ref().is_some_and(|name| name == sandbox::child::NAME) {
        return sandbox::child::main();
    }
    if name.as_ref().is_some_and(|name| name == sandbox::guarded::guard::NAME) {
        return sandbox::guarded::guard::main();
    }
    if name.as_ref().is_some_and(|name| name == sandbox::guarded::confine::NAME) {
        return sandbox::guarded::confine::main(words);
    }
    if name.is_some_and(|name| name == sandbox::forward::NAME) {
        return sandbox::forward::main(words);
    }
    let arguments = Arguments::parse();
    let reader = match &arguments.command {
        Commands::Serve | Commands::Model(Model::Serve(_)) => Reader::Service,
        Commands::Run { .. } | Commands::Sweep { .. } => Reader::Watcher,
        // `fix` shows its session itself.
        Commands::Fix(_)
        | Commands::Doctor { .. }
        | Commands::Jobs { .. }
        | Commands::Outcomes { .. }
        | Commands::Explain { .. }
        | Commands::Audit(_)
        | Commands::Replay { .. }
        | Commands::Model(
            Model::Info { .. } | Model::Quantize(_) | Model::Chat(_) | Model::Bench(_),
        )
        | Commands::Transcript { .. } => Reader::Person,
    };
    let filter = config::log_filter();
    if let Err(error) = telemetry::init(filter.as_deref(), reader) {
        let filter = filter.unwrap_or_default();
        return told(&anyhow::Error::from(error).context(format!(
            "cannot use `HYLA_LOG={filter}`; set it to error, warn, info, debug or trace"
        )));
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return told(&anyhow::Error::from(error).context("cannot start")),
    };
    let done = runtime.block_on(run(arguments));
    runtime.shutdown_timeout(LEFT_BEHIND);
    done.unwrap_or_else(|error| told(&error))
}

#[expect(clippy::print_stderr, reason = "this is where the command speaks to its user")]
fn note(words: String) {
    eprintln!("{words}");
}

#[expect(clippy::print_stderr, reason = "this is where the command speaks to its user")]
fn told(error: &anyhow::Error) -> ExitCode {
    eprintln!("hyla: {}", reply::lines(&chain(error.as_ref())));
    ExitCode::FAILURE
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let named = arguments.config.as_deref();
    let file = named.unwrap_or(Path::new(CONFIG));
    match arguments.command {
        Commands::Serve => run_serve(file).await,
        Commands::Fix(fix) => run_fix(named, fix).await,
        Commands::Run { issue } => run_one(file, &issue).await,
        Commands::Doctor { json } => run_doctor(file, json).await,
        Commands::Sweep { name, dry_run: true, json, .. } => plan_sweep(file, &name, json).await,
        Commands::Sweep { name, resume: true, .. } => resume_sweep(file, &name).await,
        Commands::Sweep { name, .. } => run_sweep(file, &name).await,
        Commands::Outcomes { limit, json, csv } => run_outcomes(file, limit, json, csv).await,
        Commands::Jobs { limit, json } => run_jobs(file, limit, json).await,
        Commands::Audit(command) => {
            let config = config::load(file)?;
            let whole = audit::command::run(command, &config, &mut |text| Ok(say(text)?)).await?;
            Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Commands::Explain { issue, json } => run_explain(file, &issue, json).await,
        Commands::Replay { delivery, forge, act, json } => {
            run_replay(file, &delivery, forge.as_deref(), act.then_some(Act), json).await
        }
        Commands::Model(Model::Info { folder, context, json }) => {
            run_model_info(&folder, context, json)
        }
        Commands::Model(Model::Quantize(arguments)) => {
            say(&reply::lines(&model::quantize::run(arguments, quit()).await?))?;
            Ok(ExitCode::SUCCESS)
        }
        Commands::Model(Model::Serve(arguments)) => {
            model::serve::run(arguments, Arc::new(System), quit()).await?;
            Ok(ExitCode::SUCCESS)
        }
        Commands::Model(Model::Chat(arguments)) => {
            model::chat::run(arguments).await?;
            Ok(ExitCode::SUCCESS)
        }
        Commands::Model(Model::Bench(arguments)) => run_model_bench(arguments).await,
        Commands::Transcript { job } => run_transcript(file, JobId(job)).await,
    }
}

async fn run_serve(file: &Path) -> anyhow::Result<ExitCode> {
    // Before all that takes time: until then this signal ends the process.
    let hangups = serve::hangups()?;
    let (bot, secrets) = open(file).await?;
    // Whatever is wrong with the sandbox, no webhook is lost for it.
    bot.look_at_sandbox().await;
    check_window(bot.workshop.model.as_ref(), &bot.config).await?;
    // A forge that is down is waited for; one that is not in order should be known before the first job.
    tokio::spawn({
        let bot = Arc::clone(&bot);
        async move { doctor::warn(&bot).await }
    });
    serve::serve(bot, &secrets, hangups, quit()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn run_fix(named: Option<&Path>, arguments: Fix) -> anyhow::Result<ExitCode> {
    let file = named.unwrap_or(Path::new(CONFIG));
    // A folder needs no forge, so it needs no configuration either; one that somebody names must be there.
    let mut config = match named.is_none() && !file.exists() {
        true => Config::default(),
        false => config::load(file)?,
    };
    if let Some(endpoint) = arguments.endpoint {
        // Not left to the parser of arguments: it would repeat the address, which may hold a password.
        config.model.endpoint = match config::endpoint(&endpoint) {
            Ok(endpoint) => endpoint,
            Err(reason) => {
                note(format!("hyla: cannot use --endpoint: {reason}"));
                return Ok(ExitCode::from(2));
            }
        };
        config.model.key = None;
    }
    if let Some(name) = arguments.model {
        config.model.name = name;
    }
    if let Some(folder) = arguments.model_dir {
        config.model.kind = ModelKind::Local;
        config.model.local.folder = Some(model_folder(&folder)?);
    }
    config.forges.clear();
    if arguments.write.is_none() {
        // Nothing is committed.
        config.publish.signing = None;
    }
    let mut secrets = config.secrets(file)?;
    if let Some(file) = arguments.key_file {
        let key = config::SecretRef::File(std::path::absolute(file)?);
        let key =
            key.read().map_err(|reason| anyhow::anyhow!("cannot use --key-file: {reason}"))?;
        secrets.model = Some(key);
    }
    let redactor = known(&secrets);
    let mut workshop = workshop(&config, &secrets, helper(), Arc::new(System))?;
    let silence = config.model.idle_timeout;
    workshop.model = Arc::new(Watched { model: workshop.model, silence });
    let options = fix::Options {
        repo: arguments.repo,
        issue: arguments.issue,
        write: arguments.write,
        transcript: arguments.transcript,
    };
    let work = async {
        let prepared = fix::prepare(&workshop, &options).await?;
        prove(workshop.sandbox.as_ref()).await?;
        let window = doctor::patiently(&what(&config), workshop.model.context_window(), note).await;
        let needed = config.session.context_tokens;
        match window {
            Ok(Some(window)) => fits(window, needed)?,
            Ok(None) => note(format!("note: {}", untold(needed))),
            Err(error) => {
                anyhow::bail!("{}; {}", chain(&error), error.next(Settings::Arguments))
            }
        }
        fix::fix(&workshop, &options, prepared, System.now()).await
    };
    let outcome = tokio::select! {
        // The repository's own words may stand in it.
        outcome = work => outcome.map_err(|error| {
            anyhow::anyhow!(redactor.redact(&chain(error.as_ref())))
        })?,
        () = quit() => anyhow::bail!("stopped; nothing was written"),
    };
    Ok(match outcome {
        fix::Outcome::Patch => ExitCode::SUCCESS,
        fix::Outcome::NoChange => ExitCode::from(3),
        fix::Outcome::Refused => ExitCode::from(4),
    })
}

/// A model's folder as a whole path.
fn model_folder(folder: &Path) -> anyhow::Result<PathBuf> {
    if !folder.is_dir() {
        anyhow::bail!(
            "cannot use --model-dir `{}`: there is no such folder; name the one with the model's config.json and safetensors files",
            folder.display()
        );
    }
    Ok(std::path::absolute(folder)?)
}

/// What answers as the model.
fn what(config: &Config) -> String {
    match &config.model.local.folder {
        Some(folder) if config.model.kind == ModelKind::Local => {
            format!("the model in `{}`", folder.display())
        }
        Some(_) | None => format!("the model's server at `{}`", config.model.endpoint),
    }
}

async fn plan_sweep(file: &Path, name: &str, json: bool) -> anyhow::Result<ExitCode> {
    let (bot, _secrets) = open(file).await?;
    let plan = sweep::dry(&bot, name).await?;
    say(&match json {
        true => format!("{:#}\n", sweep::words::plan_json(&plan)),
        false => sweep::words::plan(name, &plan),
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn resume_sweep(file: &Path, name: &str) -> anyhow::Result<ExitCode> {
    let (bot, _secrets) = open(file).await?;
    let next = sweep::next(&bot, name)?.map(|at| at.to_rfc3339()).unwrap_or_default();
    let was_paused = bot.store.resume_sweep(name, bot.clock.now()).await?;
    let how = if was_paused { "goes on" } else { "was not paused" };
    say(&format!("The sweep `{name}` {how}; it begins next at {next}.\n"))?;
    Ok(ExitCode::SUCCESS)
}

async fn run_sweep(file: &Path, name: &str) -> anyhow::Result<ExitCode> {
    let (bot, _secrets) = open(file).await?;
    prove(bot.workshop.sandbox.as_ref()).await?;
    let worker = bot.worker(format!("{}-sweep", std::process::id()));
    let stop = Stop::default();
    let mut tell = |words: String| Ok(say(&reply::lines(&words))?);
    let sweeping = sweep::by_hand(&bot, name, (&worker, &stop), &mut tell);
    until_parked(&bot, &stop, sweeping).await?;
    Ok(ExitCode::SUCCESS)
}

/// Works until it is done or somebody quits; then the job parks, so that the attempt does not count.
async fn until_parked<T>(
    bot: &Bot,
    stop: &Stop,
    working: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::pin!(working);
    tokio::select! {
        done = &mut working => done,
        () = quit() => {
            stop.stop();
            let parked = tokio::time::timeout(bot.config.server.shutdown_grace, working).await;
            parked.context("the job did not park in time")?
        }
    }
}

async fn run_outcomes(file: &Path, limit: u32, json: bool, csv: bool) -> anyhow::Result<ExitCode> {
    let config = config::load(file)?;
    let now = System.now();
    let drafts = match jobs::database(&config.data_dir)? {
        Some(database) => Sqlite::open(&database).await?.drafts(limit).await?,
        None => vec![],
    };
    say(&match (json, csv) {
        (true, _) => format!("{:#}\n", sweep::words::outcomes_json(&drafts, now)),
        (false, true) => sweep::words::outcomes_csv(&drafts, now),
        (false, false) => sweep::words::outcomes(&drafts, now),
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn run_one(file: &Path, issue: &str) -> anyhow::Result<ExitCode> {
    let config = config::load(file)?;
    let Some((issue, forge)) = subject(issue, &config) else { return Ok(ExitCode::from(2)) };
    if !forge.allows(&issue.repo.to_string()) {
        let (repo, name) = (&issue.repo, &issue.forge);
        anyhow::bail!("`{repo}` is not worked on; add it to `forge.{name}.repositories`")
    }
    let issue = issue.as_allowed(forge);
    let (bot, _secrets) = open(file).await?;
    prove(bot.workshop.sandbox.as_ref()).await?;
    let now = bot.clock.now();
    if bot.store.next_due().await?.is_some_and(|due| due <= now) {
        note("other jobs are due and come first; `hyla jobs` lists them".into());
    }
    let key = bot::job::key(&issue, &Ask::Command { at: now.timestamp() });
    let job = bot.store.ask(&issue, &key, now).await?;
    let worker = bot.worker(format!("{}-run", std::process::id()));
    let stop = Stop::default();
    let working = serve::until_ended(&bot, &worker, job, &stop);
    let ended = until_parked(&bot, &stop, working).await?;
    let next = reply::next_at_a_terminal(&ended);
    say(&reply::lines(&format!("{}\n{next}\n", ended.person)))?;
    Ok(match ended.outcome {
        Outcome::DraftPr => ExitCode::SUCCESS,
        Outcome::NoFix(_) => ExitCode::from(3),
        Outcome::Refused(_) | Outcome::Cancelled => ExitCode::from(4),
        Outcome::Failed(_) => ExitCode::FAILURE,
    })
}

/// The issue that somebody means, with its forge; none where no issue can be meant, which has been said by then.
fn subject<'c>(issue: &str, config: &'c Config) -> Option<(Subject, &'c config::Forge)> {
    let found = explain::find(issue, &config.forges).and_then(|subject| {
        let forge = config.forges.get(&subject.forge);
        let forge = forge.ok_or_else(|| format!("no forge is called `{}`", subject.forge))?;
        Ok((subject, forge))
    });
    found
        .inspect_err(|reason| note(format!("hyla: cannot use `{}`: {reason}", reply::plain(issue))))
        .ok()
}

async fn run_doctor(file: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let config = config::load(file)?;
    let secrets = config.secrets(file)?;
    let redactor = known(&secrets);
    let workshop = workshop(&config, &secrets, helper(), Arc::new(System))?;
    let forges = bot::bot::forges(&config, &secrets)?;
    let mut lines = Vec::new();
    let mut show = |line: doctor::Line| {
        // Forges and servers tell names and versions, and a proxy may repeat what it was sent.
        let line = doctor::Line { detail: redactor.redact(&line.detail), ..line };
        if !json {
            // Whoever closed the terminal reads the exit code.
            let _ = say(&doctor::text(&line));
        }
        lines.push(line);
    };
    show(doctor::data(&config.data_dir));
    show(doctor::commits(&workshop.author(None)));
    doctor::sandbox(workshop.sandbox.as_ref(), &mut show).await;
    let hosts = doctor::egress(&config.egress, workshop.internet.as_ref(), &mut show);
    doctor::patiently("names of hosts", hosts, note).await;
    let model = doctor::model(workshop.model.as_ref(), config.session.context_tokens, &mut show);
    doctor::patiently(&what(&config), model, note).await;
    if forges.is_empty() {
        show(doctor::no_forge());
    }
    for (name, settings) in &config.forges {
        let Some(forge) = forges.get(name) else { continue };
        let looked = doctor::forge(name, settings, (forge.as_ref(), &System), &mut show);
        doctor::patiently(&format!("the forge at `{}`", settings.url), looked, note).await;
    }
    if json {
        say(&format!("{:#}\n", serde_json::to_value(&lines)?))?;
    } else {
        say(&format!("\n{}\n", doctor::closing(&lines)))?;
    }
    Ok(if doctor::is_sound(&lines) { ExitCode::SUCCESS } else { ExitCode::from(5) })
}

async fn run_jobs(file: &Path, limit: u32, json: bool) -> anyhow::Result<ExitCode> {
    let config = config::load(file)?;
    // Looking makes nothing: a database appears when the service first runs.
    let rows = match jobs::database(&config.data_dir)? {
        Some(database) => Sqlite::open(&database).await?.jobs(limit).await?,
        None => Vec::new(),
    };
    if json {
        say(&format!("{:#}\n", jobs::json(&rows)))?;
    } else if rows.is_empty() {
        let folder = config.data_dir.display();
        say(&format!("no jobs yet in `{folder}`: put the label on an issue\n"))?;
    } else {
        say(&jobs::table(&rows, System.now(), WIDTH))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_explain(file: &Path, issue: &str, json: bool) -> anyhow::Result<ExitCode> {
    let config = config::load(file)?;
    let Some((subject, settings)) = subject(issue, &config) else { return Ok(ExitCode::from(2)) };
    let history = match jobs::database(&config.data_dir)? {
        Some(database) => Sqlite::open(&database).await?.history(&subject).await?,
        None => History::nothing(subject),
    };
    let explanation = explain::explain(&history, settings, System.now());
    if json {
        say(&format!("{:#}\n", explain::json(&explanation)))?;
    } else {
        say(&explain::text(&explanation))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// That a delivery is to be acted on, and not only read.
struct Act;

async fn run_replay(
    file: &Path,
    delivery: &str,
    forge: Option<&str>,
    act: Option<Act>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let config = config::load(file)?;
    let Some(database) = jobs::database(&config.data_dir)? else {
        return Err(replay::Error::Unknown { id: delivery.to_owned() }.into());
    };
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&database).await?);
    let replayed = replay::plan(store.as_ref(), &config.forges, delivery, forge).await?;
    let accepted = match act {
        Some(Act) => {
            let inbox = Inbox {
                store,
                clock: Arc::new(System),
                forges: config.forges.clone(),
                settle: config.queue.settle,
                wake: Arc::default(),
                orders: Arc::default(),
                // What is kept has been without them since it came.
                redactor: Redactor::default(),
            };
            Some(replay::act(&inbox, &replayed).await?)
        }
        None => None,
    };
    if json {
        say(&format!("{:#}\n", replay::json(&replayed, accepted)))?;
        return Ok(ExitCode::SUCCESS);
    }
    say(&replay::text(&replayed))?;
    say(accepted.map_or("nothing was changed; --act does it\n", replay::outcome))?;
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
        say(&reply::lines(&summary.text(context)))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_model_bench(arguments: model::bench::Arguments) -> anyhow::Result<ExitCode> {
    let is_json = arguments.json;
    let measured = tokio::task::spawn_blocking(move || {
        model::bench::run(&arguments, &|words| note(words.to_owned()))
    });
    let report = tokio::select! {
        report = measured => report.context("cannot measure the model")??,
        () = quit() => anyhow::bail!("stopped before everything was measured"),
    };
    if is_json {
        say(&format!("{:#}\n", serde_json::to_value(&report)?))?;
    } else {
        say(&reply::lines(&report.text()))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_transcript(file: &Path, job: JobId) -> anyhow::Result<ExitCode> {
    let config = config::load(file)?;
    let path = folder::transcript_of(&config.data_dir, job);
    let records = match session::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let row = match jobs::database(&config.data_dir)? {
                Some(database) => Sqlite::open(&database).await?.job(job).await?,
                None => None,
            };
            anyhow::bail!("{}", jobs::no_transcript(job, row.as_ref()))
        }
        read => read.with_context(|| {
            let next = "run this as the service's user, such as `sudo -u hyla hyla ...`";
            format!("cannot read the transcript of job {job} in `{}`; {next}", path.display())
        })?,
    };
    if records.is_empty() {
        note(format!("the session of job {job} has only just begun; look again in a moment"));
    }
    for record in records {
        say(&record.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn open(file: &Path) -> anyhow::Result<(Arc<Bot>, Secrets)> {
    let config = config::load(file)?;
    let secrets = config.secrets(file)?;
    known(&secrets);
    let bot = Bot::open(config, &secrets, helper(), Arc::new(System)).await?;
    Ok((Arc::new(bot), secrets))
}

/// Takes these secrets out of the log from now on; the redactor takes them out of what else is shown.
fn known(secrets: &Secrets) -> Redactor {
    let redactor = Redactor::new(&secrets.all());
    telemetry::redact_with(&redactor);
    redactor
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
