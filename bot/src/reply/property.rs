//! Random words of others, in every place where they are published: nothing in them is a mention or a reference, no block
//! stays open, and no text is longer than its limit.

use std::sync::OnceLock;

use proptest::prelude::*;
use regex::Regex;

use super::blocks::is_closed;
use super::*;
use crate::patch::{Change, LeftOut, Why};

/// What a forge turns into a mention or a reference, by the patterns of Gitea, Forgejo, GitHub and GitLab, wider than any.
const LINKS: &str =
    r"(?i)@[\w-]|[#!][0-9]|\bgh-[0-9]|/(?:issues|pulls|pull|merge_requests|work_items)/[0-9]";

/// Pieces that mean something to a forge or to Markdown.
const PIECES: [&str; 34] = [
    "@ann",
    "@",
    "#1",
    "#",
    "!1",
    "!",
    "acme/hours#12",
    "GH-7",
    "gh-",
    "Closes ",
    "fixes: ",
    "resolved ",
    "-",
    "/",
    "https://forge.example/acme/hours/issues/3",
    "/acme/hours/pulls/4",
    "issues/",
    "1",
    "9",
    "`",
    "```",
    "``````\n",
    "~~~\n",
    "\n",
    "\r\n",
    "\t",
    "<!-- x -->",
    "<b>",
    "</details>",
    "&#64;",
    "|",
    "\\|",
    "\u{200b}",
    "\u{202e}",
];

fn words() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => prop::sample::select(&PIECES[..]).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => any::<char>().prop_map(|c| c.to_string()),
        1 => "[a-zA-Zäß日🐸 ]{0,8}",
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn links(text: &str) -> Option<String> {
    static COMPILED: OnceLock<Regex> = OnceLock::new();
    let found = COMPILED.get_or_init(|| Regex::new(LINKS).unwrap()).find(text);
    found.map(|found| found.as_str().to_owned())
}

fn is_shown(c: char) -> bool {
    c == '\u{200b}' || !(c.is_control() || is_invisible(c))
}

/// The text in a fenced block, which must be one from its first line to its last.
fn inside(fenced: &str) -> &str {
    let (first, rest) = fenced.split_once('\n').expect("it has lines");
    let ticks = first.strip_suffix("text").expect("it says what it holds");
    assert!(ticks.len() >= 3 && ticks.chars().all(|c| c == '`'), "{first}");
    let inner =
        rest.strip_suffix(ticks).and_then(|rest| rest.strip_suffix('\n')).expect("it is closed");
    assert!(!inner.contains(ticks), "it could be closed inside");
    inner
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_line_links_nothing_and_fits(text in words(), limit in 0..200_usize) {
        for line in [line(&text, limit), title(&text, 7).replace("(#7)", ""), local_message(&text)] {
            prop_assert_eq!(links(&line), None, "{:?}", line);
            prop_assert!(!line.contains("://") && !line.contains("<b") && !line.contains("<!") && !line.contains("&#"));
            prop_assert!(line.trim_end_matches('\n').chars().all(|c| is_shown(c) || c == '\n'), "{:?}", line);
        }
        prop_assert!(line(&text, limit).chars().count() <= limit);
        let message = commit_message(&text, 7);
        prop_assert_eq!(links(&message.replace("#7", "")), None, "{:?}", message);
        prop_assert_eq!(message.lines().count(), 3);
    }

    #[test]
    fn a_fence_links_nothing_is_closed_and_fits(text in words(), limit in 0..200_usize) {
        let fenced = fence(&text, limit);
        let inner = inside(&fenced);
        prop_assert_eq!(links(inner), None, "{:?}", fenced);
        prop_assert!(inner.chars().count() <= limit);
        prop_assert!(inner.chars().all(|c| is_shown(c) || matches!(c, '\n' | '\t')), "{:?}", inner);
    }

    #[test]
    fn a_path_links_nothing_and_is_one_span(text in words()) {
        let span = path_span(&text);
        prop_assert_eq!(links(&span), None, "{:?}", span);
        let n_ticks = span.chars().take_while(|c| *c == '`').count();
        let ticks = &span[..n_ticks];
        if let Some(inner) = span.strip_prefix(ticks).and_then(|rest| rest.strip_suffix(ticks)) {
            prop_assert!(inner.split(|c| c != '`').all(|run| run.len() != n_ticks), "{:?}", span);
            prop_assert!(inner.chars().count() <= 202);
        } else {
            prop_assert!(span.chars().all(|c| c == '`'), "{:?}", span);
        }
        prop_assert!(!span.contains('\n'));
    }

    #[test]
    fn a_body_fits_closes_its_blocks_and_links_its_own_issue_alone(
        (text, output) in (words(), words()),
        paths in prop::collection::vec(words(), 0..40),
        (fill, limit) in (0..70_000_usize, 2000..70_000_usize),
    ) {
        let base = CommitId("0123456789abcdef".into());
        let changes: Vec<Change> = paths.iter().map(|path| super::tests::change(path)).collect();
        let left_out: Vec<LeftOut> =
            paths.iter().map(|path| LeftOut { path: path.clone(), why: Why::Ignored }).collect();
        let output = format!("{output}{}", "日".repeat(fill));
        let evidence = format!(
            "| a | b |\n\n<details><summary>Output</summary>\n\n{}\n</details>\n",
            fence(&output, usize::MAX)
        );
        let draft = Draft { left_out: &left_out, ..super::tests::draft(&changes, &evidence, &text, &base) };
        let body = body(&draft, limit);
        prop_assert!(body.chars().count() <= limit, "{} of {}", body.chars().count(), limit);
        prop_assert!(is_closed(&body), "{}", body);
        let rest = body.strip_prefix("Closes #7\n").expect("it begins with its issue");
        prop_assert_eq!(links(rest), None, "{}", body);
        prop_assert!(body.contains("digest of the input"));
    }
}
