//! What a test looks at afterwards: comments, reactions, pull requests, branches, requests, and what must not be there.

use std::path::PathBuf;

use bot::job::RepoName;

use super::schema::decode;
use super::server::Request;
use super::state::What;
use super::{FakeForge, label_id, lock};

/// A comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenComment {
    /// Its id.
    pub id: i64,
    /// Who wrote it.
    pub author: String,
    /// Its text.
    pub body: String,
}

/// A pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPull {
    /// Its number.
    pub number: u64,
    /// Who opened it.
    pub author: String,
    /// Its title, with any prefix.
    pub title: String,
    /// Its text.
    pub body: String,
    /// The branch with the change.
    pub head: String,
    /// The branch to merge into.
    pub base: String,
    /// Whether it is a draft, by its title or, on GitHub, by its mark.
    pub is_draft: bool,
    /// Whether it is open.
    pub is_open: bool,
    /// Whether it has been merged.
    pub is_merged: bool,
}

impl FakeForge {
    /// Whether an issue or pull request is open.
    pub fn is_open(&self, repo: &RepoName, number: u64) -> bool {
        self.state().repo_mut(repo).issue_mut(number).is_open
    }

    /// The event by which a label was last put on an issue; none if it came with the issue.
    pub fn label_event(&self, repo: &RepoName, number: u64, label: &str) -> Option<i64> {
        let mut state = self.state();
        let wanted = label_id(&mut state, repo, label);
        let entries = &state.repo_mut(repo).issue_mut(number).entries;
        let is_it =
            |what: &What| matches!(what, What::Label { label, added: true } if *label == wanted);
        entries.iter().rev().find(|entry| is_it(&entry.what)).map(|entry| entry.id)
    }

    /// The comments of an issue or pull request, oldest first.
    pub fn comments(&self, repo: &RepoName, number: u64) -> Vec<SeenComment> {
        let mut state = self.state();
        let entries = state.repo_mut(repo).issue_mut(number).entries.clone();
        let comments = entries.iter().filter_map(|entry| {
            let body = entry.comment()?.to_owned();
            Some(SeenComment { id: entry.id, author: state.user(entry.user).login.clone(), body })
        });
        comments.collect()
    }

    /// The reactions on an issue, as login and content.
    pub fn reactions(&self, repo: &RepoName, number: u64) -> Vec<(String, String)> {
        let mut state = self.state();
        let reactions = state.repo_mut(repo).issue_mut(number).reactions.clone();
        let pairs = reactions.iter().map(|r| (state.user(r.user).login.clone(), r.content.clone()));
        pairs.collect()
    }

    /// The reactions on a comment, as login and content.
    pub fn comment_reactions(&self, comment: i64) -> Vec<(String, String)> {
        let state = self.state();
        let on_it = state.comment_reactions.iter().filter(|(on, _)| *on == comment);
        on_it.map(|(_, it)| (state.user(it.user).login.clone(), it.content.clone())).collect()
    }

    /// The names of the labels on an issue.
    pub fn labels(&self, repo: &RepoName, number: u64) -> Vec<String> {
        let mut state = self.state();
        let repo = state.repo_mut(repo);
        let ids = repo.issue_mut(number).labels.clone();
        ids.iter().map(|id| repo.label(*id).name.clone()).collect()
    }

    /// All pull requests, oldest first.
    pub fn pulls(&self, repo: &RepoName) -> Vec<SeenPull> {
        let mut state = self.state();
        let issues = state.repo_mut(repo).issues.clone();
        let pulls = issues.iter().filter_map(|issue| {
            let pull = issue.pull.as_ref()?;
            Some(SeenPull {
                number: issue.number,
                author: state.user(issue.author).login.clone(),
                title: issue.title.clone(),
                body: issue.body.clone(),
                head: pull.head.clone(),
                base: pull.base.clone(),
                is_draft: state.is_draft(issue),
                is_open: issue.is_open,
                is_merged: pull.is_merged,
            })
        });
        pulls.collect()
    }

    /// The commit of a branch.
    pub fn branch_head(&self, repo: &RepoName, branch: &str) -> Option<String> {
        self.shared.git.head(&self.git_dir(repo), branch)
    }

    /// All branches with their commits.
    pub fn branches(&self, repo: &RepoName) -> Vec<(String, String)> {
        self.shared.git.branches(&self.git_dir(repo))
    }

    /// What a pull request changes since it left its base. A deleted head is found by the pull request's own ref.
    pub fn diff(&self, repo: &RepoName, pull: u64) -> String {
        let found = self.pulls(repo).into_iter().find(|seen| seen.number == pull);
        let seen = found.unwrap_or_else(|| panic!("{repo} has no pull request {pull}"));
        let git_dir = self.git_dir(repo);
        let head = self
            .branch_head(repo, &seen.head)
            .or_else(|| self.shared.git.resolve(&git_dir, &format!("refs/pull/{pull}/head")));
        let head = head.expect("a pull request has a head");
        self.shared.git.diff(&git_dir, &seen.base, &head)
    }

    /// The content of a file on a branch.
    pub fn file(&self, repo: &RepoName, branch: &str, path: &str) -> Option<Vec<u8>> {
        let git_dir = self.git_dir(repo);
        let commit = self.shared.git.head(&git_dir, branch)?;
        self.shared.git.show(&git_dir, &commit, path)
    }

    /// The bare repository itself, for whatever else a test wants to look at or to spoil.
    pub fn git_dir(&self, repo: &RepoName) -> PathBuf {
        self.state().repo_mut(repo).git_dir.clone()
    }

    /// Every request so far, the API's and git's, in the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// What the bot asked and never should have.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.shared.violations).clone()
    }

    /// Where a token stands that is no `Authorization` header: addresses, other headers, bodies, and everything that
    /// was committed to a repository or written on an issue.
    pub fn token_sightings(&self) -> Vec<String> {
        let mut places = Vec::new();
        for request in self.requests() {
            let what = format!("{} {}", request.method, request.path);
            let url = format!("{}?{}", request.path, request.query);
            places.push((format!("the address of {what}"), decode(&url).into_bytes()));
            for (name, value) in request.headers {
                places.push((format!("header `{name}` of {what}"), value.into_bytes()));
            }
            places.push((format!("the body of {what}"), request.body));
        }
        let state = self.state();
        for repo in &state.repos {
            let commits = self.shared.git.everything(&repo.git_dir).into_bytes();
            places.push((format!("a commit of {}", repo.name), commits));
        }
        let mut sightings = Vec::new();
        for (place, content) in places {
            for token in &state.tokens {
                if contains(&content, token.value.as_bytes()) {
                    let owner = &state.user(token.user).login;
                    sightings.push(format!("the token of `{owner}` stands in {place}"));
                }
            }
        }
        sightings
    }

    /// The end of a test: no request that the API does not have, no token where none belongs.
    ///
    /// # Panics
    /// If there is one, with all of them.
    pub fn assert_clean(&self) {
        let mut wrong = self.violations();
        wrong.extend(self.token_sightings());
        assert!(wrong.is_empty(), "the forge has complaints:\n{}", wrong.join("\n"));
    }
}

fn contains(content: &[u8], token: &[u8]) -> bool {
    content.windows(token.len()).any(|window| window == token)
}
