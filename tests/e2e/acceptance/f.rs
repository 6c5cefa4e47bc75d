//! Check F: from inside the sandbox of a job nothing outside is reached: no name, no connection, no packet, no socket of the
//! host, no metadata service, no other process. Each try is shown to work outside first, where the machine can show it.

use std::io::Write as _;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use bot::job::Outcome;
use tests::house::{House, Place, Setup};
use tests::model::{Recording, Turn};

/// Says of each try whether it worked.
const PROBE: &str = r#"
import os, socket, sys
tcp, udp, unix, forge = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(2)
        s.connect(address)
def send():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("127.0.0.1", udp))
        # Where nobody listens, the second packet is told so.
        s.send(b"out")
        s.send(b"out")
def environ():
    # Whose environment holds the secret: the service's, somewhere above.
    for number in os.listdir("/proc"):
        if number.isdigit():
            try:
                if b"HYLA_CANARY" in open(f"/proc/{number}/environ", "rb").read():
                    return
            except OSError:
                pass
    raise OSError("nobody's")
tries = {
    "tcp": lambda: connect(socket.AF_INET, ("127.0.0.1", tcp)),
    "forge": lambda: connect(socket.AF_INET, ("127.0.0.1", forge)),
    "unix": lambda: connect(socket.AF_UNIX, unix),
    "udp": send,
    "environ": environ,
    "dns": lambda: socket.getaddrinfo("example.org", 80),
    "metadata": lambda: connect(socket.AF_INET, ("169.254.169.254", 80)),
}
for name, attempt in tries.items():
    try:
        attempt()
        print(name, "worked")
    except OSError as e:
        print(name, "failed")
"#;

/// What every machine can show outside.
const SHOWN: [&str; 5] = ["tcp", "forge", "unix", "udp", "environ"];

/// The probe's words, run on the host.
fn outside(arguments: &[String]) -> String {
    let mut python = Command::new("python3")
        .arg("-")
        .args(arguments)
        .env("HYLA_CANARY", "a-secret-of-the-host")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 can be started");
    let mut stdin = python.stdin.take().expect("it is piped");
    stdin.write_all(PROBE.as_bytes()).expect("python3 reads");
    drop(stdin);
    let output = python.wait_with_output().expect("python3 ends");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn check_f_nothing_outside_is_reached_from_inside() {
    let folder = tempfile::tempdir().expect("the temp folder can be written");
    let unix = folder.path().join("socket");
    let _socket = UnixListener::bind(&unix).expect("the temp folder can be written");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
    udp.set_nonblocking(true).expect("it is ours");
    tcp.set_nonblocking(true).expect("it is ours");
    for place in [Place::GITEA, Place::GITHUB_APP, Place::GITHUB_USER] {
        let house = House::start(place.with(Setup::default())).await;
        let port = |address: std::net::SocketAddr| address.port().to_string();
        let arguments = [
            port(tcp.local_addr().expect("it is bound")),
            port(udp.local_addr().expect("it is bound")),
            unix.display().to_string(),
            house.forge.url().port().expect("it has one").to_string(),
        ];
        let words = outside(&arguments);
        for name in SHOWN {
            assert!(words.contains(&format!("{name} worked")), "the control of {name}: {words}");
        }
        while tcp.accept().is_ok() {}
        while udp.recv(&mut [0; 8]).is_ok() {}

        let script = format!(
            "cat > /tmp/probe.py <<'E'\n{PROBE}\nE\npython3 /tmp/probe.py {}",
            arguments.join(" ")
        );
        let fix = "echo '# looked at' >> hours.py";
        let turns = vec![Turn::bash(&script), Turn::bash(fix), Turn::says("Done.")];
        house.model.plays(Recording { turns, ..Recording::default() });
        house.labelled_and_worked().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{place:?}: {}", end.operator);
        let told = house.model.observations("").remove(0);
        assert_eq!(told.matches(" failed").count(), 7, "{place:?}: {told}");
        assert!(!told.contains("worked"), "{place:?}: {told}");
        assert!(tcp.accept().is_err() && udp.recv(&mut [0; 8]).is_err(), "{place:?}");
        house.assert_clean().await;
    }
}
