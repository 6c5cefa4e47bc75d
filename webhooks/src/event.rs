//! The closed list of things that the bot reacts to. Payload types of a forge stay inside their own module.

/// What happened, in no forge's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Something about an issue changed, and the issue should be read again. Gitea never says which label changed, so
    /// this is a hint, not a fact.
    IssueSeen {
        /// Which repository.
        repo: RepoName,
        /// The issue's number.
        number: u64,
        /// What the forge said of it.
        cause: Cause,
        /// How the issue read then, where the delivery says it and a job may follow.
        seen: Option<Snapshot>,
    },
    /// Somebody wrote a comment on an issue, which may be a command. This is a hint, not a fact.
    CommentWritten {
        /// Which repository.
        repo: RepoName,
        /// The issue's number.
        number: u64,
        /// The comment.
        comment: Comment,
        /// How the issue read then, where the delivery says it.
        seen: Option<Snapshot>,
    },
    /// A delivery that asks for nothing: another event, another action, a test delivery.
    Other {
        /// The issue or pull request that it is about, where it says so.
        about: Option<(RepoName, u64)>,
        /// Why nothing follows, for the log.
        reason: &'static str,
    },
}

/// Why nothing follows from a delivery about a pull request.
pub const ABOUT_A_PULL: &str = "it is about a pull request";

/// Why an issue is worth a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It was opened, perhaps with the label already on it.
    Opened,
    /// It was opened again.
    Reopened,
    /// Its labels may have changed.
    LabelsMayHaveChanged,
    /// It was edited, closed, assigned or commented: of interest to a job that exists, never a reason for a new one.
    Changed,
}

/// A comment as a signed delivery shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comment {
    /// The forge's id of it.
    pub id: i64,
    /// The forge's id of who wrote it.
    pub author: i64,
    /// The text.
    pub body: String,
}

/// An issue as a signed delivery shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The title.
    pub title: String,
    /// The text.
    pub body: String,
    /// The names of the labels.
    pub labels: Vec<String>,
}

/// A repository, as `owner/name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoName {
    /// User or organisation.
    pub owner: String,
    /// Name within the owner.
    pub name: String,
}

impl std::fmt::Display for RepoName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

impl std::str::FromStr for RepoName {
    type Err = &'static str;

    /// A name becomes a part of addresses and of folder names, so it holds what forges allow in names and no more.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "a repository is written `owner/name`, in letters, digits, `.`, `_` and `-`";
        let (owner, name) = text.split_once('/').ok_or(wrong)?;
        if !is_plain(owner) || !is_plain(name) {
            return Err(wrong);
        }
        Ok(Self { owner: owner.to_owned(), name: name.to_owned() })
    }
}

/// Names on forges have at most 100 characters.
fn is_plain(part: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=100).contains(&part.len()) && part.chars().all(is_allowed) && !matches!(part, "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_name_is_two_plain_parts() {
        let long = "a".repeat(101);
        for good in ["acme/app", "A.b_c-d/x", "acme/.github", "0/0"] {
            assert_eq!(good.parse::<RepoName>().unwrap().to_string(), good);
        }
        let long = format!("acme/{long}");
        for bad in [
            "", "acme", "/", "acme/", "/app", "acme/..", "../app", "a/b/c", "a b/c", "a/b\n",
            "a/%2e", "ä/b", &long,
        ] {
            assert!(bad.parse::<RepoName>().is_err(), "{bad:?}");
        }
    }
}
