//! A forge behind a certificate authority that the system does not know, played by the `openssl` command.

use super::*;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server that is killed with its value.
struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
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

/// Serves the files of a folder, which hold whole HTTP answers.
fn serve(folder: &Path) -> Server {
    let mut child = Command::new("openssl")
        .args(["s_server", "-HTTP", "-accept", "127.0.0.1:0", "-cert", "ca.pem"])
        .args(["-key", "key.pem"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port = lines.find_map(|line| {
        let line = line.unwrap();
        line.strip_prefix("ACCEPT ")?.rsplit(':').next()?.parse().ok()
    });
    // Its later words must have somewhere to go.
    std::thread::spawn(move || lines.for_each(drop));
    Server { child, port: port.unwrap() }
}

#[tokio::test]
async fn an_authority_from_the_ca_file_is_trusted_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    if !make_certificate(folder.path()) {
        eprintln!("skipped: there is no openssl command");
        return;
    }
    std::fs::create_dir_all(folder.path().join("api/v1")).unwrap();
    let answer =
        "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"id\": 5, \"login\": \"hyla\"}";
    std::fs::write(folder.path().join("api/v1/user"), answer).unwrap();
    let server = serve(folder.path());
    let scene = Scene::new(Dialect::Gitea127).await;
    let mut options = options(&scene.forge, Dialect::Gitea127, &scene.token);
    options.url = format!("https://localhost:{}", server.port).parse().unwrap();
    let error = Gitea::new(options.clone()).unwrap().whoami().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    options.ca_file = Some(folder.path().join("ca.pem"));
    let client = Gitea::new(options.clone()).unwrap();
    assert_eq!(client.whoami().await.unwrap().login, "hyla");
    assert_eq!(client.remote(&scene.repo).ca_file, options.ca_file);
}
