//! GitHub's JSON for people, repositories, labels, issues, comments and pull requests, key for key as it is published.
//!
//! It decides nothing: who may see what is the door's business.

use serde_json::{Value, json};

use super::super::git::Git;
use super::super::shapes::{merged, time};
use super::super::state::{
    Access, Entry, Issue, PullPart, Reaction, Repo, State, User, UserKind, What,
};

/// What the ids of forks begin with; no repository here has one.
const FORK: i64 = 1_000_000;

/// An id for GraphQL, which nobody may read.
pub(super) fn node(kind: &str, id: i64) -> String {
    format!("{kind}_kgA{id:010x}")
}

impl State {
    fn api(&self) -> String {
        format!("{}/api/v3", self.root_url)
    }

    pub(super) fn repo_api(&self, repo: &Repo) -> String {
        format!("{}/repos/{}", self.api(), repo.name)
    }

    pub(super) fn web(&self, repo: &Repo, issue: &Issue) -> String {
        let kind = if issue.pull.is_some() { "pull" } else { "issues" };
        format!("{}/{}/{kind}/{}", self.root_url, repo.name, issue.number)
    }

    pub(super) fn github_user(&self, id: i64) -> Value {
        let User { login, kind, .. } = self.user(id);
        let url = format!("{}/users/{login}", self.api());
        let page = match login.strip_suffix("[bot]") {
            Some(slug) => format!("{}/apps/{slug}", self.root_url),
            None => format!("{}/{login}", self.root_url),
        };
        let kind_name = match kind {
            UserKind::Person | UserKind::SiteAdmin => "User",
            UserKind::Organization => "Organization",
            UserKind::Bot => "Bot",
        };
        let node_kind = if *kind == UserKind::Bot { "BOT" } else { "U" };
        json!({
            "login": login,
            "id": id,
            "node_id": node(node_kind, id),
            "avatar_url": format!("{}/avatars/u/{id}?", self.root_url),
            "gravatar_id": "",
            "url": url,
            "html_url": page,
            "followers_url": format!("{url}/followers"),
            "following_url": format!("{url}/following{{/other_user}}"),
            "gists_url": format!("{url}/gists{{/gist_id}}"),
            "starred_url": format!("{url}/starred{{/owner}}{{/repo}}"),
            "subscriptions_url": format!("{url}/subscriptions"),
            "organizations_url": format!("{url}/orgs"),
            "repos_url": format!("{url}/repos"),
            "events_url": format!("{url}/events{{/privacy}}"),
            "received_events_url": format!("{url}/received_events"),
            "type": kind_name,
            "site_admin": *kind == UserKind::SiteAdmin,
        })
    }

    /// The longer shape, of one user alone.
    pub(super) fn own_user(&self, id: i64) -> Value {
        let more = json!({
            "name": null,
            "company": null,
            "blog": "",
            "location": null,
            "email": null,
            "hireable": null,
            "bio": null,
            "public_repos": 1,
            "public_gists": 0,
            "followers": 0,
            "following": 0,
            "created_at": "2025-02-14T09:34:00Z",
            "updated_at": "2025-02-14T09:34:00Z",
        });
        merged([self.github_user(id), more])
    }

    /// A repository as it stands in payloads and in pull requests.
    pub(super) fn github_repository(&self, repo: &Repo) -> Value {
        let name = &repo.name.name;
        let (url, page) = (self.repo_api(repo), format!("{}/{}", self.root_url, repo.name));
        let mut shape = json!({
            "id": repo.id,
            "node_id": node("R", repo.id),
            "name": name,
            "full_name": repo.name.to_string(),
            "private": repo.is_private,
            "owner": self.github_user(repo.owner),
            "html_url": page,
            "description": null,
            "fork": false,
            "url": url,
        });
        for (key, rest) in LINKS {
            shape[key] = json!(format!("{url}{rest}"));
        }
        let n_open = repo.issues.iter().filter(|issue| issue.is_open).count();
        let more = json!({
            "created_at": "2025-03-20T21:40:15Z",
            "updated_at": "2025-03-21T10:30:54Z",
            "pushed_at": "2025-03-21T10:30:54Z",
            "git_url": format!("git://forge.example.org/{}.git", repo.name),
            "ssh_url": format!("git@forge.example.org:{}.git", repo.name),
            "clone_url": format!("{page}.git"),
            "svn_url": page,
            "homepage": null,
            "size": 0,
            "stargazers_count": 0,
            "watchers_count": 0,
            "language": null,
            "has_issues": true,
            "has_projects": true,
            "has_downloads": true,
            "has_wiki": true,
            "has_pages": false,
            "has_discussions": false,
            "forks_count": 0,
            "mirror_url": null,
            "archived": repo.is_archived,
            "disabled": false,
            "open_issues_count": n_open,
            "license": null,
            "allow_forking": true,
            "is_template": false,
            "topics": [],
            "visibility": if repo.is_private { "private" } else { "public" },
            "forks": 0,
            "open_issues": n_open,
            "watchers": 0,
            "default_branch": repo.default_branch,
        });
        merged([shape, more])
    }

    /// A repository as it is when it is asked for by its name, with what the asking token may do there.
    pub(super) fn full_repository(&self, repo: &Repo, access: Access) -> Value {
        let more = json!({
            "network_count": 0,
            "subscribers_count": 0,
            "permissions": permissions(access),
            "allow_rebase_merge": true,
            "allow_squash_merge": true,
            "allow_merge_commit": true,
            "allow_auto_merge": false,
            "delete_branch_on_merge": false,
        });
        merged([self.github_repository(repo), more])
    }

    pub(super) fn github_label(&self, repo: &Repo, label: i64) -> Value {
        let name = &repo.label(label).name;
        let encoded: String = url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
        json!({
            "id": label,
            "node_id": node("LA", label),
            "url": format!("{}/labels/{}", self.repo_api(repo), encoded.replace('+', "%20")),
            "name": name,
            "color": "428bca",
            "default": false,
            "description": null,
        })
    }

    fn github_labels(&self, repo: &Repo, issue: &Issue) -> Vec<Value> {
        issue.labels.iter().map(|id| self.github_label(repo, *id)).collect()
    }

    fn github_assignees(&self, issue: &Issue) -> Vec<Value> {
        issue.assignees.iter().map(|id| self.github_user(*id)).collect()
    }

    /// What somebody is to a repository.
    pub(super) fn association(&self, user: i64, repo: &Repo) -> &'static str {
        if repo.owner == user {
            return "OWNER";
        }
        match repo.permissions.contains_key(&user) {
            true => "COLLABORATOR",
            false => "NONE",
        }
    }

    pub(super) fn github_issue(&self, repo: &Repo, issue: &Issue) -> Value {
        let url = format!("{}/issues/{}", self.repo_api(repo), issue.number);
        let page = self.web(repo, issue);
        let assignees = self.github_assignees(issue);
        let mut shape = json!({
            "url": url,
            "repository_url": self.repo_api(repo),
            "labels_url": format!("{url}/labels{{/name}}"),
            "comments_url": format!("{url}/comments"),
            "events_url": format!("{url}/events"),
            "html_url": page,
            "id": issue.id,
            "node_id": node("I", issue.id),
            "number": issue.number,
            "title": issue.title,
            "user": self.github_user(issue.author),
            "labels": self.github_labels(repo, issue),
            "state": if issue.is_open { "open" } else { "closed" },
            "locked": issue.is_locked,
            "assignee": assignees.first(),
            "assignees": assignees,
            "milestone": null,
            "comments": issue.entries.iter().filter(|entry| entry.comment().is_some()).count(),
            "created_at": time(issue.created_at),
            "updated_at": time(issue.updated_at),
            "closed_at": issue.closed_at().map(time),
            "author_association": self.association(issue.author, repo),
            "active_lock_reason": null,
            "body": text(&issue.body),
            "closed_by": null,
            "timeline_url": format!("{url}/timeline"),
            "performed_via_github_app": null,
            "state_reason": (!issue.is_open).then_some("completed"),
        });
        if let Some(pull) = &issue.pull {
            shape["draft"] = json!(pull.is_draft);
            shape["pull_request"] = json!({
                "url": format!("{}/pulls/{}", self.repo_api(repo), issue.number),
                "html_url": page,
                "diff_url": format!("{page}.diff"),
                "patch_url": format!("{page}.patch"),
                "merged_at": pull.is_merged.then(|| issue.closed_at().map(time)).flatten(),
            });
        }
        shape
    }

    pub(super) fn github_comment(&self, repo: &Repo, issue: &Issue, entry: &Entry) -> Value {
        let (body, updated_at) = match &entry.what {
            What::Comment { body, edited_at } => (body.as_str(), (*edited_at).max(entry.at)),
            _ => ("", entry.at),
        };
        json!({
            "url": format!("{}/issues/comments/{}", self.repo_api(repo), entry.id),
            "html_url": format!("{}#issuecomment-{}", self.web(repo, issue), entry.id),
            "issue_url": format!("{}/issues/{}", self.repo_api(repo), issue.number),
            "id": entry.id,
            "node_id": node("IC", entry.id),
            "user": self.github_user(entry.user),
            "created_at": time(entry.at),
            "updated_at": time(updated_at),
            "author_association": self.association(entry.user, repo),
            "body": body,
            "performed_via_github_app": null,
        })
    }

    pub(super) fn github_reaction(&self, reaction: &Reaction) -> Value {
        // Every change has a second of its own.
        let id = reaction.at.timestamp();
        json!({
            "id": id,
            "node_id": node("REA", id),
            "user": self.github_user(reaction.user),
            "content": reaction.content,
            "created_at": time(reaction.at),
        })
    }

    pub(super) fn github_permission(&self, user: i64, access: Access) -> Value {
        let word = match access {
            Access::None => "none",
            Access::Read => "read",
            Access::Write => "write",
            Access::Admin | Access::Owner => "admin",
        };
        let more = json!({ "permissions": permissions(access), "role_name": word });
        let user = merged([self.github_user(user), more]);
        json!({ "permission": word, "user": user, "role_name": word })
    }

    /// A pull request as lists have it.
    pub(super) fn simple_pull(
        &self,
        git: &Git,
        repo: &Repo,
        issue: &Issue,
        pull: &PullPart,
    ) -> Value {
        let url = format!("{}/pulls/{}", self.repo_api(repo), issue.number);
        let issue_url = format!("{}/issues/{}", self.repo_api(repo), issue.number);
        let page = self.web(repo, issue);
        let assignees = self.github_assignees(issue);
        let (head, base) = self.sides(git, repo, issue, pull);
        let statuses = format!(
            "{}/statuses/{}",
            self.repo_api(repo),
            head["sha"].as_str().unwrap_or_default()
        );
        let shape = json!({
            "url": url,
            "id": pull.id,
            "node_id": node("PR", pull.id),
            "html_url": page,
            "diff_url": format!("{page}.diff"),
            "patch_url": format!("{page}.patch"),
            "issue_url": issue_url,
            "number": issue.number,
            "state": if issue.is_open { "open" } else { "closed" },
            "locked": issue.is_locked,
            "title": issue.title,
            "user": self.github_user(issue.author),
            "body": text(&issue.body),
            "created_at": time(issue.created_at),
            "updated_at": time(issue.updated_at),
            "closed_at": issue.closed_at().map(time),
            "merged_at": pull.is_merged.then(|| issue.closed_at().map(time)).flatten(),
            "merge_commit_sha": pull.merge_commit,
            "assignee": assignees.first(),
            "assignees": assignees,
            "requested_reviewers": [],
            "requested_teams": [],
            "labels": self.github_labels(repo, issue),
            "milestone": null,
            "draft": pull.is_draft,
        });
        let more = json!({
            "commits_url": format!("{url}/commits"),
            "review_comments_url": format!("{url}/comments"),
            "review_comment_url": format!("{}/pulls/comments{{/number}}", self.repo_api(repo)),
            "comments_url": format!("{issue_url}/comments"),
            "statuses_url": statuses,
            "head": head,
            "base": base,
            "_links": {
                "self": { "href": url },
                "html": { "href": page },
                "issue": { "href": issue_url },
                "comments": { "href": format!("{issue_url}/comments") },
                "review_comments": { "href": format!("{url}/comments") },
                "review_comment": {
                    "href": format!("{}/pulls/comments{{/number}}", self.repo_api(repo)),
                },
                "commits": { "href": format!("{url}/commits") },
                "statuses": { "href": statuses },
            },
            "author_association": self.association(issue.author, repo),
            "auto_merge": null,
            "active_lock_reason": null,
        });
        merged([shape, more])
    }

    /// A pull request as it is when it is asked for by its number.
    pub(super) fn full_pull(
        &self,
        git: &Git,
        repo: &Repo,
        issue: &Issue,
        pull: &PullPart,
    ) -> Value {
        let more = json!({
            "merged": pull.is_merged,
            "mergeable": issue.is_open,
            "rebaseable": issue.is_open,
            "mergeable_state": if pull.is_draft { "draft" } else { "clean" },
            "merged_by": null,
            "comments": issue.entries.iter().filter(|entry| entry.comment().is_some()).count(),
            "review_comments": 0,
            "maintainer_can_modify": false,
            "commits": 1,
            "additions": 1,
            "deletions": 0,
            "changed_files": 1,
        });
        merged([self.simple_pull(git, repo, issue, pull), more])
    }

    fn sides(&self, git: &Git, repo: &Repo, issue: &Issue, pull: &PullPart) -> (Value, Value) {
        let own = git.head(&repo.git_dir, &pull.head).filter(|_| !pull.is_from_fork);
        let own_ref = format!("refs/pull/{}/head", issue.number);
        // The commit of a deleted branch, or of a closed pull request, stays with the pull request.
        let head = own.or_else(|| git.resolve(&repo.git_dir, &own_ref)).unwrap_or_default();
        let base = git.head(&repo.git_dir, &pull.base).unwrap_or_default();
        let mut shape = self.github_repository(repo);
        let side = |owner: i64, branch: &str, sha: &str, shape: &Value| {
            json!({
                "label": format!("{}:{branch}", self.user(owner).login),
                "ref": branch,
                "sha": sha,
                "user": self.github_user(owner),
                "repo": shape,
            })
        };
        let base = side(repo.owner, &pull.base, &base, &shape);
        let mut head_owner = repo.owner;
        if pull.is_from_fork {
            head_owner = issue.author;
            let name = format!("{}/{}", self.user(head_owner).login, repo.name.name);
            shape["id"] = json!(FORK + repo.id);
            shape["full_name"] = json!(name);
            shape["owner"] = self.github_user(head_owner);
            shape["fork"] = json!(true);
        }
        (side(head_owner, &pull.head, &head, &shape), base)
    }
}

/// An empty text is none.
fn text(body: &str) -> Option<&str> {
    Some(body).filter(|body| !body.is_empty())
}

fn permissions(access: Access) -> Value {
    json!({
        "admin": access >= Access::Admin,
        "maintain": access >= Access::Admin,
        "push": access >= Access::Write,
        "triage": access >= Access::Write,
        "pull": access >= Access::Read,
    })
}

/// The addresses below a repository's own.
const LINKS: [(&str, &str); 36] = [
    ("forks_url", "/forks"),
    ("keys_url", "/keys{/key_id}"),
    ("collaborators_url", "/collaborators{/collaborator}"),
    ("teams_url", "/teams"),
    ("hooks_url", "/hooks"),
    ("issue_events_url", "/issues/events{/number}"),
    ("events_url", "/events"),
    ("assignees_url", "/assignees{/user}"),
    ("branches_url", "/branches{/branch}"),
    ("tags_url", "/tags"),
    ("blobs_url", "/git/blobs{/sha}"),
    ("git_tags_url", "/git/tags{/sha}"),
    ("git_refs_url", "/git/refs{/sha}"),
    ("trees_url", "/git/trees{/sha}"),
    ("statuses_url", "/statuses/{sha}"),
    ("languages_url", "/languages"),
    ("stargazers_url", "/stargazers"),
    ("contributors_url", "/contributors"),
    ("subscribers_url", "/subscribers"),
    ("subscription_url", "/subscription"),
    ("commits_url", "/commits{/sha}"),
    ("git_commits_url", "/git/commits{/sha}"),
    ("comments_url", "/comments{/number}"),
    ("issue_comment_url", "/issues/comments{/number}"),
    ("contents_url", "/contents/{+path}"),
    ("compare_url", "/compare/{base}...{head}"),
    ("merges_url", "/merges"),
    ("archive_url", "/{archive_format}{/ref}"),
    ("downloads_url", "/downloads"),
    ("issues_url", "/issues{/number}"),
    ("pulls_url", "/pulls{/number}"),
    ("milestones_url", "/milestones{/number}"),
    ("notifications_url", "/notifications{?since,all,participating}"),
    ("labels_url", "/labels{/name}"),
    ("releases_url", "/releases{/id}"),
    ("deployments_url", "/deployments"),
];
