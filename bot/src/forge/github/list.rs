//! Paged lists, and what is made of them: the timeline, the labelled issues, the pull requests of a branch.

use serde::de::DeserializeOwned;

use super::closes::closes;
use super::{GitHub, in_repo, wire};
use crate::forge::http::Call;
use crate::forge::{Error, History, Issue, LinkedPull};
use crate::job::RepoName;

/// Entries per page: the most that the server gives.
const PAGE_LIMIT: usize = 100;
/// Pages of one list before the client gives up: 10,000 entries, beyond any issue's timeline that people can read.
const PAGES_LIMIT: usize = 100;

impl GitHub {
    /// Every entry of a paged list. Pages are counted: links may lead to another host than the one that was asked.
    pub(super) async fn get_all<T: DeserializeOwned>(
        &self,
        mut call: Call,
    ) -> Result<Vec<T>, Error> {
        let query = call.query.clone();
        let mut all = Vec::new();
        for page in 1..=PAGES_LIMIT {
            call.query = query.clone();
            call.query.push(("per_page", PAGE_LIMIT.to_string()));
            call.query.push(("page", page.to_string()));
            let entries: Vec<T> = self.send(&call).await?;
            if entries.is_empty() {
                return Ok(all);
            }
            all.extend(entries);
        }
        Err(call.nonsense(format!("the list has more than {PAGES_LIMIT} pages")))
    }

    pub(super) async fn timeline(
        &self,
        repo: &RepoName,
        number: u64,
        label: &str,
    ) -> Result<History, Error> {
        let what = format!("read the timeline of issue {number} of {repo}");
        let path = in_repo(repo, ["issues", &number.to_string(), "timeline"]);
        let entries: Vec<wire::TimelineEntry> =
            self.get_all(Call::read(what.clone(), path)).await?;
        let mut history = History::default();
        for mut entry in entries {
            let pull = entry.referring_pull().and_then(|from| self.linked(repo, number, from));
            let is_known = pull.as_ref().is_some_and(|pull| history.pulls.contains(pull));
            history.pulls.extend(pull.filter(|_| !is_known));
            let event = entry.label_event(label);
            history
                .labels
                .extend(event.map_err(|reason| Error::Answer { call: what.clone(), reason })?);
        }
        history.labels.sort_by_key(|event| (event.at, event.id));
        Ok(history)
    }

    /// A pull request whose words would close the issue. The timeline tells of everyone that refers to it.
    fn linked(&self, repo: &RepoName, number: u64, from: wire::Referrer) -> Option<LinkedPull> {
        let named = from.repository.and_then(|named| named.full_name.parse().ok());
        let its = named.unwrap_or_else(|| repo.clone());
        let would_close = closes(from.body.as_deref().unwrap_or_default(), &its, repo, number);
        would_close.then(|| LinkedPull {
            link: self.link(&its, from.number),
            number: from.number,
            author: wire::author(from.user).id,
            repo: its,
        })
    }

    pub(super) async fn all_open_issues(&self, repo: &RepoName) -> Result<Vec<Issue>, Error> {
        let what = format!("list the open issues of {repo}");
        let mut call = Call::read(what, in_repo(repo, ["issues"]));
        call.query.push(("state", "open".to_owned()));
        let issues: Vec<wire::Issue> = self.get_all(call).await?;
        let is_meant = |issue: &wire::Issue| issue.state == "open" && issue.pull_request.is_none();
        Ok(issues.into_iter().filter(is_meant).map(Issue::from).collect())
    }

    pub(super) async fn labelled_issues(
        &self,
        repo: &RepoName,
        label: &str,
    ) -> Result<Vec<Issue>, Error> {
        let what = format!("list the open issues of {repo} with the label");
        let mut call = Call::read(what, in_repo(repo, ["issues"]));
        for (name, value) in [("state", "open"), ("labels", label)] {
            call.query.push((name, value.to_owned()));
        }
        let issues: Vec<wire::Issue> = self.get_all(call).await?;
        let has_label = |issue: &wire::Issue| issue.labels.iter().any(|each| each.is_called(label));
        let is_meant = |issue: &wire::Issue| {
            issue.state == "open" && issue.pull_request.is_none() && has_label(issue)
        };
        Ok(issues.into_iter().filter(is_meant).map(Issue::from).collect())
    }

    /// The pull request between two branches of the repository: an open one before a closed one, then the highest number.
    pub(super) async fn newest_pull(
        &self,
        repo: &RepoName,
        base: &str,
        head: &str,
    ) -> Result<Option<wire::Pull>, Error> {
        let what = format!("find the pull request from `{head}` into `{base}` of {repo}");
        let mut call = Call::read(what, in_repo(repo, ["pulls"]));
        // A head without its owner is no filter at all.
        let owned = format!("{}:{head}", repo.owner);
        for (name, value) in [("state", "all"), ("head", &owned), ("base", base)] {
            call.query.push((name, value.to_owned()));
        }
        let pulls: Vec<wire::Pull> = self.get_all(call).await?;
        let between = pulls.into_iter().filter(|pull| pull.is_between(base, head));
        Ok(between.max_by_key(|pull| (pull.is_open(), pull.number)))
    }
}
