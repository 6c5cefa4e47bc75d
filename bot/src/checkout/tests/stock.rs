//! What workspaces are made from: packed once for a job, whole after a crash, and no more in a workspace than its commit needs.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use git2::Oid;

use crate::checkout::provide::{Lasting, Limits, copy_history};
use crate::checkout::testing::{World, git};
use crate::checkout::{Base, Error, Stock};
use crate::job::CommitId;
use crate::workspace::Owner;

async fn workspace(world: &World, stock: &Stock, commit: &str, name: &str) -> PathBuf {
    let root = world.path(name);
    stock.workspace(&CommitId(commit.into()), &root, Owner::Service).await.unwrap();
    root
}

/// The ids of all objects in a repository, reachable or not.
fn objects(dir: &Path) -> BTreeSet<String> {
    let check = "--batch-check=%(objectname)";
    let all = git(dir, &["cat-file", "--batch-all-objects", "--unordered", check]);
    all.lines().map(str::to_owned).collect()
}

/// The ids of all objects that a commit needs.
fn needs(dir: &Path, commit: &str) -> BTreeSet<String> {
    let all = git(dir, &["rev-list", "--objects", "--no-object-names", commit]);
    all.lines().map(str::to_owned).collect()
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn packs(git: &Path) -> Vec<PathBuf> {
    files_in(&git.join("objects/pack"))
}

/// A commit in the mirror, on the base, under no ref.
fn child(base: &Base, path: &str, content: &str) -> String {
    let mirror = base.mirror.open().unwrap();
    let parent = mirror.find_commit(Oid::from_str(&base.commit.0).unwrap()).unwrap();
    let blob = mirror.blob(content.as_bytes()).unwrap();
    let mut tree = mirror.treebuilder(Some(&parent.tree().unwrap())).unwrap();
    tree.insert(path, blob, 0o100_644).unwrap();
    let tree = mirror.find_tree(tree.write().unwrap()).unwrap();
    let by = git2::Signature::new("Hyla", "hyla@localhost", &parent.time()).unwrap();
    mirror.commit(None, &by, &by, "for a test run\n", &tree, &[&parent]).unwrap().to_string()
}

/// A repository with a merge, and with files of all kinds and of sizes that take several bytes to write down.
fn varied() -> World {
    let text = "a line that compresses well\n".repeat(10_000);
    let noise: Vec<u8> =
        (0..400_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    let world = World::with(&[
        ("empty", b""),
        ("deep/er/bin", b"\0\x01\x02\xff"),
        ("deep/text.txt", text.as_bytes()),
        ("noise", &noise),
    ]);
    world.write("deep/text.txt", format!("{text}more\n").as_bytes());
    world.commit();
    git(&world.ada(), &["checkout", "--quiet", "-b", "side", "HEAD~1"]);
    world.write("side.txt", b"side\n");
    world.commit();
    git(&world.ada(), &["checkout", "--quiet", "main"]);
    git(&world.ada(), &["merge", "--quiet", "--no-edit", "side"]);
    world.push();
    world
}

#[tokio::test]
async fn real_git_finds_nothing_wrong_with_a_workspace() {
    let world = varied();
    let base = world.fetch().await;
    let stock = base.stock(world.path("stock"));
    let child = child(&base, "side.txt", "two sides\n");
    for (commit, n_commits) in [(base.commit.0.as_str(), 4), (child.as_str(), 5)] {
        let root = workspace(&world, &stock, commit, &format!("at-{n_commits}")).await;
        let said = git(&root, &["fsck", "--strict", "--full"]);
        assert_eq!(said, "");
        for index in packs(&root.join(".git"))
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == "idx"))
        {
            git(&root, &["verify-pack", "-v", index.to_str().unwrap()]);
        }
        let log = git(&root, &["log", "--oneline", "--stat"]);
        assert_eq!(log.lines().filter(|line| !line.starts_with(' ')).count(), n_commits);
        assert!(git(&root, &["blame", "deep/text.txt"]).ends_with("more"));
        assert_eq!(git(&root, &["status", "--porcelain"]), "");
        std::fs::write(root.join("empty"), "no more\n").unwrap();
        git(&root, &["commit", "--quiet", "-am", "the agent may commit"]);
        git(&root, &["gc", "--quiet", "--prune=now"]);
        assert_eq!(git(&root, &["fsck", "--strict", "--full"]), "");
        assert_eq!(git(&root, &["log", "--oneline"]).lines().count(), n_commits + 1);
    }
}

#[tokio::test]
async fn status_reads_no_file_again() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let base = world.fetch().await;
    let root = workspace(&world, &base.stock(world.path("stock")), &base.commit.0, "root").await;
    // Only the bytes differ then, so that only reading them would show it. A file as young as the index is read in any case.
    let (file, written) = (root.join("a.txt"), root.join("a.txt").metadata().unwrap().modified());
    std::fs::write(&file, "two\n").unwrap();
    let open = |path| std::fs::File::options().write(true).open(path).unwrap();
    open(file).set_modified(written.unwrap()).unwrap();
    let later = SystemTime::now() + Duration::from_secs(60);
    open(root.join(".git/index")).set_modified(later).unwrap();
    let status = ["-c", "core.trustCtime=false", "status", "--porcelain"];
    assert_eq!(git(&root, &status), "");
}

#[tokio::test]
async fn a_workspace_holds_what_its_commit_needs_and_nothing_else() {
    let world = World::with(&[("a.txt", b"one\n")]);
    world.write("secret.txt", b"of a branch that is gone\n");
    world.commit();
    let other = world.fetch().await;
    git(&world.ada(), &["reset", "--quiet", "--hard", "HEAD~1"]);
    world.write("b.txt", b"two\n");
    world.commit();
    let base = world.fetch().await;
    let mirror = base.mirror.path();
    assert!(objects(mirror).contains(&other.commit.0), "the mirror still has the other branch");

    let stock = base.stock(world.path("stock"));
    let (patched, brought) = (child(&base, "a.txt", "fixed\n"), child(&base, "t.txt", "test\n"));
    for commit in [&base.commit.0, &patched, &brought] {
        let root = workspace(&world, &stock, commit, commit).await;
        assert_eq!(objects(&root), needs(mirror, commit));
        for file in packs(&root.join(".git")) {
            assert_eq!(file.metadata().unwrap().nlink(), 1, "{}", file.display());
        }
    }
}

#[tokio::test]
async fn the_base_is_packed_once_for_all_workspaces() {
    let world = varied();
    let base = world.fetch().await;
    let stock = base.stock(world.path("stock"));
    let first = workspace(&world, &stock, &base.commit.0, "first").await;
    let kept = world.path("stock").join(format!("{}.git", base.commit.0));
    let inodes = || packs(&kept).iter().map(|file| file.metadata().unwrap().ino()).collect();
    let before: Vec<u64> = inodes();
    let patched = child(&base, "a.txt", "fixed\n");
    let second = workspace(&world, &stock, &patched, "second").await;
    assert_eq!(inodes(), before);

    let in_first: BTreeSet<_> = objects(&first);
    assert_eq!(objects(&second).difference(&in_first).count(), 3, "a commit, a tree and a file");
    let content = |file: &PathBuf| (file.file_name().map(Into::into), std::fs::read(file).unwrap());
    let of_second: BTreeSet<(Option<PathBuf>, _)> =
        packs(&second.join(".git")).iter().map(content).collect();
    assert_eq!(of_second.len(), 4, "two packs, each with its index");
    assert!(packs(&first.join(".git")).iter().map(content).all(|file| of_second.contains(&file)));
}

#[tokio::test]
async fn what_a_crash_left_of_a_stock_does_not_matter() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let earlier = world.fetch().await;
    let folder = world.path("stock");
    workspace(&world, &earlier.stock(folder.clone()), &earlier.commit.0, "earlier").await;
    world.write("a.txt", b"two\n");
    world.commit();
    let base = world.fetch().await;
    // As far as a process came that died while it filled the stock.
    let growing = folder.join(format!("{}.new/objects/pack", base.commit.0));
    std::fs::create_dir_all(&growing).unwrap();
    std::fs::write(growing.join("pack_new_half"), "PACK").unwrap();

    let stock = base.stock(folder.clone());
    let root = workspace(&world, &stock, &base.commit.0, "resumed").await;
    assert_eq!(std::fs::read(root.join("a.txt")).unwrap(), b"two\n");
    assert_eq!(objects(&root), needs(base.mirror.path(), &base.commit.0));
    assert_eq!(packs(&root.join(".git")).len(), 2, "one pack and its index");
    git(&root, &["fsck", "--strict", "--full"]);
    let names = [&base.commit, &earlier.commit].map(|commit| folder.join(format!("{commit}.git")));
    assert_eq!(files_in(&folder).into_iter().collect::<BTreeSet<_>>(), names.into());
}

#[tokio::test]
async fn history_is_cut_at_its_limit_of_bytes_and_git_accepts_the_cut() {
    let world = World::with(&[("a.txt", b"one\n")]);
    for n in 0..4_u8 {
        world.write("a.txt", &vec![n; 10_000]);
        world.commit();
    }
    let base = world.fetch().await;
    // A commit here has 10,000 bytes of content, and some hundred of its own and of its tree. The newest does not count.
    for (bytes, n_commits) in [(0, 1), (10_000, 1), (10_500, 2), (20_000, 2), (21_000, 3)] {
        let name = format!("cut-at-{bytes}.git");
        git(world.dir.path(), &["init", "--quiet", "--bare", &name]);
        let (into, limits) = (world.path(&name), Limits { n_commits: 10, bytes });
        let tip = Oid::from_str(&base.commit.0).unwrap();
        copy_history(&base.mirror.open().unwrap(), tip, &into, limits, Lasting::No).unwrap();
        git(&into, &["update-ref", "refs/heads/main", &base.commit.0]);
        assert_eq!(git(&into, &["fsck", "--strict", "--full"]), "");
        assert_eq!(git(&into, &["log", "--oneline", "main"]).lines().count(), n_commits);
        assert_eq!(objects(&into), needs(&into, "main"), "{bytes}");
    }
}

#[tokio::test]
async fn the_cut_of_a_stock_is_the_cut_of_its_workspaces() {
    let world = World::with(&[("a.txt", b"one\n")]);
    for n in 0..3 {
        world.write("a.txt", format!("{n}\n").as_bytes());
        world.commit();
    }
    let url = format!("file://{}", world.path("forge.git").display());
    git(world.dir.path(), &["clone", "--quiet", "--depth", "2", &url, "shallow"]);
    let base = world.mirrors.adopt_local(&world.path("shallow")).await.unwrap().base;
    let stock = base.stock(world.path("stock"));
    let patched = child(&base, "a.txt", "fixed\n");
    for (commit, n_commits) in [(&base.commit.0, 2), (&patched, 3)] {
        let root = workspace(&world, &stock, commit, commit).await;
        git(&root, &["fsck", "--strict", "--full"]);
        assert_eq!(git(&root, &["log", "--oneline"]).lines().count(), n_commits);
    }
}

#[tokio::test]
async fn an_object_that_is_not_what_its_id_says_is_not_passed_on() {
    let world = World::with(&[("a.txt", b"one\n"), ("b.txt", b"two\n")]);
    let place = |path: &str| {
        let id = git(&world.ada(), &["rev-parse", &format!("HEAD:{path}")]);
        world.ada().join(".git/objects").join(&id[..2]).join(&id[2..])
    };
    std::fs::remove_file(place("a.txt")).unwrap();
    std::fs::copy(place("b.txt"), place("a.txt")).unwrap();
    let error = world.mirrors.adopt_local(&world.ada()).await.unwrap_err();
    assert!(matches!(error, Error::Mirror { .. }), "{error:?}");
    let mirror = files_in(&world.path("mirrors/%local"));
    let mirror = mirror.iter().find(|path| path.extension().is_some_and(|e| e == "git")).unwrap();
    assert_eq!(packs(mirror), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn adopting_again_copies_only_what_is_new() {
    let world = World::with(&[("a.txt", b"one\n"), ("b/c.txt", b"two\n")]);
    world.mirrors.adopt_local(&world.ada()).await.unwrap();
    world.write("a.txt", b"three\n");
    world.commit();
    let base = world.mirrors.adopt_local(&world.ada()).await.unwrap().base;
    git(base.mirror.path(), &["fsck", "--strict", "--full"]);
    let counts = git(base.mirror.path(), &["count-objects", "-v"]);
    // Two commits, two root trees, one tree below, and three files.
    assert!(counts.contains("in-pack: 8\n") && counts.contains("packs: 2\n"), "{counts}");
}
