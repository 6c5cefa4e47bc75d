//! Workspaces: exact bytes, own objects, and hostile repositories.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::checkout::provide::{Lasting, Limits, copy_history};
use crate::checkout::testing::{World, git, git_as, try_git};
use crate::checkout::{Base, Error};
use crate::job::CommitId;
use crate::workspace::Owner;

async fn provide(world: &World, base: &Base) -> PathBuf {
    let root = world.path("workspace");
    base.workspace(&root, Owner::Service).await.unwrap();
    root
}

fn everything_below(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while next < found.len() {
        if found[next].symlink_metadata().unwrap().is_dir() {
            found.extend(std::fs::read_dir(&found[next]).unwrap().map(|e| e.unwrap().path()));
        }
        next += 1;
    }
    found
}

#[tokio::test]
async fn a_workspace_has_the_exact_bytes_modes_and_links() {
    let files: &[(&str, &[u8])] = &[
        ("crlf.txt", b"one\r\ntwo\r\n"),
        ("bom.txt", b"\xef\xbb\xbfone\n"),
        ("latin1.txt", b"caf\xe9\n"),
        ("mixed.txt", b"a\nb\r\nc\rd"),
        ("empty", b""),
        ("deep/er/bin", b"\0\x01\x02"),
        ("ident.txt", b"$Id$\n"),
        ("wide.txt", b"\xff\xfea\0\n\0"),
        ("big.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n"),
    ];
    let world = World::with(files);
    world.write("run.sh", b"#!/bin/sh\n");
    std::fs::set_permissions(world.ada().join("run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("deep/er", world.ada().join("link")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", world.ada().join("outside")).unwrap();
    world.commit();
    // The attributes come last, so that the blobs above hold the bytes as they are.
    world.write(
        ".gitattributes",
        b"*.txt text eol=crlf ident filter=evil\n*.bin filter=lfs diff=lfs -text\nwide.txt working-tree-encoding=UTF-16\n",
    );
    git(&world.ada(), &["add", ".gitattributes"]);
    git(&world.ada(), &["commit", "--quiet", "-m", "attributes"]);
    world.push();

    let base = world.fetch().await;
    let root = provide(&world, &base).await;
    for (path, content) in files {
        assert_eq!(std::fs::read(root.join(path)).unwrap(), *content, "{path}");
        assert_eq!(root.join(path).metadata().unwrap().mode() & 0o7777, 0o644);
    }
    assert_eq!(root.join("run.sh").metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(std::fs::read_link(root.join("link")).unwrap(), Path::new("deep/er"));
    assert_eq!(std::fs::read_link(root.join("outside")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(git(&root, &["status", "--porcelain"]), "");
    // Files that git must read again still show no difference, whatever the attributes say.
    for (path, content) in files {
        std::fs::remove_file(root.join(path)).unwrap();
        std::fs::write(root.join(path), content).unwrap();
    }
    assert_eq!(git(&root, &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn t22_the_repository_in_a_workspace_is_its_own() {
    let world = World::with(&[("a.txt", b"one\n")]);
    world.write("a.txt", b"two\n");
    world.commit();
    let base = world.fetch().await;
    let root = provide(&world, &base).await;
    assert_eq!(git(&root, &["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(git(&root, &["rev-parse", "HEAD"]), base.commit.0);
    assert_eq!(git(&root, &["log", "--oneline"]).lines().count(), 2);
    assert_eq!(git(&root, &["remote"]), "");
    git(&root, &["fsck", "--strict"]);
    git(&root, &["blame", "a.txt"]);
    assert!(!root.join(".git/objects/info/alternates").exists());
    assert!(!root.join(".git/hooks").exists());
    for path in everything_below(&root) {
        let metadata = path.symlink_metadata().unwrap();
        assert!(metadata.is_dir() || metadata.nlink() == 1, "{} is linked", path.display());
        assert_eq!(metadata.mode() & 0o022, 0, "{} is open to others", path.display());
        if metadata.is_file() && path.components().any(|c| c.as_os_str() == ".git") {
            let content = std::fs::read(&path).unwrap();
            let mirror = world.path("mirrors").display().to_string();
            assert!(!String::from_utf8_lossy(&content).contains(&mirror), "{}", path.display());
        }
    }
    std::fs::write(root.join("a.txt"), "three\n").unwrap();
    git(&root, &["commit", "--quiet", "-am", "the agent may commit"]);
}

#[tokio::test]
async fn t22_an_agent_that_destroys_its_objects_does_not_reach_the_mirror() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let base = world.fetch().await;
    let root = provide(&world, &base).await;
    // The control: git's own clone of a folder shares its objects, and what destroys those destroys the origin.
    git(world.dir.path(), &["clone", "--quiet", "--bare", "forge.git", "origin.git"]);
    git(world.dir.path(), &["clone", "--quiet", "--local", "origin.git", "careless"]);
    assert!(destroy_objects(&world.path("careless/.git/objects")) > 0);
    assert!(!try_git(&world.path("origin.git"), &["fsck", "--strict"]).status.success());

    assert!(destroy_objects(&root.join(".git/objects")) > 0);
    git(base.mirror.path(), &["fsck", "--strict"]);
    for path in everything_below(&base.mirror.path().join("objects")) {
        let metadata = path.symlink_metadata().unwrap();
        assert!(metadata.is_dir() || metadata.nlink() == 1, "{} is linked", path.display());
    }
}

/// Overwrites every object below a folder. Returns how many there were.
fn destroy_objects(objects: &Path) -> usize {
    let files = everything_below(objects).into_iter().filter(|path| path.is_file());
    files
        .map(|path| {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            std::fs::write(&path, "rubbish").unwrap();
        })
        .count()
}

#[tokio::test]
async fn history_is_cut_at_its_limit_of_commits_and_git_accepts_the_cut() {
    let world = World::with(&[("a.txt", b"one\n")]);
    for n in 0..4 {
        world.write("a.txt", format!("{n}\n").as_bytes());
        world.commit();
    }
    let base = world.fetch().await;
    let into = world.path("cut.git");
    git(world.dir.path(), &["init", "--quiet", "--bare", "cut.git"]);
    let tip = git2::Oid::from_str(&base.commit.0).unwrap();
    let limits = Limits { n_commits: 3, bytes: u64::MAX };
    copy_history(&base.mirror.open().unwrap(), tip, &into, limits, Lasting::No).unwrap();
    git(&into, &["update-ref", "refs/heads/main", &base.commit.0]);
    git(&into, &["fsck", "--strict"]);
    assert_eq!(git(&into, &["log", "--oneline", "main"]).lines().count(), 3);
}

/// Makes a commit whose tree git's own commands would not make.
fn commit_of_tree(world: &World, entries: &[(&str, &str, &str)]) -> CommitId {
    let mut tree = Vec::new();
    for (mode, name, id) in entries {
        tree.extend_from_slice(format!("{mode} {name}\0").as_bytes());
        tree.extend_from_slice(&hex::decode(id).unwrap());
    }
    let file = world.path("tree");
    std::fs::write(&file, tree).unwrap();
    let path = file.to_str().unwrap();
    let tree = git(&world.ada(), &["hash-object", "-w", "-t", "tree", "--literally", path]);
    let commit = git(&world.ada(), &["commit-tree", &tree, "-m", "hostile"]);
    git(&world.ada(), &["reset", "--quiet", "--soft", &commit]);
    world.push();
    CommitId(commit)
}

#[tokio::test]
async fn a_hostile_tree_is_refused_and_leaves_nothing() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let out = world.path("out");
    let blob = git(&world.ada(), &["hash-object", "-w", "a.txt"]);
    std::fs::write(world.path("target"), out.to_str().unwrap()).unwrap();
    let link = git(&world.ada(), &["hash-object", "-w", "../target"]);
    let folder = git(&world.ada(), &["rev-parse", "HEAD^{tree}"]);
    std::fs::create_dir(&out).unwrap();
    let cases: &[&[(&str, &str, &str)]] = &[
        &[("40000", ".git", &folder)],
        &[("40000", ".GIT", &folder)],
        &[("100644", ".git", &blob)],
        &[("40000", "..", &folder)],
        &[("100644", "../out/evil", &blob)],
        &[("120000", "x", &link), ("40000", "x", &folder)],
        &[("120000", "x", &link), ("100644", "x", &blob)],
    ];
    for entries in cases {
        let commit = commit_of_tree(&world, entries);
        let base = world.fetch().await;
        assert_eq!(base.commit, commit);
        let root = world.path("hostile");
        let error = base.workspace(&root, Owner::Service).await.unwrap_err();
        assert!(matches!(error, Error::UnsafeTree { .. }), "{entries:?}: {error:?}");
        assert!(!root.exists(), "{entries:?}");
        assert_eq!(out.read_dir().unwrap().count(), 0, "{entries:?}");
    }
}

#[tokio::test]
async fn submodules_stay_empty_and_their_settings_run_nothing() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let marker = world.path("marker");
    let modules = format!(
        "[submodule \"s\"]\n\tpath = s\n\turl = ext::sh -c touch% {0}\n\tupdate = !touch {0}\n",
        marker.display()
    );
    world.write(".gitmodules", modules.as_bytes());
    git(&world.ada(), &["add", "."]);
    let head = git(&world.ada(), &["rev-parse", "HEAD"]);
    git(&world.ada(), &["update-index", "--add", "--cacheinfo", &format!("160000,{head},s")]);
    git(&world.ada(), &["commit", "--quiet", "-m", "submodule"]);
    world.push();
    let base = world.fetch().await;
    let root = provide(&world, &base).await;
    assert_eq!(root.join("s").read_dir().unwrap().count(), 0);
    // Even git itself, which the bot does not run here, only refuses such settings.
    try_git(&root, &["status", "--porcelain"]);
    assert!(!marker.exists());
}

#[tokio::test]
async fn files_belong_to_the_sandbox_user_when_the_service_is_root() {
    if !rustix::process::geteuid().is_root() {
        tracing::info!("skipped: only root can give files away");
        return;
    }
    let world = World::with(&[("dir/a.txt", b"one\n")]);
    std::os::unix::fs::symlink("dir", world.ada().join("link")).unwrap();
    world.commit();
    let base = world.fetch().await;
    let root = world.path("given");
    let owner = Owner::Sandbox { uid: 54_321, gid: 54_322 };
    base.workspace(&root, owner).await.unwrap();
    for path in everything_below(&root) {
        let metadata = path.symlink_metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (54_321, 54_322), "{}", path.display());
    }
    assert!(try_git(&root, &["status", "--porcelain"]).stdout.is_empty());

    // That user works in it as its owner, whom nothing shields from the other files of the test.
    std::fs::set_permissions(world.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let theirs = |arguments: &[&str]| {
        let output = git_as(54_321, 54_322, &root, arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(theirs(&["status", "--porcelain"]), "");
    theirs(&["mv", "dir/a.txt", "dir/b.txt"]);
    theirs(&["commit", "--quiet", "-m", "by the agent"]);
    theirs(&["gc", "--quiet", "--prune=now"]);
    theirs(&["fsck", "--strict", "--full"]);
    assert_eq!(theirs(&["log", "--oneline", "--follow", "dir/b.txt"]).lines().count(), 2);
}

#[tokio::test]
async fn ten_thousand_files_are_checked_out() {
    let world = World::new();
    for n in 0..10_000 {
        world.write(&format!("d{}/f{n}.txt", n % 100), format!("{n}\n").as_bytes());
    }
    world.commit();
    let base = world.fetch().await;
    let root = provide(&world, &base).await;
    assert_eq!(git(&root, &["ls-files"]).lines().count(), 10_000);
    assert_eq!(git(&root, &["status", "--porcelain"]), "");
}
