//! What bubblewrap is told: which parts of the machine a command sees. Pure but for looking at what is there to be shown.
//!
//! Nothing that an agent or a model wrote stands in any option; the workspace is the last mount, and nothing is mounted
//! below it.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;

use super::Command;
use super::forward;
use crate::workspace::MOUNT;

/// The sandbox's own user, as it sees itself.
const USER: &str = "agent";
pub(super) const UID: u32 = 1000;
pub(super) const HOME: &str = "/home/agent";
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where a script lies that is too long for an argument.
const SCRIPT_FILE: &str = "/etc/hyla-command";
/// Bytes of one argument at most, below the kernel's 128 KiB (MAX_ARG_STRLEN).
pub(super) const ARGUMENT_BYTES: usize = 100 << 10;

/// Small files that exist only inside: path and content.
pub(super) fn files(command: &Command) -> Vec<(&'static str, String)> {
    let mut files = small_files((UID, UID));
    if is_long(command) {
        files.push((SCRIPT_FILE, command.script.clone()));
    }
    files
}

/// What programs look up of the user of these numbers and of the network, path and content.
pub(super) fn small_files((uid, gid): (u32, u32)) -> Vec<(&'static str, String)> {
    let passwd =
        format!("root:x:0:0:root:/:/bin/false\n{USER}:x:{uid}:{gid}:{USER}:{HOME}:/bin/bash\n");
    vec![
        ("/etc/passwd", passwd),
        ("/etc/group", format!("root:x:0:\n{USER}:x:{gid}:\n")),
        ("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n".into()),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n".into()),
        ("/etc/resolv.conf", String::new()),
    ]
}

/// Says that the sandbox is complete, and runs the script in its first argument once it is let. Until then nothing of the
/// agent's runs. Bubblewrap's own process inside ties its death to the service's and then takes the filter, both a moment
/// after it has started this; and a service that dies before leaves nothing behind: the input ends, and so does this.
const GATE: &str = r#"filtered() {
  while read -r key value _; do [ "$key$value" = Seccomp:2 ] && return; done </proc/1/status
  return 1
}
until filtered; do
  [ "$SECONDS" -lt 10 ] || { echo "process 1 of the sandbox has no system call filter" >&2; exit 1; }
done
printf '\0' >&2 && read -r _ && exec "${@:2}" /bin/bash -lc "$1" </dev/null"#;

/// The command line after `--`.
pub(super) fn argv(command: &Command) -> Vec<OsString> {
    let script = if is_long(command) { format!(". {SCRIPT_FILE}") } else { command.script.clone() };
    let words = ["--", "/bin/bash", "--noprofile", "--norc", "-c", GATE, "hyla", &script];
    let forward = command.extras.proxy.is_some().then_some([forward::PROGRAM, forward::NAME]);
    words.into_iter().chain(forward.into_iter().flatten()).map(OsString::from).collect()
}

fn is_long(command: &Command) -> bool {
    command.script.len() > ARGUMENT_BYTES
}

/// The open files that bubblewrap is given, by their numbers there.
pub(super) struct Files {
    pub(super) seccomp: RawFd,
    pub(super) status: RawFd,
    pub(super) workspace: RawFd,
    /// The home folder that commands share, if they share one.
    pub(super) home: Option<RawFd>,
    /// In the order of [`Extras::folders`](super::Extras::folders).
    pub(super) folders: Vec<RawFd>,
    /// The proxy's socket and the program that leads to it.
    pub(super) proxy: Option<[RawFd; 2]>,
    /// In the order of [`files`].
    pub(super) data: Vec<RawFd>,
}

/// The options, each followed by its values; bubblewrap reads them from a file, so that no path of the host shows inside.
pub(super) fn options(
    settings: &config::Sandbox,
    command: &Command,
    files_at: &Files,
) -> Vec<OsString> {
    let mut list = List(Vec::new());
    list.add(&[
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--new-session",
        "--die-with-parent",
    ]);
    let uid = UID.to_string();
    list.add(&["--uid", &uid, "--gid", &uid, "--hostname", "sandbox", "--clearenv"]);
    let mut variables = variables(settings);
    if command.extras.proxy.is_some() {
        variables.extend(forward::variables());
    }
    for (name, value) in variables {
        list.add(&["--setenv", &name, &value]);
    }
    system(&mut list);
    for (at, (path, _)) in files_at.data.iter().zip(files(command)) {
        list.add(&["--ro-bind-data", &at.to_string(), path]);
    }
    for folder in &settings.read_only {
        list.add(&["--ro-bind"]);
        list.0.extend([folder.clone().into(), folder.clone().into()]);
    }
    list.add(&["--proc", "/proc", "--dev", "/dev"]);
    list.tmpfs(settings.shm_bytes, "/dev/shm");
    list.add(&["--remount-ro", "/dev"]);
    list.tmpfs(settings.tmp_bytes, "/tmp");
    if let Some([socket, program]) = files_at.proxy {
        list.add(&["--ro-bind-fd", &socket.to_string(), forward::SOCKET]);
        // By its content: the way to it may be closed to the sandbox's user.
        list.add(&["--perms", "0555", "--ro-bind-data", &program.to_string(), forward::PROGRAM]);
    }
    for (folder, (path, _)) in files_at.folders.iter().zip(&command.extras.folders) {
        list.add(&["--ro-bind-fd", &folder.to_string(), path]);
    }
    match files_at.home {
        Some(home) => list.add(&["--bind-fd", &home.to_string(), HOME]),
        None => {
            list.add(&["--perms", "0755"]);
            list.tmpfs(settings.home_bytes, "/home");
            list.add(&["--dir", HOME]);
        }
    }
    list.add(&["--bind-fd", &files_at.workspace.to_string(), MOUNT]);
    list.add(&["--remount-ro", "/", "--chdir", MOUNT]);
    list.add(&["--seccomp", &files_at.seccomp.to_string()]);
    list.add(&["--json-status-fd", &files_at.status.to_string()]);
    list.0
}

/// The whole environment of a command.
pub(super) fn variables(settings: &config::Sandbox) -> Vec<(String, String)> {
    let mut path: Vec<String> =
        settings.path.iter().map(|folder| folder.to_string_lossy().into_owned()).collect();
    path.push(DEFAULT_PATH.into());
    let own = [
        ("PATH", path.join(":")),
        ("HOME", HOME.into()),
        ("USER", USER.into()),
        ("LOGNAME", USER.into()),
        ("SHELL", "/bin/bash".into()),
        ("LANG", "C.UTF-8".into()),
        ("TERM", "dumb".into()),
        ("TMPDIR", "/tmp".into()),
        ("CI", "1".into()),
        ("GIT_TERMINAL_PROMPT", "0".into()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    own.chain(settings.env.clone()).collect()
}

/// The machine's programs, read-only, and the few files of `/etc` that they need.
fn system(list: &mut List) {
    list.add(&["--ro-bind", "/usr", "/usr"]);
    // Administrators keep configuration there, with who knows what in it.
    if Path::new("/usr/local/etc").is_dir() {
        list.add(&["--tmpfs", "/usr/local/etc", "--remount-ro", "/usr/local/etc"]);
    }
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = Path::new("/").join(name);
        let shown = format!("/{name}");
        match std::fs::read_link(&path) {
            Ok(target) => {
                list.add(&["--symlink"]);
                list.0.extend([target.into(), shown.into()]);
            }
            Err(_) if path.is_dir() => list.add(&["--ro-bind", &shown, &shown]),
            Err(_) => {}
        }
    }
    list.add(&["--dir", "/etc"]);
    for path in ["/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ld.so.cache", "/etc/alternatives"]
    {
        if Path::new(path).exists() {
            list.add(&["--ro-bind", path, path]);
        }
    }
    for path in java() {
        list.add(&["--ro-bind", &path, &path]);
    }
}

/// Where distributions keep the settings of each Java, without which it does not start.
pub(super) fn java() -> Vec<String> {
    let entries = std::fs::read_dir("/etc").into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut paths: Vec<String> =
        names.filter(|name| name.starts_with("java-")).map(|name| format!("/etc/{name}")).collect();
    paths.sort();
    paths
}

struct List(Vec<OsString>);

impl List {
    fn add(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(OsString::from));
    }

    fn tmpfs(&mut self, size_bytes: u64, path: &str) {
        self.add(&["--size", &size_bytes.to_string(), "--tmpfs", path]);
    }
}

#[cfg(test)]
mod tests;
