//! The backend of a container engine, with real podman: what it promises is what bubblewrap does.
//!
//! The image is made of this machine's own programs. Where podman is not here or cannot run a container, each test says so.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command as Process, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bot::sandbox::{self, End, Extras, Options, SetupError, Verdict};
use bot::workspace::Workspace;

use super::bench::{
    Bench, IF_POSSIBLE, bench, command, compare, lives, living, marker, options, outside,
    outside_as_root, said, showable, sleepers, until,
};

const PODMAN: &str = "/usr/bin/podman";

/// What works here.
struct Here {
    image: String,
    runtime: Option<String>,
}

/// The image and a runtime that starts it; or why there is none.
fn here() -> Option<&'static Here> {
    static HERE: OnceLock<Result<Here, String>> = OnceLock::new();
    match HERE.get_or_init(find) {
        Ok(here) => Some(here),
        Err(reason) => {
            eprintln!("oci: not run here: {reason}");
            None
        }
    }
}

fn podman(words: &[&str]) -> Output {
    Process::new(PODMAN).args(words).stdin(Stdio::null()).output().unwrap()
}

fn find() -> Result<Here, String> {
    if !Path::new(PODMAN).exists() {
        return Err(format!("there is no {PODMAN}; install the package `podman`"));
    }
    let image = image()?;
    let mut reasons = Vec::new();
    for runtime in [None, Some("runc"), Some("crun")] {
        let here = Here { image: image.clone(), runtime: runtime.map(str::to_owned) };
        match plain(&here) {
            Ok(()) => return Ok(here),
            Err(reason) => {
                reasons.push(format!("with {}: {reason}", runtime.unwrap_or("its own runtime")))
            }
        }
    }
    Err(reasons.join("; "))
}

/// Made once for each state of the script that makes it.
fn image() -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sandbox/image.sh");
    let mut text = DefaultHasher::new();
    include_str!("image.sh").hash(&mut text);
    let name = format!("localhost/hyla-test-{:x}:1", text.finish());
    if podman(&["image", "exists", &name]).status.success() {
        return Ok(name);
    }
    let built = Process::new("bash")
        .arg(script)
        .args([PODMAN, &name, env!("CARGO_BIN_EXE_hyla")])
        .output()
        .map_err(|error| error.to_string())?;
    if built.status.success() {
        return Ok(name);
    }
    Err(format!("no image can be made: {}", String::from_utf8_lossy(&built.stderr)))
}

/// Whether the engine itself runs a container, with nothing of ours.
fn plain(here: &Here) -> Result<(), String> {
    let mut words: Vec<&str> = Vec::new();
    if let Some(runtime) = &here.runtime {
        words.extend(["--runtime", runtime]);
    }
    words.extend(["run", "--rm", "--network=none", &here.image, "/bin/true"]);
    let ran = podman(&words);
    match ran.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
    }
}

fn in_containers(here: &Here, data: &Path, change: impl FnOnce(&mut config::Sandbox)) -> Options {
    let options = options(|config| {
        config.backend = config::Backend::Oci;
        config.oci.engine = PODMAN.into();
        config.oci.image.clone_from(&here.image);
        config.oci.runtime.clone_from(&here.runtime);
        change(config);
    });
    Options { data: data.into(), ..options }
}

/// A bench with a data folder of its own; none where no container runs.
fn containers(change: impl FnOnce(&mut config::Sandbox)) -> Option<(Bench, tempfile::TempDir)> {
    let data = tempfile::tempdir().unwrap();
    let bench = bench(in_containers(here()?, data.path(), change));
    Some((bench, data))
}

#[tokio::test]
async fn oci_every_property_holds_here() {
    let Some((bench, _data)) = containers(|_| {}) else { return };
    let report = bench.sandbox.probe().await;
    let failed: Vec<_> =
        report.checks.iter().filter(|check| check.verdict != Verdict::Holds).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(report.checks.len() > 20);
    assert!(
        report.backend.starts_with("podman ") && report.backend.contains(" with "),
        "{}",
        report.backend
    );
    assert_eq!(report.backend, bench.sandbox.name());
}

#[tokio::test]
async fn oci_a_command_ends_as_it_says() {
    let Some((bench, _data)) = containers(|config| {
        config.env.insert("FROM_CONFIG".into(), "yes, it's".into());
    }) else {
        return;
    };
    for (script, end) in [
        ("exit 3", End::Exited(3)),
        ("exit 125", End::Exited(125)),
        ("kill -9 $$", End::Exited(137)),
        ("kill -TERM $$", End::Exited(143)),
        ("no-such-command", End::Exited(127)),
        ("exit 3\0", End::Exited(126)),
        ("kill -9 1; kill 1; exit 4", End::Exited(4)),
    ] {
        assert_eq!(bench.run(script).await.end, end, "{script}");
    }
    let finished = bench.run("echo out; echo err >&2; pwd; id -un; cat; printf 'ä\\n'").await;
    assert_eq!(finished.stdout.head, "out\n/workspace\nagent\nä\n".as_bytes());
    assert_eq!(finished.stderr.head, b"err\n");
    assert_eq!(bench.says("echo made > made; cat made").await, "made\n");
    assert_eq!(bench.workspace.read(Path::new("made"), 100).unwrap(), b"made\n");
    assert_eq!(bench.says("echo $FROM_CONFIG $HOME $0").await, "yes, it's /home/agent /bin/bash\n");
    let script = format!("{}\necho $0; ls /proc/self/fd | wc -l", "# x\n".repeat(100_000));
    assert_eq!(bench.says(&script).await, "/bin/bash\n4\n", "longer than an argument may be");
}

#[tokio::test]
async fn oci_limits_end_a_command_by_their_names() {
    let Some((bench, _data)) = containers(|config| {
        config.memory_bytes = 64 << 20;
        config.workspace_bytes = 10 << 20;
    }) else {
        return;
    };
    // Also where the shell would go on and say that all is well.
    let greedy = "head -c 200000000 /dev/zero | tail >/dev/null; exit 0";
    for _ in 0..5 {
        assert_eq!(bench.run(greedy).await.end, End::OutOfMemory);
    }
    let finished = bench.run("while :; do head -c 1000000 /dev/zero >> big; done").await;
    assert_eq!(finished.end, End::DiskFull);
    bench.run("rm big").await;
    let mut endless = command("yes & yes >&2; wait");
    endless.timeout = Duration::from_secs(1);
    let finished = bench.sandbox.run(&bench.workspace, &endless).await.unwrap();
    assert_eq!(finished.end, End::TimedOut);
    assert!(finished.elapsed < Duration::from_secs(3), "{:?}", finished.elapsed);
    assert_eq!(finished.stdout.head.len(), endless.head_bytes);
    assert!(finished.stdout.dropped_bytes > 0 && finished.stderr.dropped_bytes > 0);
}

#[tokio::test]
async fn oci_both_ends_of_a_flood_are_kept() {
    let Some((bench, _data)) = containers(|_| {}) else { return };
    let mut asked = command("echo first; head -c 50000000 /dev/zero; echo last");
    (asked.head_bytes, asked.tail_bytes) = (4096, 4096);
    for _ in 0..3 {
        let finished = bench.sandbox.run(&bench.workspace, &asked).await.unwrap();
        let (head, tail) = (&finished.stdout.head, &finished.stdout.tail);
        assert!(head.starts_with(b"first\n") && tail.ends_with(b"last\n"));
        assert_eq!(finished.stdout.dropped_bytes, 50_000_011 - 8192);
    }
}

#[tokio::test]
async fn oci_t01_no_variable_and_no_open_file_of_the_service_goes_anywhere() {
    let Some((bench, data)) = containers(|_| {}) else { return };
    let pause = marker(4761);
    let script = format!(
        "env; cat /proc/*/environ | tr '\\0' '\\n'; ls -l /proc/self/fd /proc/1/fd; touch begun; sleep {pause}"
    );
    // The control: the process that starts the engine has it, and a file that is open to all that it starts.
    let around = ["bash", "-c", "exec 9</etc/hostname; \"$@\"", "bash"];
    let mut service = another(&bench, data.path(), &around, &script);
    let mut service = service.env("HYLA_CANARY", SECRET).spawn().unwrap();
    let begun = bench.workspace.root().join("begun");
    until("the command runs", || begun.exists() && !sleepers(&pause).is_empty()).await;
    let environments = environments(SECRET);
    assert!(environments.iter().any(|words| words.contains("another_process")), "{environments:?}");
    let told = |words: &String| words.contains("podman") || words.contains("conmon");
    assert!(!environments.iter().any(told), "{environments:?}");
    for pid in sleepers(&pause) {
        end(pid);
    }
    service.wait().unwrap();
    let seen = std::fs::read_to_string(bench.folder.path().join("said")).unwrap();
    assert!(seen.contains("HOME=/home/agent") && !seen.contains(SECRET), "{seen}");
    assert!(!seen.contains("hostname"), "{seen}");
}

#[tokio::test]
async fn oci_t08_t09_t12_t21_what_is_denied_is_denied() {
    let Some((bench, _data)) = containers(|_| {}) else { return };
    compare(
        &bench,
        outside_as_root,
        &[
            ("mount_tmpfs,/mnt", "ok", "EPERM"),
            ("remount,/", "ok", "EPERM"),
            ("pivot,/", "EINVAL", "EPERM"),
            ("change_root,/", "ok", "EPERM"),
            ("unshare_user", "ok", "EPERM"),
            ("clone_user", "ok", "EPERM"),
            ("clone3_user", "ok", "ENOSYS"),
            ("enter_namespace,/proc/self/ns/mnt", "ok", "EPERM"),
        ],
    )
    .await;
    bench.run("echo x > own; chmod 755 own").await;
    let apart = tempfile::tempdir().unwrap();
    std::fs::write(apart.path().join("own"), "x").unwrap();
    let own = apart.path().display().to_string();
    let set_ids =
        ["setuid_chmod", "setuid_chmod_high", "setuid_fchmod", "setgid_chmod", "setuid_open"];
    let outer: Vec<String> = set_ids.iter().map(|attack| format!("{attack},{own}/own")).collect();
    let inner: Vec<String> =
        set_ids.iter().map(|attack| format!("{attack},/workspace/own")).collect();
    let control = outside(&outer);
    let pairs = outer.iter().map(String::as_str).zip(inner.iter().map(String::as_str));
    let rows: Vec<_> = inner.iter().map(|attack| (attack.as_str(), IF_POSSIBLE, "EPERM")).collect();
    compare(&bench, |_| control.renamed(pairs), &rows).await;
    let mut table = vec![
        ("ring", IF_POSSIBLE, "EPERM"),
        ("bpf_map", IF_POSSIBLE, "EPERM"),
        ("add_key", "ok", "EPERM"),
        ("trace", "ok", "EPERM"),
        ("read_memory", "ok", "EPERM"),
        ("open_handle,/", IF_POSSIBLE, "EPERM"),
        ("make_socket,40,1,0", IF_POSSIBLE, "EPERM"),
        ("make_socket,17,3,0", IF_POSSIBLE, "EPERM"),
        ("make_socket,38,5,0", IF_POSSIBLE, "EPERM"),
        ("make_socket,16,3,0", "ok", "ok"),
        ("make_socket,16,3,9", IF_POSSIBLE, "EPERM"),
        ("make_socket,1,1,0", "ok", "ok"),
        ("make_socket,2,1,0", "ok", "ok"),
        ("make_pair,1", "ok", "ok"),
        ("make_pair,2", "EOPNOTSUPP", "EPERM"),
        ("loopback", "ok", "ok"),
        // No route leads out of it.
        ("udp_connect,192.0.2.1,53", IF_POSSIBLE, "ENETUNREACH"),
    ];
    if cfg!(target_arch = "x86_64") {
        table.push(("old_calls", IF_POSSIBLE, "SIGSYS"));
    }
    compare(&bench, outside, &table).await;
}

/// What leaves daemons of every kind, which all sleep for this long.
fn daemons(pause: &str) -> String {
    format!(
        "setsid sleep {pause} & (trap '' TERM HUP INT; sleep {pause}) & (setsid sleep {pause} &) & \
         until [ $(grep -lxz -- '{pause}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l) -ge 3 ]; do :; done; echo left"
    )
}

#[tokio::test]
async fn oci_t24_daemons_end_with_their_command() {
    let Some((bench, _data)) = containers(|_| {}) else { return };
    let pause = marker(4762);
    assert_eq!(bench.says(&daemons(&pause)).await, "left\n");
    assert!(!lives(&pause), "{:?}", living(&pause));
    let mut sleeper = command(&format!("{}; sleep {pause}", daemons(&pause)));
    sleeper.timeout = Duration::from_secs(2);
    let finished = bench.sandbox.run(&bench.workspace, &sleeper).await.unwrap();
    assert_eq!((finished.end, finished.stdout.head.as_slice()), (End::TimedOut, &b"left\n"[..]));
    assert!(!lives(&pause), "{:?}", living(&pause));
}

/// The names of the containers of a data folder.
fn left_in(data: &Path) -> Vec<String> {
    let number = std::fs::read_to_string(data.join("oci/id")).unwrap();
    let filter = format!("label=hyla.data={number}");
    let names = said(&podman(&["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"]));
    names.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn oci_t24_a_killed_service_leaves_nothing_that_runs_and_the_next_removes_the_rest() {
    let Some((bench, data)) = containers(|_| {}) else { return };
    let Some((_other, apart)) = containers(|_| {}) else { return };
    let pause = marker(4763);
    let script = format!("{}; sleep {pause}", daemons(&pause));
    let mut service = another(&bench, data.path(), &["env"], &script).spawn().unwrap();
    until("the daemons run", || sleepers(&pause).len() >= 4).await;
    assert_eq!(left_in(data.path()).len(), 1);

    // Neither the process that made this bench nor one of another data folder takes the running container for a dead one's.
    drop(sandbox::build(in_containers(here().unwrap(), data.path(), |_| {})).unwrap());
    assert_eq!((left_in(data.path()).len(), left_in(apart.path()).len()), (1, 0));
    assert!(sleepers(&pause).len() >= 4);

    service.kill().unwrap();
    service.wait().unwrap();
    let killed = Instant::now();
    until("the daemons are dead", || !lives(&pause)).await;
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    drop(sandbox::build(in_containers(here().unwrap(), apart.path(), |_| {})).unwrap());
    assert_eq!(left_in(data.path()).len(), 1, "the other data folder's service removes none of it");
    drop(sandbox::build(in_containers(here().unwrap(), data.path(), |_| {})).unwrap());
    assert_eq!(left_in(data.path()), Vec::<String>::new());
    let folders = std::fs::read_dir(data.path().join("oci")).unwrap().filter_map(Result::ok);
    let folders = folders.filter(|entry| entry.path().is_dir()).count();
    assert_eq!(folders, 1, "that of this process, and none of a dead one");
}

#[tokio::test]
async fn oci_t25_a_command_that_is_given_up_at_any_moment_leaves_nothing() {
    let Some((bench, data)) = containers(|_| {}) else { return };
    let pause = marker(4764);
    for round in 0..super::bench::length(12, 100) {
        let running = command(&format!("sleep {pause} & date >> now; sleep {pause}"));
        let wait = Duration::from_millis(fastrand::u64(0..900));
        tokio::select! {
            finished = bench.sandbox.run(&bench.workspace, &running) => panic!("{round}: {finished:?}"),
            () = tokio::time::sleep(wait) => {}
        }
        if round % 3 == 0 {
            bench.sandbox.quiet().await.unwrap();
            assert!(!lives(&pause), "{:?}", living(&pause));
        }
    }
    bench.sandbox.quiet().await.unwrap();
    assert!(bench.sandbox.is_sure());
    assert!(!lives(&pause), "{:?}", living(&pause));
    assert_eq!(left_in(data.path()), Vec::<String>::new());
}

#[tokio::test]
async fn oci_extras_are_shown_and_no_more() {
    let tools = showable();
    std::fs::write(tools.path().join("tool"), "the tool\n").unwrap();
    let shown = tools.path().to_owned();
    let Some((bench, _data)) = containers(|config| config.read_only = vec![shown]) else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(folder.path().join("kept"), "of the set-up\n").unwrap();
    let held = Arc::new(std::fs::File::open(folder.path()).unwrap().into());
    let extras = Extras { folders: vec![("/run/kept", held)], proxy: None };
    let tool = tools.path().join("tool");
    let script = format!(
        "cat /run/kept/kept {0}; echo x > /run/kept/more || echo x > {0} || echo denied",
        tool.display()
    );
    let mut asked = command(&script);
    asked.extras = extras;
    let finished = bench.sandbox.run(&bench.workspace, &asked).await.unwrap();
    assert_eq!(said_of(&finished.stdout), "of the set-up\nthe tool\ndenied\n");
    assert!(!folder.path().join("more").exists());
    assert_eq!(bench.says("ls /run").await, "", "the next command is shown none of it");
    // A folder that has been moved away since it was opened is not followed by its name.
    let moved = folder.path().with_extension("moved");
    std::fs::rename(folder.path(), &moved).unwrap();
    std::fs::create_dir(folder.path()).unwrap();
    assert_eq!(bench.sandbox.run(&bench.workspace, &asked).await.unwrap().end, End::Exited(0));
    std::fs::remove_dir_all(&moved).unwrap();
    let error = bench.sandbox.run(&bench.workspace, &asked).await.unwrap_err();
    assert!(matches!(error, SetupError::Start { .. }), "{error}");
}

#[tokio::test]
async fn oci_a_setup_command_reaches_its_proxy_and_nobody_else() {
    let Some((bench, _data)) = containers(|_| {}) else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.path().join("egress.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    let answer = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 4];
        stream.read_exact(&mut asked).unwrap();
        stream.write_all(b"pong\n").unwrap();
        asked
    });
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let socket = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    let mut asked = command(
        "exec 9<>/dev/tcp/127.0.0.1/${HTTPS_PROXY##*:}; printf ping >&9; head -n 1 <&9; exit 5",
    );
    asked.extras = Extras { folders: Vec::new(), proxy: Some(Arc::new(socket)) };
    let finished = bench.sandbox.run(&bench.workspace, &asked).await.unwrap();
    assert_eq!((finished.end, said_of(&finished.stdout).as_str()), (End::Exited(5), "pong\n"));
    assert_eq!(&answer.join().unwrap(), b"ping");
}

#[tokio::test]
async fn oci_a_home_that_stays_is_writable_and_stays() {
    let Some((bench, _data)) = containers(|_| {}) else { return };
    let owner = bench.workspace.owner();
    let home = Workspace::create(&bench.folder.path().join("home"), owner).unwrap();
    let root = bench.workspace.root();
    let workspace = Workspace::open(root, owner).unwrap().with_home(home);
    for (script, expected) in [("echo kept > ~/kept", ""), ("cat ~/kept", "kept\n")] {
        let finished = bench.sandbox.run(&workspace, &command(script)).await.unwrap();
        assert_eq!((finished.end, said_of(&finished.stdout).as_str()), (End::Exited(0), expected));
    }
    assert_eq!(bench.says("ls -A ~").await, "");
}

#[tokio::test]
async fn oci_commands_at_the_same_time_do_not_see_each_other() {
    let Some((bench, _data)) = containers(|_| {}) else { return };
    let script =
        |n: u32| format!("echo {n} > /tmp/own; ls /tmp; cat /tmp/own; ls /proc | grep -c '^[0-9]'");
    let (one, other) = (bench.neighbour(), bench.neighbour());
    let (scripts, neighbour) = ([script(1), script(2), script(3)], &bench);
    let said =
        tokio::join!(one.says(&scripts[0]), other.says(&scripts[1]), neighbour.says(&scripts[2]));
    for (n, said) in [(1, said.0), (2, said.1), (3, said.2)] {
        assert!(said.starts_with(&format!("own\n{n}\n")) && said.lines().count() == 3, "{said}");
    }
}

/// What is wrong with a configuration, in a sentence.
fn refused(change: impl FnOnce(&mut config::Sandbox), data: &Path) -> String {
    let options = options(|config| {
        config.backend = config::Backend::Oci;
        config.oci.image = "localhost/no-such-image:1".into();
        change(config);
    });
    match sandbox::build(Options { data: data.into(), ..options }) {
        Ok(_) => panic!("it is built"),
        Err(error @ SetupError::Unusable { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
    }
}

/// A program that only root can change, with these lines.
fn engine(folder: &Path, name: &str, lines: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/bash\n{lines}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[test]
fn oci_what_cannot_be_an_engine_is_refused_with_what_to_do() {
    let data = tempfile::tempdir().unwrap();
    let says = |change: &dyn Fn(&mut config::Sandbox)| refused(change, data.path());
    let missing = says(&|config| config.oci.engine = "/usr/bin/no-such-engine".into());
    assert!(missing.contains("there is no") && missing.contains("`podman`"), "{missing}");
    let relative = says(&|config| config.oci.engine = "podman".into());
    assert!(relative.contains("`sandbox.oci.engine`"), "{relative}");
    let other = says(&|config| config.oci.engine = "/usr/bin/true".into());
    assert!(other.contains("neither podman nor docker"), "{other}");
    let folder = tempfile::tempdir().unwrap();
    let own = engine(folder.path(), "own", "exit 0");
    let anybodys = says(&|config| config.oci.engine.clone_from(&own));
    assert!(anybodys.contains("can be changed by others than root"), "{anybodys}");
}

/// An engine that says what real ones say where they cannot keep what is promised.
#[test]
fn oci_an_engine_that_cannot_keep_the_promises_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("oci: not run here: only root can make a program that only root can change");
        return;
    }
    let folder = tempfile::tempdir_in("/usr/local/lib").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let data = tempfile::tempdir().unwrap();
    let says = |version: &str, info: &str| {
        let lines = format!(
            "case $1 in --version) echo '{version}';; info) echo '{info}';; *) echo 'no such image' >&2; exit 125;; esac"
        );
        let path = engine(folder.path(), "engine", &lines);
        refused(|config| config.oci.engine = path, data.path())
    };
    let old = says("podman version 3.4.4", "{}");
    assert!(old.contains("podman 3.4.4 is too old") && old.contains("4.3"), "{old}");
    let remote = says("podman version 4.9.3", r#"{"host":{"serviceIsRemote":true}}"#);
    assert!(remote.contains("another machine"), "{remote}");
    let maps = r#"{"SecurityOptions":["name=userns"],"DefaultRuntime":"runc"}"#;
    let mapping = says("Docker version 24.0.5, build 1", maps);
    assert!(mapping.contains("userns-remap"), "{mapping}");
    let silent = says("podman version 4.9.3", "");
    assert!(silent.contains("does not answer") && silent.contains("/etc/subuid"), "{silent}");
    let without = says("podman version 4.9.3", r#"{"host":{"ociRuntime":{"name":"crun"}}}"#);
    assert!(without.contains("no image `localhost/no-such-image:1`"), "{without}");
    assert!(
        without.contains("nothing is pulled") && without.contains("podman pull")
            || without.contains("engine pull"),
        "{without}"
    );
}

/// An ordinary user's engine with the old control groups limits nothing: no command runs where that is required, and the
/// probe says so.
#[tokio::test]
async fn oci_a_limit_that_is_required_and_missing_stops_every_command() {
    if !rustix::process::geteuid().is_root() || here().is_none() {
        eprintln!("oci: not run here: it needs podman, and root to stand before it");
        return;
    }
    let folder = tempfile::tempdir_in("/usr/local/lib").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // Podman itself, but for one answer.
    let lines = format!(
        "for word; do [ \"$word\" = info ] && exec echo '{{\"host\":{{\"cgroupControllers\":[\"cpu\",\"pids\"],\"ociRuntime\":{{\"name\":\"crun\"}}}}}}'; done; exec {PODMAN} \"$@\""
    );
    let path = engine(folder.path(), "podman", &lines);
    let Some((bench, _data)) = containers(|config| {
        config.oci.engine = path;
        config.require = Some(vec![config::Limit::Memory]);
    }) else {
        return;
    };
    let error = bench.sandbox.run(&bench.workspace, &command("true")).await.unwrap_err();
    assert!(error.to_string().contains("`memory_bytes`"), "{error}");
    let report = bench.sandbox.probe().await;
    let memory = report.checks.iter().find(|check| check.name == "memory-limit").unwrap();
    assert_eq!(memory.verdict, Verdict::Fails);
    assert!(memory.detail.contains("NOT ENFORCED") && memory.detail.contains("`sandbox.require`"));
}

#[tokio::test]
async fn oci_a_container_that_does_not_start_says_why() {
    let Some((bench, data)) = containers(|_| {}) else { return };
    let folder = tempfile::tempdir().unwrap();
    let comma = folder.path().join("a,b");
    std::fs::create_dir(&comma).unwrap();
    let mut asked = command("true");
    let held = Arc::new(std::fs::File::open(&comma).unwrap().into());
    asked.extras = Extras { folders: vec![("/run/kept", held)], proxy: None };
    let error = bench.sandbox.run(&bench.workspace, &asked).await.unwrap_err();
    let SetupError::Start { source: Some(source), .. } = &error else { panic!("{error}") };
    assert!(source.to_string().contains("without commas"), "{source}");

    let without = said(&podman(&["image", "exists", "localhost/hyla-test-empty:1"]));
    assert_eq!(without, "");
    let empty = Process::new("bash")
        .args(["-c", &format!("tar --create --files-from=/dev/null | {PODMAN} import --quiet - localhost/hyla-test-empty:1")])
        .output()
        .unwrap();
    assert!(empty.status.success(), "{empty:?}");
    let options = in_containers(here().unwrap(), data.path(), |config| {
        config.oci.image = "localhost/hyla-test-empty:1".into();
    });
    let error = sandbox::build(options).unwrap().run(&bench.workspace, &command("true")).await;
    let error = error.unwrap_err();
    assert!(matches!(error, SetupError::Start { .. }), "{error}");
    assert!(error.to_string().contains("image with bash"), "{error}");
    assert_eq!(left_in(data.path()), Vec::<String>::new());
}

const SECRET: &str = "canary-77ab01";
const SCRIPT: &str = "HYLA_TEST_OCI_SCRIPT";
const ROOT: &str = "HYLA_TEST_OCI_WORKSPACE";
const DATA: &str = "HYLA_TEST_OCI_DATA";
const IMAGE: &str = "HYLA_TEST_OCI_IMAGE";
const RUNTIME: &str = "HYLA_TEST_OCI_RUNTIME";

fn said_of(stream: &bot::sandbox::Stream) -> String {
    String::from_utf8_lossy(&stream.head).into_owned()
}

fn end(pid: i32) {
    // It may have ended by itself.
    let _ =
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
}

/// The command lines of the processes on this machine whose environment holds a word.
fn environments(word: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let read = |path: std::path::PathBuf| {
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).replace('\0', " ")
    };
    let with = processes.filter(|entry| read(entry.path().join("environ")).contains(word));
    with.map(|entry| read(entry.path().join("cmdline"))).collect()
}

/// A service in a process of its own, which runs a script and writes what it said beside the workspace.
fn another(bench: &Bench, data: &Path, around: &[&str], script: &str) -> Process {
    let mut process = Process::new(around[0]);
    process.args(&around[1..]).arg(std::env::current_exe().unwrap());
    process.args(["--exact", "oci::another_process", "--ignored", "--test-threads=1"]);
    let here = here().expect("whoever asks has a bench");
    process.env(SCRIPT, script).env(ROOT, bench.workspace.root()).env(DATA, data);
    // What works here is known: a process that tries it again takes long.
    process.env(IMAGE, &here.image).envs(here.runtime.as_ref().map(|runtime| (RUNTIME, runtime)));
    process
}

#[tokio::test]
#[ignore = "started by the tests that need a service in a process of its own"]
async fn another_process() {
    let (Some(script), Some(root), Some(data)) =
        (std::env::var_os(SCRIPT), std::env::var_os(ROOT), std::env::var_os(DATA))
    else {
        return;
    };
    let word = |name| std::env::var(name).ok();
    let here = Here { image: word(IMAGE).unwrap(), runtime: word(RUNTIME) };
    let options = in_containers(&here, Path::new(&data), |_| {});
    let workspace = Workspace::open(Path::new(&root), sandbox::workspace_owner(&options)).unwrap();
    let asked = command(script.to_str().unwrap());
    let finished = sandbox::build(options).unwrap().run(&workspace, &asked).await.unwrap();
    std::fs::write(Path::new(&root).with_file_name("said"), finished.stdout.head).unwrap();
}
