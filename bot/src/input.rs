//! What steers a job. What people say, the issue and the comments of those with write access, is frozen when a job is
//! first worked on, for all attempts; the repository's own files come from the recorded base commit. Later edits reach
//! no job; the digest says what it saw.

mod words;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ask::Asked;
use crate::forge::{self, Comment, Forge, Issue, Permission};
use crate::job::{Ask, CommitId, RepoName};
use crate::redact::Redactor;
use crate::store::Sighting;

/// Comments shown to the model at most, the newest.
const COMMENTS: usize = 30;
/// Characters of one text at most; a longer one is cut in the middle and says so.
const TEXT_CHARS: usize = 20_000;
/// Different commenters whose rights are asked for at most, besides whoever asked; a request each.
const COMMENTERS: usize = 20;

/// The frozen input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The issue's title.
    pub title: String,
    /// The issue's text.
    pub body: String,
    /// Comments by people with write access, oldest first, as login and text.
    pub comments: Vec<(String, String)>,
    /// The repository's instructions for agents (`AGENTS.md`).
    pub instructions: Option<String>,
    /// The repository's own settings (`.hyla.toml`), as they are written.
    #[serde(default)]
    pub repo_file: Option<String>,
}

impl Input {
    /// What people say, as a reader of the issue sees it, every text cut to its cap.
    pub fn new(issue: &Issue, comments: &[Comment], redactor: &Redactor) -> Self {
        let comments = comments.iter().map(|comment| {
            let words = redactor.redact(&words::shown(&comment.body));
            (redactor.redact(&comment.author.login), cut(&words))
        });
        Self { comments: comments.collect(), ..Self::of(&issue.title, &issue.body, redactor) }
    }

    /// An issue without comments.
    pub fn of(title: &str, body: &str, redactor: &Redactor) -> Self {
        // A secret that was cut would not be found any more.
        let frozen = |words: String| cut(&redactor.redact(&words));
        Self {
            title: frozen(words::visible(title)),
            body: frozen(words::shown(body)),
            comments: Vec::new(),
            instructions: None,
            repo_file: None,
        }
    }

    /// The same with what the repository says: its instructions, cut to their cap, and its settings.
    pub fn with_repository(
        self,
        instructions: Option<String>,
        repo_file: Option<String>,
        redactor: &Redactor,
    ) -> Self {
        let frozen = |text: String| cut(&redactor.redact(&words::visible(&text)));
        let repo_file = repo_file.map(|text| redactor.redact(&text));
        Self { instructions: instructions.map(frozen), repo_file, ..self }
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

    /// SHA-256 over the base commit and every part of the input, as hex. It stands in the pull request, and the
    /// transcript keeps what it is made of, so that anybody can make it again: for each of base commit, title, text, each
    /// comment's login and words, instructions and settings, in this order, the number of its bytes in UTF-8 as eight
    /// bytes, the highest first, and then the bytes. What is not there has no bytes.
    pub fn digest(&self, base: &CommitId) -> String {
        let mut parts = vec![base.0.as_str(), &self.title, &self.body];
        for (login, text) in &self.comments {
            parts.extend([login.as_str(), text]);
        }
        parts.push(self.instructions.as_deref().unwrap_or_default());
        parts.push(self.repo_file.as_deref().unwrap_or_default());
        digest(&parts)
    }
}

/// SHA-256 of an issue's own words without the bot's secrets, as hex: a delivery is kept without them.
pub fn digest_of_words(title: &str, body: &str, redactor: &Redactor) -> String {
    digest(&[&redactor.redact(title), &redactor.redact(body)])
}

/// SHA-256 over each part behind the number of its bytes, as hex: no two lists of parts have the same bytes.
pub(crate) fn digest(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for text in parts {
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text.as_bytes());
    }
    hex::encode(hasher.finalize())
}

/// Whether an issue reads as it did when the label was put on or the comment written, as far as deliveries saw it then.
/// Before a delivery that did not see the label, another text may have been asked for.
pub fn is_as_asked(issue: &Issue, ask: &Ask, sightings: &[Sighting], redactor: &Redactor) -> bool {
    let words = digest_of_words(&issue.title, &issue.body, redactor);
    // A job that a comment asked for has the deliveries of that comment alone.
    let is_by_comment = matches!(ask, Ask::Comment { .. });
    let mut seen = sightings.iter().rev().take_while(|seen| is_by_comment || seen.has_label);
    seen.all(|seen| seen.words == words)
}

/// The comments that may steer the job: written before it was asked for, by people who may write to the repository. The
/// newest are looked at first, so that no crowd of outsiders silences those who answer it; they come back in their order.
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
    // The right to ask is the right to write, and the forge has confirmed it.
    rights.extend(asked.by.as_ref().map(|by| (by.id, true)));
    let limit = rights.len() + COMMENTERS;
    let mut trusted = Vec::new();
    for comment in comments.into_iter().rev().filter(|comment| comment.created_at <= asked.at) {
        let known = rights.iter().find(|(id, _)| *id == comment.author.id).map(|(_, may)| *may);
        let may_write = match known {
            Some(may_write) => may_write,
            None if rights.len() >= limit => false,
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
        if trusted.len() == COMMENTS {
            break;
        }
    }
    trusted.reverse();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_steers_a_job_changes_its_digest() {
        let base = CommitId("a".into());
        let input = Input {
            title: "t".into(),
            body: "b".into(),
            comments: vec![("ann".into(), "c".into())],
            instructions: Some("i".into()),
            repo_file: Some("r".into()),
        };
        let changes: [fn(&mut Input); 9] = [
            |input| input.title.push('x'),
            |input| input.body.push('x'),
            |input| input.comments[0].0.push('x'),
            |input| input.comments[0].1.push('x'),
            |input| input.comments.clear(),
            |input| input.comments.push(("bea".into(), String::new())),
            |input| input.instructions = None,
            |input| input.repo_file = None,
            |input| std::mem::swap(&mut input.instructions, &mut input.repo_file),
        ];
        let mut digests = vec![input.digest(&base), input.digest(&CommitId("b".into()))];
        for change in changes {
            let mut other = input.clone();
            change(&mut other);
            digests.push(other.digest(&base));
        }
        let n_digests = digests.len();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), n_digests);
    }

    #[test]
    fn words_that_an_earlier_release_froze_are_read() {
        let frozen = r#"{"title":"t","body":"b","comments":[],"instructions":null}"#;
        assert_eq!(serde_json::from_str::<Input>(frozen).unwrap().repo_file, None);
    }
}
