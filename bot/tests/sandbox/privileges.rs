//! What an attacker becomes: capabilities, namespaces, mounts, and the calls that lead around a filter.

use super::bench::{
    Answers, IF_POSSIBLE, Row, compare, living, marker, options, outside, outside_as_root,
    sleepers, until, usual, weak,
};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command as Process, Stdio};

/// The lines of a process's status that say what it may do.
fn rights(status: &str) -> Vec<String> {
    let keys = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"];
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    let kept = lines.filter(|(key, _)| keys.contains(key));
    kept.map(|(key, value)| format!("{key} {}", value.trim().trim_start_matches('0'))).collect()
}

const NONE: [&str; 7] =
    ["CapInh ", "CapPrm ", "CapEff ", "CapBnd ", "CapAmb ", "NoNewPrivs 1", "Seccomp 2"];

#[tokio::test]
async fn t07_the_command_and_process_1_may_nothing_and_are_filtered() {
    let bench = usual();
    let mut control = Process::new("unshare");
    control.args(["--user", "--map-root-user", "cat", "/proc/self/status"]);
    let control = rights(&super::bench::said(&control.output().unwrap()));
    assert!(control.contains(&"Seccomp ".to_owned()), "nothing filters this test: {control:?}");
    assert!(!control.contains(&"CapEff ".to_owned()), "{control:?}");
    assert_eq!(rights(&bench.says("cat /proc/self/status").await), NONE);
    assert_eq!(rights(&bench.says("cat /proc/1/status").await), NONE);
}

/// Also what a service that is root must withstand: bubblewrap as root would let each of these through (see T36).
#[tokio::test]
async fn t08_no_mount_and_no_namespace_can_be_made() {
    let bench = usual();
    compare(
        &bench,
        outside_as_root,
        &[
            ("mount_tmpfs,/mnt", "ok", "EPERM"),
            ("remount,/", "ok", "EPERM"),
            ("unmount,/proc", IF_POSSIBLE, "EPERM"),
            ("pivot,/", "EINVAL", "EPERM"),
            ("change_root,/", "ok", "EPERM"),
            ("unshare_user", "ok", "EPERM"),
            ("unshare_mount", "ok", "EPERM"),
            ("clone_user", "ok", "EPERM"),
            ("clone3_user", "ok", "ENOSYS"),
            ("enter_namespace,/proc/self/ns/mnt", "ok", "EPERM"),
            ("open_file_system", "ok", "EPERM"),
            ("open_mounts,/", IF_POSSIBLE, "EPERM"),
            ("pick_mount,/", IF_POSSIBLE, "EPERM"),
            ("configure_mount", "EINVAL", "EPERM"),
            ("make_mount", "EBADF", "EPERM"),
            ("move_mount_of", "ENOENT", "EPERM"),
            ("set_mount,/", "ok", "EPERM"),
        ],
    )
    .await;
    let tools = "mount -o remount,bind,rw /usr; mount -t tmpfs none /tmp; umount /proc; unshare -Urm true; nsenter -t 1 -m true; chroot / true; echo $?";
    assert_ne!(bench.says(tools).await.trim(), "0");
    // What is behind the filter holds by itself: no further user namespace is allowed to this one.
    let limits = "cat /proc/sys/user/max_user_namespaces; cat /proc/self/uid_map";
    let said = bench.says(limits).await;
    assert!(said.contains("1000 "), "{said}");
}

#[tokio::test]
async fn t09_calls_that_lead_around_the_filter_are_denied() {
    let bench = usual();
    let mut table: Vec<Row<'_>> = vec![
        ("ring", IF_POSSIBLE, "EPERM"),
        ("bpf_map", IF_POSSIBLE, "EPERM"),
        ("key_ring", "ok", "EPERM"),
        ("add_key", "ok", "EPERM"),
        ("request_key", "ENOKEY", "EPERM"),
        ("perf", IF_POSSIBLE, "EPERM"),
        ("page_faults", IF_POSSIBLE, "EPERM"),
        ("trace", "ok", "EPERM"),
        ("read_memory", "ok", "EPERM"),
        ("write_memory", "ok", "EPERM"),
        ("compare", IF_POSSIBLE, "EPERM"),
        ("handle_of,/", IF_POSSIBLE, "EPERM"),
        ("open_handle,/", IF_POSSIBLE, "EPERM"),
        ("watch_all", IF_POSSIBLE, "EPERM"),
        // Process 1 dies with the service by such a signal.
        ("dies_by,0", "ok", "EPERM"),
        ("dies_by,15", "ok", "EPERM"),
        ("dies_by,9", "ok", "ok"),
        // The kernel of most machines has none of these, so the control is the same.
        ("x32_calls", "ENOSYS", "ENOSYS"),
    ];
    if cfg!(target_arch = "x86_64") {
        table.push(("old_calls", IF_POSSIBLE, "SIGSYS"));
    }
    compare(&bench, outside, &table).await;
}

/// The memory of bubblewrap's process inside can be written. So it must be filtered itself, or its rights would be the
/// attacker's.
#[tokio::test]
async fn t09_code_put_into_process_1_is_filtered_too() {
    if cfg!(not(target_arch = "x86_64")) {
        eprintln!("left out: the code that is put in is written for x86-64");
        return;
    }
    let bench = usual();
    let script = format!(
        "until grep -q 'State:.*S' /proc/1/status; do sleep 0.01; done; {} inject",
        bench.arm()
    );
    let place = bench.workspace.root().join("injected");
    let answer = || {
        std::fs::read(&place).ok().map(|bytes| i32::from_ne_bytes(bytes[..4].try_into().unwrap()))
    };
    let control = weak(&bench, &script).output().unwrap();
    if answer().is_none() {
        eprintln!("no control here: the kernel lets nobody write that memory: {control:?}");
    } else {
        assert_eq!(answer(), Some(0), "without a filter process 1 makes a namespace");
        std::fs::remove_file(&place).unwrap();
    }
    let filtered =
        format!("until grep -q 'Seccomp:.*2' /proc/1/status; do sleep 0.01; done; {script}");
    // The command ends with process 1, however it is told.
    let _ = bench.sandbox.run(&bench.workspace, &super::bench::command(&filtered)).await;
    assert_ne!(answer(), Some(0), "process 1 has made a namespace");
    if control.status.code().is_some() && answer().is_some() {
        assert_eq!(answer(), Some(-1), "EPERM");
    }
    bench.sandbox.quiet().await.unwrap();
}

/// The user of a process, as this machine sees him.
fn user(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[tokio::test]
async fn t36_nothing_inside_is_root_on_this_machine() {
    let bench = usual();
    let pause = marker(4736);
    let expected = if rustix::process::geteuid().is_root() {
        options(|_| {}).config.uid
    } else {
        eprintln!("left out: a service that is root; the tests do not run as root here");
        rustix::process::geteuid().as_raw()
    };
    let script = format!("sleep {pause}; true");
    let users = async {
        until("the command sleeps", || !sleepers(&pause).is_empty()).await;
        // The script's own process and bubblewrap's have the word in their command lines too.
        living(&pause).into_iter().filter_map(user).collect::<Vec<_>>()
    };
    let users = tokio::select! {
        finished = bench.run(&script) => panic!("{finished:?}"),
        users = users => users,
    };
    assert!(!users.is_empty() && users.iter().all(|user| *user == expected), "{users:?}");
    bench.sandbox.quiet().await.unwrap();
}

/// The step before bubblewrap, told by mistake to stay root.
#[tokio::test]
async fn t36_bubblewrap_is_never_started_as_root() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: only root can be told to stay root");
        return;
    }
    let orders = |identity: &str| {
        format!(
            r#"{{"program":"/usr/bin/id","arguments":[[45,117]],"n_files":0,"service":{},"identity":{identity},"groups":[],
            "limits":{{"open_files":64,"file_bytes":4096,"processes":64}}}}"#,
            std::process::id()
        )
    };
    let child = |identity: &str| {
        let mut input = tempfile::tempfile().unwrap();
        input.write_all(orders(identity).as_bytes()).unwrap();
        std::io::Seek::rewind(&mut input).unwrap();
        // Its first file becomes its input.
        let script = "exec 3</dev/null; exec \"$0\" sandbox-child";
        let mut process = Process::new("bash");
        process.args(["-c", script, env!("CARGO_BIN_EXE_hyla")]).stdin(Stdio::from(input));
        process.output().unwrap()
    };
    let control = child("[64023,64023]");
    assert_eq!(super::bench::said(&control), "64023\n", "{control:?}");
    for identity in ["null", "[0,0]"] {
        let refused = child(identity);
        assert_eq!((refused.status.code(), refused.status.signal()), (Some(125), None));
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(words.contains("refusing to start bubblewrap as root"), "{words}");
    }
}

/// Whoever is asked about nothing answers nothing: a table with a wrong name must not pass.
#[tokio::test]
async fn an_attack_that_the_probe_does_not_know_is_no_attack() {
    let answers: Answers = outside(&["no_such_attack".into()]);
    assert_eq!(answers.to("no_such_attack"), "unknown");
    assert_eq!(answers.to("never_asked"), "no answer");
}
