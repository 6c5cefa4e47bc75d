//! What an attacker reaches: listeners of the machine, its sockets by name and by path, families of sockets that lead
//! elsewhere.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bot::sandbox::{SetupError, build};
use tokio::net::UdpSocket;

use super::bench::{IF_POSSIBLE, compare, options, outside, usual};

/// A listener that answers each packet and counts them.
async fn echo(address: &str, n_packets: &Arc<AtomicUsize>) -> Option<u16> {
    let socket = UdpSocket::bind((address, 0)).await.ok()?;
    let port = socket.local_addr().unwrap().port();
    let n_packets = Arc::clone(n_packets);
    tokio::spawn(async move {
        let mut byte = [0];
        while let Ok((_, from)) = socket.recv_from(&mut byte).await {
            n_packets.fetch_add(1, Ordering::Relaxed);
            let _ = socket.send_to(&byte, from).await;
        }
    });
    Some(port)
}

// The control waits for an answer, so somebody else must be free to give it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t10_no_listener_of_the_machine_answers() {
    let bench = usual();
    let n_packets = Arc::new(AtomicUsize::new(0));
    let mut table = Vec::new();
    let mut listeners = Vec::new();
    for address in ["127.0.0.1", "::1"] {
        let Ok(listener) = TcpListener::bind((address, 0)) else {
            eprintln!("left out: this machine has no {address}");
            continue;
        };
        let tcp = listener.local_addr().unwrap().port();
        let udp = echo(address, &n_packets).await.unwrap();
        table.push((format!("tcp,{address},{tcp}"), "ok", "ECONNREFUSED"));
        table.push((format!("udp,{address},{udp}"), "ok", "ECONNREFUSED"));
        listeners.push(listener);
    }
    // Only a route is asked for and no packet is sent. The addresses are those of documentation, with the port of a name
    // server, and the one where clouds keep their secrets.
    for target in ["192.0.2.1,53", "2001:db8::1,53", "169.254.169.254,80"] {
        table.push((format!("udp_connect,{target}"), IF_POSSIBLE, "ENETUNREACH"));
    }
    let rows: Vec<_> = table.iter().map(|row| (row.0.as_str(), row.1, row.2)).collect();
    compare(&bench, outside, &rows).await;
    assert_eq!(n_packets.load(Ordering::Relaxed), listeners.len(), "only the control's arrived");
    let names =
        "getent hosts git.example example.org; getent ahosts localhost | cut -d ' ' -f 1 | sort -u";
    let said = bench.says(names).await;
    assert!(said.lines().all(|line| ["127.0.0.1", "::1"].contains(&line)), "{said}");
    assert!(!said.is_empty(), "it knows its own name");
}

#[tokio::test]
async fn t11_no_socket_of_the_machine_is_reached() {
    let bench = usual();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("socket");
    let name = format!("hyla-attack-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listeners =
        [UnixListener::bind(&path).unwrap(), UnixListener::bind_addr(&address).unwrap()];
    let by_path = format!("unix_path,{}", path.display());
    let by_name = format!("abstract,{name}");
    compare(&bench, outside, &[(&by_path, "ok", "ENOENT"), (&by_name, "ok", "ECONNREFUSED")]).await;
}

/// A socket is a door to whoever listens, however the folder around it is shown.
#[tokio::test]
async fn t11_a_folder_with_a_socket_is_not_shown() {
    let place = tempfile::tempdir().unwrap();
    let inner = place.path().join("tools/deep/er");
    std::fs::create_dir_all(&inner).unwrap();
    let shown = |folder: &std::path::Path| options(|config| config.read_only = vec![folder.into()]);
    let folder = place.path().join("tools");
    assert!(build(shown(&folder)).is_ok());
    let _listener = UnixListener::bind(inner.join("agent.sock")).unwrap();
    let link = place.path().join("link");
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    for named in [&folder, &link, &inner.join("agent.sock")] {
        let Err(error) = build(shown(named)) else { panic!("{} is shown", named.display()) };
        assert!(matches!(error, SetupError::Unusable { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("agent.sock") && text.contains("`sandbox.read_only`"), "{text}");
    }
}

/// The configuration can name neither, and a link to one is no way around that.
#[tokio::test]
async fn t05_a_link_to_a_folder_of_the_system_is_not_shown() {
    let place = tempfile::tempdir().unwrap();
    let link = place.path().join("link");
    std::os::unix::fs::symlink("/etc", &link).unwrap();
    let Err(error) = build(options(|config| config.read_only = vec![link])) else {
        panic!("shown")
    };
    let text = error.to_string();
    assert!(text.contains("leads elsewhere") && text.contains("`/etc`"), "{text}");
}

#[tokio::test]
async fn t12_only_harmless_families_of_sockets_can_be_made() {
    let bench = usual();
    compare(
        &bench,
        outside,
        &[
            // AF_VSOCK reaches the machine around this one, AF_PACKET the wire, AF_ALG the kernel's ciphers.
            ("make_socket,40,1,0", IF_POSSIBLE, "EPERM"),
            ("make_socket,17,3,0", IF_POSSIBLE, "EPERM"),
            ("make_socket,38,5,0", IF_POSSIBLE, "EPERM"),
            // AF_NETLINK: only the protocol of routes, not audit, not uevents.
            ("make_socket,16,3,0", "ok", "ok"),
            ("make_socket,16,3,9", IF_POSSIBLE, "EPERM"),
            ("make_socket,16,3,15", IF_POSSIBLE, "EPERM"),
            ("make_socket,1,1,0", "ok", "ok"),
            ("make_socket,2,1,0", "ok", "ok"),
            ("make_socket,10,1,0", IF_POSSIBLE, "ok"),
            // Raw packets, over the loopback device too.
            ("make_socket,2,3,1", IF_POSSIBLE, "EPERM"),
            ("make_pair,1", "ok", "ok"),
            ("make_pair,2", "EOPNOTSUPP", "EPERM"),
            ("loopback", "ok", "ok"),
        ],
    )
    .await;
}
