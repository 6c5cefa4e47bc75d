//! The repository's own rules, checked over the files that git knows. Each rule is a pure function over a path and a text,
//! and has a test that it sees what it forbids. Formatting and the usual lints are rustfmt's and clippy's.

mod attacks;
mod code;
mod rules;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use rules::{RULES, Rule};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file of the repository, as git lists it: what is committed, and what is about to be.
fn files() -> Vec<String> {
    let list = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(
        list.status.success(),
        "git cannot list the files: {}",
        String::from_utf8_lossy(&list.stderr)
    );
    let text = String::from_utf8(list.stdout).expect("file names are UTF-8");
    let is_there = |path: &&str| root().join(path).is_file();
    text.lines().filter(is_there).map(str::to_owned).collect()
}

fn broken(rule: &Rule, path: &str, text: &str) -> Vec<String> {
    let found = (rule.check)(path, text);
    found.into_iter().map(|(line, what)| format!("{path}:{line}: {}: {what}", rule.name)).collect()
}

#[test]
fn the_repository_keeps_its_rules() {
    let mut wrong = Vec::new();
    for path in files() {
        // Binary files have no lines to judge.
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else { continue };
        for rule in RULES {
            wrong.extend(broken(rule, &path, &text));
        }
    }
    assert!(wrong.is_empty(), "{} lines break a rule:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_top_level_holds_what_it_should_and_nothing_else() {
    const ALLOWED: [&str; 10] = [
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "README.md",
        "bot",
        "config",
        "deploy",
        "engine",
        "tests",
        "webhooks",
    ];
    let mut entries: Vec<String> = files()
        .iter()
        .filter_map(|path| path.split('/').next().map(str::to_owned))
        .filter(|entry| !entry.starts_with('.'))
        .collect();
    entries.dedup();
    entries.sort();
    entries.dedup();
    assert_eq!(entries, ALLOWED);
}

#[test]
fn each_attack_of_the_list_has_a_test_with_its_id() {
    let sources = files().into_iter().filter(|path| path.ends_with(".rs"));
    let texts = sources.filter_map(|path| std::fs::read_to_string(root().join(path)).ok());
    let found: BTreeSet<u32> = texts.flat_map(|text| attacks::ids(&text)).collect();
    let missing: Vec<String> =
        attacks::IDS.filter(|id| !found.contains(id)).map(|id| format!("t{id:02}_")).collect();
    assert_eq!(missing, Vec::<String>::new(), "no test has a name that begins so");

    let ids = |text: &str| attacks::ids(text).into_iter().collect::<Vec<_>>();
    assert_eq!(ids("#[test]\nfn t09_x() {}\n  #[tokio::test]\n  async fn t10_y() {}"), [9, 10]);
    assert_eq!(ids("#[tokio::test(flavor = \"x\")]\n/// T4.\nasync fn t04_x() {}"), [4]);
    for none in [
        "fn t09_x() {}",
        "#[test]\nfn a() {}\nfn t09_x() {}",
        "#[test]\n#[ignore = \"x\"]\nfn t09_x() {}",
        "#[test]\nfn t01_to_t36_x() {}",
        "#[test]\nfn t9_x() {}",
        "// #[test] fn t09_x() {}",
    ] {
        assert_eq!(ids(none), Vec::<u32>::new(), "{none}");
    }
}

/// What is wrong with the numbers of these files, which are `0001_what.sql` and on.
fn wrong_numbers(names: &[&str]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort_unstable();
    let expected = names.iter().zip(1..).map(|(name, number)| (name, format!("{number:04}_")));
    expected
        .filter(|(name, start)| !name.starts_with(start))
        .map(|(name, start)| {
            format!("bot/migrations/{name}:1: expected `{start}`, without a gap or a double")
        })
        .collect()
}

#[test]
fn migrations_are_numbered_without_gaps() {
    let files = files();
    let names: Vec<&str> =
        files.iter().filter_map(|path| path.strip_prefix("bot/migrations/")).collect();
    assert!(!names.is_empty(), "no migration was found");
    assert_eq!(wrong_numbers(&names), Vec::<String>::new());

    assert_eq!(wrong_numbers(&["0002_b.sql", "0001_a.sql"]), Vec::<String>::new());
    assert_eq!(wrong_numbers(&["0001_a.sql", "0003_b.sql"]).len(), 1, "a gap");
    assert_eq!(wrong_numbers(&["0001_a.sql", "0001_b.sql"]).len(), 1, "a double");
}

#[test]
fn every_rule_sees_what_it_forbids_and_nothing_in_what_it_allows() {
    for rule in RULES {
        for (path, text) in rule.bad {
            assert!(
                !broken(rule, path, text).is_empty(),
                "`{}` does not see {path}: {text:?}",
                rule.name
            );
        }
        for (path, text) in rule.good {
            assert_eq!(broken(rule, path, text), Vec::<String>::new(), "`{}`", rule.name);
        }
    }
}
