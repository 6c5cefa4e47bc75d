//! The inner half of the way out: a small program beside a setup command in its sandbox, which passes connections to a port
//! on to the proxy's socket. It judges nothing; the proxy does.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

/// The hidden command's name.
pub const NAME: &str = "sandbox-forward";
/// Where the sandbox shows the program.
pub(super) const PROGRAM: &str = "/run/hyla";
/// Where it shows the proxy's socket.
pub(super) const SOCKET: &str = "/run/egress.sock";
/// Where programs inside find the proxy.
const PORT: u16 = 3128;
/// Exit code when the command was not started.
const NOT_STARTED: u8 = 125;

/// What tells programs of the proxy: some read small letters, some capital ones.
pub(super) fn variables() -> impl Iterator<Item = (String, String)> {
    let proxy = format!("http://127.0.0.1:{PORT}");
    let names = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];
    let own = ["NO_PROXY", "no_proxy"].map(|name| (name.to_owned(), "localhost,127.0.0.1".into()));
    names.map(|name| (name.to_owned(), proxy.clone())).into_iter().chain(own)
}

/// Runs a command, given as its words, and ends as it does.
pub fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    match run(words) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let words =
                format!("hyla {NAME}: cannot start the command beside its proxy: {error}\n");
            // Nobody is left to be told if even this fails.
            let _ = io::stderr().write_all(words.as_bytes());
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn run(mut words: impl Iterator<Item = OsString>) -> io::Result<u8> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))?;
    std::thread::Builder::new().spawn(move || {
        for inside in listener.incoming().flatten() {
            // Whoever finds no proxy, or no thread, sees a connection that ends.
            let _ = std::thread::Builder::new().spawn(move || pass(&inside));
        }
    })?;
    let program = words.next().ok_or_else(|| io::Error::other("it was given no command"))?;
    let status = Command::new(program).args(words).status()?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(NOT_STARTED))
}

/// Passes bytes on, both ways, until both ends have said all.
fn pass(inside: &TcpStream) -> io::Result<()> {
    let outside = UnixStream::connect(SOCKET)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &*inside, &mut &outside);
            let _ = outside.shutdown(Shutdown::Write);
        });
        let copied = io::copy(&mut &outside, &mut &*inside);
        let _ = inside.shutdown(Shutdown::Write);
        copied.map(drop)
    })
}
