//! Title, body and commit message of a draft.

use super::{caution, code_span, fence, line, path_span};
use crate::job::CommitId;
use crate::patch::{Change, Kind, LeftOut};
use crate::sandbox::Confinement;

/// Changed files listed at most.
const FILES_SHOWN: usize = 30;
/// Files that were left out, listed at most.
const LEFT_OUT_SHOWN: usize = 10;
/// Characters of the model's last words at most.
const WORDS_SHOWN: usize = 3000;
/// Room for all that is said instead of what does not fit: two sentences, the head of a table, two counts.
const NOTES_CHARS: usize = 400;

const OUTPUTS_ELSEWHERE: &str = "\nThe output of the runs is too long for this page; Hyla keeps it in `tests.log`, beside the job's transcript.\n";
const WORDS_ELSEWHERE: &str =
    "The model's last words are too long for this page; they are in the job's transcript.\n\n";

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
    /// What confined the commands: a name and a version.
    pub sandbox: &'a str,
    /// How far it did.
    pub confinement: Confinement,
    /// Who asked; none where an operator did, on the command line.
    pub asked_by: Option<&'a str>,
    /// The sweep that found the issue, where one did.
    pub found_by: Option<&'a str>,
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

/// The body. At most `limit` characters: what is least important goes first, and never silently. What the tests said and
/// what the work was made from stay; then come the files, the outputs of the runs and the model's last words.
pub fn body(draft: &Draft<'_>, limit: usize) -> String {
    let caution = match caution(draft.confinement) {
        Some(words) => format!("⚠️ **{words}**\n\n"),
        None => String::new(),
    };
    let intro = format!(
        "Closes #{}\n\nA draft by Hyla, a bot. Please review it like the work of a stranger: nobody has yet.\n\n{caution}",
        draft.issue
    );
    let at = draft.evidence.find("\n<details").unwrap_or(draft.evidence.len());
    let (table, outputs) = draft.evidence.split_at(at);
    let tests = format!("\n\n### Tests, run by the bot\n\n{table}");
    let foot = foot(draft);
    let fixed = chars(&intro) + chars(&tests) + chars(&foot);
    let mut room = limit.saturating_sub(fixed + NOTES_CHARS);
    let files = files(draft.changes, &mut room);
    let left_out = left_out(draft.left_out, &mut room);
    let outputs = fitting(outputs, OUTPUTS_ELSEWHERE, &mut room);
    let words = fitting(&words(draft.words), WORDS_ELSEWHERE, &mut room);
    let end = format!("{foot}{left_out}");
    // Longer than its limit only where names and commands are longer than any that people give.
    let head =
        cut(&format!("{intro}{files}{tests}{outputs}\n{words}"), limit.saturating_sub(chars(&end)));
    format!("{head}{end}")
}

/// The part if there is room for it, or a sentence that says that there is none.
fn fitting(part: &str, instead: &str, room: &mut usize) -> String {
    let Some(rest) = room.checked_sub(chars(part)) else { return instead.to_owned() };
    *room = rest;
    part.to_owned()
}

fn files(changes: &[Change], room: &mut usize) -> String {
    let mut out = String::from(
        "### Changed files\n\n| file | lines added | lines removed |\n|---|--:|--:|\n",
    );
    let mut n_shown = 0;
    for change in changes.iter().take(FILES_SHOWN) {
        let note = match change.kind {
            Kind::Added => " (added)",
            Kind::Deleted => " (deleted)",
            Kind::Modified => "",
        };
        let row = format!(
            "| {}{note} | {} | {} |\n",
            path_span(&change.path).replace('|', "\\|"),
            change.added,
            change.removed
        );
        let Some(rest) = room.checked_sub(chars(&row)) else { break };
        *room = rest;
        out.push_str(&row);
        n_shown += 1;
    }
    if changes.len() > n_shown {
        out.push_str(&format!("| and {} more | | |\n", changes.len() - n_shown));
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
        None => draft.found_by.map_or_else(
            || "an operator".into(),
            |sweep| format!("nobody; the sweep {} found the issue", code_span(sweep)),
        ),
    };
    let place = match draft.confinement {
        Confinement::Sealed => "in sandboxes of their own without a network",
        Confinement::Degraded => "in a degraded sandbox without a network",
        Confinement::None => "without a sandbox",
    };
    format!(
        "### How it was made\n\n- asked by {asked}\n- based on {} at `{}`\n- {}\n- commands and tests ran {place}: {}\n- digest of the input: `{}`\n",
        code_span(draft.base_branch),
        draft.base.short(),
        draft.session,
        draft.sandbox,
        draft.digest,
    )
}

fn left_out(left_out: &[LeftOut], room: &mut usize) -> String {
    if left_out.is_empty() {
        return String::new();
    }
    let mut shown = Vec::new();
    for left in left_out.iter().take(LEFT_OUT_SHOWN) {
        let entry = format!("{} ({})", path_span(&left.path), left.why.words());
        let Some(rest) = room.checked_sub(chars(&entry) + 2) else { break };
        *room = rest;
        shown.push(entry);
    }
    match left_out.len() - shown.len() {
        0 => format!("- left out: {}\n", shown.join(", ")),
        n_more if shown.is_empty() => format!("- left out: {n_more} files or folders\n"),
        n_more => format!("- left out: {} and {n_more} more\n", shown.join(", ")),
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

fn cut(text: &str, limit: usize) -> String {
    if chars(text) <= limit {
        return text.to_owned();
    }
    const MARK: &str = "\n\n[cut: too long for this page]\n\n";
    text.chars().take(limit.saturating_sub(chars(MARK))).chain(MARK.chars()).collect()
}
