//! What an attacker leaves running, and how much it says: the end of a command is the end of everything of it.

use std::os::unix::process::CommandExt;
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use bot::sandbox::End;

use super::bench::{Bench, command, length, lives, living, marker, sleepers, until, usual, weak};
use super::own_process::service;

/// Daemons of every kind, which all sleep for this long, and one that keeps writing.
fn daemons(pause: &str) -> String {
    format!(
        "setsid sleep {pause} & nohup sleep {pause} >/dev/null 2>&1 & (trap '' TERM HUP INT; sleep {pause}) & \
         (setsid sleep {pause} &) & (exec 0<&- 1>&- 2>&-; setsid sleep {pause} &) & \
         (while :; do echo {pause} >> grows; done) & \
         until [ $(grep -lxz -- '{pause}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l) -ge 5 ] && [ -s grows ]; do :; done; echo left"
    )
}

/// How much the daemon that writes has written, in bytes.
fn written(bench: &Bench) -> u64 {
    let file = bench.workspace.root().join("grows");
    std::fs::metadata(file).map_or(0, |file| file.len())
}

/// Until all daemons do what they are for.
async fn until_they_run(bench: &Bench, pause: &str) {
    until("the daemons run", || sleepers(pause).len() >= 5 && written(bench) > 0).await;
}

/// Whether the workspace has come to rest: what a command was writing does not grow over many looks.
fn at_rest(bench: &Bench) -> bool {
    let size = || written(bench);
    let before = size();
    let looks = (0..2000).map(|_| {
        std::thread::yield_now();
        size()
    });
    before > 0 && looks.into_iter().all(|size| size == before)
}

/// Ends what a control left, by its number.
fn clear(words: &str) {
    for pid in living(words) {
        let pid = nix::unistd::Pid::from_raw(pid);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
}

/// No daemon, and nobody who writes the workspace.
fn assert_nothing_is_left(bench: &Bench, pause: &str) {
    assert!(!lives(pause), "{:?}", living(pause));
    assert!(at_rest(bench));
}

#[tokio::test]
async fn t24_daemons_end_with_a_command_that_exits() {
    let bench = usual();
    let pause = marker(4711);
    // The control: a shell alone leaves them. They would hold a pipe open, so it has none.
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Process::new("bash");
    shell.args(["-c", &daemons(&pause)]).current_dir(folder.path()).stdout(Stdio::null());
    shell.stderr(Stdio::null()).process_group(0);
    shell.status().unwrap();
    until("the control leaves them", || sleepers(&pause).len() >= 5).await;
    until("the control is cleared away", || {
        clear(&pause);
        !lives(&pause)
    })
    .await;

    assert_eq!(bench.says(&daemons(&pause)).await, "left\n");
    assert_nothing_is_left(&bench, &pause);
}

#[tokio::test]
async fn t24_daemons_end_with_a_command_that_takes_too_long() {
    let bench = usual();
    let pause = marker(4724);
    let mut sleeper = command(&format!("{}; sleep {pause}", daemons(&pause)));
    sleeper.timeout = Duration::from_secs(3);
    let begun = Instant::now();
    let finished = bench.sandbox.run(&bench.workspace, &sleeper).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!((finished.end, finished.stdout.head.as_slice()), (End::TimedOut, &b"left\n"[..]));
    assert_nothing_is_left(&bench, &pause);
}

#[tokio::test]
async fn t24_daemons_end_with_a_command_that_nobody_waits_for() {
    let bench = usual();
    let pause = marker(4725);
    let script = format!("{}; sleep {pause}", daemons(&pause));
    tokio::select! {
        finished = bench.run(&script) => panic!("{finished:?}"),
        () = until_they_run(&bench, &pause) => {}
    }
    bench.sandbox.quiet().await.unwrap();
    assert_nothing_is_left(&bench, &pause);
}

#[tokio::test]
async fn t24_daemons_end_with_a_service_that_is_killed() {
    let bench = usual();
    let pause = marker(4726);
    let script = format!("{}; sleep {pause}", daemons(&pause));
    let mut service = service(&bench, &["env"], &script).spawn().unwrap();
    until_they_run(&bench, &pause).await;
    service.kill().unwrap();
    service.wait().unwrap();
    let killed = Instant::now();
    // Nobody is left to wait for a proof of their deaths, and they die in any order.
    until("the daemons are dead", || !lives(&pause) && at_rest(&bench)).await;
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
}

#[tokio::test]
async fn t25_a_command_that_is_given_up_at_any_moment_leaves_nothing() {
    let bench = usual();
    let pause = marker(4713);
    for round in 0..length(100, 400) {
        let running = command(&format!("sleep {pause} & sleep {pause}"));
        let wait = Duration::from_micros(fastrand::u64(0..20_000));
        tokio::select! {
            finished = bench.sandbox.run(&bench.workspace, &running) => panic!("{round}: {finished:?}"),
            () = tokio::time::sleep(wait) => {}
        }
    }
    bench.sandbox.quiet().await.unwrap();
    assert!(!lives(&pause), "{:?}", living(&pause));
}

/// Whether what sleeps for so long goes on doing so, and is not merely about to end.
async fn stays(pause: &str) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        if sleepers(pause).is_empty() {
            return false;
        }
        tokio::task::yield_now().await;
    }
    true
}

/// The control of T25: whoever ends bubblewrap alone, with its own way to tie its end to the inside, leaves sandboxes
/// running.
#[tokio::test]
async fn t25_ending_bubblewrap_alone_leaves_commands_running() {
    let bench = usual();
    let pause = marker(4727);
    let begun = Instant::now();
    let mut n_tries = 0;
    while n_tries < length(200, 1000) && begun.elapsed() < Duration::from_secs(20) {
        n_tries += 1;
        let mut outer = weak(&bench, &format!("sleep {pause}")).spawn().unwrap();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..20_000))).await;
        outer.kill().unwrap();
        outer.wait().unwrap();
        // What still starts has no more than this to do so.
        if n_tries % 10 == 0 && stays(&pause).await {
            break;
        }
    }
    let left = stays(&pause).await;
    clear(&pause);
    until("the control is cleared away", || {
        clear(&pause);
        !lives(&pause)
    })
    .await;
    if !left {
        eprintln!(
            "no control here: {n_tries} sandboxes ended with bubblewrap, as a patched or a slow one may"
        );
    }
}

#[tokio::test]
async fn t25_a_hundred_jobs_that_leave_daemons_leave_none() {
    let bench = std::sync::Arc::new(usual());
    let pause = marker(4728);
    let mut tasks = tokio::task::JoinSet::new();
    let limit = std::sync::Arc::new(tokio::sync::Semaphore::new(4));
    for _ in 0..length(100, 400) {
        let (bench, limit, pause) = (bench.clone(), limit.clone(), pause.clone());
        tasks.spawn(async move {
            let _turn = limit.acquire().await.unwrap();
            let job = bench.neighbour();
            let left = format!("setsid sleep {pause} & (setsid nohup sleep {pause} &) & echo left");
            assert_eq!(job.says(&left).await, "left\n");
            job.workspace.remove().unwrap();
        });
    }
    tasks.join_all().await;
    bench.sandbox.quiet().await.unwrap();
    assert!(!lives(&pause), "{:?}", living(&pause));
}

/// Bubblewrap dies with the thread that started it, so that must not be the thread that asks.
#[tokio::test]
async fn t26_a_command_outlives_the_thread_that_asked_for_it() {
    let bench = std::sync::Arc::new(usual());
    let pause = marker(4729);
    // The control: what a thread starts and ties to its own death ends with the thread.
    let script = format!("sleep {pause}");
    let started = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let child = weak(&bench, &script).spawn().unwrap();
                while sleepers(&pause).is_empty() {
                    std::thread::yield_now();
                }
                child
            })
            .join()
            .unwrap()
    });
    let mut control = started;
    until("the control has ended with its thread", || control.try_wait().unwrap().is_some()).await;

    let root = bench.workspace.root().to_owned();
    let go = "touch begun; until [ -e go ]; do sleep 0.01; done; echo alive";
    let (asks, begins) = (std::sync::Arc::clone(&bench), root.clone());
    let mut running = Box::pin(async move { asks.run(go).await });
    // A thread of the pool begins it and is then gone for good.
    let runtime = tokio::runtime::Handle::current();
    let thread = std::thread::spawn(move || {
        let number = nix::unistd::gettid();
        runtime.block_on(async {
            tokio::select! {
                finished = &mut running => panic!("{finished:?}"),
                () = until("the command runs", || begins.join("begun").exists()) => {}
            }
        });
        (running, format!("/proc/self/task/{number}"))
    });
    let joined = tokio::task::spawn_blocking(move || thread.join().unwrap()).await;
    let (running, thread) = joined.unwrap();
    // It is told of as ended a moment before its children are.
    until("the thread is gone", || !std::path::Path::new(&thread).exists()).await;
    std::fs::write(root.join("go"), "").unwrap();
    assert_eq!(running.await.stdout.head, b"alive\n");
}

#[tokio::test]
async fn t27_a_flood_costs_no_memory_and_both_ends_are_kept() {
    let bench = usual();
    let mut asked = command("echo first; head -c 1000000000 /dev/zero; echo last");
    (asked.head_bytes, asked.tail_bytes) = (4096, 4096);
    let before = resident_kib();
    let finished = bench.sandbox.run(&bench.workspace, &asked).await.unwrap();
    let (head, tail) = (&finished.stdout.head, &finished.stdout.tail);
    assert!(head.starts_with(b"first\n") && tail.ends_with(b"last\n"));
    let kept = head.len() + tail.len();
    assert_eq!((kept, finished.stdout.dropped_bytes), (8192, 1_000_000_011 - 8192));
    assert!(resident_kib() < before + (256 << 10), "{} of {before}", resident_kib());
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// What such bytes become for the model, a person and a log is tested where they are shown: see the table in `main`.
#[tokio::test]
async fn t27_bytes_that_are_no_text_and_a_flood_without_end_are_cut() {
    let bench = usual();
    let bytes = "printf '\\xff\\xfe\\0\\x1b]52;c;eA==\\x07\\x1b[2J\\n'";
    assert_eq!(bench.run(bytes).await.stdout.head, b"\xff\xfe\0\x1b]52;c;eA==\x07\x1b[2J\n");
    let mut flood = command("yes & yes >&2");
    flood.timeout = Duration::from_secs(1);
    let begun = Instant::now();
    let finished = bench.sandbox.run(&bench.workspace, &flood).await.unwrap();
    assert_eq!(finished.end, End::TimedOut);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!(finished.stdout.head.len(), flood.head_bytes);
    assert!(finished.stderr.dropped_bytes > 0);
}
