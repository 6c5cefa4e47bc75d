//! `hyla serve`: the webhook side and the workers in one process, until it is told to stop.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};
use config::{ForgeKind, Secrets};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use webhooks::{Dialect, Hook};

use crate::bot::Bot;
use crate::clean_up;
use crate::clock::shown;
use crate::halt::chain;
use crate::inbox::Inbox;
use crate::job::{End, JobId, State};
use crate::metrics::Now;
use crate::obey;
use crate::outcomes;
use crate::prometheus;
use crate::reconcile;
use crate::reply::banner;
use crate::sweep;
use crate::worker::{Stop, Worker};

/// How long a webhook's body may take: more than any forge waits for an answer.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a sandbox that does not hold is looked at again.
const SANDBOX_LOOK: Duration = Duration::from_secs(30);

/// How long `hyla run` waits before it looks again for a job that is not due, or that another process has.
const IDLE: Duration = Duration::from_millis(500);

/// Whoever runs the service asks by this signal that the sandbox is looked at again. It ends no process that listens to it.
///
/// # Errors
/// It cannot be listened to.
pub fn hangups() -> anyhow::Result<Signal> {
    signal(SignalKind::hangup()).context("cannot listen to SIGHUP, which would end the service")
}

/// Serves webhooks and works on jobs until `quit` is ready; then running jobs park. With each of the `hangups` the sandbox
/// is looked at again.
///
/// # Errors
/// The address cannot be listened on, a webhook secret is unusable, or a part of the service ended by itself.
pub async fn serve(
    bot: Arc<Bot>,
    secrets: &Secrets,
    hangups: Signal,
    quit: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let router = router(&bot, secrets)?;
    let address = bot.config.server.listen;
    let listener = listen(address, "set `server.listen` to another").await?;
    let _company = company(&bot.config.data_dir);
    tracing::info!(address = %listener.local_addr()?, "listening for webhooks");
    let stop = Stop::default();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 1..=bot.config.queue.workers {
        let worker = bot.worker(format!("{}-{number}", std::process::id()));
        let (bot, stop) = (Arc::clone(&bot), stop.clone());
        tasks.spawn(async move { worker.run(bot.as_ref(), &stop).await });
    }
    for number in 1..=obey::AT_ONCE {
        let worker = bot.worker(format!("{}-commands-{number}", std::process::id()));
        let (bot, stop) = (Arc::clone(&bot), stop.clone());
        tasks.spawn(async move { obey::run(&bot, &worker, &stop).await });
    }
    tasks.spawn({
        let (bot, stop) = (Arc::clone(&bot), stop.clone());
        async move { clean_up::run(&bot, &stop).await }
    });
    tasks.spawn({
        let (bot, stop) = (Arc::clone(&bot), stop.clone());
        async move { reconcile::run(&bot, &stop).await }
    });
    tasks.spawn({
        let (bot, stop) = (Arc::clone(&bot), stop.clone());
        async move { sweep::run(&bot, &stop).await }
    });
    tasks.spawn({
        let (bot, stop) = (Arc::clone(&bot), stop.clone());
        async move { outcomes::run(&bot, &stop).await }
    });
    tasks.spawn({
        let (bot, stop) = (Arc::clone(&bot), stop.clone());
        async move { watch_sandbox(&bot, hangups, &stop).await }
    });
    tasks.spawn({
        let stop = stop.clone();
        async move {
            let limits = webhooks::Limits::default();
            webhooks::serve(listener, router, limits, stop.stopped()).await;
        }
    });
    let ended = tokio::select! {
        () = quit => {
            tracing::info!("stopping; running jobs park");
            Ok(())
        }
        // Whoever watches the service starts it again after an error, and only then.
        part = tasks.join_next() => Err(broken(part)),
    };
    stop.stop();
    let grace = bot.config.server.shutdown_grace;
    let parked =
        tokio::time::timeout(grace, async { while tasks.join_next().await.is_some() {} }).await;
    if parked.is_err() {
        bail!("some jobs did not park within {}; they go on after the next start", shown(grace));
    }
    ended
}

/// Listens on an address. `another` says how to choose another one.
///
/// # Errors
/// It cannot be listened on; the text says what to do.
pub(crate) async fn listen(address: SocketAddr, another: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let next = match error.kind() {
            ErrorKind::AddrInUse => {
                format!("another program listens there, perhaps Hyla itself; stop it, or {another}")
            }
            ErrorKind::AddrNotAvailable => {
                format!("this machine has no such address; {another}, such as `127.0.0.1:8474`")
            }
            ErrorKind::PermissionDenied => {
                format!("ports below 1024 take a right that this user lacks; {another}")
            }
            _ => another.to_owned(),
        };
        anyhow!("cannot listen on `{address}`: {error}; {next}")
    })
}

/// Says so where another service works on this data folder: they share its jobs. What comes back tells later ones of this
/// one, as long as it is kept. A folder that takes no locks tells nobody.
fn company(data: &Path) -> Option<File> {
    let file =
        File::options().create(true).truncate(false).write(true).open(data.join("serve.lock"));
    let file = file.ok()?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            tracing::info!(
                folder = %data.display(),
                "another `hyla serve` works on this data folder; they share its jobs"
            );
        }
        Err(TryLockError::Error(_)) => return None,
    }
    // Shared, so that each of several tells those that come later.
    file.lock_shared().ok()?;
    Some(file)
}

/// Looks at the sandbox whenever somebody asks for it, and again and again while it does not hold, until work begins.
async fn watch_sandbox(bot: &Bot, mut hangups: Signal, stop: &Stop) {
    loop {
        let is_barred = bot.is_barred();
        let asked = tokio::select! {
            () = stop.stopped() => return,
            Some(()) = hangups.recv() => true,
            () = tokio::time::sleep(SANDBOX_LOOK), if is_barred => false,
        };
        let holds = tokio::select! {
            () = stop.stopped() => return,
            holds = bot.look_at_sandbox() => holds,
        };
        if holds && is_barred {
            tracing::info!("the sandbox holds by now; jobs are worked on");
            bot.wake.notify_waiters();
        } else if asked {
            tracing::info!(holds, "the sandbox was looked at, as asked by SIGHUP");
        }
    }
}

/// A part of the service that ended though nobody had told it to.
fn broken(part: Option<Result<(), tokio::task::JoinError>>) -> anyhow::Error {
    let cause = match part {
        Some(Err(error)) => error.into(),
        Some(Ok(())) | None => anyhow!("it gave no reason"),
    };
    cause.context("a part of the service ended by itself")
}

/// Works until one job has ended. Jobs that are due before it are worked on as well.
///
/// # Errors
/// The database failed, it was time to stop, or the job is gone: nobody could be found who asked for it.
pub async fn until_ended(
    bot: &Bot,
    worker: &Worker,
    job: JobId,
    stop: &Stop,
) -> anyhow::Result<End> {
    loop {
        let row = bot.store.job(job).await?;
        let Some(row) = row else { bail!("job {job} asked for nothing; the log says why") };
        if let State::Ended { end } = row.job.state {
            return Ok(end);
        }
        bot.health()?;
        if stop.is_stopped() {
            bail!("stopped; job {job} waits for `hyla serve`");
        }
        if !worker.step(bot, stop).await? {
            stop.rest(IDLE).await;
        }
    }
}

/// The HTTP side: webhooks, and `/healthz` and `/metrics` for whoever watches the service.
///
/// # Errors
/// A webhook secret is unusable.
pub fn router(bot: &Arc<Bot>, secrets: &Secrets) -> anyhow::Result<Router> {
    let inbox = Inbox {
        store: Arc::clone(&bot.store),
        clock: Arc::clone(&bot.clock),
        forges: bot.config.forges.clone(),
        settle: bot.config.queue.settle,
        wake: Arc::clone(&bot.wake),
        orders: Arc::clone(&bot.orders),
        redactor: bot.redactor.clone(),
    };
    let hooks = bot.config.forges.iter().map(|(name, forge)| {
        let dialect = match forge.kind {
            ForgeKind::Gitea => Dialect::Gitea,
            ForgeKind::Forgejo => Dialect::Forgejo,
            ForgeKind::GitHub => Dialect::GitHub,
        };
        let secrets = secrets.forges.get(name).map(|own| own.webhooks.clone()).unwrap_or_default();
        (name.clone(), Hook { dialect, secrets })
    });
    let options = webhooks::Options {
        body_limit_bytes: bot.config.server.body_limit_bytes,
        body_timeout: BODY_TIMEOUT,
        hooks: hooks.collect::<BTreeMap<_, _>>(),
    };
    let webhooks = webhooks::router(options, Arc::new(inbox))?;
    let counting = Arc::clone(bot);
    let webhooks = webhooks.route_layer(middleware::map_response(move |answer: Response| {
        count(&counting, &answer);
        std::future::ready(answer)
    }));
    let (watched, counted) = (Arc::clone(bot), Arc::clone(bot));
    let health = move || async move {
        let bot = watched;
        match bot.health() {
            Ok(()) => {
                let sandbox = bot.workshop.sandbox.as_ref();
                let caution = banner(sandbox.confinement()).map(|words| format!("{words}\n"));
                let caution = caution.unwrap_or_default();
                (StatusCode::OK, format!("ok\nsandbox: {}\n{caution}", sandbox.name()))
            }
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        }
    };
    let metrics = move || async move { metrics(&counted).await };
    Ok(webhooks.route("/healthz", get(health)).route("/metrics", get(metrics)))
}

/// Counts the answer to a delivery. Whoever only looks at the address brings none.
fn count(bot: &Bot, answer: &Response) {
    if answer.status() != StatusCode::METHOD_NOT_ALLOWED {
        let accepted = answer.extensions().get().copied();
        bot.metrics.delivery(accepted, answer.status().is_server_error());
    }
}

/// What there is to know for whoever watches the service, as Prometheus reads it.
async fn metrics(bot: &Bot) -> Response {
    let at = bot.clock.now();
    let tally = match bot.store.tally(at).await {
        Ok(tally) => tally,
        Err(error) => {
            tracing::error!(error = %chain(&error), "nobody can be told how many jobs there are");
            return (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response();
        }
    };
    let sandbox = bot.workshop.sandbox.name();
    let now = Now { at, tally, sandbox: &sandbox, is_healthy: bot.health().is_ok() };
    ([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], bot.metrics.text(&now)).into_response()
}
