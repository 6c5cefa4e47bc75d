//! A server behind a certificate authority that the system does not know, played by the `openssl` command. It serves whole
//! HTTP answers from files and understands nothing.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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

/// A certificate for `localhost` that is its own authority.
fn make_certificate(folder: &Path) -> bool {
    Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
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
