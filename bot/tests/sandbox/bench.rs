//! What the attacks share: a sandbox with a workspace, the probe that attacks, and the same probe outside as the control.
//!
//! The probe is C, because most of what it does has no safe form in Rust; it is built once with `cc`. Markers carry this
//! process's number, so that suites which run at the same time do not see each other's leftovers.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bot::sandbox::{self, Command, Finished, Options, Sandbox};
use bot::workspace::{Owner, Workspace};

/// Set to anything, it makes the races as long as a release asks for.
const LONG: &str = "HYLA_LONG_RACES";

/// The name of the probe in a workspace.
const PROBE: &str = ".probe";

pub(crate) struct Bench {
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) workspace: Workspace,
    pub(crate) folder: tempfile::TempDir,
}

pub(crate) fn options(change: impl FnOnce(&mut config::Sandbox)) -> Options {
    let mut config = config::Sandbox::default();
    change(&mut config);
    Options {
        config,
        helper: env!("CARGO_BIN_EXE_hyla").into(),
        data: env!("CARGO_TARGET_TMPDIR").into(),
    }
}

pub(crate) fn bench(options: Options) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    bot::folder::open_way(folder.path(), sandbox::workspace_owner(&options)).unwrap();
    let owner = sandbox::workspace_owner(&options);
    let workspace = Workspace::create(&folder.path().join("w"), owner).unwrap();
    Bench { sandbox: sandbox::build(options).unwrap(), workspace, folder }
}

pub(crate) fn usual() -> Bench {
    bench(options(|_| {}))
}

pub(crate) fn command(script: &str) -> Command {
    Command {
        script: script.into(),
        timeout: Duration::from_secs(60),
        head_bytes: 64 << 10,
        tail_bytes: 4096,
        ..Command::default()
    }
}

impl Bench {
    pub(crate) async fn run(&self, script: &str) -> Finished {
        self.sandbox.run(&self.workspace, &command(script)).await.unwrap()
    }

    pub(crate) async fn says(&self, script: &str) -> String {
        String::from_utf8(self.run(script).await.stdout.head).unwrap()
    }

    /// Puts the probe into the workspace. Returns how a script there calls it.
    pub(crate) fn arm(&self) -> String {
        let place = self.workspace.root().join(PROBE);
        if !place.exists() {
            std::fs::copy(probe(), place).unwrap();
        }
        let inside = self.sandbox.confinement().workspace(&self.workspace);
        inside.join(PROBE).display().to_string()
    }

    /// Attacks from inside.
    pub(crate) async fn attack(&self, attacks: &[String]) -> Answers {
        let script = format!("{} {}", self.arm(), quoted(attacks));
        Answers::of(&self.says(&script).await)
    }

    /// Another workspace for the same sandbox, as another job has one.
    pub(crate) fn neighbour(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let owner = self.workspace.owner();
        bot::folder::open_way(folder.path(), owner).unwrap();
        let workspace = Workspace::create(&folder.path().join("w"), owner).unwrap();
        Self { sandbox: Arc::clone(&self.sandbox), workspace, folder }
    }
}

/// Names that the shell takes as they are.
fn quoted(attacks: &[String]) -> String {
    attacks.iter().map(|attack| format!("'{attack}'")).collect::<Vec<_>>().join(" ")
}

/// How each attack went.
#[derive(Debug)]
pub(crate) struct Answers(BTreeMap<String, String>);

impl Answers {
    fn of(said: &str) -> Self {
        let pairs = said.lines().filter_map(|line| line.rsplit_once('='));
        Self(pairs.map(|(attack, answer)| (attack.to_owned(), answer.to_owned())).collect())
    }

    pub(crate) fn to(&self, attack: &str) -> &str {
        self.0.get(attack).map_or("no answer", String::as_str)
    }

    /// The same answers for the same attacks at another place.
    pub(crate) fn renamed<'a>(&self, pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        Self(pairs.map(|(from, to)| (to.to_owned(), self.to(from).to_owned())).collect())
    }
}

/// The probe, built once for each state of its text.
pub(crate) fn probe() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut text = DefaultHasher::new();
        include_str!("probe.c").hash(&mut text);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let place = folder.join(format!("probe-{:x}", text.finish()));
        if !place.exists() {
            let fresh = tempfile::Builder::new().tempfile_in(folder).unwrap().into_temp_path();
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sandbox/probe.c");
            let built = Process::new("cc")
                .args(["-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
                .args([fresh.as_os_str(), source.as_os_str()])
                .output()
                .expect("install `build-essential`: the probe of these tests is built with `cc`");
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            std::fs::set_permissions(&fresh, PermissionsExt::from_mode(0o755)).unwrap();
            // Another process may have been faster, with the same.
            fresh.persist(&place).unwrap();
        }
        place
    })
}

/// The same attacks with nothing around them, by the user who runs the tests.
pub(crate) fn outside(attacks: &[String]) -> Answers {
    answers(Process::new(probe()).args(attacks))
}

/// The same attacks with every right over namespaces of their own, so that they may mount without touching the machine.
pub(crate) fn outside_as_root(attacks: &[String]) -> Answers {
    let around = ["--user", "--map-root-user", "--mount"];
    answers(Process::new("unshare").args(around).arg(probe()).args(attacks))
}

pub(crate) fn answers(process: &mut Process) -> Answers {
    let output = process.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Answers::of(&String::from_utf8(output.stdout).unwrap())
}

/// What the control must show: that the attack works, or what it is answered where it needs more than this.
pub(crate) type Row<'a> = (&'a str, &'a str, &'a str);

/// A control that this machine may lack: then it is named.
pub(crate) const IF_POSSIBLE: &str = "ok, if possible here";

/// Compares attacks outside and inside: each row is the attack, what the control shows, and what it must be answered inside.
pub(crate) async fn compare(
    bench: &Bench,
    outside: impl FnOnce(&[String]) -> Answers,
    table: &[Row<'_>],
) {
    let attacks: Vec<String> = table.iter().map(|row| row.0.to_owned()).collect();
    let outside = outside(&attacks);
    let inside = bench.attack(&attacks).await;
    let mut wrong = Vec::new();
    for (attack, control, denied) in table {
        let (seen, answer) = (outside.to(attack), inside.to(attack));
        if *control == IF_POSSIBLE && seen != "ok" {
            eprintln!("no control here: `{attack}` is answered {seen} outside too");
        } else if *control != IF_POSSIBLE && seen != *control {
            wrong.push(format!("{attack} outside: {seen} is not {control}"));
        }
        if answer != *denied {
            wrong.push(format!("{attack} inside: {answer} is not {denied}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Bubblewrap with the same view and none of the rest: no filter, no ban on namespaces, environment and files inherited.
/// What the sandbox's additions prevent must work here.
pub(crate) fn weak(bench: &Bench, script: &str) -> Process {
    let mut process = match bench.workspace.owner() {
        Owner::Service => Process::new("bwrap"),
        Owner::Sandbox { uid, gid } => {
            let mut process = Process::new("setpriv");
            process.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
            process.args(["--clear-groups", "bwrap"]);
            process
        }
    };
    process.args(["--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]);
    for name in ["bin", "lib", "lib64"] {
        match std::fs::read_link(Path::new("/").join(name)) {
            Ok(target) => process.arg("--symlink").arg(target).arg(format!("/{name}")),
            Err(_) => process.args(["--ro-bind-try", &format!("/{name}"), &format!("/{name}")]),
        };
    }
    process.args(["--proc", "/proc", "--dev", "/dev", "--bind"]).arg(bench.workspace.root());
    process.args(["/workspace", "--chdir", "/workspace", "--", "bash", "-c", script]);
    process.stdin(Stdio::null());
    process
}

/// What a process said.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Seconds that no other process on this machine sleeps for, so that a `sleep` can be found again.
pub(crate) fn marker(number: u32) -> String {
    format!("{number}.{}", std::process::id())
}

/// The processes on this machine with these words in their command line.
pub(crate) fn living(words: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let has_words = |path: &Path| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(words)
    };
    let found = processes.map(|entry| entry.path()).filter(|path| has_words(path));
    found.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}

/// The processes that sleep for so long, and none that is still to become one.
pub(crate) fn sleepers(pause: &str) -> Vec<i32> {
    let mut found = living(pause);
    let line = format!("sleep\0{pause}\0");
    found.retain(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|own| own == line)
    });
    found
}

/// A folder that can be shown inside: nothing of the sandbox's own lies over it there.
pub(crate) fn showable() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

pub(crate) fn lives(words: &str) -> bool {
    !living(words).is_empty()
}

/// Looks until it is so, for as long as a busy machine may need.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        tokio::task::yield_now().await;
    }
}

/// How often, or for how many seconds: less where nobody asked for the full length.
pub(crate) fn length(short: u32, full: u32) -> u32 {
    if std::env::var_os(LONG).is_some() { full } else { short }
}
