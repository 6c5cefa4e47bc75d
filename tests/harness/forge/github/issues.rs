//! The routes of issues: lists, comments, reactions, what happened. Pull requests are issues here.

use bot::job::RepoName;
use serde_json::{Value, json};

use super::super::hooks::Event;
use super::super::server::Reply;
use super::super::shapes::time;
use super::super::state::{Access, Issue, Reaction, What};
use super::Call;

/// Longest text of a comment, in characters.
const BODY_LIMIT: usize = 65_536;

impl Call<'_> {
    pub(super) fn issues(
        &mut self,
        repo: &RepoName,
        rest: &[&str],
        access: Access,
    ) -> Option<Reply> {
        if let ["comments", id] = rest {
            let id = id.parse().unwrap_or_default();
            return match self.method {
                "GET" => Some(self.one_comment(repo, id)),
                "PATCH" => Some(self.edit_comment(repo, id, access)),
                "DELETE" => Some(self.delete_comment(repo, id, access)),
                _ => None,
            };
        }
        if let ["comments", id, "reactions"] = rest {
            let id = id.parse().unwrap_or_default();
            return (self.method == "POST").then(|| self.react_to_comment(repo, id, access));
        }
        let [number, rest @ ..] = rest else {
            return (self.method == "GET").then(|| self.list_issues(repo))?;
        };
        let number = number.parse().ok();
        let Some(issue) = number.and_then(|number| self.repo(repo).issue(number)) else {
            return Some(self.missing());
        };
        let number = issue.number;
        let home = self.repo(repo);
        match (self.method, rest) {
            ("GET", []) => Some(Reply::json(200, &self.state.github_issue(home, issue))),
            ("GET", ["comments"]) => {
                let comments = issue.entries.iter().filter(|entry| entry.comment().is_some());
                let shapes = comments.map(|it| self.state.github_comment(home, issue, it));
                Some(self.page(repo, &shapes.collect::<Vec<_>>()))
            }
            ("POST", ["comments"]) => Some(self.comment(repo, number, access)),
            ("GET", ["timeline"]) => {
                let entries = issue.entries.iter();
                let shapes = entries.map(|it| self.state.github_entry(home, issue, it));
                Some(self.page(repo, &shapes.collect::<Vec<_>>()))
            }
            ("GET", ["events"]) => {
                let entries = issue.entries.iter();
                let shapes = entries.filter_map(|it| self.state.github_event(home, it));
                Some(self.page(repo, &shapes.collect::<Vec<_>>()))
            }
            ("GET", ["labels"]) => {
                let labels = issue.labels.iter();
                let shapes = labels.map(|label| self.state.github_label(home, *label));
                Some(self.page(repo, &shapes.collect::<Vec<_>>()))
            }
            ("GET", ["reactions"]) => {
                let shapes = issue.reactions.iter().map(|it| self.state.github_reaction(it));
                Some(self.page(repo, &shapes.collect::<Vec<_>>()))
            }
            ("POST", ["reactions"]) => Some(self.react(repo, number, access)),
            _ => None,
        }
    }

    /// Issues and pull requests, the newest first. Labels must all be there, and one that nobody made is on nothing.
    fn list_issues(&self, repo: &RepoName) -> Option<Reply> {
        let known =
            ["state", "labels", "sort", "direction", "since", "per_page", "page"].as_slice();
        if self.query.iter().any(|(key, _)| !known.contains(&key.as_str())) {
            return None;
        }
        let home = self.repo(repo);
        let state = self.parameter("state").unwrap_or("open");
        let names = self.parameter("labels").unwrap_or_default();
        let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
        let since = self.parameter("since").unwrap_or_default();
        let has = |issue: &Issue, name: &str| {
            issue.labels.iter().any(|id| home.label(*id).name.eq_ignore_ascii_case(name))
        };
        let mut found: Vec<&Issue> = home
            .issues
            .iter()
            .filter(|issue| state == "all" || issue.is_open == (state == "open"))
            .filter(|issue| names.iter().all(|name| has(issue, name)))
            .filter(|issue| time(issue.updated_at).as_str() >= since)
            .collect();
        match self.parameter("sort").unwrap_or("created") {
            "created" => found.sort_by_key(|issue| (issue.created_at, issue.number)),
            "updated" => found.sort_by_key(|issue| (issue.updated_at, issue.number)),
            _ => return None,
        }
        if self.parameter("direction") != Some("asc") {
            found.reverse();
        }
        let shapes = found.into_iter().map(|issue| self.state.github_issue(home, issue));
        Some(self.page(repo, &shapes.collect::<Vec<_>>()))
    }

    /// What is wrong with a text, if something is.
    fn wrong_body(&self, body: &str) -> Option<Reply> {
        let error = if body.trim().is_empty() {
            json!({ "resource": "IssueComment", "code": "missing_field", "field": "body" })
        } else if body.chars().count() > BODY_LIMIT {
            let message = format!("body is too long (maximum is {BODY_LIMIT} characters)");
            json!({
                "resource": "IssueComment",
                "code": "custom",
                "field": "body",
                "message": message,
            })
        } else {
            return None;
        };
        Some(self.state.invalid(&error))
    }

    fn comment(&mut self, repo: &RepoName, number: u64, access: Access) -> Reply {
        let issue = self.repo(repo).issue(number).expect("it was found before");
        if issue.is_locked && access < Access::Write {
            return self.refused(403, "Unable to create comment because issue is locked.");
        }
        let body = self.text("body");
        if let Some(reply) = self.wrong_body(&body) {
            return reply;
        }
        // The entry's own moment comes with `record`; of a fresh comment both times are one.
        let edited_at = self.state.tick();
        let id = self.state.record(repo, number, self.user, What::Comment { body, edited_at });
        self.events.push(Event::comment(self.state, self.shared, repo, number, id, "created"));
        self.shape_of_comment(repo, number, id, 201)
    }

    fn edit_comment(&mut self, repo: &RepoName, id: i64, access: Access) -> Reply {
        let Some((number, author)) = self.find_comment(repo, id) else { return self.missing() };
        if author != self.user && access < Access::Write {
            return self.refused(403, "Must have admin rights to Repository.");
        }
        let body = self.text("body");
        if let Some(reply) = self.wrong_body(&body) {
            return reply;
        }
        let at = self.state.tick();
        let issue = self.state.repo_mut(repo).issue_mut(number);
        let entry = issue.entries.iter_mut().find(|entry| entry.id == id);
        entry.expect("it was just found").what = What::Comment { body, edited_at: at };
        issue.updated_at = at;
        self.events.push(Event::comment(self.state, self.shared, repo, number, id, "edited"));
        self.shape_of_comment(repo, number, id, 200)
    }

    fn delete_comment(&mut self, repo: &RepoName, id: i64, access: Access) -> Reply {
        let Some((number, author)) = self.find_comment(repo, id) else { return self.missing() };
        if author != self.user && access < Access::Write {
            return self.refused(403, "Must have admin rights to Repository.");
        }
        self.events.push(Event::comment(self.state, self.shared, repo, number, id, "deleted"));
        self.state.repo_mut(repo).issue_mut(number).entries.retain(|entry| entry.id != id);
        Reply { status: 204, headers: vec![], body: vec![] }
    }

    fn one_comment(&self, repo: &RepoName, id: i64) -> Reply {
        match self.find_comment(repo, id) {
            Some((number, _)) => self.shape_of_comment(repo, number, id, 200),
            None => self.missing(),
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
        Reply::json(status, &self.state.github_comment(repo, issue, entry))
    }

    fn react(&mut self, repo: &RepoName, number: u64, access: Access) -> Reply {
        let content = self.text("content");
        let issue = self.repo(repo).issue(number).expect("it was found before");
        if issue.is_locked && access < Access::Write {
            return self.refused(403, "Unable to create reaction because issue is locked.");
        }
        let is_same = |r: &&Reaction| r.user == self.user && r.content == content;
        if let Some(reaction) = issue.reactions.iter().find(is_same) {
            return Reply::json(200, &self.state.github_reaction(reaction));
        }
        let reaction = Reaction { user: self.user, content, at: self.state.tick() };
        let shape = self.state.github_reaction(&reaction);
        self.state.repo_mut(repo).issue_mut(number).reactions.push(reaction);
        Reply::json(201, &shape)
    }

    fn react_to_comment(&mut self, repo: &RepoName, id: i64, access: Access) -> Reply {
        let Some((number, _)) = self.find_comment(repo, id) else {
            return self.missing();
        };
        let content = self.text("content");
        let issue = self.repo(repo).issue(number).expect("it was found before");
        if issue.is_locked && access < Access::Write {
            return self.refused(403, "Unable to create reaction because issue is locked.");
        }
        let reaction = Reaction { user: self.user, content, at: self.state.tick() };
        let shape = self.state.github_reaction(&reaction);
        let is_new = self.state.put_reaction(id, reaction);
        Reply::json(if is_new { 201 } else { 200 }, &shape)
    }

    /// One label. GitHub does not tell small from capital letters in their names.
    pub(super) fn label(&self, repo: &RepoName, name: &str) -> Reply {
        let home = self.repo(repo);
        let found = home.labels.iter().find(|label| label.name.eq_ignore_ascii_case(name));
        match found {
            Some(label) => Reply::json(200, &self.state.github_label(home, label.id)),
            None => self.missing(),
        }
    }

    /// Whoever may push may ask about everybody.
    pub(super) fn permission(&self, repo: &RepoName, login: &str, access: Access) -> Reply {
        if access < Access::Write {
            let message = "Must have push access to view collaborator permission.";
            return self.refused(403, message);
        }
        let Some(user) = self.state.user_by_login(login) else { return self.missing() };
        let access = self.state.access(user.id, self.repo(repo));
        let shape: Value = self.state.github_permission(user.id, access);
        Reply::json(200, &shape)
    }
}
