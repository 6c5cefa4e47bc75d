//! Evidence as Markdown for people. Whatever a test printed is inside a fence that it cannot close.

use std::time::Duration;

use super::paths::is_test;
use super::{Counts, Evidence, Outcome, Ran, Run, Source, TestCommand, Unit, Which};
use crate::gate::Remark;
use crate::patch::Kind;
use crate::reply::{code_span, count, fence, path_span};
use crate::sandbox::{Confinement, End};

/// Characters of output shown of each run: four of them and the table take a quarter of the smallest body limit.
const SHOWN_CHARS: usize = 4000;

/// Files named at most in each warning, and the characters of each: they stand in the part of a body that is never cut.
const SHOWN: usize = 3;
const PATH_CHARS: usize = 60;

/// The outputs of all runs, as far as they were kept. None if there are none.
pub(super) fn log(evidence: &Evidence) -> Option<String> {
    let mut log = String::new();
    for (letter, run) in ('a'..).zip(&evidence.runs) {
        if let Outcome::SetupFailed(ran) | Outcome::Ran(ran) = &run.outcome {
            log.push_str(&format!(
                "== run {letter}: {}; {}, {}\n{}\n",
                name(run.which),
                result(ran),
                seconds(ran.elapsed),
                ran.output
            ));
        }
    }
    (!log.is_empty()).then_some(log)
}

/// The table, a verdict for each run, and the outputs folded away.
pub(super) fn table(evidence: &Evidence) -> String {
    let Some(command) = &evidence.command else {
        return format!(
            "No test command was found, so no tests were run. A `test_command` in `.hyla.toml` names one.\n{}",
            taken(evidence)
        );
    };
    let mut text = introduction(command, evidence.confinement);
    text.push_str(&downloads(evidence));
    text.push_str(&taken(evidence));
    text.push_str(&warning(&evidence.runner));
    text.push_str("\n| | Tests | Result | Time | Verdict |\n|---|---|---|---|---|\n");
    for (letter, run) in ('a'..).zip(&evidence.runs) {
        let (result, time) = match &run.outcome {
            Outcome::Skipped { .. } => ("not run".to_owned(), String::new()),
            Outcome::SetupFailed(ran) | Outcome::Ran(ran) => (result(ran), seconds(ran.elapsed)),
        };
        let verdict = doubt(run, evidence).unwrap_or_else(|| verdict(run, evidence));
        let name = name(run.which);
        text.push_str(&format!("| {letter} | {name} | {result} | {time} | {verdict} |\n"));
    }
    for (letter, run) in ('a'..).zip(&evidence.runs) {
        if let Outcome::SetupFailed(ran) | Outcome::Ran(ran) = &run.outcome
            && !ran.output.trim().is_empty()
        {
            let output = fence(&cut(&ran.output, SHOWN_CHARS), usize::MAX);
            text.push_str(&format!(
                "\n<details><summary>Output of run {letter}</summary>\n\n{output}\n</details>\n"
            ));
        }
    }
    text
}

fn introduction(command: &TestCommand, confinement: Confinement) -> String {
    let source = match command.source {
        Source::Server => "from the server's configuration".to_owned(),
        Source::RepoFile => "from `.hyla.toml`".to_owned(),
        Source::Detected(name) => format!("because of `{name}`"),
    };
    let setup = match &command.setup {
        Some(setup) => format!(", after {}", code(setup)),
        None => String::new(),
    };
    let place = match confinement {
        Confinement::Sealed => "in a fresh sandbox",
        Confinement::Degraded | Confinement::None => "in a fresh workspace",
    };
    format!("Hyla ran {}{setup}, {source}, each time {place}.\n", code(&command.command))
}

/// What the setup command downloaded, and what it was refused. What it asked for is text of somebody who is not trusted.
fn downloads(evidence: &Evidence) -> String {
    let Some(traffic) = &evidence.traffic else { return String::new() };
    let mut text = format!(
        "\nThe setup command ran once, on the base commit and before the model. It sent and received {}.\n",
        size(traffic.n_bytes)
    );
    let n_kinds = traffic.refused.len();
    for ((asked, why), &n) in traffic.refused.iter().take(SHOWN) {
        let asked: String = asked.chars().take(PATH_CHARS).collect();
        text.push_str(&format!(
            "It was refused {} ({}): {why}.\n",
            code_span(&asked),
            count(u32::try_from(n).unwrap_or(u32::MAX), "time")
        ));
    }
    let n_more = traffic.n_more_refused.saturating_add(n_kinds.saturating_sub(SHOWN) as u64);
    if n_more > 0 {
        text.push_str(&format!("Further refusals: {n_more}. The job's log has them.\n"));
    }
    text
}

/// Bytes for people.
fn size(n_bytes: u64) -> String {
    match n_bytes {
        0..1_000_000 => format!("{} kB", n_bytes.div_ceil(1000)),
        _ => format!("{} MB", n_bytes.div_ceil(1_000_000)),
    }
}

/// What the patch takes away from the tests, and whether it changes nothing else.
fn taken(evidence: &Evidence) -> String {
    let mut text = String::new();
    let named = |remark: &Remark| format!("{} ({})", path(&remark.path), remark.what);
    if !evidence.taken.is_empty() {
        let named = listed(evidence.taken.iter().map(named));
        text.push_str(&format!(
            "\n**The patch takes something away from the tests: {named}. Please read that first.**\n"
        ));
    }
    if evidence.is_only_tests {
        text.push_str(
            "\n**The patch changes nothing but tests, so the program does what it did before.**\n",
        );
    }
    text
}

/// The first few of a list, and how many more there are.
fn listed(all: impl ExactSizeIterator<Item = String>) -> String {
    let n_more = all.len().saturating_sub(SHOWN);
    let shown = all.take(SHOWN).collect::<Vec<_>>().join(", ");
    if n_more == 0 { shown } else { format!("{shown} and {n_more} more") }
}

/// The beginning of a path.
fn path(path: &str) -> String {
    let start: String = path.chars().take(PATH_CHARS).collect();
    path_span(&start)
}

/// What the reviewer must read first, where the patch decides how it is tested.
fn warning(runner: &[(String, Kind)]) -> String {
    if runner.is_empty() {
        return String::new();
    }
    let named = listed(runner.iter().map(|(changed, kind)| {
        let what = match kind {
            Kind::Added => "added",
            Kind::Modified => "changed",
            Kind::Deleted => "deleted",
        };
        format!("{} ({what})", path(changed))
    }));
    format!(
        "\n**The patch changes what runs the tests: {named}. Please read that first: with it, tests may pass without a fix.**\n"
    )
}

/// What a good result is worth where the patch decides how it is tested; none where it does not.
fn doubt(run: &Run, evidence: &Evidence) -> Option<String> {
    let Outcome::Ran(ran) = &run.outcome else { return None };
    let touches =
        |is_there: fn(&str) -> bool| evidence.runner.iter().any(|(path, _)| is_there(path));
    let word = match (run.which, ran.end) {
        (Which::Patched | Which::OldTestsOnPatch, End::Exited(0)) if touches(|_| true) => "passed",
        // Of the patch, this run has the tests alone.
        (Which::NewTestsOnBase, End::Exited(code)) if touches(is_test) && code != 0 => "failed",
        _ => return None,
    };
    Some(format!("{word}, **but the patch changes what runs the tests**"))
}

fn name(which: Which) -> &'static str {
    match which {
        Which::Base => "base commit",
        Which::Patched => "with the patch",
        Which::NewTestsOnBase => "the patch's tests on the base code",
        Which::OldTestsOnPatch => "original tests on the patched code",
    }
}

fn result(ran: &Ran) -> String {
    match ran.counts {
        Some(counts) => format!("{}; {}", ran.end, counted(counts)),
        None => ran.end.to_string(),
    }
}

fn counted(counts: Counts) -> String {
    let unit = match counts.unit {
        Unit::Tests => "",
        Unit::Packages => " packages",
    };
    let skipped = match counts.skipped {
        0 => String::new(),
        skipped => format!(", {skipped} skipped"),
    };
    format!("{} passed, {} failed{skipped}{unit}", counts.passed, counts.failed)
}

/// What the run means, from its exit code alone.
fn verdict(run: &Run, evidence: &Evidence) -> String {
    let ran = match &run.outcome {
        Outcome::Skipped { why } => return format!("does not apply: {why}"),
        Outcome::SetupFailed(_) => {
            return "the setup command failed, so this says nothing".to_owned();
        }
        Outcome::Ran(ran) => ran,
    };
    let text = match (run.which, judge(ran.end), judged(evidence, Which::Base)) {
        (_, Judged::Unknown, _) => "did not finish, so this says nothing",
        (Which::Base, Judged::Passes, _) => "passes before the patch",
        (Which::Base, Judged::Fails, _) => "fails before the patch",
        (Which::Patched | Which::OldTestsOnPatch, Judged::Passes, _) => "expected to pass, and did",
        (Which::Patched, Judged::Fails, Judged::Fails) => {
            "expected to pass, **but failed**, as the base commit does"
        }
        (Which::Patched, Judged::Fails, Judged::Passes | Judged::Unknown) => {
            "expected to pass, **but failed**"
        }
        (Which::NewTestsOnBase, Judged::Passes, _) => {
            "expected to fail, **but passed**: the tests do not show the fix"
        }
        (Which::NewTestsOnBase, Judged::Fails, Judged::Passes) => "expected to fail, and did",
        (Which::NewTestsOnBase | Which::OldTestsOnPatch, Judged::Fails, Judged::Fails) => {
            "failed, which says little, because the base commit fails too"
        }
        (Which::NewTestsOnBase | Which::OldTestsOnPatch, Judged::Fails, Judged::Unknown) => {
            "failed, which says little, because the run of the base commit says nothing"
        }
        (Which::OldTestsOnPatch, Judged::Fails, Judged::Passes) => {
            match judged(evidence, Which::Patched) {
                Judged::Passes => {
                    "expected to pass, **but failed**: the patch changed what the tests ask for"
                }
                Judged::Fails | Judged::Unknown => "expected to pass, **but failed**",
            }
        }
    };
    text.to_owned()
}

/// What a run says of its code.
#[derive(Clone, Copy)]
enum Judged {
    Passes,
    Fails,
    /// It was not made, or did not finish.
    Unknown,
}

fn judge(end: End) -> Judged {
    match end {
        End::Exited(0) => Judged::Passes,
        End::Exited(_) => Judged::Fails,
        End::TimedOut | End::DiskFull | End::OutOfMemory => Judged::Unknown,
    }
}

fn judged(evidence: &Evidence, which: Which) -> Judged {
    match evidence.runs.iter().find(|run| run.which == which).map(|run| &run.outcome) {
        Some(Outcome::Ran(ran)) => judge(ran.end),
        Some(Outcome::Skipped { .. } | Outcome::SetupFailed(_)) | None => Judged::Unknown,
    }
}

fn seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}

/// Text without colours, cursor movements and other control characters; lines end in a line feed.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' if letters.next_if_eq(&'[').is_some() => {
                // A control sequence ends with its first letter from `@` to `~`.
                while letters.next().is_some_and(|part| !('@'..='~').contains(&part)) {}
            }
            '\r' if letters.peek() == Some(&'\n') => {}
            '\r' => plain.push('\n'),
            '\n' | '\t' => plain.push(letter),
            letter if letter.is_control() => {}
            letter => plain.push(letter),
        }
    }
    plain
}

/// The beginning and the end of a text that is too long: the end holds the summary, and gets most of the room.
fn cut(text: &str, limit_chars: usize) -> String {
    let n_chars = text.chars().count();
    if n_chars <= limit_chars {
        return text.to_owned();
    }
    let (head, tail) = (limit_chars / 4, limit_chars - limit_chars / 4);
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(n_chars - tail).collect();
    format!("{start}\n[{} characters are left out here]\n{end}", n_chars - limit_chars)
}

/// A command as inline code on one line.
fn code(command: &str) -> String {
    let line = command.lines().map(str::trim).collect::<Vec<_>>().join("; ");
    code_span(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_plain() {
        let cases = [
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("a\r\nb\rc", "a\nb\nc"),
            ("bell\u{7}\u{0}\tx", "bell\tx"),
            ("\u{1b}]52;c;AAAA\u{7}x", "]52;c;AAAAx"),
            ("cut off \u{1b}[", "cut off "),
        ];
        for (text, expected) in cases {
            assert_eq!(plain(text), expected);
        }
    }

    #[test]
    fn long_output_is_cut_in_the_middle_between_characters() {
        let text = "ä".repeat(50) + &"z".repeat(50);
        let cut = cut(&text, 20);
        assert_eq!(
            cut,
            format!("{}\n[80 characters are left out here]\n{}", "ä".repeat(5), "z".repeat(15))
        );
    }
}
