//! What an attacker reads: the service's environment, its open files, command lines, cores, the machine's files.

use super::bench::{
    IF_POSSIBLE, Row, bench, compare, living, marker, options, outside, probe, said, until, usual,
    weak,
};
use super::own_process::{service, service_says};
use std::process::Command as Process;

const SECRET: &str = "canary-4f1d9c";

/// Everything that a process may show of its environment.
const SEARCH: &str = "env; cat /proc/*/environ | tr '\\0' '\\n'";

#[tokio::test]
async fn t01_no_variable_of_the_service_is_found_inside() {
    let bench = usual();
    // `--clearenv` alone cleans the command, and not bubblewrap's own process inside.
    let script = format!("exec env -i bash -c \"{SEARCH}\"");
    let inherited = weak(&bench, &script).env("HYLA_CANARY", SECRET).output().unwrap();
    assert!(said(&inherited).contains(SECRET), "the search must find it: {inherited:?}");
    let mut service = service(&bench, &["env"], SEARCH);
    assert!(service.env("HYLA_CANARY", SECRET).output().unwrap().status.success());
    let seen = super::own_process::said_in(&bench);
    assert!(seen.contains("HOME=/home/agent") && !seen.contains(SECRET), "{seen}");
}

#[tokio::test]
async fn t02_no_open_file_of_the_service_is_open_inside() {
    let bench = usual();
    let canary = bench.folder.path().join("canary");
    std::fs::write(&canary, SECRET).unwrap();
    std::fs::set_permissions(&canary, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let numbers = 9..=20;
    let opens: Vec<_> = numbers.clone().map(|n| format!("{n}<{}", canary.display())).collect();
    let open = format!("exec {}; \"$@\"", opens.join(" "));
    let reads: Vec<_> = numbers.map(|n| format!("read_number,{n}")).collect();
    // Bubblewrap's own process has an event counter besides, which leads nowhere.
    let search = format!(
        "{{ cat <&9; }} 2>&1; ls -l /proc/self/fd /proc/1/fd | grep -o ' -> .*'; {} {}",
        bench.arm(),
        reads.join(" ")
    );
    let inherits = |script: &str| {
        let weak = weak(&bench, script);
        let words = weak.get_args().map(std::ffi::OsStr::to_owned);
        let mut process = Process::new("bash");
        process.args(["-c", &open, "bash"]).arg(weak.get_program()).args(words).output().unwrap()
    };
    let inherited = inherits(&search);
    assert!(said(&inherited).contains(SECRET), "the search must find it: {inherited:?}");
    let seen = service_says(&bench, &["bash", "-c", &open, "bash"], &search);
    assert!(!seen.contains(SECRET) && seen.contains("9: Bad file descriptor"), "{seen}");
    let harmless = ["/dev/null", "pipe:", "anon_inode:[eventfd]", "/proc/"];
    for file in seen.lines().filter_map(|line| line.strip_prefix(" -> ")) {
        assert!(harmless.iter().any(|start| file.starts_with(start)), "{file}: {seen}");
    }
    for read in &reads {
        assert!(seen.contains(&format!("{read}=EBADF\n")), "{read}: {seen}");
    }
}

#[tokio::test]
async fn t03_no_command_line_and_no_mount_tells_of_the_service_or_of_another_job() {
    let bench = usual();
    let other = bench.neighbour();
    let pause = marker(4703);
    let waits = format!("touch begun; sleep {pause}");
    let search = "cat /proc/1/cmdline /proc/self/cmdline /proc/self/mountinfo /proc/self/mounts /proc/self/cgroup | tr '\\0' ' '";
    let seen = tokio::select! {
        finished = other.run(&waits) => panic!("{finished:?}"),
        seen = async {
            let begun = other.workspace.root().join("begun");
            until("the other job runs", || begun.exists()).await;
            // The control: from outside, all of it can be told.
            let outside: String = living(&pause).iter().filter_map(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()
            }).collect();
            let name = other.folder.path().file_name().unwrap().to_str().unwrap();
            assert!(outside.contains(name), "{outside}");
            bench.says(search).await
        } => seen,
    };
    let other = other.folder.path().file_name().unwrap().to_str().unwrap();
    assert!(seen.contains("bwrap --args ") && seen.contains(" /workspace "), "{seen}");
    for secret in [other, "--ro-bind", "--setenv", env!("CARGO_BIN_EXE_hyla"), pause.as_str()] {
        assert!(!seen.contains(secret), "{secret}: {seen}");
    }
    other_command_lines_are_not_there(&bench).await;
}

async fn other_command_lines_are_not_there(bench: &super::bench::Bench) {
    let seen = bench.says("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await;
    assert!(!seen.contains("sandbox::") && !seen.contains("cargo"), "{seen}");
}

#[tokio::test]
async fn t04_a_crash_leaves_no_core() {
    let bench = usual();
    let folder = tempfile::tempdir().unwrap();
    let outside = Process::new("bash")
        .args(["-c", "ulimit -c unlimited; \"$0\" crash"])
        .arg(probe())
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(said(&outside), "crash=SIGSEGV\n");
    if std::fs::read_dir(folder.path()).unwrap().count() == 0 {
        eprintln!("no control here: this machine writes no core beside what crashes");
    }
    let said = bench.says(&format!("ulimit -c; ulimit -Hc; {} crash; ls", bench.arm())).await;
    assert_eq!(said, "0\n0\ncrash=SIGSEGV\n", "no core, and no way to one");
}

#[tokio::test]
async fn t05_no_file_of_the_machine_is_there() {
    let data = tempfile::tempdir().unwrap();
    let bench = usual();
    let other = bench.neighbour();
    for path in ["hyla.db", "token"] {
        std::fs::write(data.path().join(path), SECRET).unwrap();
    }
    std::fs::write(other.workspace.root().join("source"), SECRET).unwrap();
    let own: Vec<String> = [
        data.path().to_owned(),
        data.path().join("hyla.db"),
        data.path().join("token"),
        other.workspace.root().to_owned(),
        other.workspace.root().join("source"),
        bench.workspace.root().to_owned(),
        env!("CARGO_BIN_EXE_hyla").into(),
    ]
    .iter()
    .map(|path| format!("open_to_read,{}", path.display()))
    .collect();
    let rows: Vec<Row<'_>> = own.iter().map(|attack| (attack.as_str(), "ok", "ENOENT")).collect();
    compare(&bench, outside, &rows).await;
    let home = format!("open_to_read,{}", std::env::var("HOME").unwrap());
    let machine = [
        home.as_str(),
        "open_to_read,/etc/shadow",
        "open_to_read,/etc/hostname",
        "open_to_read,/etc/machine-id",
        "open_to_read,/root",
        "open_to_read,/var/lib",
        "open_to_read,/run",
        "open_to_read,/sys/kernel",
        "open_to_read,/boot",
        "open_to_read,/dev/kmsg",
        "open_to_read,/dev/mem",
    ];
    let rows: Vec<Row<'_>> =
        machine.iter().map(|attack| (*attack, IF_POSSIBLE, "ENOENT")).collect();
    compare(&bench, outside, &rows).await;
}

/// A folder that the agent may read is the one thing that is shown, and it is the folder that was named.
#[tokio::test]
async fn t05_a_folder_that_is_shown_shows_nothing_beside_it() {
    let place = super::bench::showable();
    std::fs::create_dir(place.path().join("tools")).unwrap();
    for path in ["tools/tool", "beside"] {
        std::fs::write(place.path().join(path), "x").unwrap();
    }
    for path in ["", "tools"] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(place.path().join(path), mode).unwrap();
    }
    let tools = place.path().join("tools");
    let bench = bench(options(|config| config.read_only = vec![tools.clone()]));
    let shown = format!("open_to_read,{}", tools.join("tool").display());
    let hidden = format!("open_to_read,{}", place.path().join("beside").display());
    compare(&bench, outside, &[(&shown, "ok", "ok"), (&hidden, "ok", "ENOENT")]).await;
}
