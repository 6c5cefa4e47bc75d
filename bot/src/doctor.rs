//! `hyla doctor`: is everything in order that a job will need? Each line says what was looked at, what was seen and, where
//! it is not in order, what to do. It looks and makes nothing.

mod app;
mod data;
mod forge;

use std::time::Duration;

use serde::Serialize;

pub use data::data;
pub use forge::forge;

use crate::bot::Bot;
use crate::egress::{Internet, Refusal, address_of};
use crate::halt::chain;
use crate::model::{Model, Settings};
use crate::publish::Author;
use crate::reply::banner;
use crate::sandbox::{Sandbox, Verdict};

/// How long a check may be silent before its user is told what it waits for.
const PATIENCE: Duration = Duration::from_secs(3);
/// Columns of the first column at least: the longest check of the sandbox.
const WIDTH: usize = 28;

/// What to do where no forge is configured.
pub(crate) const ADD_A_FORGE: &str = "add a section `[forge.NAME]`, as `config/example.toml` shows";

/// One line.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// What was looked at, such as `sandbox: no-network`.
    pub subject: String,
    /// What was seen.
    pub verdict: Verdict,
    /// Details.
    pub detail: String,
}

/// What is done with each line as soon as it is known.
pub type Show<'a> = dyn FnMut(Line) + Send + 'a;

/// Looks at the sandbox.
pub async fn sandbox(sandbox: &dyn Sandbox, show: &mut Show<'_>) {
    let report = sandbox.probe().await;
    show(match banner(sandbox.confinement()) {
        Some(words) => {
            line("sandbox".into(), Verdict::Warns, format!("{}: {words}", report.backend))
        }
        None => line("sandbox".into(), Verdict::Holds, report.backend),
    });
    for check in report.checks {
        show(line(format!("sandbox: {}", check.name), check.verdict, check.detail));
    }
}

/// Looks at what setup commands may download.
pub async fn egress(egress: &config::Egress, internet: &dyn Internet, show: &mut Show<'_>) {
    if !egress.is_open() {
        let detail = "setup commands have no network; `[egress]` may list hosts".into();
        show(line("setup downloads".into(), Verdict::Holds, detail));
    }
    for host in egress.hosts.iter().chain(&egress.internal_hosts) {
        let subject = format!("setup downloads: {host}");
        show(match address_of(host, egress, internet).await {
            Ok(address) => line(subject, Verdict::Holds, format!("it is at {}", address.ip())),
            Err(why @ Refusal::Internal) => {
                let detail = format!("{why}; if it is meant, list it in `egress.internal_hosts`");
                line(subject, Verdict::Fails, detail)
            }
            Err(why) => line(subject, Verdict::Fails, format!("{why}; take it out of `[egress]`")),
        });
    }
}

/// Looks at the model's server. `needed` is the context of a session, in tokens.
pub async fn model(model: &dyn Model, needed: u64, show: &mut Show<'_>) {
    let subject = format!("model {}", model.name());
    show(match model.context_window().await {
        Ok(Some(window)) if window < needed => line(
            subject,
            Verdict::Fails,
            format!(
                "its context is {window} tokens, `session.context_tokens` is {needed}; start the server with a larger one, or set the key to {window}"
            ),
        ),
        Ok(Some(window)) => {
            line(subject, Verdict::Holds, format!("its context is {window} tokens"))
        }
        Ok(None) => line(
            subject,
            Verdict::Warns,
            format!(
                "it answers, but does not tell its context; make sure that it has the {needed} tokens of `session.context_tokens`"
            ),
        ),
        Err(error) => {
            let next = error.next(Settings::File);
            line(subject, Verdict::Fails, format!("{}; {next}", chain(&error)))
        }
    });
}

/// Says how commits are signed. A key that cannot sign is an error of the configuration, told before any line.
pub fn commits(author: &Author) -> Line {
    let signed = match &author.signer {
        Some(signer) => format!("signed with {signer}; the forge must know its public half"),
        None => "not signed; `publish.signing` may name a key".into(),
    };
    let signed_off = if author.signs_off { "; signed off" } else { "" };
    line("commits".into(), Verdict::Holds, format!("{signed}{signed_off}"))
}

/// What is wrong with a configuration that names no forge.
pub fn no_forge() -> Line {
    line("forge".into(), Verdict::Fails, format!("none is configured: {ADD_A_FORGE}"))
}

/// Tells the log what is not in order with a forge, once at the start: the service does not wait for it.
pub async fn warn(bot: &Bot) {
    for (name, client) in bot.forges() {
        let Some(settings) = bot.config.forges.get(name) else { continue };
        let mut tell = |line: Line| {
            if line.verdict != Verdict::Holds {
                let (subject, detail) = (line.subject, line.detail);
                tracing::warn!(subject, detail, "not in order; `hyla doctor` looks at everything");
            }
        };
        forge(name, settings, (client, bot.clock.as_ref()), &mut tell).await;
    }
}

/// Waits for a check, and says on what after a while.
pub async fn patiently<T>(
    what: &str,
    check: impl Future<Output = T>,
    tell: impl FnOnce(String),
) -> T {
    tokio::pin!(check);
    tokio::select! {
        done = &mut check => return done,
        () = tokio::time::sleep(PATIENCE) => tell(format!("waiting for {what}")),
    }
    check.await
}

fn line(subject: String, verdict: Verdict, detail: String) -> Line {
    Line { subject, verdict, detail }
}

/// A line for people.
pub fn text(line: &Line) -> String {
    let mark = match line.verdict {
        Verdict::Holds => "ok  ",
        Verdict::Warns => "warn",
        Verdict::Fails => "FAIL",
    };
    let detail = crate::reply::plain(&line.detail);
    let subject = crate::reply::plain(&line.subject);
    format!("{mark}  {subject:WIDTH$}  {detail}\n")
}

/// What to do next, behind all lines.
pub fn closing(lines: &[Line]) -> &'static str {
    if !is_sound(lines) {
        return "Not in order: do what the lines with FAIL say, then run `hyla doctor` again.";
    }
    match lines.iter().any(|line| line.verdict == Verdict::Warns) {
        true => {
            "Jobs can run; look at the lines with warn. Next: start `hyla serve` if it does not run, and put the label on an issue."
        }
        false => {
            "All in order. Next: start `hyla serve` if it does not run, and put the label on an issue."
        }
    }
}

/// Whether a job may run.
pub fn is_sound(lines: &[Line]) -> bool {
    lines.iter().all(|line| line.verdict != Verdict::Fails)
}
