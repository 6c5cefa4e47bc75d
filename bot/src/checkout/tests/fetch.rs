//! Fetching into a mirror: what arrives, and what a crash or damage leaves behind.

use crate::checkout::testing::http::serve;
use crate::checkout::testing::{World, git, remote, repo, try_git};
use crate::checkout::{Error, RemoteError};
use crate::job::Failure;

#[tokio::test]
async fn a_fetch_brings_the_head_of_the_branch_even_after_a_forced_push() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let first = world.fetch().await;
    assert_eq!(first.commit.0, git(&world.ada(), &["rev-parse", "HEAD"]));

    git(&world.ada(), &["commit", "--quiet", "--amend", "-m", "another story"]);
    world.push();
    let second = world.fetch().await;
    assert_ne!(first.commit, second.commit);
    assert_eq!(second.commit.0, git(&world.ada(), &["rev-parse", "HEAD"]));
}

#[tokio::test]
async fn a_fetch_over_http_brings_the_wanted_branch_and_no_other_object() {
    let world = World::with(&[("a.txt", b"one\n")]);
    git(&world.ada(), &["checkout", "--quiet", "-b", "other"]);
    git(&world.ada(), &["commit", "--quiet", "--allow-empty", "-m", "elsewhere"]);
    git(&world.ada(), &["push", "--quiet", "../forge.git", "other"]);
    let remote = remote(&serve(world.dir.path(), "forge.git"));
    let base = world.mirrors.fetch("home", &repo(), &remote, "main").await.unwrap();
    assert_eq!(base.commit.0, git(&world.ada(), &["rev-parse", "main"]));
    let other = git(&world.ada(), &["rev-parse", "other"]);
    assert!(!try_git(base.mirror.path(), &["cat-file", "-e", &other]).status.success());

    git(&world.ada(), &["checkout", "--quiet", "main"]);
    world.write("a.txt", b"two\n");
    let commit = world.commit();
    let again = world.mirrors.fetch("home", &repo(), &remote, "main").await.unwrap();
    assert_eq!(again.commit.0, commit);
    let config = std::fs::read_to_string(base.mirror.path().join("config")).unwrap();
    assert!(!config.contains("canary") && !config.contains("http://"), "{config}");
}

#[tokio::test]
async fn only_the_wanted_branch_has_a_ref_in_the_mirror() {
    let world = World::with(&[("a.txt", b"one\n")]);
    git(&world.ada(), &["checkout", "--quiet", "-b", "other"]);
    world.write("secret.txt", b"elsewhere\n");
    git(&world.ada(), &["add", "."]);
    git(&world.ada(), &["commit", "--quiet", "-m", "other"]);
    git(&world.ada(), &["tag", "v1"]);
    git(&world.ada(), &["push", "--quiet", "../forge.git", "other", "v1"]);
    let base = world.fetch().await;
    let refs = git(base.mirror.path(), &["for-each-ref", "--format=%(refname)"]);
    assert_eq!(refs.lines().count(), 1, "{refs}");
}

#[tokio::test]
async fn a_branch_may_be_replaced_by_one_below_its_name() {
    let world = World::with(&[("a.txt", b"one\n")]);
    git(&world.ada(), &["push", "--quiet", "../forge.git", "HEAD:refs/heads/next"]);
    let mirrors = &world.mirrors;
    mirrors.fetch("home", &repo(), &world.remote(), "next").await.unwrap();
    git(&world.ada(), &["push", "--quiet", "../forge.git", ":refs/heads/next"]);
    git(&world.ada(), &["push", "--quiet", "../forge.git", "HEAD:refs/heads/next/door"]);
    mirrors.fetch("home", &repo(), &world.remote(), "next/door").await.unwrap();
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let world = World::with(&[("a.txt", b"one\n")]);
    for branch in ["nothing", "", "a..b", "a:b", "*"] {
        let error =
            world.mirrors.fetch("home", &repo(), &world.remote(), branch).await.unwrap_err();
        assert!(matches!(error, Error::BranchMissing { .. }), "{branch}: {error:?}");
        assert_eq!((error.failure(), error.may_retry()), (Failure::ForgeMissing, false));
    }
    let nowhere = remote("file:///nonexistent/acme/app.git");
    let error = world.mirrors.fetch("home", &repo(), &nowhere, "main").await.unwrap_err();
    let Error::Remote { source: RemoteError::Missing { .. }, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(!format!("{error:?}").contains("canary-token"));
}

#[tokio::test]
async fn fetches_of_one_repository_at_the_same_time_all_succeed() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let (a, b, c) = tokio::join!(world.fetch(), world.fetch(), world.fetch());
    assert_eq!((&a.commit, &b.commit), (&b.commit, &c.commit));
}

#[tokio::test]
async fn another_process_waits_for_the_lock_file() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let mirror = world.fetch().await.mirror;
    let held = crate::checkout::Locks::hold_blocking(mirror.path()).unwrap();
    let other = std::fs::File::open(mirror.path().with_extension("git.lock")).unwrap();
    assert!(other.try_lock().is_err());
    drop(held);
    other.try_lock().unwrap();
}

#[tokio::test]
async fn a_fetch_after_a_crash_clears_what_the_crash_left() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let half_made = world.path("mirrors/home/acme/app.git.new");
    std::fs::create_dir_all(&half_made).unwrap();
    std::fs::write(half_made.join("HEAD"), "half").unwrap();
    let mirror = world.fetch().await.mirror;

    world.write("a.txt", b"two\n");
    let commit = world.commit();
    let fetched = mirror.path().join("refs/hyla/fetched");
    let name = std::fs::read_dir(&fetched).unwrap().next().unwrap().unwrap().path();
    std::fs::write(name.with_extension("lock"), "").unwrap();
    std::fs::write(mirror.path().join("packed-refs.lock"), "").unwrap();
    std::fs::write(mirror.path().join("objects/pack/pack_git2_abc"), "half a pack").unwrap();
    assert_eq!(world.fetch().await.commit.0, commit);
    assert!(!mirror.path().join("objects/pack/pack_git2_abc").exists());
}

#[tokio::test]
async fn a_damaged_mirror_is_made_again_and_the_damaged_one_is_kept() {
    for damage in ["no config", "no packs", "ref to nothing", "not a repository"] {
        let world = World::with(&[("a.txt", b"one\n")]);
        let base = world.fetch().await;
        let mirror = base.mirror.path();
        match damage {
            "no config" => std::fs::write(mirror.join("config"), "[core\n").unwrap(),
            "no packs" => {
                std::fs::remove_dir_all(mirror.join("objects")).unwrap();
                std::fs::create_dir_all(mirror.join("objects/pack")).unwrap();
            }
            "ref to nothing" => {
                for entry in std::fs::read_dir(mirror.join("refs/hyla/fetched")).unwrap() {
                    std::fs::write(entry.unwrap().path(), "garbage").unwrap();
                }
            }
            _ => {
                std::fs::remove_dir_all(mirror).unwrap();
                std::fs::create_dir(mirror).unwrap();
            }
        }
        let again = world.fetch().await;
        assert_eq!(again.commit, base.commit, "{damage}");
        let file = again.mirror.file_at(&again.commit, "a.txt", 10).await.unwrap();
        assert_eq!(file.as_deref(), Some(b"one\n".as_slice()), "{damage}");
    }
}

#[tokio::test]
async fn files_are_read_at_a_commit_and_links_are_none() {
    let world = World::new();
    world.write("dir/a.txt", b"content");
    world.write("README", b"hello");
    std::os::unix::fs::symlink("README", world.ada().join("link")).unwrap();
    world.commit();
    let base = world.fetch().await;
    let read = |path: &'static str, limit| base.mirror.file_at(&base.commit, path, limit);
    assert_eq!(read("dir/a.txt", 7).await.unwrap().unwrap(), b"content");
    for nothing in ["link", "dir", "nope", "", "/README", "../README", "dir/../README"] {
        assert_eq!(read(nothing, 100).await.unwrap(), None, "{nothing}");
    }
    let error = read("dir/a.txt", 6).await.unwrap_err();
    assert!(matches!(error, Error::FileTooLarge { size_bytes: 7, .. }), "{error:?}");
    assert_eq!(base.mirror.root_entries(&base.commit).await.unwrap(), ["README", "dir/", "link"]);
}

#[test]
fn names_of_folders_never_leave_their_folder_and_never_meet() {
    let cases = [
        ("app", "app"),
        ("a.b-c_d", "a.b-c_d"),
        ("..", "%2e."),
        (".git", "%2egit"),
        ("a/b", "a%2fb"),
        ("%2e", "%252e"),
        ("ü", "%c3%bc"),
    ];
    for (name, folder) in cases {
        assert_eq!(crate::checkout::folder_name(name), folder);
    }
}

/// Runs itself again with a home folder whose settings would send every fetch elsewhere.
#[test]
fn no_setting_of_the_user_takes_part() {
    const INSIDE: &str = "checkout::tests::fetch::inside_a_poisoned_home";
    let home = tempfile::tempdir().unwrap();
    let settings =
        "[url \"file:///nonexistent/\"]\n\tinsteadOf = file:///\n[core]\n\tautocrlf = true\n";
    std::fs::write(home.path().join(".gitconfig"), settings).unwrap();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", INSIDE, "--ignored", "--nocapture"])
        .env("HOME", home.path())
        .env("XDG_CONFIG_HOME", home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
#[ignore = "runs only inside `no_setting_of_the_user_takes_part`"]
async fn inside_a_poisoned_home() {
    World::with(&[("a.txt", b"one\n")]).fetch().await;
}
