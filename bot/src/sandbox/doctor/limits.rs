//! What one command may use, each with what enforces it here: tried where that is cheap, and by name where it is not.

use std::time::Duration;

use super::super::backend::Backend;
use super::super::bubblewrap::Bubblewrap;
use super::super::cgroup::{Controller, Groups, Limits, Version};
use super::super::{Check, End, Options, Report, SetupError, Verdict};
use super::{Canaries, PATIENCE, Said, command};

/// The sentence that hands the service its groups.
pub(in crate::sandbox) const DELEGATE: &str = "with cgroup v2, hand the service its control group: `Delegate=yes` in its systemd unit, and for other commands as the README says; to do without, set `sandbox.require`";
/// Memory of the command that takes twice as much; far more than a shell needs.
pub(in crate::sandbox) const FEW_BYTES: u64 = 64 << 20;
/// A command that takes more than that.
pub(in crate::sandbox) const GREEDY: &str = "head -c 134217728 /dev/zero | tail >/dev/null";
/// Processes of the command that starts twice as many; more than the sandbox itself needs.
pub(in crate::sandbox) const FEW_PROCESSES: u64 = 16;
pub(in crate::sandbox) const BREEDER: &str = "for n in {1..32}; do sleep 60 & done; wait";
/// Between two looks whether a process was refused.
const LOOK: Duration = Duration::from_millis(10);

/// The limits that are required and that nothing enforces for one command, with the reason.
pub(in crate::sandbox) fn unmet(
    groups: &Groups,
    settings: &config::Sandbox,
) -> Vec<(&'static str, String)> {
    let named = |limit| match limit {
        config::Limit::Memory => ("memory_bytes", Controller::Memory),
        config::Limit::Processes => ("processes", Controller::Pids),
        config::Limit::Cpus => ("cpus", Controller::Cpu),
    };
    let required = settings.required(groups.is_unit).into_iter().map(named);
    let unmet = required.filter_map(|(name, controller)| {
        groups.enforces(controller).err().map(|reason| (name, reason.to_owned()))
    });
    unmet.collect()
}

/// Why no command may run, if a limit that is required is not enforced.
pub(in crate::sandbox) fn refusal(
    groups: &Groups,
    settings: &config::Sandbox,
) -> Option<SetupError> {
    let (limit, reason) = unmet(groups, settings).into_iter().next()?;
    Some(SetupError::Unusable {
        reason: format!("`{limit}` of one command is not limited: {reason}"),
        remedy: DELEGATE.into(),
    })
}

/// What became of the two commands that want more than they may have; none where no group limits that.
pub(super) struct Tried {
    memory: Option<Result<End, SetupError>>,
    processes: Option<Result<bool, SetupError>>,
}

/// Tries the limits that a group enforces.
pub(super) async fn tried(sandbox: &Bubblewrap, canaries: &Canaries, options: &Options) -> Tried {
    let groups = sandbox.groups();
    let settings = &options.config;
    let limits = Limits {
        memory_bytes: settings.memory_bytes,
        processes: settings.processes,
        cpus: settings.cpus,
    };
    let memory = async {
        groups.enforces(Controller::Memory).ok()?;
        Some(greedy(sandbox, canaries, Limits { memory_bytes: FEW_BYTES, ..limits }).await)
    };
    let processes = async {
        groups.enforces(Controller::Pids).ok()?;
        Some(breeder(sandbox, canaries, Limits { processes: FEW_PROCESSES, ..limits }).await)
    };
    let (memory, processes) = tokio::join!(memory, processes);
    Tried { memory, processes }
}

async fn greedy(
    sandbox: &Bubblewrap,
    canaries: &Canaries,
    limits: Limits,
) -> Result<End, SetupError> {
    let group = sandbox.make_group(&limits)?;
    let greedy = command(GREEDY.into(), PATIENCE);
    Ok(sandbox.run_in(&canaries.workspace, &greedy, group).await?.end)
}

/// Whether a process was refused. The shell would try again for a quarter of a minute.
async fn breeder(
    sandbox: &Bubblewrap,
    canaries: &Canaries,
    limits: Limits,
) -> Result<bool, SetupError> {
    let group = sandbox.make_group(&limits)?;
    let refused = group.refused();
    let is_refused = || refused.as_ref().is_some_and(|refused| refused.has_grown());
    let breeder = command(BREEDER.into(), PATIENCE);
    let seen = async {
        while !is_refused() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        finished = sandbox.run_in(&canaries.workspace, &breeder, group) => finished.map(|_| is_refused()),
        () = seen => Ok(true),
    }
}

/// One line for each limit.
pub(super) fn judge(
    report: &mut Report,
    sandbox: &Bubblewrap,
    said: &Said,
    tried: Tried,
    settings: &config::Sandbox,
) {
    let groups = sandbox.groups();
    let unmet = unmet(groups, settings);
    let lack = |name| match unmet.iter().any(|(unmet, _)| *unmet == name) {
        true => Verdict::Fails,
        false => Verdict::Warns,
    };
    let checks = [
        memory(groups, said, tried.memory, settings, lack("memory_bytes")),
        processes(sandbox, tried.processes, settings, lack("processes")),
        cpus(groups, settings, lack("cpus")),
        temporary(said, settings, groups),
    ];
    report.checks.extend(checks);
    by_service(report, settings);
}

/// The limits that the service keeps itself, whatever runs the commands.
pub(in crate::sandbox) fn by_service(report: &mut Report, settings: &config::Sandbox) {
    report.add(
        "workspace-limit",
        true,
        format!(
            "enforced by looks at the workspace every 500 ms ({} and {} files) and at its file system every 100 ms ({} stay free)",
            size(settings.workspace_bytes),
            settings.workspace_files,
            size(settings.free_bytes),
        ),
    );
    report.add(
        "output-limit",
        true,
        "enforced by the service: of each stream both ends are kept, the middle is counted and dropped".into(),
    );
    report.add(
        "commands-at-once",
        true,
        "enforced by the service: one command of a job at a time, `queue.workers` jobs".into(),
    );
}

fn memory(
    groups: &Groups,
    said: &Said,
    tried: Option<Result<End, SetupError>>,
    settings: &config::Sandbox,
    lack: Verdict,
) -> Check {
    let check = |verdict, detail| Check { name: "memory-limit", verdict, detail };
    let version = match groups.enforces(Controller::Memory) {
        Ok(version) => version,
        Err(reason) => {
            let order = if said.is("oom_score", "1000") {
                "when memory is used up, the kernel ends commands before the service"
            } else {
                "the kernel may end the service for what a command uses: its `oom_score_adj` cannot be set"
            };
            let whole = match &groups.own_memory {
                Some((bytes, file)) => {
                    format!("the whole service has {} by `{}`", size(*bytes), file.display())
                }
                None => "nor for the whole service (systemd `MemoryMax=` with `OOMPolicy=continue`, or the container's limit)".into(),
            };
            let detail =
                format!("NOT ENFORCED for one command: {reason}; {whole}; {order}; {DELEGATE}");
            return check(lack, detail);
        }
    };
    let by = match version {
        Version::Two => "cgroup v2 memory.max",
        Version::One => "cgroup v1 memory.limit_in_bytes",
    };
    let bytes = size(settings.memory_bytes);
    match tried {
        Some(Ok(End::OutOfMemory)) => {
            let detail = format!(
                "enforced by {by}: {bytes} for each command; one that took more than its {} was ended",
                size(FEW_BYTES)
            );
            check(Verdict::Holds, detail)
        }
        Some(Ok(end)) => check(
            Verdict::Fails,
            format!(
                "NOT ENFORCED: {by} is set, but a command that took more than it ended with {end}"
            ),
        ),
        Some(Err(error)) => check(Verdict::Fails, format!("NOT PROVEN: {error}")),
        None => check(Verdict::Fails, "NOT PROVEN: it was not tried".into()),
    }
}

fn processes(
    sandbox: &Bubblewrap,
    tried: Option<Result<bool, SetupError>>,
    settings: &config::Sandbox,
    lack: Verdict,
) -> Check {
    let check = |verdict, detail| Check { name: "process-limit", verdict, detail };
    let user = match rustix::process::geteuid() {
        uid if uid.is_root() => settings.uid,
        uid => uid.as_raw(),
    };
    let n = settings.processes;
    if let Err(reason) = sandbox.groups().enforces(Controller::Pids) {
        let detail = format!(
            "enforced by RLIMIT_NPROC of user {user} alone, {n} for all its processes at once; NOT ENFORCED for one command: {reason}; {DELEGATE}"
        );
        return check(lack, detail);
    }
    match tried {
        Some(Ok(true)) => {
            let all = sandbox.processes_of_user();
            let detail = format!(
                "enforced by cgroup pids.max: {n} for each command; one that started more than its {FEW_PROCESSES} was refused; and by RLIMIT_NPROC of user {user}, {all} for all"
            );
            check(Verdict::Holds, detail)
        }
        Some(Ok(false)) => check(
            Verdict::Fails,
            "NOT ENFORCED: cgroup pids.max is set, but a command that started more was not refused"
                .into(),
        ),
        Some(Err(error)) => check(Verdict::Fails, format!("NOT PROVEN: {error}")),
        None => check(Verdict::Fails, "NOT PROVEN: it was not tried".into()),
    }
}

fn cpus(groups: &Groups, settings: &config::Sandbox, lack: Verdict) -> Check {
    let check = |verdict, detail| Check { name: "processor-limit", verdict, detail };
    match (groups.enforces(Controller::Cpu), settings.cpus > 0.0) {
        (Ok(version), true) => {
            let by = match version {
                Version::Two => "cgroup v2 cpu.max",
                Version::One => "cgroup v1 cpu.cfs_quota_us",
            };
            check(
                Verdict::Holds,
                format!("enforced by {by}: {} cores for each command", settings.cpus),
            )
        }
        (Ok(version), false) => {
            let by = match version {
                Version::Two => "cgroup v2 cpu.weight",
                Version::One => "cgroup v1 cpu.shares",
            };
            let detail =
                format!("`sandbox.cpus` is 0, all cores; commands yield to the service by {by}");
            check(Verdict::Holds, detail)
        }
        (Err(reason), true) => {
            let detail = format!(
                "NOT ENFORCED: {reason}; commands yield to the service by their niceness; {DELEGATE}"
            );
            check(lack, detail)
        }
        (Err(_), false) => check(
            Verdict::Holds,
            "`sandbox.cpus` is 0, all cores; commands yield to the service by their niceness"
                .into(),
        ),
    }
}

fn temporary(said: &Said, settings: &config::Sandbox, groups: &Groups) -> Check {
    let mut check = sized(said, settings);
    let files = match groups.enforces(Controller::Memory) {
        Ok(_) => "the memory of many small files by the memory limit",
        Err(_) => "NOT ENFORCED: the number of files",
    };
    check.detail = format!("{}; {files}", check.detail);
    check
}

/// Whether what is for temporary files has its sizes.
pub(in crate::sandbox) fn sized(said: &Said, settings: &config::Sandbox) -> Check {
    let sizes = [
        ("tmp_bytes", settings.tmp_bytes),
        ("home_bytes", settings.home_bytes),
        ("shm_bytes", settings.shm_bytes),
    ];
    // The kernel rounds up to whole pages.
    let is_sized = sizes.iter().all(|(name, bytes)| {
        said.number(name).is_some_and(|seen| seen <= (*bytes).max(4096) + 4096)
    });
    let verdict = if is_sized { Verdict::Holds } else { Verdict::Fails };
    let shown = said.shown(&sizes.map(|(name, _)| name));
    Check { name: "temporary-limit", verdict, detail: format!("enforced by sized tmpfs: {shown}") }
}

/// Bytes, for people.
pub(in crate::sandbox) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 30 && bytes % (1 << 30) == 0 => format!("{} GiB", bytes >> 30),
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes => format!("{bytes} bytes"),
    }
}
