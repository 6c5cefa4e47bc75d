//! Imports of real workspaces, including hostile ones.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::*;
use crate::checkout::Base;
use crate::checkout::testing::{World, git, try_git};
use crate::workspace::testing::as_ordinary_user;
use crate::workspace::{Owner, Workspace};

struct Bench {
    world: World,
    base: Base,
    root: PathBuf,
}

impl Bench {
    async fn new(world: World) -> Self {
        let base = world.fetch().await;
        let root = world.path("workspace");
        base.workspace(&root, Owner::Service).await.unwrap();
        Self { world, base, root }
    }

    async fn with(files: &[(&str, &[u8])]) -> Self {
        Self::new(World::with(files)).await
    }

    fn write(&self, path: &str, content: &[u8]) {
        let file = self.root.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    }

    async fn import(&self) -> Patch {
        self.import_within(&Limits::for_gate(&config::Gate::default())).await
    }

    async fn import_within(&self, limits: &Limits) -> Patch {
        let workspace = Workspace::open(&self.root, Owner::Service).unwrap();
        let patch = import(&workspace, &self.base.mirror, &self.base.commit, limits).await.unwrap();
        git(self.base.mirror.path(), &["fsck", "--strict", "--no-dangling"]);
        patch
    }
}

fn summary(patch: &Patch) -> Vec<(&str, Kind)> {
    patch.changes.iter().map(|change| (change.path.as_str(), change.kind)).collect()
}

fn left_out(patch: &Patch) -> Vec<(&str, Why)> {
    patch.left_out.iter().map(|left| (left.path.as_str(), left.why)).collect()
}

fn blob(bench: &Bench, patch: &Patch, path: &str) -> Vec<u8> {
    let spec = format!("{}:{path}", patch.tree);
    try_git(bench.base.mirror.path(), &["cat-file", "blob", &spec]).stdout
}

#[tokio::test]
async fn an_untouched_workspace_is_an_empty_patch() {
    let world = World::with(&[
        ("a.txt", b"x\r\n"),
        ("d/b.bin", b"\0\xff"),
        (".gitattributes", b"* text eol=crlf\n"),
    ]);
    symlink("a.txt", world.ada().join("link")).unwrap();
    world.commit();
    let bench = Bench::new(world).await;
    let patch = bench.import().await;
    assert!(patch.is_empty(), "{patch:?}");
    let tree =
        git(bench.base.mirror.path(), &["rev-parse", &format!("{}^{{tree}}", bench.base.commit)]);
    assert_eq!(patch.tree.0, tree);
    assert_eq!(patch.text, "");
}

#[tokio::test]
async fn edits_additions_deletions_renames_modes_and_links_are_changes() {
    let bench = Bench::with(&[
        ("edit.txt", b"one\ntwo\nthree\n"),
        ("gone/a.txt", b"bye\n"),
        ("old.txt", b"same\n"),
        ("run.sh", b"#!/bin/sh\n"),
        ("becomes_folder", b"x\n"),
        ("folder/x", b"x\n"),
    ])
    .await;
    bench.write("edit.txt", b"one\n2\nthree\nfour\n");
    std::fs::remove_dir_all(bench.root.join("gone")).unwrap();
    std::fs::rename(bench.root.join("old.txt"), bench.root.join("new.txt")).unwrap();
    std::fs::set_permissions(bench.root.join("run.sh"), PermissionsExt::from_mode(0o777)).unwrap();
    symlink("edit.txt", bench.root.join("link")).unwrap();
    std::fs::remove_file(bench.root.join("becomes_folder")).unwrap();
    bench.write("becomes_folder/inner", b"y\n");
    std::fs::remove_dir_all(bench.root.join("folder")).unwrap();
    bench.write("folder", b"now a file\n");

    let patch = bench.import().await;
    assert_eq!(
        summary(&patch),
        [
            ("becomes_folder", Kind::Deleted),
            ("becomes_folder/inner", Kind::Added),
            ("edit.txt", Kind::Modified),
            ("folder", Kind::Added),
            ("folder/x", Kind::Deleted),
            ("gone/a.txt", Kind::Deleted),
            ("link", Kind::Added),
            ("new.txt", Kind::Added),
            ("old.txt", Kind::Deleted),
            ("run.sh", Kind::Modified),
        ]
    );
    let edit = &patch.changes[2];
    assert_eq!((edit.added, edit.removed, edit.size_bytes), (2, 1, 17));
    assert_eq!(edit.added_bytes, b"2\nfour\n");
    let run = &patch.changes[9];
    assert_eq!((run.old_mode, run.new_mode), (Some(Mode::Regular), Some(Mode::Executable)));
    assert_eq!(patch.changes[6].added_bytes, b"edit.txt");
    let listing = git(bench.base.mirror.path(), &["ls-tree", "-r", &patch.tree.0]);
    let modes: Vec<_> =
        listing.lines().map(|line| (&line[..6], line.split('\t').nth(1).unwrap())).collect();
    assert_eq!(
        modes,
        [
            ("100644", "becomes_folder/inner"),
            ("100644", "edit.txt"),
            ("100644", "folder"),
            ("120000", "link"),
            ("100644", "new.txt"),
            ("100755", "run.sh"),
        ]
    );
    assert!(patch.text.contains("-two\n+2\n"), "{}", patch.text);
}

#[tokio::test]
async fn bytes_cross_as_they_are() {
    let world = World::with(&[("crlf.txt", b"a\r\nb\r\n")]);
    world.write(".gitattributes", b"* text=auto eol=lf\n");
    git(&world.ada(), &["add", ".gitattributes"]);
    git(&world.ada(), &["commit", "--quiet", "-m", "attributes"]);
    world.push();
    let bench = Bench::new(world).await;
    let contents: [(&str, &[u8]); 4] = [
        ("crlf.txt", b"a\r\nb\r\nc\r\n"),
        ("bom.txt", b"\xef\xbb\xbfx\n"),
        ("latin1.txt", b"caf\xe9\r\n"),
        ("no_end", b"no final newline"),
    ];
    for (path, content) in contents {
        bench.write(path, content);
    }
    let patch = bench.import().await;
    for (path, content) in contents {
        assert_eq!(blob(&bench, &patch, path), content, "{path}");
    }
    let crlf = patch.changes.iter().find(|change| change.path == "crlf.txt").unwrap();
    assert_eq!((crlf.added, crlf.removed), (1, 0));
    assert_eq!(crlf.new_endings, Endings { crlf: 3, ..Endings::default() });
}

#[test]
fn line_ends_are_counted() {
    let ends = |lf, crlf, cr| Endings { lf, crlf, cr };
    let cases: [(&[u8], Endings); 6] = [
        (b"", ends(0, 0, 0)),
        (b"a", ends(0, 0, 0)),
        (b"a\nb\r\nc\rd", ends(1, 1, 1)),
        (b"\n\r\n", ends(1, 1, 0)),
        (b"\r\r\n", ends(0, 1, 1)),
        (b"a\r", ends(0, 0, 1)),
    ];
    for (content, expected) in cases {
        assert_eq!(describe::endings(content), expected, "{content:?}");
    }
}

/// To git a mode means one bit, so a patch is the same whoever the service runs as, and whatever the agent closed.
#[test]
fn what_the_agent_closed_is_imported_by_an_ordinary_user_too() {
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tree: &[(&str, &[u8])] = &[("same.txt", b"same\n"), ("a/old.txt", b"old\n")];
    let bench = runtime().block_on(Bench::with(tree));
    bench.write("a/old.txt", b"edited\n");
    bench.write("a/b/new.txt", b"new\n");
    for (path, mode) in [
        ("same.txt", 0o000),
        ("a/old.txt", 0o000),
        ("a/b/new.txt", 0o200),
        ("a/b", 0o000),
        ("a", 0o644),
        ("", 0o644),
    ] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(bench.root.join(path), mode).unwrap();
    }
    let patch = as_ordinary_user(|| runtime().block_on(bench.import()));
    assert_eq!(patch.barred, []);
    assert_eq!(summary(&patch), [("a/b/new.txt", Kind::Added), ("a/old.txt", Kind::Modified)]);
}

#[tokio::test]
async fn a_file_that_the_bot_was_writing_stays_out() {
    let bench = Bench::with(&[(".hyla-1-1.partial", b"tracked\n")]).await;
    bench.write("src/.hyla-4711-12.partial", b"half of a wr");
    bench.write(".hyla-1-1.partial", b"edited\n");
    bench.write(".hyla-x-1.partial", b"named by somebody else\n");
    let patch = bench.import().await;
    assert_eq!(
        summary(&patch),
        [(".hyla-1-1.partial", Kind::Modified), (".hyla-x-1.partial", Kind::Added)]
    );
    assert_eq!(left_out(&patch), [("src/.hyla-4711-12.partial", Why::Partial)]);
}

#[tokio::test]
async fn ignored_files_and_artefacts_stay_out_and_are_listed() {
    let bench = Bench::with(&[
        (".gitignore", b"*.log\n/build/\n!keep.log\n"),
        ("sub/.gitignore", b"local\n"),
        ("Cargo.toml", b"[package]\n"),
        ("build/tracked.txt", b"tracked although ignored\n"),
        ("src/target/real.rs", b"a real folder of that name\n"),
    ])
    .await;
    for path in [
        "a.log",
        "keep.log",
        "sub/local",
        "sub/other",
        "local",
        "build/out.o",
        "target/debug/x",
        "pkg/__pycache__/m.pyc",
        "m.pyc",
        "node_modules/x/i.js",
        "cache/CACHEDIR.TAG",
        "cache/x",
        "src/target/new.rs",
    ] {
        bench.write(path, b"content\n");
    }
    bench.write("build/tracked.txt", b"edited\n");
    // The agent's own rules hide nothing and bring in nothing.
    bench.write(".gitignore", b"secret.txt\n");
    bench.write("secret.txt", b"not hidden\n");

    let patch = bench.import().await;
    assert_eq!(
        summary(&patch),
        [
            (".gitignore", Kind::Modified),
            ("build/tracked.txt", Kind::Modified),
            ("keep.log", Kind::Added),
            ("local", Kind::Added),
            ("secret.txt", Kind::Added),
            ("src/target/new.rs", Kind::Added),
            ("sub/other", Kind::Added),
        ]
    );
    let mut out = left_out(&patch);
    out.sort_by_key(|(path, _)| *path);
    assert_eq!(
        out,
        [
            ("a.log", Why::Ignored),
            ("build/out.o", Why::Ignored),
            ("cache/", Why::Artefact),
            ("m.pyc", Why::Artefact),
            ("node_modules/", Why::Artefact),
            ("pkg/__pycache__/", Why::Artefact),
            ("sub/local", Why::Ignored),
            ("target/", Why::Artefact),
        ]
    );
}

/// Fills the workspace's `.git` with everything that makes git run a program or look elsewhere.
fn poison(bench: &Bench, marker: &Path) {
    let script = bench.world.path("evil");
    std::fs::write(&script, format!("#!/bin/sh\ntouch {}\n", marker.display())).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let touch = script.display().to_string();
    let dot_git = bench.root.join(".git");
    let config = format!(
        "[core]\n\tfsmonitor = {touch}\n\thooksPath = {hooks}\n\tworktree = {elsewhere}\n\tsshCommand = {touch}\n\
         [filter \"evil\"]\n\tclean = {touch}\n\tsmudge = {touch}\n\tprocess = {touch}\n\trequired = true\n\
         [diff]\n\texternal = {touch}\n[diff \"evil\"]\n\ttextconv = {touch}\n\
         [include]\n\tpath = {elsewhere}/more\n[remote \"origin\"]\n\turl = ext::{touch}\n\
         [url \"file:///nonexistent/\"]\n\tinsteadOf = file:///\n\
         [extensions]\n\tworktreeConfig = true\n[submodule \"s\"]\n\turl = {touch}\n\tupdate = !{touch}\n",
        hooks = bench.world.path("hooks").display(),
        elsewhere = bench.world.path("elsewhere").display(),
    );
    std::fs::write(dot_git.join("config"), config).unwrap();
    let more = format!("[core]\n\tworktree = {}\n", bench.world.path("elsewhere").display());
    std::fs::write(dot_git.join("config.worktree"), more).unwrap();
    std::fs::create_dir_all(bench.world.path("elsewhere")).unwrap();
    std::fs::write(bench.world.path("elsewhere/stolen.txt"), "host\n").unwrap();
    std::fs::create_dir_all(bench.world.path("hooks")).unwrap();
    for hook in
        ["pre-commit", "post-checkout", "post-index-change", "reference-transaction", "pre-push"]
    {
        let path = bench.world.path("hooks").join(hook);
        std::fs::write(&path, format!("#!/bin/sh\n{touch}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    std::fs::create_dir_all(dot_git.join("objects/info")).unwrap();
    let alternates = bench.world.ada().join(".git/objects");
    std::fs::write(dot_git.join("objects/info/alternates"), alternates.to_str().unwrap()).unwrap();
    bench.write(".gitattributes", b"* filter=evil diff=evil\n");
    bench.write(".gitmodules", b"[submodule \"s\"]\n\tpath = s\n\turl = ./s\n");
    git(&bench.root.join(".."), &["init", "--quiet", "--bare", "workspace/nested/.git"]);
    bench.write("nested/.git/config", b"[core]\n\tbare = true\n\tfsmonitor = evil\n");
    bench.write("a.txt", b"edited\n");
}

#[tokio::test]
async fn t18_a_poisoned_repository_in_the_workspace_runs_nothing() {
    let bench = Bench::with(&[("a.txt", b"one\n")]).await;
    let marker = bench.world.path("marker");
    poison(&bench, &marker);
    // The poison works: git itself, which the bot does not run there, would run it.
    try_git(&bench.root, &["-c", "core.worktree=.", "status"]);
    assert!(marker.exists(), "the control must show that the poison works");
    std::fs::remove_file(&marker).unwrap();

    let patch = bench.import().await;
    assert!(!marker.exists());
    assert_eq!(
        summary(&patch),
        [(".gitattributes", Kind::Added), (".gitmodules", Kind::Added), ("a.txt", Kind::Modified)]
    );
    assert_eq!(left_out(&patch), [("nested/.git/", Why::NestedGit)]);
    assert_eq!(blob(&bench, &patch, "a.txt"), b"edited\n");
    assert!(!patch.text.contains("stolen"));
}

#[tokio::test]
async fn t18_a_replaced_dot_git_leads_nowhere() {
    let bench = Bench::with(&[("a.txt", b"one\n")]).await;
    let dot_git = bench.root.join(".git");
    let ada = bench.world.ada().join(".git");
    let replacements: [&dyn Fn(); 4] = [
        &|| std::fs::write(&dot_git, format!("gitdir: {}\n", ada.display())).unwrap(),
        &|| symlink(&ada, &dot_git).unwrap(),
        &|| std::fs::create_dir(&dot_git).unwrap(),
        &|| {},
    ];
    for (replace, leads_on) in replacements.into_iter().zip([true, true, false, false]) {
        let _ = std::fs::remove_dir_all(&dot_git);
        let _ = std::fs::remove_file(&dot_git);
        replace();
        // The control: git itself goes where it is sent.
        let found = try_git(&bench.root, &["rev-parse", "--absolute-git-dir"]);
        let place = ada.display().to_string();
        let is_there = String::from_utf8_lossy(&found.stdout).trim() == place;
        assert_eq!(is_there, leads_on, "{found:?}");
        let patch = bench.import().await;
        assert!(patch.is_empty() && patch.left_out.is_empty(), "{patch:?}");
    }
}

#[tokio::test]
async fn nested_repositories_and_special_files_are_left_out_and_look_alikes_are_barred() {
    let bench = Bench::with(&[("a.txt", b"one\n"), ("dir/b.txt", b"two\n")]).await;
    bench.write("vendor/.git/config", b"[core]\n");
    bench.write("vendor/code.c", b"int x;\n");
    bench.write("worktree/.git", b"gitdir: /etc\n");
    bench.write(".GIT/hooks/pre-push", b"#!/bin/sh\n");
    bench.write("git~1", b"x");
    bench.write(".g\u{200c}it/config", b"x");
    std::os::unix::net::UnixListener::bind(bench.root.join("socket")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        bench.root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let patch = bench.import().await;
    assert_eq!(summary(&patch), [("vendor/code.c", Kind::Added)]);
    let barred: Vec<_> =
        patch.barred.iter().map(|barred| (barred.path.as_str(), barred.rule)).collect();
    let name = Rule::PathName;
    assert_eq!(barred, [(".GIT", name), (".g\u{200c}it", name), ("git~1", name)]);
    let mut out = left_out(&patch);
    out.sort_by_key(|(path, _)| *path);
    assert_eq!(
        out,
        [
            ("pipe", Why::Special),
            ("socket", Why::Special),
            ("vendor/.git/", Why::NestedGit),
            ("worktree/.git", Why::NestedGit),
        ]
    );
}

/// None of these is opened, or it would never end: nobody writes to the pipe, and the file has a terabyte.
#[tokio::test]
async fn t17_odd_files_hold_no_import_up() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let bench = Bench::with(&[("a.txt", b"one\n")]).await;
    let begun = std::time::Instant::now();
    // The control: without any of them there is nothing to tell.
    assert!(bench.import().await.is_empty());
    let usual = begun.elapsed();
    mknodat(CWD, bench.root.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    std::os::unix::net::UnixListener::bind(bench.root.join("socket")).unwrap();
    let device = (FileType::CharacterDevice, Mode::RWXU);
    // Endless zeros, where the tests may make them.
    let has_device = mknodat(CWD, bench.root.join("zero"), device.0, device.1, 0x105).is_ok();
    for (name, bytes) in [("line", 1 << 30), ("sparse", 1 << 40)] {
        std::fs::File::create(bench.root.join(name)).unwrap().set_len(bytes).unwrap();
    }
    let begun = std::time::Instant::now();
    let patch = bench.import().await;
    let limit = usual * 3 + std::time::Duration::from_millis(500);
    assert!(begun.elapsed() < limit, "{:?} after {usual:?}", begun.elapsed());
    let barred: Vec<_> = patch.barred.iter().map(|each| (each.path.as_str(), each.rule)).collect();
    assert_eq!(barred, [("line", Rule::TooLarge), ("sparse", Rule::TooLarge)]);
    let special = left_out(&patch).into_iter().filter(|(_, why)| *why == Why::Special).count();
    assert_eq!(special, if has_device { 3 } else { 2 });
}

#[tokio::test]
async fn names_that_are_not_utf8_are_barred_only_when_they_change() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::with(&[("a.txt", b"one\n")]);
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.txt");
    std::fs::write(world.ada().join(name), "old\n").unwrap();
    world.commit();
    let bench = Bench::new(world).await;
    assert!(bench.import().await.is_empty());
    std::fs::write(bench.root.join(name), "new\n").unwrap();
    let patch = bench.import().await;
    assert_eq!(patch.barred[0].rule, Rule::PathName);
    assert_eq!(patch.barred[0].path, "caf\u{fffd}.txt");
    assert!(patch.changes.is_empty() && !patch.is_empty());
    std::fs::remove_file(bench.root.join(name)).unwrap();
    assert_eq!(bench.import().await.barred.len(), 1);
}

#[tokio::test]
async fn large_files_are_barred_without_being_kept_unless_they_are_the_base_commits() {
    let bench = Bench::with(&[("large.bin", &[7; 5000]), ("a.txt", b"one\n")]).await;
    let limits = Limits {
        file_bytes: 1000,
        total_bytes: 3000,
        files: 100,
        entries: 100,
        text_bytes: 1 << 20,
    };
    assert!(bench.import_within(&limits).await.is_empty(), "an untouched large file is no change");

    bench.write("large.bin", &[8; 5000]);
    bench.write("sparse", b"");
    let sparse = std::fs::File::options().write(true).open(bench.root.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let patch = bench.import_within(&limits).await;
    let barred: Vec<_> =
        patch.barred.iter().map(|barred| (barred.path.as_str(), barred.rule)).collect();
    assert_eq!(barred, [("large.bin", Rule::TooLarge), ("sparse", Rule::TooLarge)]);
    assert!(patch.changes.is_empty());

    for n in 0..4 {
        bench.write(&format!("n{n}"), &[b'a'; 900]);
    }
    let patch = bench.import_within(&limits).await;
    assert_eq!(patch.changes.len(), 3, "the fourth is over the total");

    let limits = Limits { entries: 3, ..limits };
    let workspace = Workspace::open(&bench.root, Owner::Service).unwrap();
    let error =
        import(&workspace, &bench.base.mirror, &bench.base.commit, &limits).await.unwrap_err();
    assert!(matches!(error, Error::TooMany { limit: 3 }), "{error:?}");
}

#[tokio::test]
async fn links_are_changes_and_never_followed() {
    let bench = Bench::with(&[("dir/a.txt", b"one\n"), ("dir/b.txt", b"two\n")]).await;
    let outside = bench.world.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("a.txt"), "host secret\n").unwrap();
    std::fs::remove_dir_all(bench.root.join("dir")).unwrap();
    symlink(&outside, bench.root.join("dir")).unwrap();
    let patch = bench.import().await;
    assert_eq!(
        summary(&patch),
        [("dir", Kind::Added), ("dir/a.txt", Kind::Deleted), ("dir/b.txt", Kind::Deleted)]
    );
    assert!(!patch.text.contains("host secret"));
    let rules =
        crate::gate::Rules::new(&config::Gate::default(), &Default::default(), vec![]).unwrap();
    let refusal = crate::gate::check(&patch, &rules).unwrap_err();
    assert_eq!(refusal.rule, Rule::Symlink);
}

#[tokio::test]
async fn submodules_lfs_and_case_are_seen() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n";
    let world = World::with(&[
        (".gitattributes", b"*.psd filter=lfs\n"),
        ("art.psd", pointer),
        ("README", b"x\n"),
        ("Docs/a.md", b"x\n"),
    ]);
    let head = git(&world.ada(), &["rev-parse", "HEAD"]);
    git(&world.ada(), &["update-index", "--add", "--cacheinfo", &format!("160000,{head},module")]);
    git(&world.ada(), &["commit", "--quiet", "-m", "submodule"]);
    world.push();
    let bench = Bench::new(world).await;
    std::fs::remove_dir(bench.root.join("module")).unwrap();
    assert!(bench.import().await.is_empty(), "a submodule's empty folder means nothing");

    bench.write("module", b"a file\n");
    bench.write("art.psd", b"real content");
    bench.write("new.psd", b"real content");
    bench.write("other.bin", pointer);
    bench.write("readme", b"y\n");
    bench.write("docs/b.md", b"y\n");
    let patch = bench.import().await;
    let of = |path: &str| patch.changes.iter().find(|change| change.path == path).unwrap();
    assert_eq!(of("module").old_mode, Some(Mode::Submodule));
    assert_eq!(of("art.psd").lfs, Lfs::Pointer);
    assert_eq!(of("new.psd").lfs, Lfs::Content);
    assert_eq!(of("other.bin").lfs, Lfs::Pointer);
    assert_eq!(of("readme").collides_with.as_deref(), Some("README"));
    assert_eq!(of("docs/b.md").collides_with.as_deref(), Some("Docs"));

    std::fs::remove_file(bench.root.join("module")).unwrap();
    bench.write("module/inside.txt", b"lost\n");
    let patch = bench.import().await;
    assert!(left_out(&patch).contains(&("module/", Why::InSubmodule)));
}

#[tokio::test]
async fn a_very_deep_folder_is_barred_and_the_rest_is_imported() {
    let bench = Bench::with(&[("a.txt", b"one\n")]).await;
    bench.write("a.txt", b"two\n");
    let mut dir: std::os::fd::OwnedFd = std::fs::File::open(&bench.root).unwrap().into();
    for _ in 0..5000 {
        rustix::fs::mkdirat(&dir, "d", rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY;
        dir = rustix::fs::openat(&dir, "d", flags, rustix::fs::Mode::empty()).unwrap();
    }
    let patch = bench.import().await;
    assert_eq!(summary(&patch), [("a.txt", Kind::Modified)]);
    assert_eq!(patch.barred[0].rule, Rule::PathName);
    Workspace::open(&bench.root, Owner::Service).unwrap().remove().unwrap();
}

#[tokio::test]
async fn ten_thousand_added_files_are_within_the_import_and_refused_by_the_gate() {
    let bench = Bench::with(&[("a.txt", b"one\n")]).await;
    for n in 0..10_000 {
        bench.write(&format!("many/d{}/f{n}.txt", n % 100), b"x\n");
    }
    let few = bench.import().await;
    assert_eq!((few.changes.len(), few.barred[0].rule), (1000, Rule::TooLarge));
    let gate = config::Gate { files: 500, ..config::Gate::default() };
    let limits = Limits { text_bytes: 1 << 20, ..Limits::for_gate(&gate) };
    let patch = bench.import_within(&limits).await;
    assert_eq!(patch.changes.len(), 10_000);
    assert!(patch.text.len() <= (1 << 20) + 100);
    let rules =
        crate::gate::Rules::new(&config::Gate::default(), &Default::default(), vec![]).unwrap();
    assert_eq!(crate::gate::check(&patch, &rules).unwrap_err().rule, Rule::TooLarge);
}

#[tokio::test]
async fn an_unreadable_folder_is_barred_and_not_taken_for_deleted() {
    let bench = Bench::with(&[("dir/a.txt", b"one\n"), ("b.txt", b"two\n")]).await;
    if rustix::process::geteuid().is_root() {
        tracing::info!("skipped: root reads everything");
        return;
    }
    for path in ["dir", "b.txt"] {
        std::fs::set_permissions(bench.root.join(path), PermissionsExt::from_mode(0o0)).unwrap();
    }
    let patch = bench.import().await;
    assert!(patch.changes.is_empty(), "{patch:?}");
    let barred: Vec<_> =
        patch.barred.iter().map(|barred| (barred.path.as_str(), barred.rule)).collect();
    assert_eq!(barred, [("b.txt", Rule::FileMode), ("dir", Rule::FileMode)]);
    std::fs::set_permissions(bench.root.join("dir"), PermissionsExt::from_mode(0o755)).unwrap();
}
