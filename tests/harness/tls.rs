//! Servers behind a certificate authority that the system does not know. One is played by the `openssl` command: it serves
//! whole HTTP answers from files and understands nothing. The other one stands before a real one, as a proxy does.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use native_tls::Identity;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_native_tls::TlsAcceptor;

/// A host that no name server knows. The certificate is for it too.
pub const NOWHERE: &str = "forge.invalid";

/// A server that is killed with its value.
pub struct TlsServer {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl TlsServer {
    /// Serves JSON texts at paths such as `api/v1/user`. None if there is no `openssl` command.
    ///
    /// # Panics
    /// The folder for temporary files cannot be written, or the command does not do what it should.
    pub fn start(answers: &[(&str, &str)]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("the temp folder can be written");
        if !make_certificate(folder.path()) {
            return None;
        }
        for (path, json) in answers {
            let file = folder.path().join(path);
            let parent = file.parent().expect("a file has a folder");
            std::fs::create_dir_all(parent).expect("the temp folder can be written");
            let answer = format!("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{json}");
            std::fs::write(&file, answer).expect("the temp folder can be written");
        }
        let (child, port) = serve(folder.path());
        Some(Self { child, port, folder })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// The file with its authority.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        // It may have ended by itself already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A proxy that speaks TLS and passes on what it is told, byte by byte. It ends with its value.
pub struct TlsFront {
    task: JoinHandle<()>,
    port: u16,
    folder: tempfile::TempDir,
}

impl TlsFront {
    /// A proxy before the server at an address such as `127.0.0.1:80`. None if there is no `openssl` command.
    ///
    /// # Panics
    /// The folder for temporary files cannot be written, or the certificate that the command made is none.
    pub async fn start(behind: String) -> Option<Self> {
        let folder = tempfile::tempdir().expect("the temp folder can be written");
        if !make_certificate(folder.path()) {
            return None;
        }
        let read = |name| std::fs::read(folder.path().join(name)).expect("it was just made");
        let identity = Identity::from_pkcs8(&read("ca.pem"), &read("key.pem"));
        let acceptor = native_tls::TlsAcceptor::new(identity.expect("openssl makes what it reads"));
        let acceptor = TlsAcceptor::from(acceptor.expect("a certificate and its key are enough"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let task = tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                tokio::spawn(pass(acceptor.clone(), from, behind.clone()));
            }
        });
        Some(Self { task, port, folder })
    }

    /// Where it is, without a path.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// The file with its authority.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One connection. Whoever does not trust the certificate ends it, and that is all.
async fn pass(acceptor: TlsAcceptor, from: TcpStream, behind: String) {
    let (Ok(mut from), Ok(mut to)) =
        (acceptor.accept(from).await, TcpStream::connect(behind).await)
    else {
        return;
    };
    // Small answers would wait for each other; and either side may hang up at any time.
    let _ = (from.get_ref().get_ref().get_ref().set_nodelay(true), to.set_nodelay(true));
    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
}

/// Whether there is an `openssl` command.
pub fn is_there() -> bool {
    Command::new("openssl").arg("version").stdout(Stdio::null()).status().is_ok()
}

/// A certificate for `localhost`, and for a host that no name leads to, that is its own authority.
fn make_certificate(folder: &Path) -> bool {
    Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext"])
        .arg(format!("subjectAltName=DNS:localhost,DNS:{NOWHERE}"))
        .args(["-keyout", "key.pem", "-out", "ca.pem"])
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn serve(folder: &Path) -> (Child, u16) {
    let mut child = Command::new("openssl")
        .args(["s_server", "-HTTP", "-accept", "127.0.0.1:0", "-cert", "ca.pem"])
        .args(["-key", "key.pem"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl has run before");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let port =
        lines.find_map(|line| line.ok()?.strip_prefix("ACCEPT ")?.rsplit(':').next()?.parse().ok());
    // Its later words must have somewhere to go.
    std::thread::spawn(move || lines.for_each(drop));
    (child, port.expect("openssl says where it listens"))
}
