//! What one command may use, with real bubblewrap and the kernel's own control groups: each limit with a command that stays
//! below it, with one that passes it, and with another command beside it that notices nothing.
//!
//! Not every machine lets a test make control groups. A test that needs one says what is missing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bot::sandbox::{self, Check, Command, End, Finished, Options, Sandbox, SetupError, Verdict};
use bot::workspace::Workspace;

struct Bench {
    sandbox: Arc<dyn Sandbox>,
    /// Of two jobs.
    workspaces: [Workspace; 2],
    _folder: tempfile::TempDir,
}

fn bench(change: impl FnOnce(&mut config::Sandbox)) -> Bench {
    let mut config = config::Sandbox::default();
    change(&mut config);
    let folder = tempfile::tempdir().unwrap();
    let helper = env!("CARGO_BIN_EXE_hyla").into();
    let options = Options { config, helper, data: folder.path().join("data") };
    let owner = sandbox::workspace_owner(&options);
    bot::folder::open_way(folder.path(), owner).unwrap();
    let workspaces =
        ["one", "two"].map(|name| Workspace::create(&folder.path().join(name), owner).unwrap());
    Bench { sandbox: sandbox::build(options).unwrap(), workspaces, _folder: folder }
}

fn command(script: &str, timeout: Duration) -> Command {
    Command {
        script: script.into(),
        timeout,
        head_bytes: 4096,
        tail_bytes: 4096,
        ..Command::default()
    }
}

const MINUTE: Duration = Duration::from_secs(60);

impl Bench {
    async fn run(&self, script: &str) -> Finished {
        self.sandbox.run(&self.workspaces[0], &command(script, MINUTE)).await.unwrap()
    }

    /// The second job runs one small command after the other for as long as the first one's lasts, and each must succeed.
    async fn run_beside(&self, script: &str, timeout: Duration) -> Finished {
        let bomb = command(script, timeout);
        let bomb = self.sandbox.run(&self.workspaces[0], &bomb);
        let neighbour = async {
            loop {
                let small = command("seq 1000 | sort | tail -1", MINUTE);
                let finished = self.sandbox.run(&self.workspaces[1], &small).await.unwrap();
                assert_eq!(finished.end, End::Exited(0), "{finished:?}");
                assert_eq!(finished.stdout.head, b"999\n");
            }
        };
        tokio::select! {
            finished = bomb => finished.unwrap(),
            never = neighbour => never,
        }
    }

    async fn check(&self, name: &str) -> Check {
        let report = self.sandbox.probe().await;
        report.checks.into_iter().find(|check| check.name == name).unwrap()
    }

    /// Whether a control group enforces this limit here. One that should and does not is no excuse. Where there is none,
    /// it says which test, or what of it, does not run and why.
    async fn has_group_for(&self, limit: &str, test: &str) -> bool {
        let check = self.check(limit).await;
        assert_ne!(check.verdict, Verdict::Fails, "{check:?}");
        let has = check.verdict == Verdict::Holds && check.detail.contains("cgroup");
        if !has {
            let words = unrun(test, limit, &check.detail);
            // Not by `eprintln!`, which nobody sees of a test that passes.
            std::io::stderr().write_all(words.as_bytes()).unwrap();
        }
        has
    }
}

/// What is said of a test that needs a control group where there is none.
fn unrun(test: &str, limit: &str, detail: &str) -> String {
    format!("not run: {test}: it needs a control group for the {limit}, and here it is {detail}\n")
}

#[test]
fn what_is_not_run_is_said_by_its_name_with_the_reason() {
    assert_eq!(
        unrun("t29_a_flood", "memory-limit", "NOT ENFORCED: no cgroup v2 is delegated"),
        "not run: t29_a_flood: it needs a control group for the memory-limit, and here it is NOT ENFORCED: no cgroup v2 is delegated\n"
    );
}

fn said(finished: &Finished) -> String {
    String::from_utf8_lossy(&finished.stdout.head).into_owned()
}

/// Memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Starts as many sleepers as it is told, and says how many it got and what stopped it.
const BREEDER: &str = r#"import os, sys, time
n = 0
try:
    for _ in range(int(sys.argv[1])):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        n += 1
    print('all', n)
except OSError as error:
    print(error.errno, n)
"#;

#[tokio::test]
async fn t28_a_fork_bomb_meets_its_limit_and_the_neighbour_does_not() {
    let bench = bench(|config| config.processes = 64);
    if !bench
        .has_group_for(
            "process-limit",
            "t28_a_fork_bomb_meets_its_limit_and_the_neighbour_does_not",
        )
        .await
    {
        return;
    }
    bench.workspaces[0].write("breeder.py".as_ref(), BREEDER.as_bytes()).unwrap();
    // The control: fewer are no trouble.
    assert_eq!(said(&bench.run("python3 breeder.py 40").await), "all 40\n");
    let finished = bench.run("python3 breeder.py 100").await;
    let text = said(&finished);
    let (errno, n) = text.trim().split_once(' ').unwrap();
    assert_eq!(errno, "11", "EAGAIN: {text}");
    assert!((40..64).contains(&n.parse::<u32>().unwrap()), "{text}");

    let finished = bench.run_beside(":(){ :|:& };:; sleep 60", Duration::from_secs(3)).await;
    assert!(matches!(finished.end, End::TimedOut | End::Exited(_)), "{finished:?}");
}

/// Without a control group the kernel counts the processes of the user: enough against a bomb, though not for a neighbour.
/// With one, that is a second fence around all commands.
#[tokio::test]
async fn t28_a_fork_bomb_meets_the_users_limit_too() {
    let bench = bench(|config| config.processes = 300);
    let check = bench.check("process-limit").await;
    bench.workspaces[0].write("breeder.py".as_ref(), BREEDER.as_bytes()).unwrap();
    // The control: fewer are no trouble.
    assert_eq!(said(&bench.run("python3 breeder.py 40").await), "all 40\n");
    let limit = said(&bench.run("ulimit -u").await).trim().parse::<u64>().unwrap();
    if check.detail.contains("enforced by cgroup") {
        assert!((301..=300 * 64).contains(&limit), "{limit}");
        return;
    }
    assert_eq!((limit, check.verdict), (300, Verdict::Warns));
    let text = said(&bench.run("python3 breeder.py 400").await);
    assert!(text.starts_with("11 "), "EAGAIN: {text}");
}

/// Takes so many bytes and touches each page.
fn taker(bytes: u64) -> String {
    format!(
        "python3 -c \"x = bytearray({bytes}); x[::4096] = b'1' * len(x[::4096]); print('has it')\""
    )
}

#[tokio::test]
async fn t29_a_command_that_takes_too_much_memory_ends_as_that_and_the_service_keeps_its_own() {
    let bench = bench(|config| config.memory_bytes = 128 << 20);
    if !bench
        .has_group_for(
            "memory-limit",
            "t29_a_command_that_takes_too_much_memory_ends_as_that_and_the_service_keeps_its_own",
        )
        .await
    {
        return;
    }
    // The control: half of it is no trouble.
    let finished = bench.run(&taker(64 << 20)).await;
    assert_eq!((finished.end, said(&finished).as_str()), (End::Exited(0), "has it\n"));

    let before = resident_bytes();
    let small = "for n in 1 2 3 4 5 6 7 8; do TAKE & done; wait; sleep 60"
        .replace("TAKE", &taker(40 << 20));
    for (what, script) in [
        ("one process", taker(256 << 20)),
        ("one process whose shell would go on", format!("{}; sleep 60", taker(256 << 20))),
        ("many small ones", small),
        ("/tmp", "head -c 256M /dev/zero > /tmp/big; sleep 60".into()),
        ("/dev/shm and home", "head -c 60M /dev/zero > /dev/shm/big; head -c 120M /dev/zero > ~/big; sleep 60".into()),
        ("a file in memory", "python3 -c \"import os; f = os.memfd_create('x'); [os.write(f, b'1' * 1000000) for _ in range(256)]\"; sleep 60".into()),
    ] {
        let finished = bench.run_beside(&script, MINUTE).await;
        assert_eq!(finished.end, End::OutOfMemory, "{what}: {finished:?}");
        assert!(finished.elapsed < MINUTE / 2, "{what}: {:?}", finished.elapsed);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "the service grew by {grown} bytes");
    // A group that was used up serves the next command.
    for _ in 0..3 {
        assert_eq!(bench.run(&taker(64 << 20)).await.end, End::Exited(0));
    }
}

#[tokio::test]
async fn t29_a_flood_of_small_files_in_memory_counts_as_memory() {
    let bench = bench(|config| config.memory_bytes = 64 << 20);
    if !bench
        .has_group_for("memory-limit", "t29_a_flood_of_small_files_in_memory_counts_as_memory")
        .await
    {
        return;
    }
    let flood = "python3 -c \"import os\nfor n in range(1000000): os.close(os.open(f'/tmp/{n}', os.O_CREAT))\"";
    assert_eq!(bench.run(&flood.replace("1000000", "1000")).await.end, End::Exited(0));
    assert_eq!(bench.run(flood).await.end, End::OutOfMemory);
}

#[tokio::test]
async fn t30_a_full_workspace_ends_the_command_and_full_memory_files_end_where_they_are() {
    let bench = bench(|config| {
        config.workspace_bytes = 20 << 20;
        config.tmp_bytes = 8 << 20;
        config.shm_bytes = 4 << 20;
        config.home_bytes = 4 << 20;
    });
    // The control: what fits is written.
    assert_eq!(
        bench.run("head -c 5M /dev/zero | tee big > /tmp/big; ls /tmp").await.end,
        End::Exited(0)
    );
    let finished = bench.run_beside("while :; do head -c 1M /dev/zero >> big; done", MINUTE).await;
    assert_eq!(finished.end, End::DiskFull);
    bench.run("rm big").await;
    for (place, mib) in [("/tmp", 8), ("/dev/shm", 4), ("/home/agent", 4)] {
        let script = format!("head -c 16M /dev/zero > {place}/big; stat -c %s {place}/big");
        let finished = bench.run(&script).await;
        assert_eq!(said(&finished), format!("{}\n", mib << 20), "{place}");
        assert!(String::from_utf8_lossy(&finished.stderr.head).contains("No space left"));
    }
}

#[tokio::test]
async fn t30_a_flood_of_small_files_in_the_workspace_ends_the_command() {
    let bench = bench(|config| config.workspace_files = 20_000);
    let flood =
        "python3 -c \"import os\nfor n in range(LIMIT): os.close(os.open(str(n), os.O_CREAT))\"";
    assert_eq!(bench.run(&flood.replace("LIMIT", "10000")).await.end, End::Exited(0));
    let finished = bench.run_beside(&flood.replace("LIMIT", "10000000"), MINUTE).await;
    assert_eq!(finished.end, End::DiskFull);
}

#[tokio::test]
async fn t30_what_must_stay_free_of_the_file_system_stays_free() {
    let system = free_bytes();
    // The control: the floor is far away.
    let far = bench(|config| config.free_bytes = system / 2);
    assert_eq!(far.run("head -c 1M /dev/zero > big; sleep 0.3").await.end, End::Exited(0));
    let near = bench(|config| config.free_bytes = system.saturating_mul(2));
    assert_eq!(near.run("sleep 60").await.end, End::DiskFull);
}

/// Bytes that are free where the workspaces lie.
fn free_bytes() -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let system = rustix::fs::statvfs(folder.path()).unwrap();
    system.f_bavail * system.f_frsize
}

#[tokio::test]
async fn t31_a_busy_loop_ends_at_its_time_limit_and_gets_its_share_of_the_processor() {
    let limit = Duration::from_secs(2);
    let burn = "for n in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait";
    let free = bench(|_| {});
    // The control: what is over in time ends by itself.
    let short = command("timeout 0.2 bash -c 'while :; do :; done'", MINUTE);
    let finished = free.sandbox.run(&free.workspaces[0], &short).await.unwrap();
    assert_eq!(finished.end, End::Exited(124), "ended by `timeout`, not by the service");
    for script in [burn, "sleep infinity"] {
        let finished =
            free.sandbox.run(&free.workspaces[0], &command(script, limit)).await.unwrap();
        assert_eq!(finished.end, End::TimedOut);
        let late = finished.elapsed.saturating_sub(limit);
        assert!(finished.elapsed >= limit && late < limit / 4, "{script}: {:?}", finished.elapsed);
    }

    // Four processes burn for a second and say how much they got of it, in milliseconds.
    let share = r#"python3 -c "
import os, time
pipe = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        end = time.monotonic() + 1
        while time.monotonic() < end: pass
        os.write(pipe[1], b'%d\n' % (time.process_time() * 1000))
        os._exit(0)
for _ in range(4): os.wait()
print(sum(map(int, os.read(pipe[0], 100).split())))
""#;
    let tight = bench(|config| config.cpus = 0.1);
    let part = "the second half of t31_a_busy_loop_ends_at_its_time_limit_and_gets_its_share_of_the_processor";
    if !tight.has_group_for("processor-limit", part).await {
        return;
    }
    let [alone, limited] = [free.run(share).await, tight.run(share).await]
        .map(|finished| said(&finished).trim().parse::<u64>().unwrap());
    // A tenth of a second, and what each core may be handed ahead.
    assert!(limited < 250 && limited < alone, "{limited} ms with the limit, {alone} ms without");
}

#[tokio::test]
async fn a_limit_that_is_required_and_missing_stops_every_command() {
    use config::Limit::{Cpus, Memory, Processes};
    let bench = bench(|config| {
        config.cpus = 1.0;
        config.require = Some(vec![Memory, Processes, Cpus]);
    });
    let any = command("true", MINUTE);
    let ran = bench.sandbox.run(&bench.workspaces[0], &any).await;
    let report = bench.sandbox.probe().await;
    let lacking: Vec<&Check> = report
        .checks
        .iter()
        .filter(|check| check.detail.contains("NOT ENFORCED for one"))
        .collect();
    if lacking.is_empty() {
        assert_eq!(ran.unwrap().end, End::Exited(0));
        assert!(report.holds(), "{report:#?}");
    } else {
        assert!(matches!(&ran, Err(SetupError::Unusable { .. })), "{ran:?}");
        assert!(ran.unwrap_err().to_string().contains("Delegate=yes"));
        assert!(!report.holds());
        assert!(lacking.iter().all(|check| check.verdict == Verdict::Fails), "{lacking:#?}");
    }
}

#[tokio::test]
async fn the_doctor_names_what_enforces_each_limit_within_a_second_or_so() {
    let bench = bench(|_| {});
    let begun = Instant::now();
    let report = bench.sandbox.probe().await;
    // Under a second where nothing else runs; tests run beside each other.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    for name in [
        "limits",
        "memory-limit",
        "process-limit",
        "processor-limit",
        "ends-in-time",
        "temporary-limit",
        "workspace-limit",
        "output-limit",
        "commands-at-once",
    ] {
        let check = report.checks.iter().find(|check| check.name == name);
        let detail = &check.unwrap_or_else(|| panic!("{name} is not there")).detail;
        let is_named = ["enforced by", "NOT ENFORCED", "core", "yield"];
        assert!(is_named.iter().any(|words| detail.contains(words)), "{name}: {detail}");
    }
}
