//! What an attacker writes: files of the machine, set-id bits, links for the next set-up, marks for another job.

use super::bench::{
    Bench, IF_POSSIBLE, bench, compare, options, outside, probe, said, usual, weak,
};
use bot::workspace::Owner;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command as Process;

/// Gives a file to the user of the sandbox, for an attack that nothing but the sandbox stands against.
fn hand_over(bench: &Bench, path: &Path, mode: u32) {
    if let Owner::Sandbox { uid, gid } = bench.workspace.owner() {
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
    }
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// What can be done to a file and beside it, in an order that leaves something for the next.
fn changes(folder: &Path) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    let victim = file("victim");
    vec![
        format!("set_mode,{victim}"),
        format!("set_owner,{victim}"),
        format!("set_times,{victim}"),
        format!("set_attribute,{victim}"),
        format!("open_to_write,{victim}"),
        format!("map_and_write,{victim}"),
        format!("shorten,{victim}"),
        format!("link_to,{victim},{}", file("linked")),
        format!("link_to_itself,{}", file("symlink")),
        format!("make_file,{}", file("made")),
        format!("make_folder,{}", file("folder")),
        format!("move,{victim},{}", file("moved")),
        format!("drop,{}", file("moved")),
    ]
}

/// A folder with a file that the sandbox's user owns and may do everything with.
fn victim(bench: &Bench, folder: &Path) {
    std::fs::write(folder.join("victim"), vec![b'v'; 5000]).unwrap();
    hand_over(bench, &folder.join("victim"), 0o666);
    hand_over(bench, folder, 0o777);
}

async fn all_are(bench: &Bench, folder: &Path, control: &str, denied: &str) {
    let (attacks, rows) = (changes(folder), changes(folder));
    // Attributes are not for every file system, so the control need not have them.
    let control =
        |attack: &str| if attack.starts_with("set_attribute") { IF_POSSIBLE } else { control };
    let rows: Vec<_> =
        rows.iter().map(|attack| (attack.as_str(), control(attack), denied)).collect();
    let apart = tempfile::tempdir().unwrap();
    let outer: Vec<String> = changes(apart.path());
    victim(bench, apart.path());
    let seen = outside(&outer);
    let renamed = |_: &[String]| {
        let pairs = outer.iter().zip(&attacks);
        seen.renamed(pairs.map(|(from, to)| (from.as_str(), to.as_str())))
    };
    compare(bench, renamed, &rows).await;
}

#[tokio::test]
async fn t06_nothing_outside_the_workspace_is_changed() {
    let hidden = tempfile::tempdir().unwrap();
    let shown = super::bench::showable();
    let bench = bench(options(|config| config.read_only = vec![shown.path().to_owned()]));
    for folder in [hidden.path(), shown.path()] {
        victim(&bench, folder);
    }
    all_are(&bench, hidden.path(), "ok", "ENOENT").await;
    all_are(&bench, shown.path(), "ok", "EROFS").await;
    let file = shown.path().join("victim").display().to_string();
    let map = format!("map_to_write,{file}");
    // A map of a file that was opened to be read is denied everywhere.
    compare(&bench, outside, &[(&map, "EACCES", "EACCES")]).await;
    for folder in [hidden.path(), shown.path()] {
        let left: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["victim"]);
        assert_eq!(std::fs::read(folder.join("victim")).unwrap(), vec![b'v'; 5000]);
        assert_eq!(std::fs::metadata(folder.join("victim")).unwrap().mode() & 0o7777, 0o666);
    }
}

#[tokio::test]
async fn t06_the_system_inside_is_read_only() {
    let bench = usual();
    let fixed = ["/", "/usr", "/etc", "/dev", "/proc/sys", "/usr/lib", "/usr/local/etc"];
    let attacks: Vec<_> =
        fixed.iter().map(|folder| format!("make_file,{folder}/hyla-canary")).collect();
    let answers = bench.attack(&attacks).await;
    for attack in &attacks {
        let answer = answers.to(attack);
        // Where the folder is root's, that is the first thing that is looked at.
        assert!(matches!(answer, "EROFS" | "EACCES" | "ENOENT"), "{attack}: {answer}");
    }
    let open = ["/workspace", "/tmp", "/home", "/home/agent", "/dev/shm"];
    let attacks: Vec<_> = open.iter().map(|folder| format!("make_file,{folder}/own")).collect();
    let answers = bench.attack(&attacks).await;
    assert!(attacks.iter().all(|attack| answers.to(attack) == "ok"), "{answers:?}");
}

/// The ways to a set-id bit, with the answer of the filter and the name that would have it.
fn set_id(folder: &str) -> Vec<(String, &'static str, &'static str)> {
    let of = |attack: &str, name: &str| format!("{attack},{folder}/{name}");
    vec![
        (of("setuid_chmod", "own"), "ok", "EPERM"),
        (of("setuid_chmod_high", "own"), "ok", "EPERM"),
        (of("setuid_fchmod", "own"), "ok", "EPERM"),
        (of("setuid_fchmodat", "own"), "ok", "EPERM"),
        (of("setuid_fchmodat2", "own"), IF_POSSIBLE, "EPERM"),
        (of("setgid_chmod", "own"), "ok", "EPERM"),
        (of("setuid_open", "a"), "ok", "EPERM"),
        (of("setuid_openat", "b"), "ok", "EPERM"),
        (of("setuid_openat2", "c"), "ok", "ENOSYS"),
        (of("setuid_unnamed", "d"), IF_POSSIBLE, "EPERM"),
        (of("setuid_creat", "e"), "ok", "EPERM"),
        (of("setuid_mknod", "f"), "ok", "EPERM"),
        (of("setuid_pipe", "g"), "ok", "EPERM"),
        (of("setgid_mkdir", "h"), "ok", "EPERM"),
        (of("setgid_mkdirat", "i"), "ok", "EPERM"),
        (of("device", "j"), IF_POSSIBLE, "EPERM"),
        (of("file_capability", "own"), IF_POSSIBLE, "EPERM"),
    ]
}

#[tokio::test]
async fn t21_no_set_id_bit_no_capability_and_no_device_reaches_the_host() {
    let bench = usual();
    bench.run("echo x > own; chmod 755 own").await;
    let apart = tempfile::tempdir().unwrap();
    std::fs::write(apart.path().join("own"), "x").unwrap();
    let outer: Vec<String> =
        set_id(&apart.path().display().to_string()).into_iter().map(|row| row.0).collect();
    let control =
        super::bench::answers(Process::new(probe()).args(&outer).current_dir(apart.path()));
    let rows = set_id("/workspace");
    let pairs: Vec<_> =
        outer.iter().map(String::as_str).zip(rows.iter().map(|row| row.0.as_str())).collect();
    let table: Vec<_> = rows.iter().map(|row| (row.0.as_str(), row.1, row.2)).collect();
    compare(&bench, |_| control.renamed(pairs.into_iter()), &table).await;
    let mut n_files = 0;
    for entry in std::fs::read_dir(bench.workspace.root()).unwrap() {
        let path = entry.unwrap().path();
        let found = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.mode() & 0o6000, 0, "{}", path.display());
        assert!(found.is_file(), "{} is neither made nor kept", path.display());
        n_files += 1;
    }
    assert_eq!(n_files, 2, "the probe and its own file, and nothing that it tried to make");
    let set = std::fs::metadata(apart.path().join("a")).unwrap().mode();
    assert_eq!(set & 0o7777, 0o4755, "the control has made what the workspace must not have");
}

/// A link that an agent plants where a later sandbox is set up must not lead its set-up out (CVE-2026-87766). That no
/// destination lies beneath what an agent can write is tested where the options are made (`arguments`).
#[tokio::test]
async fn t23_links_in_the_workspace_lead_no_set_up_to_the_host() {
    let bench = usual();
    let victim = tempfile::tempdir().unwrap();
    hand_over(&bench, victim.path(), 0o777);
    let path = victim.path().display();
    let plant = format!(
        "for name in .git tmp etc usr proc dev home x; do ln -sfn /oldroot{path} $name; ln -s {path} $name.2; done; echo planted"
    );
    assert_eq!(bench.says(&plant).await, "planted\n");
    // The control makes a file beneath the workspace, as the sandbox never does. A bubblewrap with the fix does not follow.
    let mut weak = weak(&bench, "true");
    let words: Vec<_> = weak.get_args().map(std::ffi::OsStr::to_owned).collect();
    let end = words.iter().position(|word| word == "--chdir").unwrap();
    let mut beneath = Process::new(weak.get_program());
    beneath.args(&words[..end]).args(["--dir", "/workspace/x/made"]).args(&words[end..]);
    beneath.output().unwrap();
    if std::fs::remove_dir(victim.path().join("made")).is_err() {
        eprintln!(
            "no control here: this bubblewrap follows no such link; {:?}",
            weak.output().unwrap().status
        );
    }
    for script in ["true", "mkdir -p x/y .git/y tmp/y home/y 2>/dev/null; echo z > x; cd tmp"] {
        bench.run(script).await;
    }
    assert_eq!(std::fs::read_dir(victim.path()).unwrap().count(), 0);
}

/// Marks in every place that two jobs could share. The second line of each is how it is looked for.
const MARKS: &str = "echo mark > /tmp/mark; echo mark > /dev/shm/mark; echo mark > ~/mark; mkdir -p ~/.cache; echo mark > ~/.cache/mark";
const LOOK: &str = "cat /tmp/mark /dev/shm/mark ~/mark ~/.cache/mark 2>/dev/null";

#[tokio::test]
async fn t34_two_jobs_at_the_same_time_see_nothing_of_each_other() {
    let (one, other) = (usual(), usual());
    let probe = one.arm();
    other.arm();
    let looks =
        format!("{LOOK}; {probe} memory_look queue_look; ps -e 2>/dev/null | grep -c sleep");
    let puts = format!("{MARKS}; {probe} memory_put queue_put");
    let wait = "touch begun; while [ ! -e go ]; do sleep 0.02; done";
    let begun = one.workspace.root().join("begun");
    let script = format!("{puts}; {looks}; {wait}");
    let running = one.run(&script);
    let looking = async {
        super::bench::until("the first has put its marks", || begun.exists()).await;
        let seen = other.says(&looks).await;
        std::fs::write(one.workspace.root().join("go"), "").unwrap();
        seen
    };
    let (first, seen) = tokio::join!(running, looking);
    let first = String::from_utf8(first.stdout.head).unwrap();
    assert_eq!(first.matches("mark\n").count(), 4, "the control sees its own marks: {first}");
    assert!(first.contains("memory_look=ok\nqueue_look=ok\n"), "{first}");
    assert!(!seen.contains("mark\n"), "{seen}");
    assert!(seen.contains("memory_look=ENOENT\nqueue_look=ENOENT\n"), "{seen}");
    // Nor does the next command of the same job, nor the machine.
    let next = one.says(&looks).await;
    assert!(!next.contains("mark\n") && next.contains("memory_look=ENOENT\n"), "{next}");
    let machine =
        Process::new(super::bench::probe()).args(["memory_look", "queue_look"]).output().unwrap();
    assert_eq!(said(&machine), "memory_look=ENOENT\nqueue_look=ENOENT\n");
}
