//! What the forges send: header names and payloads, as far as the bot reacts to them. What they have in common is read in one
//! way; no action of one means something else on another.

use axum::http::HeaderMap;
use serde::Deserialize;

use crate::event::ABOUT_A_PULL;
use crate::{Cause, Comment, Dialect, Event, RepoName, Snapshot};

/// The header names of a dialect, the finer event name first.
pub(crate) fn event_headers(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Gitea => &["x-gitea-event-type", "x-gitea-event"],
        Dialect::Forgejo => {
            &["x-forgejo-event-type", "x-gitea-event-type", "x-forgejo-event", "x-gitea-event"]
        }
        Dialect::GitHub => &["x-github-event"],
    }
}

/// The header that names a delivery.
pub(crate) fn delivery_headers(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Gitea => &["x-gitea-delivery"],
        Dialect::Forgejo => &["x-forgejo-delivery", "x-gitea-delivery"],
        Dialect::GitHub => &["x-github-delivery"],
    }
}

/// The first of these headers that is there, as text.
pub(crate) fn first<'a>(headers: &'a HeaderMap, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| headers.get(*name)?.to_str().ok())
}

#[derive(Deserialize)]
struct Payload {
    action: Option<String>,
    number: Option<u64>,
    issue: Option<Issue>,
    #[serde(default)]
    is_pull: bool,
    pull_request: Option<serde::de::IgnoredAny>,
    comment: Option<Written>,
    repository: Option<Repository>,
}

#[derive(Deserialize)]
struct Written {
    id: Option<i64>,
    body: Option<String>,
    user: Option<Writer>,
}

#[derive(Deserialize)]
struct Writer {
    id: Option<i64>,
}

#[derive(Deserialize)]
struct Issue {
    number: Option<u64>,
    title: Option<String>,
    body: Option<String>,
    labels: Option<Vec<Label>>,
    pull_request: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Label {
    name: String,
}

#[derive(Deserialize)]
struct Repository {
    full_name: Option<String>,
}

/// Reads a payload. An event that the bot knows but whose payload lacks what it needs is an error: the forge then shows
/// a failed delivery to a person.
pub(crate) fn event(name: &str, payload: &[u8]) -> Result<Event, String> {
    if name.starts_with("pull_request") {
        let payload: Option<Payload> = serde_json::from_slice(payload).ok();
        let about = payload.as_ref().and_then(about);
        return Ok(Event::Other { about, reason: ABOUT_A_PULL });
    }
    if name == "ping" {
        return Ok(Event::Other { about: None, reason: "a test delivery" });
    }
    // `issue_comment` is the fine name of a comment on an issue; on a pull request it is `pull_request_comment`.
    if !matches!(
        name,
        "issues" | "issue_label" | "issue_assign" | "issue_milestone" | "issue_comment"
    ) {
        let reason = "an event that the bot does not react to";
        return Ok(Event::Other { about: None, reason });
    }
    let payload: Payload = serde_json::from_slice(payload).map_err(|error| {
        // The error's own text may quote the payload.
        format!(
            "the payload is not the JSON of an `{name}` event (line {}, column {})",
            error.line(),
            error.column()
        )
    })?;
    let is_pull = payload.is_pull
        || payload.pull_request.is_some()
        || payload.issue.as_ref().is_some_and(|issue| issue.pull_request.is_some());
    if is_pull {
        return Ok(Event::Other { about: about(&payload), reason: ABOUT_A_PULL });
    }
    let Some(cause) = cause(name, payload.action.as_deref().unwrap_or_default()) else {
        let reason = "an action that the bot does not react to";
        return Ok(Event::Other { about: about(&payload), reason });
    };
    let lacks = |what: &str| format!("the payload of an `{name}` event has no usable {what}");
    let number = number(&payload).ok_or_else(|| lacks("issue number"))?;
    let repo = repo(&payload).ok_or_else(|| lacks("repository name"))?;
    let is_fresh = name == "issue_comment" && payload.action.as_deref() == Some("created");
    if let Some(comment) = payload.comment.filter(|_| is_fresh).and_then(comment) {
        let seen = payload.issue.and_then(snapshot);
        return Ok(Event::CommentWritten { repo, number, comment, seen });
    }
    let seen = match cause {
        Cause::Opened | Cause::LabelsMayHaveChanged => payload.issue.and_then(snapshot),
        Cause::Reopened | Cause::Changed => None,
    };
    Ok(Event::IssueSeen { repo, number, cause, seen })
}

/// The number of the issue or pull request.
fn number(payload: &Payload) -> Option<u64> {
    let number = payload.issue.as_ref().and_then(|issue| issue.number).or(payload.number);
    number.filter(|number| (1..=i64::MAX.unsigned_abs()).contains(number))
}

fn repo(payload: &Payload) -> Option<RepoName> {
    payload.repository.as_ref()?.full_name.as_ref()?.parse().ok()
}

fn about(payload: &Payload) -> Option<(RepoName, u64)> {
    Some((repo(payload)?, number(payload)?))
}

/// A comment, if the payload says who wrote what. A deleted account writes none.
fn comment(written: Written) -> Option<Comment> {
    let (id, author) = (written.id?, written.user?.id?);
    Some(Comment { id, author, body: written.body.unwrap_or_default() })
}

/// The issue, if the payload says what it reads and which labels it has.
fn snapshot(issue: Issue) -> Option<Snapshot> {
    let labels = issue.labels?.into_iter().map(|label| label.name).collect();
    Some(Snapshot { title: issue.title?, body: issue.body.unwrap_or_default(), labels })
}

fn cause(name: &str, action: &str) -> Option<Cause> {
    match (name, action) {
        ("issue_comment", "created" | "edited" | "deleted") => Some(Cause::Changed),
        ("issue_comment", _) => None,
        (_, "opened") => Some(Cause::Opened),
        (_, "reopened") => Some(Cause::Reopened),
        (_, "label_updated" | "label_cleared" | "labeled" | "unlabeled") => {
            Some(Cause::LabelsMayHaveChanged)
        }
        (
            _,
            "closed" | "edited" | "assigned" | "unassigned" | "milestoned" | "demilestoned"
            | "deleted" | "transferred",
        ) => Some(Cause::Changed),
        _ => None,
    }
}
