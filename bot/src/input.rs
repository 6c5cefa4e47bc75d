//! What steers a job, frozen when it was asked for: the issue, the comments of people with write access, and the
//! repository's own files from the default branch. Later edits do not reach a running job; the digest says what it saw.

mod words;

use sha2::{Digest, Sha256};

use crate::ask::Asked;
use crate::forge::{self, Comment, Forge, Issue, Permission};
use crate::job::{CommitId, RepoName};
use crate::redact::Redactor;

/// Comments shown to the model at most, the newest.
const COMMENTS: usize = 30;
/// Characters of one text at most; a longer one is cut in the middle and says so.
const TEXT_CHARS: usize = 20_000;
/// Different commenters whose rights are asked for at most.
const COMMENTERS: usize = 20;

/// The frozen input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The issue's title.
    pub title: String,
    /// The issue's text.
    pub body: String,
    /// Comments by people with write access, oldest first, as login and text.
    pub comments: Vec<(String, String)>,
    /// The repository's instructions for agents (`AGENTS.md`).
    pub instructions: Option<String>,
}

impl Input {
    /// Leaves out what a reader of the issue does not see, and cuts every text to its cap.
    pub fn new(
        issue: &Issue,
        comments: &[Comment],
        instructions: Option<String>,
        redactor: &Redactor,
    ) -> Self {
        let newest = comments.len().saturating_sub(COMMENTS);
        let comments = comments.iter().skip(newest).map(|comment| {
            let words = redactor.redact(&words::shown(&comment.body));
            (comment.author.login.clone(), cut(&words))
        });
        Self {
            comments: comments.collect(),
            ..Self::of(&issue.title, &issue.body, instructions, redactor)
        }
    }

    /// An issue without comments.
    pub fn of(title: &str, body: &str, instructions: Option<String>, redactor: &Redactor) -> Self {
        // A secret that was cut would not be found any more.
        let frozen = |words: String| cut(&redactor.redact(&words));
        Self {
            title: frozen(words::visible(title)),
            body: frozen(words::shown(body)),
            comments: Vec::new(),
            instructions: instructions.map(|text| frozen(words::visible(&text))),
        }
    }

    /// What the model is told: the issue's own words, and after them what goes with it. Nobody's words can be taken for
    /// somebody else's.
    pub fn text(&self) -> String {
        let quoted = |text: &str| words::quoted(text.trim());
        let mut text = format!("{}\n\n{}\n", quoted(&self.title), quoted(&self.body));
        for (login, words) in &self.comments {
            text.push_str(&format!("\n{} {login}:\n{}\n", words::COMMENT, quoted(words)));
        }
        if let Some(instructions) = &self.instructions {
            text.push_str(&format!("\n{}:\n{}\n", words::INSTRUCTIONS, quoted(instructions)));
        }
        text
    }

    /// SHA-256 over every part with its length, and over the base commit; as hex.
    pub fn digest(&self, base: &CommitId) -> String {
        let mut hasher = Sha256::new();
        let mut part = |text: &str| {
            hasher.update((text.len() as u64).to_be_bytes());
            hasher.update(text.as_bytes());
        };
        part(&base.0);
        part(&self.title);
        part(&self.body);
        for (login, text) in &self.comments {
            part(login);
            part(text);
        }
        part(self.instructions.as_deref().unwrap_or_default());
        hex::encode(hasher.finalize())
    }
}

/// The comments that may steer the job: written before it was asked for, by people who may write to the repository.
///
/// # Errors
/// The forge does not answer. A right that it does not tell is no right.
pub async fn trusted_comments(
    forge: &dyn Forge,
    repo: &RepoName,
    asked: &Asked,
    own_id: i64,
    comments: Vec<Comment>,
) -> Result<Vec<Comment>, forge::Error> {
    let mut rights: Vec<(i64, bool)> = vec![(own_id, false)];
    let mut trusted = Vec::new();
    for comment in comments {
        if comment.created_at > asked.at {
            continue;
        }
        let known = rights.iter().find(|(id, _)| *id == comment.author.id).map(|(_, may)| *may);
        let may_write = match known {
            Some(may_write) => may_write,
            None if rights.len() > COMMENTERS => false,
            None => {
                let may_write = match forge.permission(repo, &comment.author).await {
                    Ok(permission) => permission >= Permission::Write,
                    Err(forge::Error::Denied { .. } | forge::Error::Missing { .. }) => false,
                    Err(error) => return Err(error),
                };
                rights.push((comment.author.id, may_write));
                may_write
            }
        };
        if may_write {
            trusted.push(comment);
        }
    }
    Ok(trusted)
}

fn cut(text: &str) -> String {
    let n_chars = text.chars().count();
    if n_chars <= TEXT_CHARS {
        return text.to_owned();
    }
    let half = TEXT_CHARS / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(n_chars - half).collect();
    format!("{head}\n[{} characters left out]\n{tail}", n_chars - 2 * half)
}
