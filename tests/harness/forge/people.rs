//! What people do on their forge: each act changes the state, leaves its mark on the timeline, and returns once every
//! hook has been told and has answered.

use bot::job::RepoName;

use super::hooks::{Act, Delivered, Event};
use super::state::{PullPart, State, What};
use super::{FakeForge, Files, github, label_id};

/// A person at work.
pub struct Person<'a> {
    pub(super) forge: &'a FakeForge,
    pub(super) id: i64,
}

impl Person<'_> {
    /// Opens an issue, perhaps with labels on it from the start, which leaves no label event. Returns its number.
    pub async fn open_issue(
        &self,
        repo: &RepoName,
        title: &str,
        body: &str,
        labels: &[&str],
    ) -> u64 {
        let number = {
            let mut state = self.forge.state();
            let labels: Vec<i64> =
                labels.iter().map(|name| label_id(&mut state, repo, name)).collect();
            let number = state.add_issue(repo, self.id, (title, body), None);
            if state.dialect.is_github() {
                for label in labels {
                    state.put_label(repo, number, label, self.id);
                }
            } else {
                state.repo_mut(repo).issue_mut(number).labels = labels;
            }
            number
        };
        self.tell(repo, number, Act::Opened).await;
        number
    }

    /// Puts a label on. Hooks are told even if it was there already, as the API of the real ones does; GitHub's are not.
    pub async fn add_label(&self, repo: &RepoName, number: u64, label: &str) -> Vec<Delivered> {
        let fresh = {
            let mut state = self.forge.state();
            let label = label_id(&mut state, repo, label);
            let is_fresh = state.put_label(repo, number, label, self.id);
            is_fresh.then_some(label).into_iter().collect()
        };
        self.tell(repo, number, Act::LabelsAdded(fresh)).await
    }

    /// Takes a label off.
    pub async fn remove_label(&self, repo: &RepoName, number: u64, label: &str) -> Vec<Delivered> {
        let taken = {
            let mut state = self.forge.state();
            let label = label_id(&mut state, repo, label);
            let is_taken = self.take_off(&mut state, repo, number, label);
            is_taken.then_some(label).into_iter().collect()
        };
        self.tell(repo, number, Act::LabelsRemoved(taken)).await
    }

    /// Takes all labels off at once.
    pub async fn clear_labels(&self, repo: &RepoName, number: u64) -> Vec<Delivered> {
        let taken = {
            let mut state = self.forge.state();
            let labels = state.repo_mut(repo).issue_mut(number).labels.clone();
            for label in &labels {
                self.take_off(&mut state, repo, number, *label);
            }
            labels
        };
        self.tell(repo, number, Act::LabelsCleared(taken)).await
    }

    fn take_off(&self, state: &mut State, repo: &RepoName, number: u64, label: i64) -> bool {
        let labels = &mut state.repo_mut(repo).issue_mut(number).labels;
        let before = labels.len();
        labels.retain(|id| *id != label);
        let is_taken = labels.len() < before;
        if is_taken {
            state.record(repo, number, self.id, What::Label { label, added: false });
        }
        is_taken
    }

    /// Comments on an issue or a pull request. Returns the comment's id.
    pub async fn comment(&self, repo: &RepoName, number: u64, body: &str) -> i64 {
        let (id, event) = {
            let mut state = self.forge.state();
            let edited_at = state.tick();
            let what = What::Comment { body: body.to_owned(), edited_at };
            let id = state.record(repo, number, self.id, what);
            (id, Event::comment(&state, &self.forge.shared, repo, number, id, "created"))
        };
        self.forge.announce(vec![event]).await;
        id
    }

    /// Replaces the text of a comment, whoever wrote it.
    pub async fn edit_comment(&self, repo: &RepoName, number: u64, comment: i64, text: &str) {
        let event = {
            let mut state = self.forge.state();
            let edited_at = state.tick();
            let issue = state.repo_mut(repo).issue_mut(number);
            let entry = issue.entries.iter_mut().find(|entry| entry.id == comment);
            let entry = entry.unwrap_or_else(|| panic!("there is no comment {comment}"));
            entry.what = What::Comment { body: text.to_owned(), edited_at };
            Event::comment(&state, &self.forge.shared, repo, number, comment, "edited")
        };
        self.forge.announce(vec![event]).await;
    }

    /// Removes a comment, of which nothing stays. Hooks are not told here.
    pub fn delete_comment(&self, repo: &RepoName, number: u64, comment: i64) {
        let mut state = self.forge.state();
        let issue = state.repo_mut(repo).issue_mut(number);
        issue.entries.retain(|entry| entry.id != comment);
    }

    /// Closes an issue, or a pull request without merging it.
    pub async fn close(&self, repo: &RepoName, number: u64) -> Vec<Delivered> {
        {
            let mut state = self.forge.state();
            state.repo_mut(repo).issue_mut(number).is_open = false;
            state.record(repo, number, self.id, What::Closed);
        }
        self.tell(repo, number, Act::Closed).await
    }

    /// Opens it again.
    pub async fn reopen(&self, repo: &RepoName, number: u64) -> Vec<Delivered> {
        {
            let mut state = self.forge.state();
            state.repo_mut(repo).issue_mut(number).is_open = true;
            state.record(repo, number, self.id, What::Reopened);
        }
        self.tell(repo, number, Act::Reopened).await
    }

    /// Lets only collaborators comment. Hooks are not told of it.
    pub fn lock(&self, repo: &RepoName, number: u64) {
        self.forge.state().repo_mut(repo).issue_mut(number).is_locked = true;
    }

    /// Gives an issue or a pull request another title. Without the draft prefix a draft becomes ready.
    pub async fn retitle(&self, repo: &RepoName, number: u64, title: &str) -> Vec<Delivered> {
        let from = {
            let mut state = self.forge.state();
            let issue = state.repo_mut(repo).issue_mut(number);
            let from = std::mem::replace(&mut issue.title, title.to_owned());
            let what = What::Title { from: from.clone(), to: title.to_owned() };
            state.record(repo, number, self.id, what);
            from
        };
        self.tell(repo, number, Act::Edited { field: "title", from }).await
    }

    /// Marks a draft as ready: on GitHub by its own mark, elsewhere by a title without the prefix.
    pub async fn mark_ready(&self, repo: &RepoName, number: u64) -> Vec<Delivered> {
        let title = {
            let mut state = self.forge.state();
            let is_github = state.dialect.is_github();
            let prefixes = state.draft_prefixes.clone();
            let issue = state.repo_mut(repo).issue_mut(number);
            let pull = issue.pull.as_mut();
            pull.unwrap_or_else(|| panic!("{number} is no pull request")).is_draft = false;
            let bare = prefixes.iter().find_map(|prefix| issue.title.strip_prefix(prefix.as_str()));
            bare.filter(|_| !is_github).map(|bare| bare.trim_start().to_owned())
        };
        match title {
            Some(title) => self.retitle(repo, number, &title).await,
            None => self.tell(repo, number, Act::Ready).await,
        }
    }

    /// Replaces the text of an issue or a pull request.
    pub async fn rewrite(&self, repo: &RepoName, number: u64, body: &str) -> Vec<Delivered> {
        let from = {
            let mut state = self.forge.state();
            let issue = state.repo_mut(repo).issue_mut(number);
            let from = std::mem::replace(&mut issue.body, body.to_owned());
            if issue.pull.is_some() {
                state.refer(repo, number);
            }
            from
        };
        self.tell(repo, number, Act::Edited { field: "body", from }).await
    }

    /// Gives an issue to someone, or takes it away again.
    pub async fn toggle_assignee(&self, repo: &RepoName, number: u64, login: &str) {
        let act = {
            let mut state = self.forge.state();
            let user = state.known(login);
            let assignees = &mut state.repo_mut(repo).issue_mut(number).assignees;
            let removed = assignees.contains(&user);
            match removed {
                true => assignees.retain(|id| *id != user),
                false => assignees.push(user),
            }
            state.record(repo, number, self.id, What::Assignee { user, removed });
            if removed { Act::Unassigned(user) } else { Act::Assigned(user) }
        };
        self.tell(repo, number, act).await;
    }

    /// Opens a pull request between two branches, as the forge's pages do. Returns its number.
    pub async fn open_pull(&self, repo: &RepoName, title: &str, head: &str, base: &str) -> u64 {
        self.open_pull_saying(repo, (title, ""), head, base).await
    }

    /// The same, with a text below the title.
    pub async fn open_pull_saying(
        &self,
        repo: &RepoName,
        words: (&str, &str),
        head: &str,
        base: &str,
    ) -> u64 {
        let commit = self.forge.branch_head(repo, head);
        let commit = commit.unwrap_or_else(|| panic!("there is no branch `{head}`"));
        self.propose(repo, words, &commit, PullPart::new(head, base)).await
    }

    /// Opens a pull request from a branch of a fork, which stands where the branch of that name stands here, or, if there
    /// is none, where `base` stands. Returns its number.
    pub async fn open_pull_from_fork(
        &self,
        repo: &RepoName,
        words: (&str, &str),
        head: &str,
        base: &str,
    ) -> u64 {
        let commit = [head, base].iter().find_map(|branch| self.forge.branch_head(repo, branch));
        let commit = commit.unwrap_or_else(|| panic!("there is no branch `{base}`"));
        let pull = PullPart { is_from_fork: true, ..PullPart::new(head, base) };
        self.propose(repo, words, &commit, pull).await
    }

    async fn propose(
        &self,
        repo: &RepoName,
        (title, body): (&str, &str),
        commit: &str,
        pull: PullPart,
    ) -> u64 {
        let number = {
            let mut state = self.forge.state();
            let number = state.add_issue(repo, self.id, (title, body), Some(pull));
            let git = &self.forge.shared.git;
            git.set(&state.repo_mut(repo).git_dir, &format!("refs/pull/{number}/head"), commit);
            state.refer(repo, number);
            number
        };
        self.tell(repo, number, Act::Opened).await;
        number
    }

    /// Merges a pull request with a merge commit. The head's files win; nothing looks for conflicts.
    pub async fn merge(&self, repo: &RepoName, number: u64) -> Vec<Delivered> {
        {
            let mut state = self.forge.state();
            let found = state.repo_mut(repo);
            let git_dir = found.git_dir.clone();
            let issue = found.issue_mut(number);
            issue.is_open = false;
            let pull = issue.pull.as_mut();
            let pull = pull.unwrap_or_else(|| panic!("{number} is no pull request"));
            let git = &self.forge.shared.git;
            let head = git.head(&git_dir, &pull.head);
            let head = head.expect("an open pull request has its head branch");
            pull.is_merged = true;
            pull.merge_commit = Some(git.merge(&git_dir, &pull.base, &head));
            state.record(repo, number, self.id, What::Merged);
        }
        self.tell(repo, number, Act::Closed).await
    }

    /// Commits files onto a branch, which is made from the default branch if it is not there. Returns the commit.
    pub fn commit(&self, repo: &RepoName, branch: &str, files: impl Into<Files>) -> String {
        let mut state = self.forge.state();
        let repo = state.repo_mut(repo);
        let git = &self.forge.shared.git;
        if git.head(&repo.git_dir, branch).is_none() {
            let start = git.head(&repo.git_dir, &repo.default_branch);
            let start = start.expect("the default branch is there");
            git.set(&repo.git_dir, &format!("refs/heads/{branch}"), &start);
        }
        let commit = git.commit(&repo.git_dir, branch, &files.into(), "Change by a person\n");
        let name = repo.name.clone();
        self.follow(&state, &name);
        commit
    }

    /// GitHub's hooks hear of what a push does to open pull requests; nobody waits for that here.
    fn follow(&self, state: &State, repo: &RepoName) {
        if state.dialect.is_github() {
            let events = github::follow(state, &self.forge.shared, repo, self.id);
            self.forge.shared.announce(events);
        }
    }

    /// Replaces a branch by one commit without a past, and lets nothing stay of what it held before.
    pub fn force_push(&self, repo: &RepoName, branch: &str, files: impl Into<Files>) -> String {
        let mut state = self.forge.state();
        let git_dir = &state.repo_mut(repo).git_dir;
        let git = &self.forge.shared.git;
        git.delete_branch(git_dir, branch);
        let commit = git.commit(git_dir, branch, &files.into(), "Start over\n");
        git.prune(git_dir);
        self.follow(&state, repo);
        commit
    }

    /// Gives a branch another name. Pull requests into it follow, and so does the default branch.
    pub fn rename_branch(&self, repo: &RepoName, from: &str, to: &str) {
        let mut state = self.forge.state();
        let repo = state.repo_mut(repo);
        let git = &self.forge.shared.git;
        let commit = git.head(&repo.git_dir, from).expect("the branch is there");
        git.set(&repo.git_dir, &format!("refs/heads/{to}"), &commit);
        git.delete_branch(&repo.git_dir, from);
        if repo.default_branch == from {
            repo.default_branch = to.to_owned();
        }
        for pull in repo.issues.iter_mut().filter_map(|issue| issue.pull.as_mut()) {
            if pull.base == from {
                pull.base = to.to_owned();
            }
        }
    }

    /// Turns a pull request towards another branch.
    pub fn retarget(&self, repo: &RepoName, number: u64, base: &str) {
        let mut state = self.forge.state();
        let pull = state.repo_mut(repo).issue_mut(number).pull.as_mut();
        pull.unwrap_or_else(|| panic!("{number} is no pull request")).base = base.to_owned();
    }

    /// Deletes a branch.
    pub fn delete_branch(&self, repo: &RepoName, branch: &str) {
        let mut state = self.forge.state();
        self.forge.shared.git.delete_branch(&state.repo_mut(repo).git_dir, branch);
    }

    async fn tell(&self, repo: &RepoName, number: u64, act: Act) -> Vec<Delivered> {
        let events =
            Event::of(&self.forge.state(), &self.forge.shared, repo, number, self.id, &act);
        self.forge.announce(events).await
    }
}
