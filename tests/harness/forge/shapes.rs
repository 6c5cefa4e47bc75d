//! The forge's JSON, key for key as Gitea and Forgejo publish it, built from plain state.
//!
//! It decides nothing: who may see what is `api`'s business.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use super::Dialect;
use super::git::Git;
use super::state::{Access, Entry, Issue, PullPart, Reaction, Repo, State, User, UserKind, What};

/// What the ids of forks begin with; no repository here has one.
const FORK: i64 = 1_000_000;
const NEVER: &str = "0001-01-01T00:00:00Z";

pub(super) fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

impl State {
    pub(super) fn user_shape(&self, user: &User) -> Value {
        let mut shape = json!({
            "id": user.id,
            "login": user.login,
            "login_name": "",
            "source_id": 0,
            "full_name": "",
            "email": format!("{}@noreply.example.org", user.login),
            "avatar_url": format!("{}/avatars/{}", self.root_url, user.id),
            "html_url": format!("{}/{}", self.root_url, user.login),
            "language": "",
            "is_admin": false,
            "last_login": NEVER,
            "created": "2025-02-14T09:34:00Z",
            "restricted": false,
            "active": false,
            "prohibit_login": false,
            "location": "",
            "website": "",
            "description": "",
            "visibility": "public",
            "followers_count": 0,
            "following_count": 0,
            "starred_repos_count": 0,
            "username": user.login,
        });
        if self.dialect == Dialect::Forgejo15 {
            shape["pronouns"] = json!("");
        }
        shape
    }

    pub(super) fn user_shape_of(&self, id: i64) -> Value {
        self.user_shape(self.user(id))
    }

    pub(super) fn repo_shape(&self, repo: &Repo, access: Access) -> Value {
        let (owner, name) = (&repo.name.owner, &repo.name.name);
        let page = format!("{}/{owner}/{name}", self.root_url);
        let count = |pulls: bool| {
            repo.issues.iter().filter(|i| i.is_open && i.pull.is_some() == pulls).count()
        };
        let shape = json!({
            "id": repo.id,
            "owner": self.user_shape_of(repo.owner),
            "name": name,
            "full_name": repo.name.to_string(),
            "description": "",
            "empty": false,
            "private": repo.is_private,
            "fork": false,
            "template": false,
            "parent": null,
            "mirror": false,
            "size": 65,
            "language": "",
            "languages_url": format!("{}/languages", self.repo_url(repo)),
            "html_url": page,
            "url": self.repo_url(repo),
            "link": "",
        });
        let more = json!({
            "ssh_url": format!("ssh://git@forge.example.org/{owner}/{name}.git"),
            "clone_url": format!("{page}.git"),
            "original_url": "",
            "website": "",
            "stars_count": 0,
            "forks_count": 0,
            "watchers_count": 1,
            "open_issues_count": count(false),
            "open_pr_counter": count(true),
            "release_counter": 0,
            "default_branch": repo.default_branch,
            "archived": repo.is_archived,
            "created_at": "2025-03-20T21:40:15Z",
            "updated_at": "2025-03-21T10:30:54Z",
            "archived_at": "1970-01-01T00:00:00Z",
            "permissions": {
                "admin": access >= Access::Admin,
                "push": access >= Access::Write,
                "pull": access >= Access::Read,
            },
        });
        merged([shape, more, repo_settings(repo)])
    }

    fn repo_url(&self, repo: &Repo) -> String {
        format!("{}/api/v1/repos/{}", self.root_url, repo.name)
    }

    pub(super) fn label_shape(&self, repo: &Repo, label: i64) -> Value {
        json!({
            "id": label,
            "name": repo.label(label).name,
            "exclusive": false,
            "is_archived": false,
            "color": "428bca",
            "description": "",
            "url": format!("{}/labels/{label}", self.repo_url(repo)),
        })
    }

    fn labels_shape(&self, repo: &Repo, issue: &Issue) -> Vec<Value> {
        issue.labels.iter().map(|id| self.label_shape(repo, *id)).collect()
    }

    fn assignees_shape(&self, issue: &Issue) -> Value {
        match issue.assignees.as_slice() {
            [] => Value::Null,
            ids => ids.iter().map(|id| self.user_shape_of(*id)).collect(),
        }
    }

    fn page(&self, repo: &Repo, issue: &Issue) -> String {
        let kind = if issue.pull.is_some() { "pulls" } else { "issues" };
        format!("{}/{}/{kind}/{}", self.root_url, repo.name, issue.number)
    }

    pub(super) fn issue_shape(&self, repo: &Repo, issue: &Issue) -> Value {
        let pull = issue.pull.as_ref().map(|pull| {
            json!({
                "merged": pull.is_merged,
                "merged_at": null,
                "draft": self.is_draft(issue),
                "html_url": self.page(repo, issue),
            })
        });
        json!({
            "id": issue.id,
            "url": format!("{}/issues/{}", self.repo_url(repo), issue.number),
            "html_url": self.page(repo, issue),
            "number": issue.number,
            "user": self.user_shape_of(issue.author),
            "original_author": "",
            "original_author_id": 0,
            "title": issue.title,
            "body": issue.body,
            "ref": "",
            "assets": [],
            "labels": self.labels_shape(repo, issue),
            "milestone": null,
            "assignee": self.assignees_shape(issue)[0],
            "assignees": self.assignees_shape(issue),
            "state": if issue.is_open { "open" } else { "closed" },
            "is_locked": issue.is_locked,
            "comments": issue.entries.iter().filter(|entry| entry.comment().is_some()).count(),
            "created_at": time(issue.created_at),
            "updated_at": time(issue.updated_at),
            "closed_at": issue.closed_at().map(time),
            "due_date": null,
            "pull_request": pull,
            "repository": {
                "id": repo.id,
                "name": repo.name.name,
                "owner": repo.name.owner,
                "full_name": repo.name.to_string(),
            },
            "pin_order": 0,
        })
    }

    pub(super) fn comment_shape(&self, repo: &Repo, issue: &Issue, entry: &Entry) -> Value {
        let page = self.page(repo, issue);
        let (issue_url, pull_url) = match issue.pull {
            None => (page.as_str(), ""),
            Some(_) => ("", page.as_str()),
        };
        let (body, updated_at) = match &entry.what {
            What::Comment { body, edited_at } => (body.as_str(), *edited_at),
            _ => ("", entry.at),
        };
        json!({
            "id": entry.id,
            "html_url": format!("{page}#issuecomment-{}", entry.id),
            "pull_request_url": pull_url,
            "issue_url": issue_url,
            "user": self.user_shape_of(entry.user),
            "original_author": "",
            "original_author_id": 0,
            "body": body,
            "assets": [],
            "created_at": time(entry.at),
            "updated_at": time(updated_at),
        })
    }

    pub(super) fn timeline_shape(&self, repo: &Repo, issue: &Issue, entry: &Entry) -> Value {
        let page = self.page(repo, issue);
        let mut shape = json!({
            "id": entry.id,
            "type": "",
            "html_url": format!("{page}#issuecomment-{}", entry.id),
            "pull_request_url": if issue.pull.is_some() { page.as_str() } else { "" },
            "issue_url": if issue.pull.is_some() { "" } else { page.as_str() },
            "user": self.user_shape_of(entry.user),
            "body": "",
            "created_at": time(entry.at),
            "updated_at": time(entry.at),
        });
        shape = merged([shape, unused_timeline_keys()]);
        let kind = match &entry.what {
            What::Comment { body, .. } => {
                shape["body"] = json!(body);
                "comment"
            }
            What::Label { label, added } => {
                shape["label"] = self.label_shape(repo, *label);
                shape["body"] = json!(if *added { "1" } else { "" });
                "label"
            }
            What::Closed => "close",
            What::Reopened => "reopen",
            What::Title { from, to } => {
                shape["old_title"] = json!(from);
                shape["new_title"] = json!(to);
                "change_title"
            }
            What::Assignee { user, removed } => {
                shape["assignee"] = self.user_shape_of(*user);
                shape["removed_assignee"] = json!(removed);
                "assignees"
            }
            What::Merged => "merge_pull",
            What::ClosedBy { pull, is_neutered } => {
                let from = repo.issue(*pull).expect("references come from what is there");
                shape["ref_issue"] = self.issue_shape(repo, from);
                shape["ref_action"] = json!(if *is_neutered { "neutered" } else { "closes" });
                "pull_ref"
            }
        };
        shape["type"] = json!(kind);
        shape
    }

    pub(super) fn reaction_shape(&self, reaction: &Reaction) -> Value {
        json!({
            "user": self.user_shape_of(reaction.user),
            "content": reaction.content,
            "created_at": time(reaction.at),
        })
    }

    pub(super) fn pull_shape(
        &self,
        git: &Git,
        repo: &Repo,
        issue: &Issue,
        pull: &PullPart,
        access: Access,
    ) -> Value {
        let page = self.page(repo, issue);
        let branches = self.branches_shape(git, repo, issue, pull, access);
        let shape = json!({
            "id": pull.id,
            "url": page,
            "number": issue.number,
            "user": self.user_shape_of(issue.author),
            "title": issue.title,
            "body": issue.body,
            "labels": self.labels_shape(repo, issue),
            "milestone": null,
            "assignee": self.assignees_shape(issue)[0],
            "assignees": self.assignees_shape(issue),
            "requested_reviewers": [],
            "requested_reviewers_teams": [],
            "state": if issue.is_open { "open" } else { "closed" },
            "draft": self.is_draft(issue),
            "is_locked": issue.is_locked,
            "comments": issue.entries.iter().filter(|entry| entry.comment().is_some()).count(),
            "additions": 1,
            "deletions": 0,
            "changed_files": 1,
            "html_url": page,
            "diff_url": format!("{page}.diff"),
            "patch_url": format!("{page}.patch"),
            "mergeable": issue.is_open,
            "merged": pull.is_merged,
            "merged_at": if pull.is_merged { json!(time(issue.updated_at)) } else { Value::Null },
            "merge_commit_sha": pull.merge_commit,
            "merged_by": null,
            "allow_maintainer_edit": false,
            "due_date": null,
            "created_at": time(issue.created_at),
            "updated_at": time(issue.updated_at),
            "closed_at": issue.closed_at().map(time),
            "pin_order": 0,
        });
        merged([shape, branches])
    }

    fn branches_shape(
        &self,
        git: &Git,
        repo: &Repo,
        issue: &Issue,
        pull: &PullPart,
        access: Access,
    ) -> Value {
        let own_ref = format!("refs/pull/{}/head", issue.number);
        // Of a deleted branch the name stays as the label, and the ref is the pull request's own.
        let own_branch = git.head(&repo.git_dir, &pull.head).filter(|_| !pull.is_from_fork);
        let (head_ref, head_sha) = match own_branch {
            Some(sha) => (pull.head.clone(), sha),
            None => {
                let sha = git.resolve(&repo.git_dir, &own_ref).unwrap_or_default();
                (own_ref, sha)
            }
        };
        let base_sha = git.head(&repo.git_dir, &pull.base).unwrap_or_default();
        let head_repo = if pull.is_from_fork { FORK + repo.id } else { repo.id };
        let side = |label: &str, reference: &str, sha: &str, repo_id: i64| {
            json!({
                "label": label,
                "ref": reference,
                "sha": sha,
                "repo_id": repo_id,
                "repo": self.repo_shape(repo, access),
            })
        };
        json!({
            "base": side(&pull.base, &pull.base, &base_sha, repo.id),
            "head": side(&pull.head, &head_ref, &head_sha, head_repo),
            "merge_base": git.merge_base(&repo.git_dir, &base_sha, &head_sha).unwrap_or_default(),
        })
    }

    /// The word for a user's rights in `collaborators/{user}/permission`.
    pub(super) fn permission_shape(&self, user: &User, access: Access) -> Value {
        let word = match access {
            Access::None => "none",
            Access::Read => "read",
            Access::Write => "write",
            Access::Admin => "admin",
            Access::Owner => "owner",
        };
        json!({ "permission": word, "role_name": word, "user": self.user_shape(user) })
    }

    pub(super) fn is_organization(&self, user: i64) -> bool {
        self.user(user).kind == UserKind::Organization
    }
}

/// What a repository has switched on.
fn repo_settings(repo: &Repo) -> Value {
    json!({
            "has_issues": true,
            "has_pull_requests": repo.has_pulls,
            "has_wiki": true,
            "has_projects": true,
            "has_releases": true,
            "has_packages": true,
            "has_actions": true,
            "allow_merge_commits": true,
            "allow_rebase": true,
            "allow_rebase_explicit": true,
            "allow_squash_merge": true,
            "allow_fast_forward_only_merge": true,
            "default_merge_style": "merge",
            "avatar_url": "",
            "internal": false,
            "mirror_interval": "",
            "mirror_updated": NEVER,
            "object_format_name": "sha1",
            "topics": [],
    })
}

/// One object with the keys of several.
pub(super) fn merged<const N: usize>(parts: [Value; N]) -> Value {
    let objects = parts.into_iter().filter_map(|part| match part {
        Value::Object(object) => Some(object),
        _ => None,
    });
    Value::Object(objects.flatten().collect())
}

/// What a timeline entry of another type would fill.
fn unused_timeline_keys() -> Value {
    json!({
            "old_project_id": 0,
            "project_id": 0,
            "old_milestone": null,
            "milestone": null,
            "tracked_time": null,
            "old_title": "",
            "new_title": "",
            "old_ref": "",
            "new_ref": "",
            "ref_issue": null,
            "ref_comment": null,
            "ref_action": "",
            "ref_commit_sha": "",
            "review_id": 0,
            "label": null,
            "assignee": null,
            "assignee_team": null,
            "removed_assignee": false,
            "resolve_doer": null,
            "dependent_issue": null,
    })
}
