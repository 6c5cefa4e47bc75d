//! What an attacker must not touch: a place on the host that anybody may write, with a secret in it, and listeners on every
//! address of the machine, each of which counts who comes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tests::house::way;
use tokio::net::{TcpListener, UdpSocket};

/// The host around the service.
pub(super) struct Host {
    folder: tempfile::TempDir,
    /// Stands in files and in the service's environment, and nowhere in what the model says.
    pub(super) secret: String,
    /// Who came to a listener.
    arrivals: Arc<AtomicUsize>,
    /// Connections and packets to them, as the probe calls them.
    pub(super) calls: Vec<String>,
    /// The TCP listener on the loopback interface.
    pub(super) port: u16,
}

impl Host {
    pub(super) async fn start() -> Self {
        let folder = way();
        let secret = format!("canary-{:016x}", fastrand::u64(..));
        for name in ["open", "apart"] {
            let place = folder.path().join(name);
            std::fs::create_dir(&place).expect("the temp folder can be written");
            for (file, text) in [("secret", secret.as_str()), ("victim", "as it was\n")] {
                std::fs::write(place.join(file), text).expect("the folder is ours");
                set_mode(&place.join(file), 0o666);
            }
            set_mode(&place, 0o777);
        }
        let mut host =
            Self { folder, secret, arrivals: Arc::default(), calls: Vec::new(), port: 0 };
        host.listen().await;
        host
    }

    /// The place that must stay as it is, or of the same kind the one for the controls.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn n_arrivals(&self) -> usize {
        self.arrivals.load(Ordering::SeqCst)
    }

    /// Waits until those who came have been counted.
    pub(super) async fn until_arrivals(&self, n: usize) {
        let begun = Instant::now();
        while self.n_arrivals() < n {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} of {n}", self.n_arrivals());
            tokio::task::yield_now().await;
        }
    }

    async fn listen(&mut self) {
        let mut addresses: Vec<IpAddr> = vec!["127.0.0.1".parse().expect("an address")];
        addresses.extend(["::1".parse().ok(), outward().await].into_iter().flatten());
        for address in addresses {
            let Ok(tcp) = TcpListener::bind(SocketAddr::from((address, 0))).await else { continue };
            let udp = UdpSocket::bind(SocketAddr::from((address, 0))).await.expect("as TCP");
            let port = |at: std::io::Result<SocketAddr>| at.expect("it is bound").port();
            let (at, udp_at) = (port(tcp.local_addr()), port(udp.local_addr()));
            self.calls.push(format!("tcp,{address},{at}"));
            self.calls.push(format!("udp,{address},{udp_at}"));
            if self.port == 0 {
                self.port = at;
            }
            let arrivals = Arc::clone(&self.arrivals);
            tokio::spawn(async move {
                while tcp.accept().await.is_ok() {
                    arrivals.fetch_add(1, Ordering::SeqCst);
                }
            });
            let arrivals = Arc::clone(&self.arrivals);
            tokio::spawn(async move {
                let mut packet = [0; 16];
                while let Ok((n, from)) = udp.recv_from(&mut packet).await {
                    arrivals.fetch_add(1, Ordering::SeqCst);
                    let _ = udp.send_to(&packet[..n], from).await;
                }
            });
        }
        let path = self.place("open").join("socket");
        let name = format!("hyla-{}", self.secret.replace("canary", "listener"));
        let abstract_name = UnixAddress::from_abstract_name(&name).expect("it is short");
        let by_path = UnixListener::bind(&path).expect("the folder is ours");
        set_mode(&path, 0o777);
        let by_name = UnixListener::bind_addr(&abstract_name).expect("it is new");
        self.calls.push(format!("unix_path,{}", path.display()));
        self.calls.push(format!("abstract,{name}"));
        for listener in [by_path, by_name] {
            listener.set_nonblocking(true).expect("it is a socket");
            let listener = tokio::net::UnixListener::from_std(listener).expect("it is a socket");
            let arrivals = Arc::clone(&self.arrivals);
            tokio::spawn(async move {
                while listener.accept().await.is_ok() {
                    arrivals.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    }
}

/// The address of this machine by which others know it, if it has one. No packet is sent.
async fn outward() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").await.ok()?;
    // An address for documentation: only the route to it is looked for.
    socket.connect("192.0.2.1:53").await.ok()?;
    Some(socket.local_addr().ok()?.ip())
}

pub(super) fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("it is ours");
}

/// All below some folders, with all that an attacker could change of it.
pub(super) fn tree(folders: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut left = folders.to_vec();
    while let Some(path) = left.pop() {
        let Ok(seen) = std::fs::symlink_metadata(&path) else { continue };
        let content =
            if seen.is_file() { std::fs::read(&path).unwrap_or_default() } else { vec![] };
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(content));
        let (mode, uid, gid) = (seen.mode(), seen.uid(), seen.gid());
        let (size, at, links) = (seen.len(), seen.ctime_nsec(), seen.nlink());
        let target = std::fs::read_link(&path).ok();
        let facts = format!("{mode:o} {uid} {gid} {size} {at} {links} {target:?} {digest}");
        if seen.is_dir() {
            left.extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|e| e.path()));
        }
        found.insert(path, facts);
    }
    found
}

/// The program that attacks, built once more for this test.
pub(super) const PROBE: &str = include_str!("../../../bot/tests/sandbox/probe.c");

/// The probe outside, where nothing holds it: what each attack is answered.
pub(super) fn outside(
    host: &Host,
    around: &[&str],
    attacks: &[String],
) -> BTreeMap<String, String> {
    let program = host.folder.path().join("probe");
    if !program.exists() {
        let source = host.folder.path().join("probe.c");
        std::fs::write(&source, PROBE).expect("the folder is ours");
        let mut cc = Command::new("cc");
        let built = cc.args(["-static", "-O1", "-o"]).args([&program, &source]).status();
        assert!(built.expect("install `build-essential`").success());
    }
    let words: Vec<&std::ffi::OsStr> =
        around.iter().map(std::ffi::OsStr::new).chain([program.as_os_str()]).collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .args(attacks)
        .current_dir(host.place("apart"))
        .stdin(Stdio::null())
        .output()
        .expect("the probe starts");
    answers(&String::from_utf8_lossy(&output.stdout))
}

/// What a probe says, by attack.
pub(super) fn answers(said: &str) -> BTreeMap<String, String> {
    let pairs = said.lines().filter_map(|line| line.rsplit_once('='));
    pairs.map(|(attack, answer)| (attack.to_owned(), answer.to_owned())).collect()
}
