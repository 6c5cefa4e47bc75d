//! Questions that no job asks: what a doctor wants to know before the first job comes.

use super::{Gitea, wire};
use crate::forge::Error;
use crate::forge::client::in_repo;
use crate::forge::http::Call;
use crate::job::RepoName;

impl Gitea {
    pub(super) async fn own_version(&self) -> Result<String, Error> {
        let call = Call::read("read the forge's version".into(), vec!["version".into()]);
        let answer: wire::Version = self.get(&call).await?;
        Ok(answer.version)
    }

    /// Whoever may ask about the owner may ask about everyone; in a person's repository the assignees tell enough.
    pub(super) async fn sees_others(&self, repo: &RepoName) -> Result<bool, Error> {
        let what = format!("read the permission of `{}` in {repo}", repo.owner);
        let path = in_repo(repo, ["collaborators", &repo.owner, "permission"]);
        match self.http.send(&Call::read(what, path)).await {
            // The right to ask is looked at before the user is.
            Ok(_) | Err(Error::Missing { .. }) => Ok(true),
            Err(Error::Denied { .. }) => Ok(!self.has_teams(repo).await?),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn lists_label(&self, repo: &RepoName, label: &str) -> Result<bool, Error> {
        let call = Call::read(format!("list the labels of {repo}"), in_repo(repo, ["labels"]));
        let own: Vec<wire::Label> = self.get_all(call).await?;
        if own.iter().any(|each| each.name == label) {
            return Ok(true);
        }
        let path = ["orgs", &repo.owner, "labels"].map(str::to_owned).to_vec();
        let call = Call::read(format!("list the labels of organisation {}", repo.owner), path);
        match self.get_all::<wire::Label>(call).await {
            Ok(shared) => Ok(shared.iter().any(|each| each.name == label)),
            // The owner is a person.
            Err(Error::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
