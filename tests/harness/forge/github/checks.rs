//! Branches, commit statuses, and the check runs of apps.

use bot::job::RepoName;
use serde_json::{Value, json};

use super::super::server::Reply;
use super::super::shapes::time;
use super::super::state::Access;
use super::super::{FakeForge, lock};
use super::Call;
use super::shapes::node;

/// Longest description of a status, in characters.
const DESCRIPTION_LIMIT: usize = 140;

/// A commit status or a check run.
#[derive(Debug)]
pub(super) struct Check {
    pub repo: i64,
    pub seen: SeenCheck,
}

/// A commit status or a check run, as a test looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenCheck {
    /// Whether it is a check run, which only apps can make.
    pub is_run: bool,
    /// The commit.
    pub commit: String,
    /// Its context, or its name.
    pub name: String,
    /// Its state; of a check run, its conclusion or, without one, its status.
    pub state: String,
    /// Its description, or its title.
    pub text: String,
}

impl FakeForge {
    /// All commit statuses and check runs of a repository, oldest first.
    pub fn checks(&self, repo: &RepoName) -> Vec<SeenCheck> {
        let mut state = lock(&self.shared.state);
        let id = state.repo_mut(repo).id;
        let checks = state.github.checks.iter().filter(|check| check.repo == id);
        checks.map(|check| check.seen.clone()).collect()
    }
}

impl Call<'_> {
    /// A branch's commit. The beginning of a name is no name.
    pub(super) fn reference(&self, repo: &RepoName, reference: &[&str]) -> Reply {
        let home = self.repo(repo);
        let name = reference.join("/");
        let branch = name.strip_prefix("heads/").unwrap_or_default();
        let Some(sha) = self.shared.git.head(&home.git_dir, branch) else { return self.missing() };
        let url = self.state.repo_api(home);
        let shape = json!({
            "ref": format!("refs/heads/{branch}"),
            "node_id": node("REF", home.id),
            "url": format!("{url}/git/refs/heads/{branch}"),
            "object": { "sha": sha, "type": "commit", "url": format!("{url}/git/commits/{sha}") },
        });
        Reply::json(200, &shape)
    }

    pub(super) fn branch(&self, repo: &RepoName, branch: &str) -> Reply {
        let home = self.repo(repo);
        let Some(sha) = self.shared.git.head(&home.git_dir, branch) else {
            return self.refused(404, "Branch not found");
        };
        let url = self.state.repo_api(home);
        let page = format!("{}/{repo}", self.state.root_url);
        let protection = format!("{url}/branches/{branch}/protection");
        let person = json!({
            "name": "Ada Maintainer",
            "email": "ada@example.org",
            "date": "2026-01-05T09:00:00Z",
        });
        let shape = json!({
            "name": branch,
            "commit": {
                "sha": sha,
                "node_id": node("C", home.id),
                "commit": {
                    "author": person,
                    "committer": person,
                    "message": "",
                    "tree": { "sha": sha, "url": format!("{url}/git/trees/{sha}") },
                    "url": format!("{url}/git/commits/{sha}"),
                    "comment_count": 0,
                },
                "url": format!("{url}/commits/{sha}"),
                "html_url": format!("{page}/commit/{sha}"),
                "comments_url": format!("{url}/commits/{sha}/comments"),
                "author": null,
                "committer": null,
                "parents": [],
            },
            "_links": {
                "self": format!("{url}/branches/{branch}"),
                "html": format!("{page}/tree/{branch}"),
            },
            "protected": false,
            "protection": {
                "enabled": false,
                "required_status_checks": {
                    "enforcement_level": "off",
                    "contexts": [],
                    "checks": [],
                },
            },
            "protection_url": protection,
        });
        Reply::json(200, &shape)
    }

    pub(super) fn status(&mut self, repo: &RepoName, sha: &str, access: Access) -> Reply {
        if access < Access::Write {
            return self.missing();
        }
        if self.shared.git.resolve(&self.repo(repo).git_dir, sha).as_deref() != Some(sha) {
            return self.refused(422, &format!("No commit found for SHA: {sha}"));
        }
        let description = self.text("description");
        if description.chars().count() > DESCRIPTION_LIMIT {
            let error = json!({
                "resource": "Status",
                "code": "custom",
                "field": "description",
                "message": format!("description is too long (maximum is {DESCRIPTION_LIMIT} characters)"),
            });
            return self.state.invalid(&error);
        }
        let context = self.body["context"].as_str().unwrap_or("default").to_owned();
        let (id, at) = (self.state.id(), time(self.state.tick()));
        let shape = json!({
            "url": format!("{}/statuses/{sha}", self.state.repo_api(self.repo(repo))),
            "avatar_url": null,
            "id": id,
            "node_id": node("SC", id),
            "state": self.text("state"),
            "description": self.body["description"],
            "target_url": self.body["target_url"],
            "context": context,
            "created_at": at,
            "updated_at": at,
            "creator": self.state.github_user(self.user),
        });
        let state = self.text("state");
        let (is_run, commit) = (false, sha.to_owned());
        let seen = SeenCheck { is_run, commit, name: context, state, text: description };
        self.keep(repo, seen);
        Reply::json(201, &shape)
    }

    /// Only an app may make one.
    pub(super) fn check_run(&mut self, repo: &RepoName) -> Reply {
        let app = self.state.github.app.as_ref().filter(|_| self.token.grant.is_some());
        let Some(app) = app.map(|app| self.state.app_shape(app)) else {
            return self.refused(403, "You must authenticate via a GitHub App.");
        };
        let sha = self.text("head_sha");
        if self.shared.git.resolve(&self.repo(repo).git_dir, &sha).as_deref() != Some(&sha) {
            return self.refused(422, &format!("No commit found for SHA: {sha}"));
        }
        let (id, now) = (self.state.id(), time(self.state.github.now()));
        let conclusion = self.body["conclusion"].as_str().map(str::to_owned);
        // A conclusion makes it complete, whatever else was said.
        let status = match (&conclusion, self.body["status"].as_str()) {
            (Some(_), _) => "completed",
            (None, Some(status)) => status,
            (None, None) => "queued",
        };
        let or_now = |key: &str| self.body[key].as_str().unwrap_or(&now).to_owned();
        let completed_at = conclusion.is_some().then(|| or_now("completed_at"));
        let output = &self.body["output"];
        let home = self.repo(repo);
        let url = format!("{}/check-runs/{id}", self.state.repo_api(home));
        let shape = json!({
            "id": id,
            "name": self.text("name"),
            "node_id": node("CR", id),
            "head_sha": sha,
            "external_id": self.text("external_id"),
            "url": url,
            "html_url": format!("{}/{repo}/runs/{id}", self.state.root_url),
            "details_url": self.body["details_url"].as_str().unwrap_or("https://example.org"),
            "status": status,
            "conclusion": conclusion,
            "started_at": or_now("started_at"),
            "completed_at": completed_at,
            "output": {
                "title": output["title"],
                "summary": output["summary"],
                "text": output["text"],
                "annotations_count": output["annotations"].as_array().map_or(0, Vec::len),
                "annotations_url": format!("{url}/annotations"),
            },
            "check_suite": { "id": home.id },
            "app": app,
            "pull_requests": [],
        });
        let state = conclusion.unwrap_or_else(|| status.to_owned());
        let text: Value = output["title"].clone();
        let text = text.as_str().unwrap_or_default().to_owned();
        let seen = SeenCheck { is_run: true, commit: sha, name: self.text("name"), state, text };
        self.keep(repo, seen);
        Reply::json(201, &shape)
    }

    fn keep(&mut self, repo: &RepoName, seen: SeenCheck) {
        let check = Check { repo: self.repo(repo).id, seen };
        self.state.github.checks.push(check);
    }
}
