//! A forge's git over HTTP on loopback: the real `git http-backend` behind a token.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// `hyla:canary-token`, as HTTP Basic writes it.
const TOKEN: &str = "Basic aHlsYTpjYW5hcnktdG9rZW4=";

/// Serves the repositories below a folder, and returns the address of `NAME`.
pub(crate) fn serve(root: &Path, name: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/{name}", listener.local_addr().unwrap());
    let root = root.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), &root);
        }
    });
    url
}

fn answer(stream: TcpStream, root: &PathBuf) {
    let mut reader = BufReader::new(stream);
    let Some((request, headers)) = head(&mut reader) else { return };
    let header = |name: &str| {
        let found = headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value.as_str())
    };
    let body = body(&mut reader, header("transfer-encoding"), header("content-length"));
    let stream = reader.get_mut();
    if header("authorization") != TOKEN {
        let challenge = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"forge\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(challenge.as_bytes()).unwrap();
        return;
    }
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut child = Command::new("git")
        .arg("http-backend")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_PROJECT_ROOT", root)
        .envs([("GIT_HTTP_EXPORT_ALL", "1"), ("REMOTE_USER", "hyla"), ("HOME", "/nonexistent")])
        .envs([("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "safe.directory")])
        .env("GIT_CONFIG_VALUE_0", "*")
        .envs([("REQUEST_METHOD", method), ("PATH_INFO", path), ("QUERY_STRING", query)])
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || stdin.write_all(&body));
    let output = child.wait_with_output().unwrap();
    let _ = feeder.join();
    let ends = output.stdout.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let length = output.stdout.len() - ends - 4;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let status = text.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
    let start = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n");
    let _ = stream.write_all(start.as_bytes());
    let _ = stream.write_all(&output.stdout);
}

type Head = (String, Vec<(String, String)>);

fn head(reader: &mut impl BufRead) -> Option<Head> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let split = |line: &String| line.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned()));
    let headers = lines.iter().skip(1).filter_map(split).collect();
    Some((lines.into_iter().next()?, headers))
}

fn body(reader: &mut impl BufRead, encoding: &str, length: &str) -> Vec<u8> {
    let mut body = vec![0; length.parse().unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    if encoding != "chunked" {
        return body;
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&chunk[..size]);
    }
}
