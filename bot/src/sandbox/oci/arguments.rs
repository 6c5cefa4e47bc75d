//! What the engine is told of one container, and what the first process in it is told of one command. Pure.
//!
//! Nothing that an agent or a model wrote stands on the engine's command line, and neither does a command's environment:
//! both go to the first process by its standard input.

use std::path::Path;

use super::super::arguments::{HOME, UID, variables};
use super::super::cgroup::Limits;
use super::super::{Command, forward};
use super::engine::{Engine, Kind, Users};
use crate::workspace::{MOUNT, Owner};

/// Users and groups of one container, as images have them.
const RANGE: u32 = 65_536;
/// Seconds that podman gives a command beyond its own time limit, before it ends it where the service no longer can.
const SPARE_SECONDS: u64 = 60;
/// Half of what the service has: where both want the processor, the service gets two thirds.
const SHARES: &str = "512";

/// The first process of a container. It takes its orders from its standard input: words to start a shell with, each ended by
/// a NUL byte, an empty one, and the script. It ends when the script does, and when its input does, which the service holds
/// open; with it the kernel ends all others. No command can stop it with a signal; one that writes into its memory can make it
/// stay when its input ends, and then podman's own time limit ends the container; docker has none. Where one was killed for
/// memory it waits for the service to see that, as the engine forgets the control group with the container. The script is no
/// argument where it is longer than one may be.
pub(super) const FIRST: &str = r#"exec 3<&0 </dev/null
umask 022
printf '\0' >&2
words=()
while IFS= read -r -d '' word <&3 && [ -n "$word" ]; do words+=("$word"); done
IFS= read -r -d '' script <&3 || exit 125
run() { exec env -i "${words[@]}" /bin/bash -lc "$1" 3<&-; }
if [ "${#script}" -gt 100000 ]; then
  run 'eval "$(cat <&9)" 9<&-' 9<<<"$script" &
else
  run "$script" &
fi
child=$!
exec >/dev/null 2>&1
while kill -0 "$child"; do
  read -r -t 0.05 -d '' _ <&3
  [ $? -gt 128 ] || exit 125
done
wait "$child"
code=$?
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
  while read -r event n; do
    [ "$event" = oom_kill ] && [ "$n" != 0 ] && read -r -t 5 -d '' _ <&3
  done <"$file"
done
exit "$code""#;

/// The orders for the first process.
pub(super) fn orders(settings: &config::Sandbox, command: &Command) -> Vec<u8> {
    let mut variables = variables(settings);
    let mut program = Vec::new();
    if command.extras.proxy.is_some() {
        variables.extend(forward::variables());
        program = vec![forward::PROGRAM.to_owned(), forward::NAME.to_owned()];
    }
    let variables = variables.into_iter().map(|(name, value)| format!("{name}={value}"));
    let mut words: Vec<String> = variables.chain(program).collect();
    words.push(String::new());
    words.push(command.script.clone());
    words.into_iter().flat_map(|word| word.into_bytes().into_iter().chain([0])).collect()
}

/// A mount of something of the host.
#[derive(Debug, Clone)]
pub(super) struct Mount {
    /// Where it is on the host.
    pub(super) from: String,
    /// Where it is seen.
    pub(super) at: String,
    pub(super) is_writable: bool,
}

impl Mount {
    /// # Errors
    /// The path cannot be written down for the engine: it reads a line of values with commas between them.
    pub(super) fn new(from: &Path, at: &str, is_writable: bool) -> std::io::Result<Self> {
        let is_plain = |text: &str| !text.contains([',', '"', '\n', '\r']);
        match from.to_str() {
            Some(text) if is_plain(text) && is_plain(at) => {
                Ok(Self { from: text.to_owned(), at: at.to_owned(), is_writable })
            }
            Some(_) | None => Err(std::io::Error::other(format!(
                "a container engine cannot be given the path `{}`: it must be UTF-8, without commas, quotes and line ends; move the data folder or the toolchain to another one",
                from.display()
            ))),
        }
    }

    fn word(&self) -> String {
        let access = if self.is_writable { "" } else { ",readonly" };
        format!("type=bind,src={},dst={}{access}", self.from, self.at)
    }
}

/// One container.
pub(super) struct Container<'a> {
    pub(super) engine: &'a Engine,
    pub(super) settings: &'a config::Sandbox,
    pub(super) name: &'a str,
    /// The label by which this service's containers are found.
    pub(super) label: &'a str,
    /// The profile's file.
    pub(super) profile: &'a str,
    pub(super) owner: Owner,
    pub(super) limits: &'a Limits,
    /// Seconds that the command may take.
    pub(super) seconds: u64,
    /// Whether its home folder is one of the mounts.
    pub(super) has_home: bool,
    pub(super) mounts: &'a [Mount],
    /// What `setrlimit` lets this process set, of open files and of the user's processes.
    pub(super) most: [u64; 2],
    /// Processes of the user.
    pub(super) processes_of_user: u64,
}

/// The engine's whole command for it, without the engine itself.
pub(super) fn words(container: &Container<'_>) -> Vec<String> {
    let engine = container.engine;
    let mut list = List(Vec::new());
    list.add(["run", "--interactive", "--pull=never", "--network=none", "--read-only"]);
    list.add(["--cap-drop=all", "--security-opt=no-new-privileges", "--log-driver=none"]);
    list.add(["--no-healthcheck", "--ipc=private", "--cgroupns=private", "--hostname=sandbox"]);
    list.say("--security-opt", format!("seccomp={}", container.profile));
    list.say("--name", container.name);
    list.say("--label", container.label);
    list.0.extend(engine.runtime_words());
    if engine.kind == Kind::Podman {
        // What its own settings or an image may say otherwise.
        list.add(["--pid=private", "--uts=private", "--read-only-tmpfs=false", "--systemd=false"]);
        list.add(["--unsetenv-all", "--http-proxy=false", "--image-volume=ignore"]);
        list.say("--timeout", (container.seconds + SPARE_SECONDS).to_string());
    }
    users(&mut list, engine.users, container.owner);
    limits(&mut list, container);
    let tmpfs = |path: &str, bytes: u64| {
        let copies = if engine.kind == Kind::Podman { ",notmpcopyup" } else { "" };
        format!("{path}:rw,exec,nosuid,nodev,size={bytes},mode=1777{copies}")
    };
    let settings = container.settings;
    list.say("--shm-size", settings.shm_bytes.to_string());
    list.say("--tmpfs", tmpfs("/tmp", settings.tmp_bytes));
    if !container.has_home {
        // Not every engine can hand one to its user, and there is nobody else inside.
        list.say("--tmpfs", tmpfs(HOME, settings.home_bytes));
    }
    for mount in container.mounts {
        list.say("--mount", mount.word());
    }
    list.say("--workdir", MOUNT);
    list.say("--entrypoint", "/bin/bash");
    list.add([settings.oci.image.as_str(), "--noprofile", "--norc", "-c", FIRST]);
    list.0
}

/// The user and group of a command, by their numbers inside.
pub(super) fn inside(users: Users, owner: Owner) -> (u32, u32) {
    match (users, owner) {
        (Users::Mapped | Users::Kept, _) => (UID, UID),
        (Users::Plain, Owner::Sandbox { uid, gid }) => (uid, gid),
        (Users::Plain, Owner::Service) => {
            (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
        }
    }
}

fn users(list: &mut List, users: Users, owner: Owner) {
    let (uid, gid) = inside(users, owner);
    list.say("--user", format!("{uid}:{gid}"));
    match (users, owner) {
        (Users::Mapped, Owner::Sandbox { uid, gid }) => {
            // One range, of which the workspace's owner is number 1000: storage cannot map several.
            list.say("--uidmap", format!("0:{}:{RANGE}", uid.saturating_sub(UID)));
            list.say("--gidmap", format!("0:{}:{RANGE}", gid.saturating_sub(UID)));
        }
        (Users::Kept, _) => list.say("--userns", format!("keep-id:uid={UID},gid={UID}")),
        (Users::Mapped, Owner::Service) | (Users::Plain, _) => {}
    }
}

fn limits(list: &mut List, container: &Container<'_>) {
    let able = container.engine.limits;
    let Limits { memory_bytes, processes, cpus } = *container.limits;
    if able.memory {
        // Memory and swap together: no swap.
        list.say("--memory", memory_bytes.to_string());
        list.say("--memory-swap", memory_bytes.to_string());
    }
    if able.processes {
        list.say("--pids-limit", processes.to_string());
    }
    if able.cpus {
        list.say("--cpu-shares", SHARES);
        if cpus > 0.0 {
            list.say("--cpus", cpus.to_string());
        }
    }
    list.say("--oom-score-adj", "1000");
    let settings = container.settings;
    let [most_files, most_processes] = container.most;
    for (name, value) in [
        ("core", 0),
        ("nofile", settings.open_files.min(most_files)),
        ("nproc", container.processes_of_user.min(most_processes)),
        ("fsize", settings.file_bytes),
    ] {
        list.say("--ulimit", format!("{name}={value}:{value}"));
    }
}

struct List(Vec<String>);

impl List {
    fn add<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.map(str::to_owned));
    }

    fn say(&mut self, option: &str, value: impl Into<String>) {
        self.0.push(option.to_owned());
        self.0.push(value.into());
    }
}
