//! What a command gets: its exit code, its limits, its workspace, and the programs that people need.

use std::path::Path;
use std::time::Duration;

use bot::sandbox::{End, Verdict};

use super::bench::{bench, command, lives, options, usual};

#[tokio::test]
async fn every_property_holds_here() {
    let report = usual().sandbox.probe().await;
    let failed: Vec<_> =
        report.checks.iter().filter(|check| check.verdict == Verdict::Fails).collect();
    assert!(report.holds(), "{failed:#?}");
    assert!(report.checks.len() > 10);
}

#[tokio::test]
async fn a_command_ends_as_it_says() {
    let bench = usual();
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
    let bench = usual();
    let said = bench.says("cat /proc/self/oom_score_adj /proc/1/oom_score_adj").await;
    assert_eq!(said, "1000\n1000\n");
}

#[tokio::test]
async fn a_workspace_that_a_command_closed_is_open_to_the_next() {
    let bench = usual();
    for mode in ["644", "000", "300"] {
        // Long enough to be looked at once, closed as it is.
        let script = format!("echo {mode} > mode; chmod {mode} .; sleep 0.8");
        assert_eq!(bench.run(&script).await.end, End::Exited(0), "{mode}");
        assert_eq!(bench.says("pwd; cat mode").await, format!("/workspace\n{mode}\n"));
    }
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
    let bench = usual();
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

#[tokio::test]
async fn t42_programs_that_people_need_run() {
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

/// What many have and not everybody: tried where the machine has it.
#[tokio::test]
async fn t42_compilers_and_interpreters_run() {
    let bench = usual();
    let all = [
        (
            "cc",
            "printf '#include <stdio.h>\\nint main(void){puts(\"ok\");}' > a.c && cc -o a a.c && ./a",
        ),
        (
            "c++",
            "echo '#include <iostream>\nint main(){std::cout<<\"ok\\n\";}' > a.cc && c++ -o b a.cc && ./b",
        ),
        ("make", "printf 'all:\\n\\t@echo ok\\n' > Makefile && make -s -j2"),
        ("perl", "perl -e 'my $p = fork; exit 0 unless $p; waitpid $p, 0; print \"ok\\n\"'"),
        (
            "node",
            "node -e 'require(\"http\").createServer((q, a) => a.end(\"ok\")).listen(0, \"localhost\", function () { fetch(\"http://localhost:\" + this.address().port).then(a => a.text()).then(t => { console.log(t); process.exit() }) })'",
        ),
        (
            "java",
            "echo 'class A { public static void main(String[] a) { System.out.println(\"ok\"); } }' > A.java && java A.java",
        ),
        (
            "python3",
            "python3 -c 'import multiprocessing as m; print(m.Pool(2).map(str, [\"ok\"])[0])'",
        ),
        ("script", "script -qec 'test -t 0 && echo ok' /dev/null </dev/null | tr -d '\\r'"),
        (
            "git",
            "git init -q r && cd r && echo x > f && git add f && git -c user.name=a -c user.email=a@b commit -qm x && git worktree add -q ../w2 && git diff --stat HEAD && echo ok",
        ),
        (
            "cargo",
            "cargo init -q --vcs none c && cd c && cargo test -q --offline 2>&1 | grep -c 'test result: ok' | sed 's/.*/ok/'",
        ),
    ];
    for (program, script) in all {
        if !Path::new("/usr/bin").join(program).exists() {
            eprintln!("left out: this machine has no /usr/bin/{program}");
            continue;
        }
        let finished = bench.run(script).await;
        let said = String::from_utf8_lossy(&finished.stdout.head).into_owned();
        assert_eq!(said, "ok\n", "{program}: {}", String::from_utf8_lossy(&finished.stderr.head));
    }
}

/// Job control, pipes, time limits and signals of a shell, as test runners use them.
#[tokio::test]
async fn t42_a_shell_is_a_whole_shell() {
    let bench = usual();
    for (script, expected) in [
        ("sleep 0.01 & wait $!; echo $?", "0\n"),
        ("timeout 0.05 sleep 5; echo $?", "124\n"),
        ("set -o pipefail; false | true; echo $?", "1\n"),
        ("trap 'echo caught' USR1; kill -USR1 $$; echo on", "caught\non\n"),
        ("cat <(echo one) <(echo two)", "one\ntwo\n"),
        ("whoami; id -u; hostname; echo ~", "agent\n1000\nsandbox\n/home/agent\n"),
        ("mktemp -d >/dev/null && echo ok", "ok\n"),
        ("chmod 755 . && umask", "0022\n"),
    ] {
        assert_eq!(bench.says(script).await, expected, "{script}");
    }
}

#[tokio::test]
async fn commands_at_the_same_time_do_not_see_each_other() {
    let bench = std::sync::Arc::new(usual());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let bench = std::sync::Arc::clone(&bench);
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
