//! A proxy that makes tunnels, as an organisation has one between its networks. Whatever host it is asked for, it leads to one
//! server.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The longest head of a request that is read.
const HEAD_BYTES: usize = 64 << 10;

/// The proxy. It ends with its value.
pub struct Proxy {
    task: JoinHandle<()>,
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// A proxy to the server at an address such as `127.0.0.1:80`.
    ///
    /// # Panics
    /// Loopback has no free port.
    pub async fn start(behind: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                tokio::spawn(pass(from, behind.clone(), Arc::clone(&seen)));
            }
        });
        Self { task, port, asked }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The first line of every connection, such as `CONNECT forge.example:443 HTTP/1.1`.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One connection. Whoever asks for anything but a tunnel is not answered.
async fn pass(mut from: TcpStream, behind: String, asked: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let n = from.read_buf(&mut head).await.unwrap_or_default();
        if n == 0 || head.len() > HEAD_BYTES {
            return;
        }
    }
    let first = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    asked.lock().unwrap_or_else(PoisonError::into_inner).push(first.clone());
    let Ok(mut to) = TcpStream::connect(behind).await else { return };
    let _ = (from.set_nodelay(true), to.set_nodelay(true));
    if first.starts_with("CONNECT ")
        && from.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.is_ok()
    {
        let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
    }
}
