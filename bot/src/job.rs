//! What a job is: its key, its states and its final words. Pure data and rules; `store` keeps them, `run` moves them.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use webhooks::RepoName;

use crate::clock::later;
use crate::input::Input;

/// A job's number in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobId(pub i64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A commit's id, as 40 or 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CommitId(pub String);

impl CommitId {
    /// The first ten digits, for people.
    pub fn short(&self) -> &str {
        self.0.get(..10).unwrap_or(&self.0)
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The issue that a job is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// The forge's name in the configuration.
    pub forge: String,
    /// The repository.
    pub repo: RepoName,
    /// The issue's number.
    pub issue: u64,
}

impl Subject {
    /// The same, with the repository as the allow-list writes it: whoever names it in other letters means the same issue,
    /// and must not make a second job.
    pub fn as_allowed(self, settings: &config::Forge) -> Self {
        let written = settings.allowed(&self.repo.to_string()).and_then(|name| name.parse().ok());
        Self { repo: written.unwrap_or(self.repo), ..self }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}#{}", self.forge, self.repo, self.issue)
    }
}

impl std::str::FromStr for Subject {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "an issue is written `FORGE:OWNER/REPO#NUMBER`";
        let (forge, rest) = text.split_once(':').ok_or(wrong)?;
        let (repo, number) = rest.rsplit_once('#').ok_or(wrong)?;
        let issue = number.parse().map_err(|_| wrong)?;
        if issue == 0 {
            return Err("the first issue of a repository is #1");
        }
        Ok(Self { forge: forge.to_owned(), repo: repo.parse().map_err(|_| wrong)?, issue })
    }
}

/// What asked for a job. With the subject it makes the semantic key, which is unique in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// The label was added; the forge's id of that timeline event.
    Label {
        /// The timeline event's id.
        event: i64,
    },
    /// The label was there when the issue was opened, which leaves no timeline event.
    Opened {
        /// The forge's id of the issue: the number may belong to an issue of a former repository of the same name. None
        /// in the key of an earlier release.
        issue: Option<i64>,
    },
    /// A sweep over the backlog found it.
    Sweep {
        /// The sweep's name.
        name: String,
        /// Its scheduled instant, in Unix seconds.
        at: i64,
    },
    /// A person asked with a command in a comment.
    Comment {
        /// The forge's id of the comment.
        id: i64,
    },
    /// A person asked on the command line; when, in Unix seconds.
    Command {
        /// Unix seconds.
        at: i64,
    },
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label { event } => write!(f, "label:{event}"),
            Self::Opened { issue: Some(issue) } => write!(f, "opened:{issue}"),
            Self::Opened { issue: None } => f.write_str("opened"),
            Self::Comment { id } => write!(f, "comment:{id}"),
            Self::Command { at } => write!(f, "command:{at}"),
            Self::Sweep { name, at } => write!(f, "sweep:{name}:{at}"),
        }
    }
}

impl std::str::FromStr for Ask {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "an ask is `opened:ISSUE`, `label:EVENT`, `comment:ID`, `command:SECONDS` or `sweep:NAME:SECONDS`";
        match text.split_once(':') {
            None if text == "opened" => Ok(Self::Opened { issue: None }),
            Some(("opened", issue)) => {
                Ok(Self::Opened { issue: Some(issue.parse().map_err(|_| wrong)?) })
            }
            Some(("label", event)) => Ok(Self::Label { event: event.parse().map_err(|_| wrong)? }),
            Some(("comment", id)) => Ok(Self::Comment { id: id.parse().map_err(|_| wrong)? }),
            Some(("command", at)) => Ok(Self::Command { at: at.parse().map_err(|_| wrong)? }),
            Some(("sweep", rest)) => {
                let (name, at) = rest.split_once(':').ok_or(wrong)?;
                Ok(Self::Sweep { name: name.to_owned(), at: at.parse().map_err(|_| wrong)? })
            }
            None | Some(_) => Err(wrong),
        }
    }
}

/// The semantic key of a job: `FORGE:OWNER/REPO#NUMBER@ASK`.
pub fn key(subject: &Subject, ask: &Ask) -> String {
    format!("{subject}@{ask}")
}

/// The ask in a key.
pub fn ask_of(key: &str) -> Option<Ask> {
    key.rsplit_once('@')?.1.parse().ok()
}

/// The end of a key that names an ask by an id of the forge's own, and so names it in whatever repository.
pub fn forge_wide(key: &str) -> Option<&str> {
    let at = key.rfind('@')?;
    match key[at + 1..].parse() {
        Ok(Ask::Label { .. } | Ask::Comment { .. } | Ask::Opened { issue: Some(_) }) => {
            Some(&key[at..])
        }
        Ok(Ask::Opened { issue: None } | Ask::Command { .. } | Ask::Sweep { .. }) | Err(_) => None,
    }
}

/// The key that an earlier release gave to the same ask, if it was another one.
pub fn former(key: &str) -> Option<String> {
    let (subject, ask) = key.rsplit_once('@')?;
    match ask.parse() {
        Ok(Ask::Opened { issue: Some(_) }) => {
            Some(format!("{subject}@{}", Ask::Opened { issue: None }))
        }
        Ok(_) | Err(_) => None,
    }
}

/// A job as the store knows it.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// Its issue.
    pub subject: Subject,
    /// The semantic key; none until the issue has been read and found to ask for something.
    pub key: Option<String>,
    /// Which ask on this issue it is, from 1; none until it has a key. It stands in the branch name.
    pub ask_number: Option<u32>,
    /// The login of who asked; none for an operator, and until the job has a key.
    pub asked_by: Option<String>,
    /// How often it has been claimed.
    pub attempt: u32,
    /// Its state.
    pub state: State,
    /// The status comment, once written.
    pub comment: Option<i64>,
    /// What people say on the issue, once frozen.
    pub input: Option<Input>,
    /// What stands ready to be published, once the gate has passed it.
    pub ready: Option<Ready>,
    /// The draft pull request's number, once opened.
    pub pull: Option<u64>,
    /// Since when it waits for its forge, if it ever had to.
    pub waiting_since: Option<DateTime<Utc>>,
    /// How it ended, if people have not been told yet.
    pub untold: Option<End>,
}

impl Job {
    /// Whether it may go on waiting for its forge.
    pub fn is_patient(&self, queue: &config::Queue, now: DateTime<Utc>) -> bool {
        self.waiting_since.is_none_or(|since| now < later(since, queue.forge_patience))
    }

    /// What asked for it; none until it has a key.
    pub fn ask(&self) -> Option<Ask> {
        ask_of(self.key.as_deref()?)
    }
}

/// What stands ready to be published: enough to finish after a crash without another session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The commit in the trusted mirror, kept alive there by a ref of this job.
    pub commit: CommitId,
    /// The branch to push it to.
    pub branch: String,
    /// The branch that the pull request asks to be merged into.
    pub base_branch: String,
    /// The pull request's title, without the draft prefix.
    pub title: String,
    /// The pull request's body.
    pub body: String,
}

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// It waits for a worker.
    Queued,
    /// A worker has it.
    Running {
        /// What the worker is doing.
        stage: Stage,
    },
    /// It ended.
    Ended {
        /// How.
        end: End,
    },
}

/// What a running job is doing, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Reading the issue, its timeline and who asked.
    Ask,
    /// Fetching the repository.
    Checkout,
    /// The model works.
    Session,
    /// Importing what the agent left and applying the gate.
    Gate,
    /// The bot runs the tests.
    Evidence,
    /// Committing, pushing, opening the draft.
    Publish,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; 6] =
        [Self::Ask, Self::Checkout, Self::Session, Self::Gate, Self::Evidence, Self::Publish];

    /// The name in the store, in logs and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Checkout => "checkout",
            Self::Session => "session",
            Self::Gate => "gate",
            Self::Evidence => "evidence",
            Self::Publish => "publish",
        }
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The kind of end.
    pub outcome: Outcome,
    /// One sentence for the people on the issue.
    pub person: String,
    /// One sentence for the operator; may hold causes, never secrets.
    pub operator: String,
    /// What to do next.
    pub next: String,
}

/// The kind of end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "why", rename_all = "snake_case")]
pub enum Outcome {
    /// A draft pull request is open.
    DraftPr,
    /// The session ended without a change worth a draft.
    NoFix(NoFix),
    /// A rule said no. Neutral, not a failure.
    Refused(Rule),
    /// Something broke.
    Failed(Failure),
    /// A person, or the end of the label, stopped it.
    Cancelled,
}

impl fmt::Display for Outcome {
    /// In one word or two, such as `failed(forge_down)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DraftPr => f.write_str("draft_pr"),
            Self::NoFix(why) => write!(f, "no_fix({})", name_of(why)),
            Self::Refused(rule) => write!(f, "refused({})", name_of(rule)),
            Self::Failed(failure) => write!(f, "failed({})", name_of(failure)),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

/// Why there is no fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoFix {
    /// The workspace equals the base commit.
    NoChange,
    /// The session ended in a tool call that the model broke, with no change.
    BrokenCall,
    /// The model went round in circles, with no change.
    Repeated,
    /// The budget of turns, tokens or time ran out with no change.
    Budget,
}

/// A named rule that refuses a job or a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The repository is not on the allow-list.
    RepositoryNotAllowed,
    /// The repository's own `.hyla.toml` switches the bot off.
    RepositoryDisabled,
    /// The repository's own `.hyla.toml` cannot be understood.
    RepositoryFile,
    /// The repository is archived.
    RepositoryArchived,
    /// The repository takes no pull requests.
    PullsDisabled,
    /// The issue is closed: before the label was put on, or before the draft was opened.
    IssueClosed,
    /// The number is a pull request's.
    PullRequest,
    /// The issue is locked.
    IssueLocked,
    /// The issue's title or text was changed after the label was put on.
    IssueChanged,
    /// Whoever added the label may not write to the repository.
    AdderCannotWrite,
    /// Who added the label could not be established.
    AdderUnknown,
    /// Another bot added the label. Recorded, and not answered.
    AdderIsBot,
    /// The issue is assigned to somebody else.
    IssueAssigned,
    /// An open pull request would close the issue already.
    PullLinked,
    /// The patch touches a protected path.
    ProtectedPath,
    /// The patch changes or makes a symbolic link that leaves the tree.
    Symlink,
    /// The patch changes or makes a submodule.
    Submodule,
    /// The patch changes a file's mode in a way that no edit needs.
    FileMode,
    /// The patch holds a binary file.
    Binary,
    /// The patch breaks a Git LFS pointer.
    LfsPointer,
    /// The patch has too many files, too many lines or too large a file.
    TooLarge,
    /// The patch rewrites all line endings of a file.
    LineEndings,
    /// The patch changes or breaks the encoding of a file.
    Encoding,
    /// The patch holds something that looks like a secret, or is one of the bot's.
    Secret,
    /// A path in the patch cannot be published safely.
    PathName,
}

/// What broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The forge refused the bot's token.
    ForgeAuth,
    /// The forge refused this call, though the token is good.
    ForgeDenied,
    /// The forge says that something is not there.
    ForgeMissing,
    /// The repository has another name or owner than the one that the bot was set up for.
    RepositoryMoved,
    /// The forge did not answer, or not in time, or with a server error.
    ForgeDown,
    /// The forge answered something unexpected.
    ForgeAnswer,
    /// The branch that the job needs holds other commits.
    BranchTaken,
    /// The repository could not be fetched or pushed.
    Git,
    /// The model's server did not answer or failed.
    ModelDown,
    /// The model's server refused the request, or its answer made no sense.
    ModelAnswer,
    /// No command can be run safely on this machine.
    Sandbox,
    /// The bot's own disk, database or programming.
    Internal,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::ForgeAuth,
        Self::ForgeDenied,
        Self::ForgeMissing,
        Self::RepositoryMoved,
        Self::ForgeDown,
        Self::ForgeAnswer,
        Self::BranchTaken,
        Self::Git,
        Self::ModelDown,
        Self::ModelAnswer,
        Self::Sandbox,
        Self::Internal,
    ];
}

/// The serialised name of a fieldless variant, for logs, metrics and the store.
pub fn name_of<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(_) | Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_what_names_the_ask_on_the_whole_forge() {
        let subject: Subject = "main:acme/app#7".parse().unwrap();
        let cases = [
            (Ask::Label { event: 5 }, "label:5", true, false),
            (Ask::Opened { issue: Some(70) }, "opened:70", true, true),
            (Ask::Opened { issue: None }, "opened", false, false),
            (Ask::Comment { id: 5 }, "comment:5", true, false),
            (Ask::Command { at: 9 }, "command:9", false, false),
            (Ask::Sweep { name: "a-b".into(), at: 9 }, "sweep:a-b:9", false, false),
        ];
        for (ask, text, is_forge_wide, has_former) in cases {
            let key = key(&subject, &ask);
            assert_eq!(key, format!("main:acme/app#7@{text}"));
            assert_eq!(text.parse(), Ok(ask));
            let end = format!("@{text}");
            assert_eq!(forge_wide(&key), is_forge_wide.then_some(end.as_str()), "{text}");
            let former_key = has_former.then(|| "main:acme/app#7@opened".to_owned());
            assert_eq!(former(&key), former_key, "{text}");
        }
        assert!("opened:x".parse::<Ask>().is_err());
        assert_eq!(forge_wide("no key"), None);
    }
}
