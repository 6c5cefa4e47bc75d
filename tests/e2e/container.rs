//! `deploy/seccomp.json`: the profile of a container that the bot runs in, as the kernel sees it. The file becomes a filter,
//! and the real programs run under it as a container's user does: no capability, no further privileges.
//!
//! A container engine also hides parts of `/proc`; what to tell it of that stands in `deploy/README.md`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule, TargetArch,
};
use serde::Deserialize;
use serde_json::Value;
use tests::house::{copy_of_hyla, demo_recording};
use tests::outside::{Outside, until};

/// What bubblewrap makes a sandbox with. `clone3` is not among it: libraries fall back to `clone`.
const NAMESPACES: [&str; 6] = ["clone", "unshare", "mount", "umount2", "pivot_root", "sethostname"];

/// Whose rights the programs have; nobody's on this machine.
const USER: u32 = 64_024;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Profile {
    default_action: String,
    default_errno_ret: u32,
    architectures: Vec<String>,
    syscalls: Vec<Entry>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    comment: String,
    names: Vec<String>,
    action: String,
    #[serde(default)]
    args: Vec<Argument>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Argument {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

impl Profile {
    fn shipped() -> Self {
        let text = include_str!("../../deploy/seccomp.json");
        serde_json::from_str(text).expect("the profile is one")
    }

    /// The same without one call.
    fn without(mut self, call: &str) -> Self {
        for entry in &mut self.syscalls {
            entry.names.retain(|name| name != call);
        }
        self
    }

    /// The same as an engine has it that nobody told of this file: processes, but no namespaces.
    fn without_namespaces(self) -> Self {
        let flags = libc::CLONE_NEWNS
            | libc::CLONE_NEWCGROUP
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUSER
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET;
        let mask = u64::from(flags.unsigned_abs());
        let op = "SCMP_CMP_MASKED_EQ".to_owned();
        let mut left = self.without("clone");
        left.syscalls.push(Entry {
            comment: "A process.".into(),
            names: vec!["clone".into()],
            action: "SCMP_ACT_ALLOW".into(),
            args: vec![Argument { index: 0, value: mask, value_two: 0, op }],
        });
        left.without("clone3").without("unshare")
    }

    /// The filter that a container engine makes of it: names that this kernel's headers do not know are left out.
    fn program(&self) -> BpfProgram {
        let numbers = numbers();
        let mut rules: BTreeMap<i64, Vec<Rule>> = BTreeMap::new();
        for entry in &self.syscalls {
            for number in entry.names.iter().filter_map(|name| numbers.get(name)) {
                let rules = rules.entry(*number).or_default();
                if !entry.args.is_empty() {
                    let conditions = entry.args.iter().map(Argument::condition).collect();
                    rules.push(Rule::new(conditions).expect("a rule has a condition"));
                }
            }
        }
        assert_eq!(self.default_action, "SCMP_ACT_ERRNO");
        let otherwise = SeccompAction::Errno(self.default_errno_ret);
        let arch = TargetArch::try_from(std::env::consts::ARCH).expect("there is a filter for it");
        let filter = SeccompFilter::new(rules, otherwise, SeccompAction::Allow, arch);
        filter.expect("the rules are whole").try_into().expect("the kernel takes so many")
    }
}

impl Argument {
    fn condition(&self) -> Condition {
        let (op, value) = match self.op.as_str() {
            "SCMP_CMP_EQ" => (Op::Eq, self.value),
            "SCMP_CMP_MASKED_EQ" => (Op::MaskedEq(self.value), self.value_two),
            other => panic!("`{other}` is not understood here"),
        };
        Condition::new(self.index, Len::Qword, op, value).expect("there is such an argument")
    }
}

/// The calls of this machine by name, as its C compiler has them.
fn numbers() -> BTreeMap<String, i64> {
    let made = Command::new("cc")
        .args(["-E", "-dM", "-include", "asm/unistd.h", "-x", "c", "/dev/null"])
        .output()
        .expect("install `build-essential`: the numbers of calls are read with `cc`");
    assert!(made.status.success(), "{made:?}");
    let text = String::from_utf8(made.stdout).expect("headers are text");
    let call = |line: &str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    text.lines().filter_map(call).collect()
}

/// Starts a command under a profile, as a container does. A filter is its thread's and that of what the thread starts.
fn start(profile: &Profile, mut command: Command) -> Child {
    let program = profile.program();
    let thread = std::thread::spawn(move || {
        seccompiler::apply_filter(&program).expect("the kernel takes the filter");
        command.spawn().expect("it starts")
    });
    thread.join().expect("the thread does not panic")
}

/// `hyla` with these words, in a copy that anybody may start, as a user without any right where the tests are root's.
fn confined(outside: &Outside, words: &[&str]) -> Command {
    let program = copy_of_hyla(outside.folder.path());
    let mut command = if nix::unistd::geteuid().is_root() {
        hand_over(&outside.folder.path().to_owned());
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={USER}"), format!("--regid={USER}")]).args([
            "--clear-groups",
            "--bounding-set=-all",
            "--inh-caps=-all",
            "--no-new-privs",
        ]);
        command.arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(words).args(["--config", &outside.file]).stdin(Stdio::null());
    command
}

/// Gives a folder and all in it to the user of the container.
fn hand_over(path: &PathBuf) {
    std::os::unix::fs::lchown(path, Some(USER), Some(USER)).expect("root may");
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            hand_over(&entry.path());
        } else {
            std::os::unix::fs::lchown(entry.path(), Some(USER), Some(USER)).expect("root may");
        }
    }
}

fn doctor(outside: &Outside, profile: &Profile) -> Output {
    let mut command = confined(outside, &["doctor", "--json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    start(profile, command).wait_with_output().expect("it ends")
}

/// The lines about the sandbox that are not in order.
fn wrong(output: &Output) -> Vec<String> {
    let lines: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let lines = lines.as_array().cloned().unwrap_or_default();
    let is_wrong = |line: &&Value| {
        line["subject"].as_str().is_some_and(|subject| subject.starts_with("sandbox"))
            && line["verdict"] == "fails"
    };
    let starts = lines.iter().find(|line| line["subject"] == "sandbox: starts");
    assert!(starts.is_some(), "{lines:?}");
    lines.iter().filter(is_wrong).map(Value::to_string).collect()
}

#[test]
fn the_profile_is_one_that_every_engine_reads() {
    let profile = Profile::shipped();
    // What runc, crun and containerd call the two that a release is built for.
    assert_eq!(profile.architectures, ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]);
    assert_eq!(profile.default_errno_ret, libc::ENOSYS.unsigned_abs());
    assert!(profile.syscalls.iter().all(|entry| entry.action == "SCMP_ACT_ALLOW"));
    assert!(profile.syscalls.iter().all(|entry| !entry.comment.is_empty()));
    let free: Vec<&str> = profile
        .syscalls
        .iter()
        .filter(|entry| entry.args.is_empty())
        .flat_map(|entry| entry.names.iter().map(String::as_str))
        .collect();
    let mut once = free.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), free.len(), "each name stands there once");
    for needed in NAMESPACES.iter().chain(&["clone3", "openat2", "seccomp", "pidfd_open"]) {
        assert!(free.contains(needed), "{needed}");
    }
    // None of these is of use to the service, and each has led out of a container somewhere.
    for left_out in [
        "bpf",
        "io_uring_setup",
        "ptrace",
        "process_vm_readv",
        "pidfd_getfd",
        "perf_event_open",
        "userfaultfd",
        "open_by_handle_at",
        "keyctl",
        "add_key",
        "kexec_load",
        "init_module",
        "finit_module",
        "reboot",
        "swapon",
        "setns",
        "fsopen",
        "fsmount",
        "move_mount",
        "open_tree",
        "mount_setattr",
        "syslog",
        "acct",
        "quotactl",
        "clock_settime",
        "settimeofday",
        "iopl",
        "modify_ldt",
        "fanotify_init",
    ] {
        assert!(!once.contains(&left_out), "{left_out}");
    }
}

// The forge and the model answer while the test waits for the command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sandbox_holds_under_the_profile_and_not_without_its_namespaces() {
    let outside = Outside::usual().await;
    let profile = Profile::shipped();
    let held = doctor(&outside, &profile);
    assert_eq!(wrong(&held), Vec::<String>::new());

    let barred = wrong(&doctor(&outside, &profile.clone().without_namespaces()));
    assert!(barred.iter().any(|line| line.contains("namespace")), "{barred:?}");
    // `clone` is what every process needs, so it cannot be taken away alone.
    for call in &NAMESPACES[1..] {
        let barred = wrong(&doctor(&outside, &profile.clone().without(call)));
        assert!(!barred.is_empty(), "the sandbox holds without `{call}`");
    }
}

/// The service itself, git, python and the tests of a repository need no more than the profile allows.
#[tokio::test]
async fn a_job_comes_to_its_draft_under_the_profile() {
    let outside = Outside::start(demo_recording(), "[queue]\nsettle = \"100ms\"\n").await;
    let log = std::fs::File::create(outside.log()).expect("the temp folder can be written");
    let mut command = confined(&outside, &["serve"]);
    command.stderr(log);
    let mut service = start(&Profile::shipped(), command);
    outside.is_heard().await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.id()));
    let status = status.expect("it runs");
    let rights = ["Seccomp:\t2", "NoNewPrivs:\t1", "CapBnd:\t0000000000000000"];
    assert!(rights.iter().all(|line| status.contains(line)), "{status}");
    outside.open_issue(&["hyla"]).await;
    until("the draft is open", || !outside.forge.pulls(&outside.repo).is_empty()).await;
    service.kill().expect("it is ours");
    service.wait().expect("it is ours");
    let pull = outside.forge.pulls(&outside.repo).remove(0);
    assert!(pull.body.contains("bubblewrap "), "{}", pull.body);
}
