//! What an attacker does to the host's own hands in the workspace, while it runs and when it is over.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bot::workspace::{Error, Limits, Workspace};

use super::bench::{Bench, length, until, usual, weak};

const LIMITS: Limits = Limits { entries: 1000, depth: 8 };

/// A file, a folder and links to the same outside, which the sandbox swaps as fast as it can.
async fn prepare(bench: &Bench) {
    let outside = bench.folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), "canary").unwrap();
    for (path, mode) in [("", 0o777), ("f", 0o666)] {
        let mode = PermissionsExt::from_mode(mode);
        std::fs::set_permissions(outside.join(path), mode).unwrap();
    }
    let at = outside.display();
    let script =
        format!("mkdir d; echo inside > d/f; ln -s {at} e; echo inside > f; ln -s {at}/f g; ls");
    assert_eq!(bench.says(&script).await, "d\ne\nf\ng\n");
}

/// Reads as a host would that looks first and opens then.
fn naive(workspace: &Workspace, path: &str) -> Option<Vec<u8>> {
    let root = workspace.root().canonicalize().ok()?;
    let found = root.join(path).canonicalize().ok()?;
    found.starts_with(&root).then(|| std::fs::read(root.join(path)).ok()).flatten()
}

/// What the tools and a naive host read.
#[derive(Default)]
struct Seen {
    tools: BTreeSet<Vec<u8>>,
    naive: BTreeSet<Vec<u8>>,
    n_refused: u32,
}

fn race(workspace: &Workspace, limit: Duration) -> Seen {
    let mut seen = Seen::default();
    let begun = Instant::now();
    // The control may take longer than the race on a machine that is busy elsewhere.
    let is_over = |seen: &Seen| {
        let has_control = seen.naive.contains(b"canary".as_slice());
        begun.elapsed() > limit && (has_control || begun.elapsed() > limit * 10)
    };
    for turn in 0_u64.. {
        for path in ["f", "d/f"] {
            match workspace.read(Path::new(path), 1000) {
                Ok(bytes) => drop(seen.tools.insert(bytes)),
                Err(_) => seen.n_refused += 1,
            }
            seen.naive.extend(naive(workspace, path));
        }
        if turn % 16 == 0 {
            // What stands at `f` must stay what is swapped; `w` is made anew.
            for path in ["w", "d/f", "d/made/g"] {
                let _ = workspace.write(Path::new(path), b"inside\n");
            }
            let _ = workspace.walk(Path::new("."), LIMITS).map(Iterator::count);
            let _ = workspace.unlock(Path::new("d/f"));
            if is_over(&seen) {
                break;
            }
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t16_no_race_of_swaps_leads_a_file_tool_outside() {
    let bench = usual();
    prepare(&bench).await;
    let probe = bench.arm();
    let at = bench.folder.path().join("outside/f");
    let links = format!("while :; do ln -sfn {} w; done", at.display());
    let flips = format!("{probe} flip,f,g & {probe} flip,d,e & touch begun; {links}");
    let mut asked = super::bench::command(&flips);
    asked.timeout = Duration::from_secs(600);
    let limit = Duration::from_secs(length(4, 30).into());
    let racing = async {
        let begun = bench.workspace.root().join("begun");
        until("the swapping has begun", || begun.exists()).await;
        tokio::task::block_in_place(|| race(&bench.workspace, limit))
    };
    let seen = tokio::select! {
        finished = bench.sandbox.run(&bench.workspace, &asked) => panic!("{finished:?}"),
        seen = racing => seen,
    };
    bench.sandbox.quiet().await.unwrap();
    assert!(seen.naive.contains(b"canary".as_slice()), "a naive host must be led outside");
    assert!(seen.n_refused > 0, "no link was ever met");
    assert_eq!(seen.tools, BTreeSet::from([b"inside\n".to_vec()]));
    let outside = bench.folder.path().join("outside");
    assert_eq!(std::fs::read(outside.join("f")).unwrap(), b"canary");
    assert_eq!(std::fs::metadata(outside.join("f")).unwrap().permissions().mode() & 0o777, 0o666);
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "nothing was made there");
    bench.workspace.remove().unwrap();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "nothing was removed there");
}

#[tokio::test]
async fn t15_no_link_that_a_command_made_is_followed() {
    let bench = usual();
    let canary = bench.folder.path().join("canary");
    std::fs::write(&canary, "canary").unwrap();
    let at = canary.display();
    let script = format!(
        "ln -s {at} absolute; ln -s ../canary upward; ln -s .. folder; ln -s /proc/self/root magic; ln -s /proc/self/cwd here; \
         echo inside > f; ln f hard; ln -s f inner; ls | wc -l"
    );
    assert_eq!(bench.says(&script).await, "8\n");
    // The control: a plain read follows them.
    assert_eq!(std::fs::read(bench.workspace.root().join("upward")).unwrap(), b"canary");
    let magic = format!("magic{at}");
    for path in ["absolute", "upward", "folder/canary", &magic, "here/canary", "inner"] {
        let (read, write) = (
            bench.workspace.read(Path::new(path), 100),
            bench.workspace.write(&Path::new(path).join("x"), b"x"),
        );
        assert!(matches!(read, Err(Error::Link { .. })), "{path}: {read:?}");
        assert!(
            matches!(write, Err(Error::Link { .. } | Error::NotFolder { .. })),
            "{path}: {write:?}"
        );
    }
    let write = bench.workspace.write(Path::new("hard"), b"x");
    assert!(matches!(write, Err(Error::HardLinked { links: 2, .. })), "{write:?}");
    let mount = bench.workspace.read(Path::new("/proc/self/environ"), 100);
    assert!(matches!(mount, Err(Error::Refused { .. })), "{mount:?}");
    assert_eq!(std::fs::read(&canary).unwrap(), b"canary");
}

#[tokio::test]
async fn t32_a_workspace_made_to_last_is_removed_and_nothing_else() {
    let bench = usual();
    let outside = bench.folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), "canary").unwrap();
    let probe = bench.arm();
    let at = outside.display();
    // Some disks give each folder back by itself, which takes its time.
    let depth = length(10_000, 100_000);
    let script = format!(
        "{probe} deep,{depth}; mkdir -p a/b/c; touch a/b/c/f $'\\xff\\xfe' $'line\\nbreak' \"$(printf '%255s' x)\"; \
         ln -s {at} out; ln -s {at} a/b/out; mkfifo pipe; truncate -s 1T sparse; \
         python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'; \
         for n in $(seq 3); do mkdir -p .hyla-removed-$n/x; done; touch .hyla-removed-4; chmod 000 a/b/c a/b a .; echo made"
    );
    // Made where nothing looks at it, as it would be ended for its depth.
    let made = super::bench::said(&weak(&bench, &script).output().unwrap());
    assert!(made.ends_with(&format!("deep,{depth}=ok\nmade\n")), "{made}");
    // The control: nobody can even name what is at its bottom.
    let bottom = bench.workspace.root().join("d/".repeat(depth as usize));
    let named = std::fs::metadata(bottom).unwrap_err();
    assert_eq!(named.raw_os_error(), Some(nix::libc::ENAMETOOLONG), "{named}");
    let root = bench.workspace.root().to_owned();
    let n_open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (before, begun) = (n_open(), Instant::now());
    bench.workspace.remove().unwrap();
    assert!(!root.exists());
    assert!(n_open() < before + 100, "{} open files after {before}", n_open());
    assert!(begun.elapsed() < Duration::from_secs(600), "{:?}", begun.elapsed());
    assert_eq!(std::fs::read(outside.join("f")).unwrap(), b"canary");
}
