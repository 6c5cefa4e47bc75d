//! What the two backends without namespaces do keep, tried with canaries, and what they do not, said by name.

use super::{Guarded, Kind};
use crate::sandbox::backend::Backend;
use crate::sandbox::cgroup::{Controller, Groups};
use crate::sandbox::doctor::{
    Canaries, Expected, PATIENCE, SOON, Said, by_service, command, finish, judge_environment,
    judge_limits, size, sleepers, told, unmet,
};
use crate::sandbox::{Check, End, Finished, Report, Verdict, workspace_owner};
use crate::workspace::Owner;

/// Tries what is promised. Prints `name=value` lines, which the host judges.
const SCRIPT: &str = r#"
say() { printf '%s=%s\n' "$1" "$2"; }
can() { if eval "$2" >/dev/null 2>&1; then say "$1" yes; else say "$1" no; fi; }
while read -r key value rest; do
  case $key in Uid:) say uid "$value";; Groups:) say groups "$value$rest";;
    CapEff:|CapPrm:|NoNewPrivs:|Seccomp:) say "${key%:}" "$value";; esac
done </proc/self/status
say names "$(compgen -e | sort | tr '\n' ' ')"
ls /proc/$$/fd >"$TMPDIR/files"; say files "$(tr '\n' ' ' <"$TMPDIR/files")"
can tcp 'exec 9<>/dev/tcp/127.0.0.1/PORT'
can udp 'exec 9<>/dev/udp/127.0.0.1/PORT'
can read 'cat OPEN/canary'
can write 'echo x >>OPEN/canary'
can add 'echo x >OPEN/beside'
can mode 'chmod 600 CANARY'
can times 'touch -c CANARY'
can service_environment 'cat /proc/SERVICE/environ'
can signal 'kill -0 SERVICE'
can setuid 'touch own && chmod 4755 own'
can own_write 'echo x >own && echo x >"$HOME/own" && echo x >"$TMPDIR/own"'
say core "$(ulimit -c)"; say open_files "$(ulimit -n)"; say processes_limit "$(ulimit -u)"; say file_kib "$(ulimit -f)"
exit 7
"#;

/// What `landlock-degraded` does not give, in words that follow its name.
const DEGRADED_GAPS: [(&str, &str); 7] = [
    (
        "gap: paths",
        "commands see the workspace at its own path, there is no `/workspace`, and they can write neither `/tmp` nor `/dev/shm`: temporary files go to `$TMPDIR`; they can read `/usr/local/etc`, which bubblewrap hides",
    ),
    (
        "gap: what is there",
        "commands can ask of any file whether it is there, how large it is and when it was changed, where the way to it is open to all",
    ),
    (
        "gap: modes, times, attributes",
        "Landlock keeps nobody from changing the mode of a file of his own, nor times and attributes of one that he or everybody may write: nothing but workspaces may belong to the sandbox's user",
    ),
    (
        "gap: processes",
        "commands see every process of the machine with its command line, and not its environment; the system's numbers and network tables in `/proc` too",
    ),
    (
        "gap: network",
        "commands can make no socket at all, and have no loopback device: tests that start a server of their own fail",
    ),
    (
        "gap: temporary-limit",
        "home and temporary files lie on the workspace's disk, and are looked at every 500 ms instead of having a size",
    ),
    (
        "gap: kernel",
        "commands ask the same kernel as the service through a filter, and there is no second wall of namespaces behind it",
    ),
];

/// What `none` does not give.
const NONE_GAPS: [(&str, &str); 4] = [
    (
        "gap: everything",
        "nothing keeps a command in: it can read and change what the service's user can, its secrets, its database and its memory included",
    ),
    ("gap: network", "commands have the machine's network, and can send out what they read"),
    (
        "gap: ends-whole",
        "a command that ends its own guard leaves processes behind; that is seen, and then no command runs until the service is started again",
    ),
    (
        "gap: paths",
        "commands see the workspace at its own path, and there is no `/workspace`; temporary files go to `$TMPDIR`, and what is written elsewhere stays",
    ),
];

pub(super) async fn probe(sandbox: &Guarded) -> Report {
    let mut report = Report { backend: sandbox.name(), checks: Vec::new() };
    let Some(canaries) = Canaries::for_report(&mut report, workspace_owner(&sandbox.options))
    else {
        return report;
    };
    let port = canaries.listener.local_addr().map_or(0, |address| address.port());
    let script = SCRIPT
        .replace("PORT", &port.to_string())
        .replace("OPEN", &canaries.open.display().to_string())
        .replace("CANARY", &canaries.secret.display().to_string())
        .replace("SERVICE", &std::process::id().to_string());
    match sandbox.run_anyway(&canaries.workspace, &command(script, PATIENCE)).await {
        Ok(finished) => judge(&mut report, sandbox, &finished, &canaries),
        Err(error) => {
            report.add("starts", false, told(&error));
            return report;
        }
    }
    let by = match sandbox.kind {
        Kind::Degraded { .. } => "a guard that kills all that the sandbox's user runs",
        Kind::Unconfined => "a guard that kills whatever descends from the command",
    };
    sleepers(&mut report, (by, SOON), sandbox, &canaries).await;
    limits(&mut report, sandbox);
    by_service(&mut report, &sandbox.options.config);
    finish(&mut report, sandbox, canaries).await;
    let gaps: &[(&'static str, &str)] = match sandbox.kind {
        Kind::Degraded { .. } => &DEGRADED_GAPS,
        Kind::Unconfined => &NONE_GAPS,
    };
    if let Kind::Degraded { landlock } = &sandbox.kind
        && landlock.parse::<u32>().is_ok_and(|version| version < 3)
    {
        let detail = format!(
            "Landlock ABI {landlock} keeps nobody from emptying a file that he may write; ABI 3 does, with Linux 6.2"
        );
        report.checks.push(Check { name: "gap: truncation", verdict: Verdict::Warns, detail });
    }
    report.checks.extend(gaps.iter().map(|(name, words)| Check {
        name,
        verdict: Verdict::Warns,
        detail: (*words).into(),
    }));
    report
}

fn judge(report: &mut Report, sandbox: &Guarded, finished: &Finished, canaries: &Canaries) {
    let said = Said::of(finished);
    report.add("starts", finished.end == End::Exited(7), format!("it ended by {}", finished.end));
    let expected = match canaries.workspace.owner() {
        Owner::Service => rustix::process::geteuid().as_raw(),
        Owner::Sandbox { uid, .. } => uid,
    };
    let is_powerless = said.is("CapEff", "0000000000000000") && said.is("NoNewPrivs", "1");
    let is_own = said.is("uid", &expected.to_string()) && expected != 0;
    report.add(
        "no-privileges",
        is_powerless && is_own,
        said.shown(&["uid", "groups", "CapEff", "NoNewPrivs"]),
    );
    let wanted = Expected {
        settings: &sandbox.options.config,
        uid: expected,
        processes: sandbox.processes_of_user(),
        tells_of_privileges: true,
        init_names: None,
    };
    judge_environment(report, &said, &wanted);
    report.add("writes-its-own", said.is("own_write", "yes"), said.shown(&["own_write"]));
    judge_limits(report, &said, &wanted);
    if sandbox.kind == Kind::Unconfined {
        return;
    }
    let denied = |names: &[&str]| names.iter().all(|name| said.is(name, "no"));
    let mut none = |name, names: &[&str]| report.add(name, denied(names), said.shown(names));
    none("no-sockets", &["tcp", "udp"]);
    none("no-host-files", &["read", "write", "add", "mode", "times"]);
    none("no-host-processes", &["service_environment", "signal"]);
    none("no-way-up", &["setuid"]);
    let is_alone = said.is("groups", "") && said.is("Seccomp", "2");
    report.add("filter", is_alone, said.shown(&["Seccomp", "groups"]));
}

/// What a control group limits, as far as there is one.
fn limits(report: &mut Report, sandbox: &Guarded) {
    let settings = &sandbox.options.config;
    let groups: &Groups = &sandbox.groups;
    let unmet = unmet(groups, settings);
    for (name, controller, key, limit) in [
        ("memory-limit", Controller::Memory, "memory_bytes", size(settings.memory_bytes)),
        ("process-limit", Controller::Pids, "processes", settings.processes.to_string()),
    ] {
        let is_required = unmet.iter().any(|(unmet, _)| *unmet == key);
        let (verdict, detail) = match groups.enforces(controller) {
            Ok(_) => (Verdict::Holds, format!("set by a control group: {limit} for each command")),
            Err(reason) if is_required => (Verdict::Fails, format!("NOT ENFORCED: {reason}")),
            Err(reason) => (Verdict::Warns, format!("NOT ENFORCED: {reason}")),
        };
        report.checks.push(Check { name, verdict, detail });
    }
}
