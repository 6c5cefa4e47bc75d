//! GitHub's JSON for what happened to an issue. Comments and references stand in the timeline, and not in the events.

use serde_json::{Value, json};

use super::super::shapes::{merged, time};
use super::super::state::{Entry, Issue, Repo, State, What};
use super::shapes::node;

impl State {
    /// An entry of the timeline.
    pub(super) fn github_entry(&self, repo: &Repo, issue: &Issue, entry: &Entry) -> Value {
        if entry.comment().is_some() {
            let more = json!({ "event": "commented", "actor": self.github_user(entry.user) });
            return merged([self.github_comment(repo, issue, entry), more]);
        }
        if let What::ClosedBy { pull, .. } = &entry.what {
            let from = repo.issue(*pull).expect("references come from what is there");
            let mut source = self.github_issue(repo, from);
            source["repository"] = self.github_repository(repo);
            // References have no number.
            return json!({
                "actor": self.github_user(entry.user),
                "created_at": time(entry.at),
                "updated_at": time(entry.at),
                "source": { "type": "issue", "issue": source },
                "event": "cross-referenced",
            });
        }
        self.github_event(repo, entry).unwrap_or_default()
    }

    /// An entry of the events, if it is one.
    pub(super) fn github_event(&self, repo: &Repo, entry: &Entry) -> Option<Value> {
        let mut commit = Value::Null;
        let (event, more) = match &entry.what {
            What::Comment { .. } | What::ClosedBy { .. } => return None,
            What::Label { label, added } => {
                let label = self.github_label(repo, *label);
                let label = json!({ "name": label["name"], "color": label["color"] });
                (if *added { "labeled" } else { "unlabeled" }, json!({ "label": label }))
            }
            What::Closed => ("closed", json!({ "state_reason": null })),
            What::Reopened => ("reopened", json!({ "state_reason": null })),
            What::Title { from, to } => {
                ("renamed", json!({ "rename": { "from": from, "to": to } }))
            }
            What::Assignee { user, removed } => {
                let who = self.github_user(*user);
                let more = json!({ "assignee": who, "assigner": self.github_user(entry.user) });
                (if *removed { "unassigned" } else { "assigned" }, more)
            }
            What::Merged => {
                let merged_here = |issue: &&Issue| issue.entries.iter().any(|e| e.id == entry.id);
                let issue = repo.issues.iter().find(merged_here);
                let pull = issue.and_then(|issue| issue.pull.as_ref());
                commit = json!(pull.and_then(|pull| pull.merge_commit.as_ref()));
                ("merged", json!({}))
            }
        };
        let commit_url =
            commit.as_str().map(|sha| format!("{}/commits/{sha}", self.repo_api(repo)));
        let shape = json!({
            "id": entry.id,
            "node_id": node("LE", entry.id),
            "url": format!("{}/issues/events/{}", self.repo_api(repo), entry.id),
            "actor": self.github_user(entry.user),
            "event": event,
            "commit_id": commit,
            "commit_url": commit_url,
            "created_at": time(entry.at),
            "performed_via_github_app": null,
        });
        Some(merged([shape, more]))
    }
}
