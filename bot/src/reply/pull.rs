//! Title, body and commit message of a draft.

use super::{code_span, fence, line};
use crate::job::CommitId;
use crate::patch::{Change, Kind, LeftOut};

/// Changed files listed at most.
const FILES_SHOWN: usize = 30;
/// Files that were left out, listed at most.
const LEFT_OUT_SHOWN: usize = 10;
/// Characters of the model's last words at most.
const WORDS_SHOWN: usize = 3000;

/// All that the body of a draft tells.
#[derive(Debug, Clone, Copy)]
pub struct Draft<'a> {
    /// The issue's number.
    pub issue: u64,
    /// What changed.
    pub changes: &'a [Change],
    /// What lay in the workspace and did not cross.
    pub left_out: &'a [LeftOut],
    /// The table of the test runs, as Markdown by the bot.
    pub evidence: &'a str,
    /// The model's last words.
    pub words: &'a str,
    /// The session in one line, by the bot.
    pub session: &'a str,
    /// Who asked; none where an operator did, on the command line.
    pub asked_by: Option<&'a str>,
    /// The branch that the work is based on.
    pub base_branch: &'a str,
    /// The commit that the work is based on.
    pub base: &'a CommitId,
    /// SHA-256 of the frozen input, as hex.
    pub digest: &'a str,
}

/// The title, without the draft prefix.
pub fn title(issue_title: &str, issue: u64) -> String {
    let words = line(issue_title, 180);
    let words = if words.is_empty() { "Proposed change" } else { &words };
    format!("{words} (#{issue})")
}

/// The message of the commit. The model has no word in it.
pub fn commit_message(issue_title: &str, issue: u64) -> String {
    let words = line(issue_title, 60);
    let words = if words.is_empty() { "Proposed change" } else { &words };
    format!(
        "{words} (#{issue})\n\nProposed by Hyla for issue #{issue}; not yet reviewed by a person.\n"
    )
}

/// The message of a commit in a folder, where the issue has no number.
pub fn local_message(issue_title: &str) -> String {
    format!("{}\n\nProposed by Hyla; not yet reviewed by a person.\n", line(issue_title, 72))
}

/// The body. At most `limit` characters: what is least important goes first, and never silently.
pub fn body(draft: &Draft<'_>, limit: usize) -> String {
    let head = format!(
        "Closes #{}\n\nA draft by Hyla, a bot. Please review it like the work of a stranger: nobody has yet.\n\n{}\n",
        draft.issue,
        files(draft.changes)
    );
    let foot = foot(draft);
    let words = words(draft.words);
    let room = limit.saturating_sub(chars(&head) + chars(&foot) + 40);
    let evidence = if chars(draft.evidence) <= room {
        draft.evidence.to_owned()
    } else {
        let kept: String = draft
            .evidence
            .lines()
            .take_while(|line| !line.starts_with("<details"))
            .collect::<Vec<_>>()
            .join("\n");
        format!(
            "{kept}\n\nThe output of the runs is too long for this page; Hyla keeps it in `tests.log`, beside the job's transcript.\n"
        )
    };
    let room = room.saturating_sub(chars(&evidence) + 2);
    let words = if chars(&words) <= room { words } else { String::new() };
    let whole = format!("{head}\n### Tests, run by the bot\n\n{evidence}\n{words}{foot}");
    whole.chars().take(limit).collect()
}

fn files(changes: &[Change]) -> String {
    let mut out = String::from(
        "### Changed files\n\n| file | lines added | lines removed |\n|---|--:|--:|\n",
    );
    for change in changes.iter().take(FILES_SHOWN) {
        let note = match change.kind {
            Kind::Added => " (added)",
            Kind::Deleted => " (deleted)",
            Kind::Modified => "",
        };
        let row = format!(
            "| {}{note} | {} | {} |\n",
            code_span(&change.path).replace('|', "\\|"),
            change.added,
            change.removed
        );
        out.push_str(&row);
    }
    if changes.len() > FILES_SHOWN {
        out.push_str(&format!("| and {} more | | |\n", changes.len() - FILES_SHOWN));
    }
    out
}

fn words(text: &str) -> String {
    if text.trim().is_empty() {
        return String::new();
    }
    format!(
        "<details><summary>The model's last words (not checked)</summary>\n\n{}\n\n</details>\n\n",
        fence(text, WORDS_SHOWN)
    )
}

fn foot(draft: &Draft<'_>) -> String {
    let asked = match draft.asked_by {
        Some(login) => code_span(&line(login, 80)),
        None => "an operator".into(),
    };
    let mut out = format!(
        "### How it was made\n\n- asked by {asked}\n- based on {} at `{}`\n- {}\n- digest of the input: `{}`\n",
        code_span(draft.base_branch),
        draft.base.short(),
        draft.session,
        draft.digest,
    );
    if !draft.left_out.is_empty() {
        let shown: Vec<String> = draft
            .left_out
            .iter()
            .take(LEFT_OUT_SHOWN)
            .map(|left| format!("{} ({})", code_span(&left.path), left.why.words()))
            .collect();
        let more = draft.left_out.len().saturating_sub(LEFT_OUT_SHOWN);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        out.push_str(&format!("- left out: {}{more}\n", shown.join(", ")));
    }
    out
}

fn chars(text: &str) -> usize {
    text.chars().count()
}
