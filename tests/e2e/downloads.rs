//! What a repository's setup command may download: from the listed hosts, once, before the model sees anything; and what it
//! leaves reaches the model and every test run, and neither reaches the other.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bot::egress::Internet;
use bot::job::Outcome;
use tests::house::{House, Setup};
use tests::model::{Recording, Turn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// An internet with one host, which answers every line with the same line.
struct Town {
    server: SocketAddr,
    n_connections: AtomicUsize,
}

impl Town {
    async fn new() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let server = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut bytes = [0; 100];
                    while let Ok(n @ 1..) = stream.read(&mut bytes).await {
                        let _ = stream.write_all(&bytes[..n]).await;
                    }
                });
            }
        });
        Arc::new(Self { server, n_connections: AtomicUsize::new(0) })
    }
}

#[async_trait::async_trait]
impl Internet for Town {
    async fn addresses(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match name {
            "files.example" => Ok(vec![([93, 184, 215, 14], port).into()]),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    async fn connect(&self, _: SocketAddr) -> io::Result<TcpStream> {
        self.n_connections.fetch_add(1, Ordering::Relaxed);
        TcpStream::connect(self.server).await
    }
}

/// Downloads one line into the workspace and one into the home folder, tries a host that is not listed, and changes and
/// hides files of the repository.
const SET_UP: &str = r#"#!/bin/bash
set -eu
ask() {
    exec 9<>/dev/tcp/127.0.0.1/${HTTPS_PROXY##*:}
    printf 'CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n' "$1" "$1" >&9
    read -r status <&9
    while read -r line <&9 && [ "$line" != $'\r' ]; do :; done
    echo "$status" | grep -q ' 200 ' || return 1
    echo "downloaded for $2" >&9
    read -r answer <&9
    echo "$answer"
    exec 9>&-
}
mkdir -p deps ~/.cache/deps
ask files.example:443 workspace > deps/answer
ask files.example:443 home > ~/.cache/deps/answer
! ask evil.example:443 evil
echo changed >> kept.txt
mkdir -p .git/hooks
printf 'own hook\n' > .git/hooks/post-checkout
"#;

/// What every run prints.
const CHECK: &str = r#"
cat deps/answer ~/.cache/deps/answer kept.txt
ls
env | grep -i _proxy && echo "way-""told"
ls /run
(exec 9<>/dev/tcp/127.0.0.1/3128) 2>/dev/null && echo "way-""out"
test ! -e .git/hooks/post-checkout || echo "ho""oked"
grep -q better code.txt
"#;

fn setup(internet: Arc<Town>, turns: Vec<Turn>) -> Setup {
    let file = "setup_command = \"bash setup.sh\"\ntest_command = \"bash check.sh\"\n";
    Setup {
        recording: Recording { turns, ..Recording::default() },
        files: [
            (".hyla.toml", file),
            ("setup.sh", SET_UP),
            ("check.sh", CHECK),
            ("code.txt", "good\n"),
            ("kept.txt", "kept\n"),
            ("old.txt", "old\n"),
            (".gitignore", "deps/\n"),
        ]
        .into(),
        internet: Some(internet),
        change: Box::new(|config| {
            config.egress.hosts = vec!["files.example".parse().expect("it is a host")];
        }),
        ..Setup::default()
    }
}

#[tokio::test]
async fn a_setup_command_downloads_once_and_each_run_gets_a_copy_of_its_own() {
    let town = Town::new().await;
    let look = format!("{CHECK}echo poison > deps/answer; echo poison > ~/.cache/deps/answer");
    let turns = vec![
        Turn::bash(&look),
        Turn::bash("cat ~/.cache/deps/answer; echo better > code.txt; rm old.txt"),
    ];
    let house = House::start(setup(Arc::clone(&town), turns)).await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work().await;

    let end = house.end().await;
    assert_eq!(end.outcome, Outcome::DraftPr, "{}", end.operator);
    assert_eq!(town.n_connections.load(Ordering::Relaxed), 2, "the setup command ran once");

    let requests = serde_json::to_string(&house.model.requests()).expect("it is JSON");
    assert!(
        requests.contains("downloaded for workspace\\ndownloaded for home\\nkept\\n"),
        "{requests}"
    );
    assert!(
        requests.contains("STDOUT:\\npoison"),
        "the home folder stays from one command to the next"
    );
    for word in ["way-told", "way-out", "hooked"] {
        assert!(!requests.contains(word), "{word}: {requests}");
    }

    let pull = house.forge.pulls(&house.repo).pop().expect("there is a draft");
    let body = &pull.body;
    assert!(body.contains("`evil.example:443` (1 time): it is not among the hosts"), "{body}");
    let n_runs = body.matches("downloaded for workspace\ndownloaded for home\nkept\n").count();
    assert_eq!(n_runs, 2, "before and after the patch: {body}");
    assert!(
        !body.contains("poison") && !body.contains("way-") && !body.contains("hooked"),
        "{body}"
    );
    assert_eq!(
        body.matches("old.txt").count(),
        2,
        "the change and the run before it, and no run after it: {body}"
    );
    house.assert_clean().await;
}

#[tokio::test]
async fn without_a_listed_host_a_setup_command_has_no_network() {
    let town = Town::new().await;
    let turns = vec![Turn::bash("echo better > code.txt")];
    let closed = Setup { change: Box::new(|_| {}), ..setup(Arc::clone(&town), turns) };
    let house = House::start(closed).await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work().await;
    let pull = house.forge.pulls(&house.repo).pop().expect("there is a draft");
    assert!(pull.body.contains("HTTPS_PROXY: unbound variable"), "{}", pull.body);
    assert_eq!(town.n_connections.load(Ordering::Relaxed), 0);
    house.assert_clean().await;
}
