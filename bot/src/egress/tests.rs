//! A setup command's side of the proxy, with an internet of the test's own behind it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use config::Egress;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::*;

/// Names and their addresses. Every connection ends at a server of the test, which says what it hears in capitals.
struct Town {
    names: BTreeMap<&'static str, Vec<IpAddr>>,
    server: SocketAddr,
    reached: Mutex<Vec<SocketAddr>>,
}

#[async_trait]
impl Internet for Town {
    async fn addresses(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = self.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(found.iter().map(|&address| (address, port).into()).collect())
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.reached.lock().unwrap().push(to);
        TcpStream::connect(self.server).await
    }
}

struct World {
    town: Arc<Town>,
    proxy: Proxy,
    folder: tempfile::TempDir,
}

async fn world(rules: Egress) -> World {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut heard = Vec::new();
                let _ = stream.read_to_end(&mut heard).await;
                let _ = stream.write_all(&heard.to_ascii_uppercase()).await;
            });
        }
    });
    let names = [
        ("files.example", vec!["93.184.215.14"]),
        ("mirror.corp.example", vec!["10.1.2.3"]),
        ("metadata.example", vec!["169.254.169.254"]),
        ("here.example", vec!["127.0.0.1"]),
        ("mixed.example", vec!["93.184.215.14", "127.0.0.1"]),
    ];
    let parsed = |list: Vec<&str>| list.iter().map(|text| text.parse().unwrap()).collect();
    let names = names.into_iter().map(|(name, list)| (name, parsed(list))).collect();
    let town = Arc::new(Town { names, server, reached: Mutex::default() });
    let folder = tempfile::tempdir().unwrap();
    let socket = UnixListener::bind(folder.path().join("socket")).unwrap();
    let proxy = Proxy::start(socket, rules, Arc::clone(&town) as Arc<dyn Internet>);
    World { town, proxy, folder }
}

fn rules() -> Egress {
    let list = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect();
    Egress {
        hosts: list(&[
            "files.example",
            "metadata.example",
            "here.example",
            "mixed.example",
            "gone.example",
            "mirror.corp.example:444",
        ]),
        internal_hosts: list(&["mirror.corp.example", "here.example:444", "metadata.example:444"]),
        limit_bytes: 1 << 20,
        connect_timeout: Duration::from_secs(15),
    }
}

impl World {
    /// Says all of it and then nothing more, and returns all that is answered.
    async fn say(&self, words: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.folder.path().join("socket")).await.unwrap();
        stream.write_all(words).await.unwrap();
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await.unwrap_or(0) > 0 {
            answer.push(byte[0]);
        }
        if answer.starts_with(b"HTTP/1.1 200") {
            stream.write_all(b"hello").await.unwrap();
            stream.shutdown().await.unwrap();
        }
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn connect(&self, to: &str) -> String {
        self.say(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).await
    }
}

#[tokio::test]
async fn t40_listed_hosts_are_reached_at_the_address_that_was_judged() {
    let world = world(rules()).await;
    for host in ["files.example:443", "FILES.example:443", "mirror.corp.example:443"] {
        let answer = world.connect(host).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("HELLO"),
            "{host}: {answer}"
        );
    }
    let reached: Vec<String> =
        world.town.reached.lock().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(reached, ["93.184.215.14:443", "93.184.215.14:443", "10.1.2.3:443"]);
    let traffic = world.proxy.finish().await;
    assert_eq!(traffic, Traffic { n_bytes: 30, ..Traffic::default() });
}

#[tokio::test]
async fn t40_nothing_else_is_reached_and_each_refusal_is_told_and_kept() {
    let world = world(rules()).await;
    let cases: [(&str, &str, Option<Refusal>); 16] = [
        ("other.example:443", "403", Some(Refusal::NotListed)),
        ("files.example:22", "403", Some(Refusal::NotListed)),
        ("sub.files.example:443", "403", Some(Refusal::NotListed)),
        ("xn--files-1x5a.example:443", "403", Some(Refusal::NotListed)),
        ("files.example.:443", "400", None),
        ("files.example", "400", None),
        ("user@files.example:443", "400", None),
        ("evil.example#files.example:443", "400", None),
        ("93.184.215.14:443", "400", None),
        ("0x5db8d70e:443", "400", None),
        ("[::1]:443", "400", None),
        ("gone.example:443", "502", Some(Refusal::NoAddress)),
        ("metadata.example:443", "403", Some(Refusal::Nearby)),
        ("metadata.example:444", "403", Some(Refusal::Nearby)),
        ("mixed.example:443", "403", Some(Refusal::Nearby)),
        ("mirror.corp.example:444", "403", Some(Refusal::Internal)),
    ];
    for (host, status, _) in &cases {
        let answer = world.connect(host).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
    }
    let answer = world.connect("here.example:444").await;
    assert!(answer.ends_with("where nothing may be asked\n"), "{answer}");
    assert!(world.town.reached.lock().unwrap().is_empty());
    let traffic = world.proxy.finish().await;
    assert_eq!(traffic.n_bytes, 0);
    for (host, _, why) in cases {
        let kept = traffic.refused.keys().find(|(asked, _)| asked == host);
        let (_, kept) = kept.unwrap_or_else(|| panic!("{host} was not kept: {traffic:?}"));
        assert!(why.is_none_or(|why| why == *kept), "{host}: {kept:?}");
    }
}

#[tokio::test]
async fn t40_what_is_no_request_for_a_tunnel_reaches_nobody() {
    let world = world(rules()).await;
    let long = format!("CONNECT files.example:443 HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(9000));
    let cases: [(&[u8], &str); 6] = [
        (b"GET http://files.example/ HTTP/1.1\r\nHost: files.example\r\n\r\n", "HTTP/1.1 405 "),
        (b"CONNECT files.example\0.other.example:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "),
        (b"CONNECT files.example:443\r\n\r\n", "HTTP/1.1 400 "),
        (b"\x05\x01\x00\x03\x0dfiles.example\x01\xbb\r\n\r\n", "HTTP/1.1 400 "),
        (
            b"CONNECT files.example:443 HTTP/1.1\nX: y\nCONNECT other.example:443 HTTP/1.1\r\n\r\n",
            "HTTP/1.1 400 ",
        ),
        (long.as_bytes(), ""),
    ];
    for (words, expected) in cases {
        let answer = world.say(words).await;
        let shown = String::from_utf8_lossy(words);
        assert!(answer.starts_with(expected) && !answer.contains("200"), "{shown}: {answer}");
    }
    assert!(world.town.reached.lock().unwrap().is_empty());
}

#[tokio::test]
async fn t40_no_more_bytes_go_through_than_the_limit() {
    let world = world(Egress { limit_bytes: 12, ..rules() }).await;
    let first = world.connect("files.example:443").await;
    assert!(first.ends_with("HELLO"), "{first}");
    // Ten are spent, and two are left.
    let second = world.connect("files.example:443").await;
    assert!(!second.contains("HELLO"), "{second}");
    let third = world.connect("files.example:443").await;
    assert!(third.starts_with("HTTP/1.1 403 ") && third.contains("as many bytes"), "{third}");
    let traffic = world.proxy.finish().await;
    assert_eq!(traffic.refused.len(), 1, "{traffic:?}");
}

#[tokio::test]
async fn t40_refusals_without_number_take_little_memory() {
    let world = world(rules()).await;
    for n in 0..30 {
        world.connect(&format!("h{n}.example:443")).await;
        world.connect("h0.example:443").await;
    }
    let traffic = world.proxy.finish().await;
    assert_eq!(traffic.refused.len(), REFUSALS_KEPT);
    assert_eq!(traffic.n_more_refused, 10);
    assert_eq!(traffic.refused[&("h0.example:443".to_owned(), Refusal::NotListed)], 31);
}

#[tokio::test]
async fn t40_nothing_goes_through_once_the_command_has_ended() {
    let world = world(rules()).await;
    let path = world.folder.path().join("socket");
    let mut open = UnixStream::connect(&path).await.unwrap();
    open.write_all(b"CONNECT files.example:443 HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    open.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    world.proxy.finish().await;
    let mut rest = Vec::new();
    let _ = open.read_to_end(&mut rest).await;
    assert!(!rest.ends_with(b"HELLO"));
    assert!(UnixStream::connect(&path).await.is_err());
}
