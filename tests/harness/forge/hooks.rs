//! Webhooks as the forges send them: payload shapes, header sets, signatures, one attempt, replay under a fresh id.
//!
//! The old `X-Hub-Signature` with SHA-1 is left out; nothing should look at it. Hooks hear of issues, comments and
//! pull requests, not of pushes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bot::job::RepoName;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use url::form_urlencoded;

use super::state::{Access, State};
use super::{Dialect, FakeForge, Shared, lock};

/// `[webhook] DELIVER_TIMEOUT`, as shipped.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// How a hook wants its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentType {
    /// As the body.
    Json,
    /// As the field `payload` of a form. The signature is over the JSON text all the same.
    Form,
}

#[derive(Debug, Clone)]
pub(super) struct Hook {
    pub id: i64,
    pub url: String,
    pub secret: String,
    pub content_type: ContentType,
}

/// One delivery and what came of it.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// Its UUID.
    pub id: String,
    /// The repository whose hook it was.
    pub repo: RepoName,
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
    hook: i64,
    coarse: &'static str,
    fine: &'static str,
}

/// Something that hooks hear of.
#[derive(Debug)]
pub(super) struct Event {
    repo: RepoName,
    coarse: &'static str,
    fine: &'static str,
    payload: Value,
}

impl Event {
    /// Something about an issue, or about the state, the labels or the text of a pull request.
    pub(super) fn issue(
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

    pub(super) fn pull(
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
    pub(super) fn with_change(mut self, dialect: Dialect, field: &str, from: &str) -> Self {
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
        Self { repo: repo.clone(), coarse, fine, payload }
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
        let id = state.id();
        let hook = Hook { id, url: url.to_owned(), secret: secret.to_owned(), content_type };
        state.repo_mut(repo).hooks.push(hook);
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
        let fresh = Delivered {
            id: uuid(self.state().id()),
            status: None,
            answer: String::new(),
            ..former
        };
        send(&self.shared, fresh).await
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

    pub(super) async fn announce(&self, event: Event) -> Vec<Delivered> {
        deliver(&self.shared, event).await
    }
}

/// Sends an event to every hook of its repository, once each, under ids of their own.
pub(super) async fn deliver(shared: &Arc<Shared>, event: Event) -> Vec<Delivered> {
    let pending: Vec<Delivered> = {
        let mut state = lock(&shared.state);
        let hooks = state.repo_mut(&event.repo).hooks.clone();
        let hooks = hooks.iter().map(|hook| Delivered {
            id: uuid(state.id()),
            repo: event.repo.clone(),
            event: event.fine.to_owned(),
            action: event.payload["action"].as_str().unwrap_or_default().to_owned(),
            payload: go_json(&event.payload),
            status: None,
            answer: String::new(),
            hook: hook.id,
            coarse: event.coarse,
            fine: event.fine,
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
async fn send(shared: &Shared, mut delivered: Delivered) -> Delivered {
    let (dialect, hook) = {
        let mut state = lock(&shared.state);
        let dialect = state.dialect;
        let hooks = &state.repo_mut(&delivered.repo).hooks;
        (dialect, hooks.iter().find(|hook| hook.id == delivered.hook).cloned())
    };
    let hook = hook.expect("hooks are never removed");
    let mut request = shared.client.post(&hook.url);
    for (name, value) in headers(dialect, &hook, &delivered) {
        request = request.header(name, value);
    }
    let request = match hook.content_type {
        ContentType::Json => {
            request.header("Content-Type", "application/json").body(delivered.payload.clone())
        }
        ContentType::Form => {
            let form = form_urlencoded::Serializer::new(String::new())
                .append_pair("payload", &delivered.payload)
                .finish();
            request.header("Content-Type", "application/x-www-form-urlencoded").body(form)
        }
    };
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
        Dialect::Forgejo15 => {}
    }
    headers
}

/// JSON as the forges write it: two spaces, and three characters escaped that others leave alone.
fn go_json(value: &Value) -> String {
    let text = serde_json::to_string_pretty(value).expect("values can be written");
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// A version 4 UUID that follows from a number.
fn uuid(number: i64) -> String {
    let digest = hex::encode(Sha256::digest(number.to_be_bytes()));
    let (a, b, c, d) = (&digest[..8], &digest[8..12], &digest[13..16], &digest[17..20]);
    format!("{a}-{b}-4{c}-a{d}-{}", &digest[20..32])
}
