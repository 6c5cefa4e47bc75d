//! The proxy itself: one task that accepts, and one for each connection.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use config::{Egress, Host};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::{Internet, Place, Refusal, Traffic, place};

/// Connections at once; further ones wait. Package managers use some ten.
const CONNECTIONS: usize = 64;
/// Bytes of a request's head at most, and how long it may take to arrive.
const HEAD_BYTES: usize = 8192;
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Headers of a request at most.
const HEADERS: usize = 64;
/// Characters that are kept of what was asked for: the longest name with a port has 259.
const ASKED_CHARS: usize = 260;
/// Bytes that are passed on at a time.
const CHUNK_BYTES: usize = 32 << 10;

/// A running proxy. Dropped, it ends, and every connection through it.
pub struct Proxy {
    shared: Arc<Shared>,
    // Holds all tasks; the name is for whoever reads a debugger.
    accepting: JoinSet<()>,
}

struct Shared {
    rules: Egress,
    internet: Arc<dyn Internet>,
    traffic: Mutex<Traffic>,
}

impl Proxy {
    /// Serves whoever connects to the socket, by these rules.
    pub fn start(listener: UnixListener, rules: Egress, internet: Arc<dyn Internet>) -> Self {
        let shared = Arc::new(Shared { rules, internet, traffic: Mutex::default() });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&shared)));
        Self { shared, accepting }
    }

    /// Ends it, and tells what went through.
    pub async fn finish(mut self) -> Traffic {
        self.accepting.shutdown().await;
        self.shared.traffic().clone()
    }
}

async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        if connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let shared = Arc::clone(&shared);
                    connections.spawn(async move {
                        if let Err(error) = serve(stream, &shared).await {
                            tracing::debug!(%error, "a connection of a setup command broke off");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of a setup command");
                    return;
                }
            },
        }
    }
}

/// One connection: its request, and the tunnel.
async fn serve(mut inside: UnixStream, shared: &Shared) -> io::Result<()> {
    let Ok(head) = tokio::time::timeout(HEAD_TIME, read_head(&mut inside)).await else {
        return Ok(());
    };
    let head = head?;
    let (asked, outside) = match target(&head) {
        Ok(asked) => {
            let outside = shared.connected(&asked).await;
            (asked, outside)
        }
        Err((asked, why)) => (asked, Err(why)),
    };
    match outside {
        Ok(mut outside) => {
            inside.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
            shared.tunnel(&asked, &mut inside, &mut outside).await
        }
        Err(why) => {
            shared.traffic().refuse(&asked, why);
            let status = match why {
                Refusal::NoTunnel => "405 Method Not Allowed",
                Refusal::NoHost(_) => "400 Bad Request",
                Refusal::NotListed | Refusal::Internal | Refusal::Nearby | Refusal::Spent => {
                    "403 Forbidden"
                }
                Refusal::NoAddress | Refusal::NoAnswer => "502 Bad Gateway",
            };
            let words = format!("cannot connect to `{asked}`: {why}\n");
            let length = words.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{words}"
            );
            inside.write_all(answer.as_bytes()).await
        }
    }
}

/// Reads a request's head. A client of a tunnel says nothing more before it has the answer.
async fn read_head(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the head of a request is too long",
            ));
        }
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&bytes[..n]),
        }
    }
    Ok(head)
}

/// What a request asks for, or why it is refused, with what can be shown of it.
fn target(head: &[u8]) -> Result<String, (String, Refusal)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let is_whole = request.parse(head).is_ok_and(|status| status.is_complete());
    let asked: String = request.path.unwrap_or_default().chars().take(ASKED_CHARS).collect();
    match request.method {
        Some("CONNECT") if is_whole => Ok(asked),
        Some("CONNECT") | None => Err((asked, Refusal::NoHost("the request cannot be read"))),
        Some(_) => Err((asked, Refusal::NoTunnel)),
    }
}

impl Shared {
    fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to what was asked for, if it is on a list and its address is where the list says.
    async fn connected(&self, asked: &str) -> Result<TcpStream, Refusal> {
        let host = Host::asked(asked).map_err(Refusal::NoHost)?;
        if self.is_spent() {
            return Err(Refusal::Spent);
        }
        let address = address_of(&host, &self.rules, self.internet.as_ref()).await?;
        let limit = self.rules.connect_timeout;
        let connected = tokio::time::timeout(limit, self.internet.connect(address)).await;
        connected.ok().and_then(Result::ok).ok_or(Refusal::NoAnswer)
    }

    fn is_spent(&self) -> bool {
        self.traffic().n_bytes >= self.rules.limit_bytes
    }

    /// Passes bytes on, both ways, until both ends have said all, one of them fails, or the limit is reached.
    async fn tunnel(
        &self,
        asked: &str,
        inside: &mut UnixStream,
        outside: &mut TcpStream,
    ) -> io::Result<()> {
        let (from_inside, to_inside) = inside.split();
        let (from_outside, to_outside) = outside.split();
        let passed = tokio::try_join!(
            self.pass(from_inside, to_outside),
            self.pass(from_outside, to_inside)
        );
        if self.is_spent() {
            self.traffic().refuse(asked, Refusal::Spent);
        }
        passed.map(drop)
    }

    async fn pass(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut bytes = vec![0; CHUNK_BYTES];
        loop {
            let n = from.read(&mut bytes).await?;
            if n == 0 {
                return to.shutdown().await;
            }
            {
                let mut traffic = self.traffic();
                traffic.n_bytes = traffic.n_bytes.saturating_add(n as u64);
                if traffic.n_bytes > self.rules.limit_bytes {
                    return Err(io::Error::other(Refusal::Spent));
                }
            }
            to.write_all(&bytes[..n]).await?;
        }
    }
}

/// Where a setup command would be led that asks for this host.
///
/// # Errors
/// The host is on no list, or its address is not where the list says.
pub async fn address_of(
    host: &Host,
    rules: &Egress,
    internet: &dyn Internet,
) -> Result<SocketAddr, Refusal> {
    let is_internal = rules.internal_hosts.contains(host);
    if !is_internal && !rules.hosts.contains(host) {
        return Err(Refusal::NotListed);
    }
    let asked = internet.addresses(host.name(), host.port());
    let found = tokio::time::timeout(rules.connect_timeout, asked).await;
    judged(&found.ok().and_then(Result::ok).unwrap_or_default(), is_internal)
}

/// The first address, if every one of them is where the list says. A name that leads to several places is not believed.
fn judged(found: &[SocketAddr], is_internal: bool) -> Result<SocketAddr, Refusal> {
    for address in found {
        match place(address.ip()) {
            Place::Public => {}
            Place::Internal if is_internal => {}
            Place::Internal => return Err(Refusal::Internal),
            Place::Nearby => return Err(Refusal::Nearby),
        }
    }
    found.first().copied().ok_or(Refusal::NoAddress)
}
