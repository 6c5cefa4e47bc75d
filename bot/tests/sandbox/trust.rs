//! What is trusted before anything runs: the bubblewrap that is named, and a sandbox that says it is one.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use bot::sandbox::{self, SetupError, Verdict};

use super::bench::{bench, command, options, usual};

/// A folder that only root can change, as the one of a trusted binary is. None without root, because nobody else can make
/// one.
fn roots_folder() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: only root can plant a binary that is trusted");
        return None;
    }
    let folder = tempfile::Builder::new().prefix("hyla-fake-").tempdir_in("/usr/local/lib");
    let folder = folder.unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    Some(folder)
}

/// A folder with a `bwrap` that does as this script says when it is asked for a sandbox.
fn fake_bwrap(script: &str) -> Option<tempfile::TempDir> {
    let folder = roots_folder()?;
    plant(&folder.path().join("bwrap"), 0o755, script);
    Some(folder)
}

/// A program that passes for a bubblewrap and then does as the script says.
fn plant(place: &Path, mode: u32, script: &str) {
    let ask = "case $1 in --help) echo --bind-fd; exit;; --version) echo fake; exit;; esac";
    std::fs::write(place, format!("#!/bin/bash\n{ask}\nshift 3\n{script}\n")).unwrap();
    std::fs::set_permissions(place, PermissionsExt::from_mode(mode)).unwrap();
}

fn refusal(bwrap: &Path) -> String {
    match sandbox::build(options(|config| config.bwrap = bwrap.into())) {
        Ok(_) => panic!("{} is trusted", bwrap.display()),
        Err(error) => error.to_string(),
    }
}

/// It runs the command as it is: the canaries must see it, whatever it answers.
#[tokio::test]
async fn t35_a_sandbox_that_only_pretends_fails_the_probe() {
    let script = "echo \"{\\\"child-pid\\\": $$}\" >&4\n\
        printf '\\0' >&2; read -r _; /bin/bash -lc \"${@: -1}\" </dev/null 4>&-; code=$?\n\
        echo \"{\\\"exit-code\\\": $code}\" >&4\n\
        exit $code";
    let Some(folder) = fake_bwrap(script) else { return };
    let bench = bench(options(|config| config.bwrap = folder.path().join("bwrap")));
    let report = bench.sandbox.probe().await;
    assert!(!report.holds());
    let failed = |name: &str| {
        report.checks.iter().any(|check| check.name == name && check.verdict == Verdict::Fails)
    };
    for name in ["filter", "no-network", "no-host-files", "no-host-processes", "no-open-files"] {
        assert!(failed(name), "{name} does not see it: {report:#?}");
    }
}

/// As for a moment with every bubblewrap: the command is there, and process 1 has no filter yet.
#[tokio::test]
async fn t09_no_command_begins_before_process_1_is_filtered() {
    let first = std::fs::read_to_string("/proc/1/status").unwrap_or_default();
    if first.contains("Seccomp:\t2") {
        eprintln!(
            "left out: this machine's own process 1 is filtered, and plays the sandbox's here"
        );
        return;
    }
    let script = "echo \"{\\\"child-pid\\\": $$}\" >&4; \"$@\" 4>&-; code=$?\n\
        echo \"{\\\"exit-code\\\": $code}\" >&4; exit $code";
    let Some(folder) = fake_bwrap(script) else { return };
    let bench = bench(options(|config| config.bwrap = folder.path().join("bwrap")));
    let begun = format!("touch {}", bench.workspace.root().join("begun").display());
    let error = bench.sandbox.run(&bench.workspace, &command(&begun)).await.unwrap_err();
    assert!(error.to_string().contains("has no system call filter"), "{error}");
    assert!(!bench.workspace.root().join("begun").exists());
}

/// It tells a number that no process has, so that nobody can watch the inner process.
#[tokio::test]
async fn a_death_that_cannot_be_proven_is_the_last_thing_that_runs() {
    let Some(folder) = fake_bwrap("echo '{\"child-pid\": 0}' >&4") else { return };
    let bench = bench(options(|config| config.bwrap = folder.path().join("bwrap")));
    let any = command("true");
    let run = || bench.sandbox.run(&bench.workspace, &any);
    assert!(bench.sandbox.is_sure());
    assert!(matches!(run().await, Err(SetupError::StillAlive { .. })));
    assert!(!bench.sandbox.is_sure());
    assert!(matches!(bench.sandbox.quiet().await, Err(SetupError::Unsure)));
    assert!(matches!(run().await, Err(SetupError::Unsure)));
    assert!(!bench.sandbox.probe().await.holds());
}

/// What bubblewrap says where it cannot make a sandbox, and a word of what the operator is told to do.
const WORDS: [(&str, &str); 12] = [
    ("bwrap: setting up uid map: Permission denied", "bwrap-userns-restrict"),
    ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "bwrap-userns-restrict"),
    ("bwrap: Failed to make / slave: Permission denied", "bwrap-userns-restrict"),
    (
        "bwrap: loopback: Failed to create NETLINK_ROUTE socket: Address family not supported by protocol",
        "RestrictAddressFamilies=",
    ),
    (
        "bwrap: cannot open /proc/sys/user/max_user_namespaces: Read-only file system",
        "ProtectKernelTunables=",
    ),
    ("bwrap: Can't read /proc/sys/kernel/overflowuid: No such file or directory", "ProcSubset=pid"),
    ("bwrap: Can't set hostname to sandbox: Operation not permitted", "ProtectHostname="),
    ("bwrap: Creating new namespace failed: Function not implemented", "seccomp profile"),
    ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "unmasked /proc"),
    (
        "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces.",
        "RestrictNamespaces=",
    ),
    (
        "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
        "max_user_namespaces",
    ),
    ("bwrap: Creating new namespace failed: Resource temporarily unavailable", "sandbox.processes"),
];

#[tokio::test]
async fn t35_a_bubblewrap_that_cannot_make_a_sandbox_fails_the_probe_with_a_remedy() {
    for (words, remedy) in WORDS {
        let script = format!("cat <<'E' >&2\n{words}\nE\nexit 1");
        let Some(folder) = fake_bwrap(&script) else { return };
        let bench = bench(options(|config| config.bwrap = folder.path().join("bwrap")));
        let report = bench.sandbox.probe().await;
        let failed = report.checks.iter().find(|check| check.verdict == Verdict::Fails);
        let detail = &failed.unwrap().detail;
        assert!(!report.holds() && detail.contains(words) && detail.contains(remedy), "{detail}");
        // Nor does a command run: it is no command that failed, but a sandbox that is not there.
        let answer = bench.sandbox.run(&bench.workspace, &command("true")).await;
        assert!(matches!(answer, Err(SetupError::Start { .. })), "{answer:?}");
    }
}

#[tokio::test]
async fn t35_without_bubblewrap_there_is_no_sandbox() {
    let text = refusal(Path::new("/no/such/bwrap"));
    assert!(text.contains("no `/no/such/bwrap`") && text.contains("install the package"), "{text}");
    // And what is no bubblewrap is none either, whatever it answers.
    assert!(refusal(Path::new("/bin/true")).contains("too old"));
    // The control, and what makes this suite fail where there is none.
    assert!(usual().sandbox.probe().await.holds());
}

#[tokio::test]
async fn t38_a_bubblewrap_that_others_can_change_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let own = place.path().join("bwrap");
    plant(&own, 0o755, "exit 0");
    for (path, reason) in [
        (own.as_path(), "changed by others"),
        (Path::new("/tmp"), "changed by others"),
        (Path::new("bwrap"), "absolute"),
        (Path::new("./bwrap"), "absolute"),
    ] {
        assert!(refusal(path).contains(reason), "{}: {}", path.display(), refusal(path));
    }
    let Some(folder) = roots_folder() else { return };
    let real = folder.path().join("bwrap");
    let build = |path: &Path| sandbox::build(options(|config| config.bwrap = path.into()));
    for (mode, reason) in [
        (0o775, "changed by others"),
        (0o757, "changed by others"),
        (0o4755, "setuid"),
        (0o2755, "setuid"),
    ] {
        plant(&real, mode, "exit 0");
        assert!(refusal(&real).contains(reason), "{mode:o}: {}", refusal(&real));
    }
    plant(&real, 0o755, "exit 0");
    assert!(build(&real).is_ok(), "the control: this one can be trusted");
    // A link of root's to a file of somebody else's.
    let link = folder.path().join("link");
    symlink(&own, &link).unwrap();
    assert!(refusal(&link).contains("changed by others"), "{}", refusal(&link));
    std::os::unix::fs::chown(&real, Some(64_023), None).unwrap();
    assert!(refusal(&real).contains("changed by others"), "{}", refusal(&real));
}

/// A link to a trusted binary that somebody else can turn round later: what was looked at is what is started.
#[tokio::test]
async fn t38_a_link_that_is_turned_round_later_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (link, marker) = (place.path().join("bwrap"), place.path().join("marker"));
    let own = place.path().join("own");
    let bwrap = options(|_| {}).config.bwrap;
    symlink(&bwrap, &link).unwrap();
    let bench = bench(options(|config| config.bwrap = link.clone()));
    for path in [place.path(), bench.folder.path()] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    plant(&own, 0o755, &format!("touch {}", marker.display()));
    std::fs::remove_file(&link).unwrap();
    symlink(&own, &link).unwrap();
    assert_eq!(
        bench.says("echo sealed; ls /etc/hostname 2>&1 | grep -c 'No such'").await,
        "sealed\n1\n"
    );
    assert!(!marker.exists());
}
