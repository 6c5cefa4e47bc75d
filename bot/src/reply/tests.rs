//! The sentences as people read them, and that nobody else's words do harm in them.

use super::*;
use crate::ask::No;
use crate::forge::LinkedPull;
use crate::job::{Failure, NoFix, Rule, Stage};
use crate::patch::{Change, Encoding, Endings, Kind, LeftOut, Lfs, Mode, Why};
use crate::sandbox::Confinement;

pub(super) fn change(path: &str) -> Change {
    Change {
        path: path.into(),
        kind: Kind::Modified,
        old_mode: Some(Mode::Regular),
        new_mode: Some(Mode::Regular),
        added: 3,
        removed: 1,
        is_binary: false,
        size_bytes: 10,
        added_bytes: vec![],
        removed_bytes: vec![],
        encoding: Encoding::Kept,
        old_endings: Endings::default(),
        new_endings: Endings::default(),
        lfs: Lfs::Nothing,
        collides_with: None,
        has_interpreter: false,
    }
}

pub(super) fn draft<'a>(
    changes: &'a [Change],
    evidence: &'a str,
    words: &'a str,
    base: &'a CommitId,
) -> Draft<'a> {
    Draft {
        issue: 7,
        changes,
        left_out: &[],
        evidence,
        words,
        session: "`m` took 2 turns",
        sandbox: "bubblewrap 1.2.3",
        confinement: Confinement::Sealed,
        asked_by: Some("ann"),
        found_by: None,
        base_branch: "main",
        base,
        digest: "d",
    }
}

#[test]
fn words_of_others_ping_nobody_and_close_nothing() {
    let hostile = "Closes #5, fixes acme/app#6 and https://git.example/acme/app/issues/8 @ann !9 <!-- x --> ```\n# H\u{202e}\u{200b}\u{0}";
    for text in [title(hostile, 7), commit_message(hostile, 7), local_message(hostile)] {
        let own = text.replace("#7", "");
        for bad in ["#5", "#6", "@ann", "://", "!9", "<!--", "\u{202e}", "\u{0}"] {
            assert!(!own.contains(bad), "{bad:?} in {text:?}");
        }
    }
    let fenced = fence(hostile, 500);
    for bad in ["#5", "#6", "@ann", "!9", "\u{202e}", "\u{0}"] {
        assert!(!fenced.contains(bad), "{bad:?} in {fenced:?}");
    }
    let honest = "assert 1 != 2 @ 3 # 4 <a> http://x";
    assert!(fence(honest, 500).contains(honest));
    assert_eq!(title(" \n ", 7), "Proposed change (#7)");
    assert!(title(&"x".repeat(10_000), 7).chars().count() <= 190);
}

#[test]
fn a_fence_is_longer_than_what_it_holds() {
    let fenced = fence("a\n``````\nb", 100);
    assert!(fenced.starts_with("```````text\n") && fenced.ends_with("\n```````"), "{fenced}");
    for (path, expected) in [("a`b", "``a`b``"), ("`a", "`` `a ``"), ("a\nb\u{1b}", "`a b`")] {
        assert_eq!(code_span(path), expected);
    }
}

#[test]
fn a_body_never_exceeds_its_limit_and_says_what_it_left_out() {
    let base = CommitId("0123456789abcdef".into());
    let changes: Vec<Change> =
        (0..100).map(|n| change(&format!("{n}/{}", "ü".repeat(300)))).collect();
    let evidence = format!("| a | b |\n<details>{}</details>", "ü".repeat(70_000));
    let words = "ü".repeat(70_000);
    for limit in [2000, 20_000, 65_535, 65_536] {
        let body = body(&draft(&changes, &evidence, &words, &base), limit);
        assert!(body.chars().count() <= limit, "{limit}");
        assert!(body.starts_with("Closes #7\n"));
    }
    let body = body(&draft(&changes[..1], &evidence, "words", &base), 65_536);
    assert!(
        body.contains("| a | b |")
            && body.contains("too long for this page")
            && body.contains("### How it was made")
    );
}

#[test]
fn what_was_left_out_is_named() {
    let base = CommitId("0123456789abcdef".into());
    let left_out = [LeftOut { path: "x/".into(), why: Why::Ignored }];
    let changes = [change("a.rs")];
    let whole = Draft { left_out: &left_out, ..draft(&changes, "", "", &base) };
    assert!(
        body(&whole, 65_536).contains("- left out: `x/` (ignored by the repository's .gitignore)")
    );
}

/// What is said of others at work.
fn declined_ends() -> Vec<End> {
    let pull = LinkedPull {
        repo: "acme/app".parse().expect("that is a repository's name"),
        number: 9,
        link: "http://f/9".into(),
        author: 1,
    };
    let people = |n: usize| (0..n).map(|n| format!("user{n}")).collect::<Vec<_>>();
    let nos = [
        No::ClosedBefore,
        No::Assigned(people(1)),
        No::Assigned(people(5)),
        No::Linked(pull.clone()),
        No::OwnDraft(pull),
    ];
    nos.iter().map(declined).collect()
}

/// What is said of a draft, whatever became of it.
fn opened_ends() -> Vec<End> {
    let own = CommitId("0123456789abcdef".into());
    let others = CommitId("fedcba9876543210".into());
    let states = [
        (true, true, false, &own),
        (false, true, false, &own),
        (true, false, false, &own),
        (true, false, true, &others),
        (true, true, false, &others),
    ];
    let end = |(is_draft, is_open, is_merged, head): (bool, bool, bool, &CommitId)| {
        let pull = Pull {
            number: 9,
            link: "http://f/9".into(),
            is_open,
            is_merged,
            is_draft,
            title: "t".into(),
            author: 1,
            head: "hyla/issue-7-1".into(),
            is_from_here: true,
            head_commit: Some(head.clone()),
        };
        opened(&pull, "WIP:", &own)
    };
    states.into_iter().map(end).collect()
}

/// Every sentence once, to be read like prose.
#[test]
fn every_end_tells_what_to_do_next() {
    let mut lines = Vec::new();
    let mut add = |end: End| {
        let at_a_terminal = next_at_a_terminal(&end);
        assert!(!at_a_terminal.contains("label"), "{at_a_terminal}");
        lines.push(format!("{}: {} {}", end.outcome, end.person, end.next));
    };
    for why in [NoFix::NoChange, NoFix::BrokenCall, NoFix::Repeated, NoFix::Budget] {
        add(no_fix(why));
    }
    for rule in [
        Rule::RepositoryDisabled,
        Rule::RepositoryFile,
        Rule::RepositoryArchived,
        Rule::PullsDisabled,
        Rule::IssueClosed,
        Rule::IssueLocked,
        Rule::PullRequest,
        Rule::IssueChanged,
        Rule::AdderCannotWrite,
        Rule::AdderUnknown,
        Rule::AdderIsBot,
        Rule::IssueAssigned,
        Rule::PullLinked,
    ] {
        add(refused(rule, "detail"));
    }
    declined_ends().into_iter().for_each(&mut add);
    for rule in [
        Rule::ProtectedPath,
        Rule::Symlink,
        Rule::Submodule,
        Rule::FileMode,
        Rule::Binary,
        Rule::LfsPointer,
        Rule::TooLarge,
        Rule::LineEndings,
        Rule::Encoding,
        Rule::Secret,
        Rule::PathName,
    ] {
        add(refused_patch(&Refusal { rule, path: Some("a/b".into()), detail: "detail".into() }));
    }
    for failure in [
        Failure::ForgeAuth,
        Failure::ForgeDenied,
        Failure::ForgeMissing,
        Failure::RepositoryMoved,
        Failure::ForgeDown,
        Failure::ForgeAnswer,
        Failure::BranchTaken,
        Failure::Git,
        Failure::ModelDown,
        Failure::ModelAnswer,
        Failure::Sandbox,
        Failure::Internal,
    ] {
        add(failed(failure, "chain".into()));
    }
    add(turned_down("chain".into()));
    add(branch_taken("hyla/issue-7-1", "chain".into()));
    add(branches_taken("hyla/issue-7-1", "hyla/issue-7-21"));
    add(branch_in_the_way("hyla", "hyla/"));
    add(repository_file("enabled", "line 1: invalid type, @ann", "detail"));
    add(repository_file("", "line 1: no table", "detail"));
    add(cancelled());
    add(with_branch_left(cancelled(), "hyla/issue-7-1"));
    opened_ends().into_iter().for_each(&mut add);
    insta::assert_snapshot!(lines.join("\n"));
}

/// Whoever sees what was made without walls is told, in the comment at each of its stages and at the head of the draft.
#[test]
fn what_was_made_without_a_sandbox_says_so_wherever_it_is_seen() {
    let base = CommitId("0123456789abcdef".into());
    let evidence = "x".repeat(70_000);
    let mut shown = Vec::new();
    for confinement in [Confinement::Degraded, Confinement::None] {
        let words = caution(confinement).unwrap();
        let end = cancelled();
        let stages = Stage::ALL.map(|stage| Status::Working { stage, base: Some(&base) });
        for state in stages.into_iter().chain([Status::Ended(&end)]) {
            let comment = status("k", Some("ann"), confinement, state);
            assert!(comment.contains(words), "{comment}");
            assert!(!comment.contains("sealed"), "{comment}");
        }
        let changes = [change("a.rs")];
        let whole = Draft { confinement, ..draft(&changes, &evidence, "", &base) };
        let body = body(&whole, 20_000);
        assert!(!body.contains("sandboxes of their own"), "{body}");
        let (head, _) = body.split_once("###").unwrap();
        let working = Status::Working { stage: Stage::Session, base: Some(&base) };
        shown.push(format!("{}\n{head}", status("k", Some("ann"), confinement, working)));
    }
    let sealed = status("k", None, Confinement::Sealed, Status::Ended(&cancelled()));
    assert!(!sealed.contains("sandbox"), "{sealed}");
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn the_status_comment_shows_where_the_job_is() {
    let base = CommitId("0123456789abcdef".into());
    let mut shown = Vec::new();
    for stage in Stage::ALL {
        shown.push(status(
            "k",
            Some("ann"),
            Confinement::Sealed,
            Status::Working { stage, base: Some(&base) },
        ));
    }
    shown.push(status(
        "k",
        None,
        Confinement::Sealed,
        Status::Waiting { why: "The forge is down.", attempt: 2, attempts: 3 },
    ));
    shown.push(status(
        "k",
        None,
        Confinement::Sealed,
        Status::Unreachable { why: "The forge did not answer me, several times over." },
    ));
    insta::assert_snapshot!(shown.join("\n"));
}
