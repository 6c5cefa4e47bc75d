//! Repositories given on the command line.

use crate::checkout::Error;
use crate::checkout::testing::{World, git};

#[tokio::test]
async fn a_local_head_is_adopted_and_uncommitted_changes_are_reported_not_seen() {
    let world = World::with(&[("a.txt", b"one\n"), (".gitignore", b"target\n")]);
    world.write("target/junk", b"junk");
    let clean = world.mirrors.adopt_local(&world.ada()).await.unwrap();
    assert!(!clean.has_uncommitted_changes);
    assert_eq!(clean.base.branch, "main");
    assert_eq!(clean.base.commit.0, git(&world.ada(), &["rev-parse", "HEAD"]));

    world.write("a.txt", b"two\n");
    let changed = world.mirrors.adopt_local(&world.ada()).await.unwrap();
    assert!(changed.has_uncommitted_changes);
    assert_eq!(changed.base.commit, clean.base.commit);
    let file = changed.base.mirror.file_at(&changed.base.commit, "a.txt", 10).await.unwrap();
    assert_eq!(file.unwrap(), b"one\n");
}

#[tokio::test]
async fn a_shallow_clone_and_a_detached_head_are_adopted() {
    let world = World::with(&[("a.txt", b"one\n")]);
    world.write("a.txt", b"two\n");
    world.commit();
    let url = format!("file://{}", world.path("forge.git").display());
    git(world.dir.path(), &["clone", "--quiet", "--depth", "1", &url, "shallow"]);
    let shallow = world.path("shallow");
    git(&shallow, &["checkout", "--quiet", "--detach"]);
    let local = world.mirrors.adopt_local(&shallow).await.unwrap();
    assert_eq!(local.base.branch, "HEAD");
    git(local.base.mirror.path(), &["fsck", "--strict", "--no-dangling"]);
}

#[tokio::test]
async fn what_cannot_be_adopted_says_what_to_do() {
    let world = World::new();
    let plain = world.path("plain");
    std::fs::create_dir(&plain).unwrap();
    let error = world.mirrors.adopt_local(&plain).await.unwrap_err();
    assert!(error.to_string().contains("git init"), "{error}");
    assert!(matches!(error, Error::NotARepository { .. }));

    let error = world.mirrors.adopt_local(&world.ada()).await.unwrap_err();
    assert!(matches!(error, Error::NoCommit { .. }), "{error:?}");
    let error = world.mirrors.adopt_local(&world.path("nowhere")).await.unwrap_err();
    assert!(matches!(error, Error::NoFolder { .. }), "{error:?}");
}

#[tokio::test]
async fn adopting_writes_nothing_into_the_local_repository() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let before = listing(&world.ada());
    world.mirrors.adopt_local(&world.ada()).await.unwrap();
    assert_eq!(listing(&world.ada()), before);
}

fn listing(dir: &std::path::Path) -> Vec<(std::path::PathBuf, std::time::SystemTime)> {
    let mut found = Vec::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let metadata = entry.metadata().unwrap();
            found.push((entry.path(), metadata.modified().unwrap()));
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    found.sort();
    found
}
