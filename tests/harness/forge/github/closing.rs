//! GraphQL, for one question alone: which pull requests would close an issue. It reads the variables `owner`, `name` (or
//! `repo`) and `number`, and answers everything that it knows about them, whatever fields were chosen.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::Shared;
use super::super::server::{Reply, Request};
use super::super::state::{Access, Issue, Repo, State, What};
use super::shapes::node;
use super::{Who, covers, who};

/// The field that is known.
const FIELD: &str = "closedByPullRequestsReferences";

/// Answers `POST /api/graphql`.
pub(super) fn answer(
    shared: &Arc<Shared>,
    state: &mut State,
    asked: &Request,
    authorization: &str,
) -> Reply {
    let token = match who(state, authorization) {
        Ok(Who::Token(token)) => token,
        Ok(Who::App) => return state.refused(401, "Bad credentials"),
        Err(reply) => return reply,
    };
    let body: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
    let query = body["query"].as_str().unwrap_or_default();
    if asked.method != "POST" || !query.contains(FIELD) {
        return shared.strange(asked, &format!("of GraphQL this fake knows `{FIELD}` alone"));
    }
    let variables = &body["variables"];
    let owner = variables["owner"].as_str().unwrap_or_default();
    let name = variables["name"].as_str().or_else(|| variables["repo"].as_str());
    let name = name.unwrap_or_default();
    let Some(number) = variables["number"].as_u64() else {
        return shared.strange(asked, "the variable `number` is no number");
    };
    let repo = state.repo(owner, name).filter(|repo| {
        !repo.is_gone && covers(&token, repo) && state.access(token.user, repo) > Access::None
    });
    let Some(repo) = repo else {
        let message = format!("Could not resolve to a Repository with the name '{owner}/{name}'.");
        return failed(json!({ "repository": null }), &["repository"], &message);
    };
    let Some(issue) = repo.issue(number).filter(|issue| issue.pull.is_none()) else {
        let message = format!("Could not resolve to an Issue with the number of {number}.");
        return failed(
            json!({ "repository": { "issue": null } }),
            &["repository", "issue"],
            &message,
        );
    };
    let words: String = query.split_whitespace().collect();
    let with_closed = words.contains("includeClosedPrs:true")
        || (words.contains("includeClosedPrs:$") && variables["includeClosedPrs"] == true);
    let nodes: Vec<Value> = closers(repo, issue)
        .into_iter()
        .filter(|pull| with_closed || pull.is_open)
        .map(|pull| pull_node(state, repo, pull))
        .collect();
    let references = json!({
        "totalCount": nodes.len(),
        "pageInfo": { "hasNextPage": false, "endCursor": null },
        "nodes": nodes,
    });
    let data = json!({ "repository": { "issue": { FIELD: references } } });
    Reply::json(200, &json!({ "data": data }))
}

/// The pull requests whose words would close an issue.
fn closers<'a>(repo: &'a Repo, issue: &Issue) -> Vec<&'a Issue> {
    let mut numbers: Vec<u64> = Vec::new();
    for entry in &issue.entries {
        match entry.what {
            What::ClosedBy { pull, is_neutered: false } if !numbers.contains(&pull) => {
                numbers.push(pull);
            }
            _ => {}
        }
    }
    numbers.into_iter().filter_map(|number| repo.issue(number)).collect()
}

fn pull_node(state: &State, repo: &Repo, issue: &Issue) -> Value {
    let pull = issue.pull.as_ref();
    let word = match pull {
        Some(pull) if pull.is_merged => "MERGED",
        _ if issue.is_open => "OPEN",
        _ => "CLOSED",
    };
    let author = state.user(issue.author);
    // An app's login stands here without the mark that it has everywhere else.
    let (kind, login) = match author.login.strip_suffix("[bot]") {
        Some(slug) => ("Bot", slug),
        None => ("User", author.login.as_str()),
    };
    json!({
        "id": node("PR", pull.map_or(0, |pull| pull.id)),
        "number": issue.number,
        "url": state.web(repo, issue),
        "state": word,
        "isDraft": pull.is_some_and(|pull| pull.is_draft),
        "title": issue.title,
        "headRefName": pull.map(|pull| pull.head.as_str()),
        "baseRefName": pull.map(|pull| pull.base.as_str()),
        "repository": { "nameWithOwner": repo.name.to_string() },
        "author": { "__typename": kind, "login": login, "databaseId": author.id },
    })
}

fn failed(data: Value, path: &[&str], message: &str) -> Reply {
    let error = json!({ "type": "NOT_FOUND", "path": path, "message": message });
    Reply::json(200, &json!({ "data": data, "errors": [error] }))
}
