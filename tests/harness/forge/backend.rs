//! Git over smart HTTP: `git http-backend` as CGI on the real repositories, behind the forge's own check of who may
//! read and who may push.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::api::{basic, has_scope};
use super::git::{Git, environment};
use super::server::{Reply, Request};
use super::state::{Access, Repo, State, Token};
use super::{Shared, github, lock};

/// How long one request may keep git busy: tests push and fetch small repositories.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Answers a request for `/owner/name.git/...`.
pub(super) async fn serve(shared: &Arc<Shared>, asked: &Request, authorization: &str) -> Reply {
    let Some((name, route)) = asked.path.split_once(".git/") else {
        return Reply::text(404, "text/plain", "Not found.\n");
    };
    let is_push = route == "git-receive-pack" || asked.query.contains("service=git-receive-pack");
    let is_known = matches!(route, "info/refs" | "git-upload-pack" | "git-receive-pack");
    if !is_known {
        return shared.strange(asked, "the bot speaks smart HTTP alone");
    }
    // Forges do not tell small from capital letters in a name, and git's own folders do.
    let (at, pushed) = {
        let state = lock(&shared.state);
        let token = basic(&state, authorization);
        let found = name.trim_start_matches('/').split_once('/');
        if let Some(present) = found.and_then(|(owner, name)| state.moved_to(owner, name)) {
            let to = format!("{}/{present}.git/{route}", state.root_url);
            return Reply::text(301, "text/html; charset=utf-8", "").with("location", to);
        }
        let found = found.and_then(|(owner, name)| state.repo(owner, name));
        let found = found.filter(|repo| !repo.is_gone);
        if let Err(reply) = admit(&state, found, token.as_ref(), authorization, is_push) {
            return reply;
        }
        let folder = found.and_then(|repo| repo.git_dir.strip_prefix(shared.git.root()).ok());
        let Some(folder) = folder else {
            return Reply::text(404, "text/plain", "Repository not found\n");
        };
        let pushed = found.filter(|_| is_push && state.dialect.is_github());
        let pushed = pushed.zip(token).map(|(repo, token)| (repo.name.clone(), token.user));
        (format!("/{}/{route}", folder.display()), pushed)
    };
    let reply = run(&shared.git, &shared.git_slots, asked, &at).await;
    if let Some((repo, user)) = pushed {
        let events = github::follow(&lock(&shared.state), shared, &repo, user);
        shared.announce(events);
    }
    reply
}

/// Whoever may not see a repository or not write to it is told that there is none.
fn admit(
    state: &State,
    repo: Option<&Repo>,
    token: Option<&Token>,
    authorization: &str,
    is_push: bool,
) -> Result<(), Reply> {
    let is_github = state.dialect.is_github();
    let realm = if is_github { "GitHub" } else { "Gitea" };
    let ask = || {
        Reply::text(401, "text/plain", "Unauthorized\n")
            .with("www-authenticate", format!("Basic realm=\"{realm}\""))
    };
    let gone = || Reply::text(404, "text/plain", "Repository not found\n");
    let Some(token) = token else {
        let is_public = repo.is_some_and(|repo| !repo.is_private);
        let is_free = authorization.is_empty() && is_public && !is_push;
        return if is_free { Ok(()) } else { Err(ask()) };
    };
    let repo = repo.ok_or_else(gone)?;
    if is_github {
        return admit_to_github(state, repo, token, is_push);
    }
    let is_covered = token.only.as_ref().is_none_or(|only| only.contains(&repo.id));
    let wanted = if is_push { Access::Write } else { Access::Read };
    if !is_covered || state.access(token.user, repo) < wanted {
        return Err(gone());
    }
    if !has_scope(token, "repository", is_push) {
        return Err(Reply::text(403, "text/plain", "token does not have the required scope\n"));
    }
    if is_push && repo.is_archived {
        return Err(Reply::text(403, "text/plain", "This repo is archived.\n"));
    }
    Ok(())
}

/// GitHub hides what may not be read, and says of the rest that it may not be written to.
fn admit_to_github(state: &State, repo: &Repo, token: &Token, is_push: bool) -> Result<(), Reply> {
    let access = state.access(token.user, repo);
    let is_covered = github::covers(token, repo) && github::may_move(token, false);
    if access < Access::Read || !is_covered {
        return Err(Reply::text(404, "text/plain", "Repository not found.\n"));
    }
    if is_push && (access < Access::Write || !github::may_move(token, true)) {
        let login = &state.user(token.user).login;
        let text = format!("Permission to {}.git denied to {login}.\n", repo.name);
        return Err(Reply::text(403, "text/plain", &text));
    }
    if is_push && repo.is_archived {
        let text = "This repository was archived so it is read-only.\n";
        return Err(Reply::text(403, "text/plain", text));
    }
    Ok(())
}

/// Git's own answer about a path below the folder with all repositories, whoever asks.
pub(super) async fn run(git: &Git, slots: &Semaphore, asked: &Request, at: &str) -> Reply {
    let answer = tokio::time::timeout(TIMEOUT, answer(git, slots, asked, at)).await;
    answer.unwrap_or_else(|_| Reply::text(504, "text/plain", "git took too long\n"))
}

async fn answer(git: &Git, slots: &Semaphore, asked: &Request, at: &str) -> Reply {
    let _slot = slots.acquire().await.expect("the slots are never closed");
    let header = |name: &str| {
        let found = asked.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let root = git.root();
    let mut child = Command::new("git")
        .arg("http-backend")
        .env_clear()
        .envs(environment(root))
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", &asked.method)
        .env("PATH_INFO", at)
        .env("QUERY_STRING", &asked.query)
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", asked.body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("REMOTE_USER", "someone")
        .env("REMOTE_ADDR", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("git can be started");
    let mut stdin = child.stdin.take().expect("stdin was asked for as a pipe");
    let body = asked.body.clone();
    // Git may answer before it has read everything, so both directions run at once.
    let feed = async move {
        // An early end of git shows in its answer.
        let _ = stdin.write_all(&body).await;
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    let output = output.expect("git ends");
    if output.stdout.is_empty() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Reply::text(500, "text/plain", &complaint);
    }
    parse(&output.stdout)
}

/// A CGI answer: header lines, an empty line, the body.
fn parse(output: &[u8]) -> Reply {
    let end = output.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(output.len());
    let head = String::from_utf8_lossy(&output[..end]);
    let body = output.get(end + 4..).unwrap_or_default().to_vec();
    let mut reply = Reply { status: 200, headers: vec![], body };
    for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
        if name.eq_ignore_ascii_case("status") {
            let number = value.split(' ').next().and_then(|number| number.parse().ok());
            reply.status = number.unwrap_or(500);
        } else {
            reply.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }
    reply
}
