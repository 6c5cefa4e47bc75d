//! Git over HTTP through the remote that the client names: clone, push, and who may not.

use super::*;

use std::path::Path;

use git2::{Cred, FetchOptions, PushOptions, RemoteCallbacks, Repository, Signature};
use secrecy::ExposeSecret as _;

fn callbacks(remote: &bot::forge::Remote) -> RemoteCallbacks<'static> {
    let (user, password) = (remote.user.clone(), remote.password.expose_secret().to_owned());
    let mut callbacks = RemoteCallbacks::new();
    let mut tries = 0;
    callbacks.credentials(move |_, _, _| {
        tries += 1;
        if tries > 2 {
            return Err(git2::Error::from_str("refused"));
        }
        Cred::userpass_plaintext(&user, &password)
    });
    callbacks
}

fn clone(remote: &bot::forge::Remote, into: &Path) -> Result<Repository, git2::Error> {
    let mut options = FetchOptions::new();
    options.remote_callbacks(callbacks(remote));
    git2::build::RepoBuilder::new().fetch_options(options).clone(remote.url.as_str(), into)
}

/// One more commit, pushed to a branch.
fn push(
    repo: &Repository,
    remote: &bot::forge::Remote,
    branch: &str,
) -> Result<String, git2::Error> {
    let head = repo.head()?.peel_to_commit()?;
    let blob = repo.blob(b"pushed\n")?;
    let mut tree = repo.treebuilder(Some(&head.tree()?))?;
    tree.insert("pushed.txt", blob, 0o100_644)?;
    let tree = repo.find_tree(tree.write()?)?;
    let who = Signature::new("Hyla", "hyla@example.org", &git2::Time::new(0, 0))?;
    let commit = repo.commit(None, &who, &who, "Push\n", &tree, &[&head])?;
    repo.reference("refs/heads/out", commit, true, "")?;
    let mut callbacks = callbacks(remote);
    callbacks.push_update_reference(|_, refusal| match refusal {
        None => Ok(()),
        Some(words) => Err(git2::Error::from_str(words)),
    });
    let mut options = PushOptions::new();
    options.remote_callbacks(callbacks);
    let refspec = format!("refs/heads/out:refs/heads/{branch}");
    repo.find_remote("origin")?.push(&[refspec], Some(&mut options))?;
    Ok(commit.to_string())
}

/// libgit2 blocks, so it works beside the server's thread.
async fn clone_and_push(
    remote: bot::forge::Remote,
    branch: &'static str,
) -> Result<String, git2::Error> {
    let work = move || {
        let folder = tempfile::tempdir().unwrap();
        let repo = clone(&remote, folder.path())?;
        assert!(folder.path().join("README.md").exists());
        push(&repo, &remote, branch)
    };
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_arrives_and_can_become_a_draft() {
    for (dialect, sub_path) in [(Dialect::Gitea127, "/git"), (Dialect::Forgejo15, "")] {
        let scene = Scene::below(dialect, sub_path).await;
        scene.forge.make_private(&scene.repo);
        let commit = clone_and_push(scene.remote().await, "hyla/issue-7-1").await.unwrap();
        let head = scene.client.branch_head(&scene.repo, "hyla/issue-7-1").await.unwrap();
        assert_eq!(head.unwrap().0, commit);
        let draft = NewDraft {
            title: "Pushed".into(),
            body: String::new(),
            head: "hyla/issue-7-1".into(),
            base: "main".into(),
        };
        let pull = scene.client.open_draft(&scene.repo, &draft).await.unwrap();
        assert!(scene.forge.diff(&scene.repo, pull.number).contains("+pushed"));
        assert_eq!(
            scene.forge.file(&scene.repo, "hyla/issue-7-1", "pushed.txt").unwrap(),
            b"pushed\n"
        );
        scene.forge.assert_clean();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_may_not_write_cannot_push() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let remote = async || scene.remote().await;
    scene.forge.set_permission(&scene.repo, "hyla", Permission::Read);
    clone_and_push(remote().await, "x").await.unwrap_err();
    scene.forge.set_permission(&scene.repo, "hyla", Permission::Write);
    scene.forge.archive(&scene.repo);
    clone_and_push(remote().await, "x").await.unwrap_err();
    assert_eq!(scene.forge.branches(&scene.repo).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_token_cannot_even_clone_a_private_repository() {
    let scene = Scene::new(Dialect::Gitea127).await;
    scene.forge.make_private(&scene.repo);
    scene.forge.revoke(&scene.token);
    clone_and_push(scene.remote().await, "x").await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_can_be_made_to_fail() {
    let scene = Scene::new(Dialect::Gitea127).await;
    let remote = async || scene.remote().await;
    let push = Matcher::new("POST", "/acme/app.git/git-receive-pack");
    scene.forge.fault(push.clone(), Fault::status(500, ""), 1);
    clone_and_push(remote().await, "a").await.unwrap_err();
    scene.forge.fault(push, Fault::AfterEffect(502), 1);
    clone_and_push(remote().await, "b").await.unwrap_err();
    let names: Vec<String> =
        scene.forge.branches(&scene.repo).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["b", "main"]);
}
