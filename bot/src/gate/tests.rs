//! One table for each rule.

use super::*;
use crate::job::CommitId;
use crate::patch::{Barred, TreeId};

pub(super) fn added(path: &str, content: &str) -> Change {
    Change {
        path: path.to_owned(),
        kind: Kind::Added,
        old_mode: None,
        new_mode: Some(Mode::Regular),
        added: content.lines().count(),
        removed: 0,
        is_binary: false,
        size_bytes: content.len() as u64,
        added_bytes: content.as_bytes().to_vec(),
        removed_bytes: Vec::new(),
        encoding: Encoding::Kept,
        old_endings: Endings::default(),
        new_endings: Endings::default(),
        lfs: Lfs::Nothing,
        collides_with: None,
        has_interpreter: content.starts_with("#!"),
    }
}

pub(super) fn modified(path: &str) -> Change {
    Change { kind: Kind::Modified, old_mode: Some(Mode::Regular), ..added(path, "line\n") }
}

pub(super) fn deleted(path: &str) -> Change {
    Change { kind: Kind::Deleted, new_mode: None, old_mode: Some(Mode::Regular), ..added(path, "") }
}

pub(super) fn link(path: &str, target: &str) -> Change {
    Change { new_mode: Some(Mode::Link), ..added(path, target) }
}

pub(super) fn patch(changes: Vec<Change>) -> Patch {
    Patch {
        base: CommitId("0".repeat(40)),
        tree: TreeId("1".repeat(40)),
        changes,
        barred: Vec::new(),
        left_out: Vec::new(),
        text: String::new(),
    }
}

pub(super) fn rules() -> Rules {
    let repo_file =
        config::RepoFile { protected_paths: vec!["vendor/**".into()], ..Default::default() };
    let own = vec![String::from("hyla-own-secret").into(), String::from("short").into()];
    Rules::new(&config::Gate::default(), &repo_file, own).unwrap()
}

fn verdict(change: Change) -> Option<Rule> {
    check(&patch(vec![change]), &rules()).err().map(|refusal| refusal.rule)
}

#[test]
fn protected_paths() {
    let yes = [
        ".github/workflows/ci.yml",
        ".GitHub/Workflows/ci.yml",
        ".github",
        ".gitea/workflows/x.yaml",
        "CODEOWNERS",
        "docs/codeowners",
        ".hyla.toml",
        "sub/.HYLA.toml",
        "Jenkinsfile",
        ".gitattributes",
        "deep/er/.gitattributes",
        ".husky/pre-commit",
        "AGENTS.md",
        "sub/agents.md",
        "vendor/x/y.c",
        "VENDOR/x.c",
        "Jenkinsfile/inner",
        ".woodpecker.yaml",
        ".woodpecker/x.yaml",
        ".drone.star",
        ".gitlab-ci.yaml",
        ".gitlab/ci/build.yml",
        "azure-pipelines-nightly.yml",
        ".circleci/config.yml",
        ".builds/alpine.yml",
        "sub/.vscode/tasks.json",
        "app.code-workspace",
        ".devcontainer.json",
        ".devcontainer/devcontainer.json",
        ".envrc",
        "sub/.mise.toml",
        "lefthook-local.yml",
        ".claude/settings.json",
        "CLAUDE.md",
        "sub/.cursor/rules/x.mdc",
        ".mcp.json",
    ];
    for path in yes {
        assert_eq!(verdict(modified(path)), Some(Rule::ProtectedPath), "{path}");
        assert_eq!(verdict(deleted(path)), Some(Rule::ProtectedPath), "{path}");
        assert_eq!(verdict(added(path, "x\n")), Some(Rule::ProtectedPath), "{path}");
    }
    for path in [
        "src/lib.rs",
        "github/x",
        "sub/.github/x",
        "MYCODEOWNERS",
        "src/vendor/x.c",
        ".gitignore",
        "claude.py",
        "vscode/x",
    ] {
        assert_eq!(verdict(modified(path)), None, "{path}");
    }
}

#[test]
fn a_pattern_that_is_none_stops_everything() {
    let repo_file = config::RepoFile { protected_paths: vec!["a[".into()], ..Default::default() };
    let error = Rules::new(&config::Gate::default(), &repo_file, Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "cannot use `a[` as a protected path");
}

#[test]
fn symbolic_links() {
    let cases = [
        ("link", "file", None),
        ("link", "dir/file", None),
        ("dir/link", "../file", None),
        ("dir/link", "./x", None),
        ("a/b/link", "../../x/y", None),
        ("link", "/etc/passwd", Some(Rule::Symlink)),
        ("link", "..", Some(Rule::Symlink)),
        ("link", "../x", Some(Rule::Symlink)),
        ("dir/link", "../../x", Some(Rule::Symlink)),
        ("dir/link", "x/../../../y", Some(Rule::Symlink)),
        ("dir/link", "x/../y", Some(Rule::Symlink)),
        ("link", ".git/config", Some(Rule::Symlink)),
        ("dir/link", "../.GIT", Some(Rule::Symlink)),
        ("link", "git~1/hooks", Some(Rule::Symlink)),
        ("link", "C:\\x", Some(Rule::Symlink)),
        ("node_modules", "/opt/node_modules", Some(Rule::Symlink)),
    ];
    for (path, target, expected) in cases {
        assert_eq!(verdict(link(path, target)), expected, "{path} -> {target}");
    }
    let bytes = Change { added_bytes: vec![0xff], ..link("link", "x") };
    assert_eq!(verdict(bytes), Some(Rule::Symlink));
}

#[test]
fn modes_and_submodules() {
    use Mode::{Executable, Link, Regular, Submodule};
    let cases = [
        (Some(Regular), Some(Regular), "x", None),
        (Some(Regular), Some(Executable), "#!/bin/sh", None),
        (Some(Regular), Some(Executable), "x", Some(Rule::FileMode)),
        (Some(Executable), Some(Regular), "#!/bin/sh", Some(Rule::FileMode)),
        (Some(Regular), Some(Link), "x", Some(Rule::FileMode)),
        (Some(Link), Some(Regular), "x", Some(Rule::FileMode)),
        (None, Some(Executable), "x", None),
        (Some(Executable), None, "", None),
        (Some(Submodule), None, "", Some(Rule::Submodule)),
        (None, Some(Submodule), "", Some(Rule::Submodule)),
        (Some(Submodule), Some(Regular), "x", Some(Rule::Submodule)),
    ];
    for (old_mode, new_mode, content, expected) in cases {
        let kind = match (old_mode, new_mode) {
            (None, _) => Kind::Added,
            (_, None) => Kind::Deleted,
            _ => Kind::Modified,
        };
        let change = Change { kind, old_mode, new_mode, ..added("file", content) };
        assert_eq!(verdict(change), expected, "{old_mode:?} {new_mode:?} {content}");
    }
}

#[test]
fn binaries_and_lfs() {
    let binary = |change| Change { is_binary: true, ..change };
    assert_eq!(verdict(binary(added("a.bin", "x"))), Some(Rule::Binary));
    assert_eq!(verdict(binary(modified("a.bin"))), Some(Rule::Binary));
    assert_eq!(verdict(binary(deleted("a.bin"))), None);
    let gate = config::Gate { allow_binary: true, ..Default::default() };
    let open = Rules::new(&gate, &config::RepoFile::default(), Vec::new()).unwrap();
    assert_eq!(check(&patch(vec![binary(added("a.bin", "x"))]), &open), Ok(()));
    for lfs in [Lfs::Pointer, Lfs::Content] {
        assert_eq!(verdict(Change { lfs, ..modified("a") }), Some(Rule::LfsPointer));
    }
}

#[test]
fn amounts() {
    let gate = config::Gate { files: 2, file_bytes: 10, lines: 5, ..Default::default() };
    let rules = Rules::new(&gate, &config::RepoFile::default(), Vec::new()).unwrap();
    let judge = |changes| check(&patch(changes), &rules).map_err(|refusal| refusal.rule);
    assert_eq!(judge(vec![added("a", "1\n2\n3\n"), added("b", "1\n2\n")]), Ok(()));
    assert_eq!(judge(vec![added("a", "1\n2\n3\n"), added("b", "1\n2\n3\n")]), Err(Rule::TooLarge));
    assert_eq!(judge(vec![added("a", "0123456789")]), Ok(()));
    assert_eq!(judge(vec![added("a", "0123456789x")]), Err(Rule::TooLarge));
    assert_eq!(judge(vec![added("a", ""), added("b", ""), added("c", "")]), Err(Rule::TooLarge));
    let removed = Change { removed: 6, ..modified("a") };
    assert_eq!(judge(vec![removed]), Err(Rule::TooLarge));
}

#[test]
fn line_endings_of_a_whole_file() {
    let ends = |lf, crlf, cr| Endings { lf, crlf, cr };
    let cases = [
        (ends(10, 0, 0), ends(11, 0, 0), None),
        (ends(0, 10, 0), ends(0, 12, 0), None),
        (ends(0, 10, 0), ends(10, 0, 0), Some(Rule::LineEndings)),
        (ends(10, 0, 0), ends(0, 10, 0), Some(Rule::LineEndings)),
        (ends(0, 0, 10), ends(10, 0, 0), Some(Rule::LineEndings)),
        (ends(2, 10, 0), ends(12, 0, 0), Some(Rule::LineEndings)),
        (ends(10, 1, 0), ends(11, 0, 0), None),
        (ends(10, 0, 0), ends(10, 3, 0), None),
        (ends(5, 5, 0), ends(10, 0, 0), None),
        (ends(0, 1, 0), ends(1, 0, 0), None),
        (ends(0, 0, 0), ends(5, 0, 0), None),
    ];
    for (old_endings, new_endings, expected) in cases {
        let change = Change { old_endings, new_endings, ..modified("a.txt") };
        assert_eq!(verdict(change), expected, "{old_endings:?} {new_endings:?}");
    }
    let rewritten = Change { new_endings: ends(0, 9, 0), ..added("a.txt", "x") };
    assert_eq!(verdict(rewritten), None, "an added file has no endings to keep");
}

#[test]
fn secrets_in_added_lines() {
    let hex = "0123456789abcdef0123456789abcdef01234567";
    let thirty_six = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8";
    let yes = [
        "-----BEGIN PRIVATE KEY-----".to_owned(),
        "-----BEGIN RSA PRIVATE KEY-----".to_owned(),
        "-----BEGIN OPENSSH PRIVATE KEY-----".to_owned(),
        "-----BEGIN PGP PRIVATE KEY BLOCK-----".to_owned(),
        "key = AKIAABCDEFGHIJKLMNOP".to_owned(),
        format!("token: ghp_{thirty_six}"),
        format!("github_pat_{thirty_six}{thirty_six}"),
        format!("glpat-{thirty_six}"),
        format!("GITEA_TOKEN={hex}"),
        format!("\"forgejo_api_key\": \"{hex}\""),
        "xoxb-1234567890-abcdef".to_owned(),
        format!("https://hooks.slack.com/services/T0123456/B0123456/{thirty_six}"),
        format!("sk_live_{thirty_six}"),
        format!("AIza{}", &thirty_six[..35]),
        format!("npm_{thirty_six}"),
        format!("pypi-AgEIcHlwaS5vcmc{thirty_six}{thirty_six}"),
        format!("sk-ant-{thirty_six}"),
        format!("hf_{thirty_six}"),
        "x hyla-own-secret y".to_owned(),
    ];
    for text in yes {
        assert_eq!(verdict(added("a.txt", &format!("{text}\n"))), Some(Rule::Secret), "{text}");
    }
    let no = [
        "-----BEGIN PUBLIC KEY-----".to_owned(),
        "-----BEGIN CERTIFICATE-----".to_owned(),
        "AKIAIOSFODNN7EXAMPLE".to_owned(),
        format!("commit {hex}"),
        "ghp_short".to_owned(),
        "short".to_owned(),
        "sk-learn".to_owned(),
    ];
    for text in no {
        assert_eq!(verdict(added("a.txt", &format!("{text}\n"))), None, "{text}");
    }
    assert_eq!(verdict(added("hyla-own-secret.txt", "x")), Some(Rule::Secret));
    let refusal = check(&patch(vec![added("a", "hyla-own-secret")]), &rules()).unwrap_err();
    assert!(
        !refusal.detail.contains("hyla-own-secret") && !refusal.to_string().contains("own-secret")
    );
    assert!(!format!("{:?}", rules()).contains("hyla-own-secret"));
}

#[test]
fn path_names() {
    let yes = [
        ".GIT/config",
        "a/.git",
        ".Git",
        "git~1",
        "GIT~2/hooks",
        ".git ",
        ".git.",
        ".git::$INDEX_ALLOCATION/x",
        ".g\u{200c}it/config",
        "\u{feff}.git",
        "a\u{202e}txt",
        "a\\b",
        "a\nb",
        "a\u{7f}b",
        "dir./x",
        "x ",
        "aux",
        "AUX.txt",
        "dir/con.rs",
        "com1",
        "LPT9.log",
        "nul",
        "a//b",
        "../x",
        "./x",
    ];
    for path in yes {
        assert_eq!(verdict(added(path, "x\n")), Some(Rule::PathName), "{path:?}");
        assert_eq!(verdict(modified(path)), None, "{path:?} was there already");
    }
    for path in [
        "a b",
        "com",
        "com10",
        "console.rs",
        "auxiliary.c",
        ".gitkeep",
        "git~",
        "näïve.txt",
        "日本語",
    ] {
        assert_eq!(verdict(added(path, "x\n")), None, "{path:?}");
    }
    assert_eq!(verdict(added(&"a".repeat(256), "x")), Some(Rule::PathName));
    assert_eq!(verdict(added(&"aa/".repeat(1400), "x")), Some(Rule::PathName));
    let collision = Change { collides_with: Some("README".into()), ..added("readme", "x") };
    assert_eq!(verdict(collision), Some(Rule::PathName));
}

#[test]
fn what_could_not_be_imported_is_refused_by_its_own_rule() {
    let barred =
        Barred { path: "x\u{fffd}".into(), rule: Rule::PathName, detail: "not UTF-8".into() };
    let patch = Patch { barred: vec![barred], ..patch(vec![added("a", "x")]) };
    let refusal = check(&patch, &rules()).unwrap_err();
    assert_eq!((refusal.rule, refusal.path.as_deref()), (Rule::PathName, Some("x\u{fffd}")));
}

#[test]
fn an_ordinary_patch_passes() {
    let changes = vec![modified("src/lib.rs"), added("tests/new.rs", "fn x() {}\n"), deleted("x")];
    assert_eq!(check(&patch(changes), &rules()), Ok(()));
}
