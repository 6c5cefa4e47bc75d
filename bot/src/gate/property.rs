//! Random patches: whatever breaks a rule does not cross, whatever is refused is refused by the rule that it breaks, and
//! what breaks none passes.

use proptest::prelude::*;

use super::tests::{added, deleted, link, modified, patch, rules};
use super::*;
use crate::patch::Barred;

/// A change, and the rule that it breaks; none if it breaks none.
type Case = (Change, Option<Rule>);

const NAMES: [&str; 10] =
    ["a", "lib", "src", "été", "日本語", "x y", "it's", "(1)", "longer-name_2", "q&a@b#1!2"];

fn plain_path() -> impl Strategy<Value = String> {
    (prop::collection::vec(prop::sample::select(&NAMES[..]), 0..4), any::<u32>()).prop_map(
        |(folders, number)| {
            let name = format!("file{number}.txt");
            folders.into_iter().chain([name.as_str()]).collect::<Vec<_>>().join("/")
        },
    )
}

/// Text without a secret, a NUL or a carriage return, shorter than any limit.
fn plain_text() -> impl Strategy<Value = String> {
    prop::collection::vec("[ -~äöü日\t]{0,60}", 0..30).prop_map(|lines| lines.join("\n") + "\n")
}

fn endings() -> impl Strategy<Value = Endings> {
    (0..2_usize, 2..40_usize).prop_map(|(kind, n)| match kind {
        0 => Endings { lf: n, ..Endings::default() },
        _ => Endings { crlf: n, ..Endings::default() },
    })
}

fn harmless() -> impl Strategy<Value = Case> {
    (plain_path(), plain_text(), endings(), 0..5_u8).prop_map(|(path, text, ends, kind)| {
        let change = match kind {
            0 => added(&path, &text),
            1 => Change { old_endings: ends, new_endings: ends, ..modified(&path) },
            2 => deleted(&path),
            3 => link(&path, "neighbour"),
            _ => Change {
                old_mode: Some(Mode::Regular),
                new_mode: Some(Mode::Executable),
                kind: Kind::Modified,
                ..added(&path, &format!("#!/bin/sh\n{text}"))
            },
        };
        (change, None)
    })
}

/// Any letters of a name in upper or lower case.
fn cased(name: &'static str) -> impl Strategy<Value = String> + Clone {
    prop::collection::vec(any::<bool>(), name.len()).prop_map(move |upper| {
        let letters = name.chars().zip(upper);
        letters.map(|(c, up)| if up { c.to_ascii_uppercase() } else { c }).collect()
    })
}

fn hostile_name() -> impl Strategy<Value = String> {
    let dot_git = (
        cased(".git"),
        prop::sample::select(&["", ".", " ", "::$DATA", ":x", "..", "\u{200d}"][..]),
    )
        .prop_map(|(name, end)| format!("{name}{end}"));
    let short = (cased("git"), 1..100_u32).prop_map(|(name, number)| format!("{name}~{number}"));
    let device = (
        prop_oneof![
            cased("con"),
            cased("aux"),
            cased("nul"),
            cased("prn"),
            cased("com1"),
            cased("lpt9")
        ],
        prop::sample::select(&["", ".txt", ".tar.gz", " .x"][..]),
    )
        .prop_map(|(name, end)| format!("{name}{end}"));
    let odd = prop::sample::select(
        &[
            "..",
            ".",
            "",
            "a\\b",
            "a\nb",
            "a\u{7f}",
            "a\u{202e}b",
            "\u{feff}a",
            "end.",
            "end ",
            "a\u{0}b",
        ][..],
    )
    .prop_map(str::to_owned);
    prop_oneof![dot_git, short, device, odd, Just("x".repeat(256))]
}

fn hostile_path() -> impl Strategy<Value = Case> {
    (hostile_name(), 0..3_u8).prop_map(|(name, place)| {
        let path = match place {
            0 => name,
            1 => format!("src/{name}"),
            _ => format!("src/{name}/file"),
        };
        (added(&path, "x\n"), Some(Rule::PathName))
    })
}

fn protected_path() -> impl Strategy<Value = Case> {
    let folder = prop_oneof![
        cased(".github"),
        cased(".gitea"),
        cased(".forgejo"),
        cased(".husky"),
        cased("vendor"),
        cased(".woodpecker"),
    ];
    let anywhere = prop_oneof![
        cased("codeowners"),
        cased(".hyla.toml"),
        cased("agents.md"),
        cased(".gitattributes"),
        cased(".gitmodules"),
    ];
    let path = prop_oneof![
        folder.prop_map(|folder| format!("{folder}/x/y.yml")),
        anywhere.clone(),
        anywhere.prop_map(|name| format!("deep/er/{name}")),
    ];
    (path, 0..3_u8).prop_map(|(path, kind)| {
        let change = match kind {
            0 => added(&path, "x\n"),
            1 => modified(&path),
            _ => deleted(&path),
        };
        (change, Some(Rule::ProtectedPath))
    })
}

fn secret() -> impl Strategy<Value = Case> {
    let token = prop_oneof![
        "AKIA[0-9A-Z]{16}",
        "gh[pousr]_[A-Za-z0-9]{36}",
        "glpat-[A-Za-z0-9]{20}",
        "gitea_token = [0-9a-f]{40}",
        "hf_[A-Za-z0-9]{34}",
        "npm_[A-Za-z0-9]{36}",
        "xox[bp]-[A-Za-z0-9]{12}",
        Just("-----BEGIN OPENSSH PRIVATE KEY-----".to_owned()),
        Just("hyla-own-secret".to_owned()),
    ]
    .prop_filter("issuers mark their examples", |token| !token.contains("EXAMPLE"));
    (plain_path(), plain_text(), token, plain_text()).prop_map(|(path, before, token, after)| {
        (added(&path, &format!("{before} {token} \n{after}")), Some(Rule::Secret))
    })
}

fn harmful() -> impl Strategy<Value = Case> {
    let odd_link = (
        plain_path(),
        prop::sample::select(
            &["/etc/passwd", "../../../../../x", "a/../b", ".git/config", "C:\\x", "x/GIT~1"][..],
        ),
    )
        .prop_map(|(path, target)| (link(&path, target), Some(Rule::Symlink)));
    let odd_mode = (plain_path(), 0..4_u8).prop_map(|(path, kind)| {
        use Mode::{Executable, Link, Regular};
        let (old, new) =
            [(Regular, Executable), (Executable, Regular), (Regular, Link), (Link, Regular)]
                [usize::from(kind)];
        let change = Change { old_mode: Some(old), new_mode: Some(new), ..modified(&path) };
        (change, Some(Rule::FileMode))
    });
    let submodule = (plain_path(), any::<bool>()).prop_map(|(path, is_old)| {
        let mut change = modified(&path);
        if is_old {
            change.old_mode = Some(Mode::Submodule);
        } else {
            change.new_mode = Some(Mode::Submodule);
        }
        (change, Some(Rule::Submodule))
    });
    let lfs = (plain_path(), any::<bool>()).prop_map(|(path, is_pointer)| {
        let lfs = if is_pointer { Lfs::Pointer } else { Lfs::Content };
        (Change { lfs, ..modified(&path) }, Some(Rule::LfsPointer))
    });
    let large = (plain_path(), (1_u64 << 20) + 1..1 << 40).prop_map(|(path, size_bytes)| {
        (Change { size_bytes, ..added(&path, "x") }, Some(Rule::TooLarge))
    });
    let many_lines = (plain_path(), 5001..1_000_000_usize)
        .prop_map(|(path, removed)| (Change { removed, ..modified(&path) }, Some(Rule::TooLarge)));
    let binary = plain_path()
        .prop_map(|path| (Change { is_binary: true, ..added(&path, "\0") }, Some(Rule::Binary)));
    let ends = (plain_path(), 2..1000_usize).prop_map(|(path, n)| {
        let (lf, crlf) =
            (Endings { lf: n, ..Endings::default() }, Endings { crlf: n, ..Endings::default() });
        (Change { old_endings: crlf, new_endings: lf, ..modified(&path) }, Some(Rule::LineEndings))
    });
    let encoding = (
        plain_path(),
        prop::sample::select(&[Encoding::Lost, Encoding::Changed, Encoding::Mark][..]),
    )
        .prop_map(|(path, encoding)| {
            (Change { encoding, ..modified(&path) }, Some(Rule::Encoding))
        });
    prop_oneof![
        hostile_path(),
        protected_path(),
        secret(),
        odd_link,
        odd_mode,
        submodule,
        lfs,
        large,
        many_lines,
        binary,
        ends,
        encoding,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_breaks_no_rule_passes(cases in prop::collection::vec(harmless(), 0..20)) {
        let changes = cases.into_iter().map(|(change, _)| change).collect();
        prop_assert_eq!(check(&patch(changes), &rules()), Ok(()));
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_it(
        (mut cases, bad) in (prop::collection::vec(harmless(), 0..20), prop::collection::vec(harmful(), 1..4)),
        seed in any::<prop::sample::Index>(),
    ) {
        for case in bad {
            let at = seed.index(cases.len() + 1);
            cases.insert(at, case);
        }
        let broken: Vec<_> = cases.iter().filter_map(|(change, rule)| Some((change.path.clone(), (*rule)?))).collect();
        let changes = cases.into_iter().map(|(change, _)| change).collect();
        let refusal = check(&patch(changes), &rules()).expect_err("a rule is broken");
        let is_named = match &refusal.path {
            Some(path) => broken.contains(&(path.clone(), refusal.rule)),
            None => broken.iter().any(|(_, rule)| *rule == refusal.rule),
        };
        prop_assert!(is_named, "{:?} is none of {:?}", refusal, broken);
        prop_assert!(!refusal.detail.is_empty() && !refusal.detail.contains("hyla-own-secret"));
    }

    #[test]
    fn more_files_than_allowed_and_what_is_barred_never_pass(
        cases in prop::collection::vec(harmless(), 1..80),
        barred in prop::collection::vec((plain_path(), prop::sample::select(&[Rule::PathName, Rule::TooLarge, Rule::FileMode][..])), 0..3),
    ) {
        let changes: Vec<_> = cases.into_iter().map(|(change, _)| change).collect();
        let n_files = changes.len() + barred.len();
        let barred: Vec<_> = barred.into_iter()
            .map(|(path, rule)| Barred { path, rule, detail: "as it is".into() }).collect();
        let judged = check(&Patch { barred: barred.clone(), ..patch(changes) }, &rules());
        match judged {
            Ok(()) => prop_assert!(n_files <= 50 && barred.is_empty()),
            Err(refusal) if n_files > 50 => prop_assert_eq!(refusal.rule, Rule::TooLarge),
            Err(refusal) => prop_assert_eq!(refusal.rule, barred[0].rule),
        }
    }

    /// Any combination of what a change can be: none of the following is in what passes.
    #[test]
    fn nothing_that_a_rule_names_is_in_what_passes(
        path in prop_oneof![plain_path(), hostile_name(), "\\PC{0,30}", "[a-zA-Z./~ ]{1,20}"],
        text in prop_oneof![plain_text(), ".{0,200}"],
        modes in (0..5_usize, 0..5_usize),
        flags in any::<[bool; 3]>(),
        size_bytes in 0..(3_u64 << 20),
        lines in (0..9000_usize, 0..9000_usize),
    ) {
        const MODES: [Option<Mode>; 5] =
            [None, Some(Mode::Regular), Some(Mode::Executable), Some(Mode::Link), Some(Mode::Submodule)];
        let (old_mode, new_mode) = (MODES[modes.0], MODES[modes.1]);
        prop_assume!(old_mode.is_some() || new_mode.is_some());
        let kind = match (old_mode, new_mode) {
            (None, _) => Kind::Added,
            (_, None) => Kind::Deleted,
            _ => Kind::Modified,
        };
        let [is_binary, is_lfs, collides] = flags;
        let change = Change {
            kind, old_mode, new_mode, is_binary, size_bytes,
            lfs: if is_lfs { Lfs::Content } else { Lfs::Nothing },
            collides_with: collides.then(|| "OTHER".to_owned()),
            added: lines.0, removed: lines.1,
            ..added(&path, &text)
        };
        if check(&patch(vec![change.clone()]), &rules()).is_err() {
            return Ok(());
        }
        prop_assert!(size_bytes <= 1 << 20 && lines.0 + lines.1 <= 5000 && !is_lfs);
        prop_assert!(!is_binary || kind == Kind::Deleted);
        prop_assert!(old_mode != Some(Mode::Submodule) && new_mode != Some(Mode::Submodule));
        prop_assert!(old_mode.is_none() || new_mode.is_none() || old_mode == new_mode
            || (old_mode, new_mode) == (Some(Mode::Regular), Some(Mode::Executable)) && text.starts_with("#!"));
        if new_mode == Some(Mode::Link) {
            prop_assert!(!text.starts_with('/') && !text.split('/').any(|part| part.eq_ignore_ascii_case(".git")));
        }
        if kind == Kind::Added {
            prop_assert!(!collides && !path.is_empty() && !path.contains(['\\', '\0', '\n']));
            for part in path.split('/') {
                let low = part.to_ascii_lowercase();
                prop_assert!(!matches!(low.as_str(), "" | "." | ".." | ".git" | "git~1" | "con" | "nul"), "{:?}", path);
                prop_assert!(!part.ends_with([' ', '.']) && part.len() <= 255);
            }
        }
    }
}
