//! Commits, pushes and local branches against real repositories.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::checkout::Base;
use crate::checkout::testing::http::serve;
use crate::checkout::testing::{World, git, remote, try_git};
use crate::job::Failure;
use crate::patch::{Limits, import};
use crate::workspace::{Owner, Workspace};

struct Bench {
    world: World,
    base: Base,
    patch: Patch,
}

async fn bench() -> Bench {
    let world = World::with(&[("a.txt", b"one\n"), ("b/c.txt", b"c\n")]);
    let base = world.fetch().await;
    let patch = edit(&world, &base, "two\n").await;
    Bench { world, base, patch }
}

async fn edit(world: &World, base: &Base, content: &str) -> Patch {
    let root = world.path("workspace");
    base.workspace(&root, Owner::Service).await.unwrap();
    std::fs::write(root.join("a.txt"), content).unwrap();
    let workspace = Workspace::open(&root, Owner::Service).unwrap();
    let limits = Limits::for_gate(&config::Gate::default());
    let patch = import(&workspace, &base.mirror, &base.commit, &limits).await.unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    patch
}

fn author() -> Author {
    let name = "Hyla".into();
    Author { name, email: "hyla@example.org".into(), signs_off: false, signer: None }
}

fn at() -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000, 0).unwrap()
}

impl Bench {
    async fn commit(&self) -> CommitId {
        commit(&self.base.mirror, &self.patch, "Fix it", &author(), at()).await.unwrap()
    }

    async fn push(&self, commit: &CommitId, branch: &str) -> Result<Pushed, Error> {
        push(&self.base.mirror, commit, branch, "hyla/", &self.world.remote()).await
    }
}

#[tokio::test]
async fn a_commit_is_made_on_the_base_and_is_the_same_each_time() {
    let bench = bench().await;
    let first = bench.commit().await;
    assert_eq!(first, bench.commit().await);
    let mirror = bench.base.mirror.path();
    assert_eq!(git(mirror, &["rev-parse", &format!("{first}^")]), bench.base.commit.0);
    let shown = git(mirror, &["show", "-s", "--format=%an <%ae> %at %cn %ct %s", &first.0]);
    assert_eq!(shown, "Hyla <hyla@example.org> 1700000000 Hyla 1700000000 Fix it");
    assert_eq!(git(mirror, &["show", &format!("{first}:a.txt")]), "two");
}

#[tokio::test]
async fn nothing_is_not_committed() {
    let bench = bench().await;
    let nothing = edit(&bench.world, &bench.base, "one\n").await;
    let error = commit(&bench.base.mirror, &nothing, "x", &author(), at()).await.unwrap_err();
    assert!(matches!(error, Error::Empty));
}

#[tokio::test]
async fn a_kept_commit_survives_a_collection_of_garbage() {
    let bench = bench().await;
    let commit = bench.commit().await;
    keep(&bench.base.mirror, JobId(7), &commit).await.unwrap();
    keep(&bench.base.mirror, JobId(7), &commit).await.unwrap();
    let mirror = bench.base.mirror.path();
    git(mirror, &["gc", "--quiet", "--prune=now"]);
    git(mirror, &["cat-file", "-e", &commit.0]);
    assert_eq!(git(mirror, &["rev-parse", "refs/hyla/jobs/7"]), commit.0);
}

#[tokio::test]
async fn a_push_makes_the_branch_once_and_finds_it_the_second_time() {
    let bench = bench().await;
    let commit = bench.commit().await;
    assert_eq!(bench.push(&commit, "hyla/issue-1-1").await.unwrap(), Pushed::Made);
    let forge = bench.world.path("forge.git");
    assert_eq!(git(&forge, &["rev-parse", "hyla/issue-1-1"]), commit.0);
    assert_eq!(bench.push(&commit, "hyla/issue-1-1").await.unwrap(), Pushed::AlreadyThere);
    assert_eq!(git(&forge, &["rev-parse", "main"]), bench.base.commit.0);
}

#[tokio::test]
async fn a_push_over_http_is_confirmed_or_rejected_with_the_servers_words() {
    let bench = bench().await;
    let commit = bench.commit().await;
    let remote = remote(&serve(bench.world.dir.path(), "forge.git"));
    let mirror = &bench.base.mirror;
    let pushed = push(mirror, &commit, "hyla/a", "hyla/", &remote).await.unwrap();
    assert_eq!(pushed, Pushed::Made);
    let pushed = push(mirror, &commit, "hyla/a", "hyla/", &remote).await.unwrap();
    assert_eq!(pushed, Pushed::AlreadyThere);

    let forge = bench.world.path("forge.git");
    let hook = forge.join("hooks/pre-receive");
    std::fs::create_dir_all(forge.join("hooks")).unwrap();
    std::fs::write(&hook, "#!/bin/sh\necho 'this branch is protected' >&2\nexit 1\n").unwrap();
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    let error = push(mirror, &commit, "hyla/b", "hyla/", &remote).await.unwrap_err();
    assert_eq!((error.failure(), error.may_retry()), (Failure::ForgeDenied, false));
    let Error::Rejected { words, .. } = error else { panic!("{error:?}") };
    assert_eq!(words, "pre-receive hook declined this branch is protected");
    assert!(!try_git(&forge, &["rev-parse", "hyla/b"]).status.success());
}

#[tokio::test]
async fn a_branch_with_another_commit_is_never_moved() {
    let bench = bench().await;
    let ours = bench.commit().await;
    git(&bench.world.ada(), &["commit", "--quiet", "--allow-empty", "-m", "theirs"]);
    git(&bench.world.ada(), &["push", "--quiet", "../forge.git", "HEAD:refs/heads/hyla/issue-1-1"]);
    let theirs = git(&bench.world.ada(), &["rev-parse", "HEAD"]);
    let error = bench.push(&ours, "hyla/issue-1-1").await.unwrap_err();
    assert!(!error.may_retry());
    let Error::BranchTaken { theirs: found, .. } = error else { panic!("{error:?}") };
    assert_eq!(found.0, theirs);
    assert_eq!(git(&bench.world.path("forge.git"), &["rev-parse", "hyla/issue-1-1"]), theirs);

    // Not even one that the commit would follow.
    git(
        &bench.world.ada(),
        &["push", "--quiet", "../forge.git", "HEAD^:refs/heads/hyla/issue-1-2"],
    );
    let error = bench.push(&ours, "hyla/issue-1-2").await.unwrap_err();
    assert!(matches!(error, Error::BranchTaken { .. }), "{error:?}");

    // Nor one that would be a file where another's is a folder, or the other way round.
    git(
        &bench.world.ada(),
        &["push", "--quiet", "../forge.git", "HEAD^:refs/heads/hyla/issue-2-1/x"],
    );
    for branch in ["hyla/issue-2-1", "hyla/issue-2-1/x/y"] {
        let error = bench.push(&ours, branch).await.unwrap_err();
        assert!(matches!(error, Error::BranchTaken { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn only_branches_with_the_prefix_are_pushed() {
    let bench = bench().await;
    let commit = bench.commit().await;
    for branch in [
        "main",
        "hyla/",
        "hyla",
        "xhyla/a",
        "hyla/a..b",
        "hyla/a:main",
        "hyla/*",
        "hyla/ ",
        "refs/heads/hyla/a",
    ] {
        let error = bench.push(&commit, branch).await.unwrap_err();
        assert!(matches!(error, Error::NotOurs { .. }), "{branch}: {error:?}");
    }
    let error =
        push(&bench.base.mirror, &commit, "main", "", &bench.world.remote()).await.unwrap_err();
    assert!(matches!(error, Error::NotOurs { .. }), "{error:?}");
    assert_eq!(git(&bench.world.path("forge.git"), &["branch", "--list"]), "* main");
}

#[tokio::test]
async fn an_unreachable_remote_may_be_tried_again_and_a_missing_one_not() {
    let bench = bench().await;
    let commit = bench.commit().await;
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let cases = [
        (format!("http://127.0.0.1:{port}/acme/app.git"), Failure::ForgeDown, true),
        ("file:///nonexistent/app.git".to_owned(), Failure::ForgeMissing, false),
    ];
    for (url, failure, may_retry) in cases {
        let error =
            push(&bench.base.mirror, &commit, "hyla/a", "hyla/", &remote(&url)).await.unwrap_err();
        assert_eq!((error.failure(), error.may_retry()), (failure, may_retry), "{error:?}");
        assert!(!format!("{error:?}").contains("canary-token"));
    }
}

#[tokio::test]
async fn a_hook_in_the_mirror_is_not_run_by_a_push() {
    let bench = bench().await;
    let marker = bench.world.path("marker");
    let hooks = bench.base.mirror.path().join("hooks");
    std::fs::create_dir_all(&hooks).unwrap();
    let hook = hooks.join("pre-push");
    std::fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", marker.display())).unwrap();
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    let commit = bench.commit().await;
    bench.push(&commit, "hyla/a").await.unwrap();
    assert!(!marker.exists());
}

#[tokio::test]
async fn a_local_branch_is_written_beside_the_work_tree() {
    let bench = bench().await;
    let ada = bench.world.ada();
    let local = bench.world.mirrors.adopt_local(&ada).await.unwrap();
    let patch = edit(&bench.world, &local.base, "three\n").await;
    let mirror = &local.base.mirror;
    let made = commit(mirror, &patch, "Fix it", &author(), at()).await.unwrap();
    std::fs::write(ada.join("a.txt"), "unsaved work\n").unwrap();
    let index = std::fs::read(ada.join(".git/index")).unwrap();

    write_branch(&ada, mirror, &made, "hyla/fix").await.unwrap();
    assert_eq!(git(&ada, &["rev-parse", "hyla/fix"]), made.0);
    assert_eq!(git(&ada, &["show", "hyla/fix:a.txt"]), "three");
    assert_eq!(git(&ada, &["show", "hyla/fix:b/c.txt"]), "c");
    git(&ada, &["fsck", "--strict"]);
    assert_eq!(std::fs::read_to_string(ada.join("a.txt")).unwrap(), "unsaved work\n");
    assert_eq!(std::fs::read(ada.join(".git/index")).unwrap(), index);
    assert_eq!(git(&ada, &["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert!(!ada.join(".git/shallow").exists());

    for (branch, expected) in [
        ("hyla/fix", "exists already"),
        ("main", "exists already"),
        ("-x", "no such name"),
        ("a..b", "no such name"),
        ("main/x", "beside `main`"),
        ("hyla", "beside `hyla/fix`"),
    ] {
        let error = write_branch(&ada, mirror, &made, branch).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{branch}: {error}");
    }
    assert!(try_git(&ada, &["rev-parse", "main/x"]).status.code() != Some(0));
}
