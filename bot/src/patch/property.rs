//! Random workspaces, imported for real and judged: what the gate lets pass is looked at by git, and by rules that are
//! written down here once more. What an agent wrote and nothing refuses is in the tree, byte for byte.

use std::cell::Cell;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::checkout::testing::{World, git, try_git};
use crate::gate;
use crate::workspace::{Owner, Workspace};

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n";
const PATHS: [&str; 22] = [
    "a.txt",
    "crlf.txt",
    "run.sh",
    "art.psd",
    "link",
    "dir/b.txt",
    "dir",
    "new.txt",
    "dir/new.rs",
    "new.psd",
    ".gitattributes",
    ".github/workflows/x.yml",
    "CODEOWNERS",
    "dir/.git/config",
    ".GIT/config",
    "git~1/x",
    "A.txt",
    "aux.c",
    "dir/end.",
    "x\u{202e}y",
    "tab\tname",
    "node_modules/x.js",
];
const TARGETS: [&str; 6] =
    ["a.txt", "dir/b.txt", "/etc/passwd", "../out", ".git/config", "../../.."];

#[derive(Debug, Clone)]
enum Act {
    Write(&'static str, Vec<u8>),
    Remove(&'static str),
    Mode(&'static str, u32),
    Link(&'static str, &'static str),
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => "[ -~é\n]{0,200}".prop_map(String::into_bytes),
        1 => Just(b"one\r\ntwo\r\n".to_vec()),
        1 => Just(b"one\ntwo\n".to_vec()),
        1 => Just(b"#!/bin/sh\necho\n".to_vec()),
        1 => Just(POINTER.to_vec()),
        1 => Just(b"a\0b".to_vec()),
        1 => Just(b"\xff\xfe latin \xe9\n".to_vec()),
        1 => Just(b"key = AKIAABCDEFGHIJKLMNOP\n".to_vec()),
        1 => Just(b"the own-secret-of-tests is here\n".to_vec()),
        1 => Just(b"x\n".repeat(6000)),
        1 => Just(vec![b'x'; (1 << 20) + 1]),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let path = || prop_oneof![3 => prop::sample::select(&PATHS[..10]), 1 => prop::sample::select(&PATHS[..])];
    prop_oneof![
        6 => (path(), content()).prop_map(|(path, content)| Act::Write(path, content)),
        1 => path().prop_map(Act::Remove),
        1 => (path(), prop::sample::select(&[0o644, 0o755, 0o600, 0o4755][..])).prop_map(|(path, mode)| Act::Mode(path, mode)),
        1 => (path(), prop::sample::select(&TARGETS[..])).prop_map(|(path, target)| Act::Link(path, target)),
    ]
}

/// Does it as an agent would, who cares for no error. It passes through no link: they may lead out of the test's folder.
fn carry_out(root: &Path, act: &Act) {
    let clear = |path: &Path| {
        let mut above = path.ancestors().skip(1).take_while(|folder| *folder != root);
        if above.any(Path::is_symlink) {
            return false;
        }
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_dir_all(path);
        path.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok())
    };
    let _ = match act {
        Act::Write(path, content) if clear(&root.join(path)) => {
            std::fs::write(root.join(path), content)
        }
        Act::Link(path, target) if clear(&root.join(path)) => symlink(target, root.join(path)),
        Act::Remove(path) => {
            clear(&root.join(path));
            Ok(())
        }
        Act::Mode(path, mode) if !root.join(path).is_symlink() && root.join(path).is_file() => {
            std::fs::set_permissions(root.join(path), PermissionsExt::from_mode(*mode))
        }
        Act::Write(..) | Act::Link(..) | Act::Mode(..) => Ok(()),
    };
}

fn base_files() -> World {
    let world = World::with(&[
        ("a.txt", b"one\ntwo\n"),
        ("crlf.txt", b"one\r\ntwo\r\n"),
        ("run.sh", b"#!/bin/sh\n"),
        ("art.psd", POINTER),
        ("dir/b.txt", b"b\n"),
        (".gitattributes", b"*.psd filter=lfs\n"),
        (".gitignore", b"node_modules/\n"),
    ]);
    std::fs::set_permissions(world.ada().join("run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("a.txt", world.ada().join("link")).unwrap();
    world.commit();
    world
}

/// What the rules say of one entry of the resulting tree, in words of this test.
fn is_publishable(path: &str, old: Option<(&str, &[u8])>, new: Option<(&str, &[u8])>) -> bool {
    let low = path.to_lowercase();
    let is_protected =
        low.starts_with(".github/") || low == "codeowners" || low.ends_with(".gitattributes");
    let is_odd = low
        .split('/')
        .any(|part| matches!(part, ".git" | "git~1" | "aux.c") || part.ends_with('.'))
        || path.contains(['\u{202e}', '\t']);
    // Git passes no link through a filter.
    let is_large = low.ends_with(".psd") && new.is_some_and(|(mode, _)| mode != "120000");
    if is_protected || (old.is_none() && is_odd) || is_large {
        return false;
    }
    let Some((mode, bytes)) = new else { return true };
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    let may_be = match (old.map(|(mode, _)| mode), mode) {
        (_, "160000") => false,
        (None | Some("120000"), "120000") => {
            matches!(bytes, b"a.txt" | b"dir/b.txt") || bytes == b"../out" && path.contains('/')
        }
        (Some(old), new) if old == new => true,
        (Some("100644"), "100755") => bytes.starts_with(b"#!"),
        (None, _) => true,
        (Some(_), _) => false,
    };
    let is_clean = !has(b"\0") && !has(b"AKIAABCDEFGHIJKLMNOP") && !has(b"own-secret-of-tests");
    let n_lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    let old_ends = old.and_then(|(_, old)| ends(old));
    let keeps_ends = old_ends.is_none() || ends(bytes).is_none() || old_ends == ends(bytes);
    may_be
        && is_clean
        && keeps_ends
        && bytes.len() <= 1 << 20
        && n_lines <= 5000
        && !bytes.starts_with(b"version https://git-lfs")
}

/// Whether more than half of at least two lines end in CRLF, or in LF.
fn ends(text: &[u8]) -> Option<bool> {
    let n_lines = text.iter().filter(|byte| **byte == b'\n').count();
    let n_crlf = text.windows(2).filter(|pair| *pair == b"\r\n").count();
    match n_lines {
        0 | 1 => None,
        _ if n_crlf * 2 > n_lines => Some(true),
        _ => (n_crlf * 2 < n_lines).then_some(false),
    }
}

/// What is at a path of a tree: mode and content.
fn entry(mirror: &Path, tree: &str, path: &str) -> Option<(String, Vec<u8>)> {
    let listed = try_git(mirror, &["ls-tree", "-z", "--full-tree", tree, "--", path]).stdout;
    let line = String::from_utf8_lossy(listed.strip_suffix(b"\0")?).into_owned();
    let (head, _) = line.split_once('\t')?;
    let mut words = head.split(' ');
    let (mode, kind, id) = (words.next()?.to_owned(), words.next()?, words.next()?);
    (kind == "blob").then(|| (mode, try_git(mirror, &["cat-file", "blob", id]).stdout))
}

#[test]
#[expect(clippy::too_many_lines, reason = "one case, from the acts to what git says of it")]
fn what_passes_the_gate_is_publishable_and_whole() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let world = base_files();
    let base = runtime.block_on(world.fetch());
    let mirror = base.mirror.path();
    let rules = gate::Rules::new(
        &config::Gate::default(),
        &config::RepoFile::default(),
        vec![String::from("own-secret-of-tests").into()],
    )
    .unwrap();
    let root = world.path("workspace");
    let mut runner =
        TestRunner::new(Config { cases: 100, failure_persistence: None, ..Config::default() });
    let (n_passed, n_refused) = (Cell::new(0), Cell::new(0));
    let judged = runner.run(&prop::collection::vec(act(), 1..6), |acts| {
        let _ = std::fs::remove_dir_all(&root);
        runtime.block_on(base.workspace(&root, Owner::Service)).unwrap();
        for act in &acts {
            carry_out(&root, act);
        }
        let workspace = Workspace::open(&root, Owner::Service).unwrap();
        let limits = Limits::for_gate(&config::Gate::default());
        let patch =
            runtime.block_on(import(&workspace, &base.mirror, &base.commit, &limits)).unwrap();
        if let Err(refusal) = gate::check(&patch, &rules) {
            // Whatever is refused, some change of it is one that may not be published.
            let named = refusal.path.as_deref().unwrap_or_default();
            let is_bad = |change: &Change| {
                let (old, new) = (
                    entry(mirror, &base.commit.0, &change.path),
                    entry(mirror, &patch.tree.0, &change.path),
                );
                fn as_ref(entry: &Option<(String, Vec<u8>)>) -> Option<(&str, &[u8])> {
                    entry.as_ref().map(|(mode, bytes)| (mode.as_str(), bytes.as_slice()))
                }
                !is_publishable(&change.path, as_ref(&old), as_ref(&new))
                    // Bytes that are no letters any more, and folders that were replaced, have their own rules.
                    || change.encoding != Encoding::Kept || change.collides_with.is_some()
            };
            let is_named = patch.barred.iter().any(|barred| barred.path == named)
                || patch
                    .changes
                    .iter()
                    .any(|change| (named.is_empty() || change.path == named) && is_bad(change))
                || named.is_empty() && patch.n_lines() > 5000;
            prop_assert!(is_named, "{refusal:?} of {:?}", patch.changes);
            n_refused.set(n_refused.get() + 1);
            return Ok(());
        }
        n_passed.set(n_passed.get() + 1);
        let is_there = |path: &str| entry(mirror, &patch.tree.0, path).is_some();
        prop_assert!(!is_there("a.txt") || !is_there("A.txt"));
        for change in &patch.changes {
            let old = entry(mirror, &base.commit.0, &change.path);
            let new = entry(mirror, &patch.tree.0, &change.path);
            let (old, new) = (
                old.as_ref().map(|(mode, bytes)| (mode.as_str(), bytes.as_slice())),
                new.as_ref().map(|(mode, bytes)| (mode.as_str(), bytes.as_slice())),
            );
            prop_assert!(is_publishable(&change.path, old, new), "{:?}", change);
        }
        for path in
            PATHS.iter().filter(|path| !path.starts_with("node_modules") && !path.contains(".git/"))
        {
            let file = root.join(path);
            let there = std::fs::symlink_metadata(&file).ok().filter(|found| !found.is_dir());
            let content = there.map(|found| match found.is_symlink() {
                true => std::fs::read_link(&file).unwrap().into_os_string().into_encoded_bytes(),
                false => std::fs::read(&file).unwrap(),
            });
            let published = entry(mirror, &patch.tree.0, path).map(|(_, bytes)| bytes);
            prop_assert_eq!(content, published, "{}", path);
        }
        Ok(())
    });
    judged.unwrap();
    assert!(
        n_passed.get() > 0 && n_refused.get() > 0,
        "{n_passed:?} passed, {n_refused:?} refused"
    );
    git(mirror, &["fsck", "--strict", "--no-dangling"]);
}
