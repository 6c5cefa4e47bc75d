//! The proof for containers: the same canaries as for bubblewrap, and what an engine or an image may add on its own.
//!
//! No answer of the engine about a container is believed where a command inside can show it.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::super::backend::Backend;
use super::super::cgroup::{self, Limits};
use super::super::doctor::{
    BREEDER, Canaries, Expected, FEW_BYTES, FEW_PROCESSES, GREEDY, PATIENCE, Said, by_service,
    command, finish, judge, listed, size, sized, sleepers, told,
};
use super::super::{Check, Command, End, Extras, Report, Verdict};
use super::engine::{Engine, Kind, Users};
use super::{Oci, arguments, workspace_owner};

/// The sentence that hands the engine its control groups.
pub(super) const HAND_OVER: &str = "an ordinary user's podman needs cgroup v2 and a user session (`loginctl enable-linger USER`); to do without, set `sandbox.require`";
/// Variables that podman sets for a first process although it is told to set none.
const INIT: [&str; 5] = ["HOME", "HOSTNAME", "PATH", "TERM", "container"];
/// Paths of the host that no image has.
const HIDDEN: &str = "/run/podman/podman.sock /run/docker.sock /var/run/docker.sock";
/// How long the start of too many processes may take: the shell tries again for a quarter of a minute, but says so at once.
const SHORT: Duration = Duration::from_secs(2);
/// What is mounted besides what was asked for; devices besides those of every container; what lies where engines put secrets;
/// groups. What an engine mounts over `/proc` hides something of it.
const ADDITIONS: &str = r#"
while read -r _ _ _ _ point _; do
  case $point in
    /|/proc|/proc/*|/sys|/sys/*|/dev|/dev/pts|/dev/mqueue|/dev/shm|/workspace|/tmp|/home/agent) continue;;
    /etc/hosts|/etc/hostname|/etc/resolv.conf|/run/.containerenv) continue;;
  esac
  asked=no
  for own in ASKED; do [ "$point" = "$own" ] && asked=yes; done
  [ "$asked" = yes ] || printf 'add:%s=yes\n' "$point"
done </proc/self/mountinfo
for device in $(find /dev ! -type d ! -type l); do
  case $device in
    /dev/null|/dev/zero|/dev/full|/dev/random|/dev/urandom|/dev/tty|/dev/console|/dev/ptmx|/dev/pts/*) ;;
    *) printf 'add:%s=yes\n' "$device";;
  esac
done
for place in /run/secrets /var/run/secrets; do
  [ -n "$(ls -A "$place" 2>/dev/null)" ] && printf 'add:%s=yes\n' "$place"
done
printf 'groups=%s\nkernel=%s\n' "$(id -G)" "$(uname -r)"
"#;

/// The limits that are required and that the engine cannot set.
pub(super) fn unmet(settings: &config::Sandbox, engine: &Engine) -> Vec<&'static str> {
    let is_unit = std::fs::read_to_string("/proc/self/cgroup")
        .is_ok_and(|groups| cgroup::is_unit(&groups, std::os::unix::process::parent_id()));
    let missing = |limit| match limit {
        config::Limit::Memory => (!engine.limits.memory).then_some("memory_bytes"),
        config::Limit::Processes => (!engine.limits.processes).then_some("processes"),
        config::Limit::Cpus => (!engine.limits.cpus).then_some("cpus"),
    };
    settings.required(is_unit).into_iter().filter_map(missing).collect()
}

pub(super) async fn probe(sandbox: &Oci) -> Report {
    let mut report = Report { backend: sandbox.name(), checks: Vec::new() };
    let owner = workspace_owner(&sandbox.options);
    let Some(canaries) = Canaries::for_report(&mut report, owner) else { return report };
    let engine = &sandbox.engine;
    let expected = Expected {
        settings: &sandbox.options.config,
        uid: arguments::inside(engine.users, owner).0,
        processes: sandbox.processes_of_user(),
        tells_of_privileges: !engine.is_gvisor(),
        init_names: (engine.kind == Kind::Podman).then_some(&INIT),
    };
    let said = match sandbox.run_anyway(&canaries.workspace, &canaries.command(HIDDEN)).await {
        Ok(finished) => judge(&mut report, &finished, &canaries, &expected),
        Err(error) => {
            report.add("starts", false, told(&error));
            return report;
        }
    };
    report.checks.push(users(engine));
    if engine.is_gvisor() && said.is("processes", "0") {
        let detail = "it cannot list its own processes, so nothing can be shown of them; install a release of gVisor from 2023 or later";
        report.add("runtime", false, format!("{}: {detail}", engine.name()));
    }
    additions(&mut report, sandbox, &canaries, expected.uid).await;
    report.checks.push(way_out(sandbox, &canaries).await);
    let by = ("the end of the container's first process", PATIENCE);
    sleepers(&mut report, by, sandbox, &canaries).await;
    report.checks.push(memory(sandbox, &canaries).await);
    report.checks.push(processes(sandbox, &canaries).await);
    report.checks.push(cpus(sandbox));
    report.checks.push(sized(&said, &sandbox.options.config));
    by_service(&mut report, &sandbox.options.config);
    finish(&mut report, sandbox, canaries).await;
    report
}

/// How users inside relate to those of the machine.
fn users(engine: &Engine) -> Check {
    let (verdict, detail) = match engine.users {
        Users::Mapped => (Verdict::Holds, "each container has a range of users of its own"),
        Users::Kept => (Verdict::Holds, "the engine runs without root, in a range of users"),
        Users::Plain if engine.is_gvisor() => {
            (Verdict::Holds, "gVisor's own kernel stands between commands and the machine's")
        }
        Users::Plain => (
            Verdict::Warns,
            "NOT GIVEN: users inside are those of the machine; podman gives each container a range of its own",
        ),
    };
    Check { name: "user-namespace", verdict, detail: detail.into() }
}

/// What the engine's settings or the image put beside what was asked for.
async fn additions(report: &mut Report, sandbox: &Oci, canaries: &Canaries, uid: u32) {
    let asked = match sandbox.mounts(&canaries.workspace, &Command::default()) {
        Ok(mounts) => mounts.iter().map(|mount| quoted(&mount.at)).collect::<Vec<_>>().join(" "),
        Err(error) => return report.add("nothing-added", false, error.to_string()),
    };
    let script = command(ADDITIONS.replace("ASKED", &asked), PATIENCE);
    let said = match sandbox.run_anyway(&canaries.workspace, &script).await {
        Ok(finished) => Said::of(&finished),
        Err(error) => return report.add("nothing-added", false, told(&error)),
    };
    let machine = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if sandbox.engine.is_gvisor() && said.is("kernel", machine.trim()) {
        let detail = "commands see this machine's own kernel, so it is no gVisor, whatever it is called; install runsc, or choose another name in `sandbox.oci.runtime`";
        report.add("runtime", false, format!("{}: {detail}", sandbox.engine.name()));
    }
    let added = said.reached("add:");
    let own = arguments::inside(sandbox.engine.users, canaries.workspace.owner()).1.to_string();
    let holds = added.is_empty() && said.is("groups", &own);
    let seen = format!(
        "added by the engine or the image: {}; user {uid}, {}",
        listed(&added),
        said.shown(&["groups"])
    );
    let remedy =
        "; take the volumes out of the image, and the mounts and devices out of containers.conf";
    report.add("nothing-added", holds, if holds { seen } else { seen + remedy });
}

/// A word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Whether the image can run the program that leads a setup command to its proxy.
async fn way_out(sandbox: &Oci, canaries: &Canaries) -> Check {
    let check = |verdict, detail| Check { name: "way-out", verdict, detail };
    let made = tempfile::tempdir().and_then(|folder| {
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))?;
        let path = folder.path().join("egress.sock");
        let listener = UnixListener::bind(&path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket: OwnedFd = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok((folder, listener, socket))
    });
    let (_folder, _listener, socket) = match made {
        Ok(made) => made,
        Err(error) => return check(Verdict::Warns, format!("NOT TRIED: {error}")),
    };
    let extras = Extras { proxy: Some(Arc::new(socket)), ..Extras::default() };
    let tried = Command { extras, ..command("exit 7".into(), PATIENCE) };
    let no = "NOT GIVEN: setup commands with hosts in `[egress]` do not run in this image";
    match sandbox.run_anyway(&canaries.workspace, &tried).await {
        Ok(finished) if finished.end == End::Exited(7) => {
            check(Verdict::Holds, "setup commands can reach their proxy".into())
        }
        Ok(finished) => {
            let words = String::from_utf8_lossy(&finished.stderr.head).trim().to_owned();
            check(Verdict::Warns, format!("{no}: {words} ({})", finished.end))
        }
        Err(error) => check(Verdict::Warns, format!("{no}: {}", told(&error))),
    }
}

/// The verdict where the engine cannot set a limit.
fn lack(sandbox: &Oci, limit: &str) -> Verdict {
    match unmet(&sandbox.options.config, &sandbox.engine).contains(&limit) {
        true => Verdict::Fails,
        false => Verdict::Warns,
    }
}

fn no_group(sandbox: &Oci, what: &str) -> String {
    format!("NOT ENFORCED: {} has no control group for {what}; {HAND_OVER}", sandbox.name())
}

async fn memory(sandbox: &Oci, canaries: &Canaries) -> Check {
    let check = |verdict, detail| Check { name: "memory-limit", verdict, detail };
    if !sandbox.engine.limits.memory {
        return check(lack(sandbox, "memory_bytes"), no_group(sandbox, "memory"));
    }
    let limits = Limits { memory_bytes: FEW_BYTES, ..sandbox.limits() };
    let greedy = command(GREEDY.into(), PATIENCE);
    match sandbox.run_with(&canaries.workspace, &greedy, &limits).await {
        Ok(finished) if finished.end == End::OutOfMemory => check(
            Verdict::Holds,
            format!(
                "enforced by {}: {} for each command; one that took more than its {} was ended",
                sandbox.name(),
                size(sandbox.limits().memory_bytes),
                size(FEW_BYTES)
            ),
        ),
        Ok(finished) => check(
            Verdict::Fails,
            format!(
                "NOT ENFORCED: a command that took more than its limit ended with {}",
                finished.end
            ),
        ),
        Err(error) => check(Verdict::Fails, format!("NOT PROVEN: {}", told(&error))),
    }
}

async fn processes(sandbox: &Oci, canaries: &Canaries) -> Check {
    let check = |verdict, detail| Check { name: "process-limit", verdict, detail };
    if !sandbox.engine.limits.processes {
        return check(lack(sandbox, "processes"), no_group(sandbox, "processes"));
    }
    if sandbox.engine.is_gvisor() {
        let detail = format!(
            "set by {}: {} threads of gVisor's own kernel, which commands share; NOT TRIED",
            sandbox.name(),
            sandbox.limits().processes
        );
        return check(Verdict::Warns, detail);
    }
    let limits = Limits { processes: FEW_PROCESSES, ..sandbox.limits() };
    let breeder = command(BREEDER.into(), SHORT);
    match sandbox.run_with(&canaries.workspace, &breeder, &limits).await {
        Ok(finished) => {
            let words = String::from_utf8_lossy(&finished.stderr.head).into_owned();
            let n = sandbox.limits().processes;
            match words.contains("fork") {
                true => check(
                    Verdict::Holds,
                    format!(
                        "enforced by {}: {n} for each command; one that started more than its {FEW_PROCESSES} was refused",
                        sandbox.name()
                    ),
                ),
                false => check(
                    Verdict::Fails,
                    "NOT ENFORCED: a command that started more was not refused".into(),
                ),
            }
        }
        Err(error) => check(Verdict::Fails, format!("NOT PROVEN: {}", told(&error))),
    }
}

fn cpus(sandbox: &Oci) -> Check {
    let cpus = sandbox.limits().cpus;
    let (verdict, detail) = match (sandbox.engine.limits.cpus, cpus > 0.0) {
        (true, true) => (
            Verdict::Holds,
            format!("set by {}: {cpus} cores for each command", sandbox.engine.version),
        ),
        (true, false) => (
            Verdict::Holds,
            "`sandbox.cpus` is 0, all cores; commands yield to others by their shares".into(),
        ),
        (false, true) => (lack(sandbox, "cpus"), no_group(sandbox, "processors")),
        (false, false) => (Verdict::Holds, "`sandbox.cpus` is 0, all cores".into()),
    };
    Check { name: "processor-limit", verdict, detail }
}

/// What to do about words of an engine or a runtime, where they are known.
pub(super) fn remedy(words: &str) -> Option<&'static str> {
    const KNOWN: [(&str, &str); 8] = [
        (
            "cgroups in hybrid mode",
            "crun refuses this machine's mixture of control groups: set `sandbox.oci.runtime = \"runc\"`",
        ),
        ("image not known", IMAGE),
        ("No such image", IMAGE),
        ("subuid", RANGE),
        ("newuidmap", RANGE),
        ("not enough unused", RANGE),
        (
            "executable file `/bin/bash` not found",
            "take an image with bash, GNU coreutils, grep and sed",
        ),
        ("\"/bin/bash\": stat", "take an image with bash, GNU coreutils, grep and sed"),
    ];
    KNOWN.iter().find(|(part, _)| words.contains(part)).map(|(_, remedy)| *remedy)
}

const IMAGE: &str = "get the image again, as the service's user; nothing is pulled";
const RANGE: &str = "give the service's user a range in /etc/subuid and /etc/subgid: `usermod --add-subuids 200000-265535 --add-subgids 200000-265535 USER`, then `podman system migrate`";
