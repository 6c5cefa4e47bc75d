//! T39 and T37: the backends without namespaces. What `landlock-degraded` says that it keeps is attacked, each with a control
//! that works outside; and what it says that it does not keep is shown to be so, or the list would be wrong.
//!
//! Each test has a user of its own, because all that this user runs ends with each command.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bot::sandbox::{Confinement, End, Extras, SetupError, Verdict, build};
use tokio::net::UdpSocket;

use super::bench::{Bench, IF_POSSIBLE, bench, command, compare, lives, marker, options, outside};
use super::bench::{probe, sleepers, until};

/// A user that no other test has, whatever else runs on this machine.
fn own_user() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    3_000_000 + (std::process::id() % 100_000) * 32 + NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The degraded backend; none where this machine lacks what it needs, which is said, and must be what it refuses by.
fn degraded(test: &str, change: impl FnOnce(&mut config::Sandbox)) -> Option<Bench> {
    let uid = own_user();
    let options = options(|config| {
        config.backend = config::Backend::LandlockDegraded;
        config.allow_degraded = true;
        (config.uid, config.gid) = (uid, uid);
        change(config);
    });
    match build(options.clone()) {
        Ok(_) => Some(bench(options)),
        Err(error) => {
            let words = error.to_string();
            assert!(words.contains("root") || words.contains("Landlock"), "{words}");
            eprintln!("{test} did not run here: {words}");
            None
        }
    }
}

#[tokio::test]
async fn t39_what_is_promised_holds_and_what_is_not_is_listed() {
    let Some(bench) = degraded("t39_what_is_promised", |_| {}) else { return };
    assert_eq!(bench.sandbox.confinement(), Confinement::Degraded);
    assert!(bench.sandbox.name().starts_with("landlock-degraded (Landlock ABI "));
    let report = bench.sandbox.probe().await;
    let failed: Vec<_> =
        report.checks.iter().filter(|check| check.verdict == Verdict::Fails).collect();
    assert!(report.holds(), "{failed:#?}");
    let gaps = report.checks.iter().filter(|check| check.name.starts_with("gap: "));
    assert!(gaps.clone().count() > 5 && gaps.clone().all(|gap| gap.verdict == Verdict::Warns));
    let names: Vec<_> = report.checks.iter().map(|check| check.name).collect();
    for name in ["no-sockets", "no-host-files", "no-host-processes", "ends-whole", "proves-deaths"]
    {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t39_no_socket_is_made_and_no_listener_reached() {
    let Some(bench) = degraded("t39_no_socket", |_| {}) else { return };
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (tcp_port, udp_port) = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
    tokio::spawn(async move {
        let mut byte = [0];
        while let Ok((_, from)) = udp.recv_from(&mut byte).await {
            let _ = udp.send_to(&byte, from).await;
        }
    });
    let place = super::bench::showable();
    let path = place.path().join("socket");
    let name = format!("hyla-lesser-{}", std::process::id());
    let by_name = SocketAddr::from_abstract_name(&name).unwrap();
    let _listeners =
        [UnixListener::bind(&path).unwrap(), UnixListener::bind_addr(&by_name).unwrap()];
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    compare(
        &bench,
        outside,
        &[
            (&format!("tcp,127.0.0.1,{tcp_port}"), "ok", "EPERM"),
            (&format!("udp,127.0.0.1,{udp_port}"), "ok", "EPERM"),
            (&format!("unix_path,{}", path.display()), "ok", "EPERM"),
            (&format!("abstract,{name}"), "ok", "EPERM"),
            // AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_VSOCK.
            ("make_socket,1,1,0", "ok", "EPERM"),
            ("make_socket,2,1,0", "ok", "EPERM"),
            ("make_socket,10,1,0", IF_POSSIBLE, "EPERM"),
            ("make_socket,16,3,0", "ok", "EPERM"),
            ("make_socket,40,1,0", IF_POSSIBLE, "EPERM"),
            ("make_pair,1", "ok", "ok"),
            ("ring", IF_POSSIBLE, "EPERM"),
            ("memory_look", "ENOENT", "EPERM"),
            ("memory_attach,0", IF_POSSIBLE, "EPERM"),
            ("queue_look", IF_POSSIBLE, "EPERM"),
        ],
    )
    .await;
}

/// A folder that everybody may write, with files that everybody may write, so that nothing but Landlock is in the way.
fn open_folder(place: &Path, name: &str) -> String {
    let folder = place.join(name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    for name in ["kept", "moved", "dropped"] {
        std::fs::write(folder.join(name), "the canary").unwrap();
        std::fs::set_permissions(folder.join(name), PermissionsExt::from_mode(0o666)).unwrap();
    }
    folder.display().to_string()
}

#[tokio::test]
async fn t39_no_file_outside_is_read_or_written_whatever_its_mode() {
    let Some(bench) = degraded("t39_no_file_outside", |_| {}) else { return };
    let place = super::bench::showable();
    let (root, control) = (open_folder(place.path(), "a"), open_folder(place.path(), "control"));
    let denied = [
        format!("open_to_read,{root}/kept"),
        format!("open_to_write,{root}/kept"),
        format!("shorten,{root}/kept"),
        format!("make_file,{root}/new"),
        format!("make_folder,{root}/folder"),
        format!("link_to_itself,{root}/link"),
        format!("link_to,{root}/kept,{root}/linked"),
        format!("move,{root}/moved,{root}/away"),
        format!("drop,{root}/dropped"),
    ];
    let rows: Vec<_> = denied.iter().map(|attack| (attack.as_str(), "ok", "EACCES")).collect();
    // Of files of its own, or there would be nothing left to attack inside.
    let at_the_control = |attacks: &[String]| {
        let own: Vec<String> =
            attacks.iter().map(|attack| attack.replace(&root, &control)).collect();
        let pairs = own.iter().map(String::as_str).zip(attacks.iter().map(String::as_str));
        outside(&own).renamed(pairs)
    };
    compare(&bench, at_the_control, &rows).await;
    compare(
        &bench,
        outside,
        &[
            ("open_to_read,/etc/passwd", "ok", "EACCES"),
            ("make_file,/tmp/hyla-lesser", IF_POSSIBLE, "EACCES"),
            ("make_file,/dev/shm/hyla-lesser", IF_POSSIBLE, "EACCES"),
            ("open_to_write,/dev/null", "ok", "ok"),
            ("open_to_read,/usr/bin/env", "ok", "ok"),
        ],
    )
    .await;
    for leftover in ["/tmp/hyla-lesser", "/dev/shm/hyla-lesser"] {
        let _ = std::fs::remove_file(leftover);
    }
    let said = bench.says(&format!("echo x >>{root}/kept; cat {root}/kept 2>&1")).await;
    assert!(said.contains("Permission denied") && !said.contains("canary"), "{said}");
    assert_eq!(std::fs::read_to_string(format!("{root}/kept")).unwrap(), "the canary");
}

/// The list says that these are kept by who owns a file and not by Landlock, and that what is there can be asked for: so both
/// must be as it says.
#[tokio::test]
async fn t39_modes_times_and_attributes_are_kept_by_ownership_alone() {
    let Some(bench) = degraded("t39_modes", |_| {}) else { return };
    let place = super::bench::showable();
    let bot::workspace::Owner::Sandbox { uid, .. } = bench.workspace.owner() else { panic!() };
    let of = |attack: &str, owner: &str| {
        let file = place.path().join(format!("{attack}-{owner}"));
        std::fs::write(&file, "x").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        if owner == "own" {
            chown(&file, Some(uid), Some(uid)).unwrap();
        }
        format!("{attack},{}", file.display())
    };
    compare(
        &bench,
        outside,
        &[
            (&of("set_mode", "others"), "ok", "EPERM"),
            (&of("set_times", "others"), "ok", "EACCES"),
            (&of("set_attribute", "others"), IF_POSSIBLE, "EACCES"),
            (&of("set_owner", "others"), "ok", "EPERM"),
            // The gap, shown with files that no operator should have there.
            (&of("set_mode", "own"), "ok", "ok"),
            (&of("set_times", "own"), "ok", "ok"),
            (&of("set_attribute", "own"), IF_POSSIBLE, "ok"),
            (&of("open_to_write", "own"), "ok", "EACCES"),
        ],
    )
    .await;
    let said = bench.says(&format!("stat -c %s {}/set_mode-others", place.path().display())).await;
    assert_eq!(said, "1\n", "the gap: what is there can be asked for");
}

#[tokio::test]
async fn t39_no_process_outside_is_read_or_signalled_and_all_are_seen() {
    let Some(bench) = degraded("t39_no_process", |_| {}) else { return };
    let pause = marker(4739);
    let mut service =
        Process::new("sleep").arg(&pause).env("HYLA_CANARY", "secret").spawn().unwrap();
    let number = service.id();
    let environment = format!("/proc/{number}/environ");
    until("it has begun", || lives(&format!("sleep {pause}"))).await;
    assert!(std::fs::read_to_string(&environment).unwrap().contains("HYLA_CANARY"), "the control");
    let said = bench
        .says(&format!(
            "cat {environment} 2>&1; kill -0 {number} 2>&1; kill -9 {number} 2>&1; tr '\\0' ' ' </proc/{number}/cmdline"
        ))
        .await;
    assert!(!said.contains("secret"), "{said}");
    assert_eq!(said.matches("Permission denied").count(), 1, "{said}");
    assert_eq!(said.matches("Operation not permitted").count(), 2, "{said}");
    assert!(said.ends_with(&format!("sleep {pause} ")), "the gap: command lines are seen: {said}");
    assert!(service.try_wait().unwrap().is_none(), "it lives");
    service.kill().unwrap();
    service.wait().unwrap();
    let said =
        bench.says("cat /proc/$PPID/environ /proc/$PPID/cwd/x 2>&1; kill -9 $PPID 2>&1").await;
    assert_eq!(said.matches("denied").count(), 2, "its guard is out of reach: {said}");
}

#[tokio::test]
async fn t39_a_command_has_what_it_needs_and_no_more() {
    let Some(bench) = degraded("t39_a_command", |_| {}) else { return };
    let root = bench.workspace.root().display().to_string();
    let said = bench
        .says("pwd; id -u; id -G; ulimit -c; compgen -e | sort | tr '\\n' ' '; echo; ls -A ~ $TMPDIR | wc -l")
        .await;
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some(root.as_str()));
    let uid = lines.next().unwrap().to_owned();
    assert_eq!((lines.next(), lines.next()), (Some(uid.as_str()), Some("0")));
    let names = "CI GIT_CONFIG_NOSYSTEM GIT_TERMINAL_PROMPT HOME LANG LOGNAME PATH PWD SHELL SHLVL TERM TMPDIR USER ";
    assert_eq!(lines.next(), Some(names));
    let blocked =
        bench.says("grep -E '^(SigBlk|Seccomp|NoNewPrivs|CapEff):' /proc/self/status").await;
    let blocked = blocked.replace('\t', " ");
    let expected = "CapEff: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n";
    assert!(blocked.contains("SigBlk: 0000000000000000\n"), "{blocked}");
    assert!(expected.lines().all(|line| blocked.contains(line)), "{blocked}");
    let script = "echo made > made && mktemp >/dev/null && echo x > ~/x && git init -q . && git -c user.name=a -c user.email=b commit -q --allow-empty -m x && python3 -c 'import subprocess, os; os.rename(\"made\", \"renamed\"); print(subprocess.check_output([\"cat\", \"renamed\"]).decode())' && cat <(echo through a pipe)";
    let finished = bench.run(script).await;
    let said = String::from_utf8_lossy(&finished.stdout.head).into_owned();
    assert_eq!(
        said,
        "made\n\nthrough a pipe\n",
        "{}",
        String::from_utf8_lossy(&finished.stderr.head)
    );
    assert_eq!(
        bench.says("ls -A ~ $TMPDIR | grep -cx x").await,
        "0\n",
        "a home is for one command"
    );
    let script = format!("{}\necho $0", "# x\n".repeat(100_000));
    assert_eq!(bench.says(&script).await, "/bin/bash\n", "a script longer than an argument may be");
    let beside: Vec<_> = std::fs::read_dir(bench.folder.path()).unwrap().flatten().collect();
    assert_eq!(beside.len(), 1, "nothing is left beside the workspace: {beside:?}");
}

/// What ends commands, and how: the same for both backends.
async fn every_end_is_told(bench: &Bench) {
    for (script, end) in [
        ("true", End::Exited(0)),
        ("exit 3", End::Exited(3)),
        ("kill -9 $$", End::Exited(137)),
        ("no-such-command", End::Exited(127)),
        ("exit 3\0", End::Exited(126)),
        ("head -c 2000000 /dev/zero > big", End::Exited(153)),
        ("while :; do n=$((n + 1)); head -c 900000 /dev/zero > big.$n; done", End::DiskFull),
        (
            "rm big*; while :; do n=$((n + 1)); head -c 900000 /dev/zero > $TMPDIR/big.$n; done",
            End::DiskFull,
        ),
    ] {
        assert_eq!(bench.run(script).await.end, end, "{script}");
    }
    let finished = bench.run("echo out; echo err >&2; yes | head -c 10000000").await;
    assert_eq!(finished.stdout.head.len(), 64 << 10, "the flood is cut");
    assert!(finished.stdout.head.starts_with(b"out\ny\n") && finished.stdout.dropped_bytes > 0);
    assert_eq!(finished.stderr.head, b"err\n");
}

fn tight(config: &mut config::Sandbox) {
    config.file_bytes = 1 << 20;
    config.workspace_bytes = 10 << 20;
    (config.tmp_bytes, config.home_bytes) = (5 << 20, 5 << 20);
}

#[tokio::test]
async fn t39_every_end_of_a_command_is_told() {
    let Some(bench) = degraded("t39_every_end", tight) else { return };
    every_end_is_told(&bench).await;
}

/// Whatever moved away from its parent, its session or its signals.
async fn nothing_outlives_a_command(bench: &Bench) {
    let pause = marker(4740);
    let left = format!(
        "setsid sleep {pause} & nohup sleep {pause} >/dev/null 2>&1 & (sleep {pause} & (trap '' TERM HUP; setsid sleep {pause}) &) & sleep 0.2"
    );
    for (script, limit, end) in [
        (format!("{left}; exit 5"), Duration::from_secs(60), End::Exited(5)),
        (format!("{left}; sleep {pause}"), Duration::from_secs(1), End::TimedOut),
    ] {
        let mut asked = command(&script);
        asked.timeout = limit;
        let finished = bench.sandbox.run(&bench.workspace, &asked).await.unwrap();
        assert_eq!(finished.end, end, "{script}");
        assert!(!lives(&format!("sleep {pause}")), "{script}");
    }
    for millis in [0, 1, 3, 10, 40] {
        let busy = command(&format!("setsid sleep {pause} & while :; do date >> now; done"));
        tokio::select! {
            biased;
            finished = bench.sandbox.run(&bench.workspace, &busy) => panic!("{finished:?}"),
            () = tokio::time::sleep(Duration::from_millis(millis)) => {}
        }
        bench.sandbox.quiet().await.unwrap();
        assert!(!lives(&format!("sleep {pause}")), "given up after {millis} ms");
    }
    let mut bomb =
        command("bomb() { setsid bash -c \"$(declare -f bomb); bomb & bomb\" & bomb; }; bomb");
    bomb.timeout = Duration::from_secs(2);
    let begun = Instant::now();
    let finished = bench.sandbox.run(&bench.workspace, &bomb).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(matches!(finished.end, End::TimedOut | End::Exited(_)), "{finished:?}");
    assert!(!lives("declare -f bomb") && bench.sandbox.is_sure());
    assert_eq!(bench.says("echo still here").await, "still here\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t39_nothing_outlives_a_command() {
    let change = |config: &mut config::Sandbox| config.processes = 100;
    let Some(bench) = degraded("t39_nothing_outlives", change) else { return };
    nothing_outlives_a_command(&bench).await;
}

/// A service that is killed in the middle of a command, which nobody could tell to end it.
#[tokio::test]
async fn t39_no_command_outlives_a_service_that_is_killed() {
    let Some(bench) = degraded("t39_no_command_outlives", |_| {}) else { return };
    let bot::workspace::Owner::Sandbox { uid, .. } = bench.workspace.owner() else { panic!() };
    let pause = marker(4742);
    let mut service = Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "lesser::sleeps_for_another_test", "--ignored"])
        .env("HYLA_TEST_USER", uid.to_string())
        .env("HYLA_TEST_WORKSPACE", bench.workspace.root())
        .env("HYLA_TEST_SCRIPT", format!("setsid sleep {pause} & (sleep {pause} &); sleep {pause}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("all of it runs", || super::bench::sleepers(&pause).len() == 3).await;
    service.kill().unwrap();
    service.wait().unwrap();
    until("nothing of it runs", || !lives(&pause)).await;
}

#[tokio::test]
#[ignore = "started by another test, which kills it"]
async fn sleeps_for_another_test() {
    let user = std::env::var("HYLA_TEST_USER").ok().and_then(|user| user.parse().ok());
    let Some(uid) = user else { return };
    let options = options(|config| {
        config.backend = config::Backend::LandlockDegraded;
        config.allow_degraded = true;
        (config.uid, config.gid) = (uid, uid);
    });
    let root = std::env::var_os("HYLA_TEST_WORKSPACE").unwrap();
    let owner = bot::sandbox::workspace_owner(&options);
    let workspace = bot::workspace::Workspace::open(Path::new(&root), owner).unwrap();
    let script = std::env::var("HYLA_TEST_SCRIPT").unwrap();
    build(options).unwrap().run(&workspace, &command(&script)).await.unwrap();
}

#[tokio::test]
async fn t39_a_user_that_somebody_else_is_gets_no_command() {
    let Some(bench) = degraded("t39_a_user", |_| {}) else { return };
    let bot::workspace::Owner::Sandbox { uid, .. } = bench.workspace.owner() else { panic!() };
    let pause = marker(4741);
    let mut other = Process::new("setpriv")
        .args([format!("--reuid={uid}"), "--clear-groups".into(), "sleep".into(), pause.clone()])
        .spawn()
        .unwrap();
    // Not while it is still `setpriv`, which is root.
    until("it has begun", || !sleepers(&pause).is_empty()).await;
    let refused = bench.sandbox.run(&bench.workspace, &command("true")).await.unwrap_err();
    assert!(matches!(refused, SetupError::Start { .. }), "{refused}");
    assert!(refused.to_string().contains("has a process already"), "{refused}");
    assert!(other.try_wait().unwrap().is_none(), "it was left alone");
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(bench.run("true").await.end, End::Exited(0));
}

#[tokio::test]
async fn what_only_a_mount_can_show_is_refused() {
    let Some(bench) = degraded("what_only_a_mount", |_| {}) else { return };
    let folder = std::fs::File::open("/usr").unwrap();
    let folders = vec![("/run/x", std::sync::Arc::new(folder.into()))];
    let extras = Extras { folders, ..Extras::default() };
    let asked = bot::sandbox::Command { extras, ..command("true") };
    let refused = bench.sandbox.run(&bench.workspace, &asked).await.unwrap_err();
    assert!(refused.to_string().contains("`landlock-degraded`"), "{refused}");
}

/// The tests of the backend `none`, as a user that is not root, in a process of its own: the way of its environment.
#[tokio::test]
async fn t37_without_a_sandbox_nothing_runs_unless_it_was_accepted() {
    let place = super::bench::showable();
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o777)).unwrap();
    // The way to the built programs may be closed to others.
    let (test, helper, attack) =
        (place.path().join("test"), place.path().join("hyla"), place.path().join("probe"));
    std::fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_hyla"), &helper).unwrap();
    std::fs::copy(probe(), attack).unwrap();
    let inner = |accepted: &str| {
        let uid = own_user();
        let mut process = match rustix::process::geteuid().is_root() {
            true => {
                let mut process = Process::new("setpriv");
                let user = [format!("--reuid={uid}"), format!("--regid={uid}")];
                process.args(user).arg("--clear-groups").arg(&test);
                process
            }
            false => Process::new(&test),
        };
        process.args(["--exact", "lesser::runs_without_a_sandbox", "--ignored", "--nocapture"]);
        process
            .current_dir(place.path())
            .env("TMPDIR", place.path())
            .env("HYLA_TEST_HELPER", &helper);
        process.env("HYLA_I_ACCEPT_UNSANDBOXED_AGENT", accepted).stdin(Stdio::null());
        process.output().unwrap()
    };
    for (accepted, said) in [("0", "REFUSED"), ("", "REFUSED"), ("1", "RAN")] {
        let output = inner(accepted);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && text.contains(said), "{accepted}: {text}{errors}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test, as a user of its own"]
async fn runs_without_a_sandbox() {
    let Some(helper) = std::env::var_os("HYLA_TEST_HELPER") else { return };
    let mut options = options(|config| {
        config.backend = config::Backend::None;
        tight(config);
        config.processes = 100;
    });
    options.helper = helper.into();
    if let Err(error) = build(options.clone()) {
        assert!(error.to_string().contains("HYLA_I_ACCEPT_UNSANDBOXED_AGENT=1"), "{error}");
        println!("REFUSED");
        return;
    }
    let bench = bench(options);
    assert_eq!(
        (bench.sandbox.confinement(), bench.sandbox.name()),
        (Confinement::None, "none".into())
    );
    let report = bench.sandbox.probe().await;
    assert!(report.holds(), "{report:#?}");
    assert!(report.checks.iter().any(|check| check.name == "gap: everything"), "{report:#?}");
    every_end_is_told(&bench).await;
    bench.run("rm -f big*").await;
    nothing_outlives_a_command(&bench).await;
    // It is what it says: nothing keeps a command in.
    assert_eq!(bench.says("echo x > ../beside; cat ../beside; cat /etc/hostname >&2").await, "x\n");
    // What a service manager sends to all that it ends must not end a guard before its command.
    assert_eq!(bench.run("kill -TERM $PPID; sleep 0.1; exit 4").await.end, End::Exited(4));
    // A guard that its command ends is seen, and nothing runs any more.
    let ended = bench.sandbox.run(&bench.workspace, &command("kill -9 $PPID; sleep 1")).await;
    assert!(matches!(ended, Err(SetupError::StillAlive { .. })), "{ended:?}");
    assert!(!bench.sandbox.is_sure());
    let next = bench.sandbox.run(&bench.workspace, &command("true")).await;
    assert!(matches!(next, Err(SetupError::Unsure)), "{next:?}");
    println!("RAN");
}
