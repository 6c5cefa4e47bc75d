//! Webhooks as the forges send them: payload shapes, header sets, signatures, one attempt, replay under a fresh id. What
//! is GitHub's own about them is in `github`.
//!
//! The old `X-Hub-Signature` with SHA-1 is left out; nothing should look at it. Hooks hear of issues, comments and
//! pull requests, not of pushes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bot::job::RepoName;
use chrono::{DateTime, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use url::form_urlencoded;

use super::state::{Access, State};
use super::{Dialect, FakeForge, Shared, github, lock};

/// `[webhook] DELIVER_TIMEOUT`, as shipped.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// How a hook wants its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentType {
    /// As the body.
    Json,
    /// As the field `payload` of a form. The signature is over the JSON text all the same, but GitHub's is over the form.
    Form,
}

#[derive(Debug, Clone)]
pub(super) struct Hook {
    pub id: i64,
    pub url: String,
    pub secret: String,
    pub content_type: ContentType,
    /// The repository that it belongs to, or the app.
    pub target: Target,
}

/// Whose hook it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Repository(i64),
    App(i64),
}

/// One delivery and what came of it.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// Its UUID.
    pub id: String,
    /// Its number, which GitHub gives every attempt anew.
    pub number: i64,
    /// The repository that it is about, if it is about one.
    pub repo: Option<RepoName>,
    /// The event in the finer words, such as `issue_label`.
    pub event: String,
    /// The action in the payload.
    pub action: String,
    /// The JSON text.
    pub payload: String,
    /// The answer's status; none if it was held back or not answered.
    pub status: Option<u16>,
    /// The answer's body.
    pub answer: String,
    /// Whether it was sent before, which GitHub tells.
    pub is_again: bool,
    pub(super) at: DateTime<Utc>,
    pub(super) hook: i64,
    pub(super) coarse: &'static str,
    fine: &'static str,
}

/// Something that hooks hear of.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) repo: Option<RepoName>,
    /// The only hook that hears of it; all without one.
    pub(super) hook: Option<i64>,
    pub(super) coarse: &'static str,
    pub(super) fine: &'static str,
    pub(super) payload: Value,
}

/// What happened to an issue or a pull request.
#[derive(Debug)]
pub(super) enum Act {
    Opened,
    /// The labels that were not there before, and so on.
    LabelsAdded(Vec<i64>),
    LabelsRemoved(Vec<i64>),
    LabelsCleared(Vec<i64>),
    Closed,
    Reopened,
    Edited {
        field: &'static str,
        from: String,
    },
    /// A draft is none any more.
    Ready,
    Assigned(i64),
    Unassigned(i64),
    /// The head of a pull request moved.
    Pushed {
        before: String,
        after: String,
    },
}

impl Act {
    /// What Gitea and Forgejo call it.
    fn action(&self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::LabelsAdded(_) | Self::LabelsRemoved(_) => "label_updated",
            Self::LabelsCleared(_) => "label_cleared",
            Self::Closed => "closed",
            Self::Reopened => "reopened",
            Self::Edited { .. } | Self::Ready => "edited",
            Self::Assigned(_) => "assigned",
            Self::Unassigned(_) => "unassigned",
            Self::Pushed { .. } => "synchronized",
        }
    }
}

impl Event {
    /// What hooks hear of an act: one event, and on GitHub one for each label.
    pub(super) fn of(
        state: &State,
        shared: &Shared,
        repo: &RepoName,
        number: u64,
        sender: i64,
        act: &Act,
    ) -> Vec<Self> {
        if state.dialect.is_github() {
            return github::events(state, shared, repo, number, sender, act);
        }
        let event = Self::issue(state, shared, repo, number, sender, act.action());
        vec![match act {
            Act::Edited { field, from } => event.with_change(state.dialect, field, from),
            Act::Opened
            | Act::LabelsAdded(_)
            | Act::LabelsRemoved(_)
            | Act::LabelsCleared(_)
            | Act::Closed
            | Act::Reopened
            | Act::Ready
            | Act::Assigned(_)
            | Act::Unassigned(_)
            | Act::Pushed { .. } => event,
        }]
    }

    /// Something about an issue, or about the state, the labels or the text of a pull request.
    fn issue(
        state: &State,
        shared: &Shared,
        repo: &RepoName,
        number: u64,
        sender: i64,
        action: &str,
    ) -> Self {
        let found = state.repo(&repo.owner, &repo.name).and_then(|repo| repo.issue(number));
        if found.is_some_and(|issue| issue.pull.is_some()) {
            return Self::pull(state, shared, repo, number, sender, action);
        }
        let fine = match action {
            "label_updated" | "label_cleared" => "issue_label",
            "assigned" | "unassigned" => "issue_assign",
            _ => "issues",
        };
        let mut payload = json!({ "action": action, "number": number });
        payload["issue"] = subject(state, repo, number);
        Self::finish(state, repo, number, sender, ("issues", fine), payload)
    }

    fn pull(
        state: &State,
        shared: &Shared,
        repo: &RepoName,
        number: u64,
        sender: i64,
        action: &str,
    ) -> Self {
        let fine = match action {
            "label_updated" | "label_cleared" => "pull_request_label",
            "assigned" | "unassigned" => "pull_request_assign",
            _ => "pull_request",
        };
        let payload = json!({
            "action": action,
            "number": number,
            "pull_request": pull_shape(state, shared, repo, number),
            "requested_reviewer": null,
        });
        let mut event = Self::finish(state, repo, number, sender, ("pull_request", fine), payload);
        event.payload["review"] = Value::Null;
        event
    }

    pub(super) fn comment(
        state: &State,
        shared: &Shared,
        repo: &RepoName,
        number: u64,
        comment: i64,
        action: &str,
    ) -> Self {
        if state.dialect.is_github() {
            return github::comment_event(state, repo, number, comment, action);
        }
        let at = state.repo(&repo.owner, &repo.name).expect("events are about what is there");
        let issue = at.issue(number).expect("events are about what is there");
        let entry = issue.entries.iter().find(|entry| entry.id == comment);
        let entry = entry.expect("events are about what is there");
        let is_pull = issue.pull.is_some();
        let mut payload = json!({ "action": action });
        payload["issue"] = subject(state, repo, number);
        if is_pull {
            payload["pull_request"] = pull_shape(state, shared, repo, number);
        }
        payload["comment"] = state.comment_shape(at, issue, entry);
        let fine = if is_pull { "pull_request_comment" } else { "issue_comment" };
        let names = ("issue_comment", fine);
        let mut event = Self::finish(state, repo, number, entry.user, names, payload);
        event.payload["is_pull"] = json!(is_pull);
        event
    }

    /// Names what an edit changed, as `changes`.
    fn with_change(mut self, dialect: Dialect, field: &str, from: &str) -> Self {
        let mut changes = json!({ field: { "from": from } });
        if dialect == Dialect::Gitea127 {
            // These keys look like the missing label delta and never hold one.
            changes["added_labels"] = Value::Null;
            changes["removed_labels"] = Value::Null;
        }
        self.payload["changes"] = changes;
        self
    }

    fn finish(
        state: &State,
        repo: &RepoName,
        number: u64,
        sender: i64,
        (coarse, fine): (&'static str, &'static str),
        mut payload: Value,
    ) -> Self {
        let at = state.repo(&repo.owner, &repo.name).expect("events are about what is there");
        let issue = at.issue(number).expect("events are about what is there");
        // These are the rights of whoever opened it, not the sender's: a trap that real payloads hold.
        payload["repository"] = state.repo_shape(at, state.access(issue.author, at));
        payload["sender"] = state.user_shape_of(sender);
        payload["commit_id"] = json!("");
        Self { repo: Some(repo.clone()), hook: None, coarse, fine, payload }
    }
}

fn subject(state: &State, repo: &RepoName, number: u64) -> Value {
    let repo = state.repo(&repo.owner, &repo.name).expect("events are about what is there");
    let issue = repo.issue(number).expect("events are about what is there");
    state.issue_shape(repo, issue)
}

fn pull_shape(state: &State, shared: &Shared, repo: &RepoName, number: u64) -> Value {
    let repo = state.repo(&repo.owner, &repo.name).expect("events are about what is there");
    let issue = repo.issue(number).expect("events are about what is there");
    let Some(pull) = &issue.pull else { return Value::Null };
    state.pull_shape(&shared.git, repo, issue, pull, Access::Owner)
}

impl FakeForge {
    /// A hook with a JSON body. Returns its id.
    pub fn register_hook(&self, repo: &RepoName, url: &str, secret: &str) -> i64 {
        self.register_hook_as(repo, url, secret, ContentType::Json)
    }

    /// A hook. An empty secret is allowed, as on the real ones: the signature headers are then there and empty.
    pub fn register_hook_as(
        &self,
        repo: &RepoName,
        url: &str,
        secret: &str,
        content_type: ContentType,
    ) -> i64 {
        let mut state = self.state();
        let (id, target) = (state.id(), Target::Repository(state.repo_mut(repo).id));
        let hook =
            Hook { id, url: url.to_owned(), secret: secret.to_owned(), content_type, target };
        state.repo_mut(repo).hooks.push(hook.clone());
        if state.dialect.is_github() {
            self.shared.announce(vec![github::ping(&state, &hook, Some(repo))]);
        }
        id
    }

    /// Every delivery so far, held ones too.
    pub fn deliveries(&self) -> Vec<Delivered> {
        lock(&self.shared.deliveries).clone()
    }

    /// Sends a delivery again, as a person can from the hook's page: the same text under another id.
    pub async fn redeliver(&self, id: &str) -> Delivered {
        let found = self.deliveries().into_iter().find(|delivered| delivered.id == id);
        let former = found.unwrap_or_else(|| panic!("there was no delivery `{id}`"));
        let again = self.state().again(former);
        send(&self.shared, again).await
    }

    /// Waits until all deliveries that the bot's own calls caused have been answered or have failed.
    pub async fn settle(&self) {
        loop {
            let mut waiting = std::mem::take(&mut *lock(&self.shared.pending));
            if waiting.is_empty() {
                return;
            }
            while waiting.join_next().await.is_some() {}
        }
    }

    pub(super) async fn announce(&self, events: Vec<Event>) -> Vec<Delivered> {
        let mut sent = Vec::new();
        for event in events {
            sent.extend(deliver(&self.shared, event).await);
        }
        sent
    }
}

impl State {
    /// A delivery as it is sent again: under another id, or, on GitHub, under another number.
    pub(super) fn again(&mut self, former: Delivered) -> Delivered {
        let number = self.id();
        let id = if self.dialect.is_github() { former.id } else { uuid(number) };
        let (status, answer, at) = (None, String::new(), self.github.now());
        Delivered { id, number, status, answer, is_again: true, at, ..former }
    }

    /// A hook of a repository or of the app.
    pub(super) fn hook(&self, id: i64) -> Option<&Hook> {
        let repos = self.repos.iter().flat_map(|repo| &repo.hooks);
        repos.chain(self.github.app_hook()).find(|hook| hook.id == id)
    }

    /// The hooks that hear of an event.
    fn hooks_for(&self, event: &Event) -> Vec<Hook> {
        if let Some(only) = event.hook {
            return self.hook(only).cloned().into_iter().collect();
        }
        let repo = event.repo.as_ref().and_then(|name| self.repo(&name.owner, &name.name));
        let Some(repo) = repo else { return vec![] };
        let app = self.github.app_hook().filter(|_| self.github.installation(repo.id).is_some());
        repo.hooks.iter().chain(app).cloned().collect()
    }

    /// The text for one hook.
    fn payload(&self, event: &Event, hook: &Hook) -> String {
        if self.dialect.is_github() {
            return github::payload(self, event, hook);
        }
        go_json(&event.payload)
    }
}

/// Sends an event to every hook of its repository, once each, under ids of their own.
pub(super) async fn deliver(shared: &Arc<Shared>, event: Event) -> Vec<Delivered> {
    let pending: Vec<Delivered> = {
        let mut state = lock(&shared.state);
        let hooks = state.hooks_for(&event).into_iter().map(|hook| {
            let number = state.id();
            Delivered {
                id: uuid(number),
                number,
                repo: event.repo.clone(),
                event: event.fine.to_owned(),
                action: event.payload["action"].as_str().unwrap_or_default().to_owned(),
                payload: state.payload(&event, &hook),
                status: None,
                answer: String::new(),
                is_again: false,
                at: state.github.now(),
                hook: hook.id,
                coarse: event.coarse,
                fine: event.fine,
            }
        });
        hooks.collect()
    };
    let mut sent = Vec::new();
    for delivered in pending {
        if shared.hooks_are_held.load(Ordering::SeqCst) {
            lock(&shared.deliveries).push(delivered.clone());
            sent.push(delivered);
        } else {
            sent.push(send(shared, delivered).await);
        }
    }
    sent
}

/// One attempt: no forge of this kind repeats one by itself.
pub(super) async fn send(shared: &Shared, mut delivered: Delivered) -> Delivered {
    let (dialect, hook) = {
        let state = lock(&shared.state);
        (state.dialect, state.hook(delivered.hook).cloned())
    };
    let hook = hook.expect("hooks are never removed");
    let (content_type, body) = match hook.content_type {
        ContentType::Json => ("application/json", delivered.payload.clone()),
        ContentType::Form => {
            let mut form = form_urlencoded::Serializer::new(String::new());
            let form = form.append_pair("payload", &delivered.payload).finish();
            ("application/x-www-form-urlencoded", form)
        }
    };
    let mut request = shared.client.post(&hook.url);
    let headers = match dialect {
        Dialect::Ghes314 | Dialect::Ghes319 => github::headers(shared, &hook, &delivered, &body),
        Dialect::Gitea124 | Dialect::Gitea127 | Dialect::Forgejo15 => {
            headers(dialect, &hook, &delivered)
        }
    };
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.header("Content-Type", content_type).body(body);
    let again = request.try_clone().expect("the body is in memory");
    let mut answered = request.send().await;
    // As the client of real forges does: a connection that was kept from an earlier delivery may be closed by now.
    if answered.as_ref().is_err_and(|error| error.is_request() && !error.is_timeout()) {
        answered = again.send().await;
    }
    match answered {
        Ok(answer) => {
            delivered.status = Some(answer.status().as_u16());
            delivered.answer = answer.text().await.unwrap_or_default();
        }
        Err(error) => delivered.answer = format!("no answer: {error}"),
    }
    lock(&shared.deliveries).push(delivered.clone());
    delivered
}

/// What a delivery is signed with, as hex.
///
/// # Panics
/// Never: HMAC takes keys of every length.
pub fn signature(secret: &str, payload: &[u8]) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes());
    let mut mac = mac.expect("HMAC takes keys of every length");
    mac.update(payload);
    hex::encode(mac.finalize().into_bytes())
}

/// The full header set. The names of other forges are among them, which is why a name proves nothing.
fn headers(dialect: Dialect, hook: &Hook, delivered: &Delivered) -> Vec<(String, String)> {
    let signature = match hook.secret.as_str() {
        "" => String::new(),
        secret => signature(secret, delivered.payload.as_bytes()),
    };
    let brands: &[&str] = match dialect {
        Dialect::Gitea124 | Dialect::Gitea127 => &["Gitea", "Gogs"],
        Dialect::Forgejo15 => &["Forgejo", "Gitea", "Gogs"],
        Dialect::Ghes314 | Dialect::Ghes319 => &[],
    };
    let mut headers = Vec::new();
    let mut add = |name: String, value: &str| headers.push((name, value.to_owned()));
    for brand in brands {
        add(format!("X-{brand}-Delivery"), &delivered.id);
        add(format!("X-{brand}-Event"), delivered.coarse);
        add(format!("X-{brand}-Event-Type"), delivered.fine);
        add(format!("X-{brand}-Signature"), &signature);
    }
    add("X-Hub-Signature-256".into(), &format!("sha256={signature}"));
    add("X-GitHub-Delivery".into(), &delivered.id);
    add("X-GitHub-Event".into(), delivered.coarse);
    add("X-GitHub-Event-Type".into(), delivered.fine);
    match dialect {
        Dialect::Gitea124 | Dialect::Gitea127 => {
            add("X-Gitea-Hook-Installation-Target-Type".into(), "repository");
            add("X-GitHub-Hook-Installation-Target-Type".into(), "repository");
        }
        Dialect::Forgejo15 | Dialect::Ghes314 | Dialect::Ghes319 => {}
    }
    headers
}

/// JSON as the forges write it: two spaces, and three characters escaped that others leave alone.
fn go_json(value: &Value) -> String {
    let text = serde_json::to_string_pretty(value).expect("values can be written");
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// A version 4 UUID that follows from a number.
pub(super) fn uuid(number: i64) -> String {
    let digest = hex::encode(Sha256::digest(number.to_be_bytes()));
    let (a, b, c, d) = (&digest[..8], &digest[8..12], &digest[13..16], &digest[17..20]);
    format!("{a}-{b}-4{c}-a{d}-{}", &digest[20..32])
}
