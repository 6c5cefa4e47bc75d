//! The routes of issues: reading them, comments, reactions, the timeline.

use bot::job::RepoName;
use serde_json::Value;

use super::api::Ask;
use super::hooks::Event;
use super::server::Reply;
use super::state::{Access, Reaction, What};

/// `[ui] REACTIONS`, as shipped.
const REACTIONS: [&str; 8] = ["+1", "-1", "laugh", "hooray", "confused", "heart", "rocket", "eyes"];

impl Ask<'_> {
    pub(super) fn issues(
        &mut self,
        repo: &RepoName,
        rest: &[&str],
        access: Access,
    ) -> Option<Reply> {
        if let ["comments", id] = rest {
            let id = id.parse().unwrap_or_default();
            return match self.method {
                "PATCH" => Some(self.edit_comment(repo, id, access)),
                "DELETE" => Some(self.delete_comment(repo, id, access)),
                "GET" => Some(self.one_comment(repo, id)),
                _ => None,
            };
        }
        if let ["comments", id, "reactions"] = rest {
            let id = id.parse().unwrap_or_default();
            return (self.method == "POST").then(|| self.react_to_comment(repo, id, access));
        }
        let [number, rest @ ..] = rest else {
            return (self.method == "GET").then(|| self.list_issues(repo));
        };
        let Some(number) = number.parse().ok().filter(|n| self.repo(repo).issue(*n).is_some())
        else {
            return Some(self.missing(&[]));
        };
        match (self.method, rest) {
            ("GET", []) => {
                let repo = self.repo(repo);
                let issue = repo.issue(number).expect("it was just found");
                Some(Reply::json(200, &self.state.issue_shape(repo, issue)))
            }
            ("GET", ["comments"]) => Some(self.comments(repo, number)),
            ("POST", ["comments"]) => Some(self.comment(repo, number, access)),
            ("GET", ["timeline"]) => Some(self.timeline(repo, number)),
            ("GET", ["reactions"]) => Some(self.reactions(repo, number)),
            ("POST", ["reactions"]) => Some(self.react(repo, number, access)),
            _ => None,
        }
    }

    /// Newest first. A label that nobody made drops the filter by labels, as on the real ones.
    fn list_issues(&self, repo: &RepoName) -> Reply {
        let repo = self.repo(repo);
        let parameter = |name: &str| {
            self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
        };
        let (state, kind) = (parameter("state").unwrap_or("open"), parameter("type"));
        let names = parameter("labels").unwrap_or_default().split(',');
        let wanted: Vec<i64> = names
            .filter_map(|name| repo.labels.iter().find(|label| label.name == name))
            .map(|label| label.id)
            .collect();
        let fitting = repo.issues.iter().rev().filter(|issue| {
            let has_state = state == "all" || issue.is_open == (state == "open");
            let has_kind = kind.is_none_or(|kind| issue.pull.is_some() == (kind == "pulls"));
            has_state && has_kind && wanted.iter().all(|label| issue.labels.contains(label))
        });
        let shapes = fitting.map(|issue| self.state.issue_shape(repo, issue));
        self.page(&shapes.collect::<Vec<_>>())
    }

    /// Unpaged on purpose, as on the real ones.
    fn comments(&self, repo: &RepoName, number: u64) -> Reply {
        let repo = self.repo(repo);
        let issue = repo.issue(number).expect("it was found before");
        let comments = issue.entries.iter().filter(|entry| entry.comment().is_some());
        let shapes: Vec<Value> =
            comments.map(|entry| self.state.comment_shape(repo, issue, entry)).collect();
        let total = shapes.len().to_string();
        Reply::json(200, &shapes.into()).with("x-total-count", total)
    }

    fn comment(&mut self, repo: &RepoName, number: u64, access: Access) -> Reply {
        let issue = self.repo(repo).issue(number).expect("it was found before");
        if issue.is_locked && access < Access::Write {
            return self.refusal(403, "cannot comment on locked issue");
        }
        let body = self.text("body");
        if body.is_empty() {
            return self.refusal(422, "[Body]: Required");
        }
        // The entry's own moment comes with `record`; of a fresh comment both times are one.
        let edited_at = self.state.tick();
        let id = self.state.record(repo, number, self.user, What::Comment { body, edited_at });
        self.events.push(Event::comment(self.state, self.shared, repo, number, id, "created"));
        self.shape_of_comment(repo, number, id, 201)
    }

    fn edit_comment(&mut self, repo: &RepoName, id: i64, access: Access) -> Reply {
        let Some((number, author)) = self.find_comment(repo, id) else {
            return self.missing(&[&format!("comment does not exist [id: {id}, issue_id: 0]")]);
        };
        if author != self.user && access < Access::Admin {
            return self.refusal(403, "");
        }
        let (at, text) = (self.state.tick(), self.text("body"));
        let issue = self.state.repo_mut(repo).issue_mut(number);
        let entry = issue.entries.iter_mut().find(|entry| entry.id == id);
        let entry = entry.expect("it was just found");
        entry.what = What::Comment { body: text, edited_at: at };
        issue.updated_at = at;
        self.events.push(Event::comment(self.state, self.shared, repo, number, id, "edited"));
        self.shape_of_comment(repo, number, id, 200)
    }

    fn delete_comment(&mut self, repo: &RepoName, id: i64, access: Access) -> Reply {
        let Some((number, author)) = self.find_comment(repo, id) else {
            return self.missing(&[&format!("comment does not exist [id: {id}, issue_id: 0]")]);
        };
        if author != self.user && access < Access::Admin {
            return self.refusal(403, "");
        }
        self.events.push(Event::comment(self.state, self.shared, repo, number, id, "deleted"));
        self.state.repo_mut(repo).issue_mut(number).entries.retain(|entry| entry.id != id);
        Reply { status: 204, headers: vec![], body: vec![] }
    }

    fn one_comment(&self, repo: &RepoName, id: i64) -> Reply {
        match self.find_comment(repo, id) {
            Some((number, _)) => self.shape_of_comment(repo, number, id, 200),
            None => self.missing(&[]),
        }
    }

    /// The issue's number and the author of a comment.
    fn find_comment(&self, repo: &RepoName, id: i64) -> Option<(u64, i64)> {
        self.repo(repo).issues.iter().find_map(|issue| {
            let entry = issue.entries.iter().find(|entry| entry.id == id)?;
            entry.comment().map(|_| (issue.number, entry.user))
        })
    }

    fn shape_of_comment(&self, repo: &RepoName, number: u64, id: i64, status: u16) -> Reply {
        let repo = self.repo(repo);
        let issue = repo.issue(number).expect("it was found before");
        let entry = issue.entries.iter().find(|entry| entry.id == id);
        let entry = entry.expect("it was found before");
        Reply::json(status, &self.state.comment_shape(repo, issue, entry))
    }

    /// The total in the header is that of the page: a client that trusts it stops too early.
    fn timeline(&self, repo: &RepoName, number: u64) -> Reply {
        let repo = self.repo(repo);
        let issue = repo.issue(number).expect("it was found before");
        let shapes: Vec<Value> = issue
            .entries
            .iter()
            .map(|entry| self.state.timeline_shape(repo, issue, entry))
            .collect();
        let mut reply = self.page(&shapes);
        let total = serde_json::from_slice::<Vec<Value>>(&reply.body).map_or(0, |page| page.len());
        reply.headers.retain(|(name, _)| name != "x-total-count");
        reply.with("x-total-count", total.to_string())
    }

    fn reactions(&self, repo: &RepoName, number: u64) -> Reply {
        let issue = self.repo(repo).issue(number).expect("it was found before");
        let shapes = issue.reactions.iter().map(|reaction| self.state.reaction_shape(reaction));
        self.page(&shapes.collect::<Vec<_>>())
    }

    /// The reaction that is to be put on an issue or on a comment there, if it may be.
    fn reaction(&self, repo: &RepoName, number: u64, access: Access) -> Result<String, Reply> {
        let content = self.text("content");
        let issue = self.repo(repo).issue(number).expect("it was found before");
        if issue.is_locked && access < Access::Write {
            return Err(self.refusal(403, "no permission to change reaction"));
        }
        if !REACTIONS.contains(&content.as_str()) {
            return Err(self.refusal(403, &format!("'{content}' is not an allowed reaction")));
        }
        Ok(content)
    }

    fn react_to_comment(&mut self, repo: &RepoName, id: i64, access: Access) -> Reply {
        let Some((number, _)) = self.find_comment(repo, id) else {
            return self.missing(&[]);
        };
        let content = match self.reaction(repo, number, access) {
            Ok(content) => content,
            Err(refusal) => return refusal,
        };
        let reaction = Reaction { user: self.user, content, at: self.state.tick() };
        let shape = self.state.reaction_shape(&reaction);
        let is_new = self.state.put_reaction(id, reaction);
        Reply::json(if is_new { 201 } else { 200 }, &shape)
    }

    fn react(&mut self, repo: &RepoName, number: u64, access: Access) -> Reply {
        let content = match self.reaction(repo, number, access) {
            Ok(content) => content,
            Err(refusal) => return refusal,
        };
        let issue = self.repo(repo).issue(number).expect("it was found before");
        let is_same = |r: &&Reaction| r.user == self.user && r.content == content;
        if let Some(reaction) = issue.reactions.iter().find(is_same) {
            return Reply::json(200, &self.state.reaction_shape(reaction));
        }
        let reaction = Reaction { user: self.user, content, at: self.state.tick() };
        let shape = self.state.reaction_shape(&reaction);
        self.state.repo_mut(repo).issue_mut(number).reactions.push(reaction);
        Reply::json(201, &shape)
    }
}
