//! Where the token goes: to the configured address, once, and nowhere else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::checkout::testing::{World, git, remote, repo, try_git};
use crate::checkout::{Error, Mirrors, RemoteError};
use crate::job::Failure;
use crate::patch;
use crate::workspace::Owner;

const CHALLENGE: &str = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"forge\"\r\n";

/// `hyla:canary-token`, as HTTP Basic writes it.
const TOKEN: &str = "aHlsYTpjYW5hcnktdG9rZW4=";

/// A server that answers each request by a function of the request's head, and remembers the heads.
struct Server {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(answer: impl Fn(&str) -> String + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&heads);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serve(stream.unwrap(), &answer, &seen);
            }
        });
        Self { port, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    fn n_tokens(&self) -> usize {
        self.heads().iter().filter(|head| head.contains(TOKEN)).count()
    }
}

fn serve(stream: TcpStream, answer: &impl Fn(&str) -> String, seen: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    seen.lock().unwrap().push(head.clone());
    let text = answer(&head);
    let stream = reader.get_mut();
    if !text.is_empty() {
        let rest = if text.contains("\r\n\r\n") {
            ""
        } else {
            "Content-Length: 0\r\nConnection: close\r\n\r\n"
        };
        let _ = stream.write_all(format!("{text}{rest}").as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

async fn fetch(url: &str) -> RemoteError {
    let dir = tempfile::tempdir().unwrap();
    let mirrors = Mirrors::new(dir.path().to_owned());
    let error = mirrors.fetch("home", &repo(), &remote(url), "main").await.unwrap_err();
    assert!(!format!("{error:?} {error}").contains("canary-token"));
    let Error::Remote { source, .. } = error else { panic!("{error:?}") };
    source
}

#[tokio::test]
async fn a_refused_token_is_presented_once_and_named() {
    let server = Server::start(|_| CHALLENGE.to_owned());
    let error = fetch(&format!("http://127.0.0.1:{}/acme/app.git", server.port)).await;
    assert!(matches!(error, RemoteError::Auth { .. }), "{error:?}");
    assert_eq!((error.failure(), error.may_retry()), (Failure::ForgeAuth, false));
    // Once by the question for redirects, once by git.
    assert_eq!(server.n_tokens(), 2, "{:?}", server.heads());
}

#[tokio::test]
async fn a_redirect_to_another_host_is_not_followed() {
    let other = Server::start(|_| CHALLENGE.to_owned());
    let there = format!("http://localhost:{}/acme/app.git/info/refs", other.port);
    let server = Server::start(move |_| format!("HTTP/1.1 302 Found\r\nLocation: {there}\r\n"));
    let error = fetch(&format!("http://127.0.0.1:{}/acme/app.git", server.port)).await;
    assert!(matches!(error, RemoteError::Redirected { .. }), "{error:?}");
    assert_eq!(other.heads(), Vec::<String>::new());
}

#[tokio::test]
async fn a_redirect_to_another_port_or_path_never_gets_the_token() {
    for after_the_token in [false, true] {
        let other = Server::start(|_| CHALLENGE.to_owned());
        let port = other.port;
        let server = Server::start(move |head| {
            if after_the_token && !head.contains(TOKEN) {
                return CHALLENGE.to_owned();
            }
            let there =
                format!("http://127.0.0.1:{port}/acme/app.git/info/refs?service=git-upload-pack");
            format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {there}\r\n")
        });
        let error = fetch(&format!("http://127.0.0.1:{}/acme/app.git", server.port)).await;
        assert!(matches!(error, RemoteError::Redirected { .. }), "{error:?}");
        assert_eq!(other.n_tokens(), 0, "{:?}", other.heads());
    }

    let server = Server::start(|head| match head.contains("/acme/app.git/") {
        true => {
            "HTTP/1.1 302 Found\r\nLocation: /evil/app.git/info/refs?service=git-upload-pack\r\n"
                .into()
        }
        false => CHALLENGE.to_owned(),
    });
    let error = fetch(&format!("http://127.0.0.1:{}/acme/app.git", server.port)).await;
    assert!(matches!(error, RemoteError::Redirected { .. }), "{error:?}");
    assert!(server.heads().iter().all(|head| !head.contains("/evil/")));
}

#[tokio::test]
async fn a_redirect_that_libgit2_would_die_of_does_not_reach_it() {
    let server = Server::start(|_| {
        "HTTP/1.1 301 Moved Permanently\r\nLocation: /renamed/app.git/info/refs\r\n".into()
    });
    let error = fetch(&format!("http://127.0.0.1:{}/acme/app.git", server.port)).await;
    assert!(matches!(error, RemoteError::Redirected { .. }), "{error:?}");
}

/// libgit2's own refusal, seen past the question for redirects: the server sends only git away.
#[tokio::test]
async fn git_itself_follows_no_redirect_with_the_token() {
    for (host, before_the_token) in
        [("localhost", true), ("localhost", false), ("127.0.0.1", true), ("127.0.0.1", false)]
    {
        let other = Server::start(|_| CHALLENGE.to_owned());
        let port = other.port;
        let server = Server::start(move |head| match head.contains("user-agent: hyla") {
            true => "HTTP/1.1 200 OK\r\n".to_owned(),
            false if !head.contains(TOKEN) && !before_the_token => CHALLENGE.to_owned(),
            false => {
                let path = "acme/app.git/info/refs?service=git-upload-pack";
                format!(
                    "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{host}:{port}/{path}\r\n"
                )
            }
        });
        let error = fetch(&format!("http://127.0.0.1:{}/acme/app.git", server.port)).await;
        assert!(matches!(error, RemoteError::Redirected { .. }), "{error:?}");
        assert_eq!(other.n_tokens(), 0, "{:?}", other.heads());
        assert!(host == "127.0.0.1" || other.heads().is_empty(), "{:?}", other.heads());
    }
}

/// The same of a push, which is what has something to lose: the commits besides the token.
#[tokio::test]
async fn t20_a_push_follows_no_redirect_with_the_token() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let base = world.fetch().await;
    let push = async |port: u16| {
        let remote = remote(&format!("http://127.0.0.1:{port}/acme/app.git"));
        let branch = "hyla/issue-1-1";
        crate::publish::push(&base.mirror, &base.commit, branch, "hyla/", &remote).await
    };
    // The control: the configured address gets the token, and refuses it.
    let honest = Server::start(|head| match head.contains(TOKEN) {
        true => "HTTP/1.1 403 Forbidden\r\n".to_owned(),
        false => CHALLENGE.to_owned(),
    });
    assert!(push(honest.port).await.is_err());
    assert!(honest.n_tokens() > 0, "{:?}", honest.heads());
    for only_git in [false, true] {
        let other = Server::start(|_| CHALLENGE.to_owned());
        let to = other.port;
        let server = Server::start(move |head| {
            match head.contains("user-agent: hyla") && only_git {
                true => "HTTP/1.1 200 OK\r\n".to_owned(),
                false => format!(
                    "HTTP/1.1 302 Found\r\nLocation: http://localhost:{to}/acme/app.git/info/refs?service=git-receive-pack\r\n"
                ),
            }
        });
        let refused = push(server.port).await;
        assert!(refused.is_err(), "{refused:?}");
        assert!(other.heads().is_empty(), "{:?}", other.heads());
    }
}

/// All that makes git of a workspace push elsewhere, by another road, or with somebody else's word.
fn poison(root: &Path, port: u16, trap: &Path) {
    let there = format!("http://127.0.0.1:{port}/acme/app.git");
    for (key, value) in [
        ("remote.origin.url", there.as_str()),
        ("remote.origin.pushurl", &there),
        (&format!("url.{there}.insteadOf"), "http"),
        (&format!("url.{there}.pushInsteadOf"), "http"),
        ("http.proxy", &format!("http://127.0.0.1:{port}")),
        ("http.extraHeader", "X-Poison: 1"),
        ("http.followRedirects", "true"),
        ("credential.helper", &format!("!touch {}", trap.display())),
    ] {
        git(root, &["config", key, value]);
    }
}

#[tokio::test]
async fn t19_a_poisoned_remote_sends_a_push_nowhere_but_to_the_forge() {
    let world = World::with(&[("a.txt", b"one\n")]);
    let base = world.fetch().await;
    let root = world.path("workspace");
    let workspace = base.workspace(&root, Owner::Service).await.unwrap();
    let other = Server::start(|_| CHALLENGE.to_owned());
    let trap = world.path("trap");
    poison(&root, other.port, &trap);
    // The control: git itself, which the bot does not run there, asks the other for all, and the helper for a word.
    let push = ["-c", "core.askPass=/bin/true", "push", "origin", "HEAD:refs/heads/x"];
    assert!(!try_git(&root, &push).status.success());
    let n_before = other.heads().len();
    assert!(n_before > 0 && other.heads()[0].contains("X-Poison"), "{:?}", other.heads());
    assert!(trap.exists(), "the helper was not asked");
    std::fs::remove_file(&trap).unwrap();

    let forge = Server::start(|head| match head.contains(TOKEN) {
        true => "HTTP/1.1 403 Forbidden\r\n".to_owned(),
        false => CHALLENGE.to_owned(),
    });
    let limits = patch::Limits::for_gate(&config::Gate::default());
    patch::import(&workspace, &base.mirror, &base.commit, &limits).await.unwrap();
    let there = remote(&format!("http://127.0.0.1:{}/acme/app.git", forge.port));
    let pushed =
        crate::publish::push(&base.mirror, &base.commit, "hyla/issue-1-1", "hyla/", &there).await;
    assert!(pushed.is_err(), "this forge takes nothing");
    assert!(forge.n_tokens() > 0, "{:?}", forge.heads());
    assert!(forge.heads().iter().all(|head| head.contains(" /acme/app.git/")));
    assert!(forge.heads().iter().all(|head| !head.contains("X-Poison")));
    assert_eq!(other.heads().len(), n_before, "somebody came to the other");
    assert!(!trap.exists());
}

#[tokio::test]
async fn what_the_server_says_has_a_name() {
    let cases = [
        ("403 Forbidden", Failure::ForgeDenied, false),
        ("404 Not Found", Failure::ForgeMissing, false),
        ("429 Too Many Requests", Failure::ForgeDown, true),
        ("500 Internal Server Error", Failure::ForgeDown, true),
        ("502 Bad Gateway", Failure::ForgeDown, true),
        ("418 I'm a teapot", Failure::Git, false),
    ];
    for (status, failure, may_retry) in cases {
        let server = Server::start(move |head| match head.contains(TOKEN) {
            true => format!("HTTP/1.1 {status}\r\n"),
            false => CHALLENGE.to_owned(),
        });
        let error = fetch(&format!("http://127.0.0.1:{}/acme/app.git", server.port)).await;
        assert_eq!(
            (error.failure(), error.may_retry()),
            (failure, may_retry),
            "{status}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_hangs_up_or_is_not_there_may_be_tried_again() {
    let server = Server::start(|_| String::new());
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for port in [server.port, gone] {
        let error = fetch(&format!("http://127.0.0.1:{port}/acme/app.git")).await;
        assert!(error.may_retry(), "{error:?}");
        assert_eq!(error.failure(), Failure::ForgeDown);
    }
}
