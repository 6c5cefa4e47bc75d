//! `hyla doctor`: is everything in order that a job will need? Each line says what was looked at, what was seen and, where
//! it is not in order, what to do.

use config::ModelKind;
use serde::Serialize;

use crate::bot::Bot;
use crate::halt::chain;
use crate::sandbox::{Sandbox, Verdict};

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

/// Looks at the sandbox.
pub async fn sandbox(sandbox: &dyn Sandbox) -> Vec<Line> {
    let report = sandbox.probe().await;
    let version =
        Line { subject: "sandbox".into(), verdict: Verdict::Holds, detail: report.backend };
    let checks = report.checks.into_iter().map(|check| Line {
        subject: format!("sandbox: {}", check.name),
        verdict: check.verdict,
        detail: check.detail,
    });
    std::iter::once(version).chain(checks).collect()
}

/// Looks at the model's server and at every forge and repository.
pub async fn outside(bot: &Bot) -> Vec<Line> {
    let mut lines = vec![model(bot).await];
    if bot.config.forges.is_empty() {
        let detail =
            "none is configured: add a section `[forge.NAME]`, as `config/example.toml` shows";
        lines.push(line("forge".into(), Verdict::Fails, detail.into()));
    }
    for (name, forge) in bot.forges() {
        let subject = format!("forge {name}");
        match forge.whoami().await {
            Ok(user) => lines.push(line(
                subject,
                Verdict::Holds,
                format!("the token is of user `{}`", user.login),
            )),
            Err(error) => {
                lines.push(line(subject, Verdict::Fails, chain(&error)));
                continue;
            }
        }
        let Some(settings) = bot.config.forges.get(name) else { continue };
        for repository in &settings.repositories {
            let subject = format!("forge {name}: {repository}");
            let Ok(repo) = repository.parse() else { continue };
            lines.push(match forge.repository(&repo).await {
                Ok(seen) if !seen.can_push => line(
                    subject,
                    Verdict::Fails,
                    "the bot's user may not push; give it write access".into(),
                ),
                Ok(seen) if !seen.has_pulls => line(
                    subject,
                    Verdict::Fails,
                    "pull requests are switched off; switch them on in its settings".into(),
                ),
                Ok(seen) if seen.archived => line(subject, Verdict::Warns, "it is archived".into()),
                Ok(seen) => line(
                    subject,
                    Verdict::Holds,
                    format!("work starts from `{}`", seen.default_branch),
                ),
                Err(error) => line(subject, Verdict::Fails, chain(&error)),
            });
        }
    }
    lines
}

async fn model(bot: &Bot) -> Line {
    let model = bot.workshop.model.as_ref();
    let subject = format!("model {}", model.name());
    let needed = bot.config.session.context_tokens;
    match model.context_window().await {
        Ok(Some(window)) if window < needed => {
            let detail =
                format!("its context is {window} tokens, `session.context_tokens` is {needed}");
            line(subject, Verdict::Fails, detail)
        }
        Ok(Some(window)) => {
            line(subject, Verdict::Holds, format!("its context is {window} tokens"))
        }
        Ok(None) => {
            line(subject, Verdict::Warns, "it answers, but does not tell its context".into())
        }
        Err(error) => {
            let next = match bot.config.model.kind {
                ModelKind::Endpoint => "start the server, or set `model.endpoint` and `model.name`",
                ModelKind::Local => "set `model.local.folder`, or make the folder whole",
            };
            line(subject, Verdict::Fails, format!("{}; {next}", chain(&error)))
        }
    }
}

fn line(subject: String, verdict: Verdict, detail: String) -> Line {
    Line { subject, verdict, detail }
}

/// The lines for people.
pub fn text(lines: &[Line]) -> String {
    let width = lines.iter().map(|line| line.subject.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for line in lines {
        let mark = match line.verdict {
            Verdict::Holds => "ok  ",
            Verdict::Warns => "warn",
            Verdict::Fails => "FAIL",
        };
        let detail = crate::reply::plain(&line.detail);
        out.push_str(&format!("{mark}  {:width$}  {detail}\n", line.subject));
    }
    out
}

/// Whether a job may run.
pub fn is_sound(lines: &[Line]) -> bool {
    lines.iter().all(|line| line.verdict != Verdict::Fails)
}
