//! What is said to people who write a command.

use super::{code_span, fence, line};
use crate::command::LIST;
use crate::explain::{Explanation, Standing};
use crate::job::{End, Outcome};
use crate::store::Halt;

/// Characters of a sentence at most; what is longer holds somebody else's words.
const SENTENCE_CHARS: usize = 1000;
/// Lines of a timeline at most, the newest.
const LINES: usize = 20;
/// Characters of a timeline at most.
const TIMELINE_CHARS: usize = 6000;

/// The hidden line by which the bot finds its answer to a comment again.
pub fn answer_marker(comment: i64) -> String {
    format!("<!-- hyla:answer:{comment} -->")
}

/// All commands.
pub fn help() -> String {
    let list = LIST.map(|(command, does)| format!("- {}: {does}\n", code_span(command)));
    format!(
        "A command is the first word of a comment on an issue, written by somebody with write access:\n\n{}",
        list.concat()
    )
}

/// Something that is no command.
pub fn not_understood() -> String {
    format!("I do not know that command. {}", help())
}

/// Where an issue stands, and what comes next.
pub fn standing(standing: &Standing) -> String {
    let [sentence, next] =
        [&standing.sentence, &standing.next].map(|text| line(text, SENTENCE_CHARS));
    format!("{sentence}\n\n{next}")
}

/// The same with what happened when.
pub fn story(explained: &Explanation) -> String {
    let skipped = explained.timeline.len().saturating_sub(LINES);
    let mut lines = String::new();
    for event in explained.timeline.iter().skip(skipped) {
        let at = event.at.format("%Y-%m-%d %H:%M:%S");
        lines.push_str(&format!("{at}  {}\n", line(&event.text, SENTENCE_CHARS)));
    }
    let told = standing(&explained.standing);
    if lines.is_empty() {
        return told;
    }
    let lines = fence(&lines, TIMELINE_CHARS);
    format!("{told}\n\n<details><summary>What happened (UTC)</summary>\n\n{lines}\n\n</details>")
}

/// An ask while an earlier one has not ended. `standing` says how that is.
pub fn busy(standing: &str) -> String {
    format!("I have not ended what I was asked before, so I began nothing else.\n\n{standing}")
}

/// There is nothing to stop.
pub fn nothing_to_stop() -> String {
    "Nothing is queued or running for this issue, so there was nothing to stop.".into()
}

/// A job that publishes already.
pub fn too_late() -> String {
    "It is too late to stop: I am opening the draft already. If you do not want it, close it."
        .into()
}

/// The end of a job that somebody stopped with a command.
pub fn stopped(halt: &Halt) -> End {
    End {
        outcome: Outcome::Cancelled,
        person: format!(
            "{} stopped me with {}, so I opened no draft.",
            code_span(&line(&halt.by, 80)),
            code_span("/hyla cancel")
        ),
        operator: format!("{} stopped it with comment {}", halt.by, halt.comment),
        next: format!("To ask again, write {} in a comment.", code_span("/hyla retry")),
    }
}

/// A sentence of an end, for whoever asked with a comment instead of the label.
pub fn for_whoever_commented(text: &str) -> String {
    let words = [
        (
            "The label was taken off while I worked",
            "The comment that asked was changed or deleted while I worked",
        ),
        ("the label was removed before", "the comment was changed or deleted before"),
        ("whoever put the label on has none", "whoever asked has none"),
        ("before the label was put on", "before I was asked"),
        ("after the label was put on", "after I was asked"),
        ("put on after the issue was closed", "written after the issue was closed"),
        ("the label was written", "the comment was written"),
    ];
    let text = words.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    super::asking_by(&text, "write `/hyla retry`")
}
