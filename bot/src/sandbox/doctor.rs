//! The proof: each property that the sandbox promises is tried from inside, against a canary that it must not reach.
//!
//! A sandbox that only pretends passes no such check, whatever its exit codes say.

mod limits;

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::time::Duration;

pub(super) use limits::{
    BREEDER, FEW_BYTES, FEW_PROCESSES, GREEDY, by_service, refusal, size, sized, unmet,
};

use super::backend::Backend;
use super::bubblewrap::Bubblewrap;
use super::{
    Check, Command, End, Finished, Options, Report, SetupError, Verdict, arguments, workspace_owner,
};
use crate::clock::shown;
use crate::workspace::{Owner, Workspace};

/// How long the canaries may take; they need a fraction of a second.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// The time limit that a sleeper must be ended at.
const SHORT: Duration = Duration::from_millis(300);
/// What has so short a limit has ended within it.
pub(super) const SOON: Duration = Duration::from_millis(5_300);

/// Tries every property. Prints `name=value` lines, which the host judges.
const SCRIPT: &str = r#"
say() { printf '%s=%s\n' "$1" "$2"; }
can() { if eval "$2" >/dev/null 2>&1; then say "$1" yes; else say "$1" no; fi; }
while read -r key value rest; do
  case $key in Uid:) say uid "$value";; CapEff:|CapPrm:|CapBnd:|NoNewPrivs:|Seccomp:) say "${key%:}" "$value";; esac
done </proc/self/status
say names "$(compgen -e | sort | tr '\n' ' ')"
say init_names "$(tr '\0' '\n' </proc/1/environ | sed 's/=.*//' | tr '\n' ' ')"
say init_bytes "$(tr -d '\0' </proc/1/environ | wc -c)"
say devices "$(sed -n 's/^ *\([a-z0-9]*\):.*/\1/p' /proc/net/dev | tr '\n' ' ')"
say processes "$(ls -d /proc/[0-9]* | wc -l)"
ls /proc/$$/fd >/workspace/files; say files "$(tr '\n' ' ' </workspace/files)"
can tcp "exec 9<>/dev/tcp/127.0.0.1/PORT"
for path in / /usr /etc /dev /proc/sys/kernel/hostname /run /var; do
  can "write:$path" "echo x >'$path/hyla-canary' || echo x >'$path'"
done
can own_write 'echo x >/workspace/canary && echo x >/tmp/canary && echo x >/home/agent/canary'
for path in CANARIES; do can "see:$path" "test -e '$path'"; done
can mount 'mount -t tmpfs none /tmp'
can remount 'mount -o remount,bind,rw /usr'
can namespace 'unshare -U true'
can setuid 'chmod 4755 /workspace/canary'
can abstract_socket 'grep -q CANARYSOCKET /proc/net/unix'
say core "$(ulimit -c)"; say open_files "$(ulimit -n)"; say processes_limit "$(ulimit -u)"; say file_kib "$(ulimit -f)"
say oom_score "$(cat /proc/self/oom_score_adj)"
size() { say "$1" "$(($(stat -f -c '%b * %S' "$2")))"; }
size tmp_bytes /tmp; size home_bytes "$HOME"; size shm_bytes /dev/shm
while read -r key value rest; do case $key in Seccomp:) init=$value;; esac; done </proc/1/status
say init_seccomp "$init"
exit 7
"#;

/// What no command sees of the machine, besides the canaries.
const HIDDEN: &str = "/etc/shadow /root /var /run /sys /boot";

/// What a backend promises where not all promise the same.
pub(super) struct Expected<'a> {
    pub(super) settings: &'a config::Sandbox,
    /// The number of a command's user, as it sees itself.
    pub(super) uid: u32,
    /// Processes of the user, at most.
    pub(super) processes: u64,
    /// Whether the kernel tells of a process that it gets no new privileges. Gvisor's gives none, and does not tell.
    pub(super) tells_of_privileges: bool,
    /// The variables that the first process may have; none where an image says which.
    pub(super) init_names: Option<&'a [&'a str]>,
}

/// What the canaries are on the host's side.
pub(super) struct Canaries {
    _folder: tempfile::TempDir,
    pub(super) workspace: Workspace,
    pub(super) secret: PathBuf,
    /// A folder that everybody may write, with such a file `canary`: no owner and no mode keeps anybody out.
    pub(super) open: PathBuf,
    pub(super) listener: TcpListener,
    _socket: UnixListener,
    socket_name: String,
}

pub(super) async fn probe(sandbox: &Bubblewrap, version: &str, options: &Options) -> Report {
    let mut report = Report { backend: version.to_owned(), checks: Vec::new() };
    let Some(canaries) = Canaries::for_report(&mut report, workspace_owner(options)) else {
        return report;
    };
    let expected = Expected {
        settings: &options.config,
        uid: arguments::UID,
        processes: sandbox.processes_of_user(),
        tells_of_privileges: true,
        init_names: Some(&[]),
    };
    let said = match sandbox.run_anyway(&canaries.workspace, &canaries.command(HIDDEN)).await {
        Ok(finished) => judge(&mut report, &finished, &canaries, &expected),
        Err(error) => {
            report.add("starts", false, told(&error));
            return report;
        }
    };
    let tried = limits::tried(sandbox, &canaries, options);
    let by = match sandbox.groups().ends_whole() {
        true => "cgroup.kill and the end of the sandbox's first process",
        false => "the end of the sandbox's first process",
    };
    let (tried, ()) = tokio::join!(tried, sleepers(&mut report, (by, SOON), sandbox, &canaries));
    limits::judge(&mut report, sandbox, &said, tried, &options.config);
    finish(&mut report, sandbox, canaries).await;
    report
}

/// Whether all that ran is dead, and the workspace removed.
pub(super) async fn finish(report: &mut Report, sandbox: &dyn Backend, canaries: Canaries) {
    let quiet = sandbox.dying().quiet().await;
    let seen = quiet.as_ref().map_or_else(SetupError::to_string, |()| "all are dead".into());
    report.add("proves-deaths", quiet.is_ok(), seen);
    if let Err(error) = canaries.workspace.remove() {
        report.add("clean-up", false, format!("the probe's workspace cannot be removed: {error}"));
    }
}

/// An error with its cause.
pub(super) fn told(error: &SetupError) -> String {
    match error {
        SetupError::Start { source: Some(source), .. } => format!("{error}: {source}"),
        SetupError::Start { source: None, .. }
        | SetupError::Unusable { .. }
        | SetupError::StillAlive { .. }
        | SetupError::Unsure => error.to_string(),
    }
}

impl Canaries {
    /// Makes them; none if that fails, and then the report says so.
    pub(super) fn for_report(report: &mut Report, owner: Owner) -> Option<Self> {
        let no = |error: io::Error| {
            let seen =
                format!("cannot make canaries: {error}; check the folder for temporary files");
            report.add("canaries", false, seen);
        };
        Self::make(owner).map_err(no).ok()
    }

    fn make(owner: Owner) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
        let secret = folder.path().join("canary");
        let open = folder.path().join("open");
        std::fs::create_dir(&open)?;
        for (file, mode) in [(&secret, 0o644), (&open.join("canary"), 0o666)] {
            std::fs::write(file, "the canary")?;
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode))?;
        }
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777))?;
        let workspace = Workspace::create(&folder.path().join("workspace"), owner)?;
        let socket_name = format!("hyla-canary-{}", folder.path().display()).replace('/', "-");
        let address = SocketAddr::from_abstract_name(&socket_name)?;
        Ok(Self {
            secret,
            open,
            workspace,
            listener: TcpListener::bind("127.0.0.1:0")?,
            _socket: UnixListener::bind_addr(&address)?,
            socket_name,
            _folder: folder,
        })
    }

    /// The command that tries every property. `hidden` are paths that it must not see, besides the canaries.
    pub(super) fn command(&self, hidden: &str) -> Command {
        let port = self.listener.local_addr().map_or(0, |address| address.port());
        let canaries =
            format!("{} {} {hidden}", self.secret.display(), self.workspace.root().display());
        let script = SCRIPT
            .replace("PORT", &port.to_string())
            .replace("CANARIES", &canaries)
            .replace("CANARYSOCKET", &self.socket_name);
        command(script, PATIENCE)
    }
}

pub(super) fn command(script: String, timeout: Duration) -> Command {
    Command { script, timeout, head_bytes: 64 << 10, ..Command::default() }
}

/// What the script said.
pub(super) struct Said(BTreeMap<String, String>);

impl Said {
    pub(super) fn of(finished: &Finished) -> Self {
        let text = String::from_utf8_lossy(&finished.stdout.head).into_owned();
        let lines = text.lines().filter_map(|line| line.split_once('='));
        Self(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub(super) fn is(&self, name: &str, value: &str) -> bool {
        self.0.get(name).is_some_and(|said| said.trim() == value)
    }

    pub(super) fn shown(&self, names: &[&str]) -> String {
        let shown = names.iter().map(|name| {
            let said = self.0.get(*name).map_or("nothing", String::as_str);
            format!("{name} {}", said.trim())
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    /// The names that begin so, of all that were answered with yes.
    pub(super) fn reached(&self, prefix: &str) -> Vec<&str> {
        let yes =
            self.0.iter().filter(|(name, said)| name.starts_with(prefix) && said.trim() == "yes");
        yes.map(|(name, _)| &name[prefix.len()..]).collect()
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.trim().parse().ok()
    }

    /// Whether anything with this prefix was tried at all.
    fn tried(&self, prefix: &str) -> bool {
        self.0.keys().any(|name| name.starts_with(prefix))
    }
}

/// One line for each property that needs no second command. Returns what the command said.
pub(super) fn judge(
    report: &mut Report,
    finished: &Finished,
    canaries: &Canaries,
    expected: &Expected<'_>,
) -> Said {
    let said = Said::of(finished);
    let has_ended = finished.end == End::Exited(7) && finished.elapsed < PATIENCE / 2;
    report.add(
        "starts",
        has_ended,
        match finished.end {
            End::Exited(7) => {
                format!("a first command ran and ended within {}", shown(finished.elapsed))
            }
            other => {
                format!("a first command ended by {other} after {}", shown(finished.elapsed))
            }
        },
    );

    judge_identity(report, &said, canaries, expected);
    judge_environment(report, &said, expected);
    judge_sight(report, &said);
    judge_limits(report, &said, expected);
    said
}

/// Who a command is, and what it may do to the kernel.
fn judge_identity(report: &mut Report, said: &Said, canaries: &Canaries, expected: &Expected<'_>) {
    let powers = ["CapEff", "CapPrm", "CapBnd"];
    let is_powerless = powers.iter().all(|name| said.is(name, "0000000000000000"))
        && said.is("uid", &expected.uid.to_string());
    let has_no_new = said.is("NoNewPrivs", "1")
        || !(expected.tells_of_privileges || said.0.contains_key("NoNewPrivs"));
    report.add(
        "no-privileges",
        is_powerless && has_no_new,
        said.shown(&["uid", "CapEff", "CapBnd", "NoNewPrivs"]),
    );
    let owner =
        std::fs::metadata(canaries.workspace.root().join("canary")).map(|metadata| metadata.uid());
    let owner_of_all = match canaries.workspace.owner() {
        Owner::Service => rustix::process::geteuid().as_raw(),
        Owner::Sandbox { uid, .. } => uid,
    };
    let is_own = owner.as_ref().is_ok_and(|&uid| uid == owner_of_all && uid != 0);
    report.add(
        "identity",
        is_own,
        match owner {
            Ok(uid) => format!("a file made inside belongs to user {uid}, expected {owner_of_all}"),
            Err(error) => format!("the file made inside cannot be seen: {error}"),
        },
    );
    report.add(
        "filter",
        said.is("Seccomp", "2") && said.is("init_seccomp", "2"),
        said.shown(&["Seccomp", "init_seccomp"]),
    );
    let denied = ["mount", "remount", "namespace", "setuid"];
    let is_held = denied.iter().all(|name| said.is(name, "no"));
    report.add("no-way-up", is_held, said.shown(&denied));
}

/// What a command is handed by whoever started it.
pub(super) fn judge_environment(report: &mut Report, said: &Said, expected: &Expected<'_>) {
    let mut names: Vec<String> =
        arguments::variables(expected.settings).into_iter().map(|(name, _)| name).collect();
    // Bash sets these by itself.
    names.extend(["PWD", "OLDPWD", "SHLVL", "_"].map(str::to_owned));
    let variables = said.0.get("names").map(String::as_str).unwrap_or_default();
    let strange: Vec<&str> = variables
        .split(' ')
        .filter(|name| !name.is_empty() && !names.iter().any(|own| own == name))
        .collect();
    let init = said.0.get("init_names").map_or("unread", String::as_str).split(' ');
    let is_bare = expected.init_names.is_none_or(|names| {
        init.filter(|name| !name.is_empty()).all(|name| names.contains(&name))
            && (!names.is_empty() || said.is("init_bytes", "0"))
    });
    let is_clean = strange.is_empty() && !variables.is_empty() && is_bare;
    report.add(
        "empty-environment",
        is_clean,
        format!(
            "unexpected variables: {}; {}",
            listed(&strange),
            said.shown(&["init_bytes", "init_names"])
        ),
    );
    report.add("no-open-files", said.is("files", "0 1 2"), said.shown(&["files"]));
}

/// What a command sees and reaches of the machine.
fn judge_sight(report: &mut Report, said: &Said) {
    let is_alone =
        said.is("devices", "lo") && said.is("tcp", "no") && said.is("abstract_socket", "no");
    report.add("no-network", is_alone, said.shown(&["devices", "tcp", "abstract_socket"]));
    let seen = said.reached("see:");
    report.add(
        "no-host-files",
        seen.is_empty() && said.tried("see:"),
        format!("visible: {}", listed(&seen)),
    );
    let few = said
        .0
        .get("processes")
        .and_then(|n| n.trim().parse::<u32>().ok())
        .is_some_and(|n| (1..10).contains(&n));
    report.add("no-host-processes", few, said.shown(&["processes"]));
    let written = said.reached("write:");
    let only_own = written.is_empty() && said.tried("write:") && said.is("own_write", "yes");
    report.add(
        "writes-only-its-own",
        only_own,
        format!("written: {}; {}", listed(&written), said.shown(&["own_write"])),
    );
}

/// What the kernel lets one process use, or one user.
pub(super) fn judge_limits(report: &mut Report, said: &Said, expected: &Expected<'_>) {
    let &Expected { settings, processes, .. } = expected;
    let is_limited = said.is("core", "0")
        && said.is("open_files", &settings.open_files.to_string())
        // Where the user may have fewer anyway, it is fewer.
        && said.number("processes_limit").is_some_and(|n| n <= processes)
        && said.is("file_kib", &(settings.file_bytes / 1024).to_string());
    report.add(
        "limits",
        is_limited,
        said.shown(&["core", "open_files", "processes_limit", "file_kib"]),
    );
}

pub(super) fn listed(words: &[&str]) -> String {
    if words.is_empty() { "nothing".into() } else { words.join(" ") }
}

/// What a command leaves in the background goes with it, and a command that would sleep ends at its time limit. `by` says
/// what ends them; with it comes how long that may take. What they leave would sleep for longer.
pub(super) async fn sleepers(
    report: &mut Report,
    (by, longest): (&str, Duration),
    sandbox: &dyn Backend,
    canaries: &Canaries,
) {
    let left = "setsid sleep 60 & setsid sleep 60 >/dev/null 2>&1 &";
    for (name, script, limit, expected) in [
        ("ends-whole", format!("{left} exit 0"), PATIENCE, End::Exited(0)),
        ("ends-in-time", format!("{left} sleep 60"), SHORT, End::TimedOut),
    ] {
        let finished = sandbox.run_anyway(&canaries.workspace, &command(script, limit)).await;
        let is_ended = matches!(
            &finished,
            Ok(finished) if finished.end == expected && finished.elapsed < longest
        );
        let detail = match finished {
            Ok(finished) => format!(
                "enforced by the service's clock, by {by}: {} after {}",
                finished.end,
                shown(finished.elapsed)
            ),
            Err(error) => error.to_string(),
        };
        report.add(name, is_ended, detail);
    }
}

impl Report {
    pub(super) fn add(&mut self, name: &'static str, holds: bool, seen: String) {
        let verdict = if holds { Verdict::Holds } else { Verdict::Fails };
        let detail = match remedy(&seen) {
            Some(remedy) if !holds => format!("{seen}; {remedy}"),
            Some(_) | None => seen,
        };
        self.checks.push(Check { name, verdict, detail });
    }
}

/// What to do about words of bubblewrap, where they are known.
pub(super) fn remedy(words: &str) -> Option<&'static str> {
    const KNOWN: [(&str, &str); 12] = [
        ("setting up uid map: Permission denied", APPARMOR),
        ("Failed RTM_NEWADDR", APPARMOR),
        ("Failed to make / slave", APPARMOR),
        (
            "Failed to create NETLINK_ROUTE socket",
            "add AF_NETLINK to `RestrictAddressFamilies=` of the service's unit",
        ),
        (
            "cannot open /proc/sys/user/max_user_namespaces",
            "take `ProtectKernelTunables=` out of the service's unit",
        ),
        ("overflowuid", "take `ProcSubset=pid` out of the service's unit"),
        (
            "Can't set hostname",
            "take `ProtectHostname=` out of the service's unit, or allow `sethostname` in the container's seccomp profile",
        ),
        ("Creating new namespace failed: Function not implemented", CONTAINER),
        ("Can't mount proc", CONTAINER),
        (
            "No permissions to create",
            "allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1`, and no `RestrictNamespaces=yes` in the service's unit",
        ),
        ("nesting depth", "allow user namespaces: `user.max_user_namespaces` is 0 or used up"),
        (
            "Resource temporarily unavailable",
            "the sandbox's user has as many processes as `sandbox.processes` allows",
        ),
    ];
    KNOWN.iter().find(|(part, _)| words.contains(part)).map(|(_, remedy)| *remedy)
}

const APPARMOR: &str = "AppArmor forbids user namespaces: load the profile `bwrap-userns-restrict` (package `apparmor-profiles`) and use /usr/bin/bwrap";
const CONTAINER: &str = "this container forbids namespaces: give it a seccomp profile that allows them and an unmasked /proc, as the README says";
