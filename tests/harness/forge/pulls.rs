//! The routes of pull requests: listing, finding by branches, opening. There is none that changes one: the bot never
//! marks ready, merges or closes, so such a request is refused and recorded.

use bot::job::RepoName;
use serde_json::Value;

use super::api::Ask;
use super::hooks::{Act, Event};
use super::server::Reply;
use super::state::{Access, Issue, PullPart};

impl Ask<'_> {
    pub(super) fn pulls(
        &mut self,
        repo: &RepoName,
        rest: &[&str],
        access: Access,
    ) -> Option<Reply> {
        if !self.repo(repo).has_pulls {
            return Some(self.missing(&[]));
        }
        match (self.method, rest) {
            ("GET", []) => Some(self.list_pulls(repo, access)),
            ("POST", []) => Some(self.open_pull(repo, access)),
            ("GET", [number]) => {
                let number = number.parse().ok();
                let found = number.and_then(|number| self.repo(repo).issue(number));
                Some(self.one_pull(repo, found, access))
            }
            // Whether the real ones take `%2F` here is unknown, so nobody may count on it.
            ("GET", [base, ..]) if base.contains('/') => Some(self.missing(&[])),
            ("GET", [base, head @ ..]) => {
                let head = head.join("/");
                // The first match, whatever its state.
                let found = self.repo(repo).issues.iter().find(|issue| {
                    issue
                        .pull
                        .as_ref()
                        .is_some_and(|p| p.base == *base && p.head == head && !p.is_from_fork)
                });
                Some(self.one_pull(repo, found, access))
            }
            _ => None,
        }
    }

    fn one_pull(&self, repo: &RepoName, found: Option<&Issue>, access: Access) -> Reply {
        match found.and_then(|issue| self.shape(repo, issue, access)) {
            Some(shape) => Reply::json(200, &shape),
            None => self.missing(&[]),
        }
    }

    fn shape(&self, repo: &RepoName, issue: &Issue, access: Access) -> Option<Value> {
        let pull = issue.pull.as_ref()?;
        Some(self.state.pull_shape(&self.shared.git, self.repo(repo), issue, pull, access))
    }

    /// Newest first. The filter by base is Gitea's alone; the schemas see to that.
    fn list_pulls(&self, repo: &RepoName, access: Access) -> Reply {
        let parameter = |name: &str| {
            self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
        };
        let (state, base) = (parameter("state").unwrap_or("open"), parameter("base_branch"));
        let issues = self.repo(repo).issues.iter().rev().filter(|issue| {
            let fits = match state {
                "open" => issue.is_open,
                "closed" => !issue.is_open,
                _ => true,
            };
            let pull = issue.pull.as_ref();
            fits && base.is_none_or(|base| pull.is_some_and(|pull| pull.base == base))
        });
        let shapes: Vec<Value> =
            issues.filter_map(|issue| self.shape(repo, issue, access)).collect();
        let mut reply = self.page(&shapes);
        // This list answers an empty page with an empty list, others with `null`.
        if reply.body == b"null" {
            reply.body = b"[]".to_vec();
        }
        let next = format!("<{}/api/v1/wrong?page=99>; rel=\"next\"", self.state.root_url);
        reply.with("link", next)
    }

    fn open_pull(&mut self, repo: &RepoName, access: Access) -> Reply {
        let (title, head, base) = (self.text("title"), self.text("head"), self.text("base"));
        if title.is_empty() || head == base {
            return self.refusal(
                422,
                "Invalid PullRequest: There are no changes between the head and the base",
            );
        }
        let git_dir = self.repo(repo).git_dir.clone();
        let git = &self.shared.git;
        let (Some(head_commit), Some(_)) = (git.head(&git_dir, &head), git.head(&git_dir, &base))
        else {
            return self.refusal(422, "Unsupported ref: head and base must be branches");
        };
        if let Some(reply) = self.already_open(repo, &head, &base) {
            return reply;
        }
        let (user, body) = (self.user, self.text("body"));
        let pull = PullPart::new(&head, &base);
        let number = self.state.add_issue(repo, user, (&title, &body), Some(pull));
        git.set(&git_dir, &format!("refs/pull/{number}/head"), &head_commit);
        self.state.refer(repo, number);
        self.events.extend(Event::of(self.state, self.shared, repo, number, user, &Act::Opened));
        let issue = self.repo(repo).issue(number).expect("it was just made");
        Reply::json(201, &self.shape(repo, issue, access).expect("it is a pull request"))
    }

    /// The number in the text that says `issue_id` is the pull request's number.
    fn already_open(&self, repo: &RepoName, head: &str, base: &str) -> Option<Reply> {
        let repo = self.repo(repo);
        let (pull, number) = repo.issues.iter().find_map(|issue| {
            let pull = issue.pull.as_ref()?;
            let is_same =
                issue.is_open && !pull.is_from_fork && pull.head == head && pull.base == base;
            is_same.then_some((pull.id, issue.number))
        })?;
        let message = format!(
            "pull request already exists for these targets [id: {pull}, issue_id: {number}, head_repo_id: {id}, \
             base_repo_id: {id}, head_branch: {head}, base_branch: {base}]",
            id = repo.id,
        );
        Some(self.refusal(409, &message))
    }
}
