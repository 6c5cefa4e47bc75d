//! The routes of pull requests: listing, reading, opening; and what a push does to them. There is none that changes one: the
//! bot never marks ready, merges or closes, so such a request is refused and recorded.

use bot::job::RepoName;
use serde_json::{Value, json};

use super::super::Shared;
use super::super::hooks::{Act, Event};
use super::super::server::Reply;
use super::super::state::{Access, Issue, PullPart, State};
use super::Call;

/// Moves the heads of open pull requests to where their branches are, as whoever pushed.
pub(in super::super) fn follow(
    state: &State,
    shared: &Shared,
    repo: &RepoName,
    user: i64,
) -> Vec<Event> {
    let home = state.repo(&repo.owner, &repo.name).expect("somebody just pushed to it");
    let mut events = Vec::new();
    for issue in home.issues.iter().filter(|issue| issue.is_open) {
        let Some(pull) = issue.pull.as_ref().filter(|pull| !pull.is_from_fork) else { continue };
        let own_ref = format!("refs/pull/{}/head", issue.number);
        let before = shared.git.resolve(&home.git_dir, &own_ref);
        let after = shared.git.head(&home.git_dir, &pull.head);
        if let (Some(before), Some(after)) = (before, after)
            && before != after
        {
            shared.git.set(&home.git_dir, &own_ref, &after);
            let act = Act::Pushed { before, after };
            events.extend(Event::of(state, shared, repo, issue.number, user, &act));
        }
    }
    events
}

impl Call<'_> {
    pub(super) fn pulls(
        &mut self,
        repo: &RepoName,
        rest: &[&str],
        access: Access,
    ) -> Option<Reply> {
        match (self.method, rest) {
            ("GET", []) => self.list_pulls(repo),
            ("POST", []) => Some(self.open_pull(repo, access)),
            ("GET", [number]) => {
                let issue = number.parse().ok().and_then(|number| self.repo(repo).issue(number));
                let pull = issue.and_then(|issue| issue.pull.as_ref().map(|pull| (issue, pull)));
                Some(match pull {
                    Some((issue, pull)) => Reply::json(200, &self.full(repo, issue, pull)),
                    None => self.missing(),
                })
            }
            _ => None,
        }
    }

    fn full(&self, repo: &RepoName, issue: &Issue, pull: &PullPart) -> Value {
        self.state.full_pull(&self.shared.git, self.repo(repo), issue, pull)
    }

    /// The newest first. A head without an owner before it is no filter at all, as on the real ones.
    fn list_pulls(&self, repo: &RepoName) -> Option<Reply> {
        let known = ["state", "head", "base", "sort", "direction", "per_page", "page"].as_slice();
        let is_known = |(key, _): &(String, String)| known.contains(&key.as_str());
        if !self.query.iter().all(is_known)
            || self.parameter("sort").unwrap_or("created") != "created"
        {
            return None;
        }
        let home = self.repo(repo);
        let state = self.parameter("state").unwrap_or("open");
        let head = self.parameter("head").and_then(|head| head.split_once(':'));
        let base = self.parameter("base");
        let fits = |issue: &Issue, pull: &PullPart| {
            let owner = if pull.is_from_fork { issue.author } else { home.owner };
            let owner = &self.state.user(owner).login;
            let has_head = head.is_none_or(|(whose, branch)| {
                owner.eq_ignore_ascii_case(whose) && pull.head == branch
            });
            let has_state = state == "all" || issue.is_open == (state == "open");
            has_state && has_head && base.is_none_or(|base| pull.base == base)
        };
        let found = home.issues.iter().filter_map(|issue| {
            let pull = issue.pull.as_ref().filter(|pull| fits(issue, pull))?;
            Some(self.state.simple_pull(&self.shared.git, home, issue, pull))
        });
        let mut shapes: Vec<Value> = found.collect();
        if self.parameter("direction") != Some("asc") {
            shapes.reverse();
        }
        Some(self.page(repo, &shapes))
    }

    fn open_pull(&mut self, repo: &RepoName, access: Access) -> Reply {
        let (title, head, base) = (self.text("title"), self.text("head"), self.text("base"));
        let is_draft = self.body["draft"] == true;
        let home = self.repo(repo);
        // A branch of the repository itself may be named with its owner or without.
        let prefix = format!("{}:", home.name.owner);
        let head = head.strip_prefix(&prefix).unwrap_or(&head).to_owned();
        if access < Access::Write {
            return self.missing();
        }
        if is_draft && self.state.github.refuses_drafts {
            let message = "Draft pull requests are not supported in this repository.";
            return self.refused(422, message);
        }
        let git_dir = home.git_dir.clone();
        let git = &self.shared.git;
        let invalid = |field: &str, code: &str| {
            let error = json!({ "resource": "PullRequest", "field": field, "code": code });
            self.state.invalid(&error)
        };
        let custom = |message: String| {
            let error = json!({ "resource": "PullRequest", "code": "custom", "message": message });
            self.state.invalid(&error)
        };
        if title.is_empty() {
            return invalid("title", "missing_field");
        }
        let Some(base_commit) = git.head(&git_dir, &base) else {
            return invalid("base", "invalid");
        };
        let Some(head_commit) = git.head(&git_dir, &head) else {
            return invalid("head", "invalid");
        };
        let is_same = |issue: &&Issue| {
            let pull = issue.pull.as_ref().filter(|pull| !pull.is_from_fork);
            issue.is_open && pull.is_some_and(|pull| pull.head == head && pull.base == base)
        };
        if home.issues.iter().any(|issue| is_same(&issue)) {
            return custom(format!("A pull request already exists for {prefix}{head}."));
        }
        if git.merge_base(&git_dir, &base_commit, &head_commit).as_ref() == Some(&head_commit) {
            return custom(format!("No commits between {base} and {head}"));
        }
        let (user, body) = (self.user, self.text("body"));
        let pull = PullPart { is_draft, ..PullPart::new(&head, &base) };
        let number = self.state.add_issue(repo, user, (&title, &body), Some(pull));
        git.set(&git_dir, &format!("refs/pull/{number}/head"), &head_commit);
        self.state.refer(repo, number);
        self.events.extend(Event::of(self.state, self.shared, repo, number, user, &Act::Opened));
        let issue = self.repo(repo).issue(number).expect("it was just made");
        let pull = issue.pull.as_ref().expect("it is a pull request");
        Reply::json(201, &self.full(repo, issue, pull))
    }
}
