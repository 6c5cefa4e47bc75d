//! What the fake forge knows: people, tokens, repositories, issues with their timelines, pull requests. Plain data and
//! the rules that belong to it.
//!
//! Nothing here speaks HTTP or JSON, and git objects are not here but in real bare repositories.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bot::forge::Permission;
use bot::job::RepoName;
use chrono::{DateTime, TimeDelta, Utc};

use super::Dialect;
use super::github::World;
use super::hooks::Hook;

/// Everything, behind one lock.
#[derive(Debug)]
pub(super) struct State {
    pub dialect: Dialect,
    /// The address that the forge believes to have (`ROOT_URL`), with any sub-path, without a final slash.
    pub root_url: String,
    /// Title prefixes that make a draft (`WORK_IN_PROGRESS_PREFIXES`).
    pub draft_prefixes: Vec<String>,
    pub users: Vec<User>,
    pub tokens: Vec<Token>,
    pub repos: Vec<Repo>,
    /// Former names of repositories, with their present ones.
    pub moved: Vec<(RepoName, RepoName)>,
    /// What people and bots put on comments, by the comment's id.
    pub comment_reactions: Vec<(i64, Reaction)>,
    /// What only GitHub has.
    pub github: World,
    next_id: i64,
    clock: DateTime<Utc>,
}

#[derive(Debug, Clone)]
pub(super) struct User {
    pub id: i64,
    pub login: String,
    pub kind: UserKind,
    /// What it may do in every repository that says nothing else.
    pub permission: Permission,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UserKind {
    Person,
    SiteAdmin,
    Organization,
    /// What a GitHub App acts as.
    Bot,
}

#[derive(Debug, Clone)]
pub(super) struct Token {
    pub value: String,
    pub user: i64,
    /// Such as `write:issue`; `all` for everything.
    pub scopes: Vec<String>,
    /// Forgejo 15 and GitHub Apps: the ids of the only repositories it works for. Such a token has no admin powers.
    pub only: Option<Vec<i64>>,
    /// GitHub Apps: what it may do, and until when.
    pub grant: Option<Grant>,
    pub is_revoked: bool,
}

/// What an installation token may do.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    /// Such as `issues` and `write`.
    pub permissions: BTreeMap<String, String>,
    pub expires_at: DateTime<Utc>,
}

#[derive(Debug)]
pub(super) struct Repo {
    pub id: i64,
    pub name: RepoName,
    pub owner: i64,
    pub is_private: bool,
    pub is_archived: bool,
    /// Deleted: for tests it is still there, for everybody else it is not.
    pub is_gone: bool,
    pub has_pulls: bool,
    pub default_branch: String,
    pub permissions: BTreeMap<i64, Permission>,
    /// Members of the organisation's teams that may only read: assignable all the same.
    pub team_readers: Vec<i64>,
    pub labels: Vec<Label>,
    pub issues: Vec<Issue>,
    pub hooks: Vec<Hook>,
    pub git_dir: PathBuf,
}

#[derive(Debug, Clone)]
pub(super) struct Label {
    pub id: i64,
    pub name: String,
}

#[derive(Debug, Clone)]
pub(super) struct Issue {
    pub id: i64,
    pub number: u64,
    pub author: i64,
    pub title: String,
    pub body: String,
    pub is_open: bool,
    pub is_locked: bool,
    pub labels: Vec<i64>,
    pub assignees: Vec<i64>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    /// Comments and everything else that happened share one sequence of ids.
    pub entries: Vec<Entry>,
    pub reactions: Vec<Reaction>,
    pub pull: Option<PullPart>,
}

#[derive(Debug, Clone)]
pub(super) struct PullPart {
    pub id: i64,
    pub head: String,
    pub base: String,
    /// Whether `head` is a branch of another repository, which nobody here keeps.
    pub is_from_fork: bool,
    /// GitHub's own mark; the others go by the title.
    pub is_draft: bool,
    pub is_merged: bool,
    pub merge_commit: Option<String>,
}

impl PullPart {
    /// One between two branches of the repository.
    pub(super) fn new(head: &str, base: &str) -> Self {
        Self {
            id: 0,
            head: head.to_owned(),
            base: base.to_owned(),
            is_from_fork: false,
            is_draft: false,
            is_merged: false,
            merge_commit: None,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub id: i64,
    pub user: i64,
    pub at: DateTime<Utc>,
    pub what: What,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    Comment {
        body: String,
        edited_at: DateTime<Utc>,
    },
    Label {
        label: i64,
        added: bool,
    },
    Closed,
    Reopened,
    Title {
        from: String,
        to: String,
    },
    Assignee {
        user: i64,
        removed: bool,
    },
    Merged,
    /// The words of a pull request of the same repository would close this issue, or did once.
    ClosedBy {
        pull: u64,
        is_neutered: bool,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Reaction {
    pub user: i64,
    pub content: String,
    pub at: DateTime<Utc>,
}

/// The owner's and the site admin's rights have a name of their own in some answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    None,
    Read,
    Write,
    Admin,
    Owner,
}

impl From<Permission> for Access {
    fn from(permission: Permission) -> Self {
        match permission {
            Permission::None => Self::None,
            Permission::Read => Self::Read,
            Permission::Write => Self::Write,
            Permission::Admin => Self::Admin,
        }
    }
}

impl State {
    pub(super) fn new(dialect: Dialect, root_url: String) -> Self {
        let clock = "2026-01-05T09:00:00Z".parse().expect("the literal is a date");
        Self {
            dialect,
            root_url,
            draft_prefixes: vec!["WIP:".to_owned(), "[WIP]".to_owned()],
            users: vec![],
            tokens: vec![],
            repos: vec![],
            moved: vec![],
            comment_reactions: vec![],
            github: World::default(),
            next_id: 100,
            clock,
        }
    }

    /// One sequence for all ids, so that a mix-up of two kinds of ids shows.
    pub(super) fn id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id
    }

    /// Every change happens one second after the one before, as the forges keep no finer times.
    pub(super) fn tick(&mut self) -> DateTime<Utc> {
        self.clock += TimeDelta::seconds(1);
        self.clock
    }

    pub(super) fn user(&self, id: i64) -> &User {
        self.users.iter().find(|user| user.id == id).expect("users are never removed")
    }

    pub(super) fn user_by_login(&self, login: &str) -> Option<&User> {
        self.users.iter().find(|user| user.login.eq_ignore_ascii_case(login))
    }

    /// The user of a login that a test names.
    pub(super) fn known(&self, login: &str) -> i64 {
        self.user_by_login(login).unwrap_or_else(|| panic!("the test made no user `{login}`")).id
    }

    pub(super) fn repo(&self, owner: &str, name: &str) -> Option<&Repo> {
        self.repos.iter().find(|repo| repo.is_named(owner, name))
    }

    /// The repository that a test names.
    pub(super) fn repo_mut(&mut self, name: &RepoName) -> &mut Repo {
        let found = self.repos.iter_mut().find(|repo| repo.is_named(&name.owner, &name.name));
        found.unwrap_or_else(|| panic!("the test made no repository `{name}`"))
    }

    /// What a user may do in a repository.
    pub(super) fn access(&self, user: i64, repo: &Repo) -> Access {
        let user = self.user(user);
        if repo.owner == user.id || user.kind == UserKind::SiteAdmin {
            return Access::Owner;
        }
        let given = repo.permissions.get(&user.id).copied().unwrap_or(user.permission);
        let least = match repo.is_private {
            true => Access::None,
            false => Access::Read,
        };
        Access::from(given).max(least)
    }

    pub(super) fn is_draft(&self, issue: &Issue) -> bool {
        if self.dialect.is_github() {
            return issue.pull.as_ref().is_some_and(|pull| pull.is_draft);
        }
        self.draft_prefixes.iter().any(|prefix| {
            let start = issue.title.get(..prefix.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        })
    }

    /// A good token of that value.
    pub(super) fn token(&self, value: &str) -> Option<&Token> {
        let is_over = |grant: &Grant| grant.expires_at <= self.github.now();
        self.tokens.iter().find(|token| {
            token.value == value && !token.is_revoked && !token.grant.as_ref().is_some_and(is_over)
        })
    }

    /// Adds an issue, or a pull request, without labels. Returns its number.
    pub(super) fn add_issue(
        &mut self,
        repo: &RepoName,
        author: i64,
        (title, body): (&str, &str),
        pull: Option<PullPart>,
    ) -> u64 {
        let id = self.id();
        let pull = pull.map(|pull| PullPart { id: self.id(), ..pull });
        let at = self.tick();
        let repo = self.repo_mut(repo);
        let number = repo.next_number();
        repo.issues.push(Issue {
            id,
            number,
            author,
            title: title.to_owned(),
            body: body.to_owned(),
            is_open: true,
            is_locked: false,
            labels: vec![],
            assignees: vec![],
            created_at: at,
            updated_at: at,
            entries: vec![],
            reactions: vec![],
            pull,
        });
        number
    }

    /// Puts a label on, if it is not there. Returns whether it was not.
    pub(super) fn put_label(&mut self, repo: &RepoName, number: u64, label: i64, by: i64) -> bool {
        let labels = &mut self.repo_mut(repo).issue_mut(number).labels;
        if labels.contains(&label) {
            return false;
        }
        labels.push(label);
        self.record(repo, number, by, What::Label { label, added: true });
        true
    }

    /// Puts a reaction on a comment. Returns whether it was not there.
    pub(super) fn put_reaction(&mut self, comment: i64, reaction: Reaction) -> bool {
        let is_same = |(on, it): &(i64, Reaction)| {
            *on == comment && it.user == reaction.user && it.content == reaction.content
        };
        let is_new = !self.comment_reactions.iter().any(is_same);
        if is_new {
            self.comment_reactions.push((comment, reaction));
        }
        is_new
    }

    /// Adds an entry to an issue's timeline and moves the issue's time.
    pub(super) fn record(&mut self, repo: &RepoName, number: u64, user: i64, what: What) -> i64 {
        let (id, at) = (self.id(), self.tick());
        let issue = self.repo_mut(repo).issue_mut(number);
        issue.updated_at = at;
        issue.entries.push(Entry { id, user, at, what });
        id
    }

    /// Notes on the issues that a pull request's title and text would close that they would, and on those that they no
    /// longer name that they do not.
    pub(super) fn refer(&mut self, repo: &RepoName, pull: u64) {
        let found = self.repo_mut(repo).issue_mut(pull).clone();
        let named = closed_by(&format!("{} {}", found.title, found.body));
        for issue in &mut self.repo_mut(repo).issues {
            for entry in &mut issue.entries {
                if let What::ClosedBy { pull: from, is_neutered } = &mut entry.what {
                    *is_neutered |= *from == pull;
                }
            }
        }
        for number in named {
            let target = self.repo_mut(repo).issues.iter().find(|issue| issue.number == number);
            if target.is_some_and(|issue| issue.pull.is_none()) {
                let what = What::ClosedBy { pull, is_neutered: false };
                self.record(repo, number, found.author, what);
            }
        }
    }

    /// Where a repository of that name is by now.
    pub(super) fn moved_to(&self, owner: &str, name: &str) -> Option<&RepoName> {
        let is_former = |former: &RepoName| {
            former.owner.eq_ignore_ascii_case(owner) && former.name.eq_ignore_ascii_case(name)
        };
        self.moved.iter().find(|(former, _)| is_former(former)).map(|(_, present)| present)
    }
}

/// The numbers behind the forges' words for closing, as shipped.
fn closed_by(text: &str) -> Vec<u64> {
    const WORDS: [&str; 9] =
        ["close", "closes", "closed", "fix", "fixes", "fixed", "resolve", "resolves", "resolved"];
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    let pairs = words.windows(2).filter(|pair| WORDS.contains(&pair[0].trim_end_matches(':')));
    let number =
        |word: &str| word.strip_prefix('#')?.trim_end_matches(['.', ',', ';']).parse().ok();
    pairs.filter_map(|pair| number(&pair[1])).collect()
}

impl Repo {
    fn is_named(&self, owner: &str, name: &str) -> bool {
        self.name.owner.eq_ignore_ascii_case(owner) && self.name.name.eq_ignore_ascii_case(name)
    }

    pub(super) fn issue(&self, number: u64) -> Option<&Issue> {
        self.issues.iter().find(|issue| issue.number == number)
    }

    /// The issue or pull request that a test names.
    pub(super) fn issue_mut(&mut self, number: u64) -> &mut Issue {
        let name = self.name.clone();
        let found = self.issues.iter_mut().find(|issue| issue.number == number);
        found.unwrap_or_else(|| panic!("{name} has no issue {number}"))
    }

    pub(super) fn label(&self, id: i64) -> &Label {
        self.labels.iter().find(|label| label.id == id).expect("labels are never removed")
    }

    /// The number of the next issue or pull request.
    pub(super) fn next_number(&self) -> u64 {
        self.issues.iter().map(|issue| issue.number).max().unwrap_or(0) + 1
    }
}

impl Issue {
    /// When it was last closed or merged, if it is not open.
    pub(super) fn closed_at(&self) -> Option<DateTime<Utc>> {
        let mut ends = self.entries.iter().rev();
        let end = ends.find(|entry| matches!(entry.what, What::Closed | What::Merged));
        (!self.is_open).then(|| end.map_or(self.updated_at, |entry| entry.at))
    }
}

impl Entry {
    pub(super) fn comment(&self) -> Option<&str> {
        match &self.what {
            What::Comment { body, .. } => Some(body),
            What::Label { .. }
            | What::Closed
            | What::Reopened
            | What::Title { .. }
            | What::Assignee { .. }
            | What::ClosedBy { .. }
            | What::Merged => None,
        }
    }
}
