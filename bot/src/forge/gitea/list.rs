//! Paged lists, and what is made of the two that a look at issues needs: the timeline and the labelled issues.

use serde::de::DeserializeOwned;

use super::{Gitea, wire};
use crate::forge::client::in_repo;
use crate::forge::http::Call;
use crate::forge::{Error, History, Issue, LinkedPull};
use crate::job::RepoName;

/// Entries per page: the servers' default `MAX_RESPONSE_ITEMS`, above which they cut silently.
const PAGE_LIMIT: usize = 50;
/// Pages of one list before the client gives up: 10,000 entries, beyond any issue's timeline that people can read.
const PAGES_LIMIT: usize = 200;

impl Gitea {
    /// Every entry of a paged list. The servers' hints about the last page are wrong on some lists, and a page may be
    /// short in the middle, so only an empty page ends it.
    pub(super) async fn get_all<T: DeserializeOwned>(&self, call: Call) -> Result<Vec<T>, Error> {
        self.get_while(call, |_| true).await
    }

    /// The same, up to the first page of which `goes_on` says that no better one follows.
    async fn get_while<T: DeserializeOwned>(
        &self,
        mut call: Call,
        goes_on: impl Fn(&[T]) -> bool + Send,
    ) -> Result<Vec<T>, Error> {
        let query = call.query.clone();
        let mut all = Vec::new();
        for page in 1..=PAGES_LIMIT {
            call.query = query.clone();
            call.query.push(("page", page.to_string()));
            call.query.push(("limit", PAGE_LIMIT.to_string()));
            // An empty list is `null` on some routes.
            let entries: Vec<T> = self.get::<Option<_>>(&call).await?.unwrap_or_default();
            if entries.is_empty() || !goes_on(&entries) {
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
        // An entry that the server itself cannot load comes as `null`.
        let entries: Vec<Option<wire::TimelineEntry>> =
            self.get_all(Call::read(what.clone(), path)).await?;
        let mut history = History::default();
        for mut entry in entries.into_iter().flatten() {
            if let Some(from) = entry.closing_pull() {
                let pull = self.linked(repo, from);
                let is_known = history.pulls.contains(&pull);
                history.pulls.extend((!is_known).then_some(pull));
            }
            let event = entry.label_event(label);
            history
                .labels
                .extend(event.map_err(|reason| Error::Answer { call: what.clone(), reason })?);
        }
        history.labels.sort_by_key(|event| (event.at, event.id));
        Ok(history)
    }

    fn linked(&self, repo: &RepoName, from: wire::Referrer) -> LinkedPull {
        let named = from.repository.and_then(|named| named.full_name.parse().ok());
        let repo = named.unwrap_or_else(|| repo.clone());
        LinkedPull {
            link: self.link(&repo, from.number),
            number: from.number,
            author: wire::author(from.user).id,
            repo,
        }
    }

    pub(super) async fn all_open_issues(&self, repo: &RepoName) -> Result<Vec<Issue>, Error> {
        let what = format!("list the open issues of {repo}");
        let mut call = Call::read(what, in_repo(repo, ["issues"]));
        call.query.extend([("state", "open".to_owned()), ("type", "issues".to_owned())]);
        let issues: Vec<wire::Issue> = self.get_all(call).await?;
        let issues = issues.into_iter().map(Issue::from);
        Ok(issues.filter(|issue| issue.is_open && !issue.is_pull).collect())
    }

    /// An unknown label drops the filter, and then every open issue would be read: a page without a single issue that
    /// carries the label, in whatever case, is the end.
    pub(super) async fn labelled_issues(
        &self,
        repo: &RepoName,
        label: &str,
    ) -> Result<Vec<Issue>, Error> {
        let what = format!("list the open issues of {repo} with the label");
        let mut call = Call::read(what, in_repo(repo, ["issues"]));
        for (name, value) in [("state", "open"), ("type", "issues"), ("labels", label)] {
            call.query.push((name, value.to_owned()));
        }
        let has_label = |issue: &wire::Issue| {
            let mut labels = issue.labels.iter().flatten();
            labels.any(|each| each.name.eq_ignore_ascii_case(label))
        };
        let issues = self.get_while(call, |page| page.iter().any(has_label)).await?;
        let issues = issues.into_iter().map(Issue::from);
        let is_meant = |issue: &Issue| {
            issue.is_open && !issue.is_pull && issue.labels.iter().any(|each| each == label)
        };
        Ok(issues.filter(is_meant).collect())
    }
}
