//! A GitHub App: is it granted what a job needs in each repository, and do its deliveries arrive?

use super::forge::api_next;
use super::{Line, line};
use crate::forge::{Delivery, Error, OwnApp, Webhook};
use crate::halt::chain;
use crate::job::RepoName;
use crate::sandbox::Verdict;

/// What a job writes. Reading what belongs to a repository itself, such as people's permissions, every app may.
const WRITES: [&str; 3] = ["contents", "issues", "pull_requests"];
/// The events that tell of labels and of commands, with their names in the settings and what comes of it without them.
const EVENTS: [(&str, &str, &str); 2] = [
    ("issues", "Issues", "labels are found late"),
    ("issue_comment", "Issue comment", "commands are not heard"),
];

/// What an app lacks for work in a repository, each with what to do.
pub(super) async fn lacking(
    app: &dyn OwnApp,
    repo: &RepoName,
) -> Result<Vec<(Verdict, String)>, Error> {
    let installation = app.installation(repo).await?;
    let mut found = Vec::new();
    let may_write = |name: &&str| {
        let granted = installation.permissions.get(*name);
        granted.is_some_and(|level| matches!(level.as_str(), "write" | "admin"))
    };
    let missing: Vec<&str> = WRITES.into_iter().filter(|name| !may_write(name)).collect();
    if !missing.is_empty() {
        let names = missing.join("`, `");
        found.push((Verdict::Fails, format!(
            "the app may not write `{names}`; give it `Read and write` in its settings under Permissions, and have the owner of the repository accept that"
        )));
    }
    for (event, name, without) in EVENTS {
        if !installation.events.contains(event) {
            found.push((Verdict::Warns, format!(
                "the app is not told of `{event}`, so {without}; tick `{name}` in its settings under Subscribe to events"
            )));
        }
    }
    Ok(found)
}

/// Where an app's webhook goes, and what became of the newest deliveries.
pub(super) async fn webhook(name: &str, settings: &config::Forge, app: &dyn OwnApp) -> Line {
    let subject = format!("forge {name}: webhook");
    let seen = async {
        let Some(hook) = app.webhook().await? else { return Ok((None, vec![])) };
        Ok((Some(hook), app.newest_deliveries().await?))
    };
    let judged = match seen.await {
        Ok((hook, newest)) => judged(name, hook.as_ref(), &newest),
        Err(error) => Err(format!("{}; {}", chain(&error), api_next(&error, name, settings))),
    };
    match judged {
        Ok(detail) => line(subject, Verdict::Holds, detail),
        // Without it labels are found late, and jobs run.
        Err(detail) => line(subject, Verdict::Warns, detail),
    }
}

/// What is in order with a webhook, or what is not.
fn judged(name: &str, hook: Option<&Webhook>, newest: &[Delivery]) -> Result<String, String> {
    let path = format!("/hooks/{name}");
    let hook = hook.ok_or_else(|| format!(
        "the app has none, so labels are found late; set it active in the app's settings, with an address that ends in `{path}` and the secret of `forge.{name}.webhook_secrets`"
    ))?;
    let shown = crate::reply::code_span(&hook.url);
    if !hook.url.trim_end_matches('/').ends_with(&path) {
        return Err(format!(
            "the app's goes to {shown}; it must end in `{path}`: change it in the app's settings"
        ));
    }
    if !hook.has_secret {
        return Err(format!(
            "the app's has no secret, so every delivery is refused; set the one of `forge.{name}.webhook_secrets` in the app's settings"
        ));
    }
    let last = newest.first().ok_or_else(|| {
        format!("nothing was sent to {shown} yet; put the label on an issue, and look again")
    })?;
    if last.is_taken() {
        return Ok(format!(
            "deliveries to {shown} arrive; the last was `{}` at {}",
            last.event, last.at
        ));
    }
    let next = match last.status_code {
        401 => format!("compare the secret in the app's settings with `forge.{name}.webhook_secrets`"),
        404 => format!("compare the forge's name `{name}` with the end of the address, and the way of any proxy"),
        400..=499 => "look at the service's log, and at any proxy in between".to_owned(),
        _ => "start `hyla serve`, and let the forge reach that address: its host's firewall, and a proxy's certificate".to_owned(),
    };
    Err(format!(
        "the last delivery to {shown}, `{}` at {}, was not taken: {} ({}); {next}",
        last.event, last.at, last.status, last.status_code
    ))
}
