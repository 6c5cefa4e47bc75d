//! The sandbox with real bubblewrap: what a command gets, what it does not, and that nothing of it survives.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bot::sandbox::{self, Command, End, Finished, Options, Sandbox, SetupError, Verdict};
use bot::workspace::Workspace;

struct Bench {
    sandbox: Arc<dyn Sandbox>,
    workspace: Workspace,
    _folder: tempfile::TempDir,
}

fn options(change: impl FnOnce(&mut config::Sandbox)) -> Options {
    let mut config = config::Sandbox::default();
    change(&mut config);
    Options { config, helper: env!("CARGO_BIN_EXE_hyla").into() }
}

fn bench(options: Options) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    bot::folder::open_way(folder.path(), sandbox::workspace_owner(&options)).unwrap();
    let owner = sandbox::workspace_owner(&options);
    let workspace = Workspace::create(&folder.path().join("w"), owner).unwrap();
    Bench { sandbox: sandbox::build(options).unwrap(), workspace, _folder: folder }
}

fn command(script: &str) -> Command {
    Command {
        script: script.into(),
        timeout: Duration::from_secs(60),
        head_bytes: 4096,
        tail_bytes: 4096,
    }
}

impl Bench {
    async fn run(&self, script: &str) -> Finished {
        self.sandbox.run(&self.workspace, &command(script)).await.unwrap()
    }

    async fn says(&self, script: &str) -> String {
        String::from_utf8(self.run(script).await.stdout.head).unwrap()
    }
}

/// Whether any process on this machine has these words in its command line.
fn lives(words: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.map(|entry| entry.path().join("cmdline")).any(|path| {
        let line = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(words)
    })
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "never: {what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn every_property_holds_here() {
    let report = bench(options(|_| {})).sandbox.probe().await;
    let failed: Vec<_> =
        report.checks.iter().filter(|check| check.verdict == Verdict::Fails).collect();
    assert!(report.holds(), "{failed:#?}");
    assert!(report.checks.len() > 10);
}

#[tokio::test]
async fn a_command_ends_as_it_says() {
    let bench = bench(options(|_| {}));
    for (script, end) in [
        ("true", End::Exited(0)),
        ("exit 3", End::Exited(3)),
        ("kill -9 $$", End::Exited(137)),
        ("kill -TERM $$", End::Exited(143)),
        ("no-such-command", End::Exited(127)),
        ("exit 3\0", End::Exited(126)),
    ] {
        assert_eq!(bench.run(script).await.end, end, "{script}");
    }
    let finished = bench.run("echo out; echo err >&2; pwd; id -un; cat").await;
    assert_eq!(finished.stdout.head, b"out\n/workspace\nagent\n");
    assert_eq!(finished.stderr.head, b"err\n");
    assert_eq!(bench.says("echo made > made; cat made").await, "made\n");
    assert_eq!(bench.workspace.read(Path::new("made"), 100).unwrap(), b"made\n");
}

#[tokio::test]
async fn programs_that_people_need_run() {
    let bench = bench(options(|config| {
        config.env.insert("FROM_CONFIG".into(), "yes".into());
    }));
    assert_eq!(bench.says("echo $FROM_CONFIG $HOME").await, "yes /home/agent\n");
    assert_eq!(bench.says("git init -q . && git -c user.name=a -c user.email=b commit -q --allow-empty -m x && git log --oneline | wc -l").await, "1\n");
    let server = "import socket; s = socket.create_server(('localhost', 0)); c = socket.create_connection(s.getsockname()); print('ok')";
    assert_eq!(bench.says(&format!("python3 -c \"{server}\"")).await, "ok\n");
    let script = format!("{}\necho $0", "# x\n".repeat(100_000));
    assert_eq!(bench.says(&script).await, "/bin/bash\n", "a script longer than an argument may be");
}

#[tokio::test]
async fn nothing_of_a_command_survives_it() {
    let bench = bench(options(|_| {}));
    let begun = Instant::now();
    let left = "setsid sleep 4711 & nohup sleep 4711 & (trap '' TERM; sleep 4711) & (setsid sleep 4711 &) & echo left";
    assert_eq!(bench.says(left).await, "left\n");
    assert!(!lives("sleep 4711"));

    let mut sleeper = command(&format!("{left}; sleep 4712"));
    sleeper.timeout = Duration::from_millis(200);
    let finished = bench.sandbox.run(&bench.workspace, &sleeper).await.unwrap();
    assert_eq!((finished.end, finished.stdout.head.as_slice()), (End::TimedOut, &b"left\n"[..]));
    assert!(!lives("sleep 4711") && !lives("sleep 4712"));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_command_that_nobody_waits_for_dies_wherever_it_was() {
    let bench = bench(options(|_| {}));
    for delay in 0..25 {
        let running = command("sleep 4713 & sleep 4713");
        let wait = tokio::time::sleep(Duration::from_millis(delay));
        tokio::select! {
            finished = bench.sandbox.run(&bench.workspace, &running) => panic!("{finished:?}"),
            () = wait => {}
        }
    }
    until("all are dead", || !lives("sleep 4713")).await;
}

#[tokio::test]
async fn a_flood_costs_no_memory_and_both_ends_are_kept() {
    let bench = bench(options(|_| {}));
    let finished = bench.run("echo first; head -c 100000000 /dev/zero; echo last").await;
    assert!(
        finished.stdout.head.starts_with(b"first\n") && finished.stdout.tail.ends_with(b"last\n")
    );
    let kept = finished.stdout.head.len() + finished.stdout.tail.len();
    assert_eq!((kept, finished.stdout.dropped_bytes), (8192, 100_000_011 - 8192));
}

#[tokio::test]
async fn a_workspace_that_grows_too_large_ends_the_command() {
    let bench = bench(options(|config| config.workspace_bytes = 10 << 20));
    let finished = bench.run("while :; do head -c 1000000 /dev/zero >> big; done").await;
    assert_eq!(finished.end, End::DiskFull);
    bench.run("rm big").await;
    assert_eq!(bench.run("truncate -s 3G sparse && echo fine").await.end, End::Exited(0));
}

#[tokio::test]
async fn limits_hold_and_a_fork_bomb_ends() {
    let bench = bench(options(|config| {
        // Of an ordinary user, what runs beside this test counts too.
        config.processes = 300;
        config.file_bytes = 1 << 20;
    }));
    let mut bomb = command(":(){ :|:& };:; sleep 1; echo alive");
    bomb.timeout = Duration::from_secs(3);
    let finished = bench.sandbox.run(&bench.workspace, &bomb).await.unwrap();
    assert!(matches!(finished.end, End::TimedOut | End::Exited(_)));
    assert_eq!(bench.run("head -c 2000000 /dev/zero > big").await.end, End::Exited(153), "SIGXFSZ");
}

#[tokio::test]
async fn commands_are_ended_before_the_service_when_memory_is_used_up() {
    let bench = bench(options(|_| {}));
    let said = bench.says("cat /proc/self/oom_score_adj /proc/1/oom_score_adj").await;
    assert_eq!(said, "1000\n1000\n");
}

#[tokio::test]
async fn a_workspace_that_a_command_closed_is_open_to_the_next() {
    let bench = bench(options(|_| {}));
    for mode in ["644", "000", "300"] {
        // Long enough to be looked at once, closed as it is.
        let script = format!("echo {mode} > mode; chmod {mode} .; sleep 0.8");
        assert_eq!(bench.run(&script).await.end, End::Exited(0), "{mode}");
        assert_eq!(bench.says("pwd; cat mode").await, format!("/workspace\n{mode}\n"));
    }
}

#[tokio::test]
async fn commands_at_the_same_time_do_not_see_each_other() {
    let bench = Arc::new(bench(options(|_| {})));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let bench = Arc::clone(&bench);
        tasks.spawn(async move {
            bench
                .says(&format!(
                    "echo {number} > /tmp/own; ls /tmp; cat /tmp/own; ls /proc | grep -c '^[0-9]'"
                ))
                .await
        });
    }
    let said = tasks.join_all().await;
    assert!(
        said.iter().all(|said| said.starts_with("own\n") && said.lines().count() == 3),
        "{said:?}"
    );
}

/// A link that an agent plants where a later sandbox is set up must not lead its set-up out (CVE-2026-87766).
#[tokio::test]
async fn links_in_the_workspace_lead_nowhere_on_the_host() {
    let bench = bench(options(|_| {}));
    let victim = tempfile::tempdir().unwrap();
    let path = victim.path().display();
    bench
        .run(&format!(
            "for name in .git tmp etc x; do ln -s /oldroot{path} $name; ln -s {path} $name.2; done"
        ))
        .await;
    bench.run("mkdir -p x/y .git/y tmp/y 2>/dev/null; echo done").await;
    assert_eq!(std::fs::read_dir(victim.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn secrets_of_the_service_do_not_show_inside() {
    let bench = bench(options(|_| {}));
    let said = bench
        .says("cat /proc/*/environ /proc/*/cmdline /proc/self/mountinfo 2>/dev/null | tr '\\0' ' '")
        .await;
    let folder = bench.workspace.root().display().to_string();
    assert!(!said.contains("CARGO") && !said.contains("--ro-bind"), "{said}");
    // The kernel tells where on its disk the workspace is mounted from; no folder above the workspace can be opened.
    assert_eq!(bench.says(&format!("ls {folder} 2>&1 | grep -c 'No such'")).await, "1\n");
}

#[tokio::test]
async fn a_bubblewrap_that_cannot_be_trusted_is_refused() {
    for (path, reason) in [("/no/such/bwrap", "no `/no/such/bwrap`"), ("/tmp", "changed by others")]
    {
        let Err(error) = sandbox::build(options(|config| config.bwrap = path.into())) else {
            panic!("{path}")
        };
        assert!(error.to_string().contains(reason), "{error}");
    }
    let other = options(|config| config.bwrap = "/bin/true".into());
    assert!(matches!(sandbox::build(other), Err(SetupError::Unusable { .. })));
}

/// A folder with a `bwrap` that does as this script says when it is asked for a sandbox. None without root, because nobody
/// else can make a binary that is trusted.
#[expect(clippy::print_stderr, reason = "a test says what it leaves out")]
fn fake_bwrap(script: &str) -> Option<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can plant a trusted binary");
        return None;
    }
    let folder =
        tempfile::Builder::new().prefix("hyla-fake-").tempdir_in("/usr/local/lib").unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let fake = folder.path().join("bwrap");
    let ask = "case $1 in --help) echo --bind-fd; exit;; --version) echo fake; exit;; esac";
    std::fs::write(&fake, format!("#!/bin/bash\n{ask}\nshift 3\n{script}\n")).unwrap();
    std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
    Some(folder)
}

/// It runs the command as it is: the canaries must see it, whatever it answers.
#[tokio::test]
async fn a_sandbox_that_only_pretends_fails_the_probe() {
    let script = "echo \"{\\\"child-pid\\\": $$}\" >&4\n\
        \"$@\" 4>&-; code=$?\n\
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

/// Ready at once for the first ones, which gives what is beside it one step.
async fn given_up(round: u64) {
    match round.checked_sub(5) {
        None => std::future::ready(()).await,
        Some(more) => tokio::time::sleep(Duration::from_millis(more * 4)).await,
    }
}

#[tokio::test]
async fn a_workspace_is_quiet_once_the_sandbox_says_so() {
    let bench = bench(options(|_| {}));
    for round in 0..20 {
        let busy = command("while :; do date >> now; done");
        // The first ones are given up before the sandbox has begun, the last ones in the middle of it.
        tokio::select! {
            biased;
            finished = bench.sandbox.run(&bench.workspace, &busy) => panic!("{finished:?}"),
            () = given_up(round) => {}
        }
        bench.sandbox.quiet().await.unwrap();
        let size = || {
            std::fs::metadata(bench.workspace.root().join("now"))
                .map(|file| file.len())
                .unwrap_or(0)
        };
        let before = size();
        std::thread::yield_now();
        assert_eq!(before, size());
        assert!(!lives("while :; do date >> now; done"));
    }
}
