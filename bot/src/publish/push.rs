//! One branch, made once: looked at first, pushed without force, and believed only when the server confirms it.

use git2::{Direction, RemoteHead, Repository};

use super::Error;
use crate::checkout::{Conversation, Mirror, blocking, refuse_redirect};
use crate::forge::Remote;
use crate::job::CommitId;

/// Where branches are.
const HEADS: &str = "refs/heads/";

/// What a push found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// The branch is made.
    Made,
    /// It was there, with the same commit, from an earlier attempt.
    AlreadyThere,
}

/// Makes a branch at the remote. `prefix` is the configured start of the bot's branches; it pushes nowhere else.
///
/// # Errors
/// The branch is not the bot's, someone has it, the server rejects it, or the remote does not answer.
pub async fn push(
    mirror: &Mirror,
    commit: &CommitId,
    branch: &str,
    prefix: &str,
    remote: &Remote,
) -> Result<Pushed, Error> {
    let is_ours = !prefix.is_empty() && branch.starts_with(prefix) && branch.len() > prefix.len();
    if !is_ours || !git2::Reference::is_valid_name(&format!("{HEADS}{branch}")) {
        return Err(Error::NotOurs { branch: branch.to_owned(), prefix: prefix.to_owned() });
    }
    refuse_redirect(remote)
        .await
        .map_err(|source| Error::Remote { branch: branch.to_owned(), source })?;
    let (mirror, commit) = (mirror.clone(), commit.clone());
    let (branch, remote) = (branch.to_owned(), remote.clone());
    blocking(move || push_blocking(&mirror.open()?, &commit, &branch, &remote)).await
}

fn push_blocking(
    mirror: &Repository,
    commit: &CommitId,
    branch: &str,
    remote: &Remote,
) -> Result<Pushed, Error> {
    let named = |source| Error::Remote { branch: branch.to_owned(), source };
    let conversation = Conversation::new(remote).map_err(named)?;
    let failed = |source| named(conversation.name(source));
    let name = format!("{HEADS}{branch}");

    let mut anonymous = mirror.remote_anonymous(remote.url.as_str()).map_err(failed)?;
    let mut connected = anonymous
        .connect_auth(Direction::Push, Some(conversation.callbacks()), Some(conversation.proxy()))
        .map_err(failed)?;
    if let Some(there) = there(connected.list().map_err(failed)?, &name, commit) {
        return there;
    }

    let refspec = format!("{commit}:{name}");
    connected
        .remote()
        .push(&[&refspec], Some(&mut conversation.push_options()))
        .map_err(|source| named(conversation.name(source)))?;
    let statuses = conversation.statuses.borrow();
    match statuses.iter().find(|(pushed, _)| *pushed == name) {
        Some((_, None)) => Ok(Pushed::Made),
        Some((_, Some(status))) => {
            // An earlier push of the bot's, of which nobody waits for the answer any more, may have come first.
            if let Some(there) = looked_again(mirror, commit, branch, remote)? {
                return there;
            }
            let words = format!("{status} {}", conversation.words());
            Err(Error::Rejected { branch: branch.to_owned(), words: words.trim().to_owned() })
        }
        None => Err(Error::Unconfirmed { branch: branch.to_owned() }),
    }
}

/// What stands in the place of a branch, asked over a connection of its own.
fn looked_again(
    mirror: &Repository,
    commit: &CommitId,
    branch: &str,
    remote: &Remote,
) -> Result<Option<Result<Pushed, Error>>, Error> {
    let named = |source| Error::Remote { branch: branch.to_owned(), source };
    let conversation = Conversation::new(remote).map_err(named)?;
    let failed = |source| named(conversation.name(source));
    let mut anonymous = mirror.remote_anonymous(remote.url.as_str()).map_err(failed)?;
    let connected = anonymous
        .connect_auth(Direction::Push, Some(conversation.callbacks()), Some(conversation.proxy()))
        .map_err(failed)?;
    let heads = connected.list().map_err(failed)?;
    Ok(there(heads, &format!("{HEADS}{branch}"), commit))
}

/// What stands in the place of a branch, if anything does.
fn there(heads: &[RemoteHead<'_>], name: &str, commit: &CommitId) -> Option<Result<Pushed, Error>> {
    let head = heads.iter().find(|head| is_in_the_way(head.name(), name))?;
    let theirs = CommitId(head.oid().to_string());
    if head.name() == name && theirs == *commit {
        return Some(Ok(Pushed::AlreadyThere));
    }
    let branch = name.strip_prefix(HEADS).unwrap_or(name).to_owned();
    Some(Err(Error::BranchTaken { branch, theirs }))
}

/// Whether a ref leaves no room for another: git keeps them as files and folders.
fn is_in_the_way(there: &str, wanted: &str) -> bool {
    let is_below = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    is_below(there, wanted) || is_below(wanted, there)
}
