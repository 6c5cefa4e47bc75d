//! The engine's command line: which one it is, what it says that it can do here, and one question after the other.
//!
//! It gets three words of an environment and nothing of the service's own: `PATH`, by which podman finds its runtime, its
//! monitor and `newuidmap`; `HOME`, below which an ordinary user's images lie; and `XDG_RUNTIME_DIR`, where podman keeps what
//! is running and finds the user's bus. All three come from the system, none from the service's environment.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::super::ending::{handle, is_readable};
use super::super::{SetupError, streams, trusted};

/// How long one question may take. The engine waits for its own locks, and a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where Debian and others keep what an engine calls.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The first podman with all the options that are used: `--userns=keep-id:uid=..,gid=..`.
const OLDEST_PODMAN: (u32, u32) = (4, 3);
/// The setting, for sentences.
const KEY: &str = "sandbox.oci.engine";

/// Whose command line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Podman,
    Docker,
}

/// How users inside relate to those of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Users {
    /// The engine runs as root and gives each container a range of users, of which the workspaces' owner is one.
    Mapped,
    /// The engine runs as an ordinary user, who is the user inside.
    Kept,
    /// The same numbers inside and outside.
    Plain,
}

/// An engine that can be asked.
pub(super) struct Engine {
    pub(super) kind: Kind,
    /// Such as `podman 4.3.1`.
    pub(super) version: String,
    pub(super) users: Users,
    /// The file name of the runtime.
    pub(super) runtime: String,
    /// Which limits of a container it can set here.
    pub(super) limits: Limited,
    program: PathBuf,
    /// The runtime, where one is configured.
    chosen: Option<String>,
}

/// Which limits the engine says that it can set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limited {
    pub(super) memory: bool,
    pub(super) processes: bool,
    pub(super) cpus: bool,
}

/// What the engine answered.
pub(super) struct Answer {
    pub(super) is_success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Engine {
    /// Asks the engine what it is and what it can do.
    ///
    /// # Errors
    /// It is not there, cannot be trusted, is too old, or cannot run containers whose users are known.
    pub(super) fn open(settings: &config::Oci) -> Result<Self, SetupError> {
        let program = trusted::binary(&settings.engine, KEY, "podman")?;
        let shown = program.display();
        let mut engine = Self {
            kind: Kind::Podman,
            version: String::new(),
            users: Users::Plain,
            runtime: String::new(),
            limits: Limited { memory: false, processes: false, cpus: false },
            chosen: settings.runtime.clone(),
            program: program.clone(),
        };
        let asked = engine.ask(&["--version"]).map_err(|error| {
            unusable(
                format!("`{shown}` does not run: {error}"),
                format!("install the package `podman`, or set `{KEY}`"),
            )
        })?;
        let (kind, version) = version(&asked.stdout).ok_or_else(|| {
            unusable(
                format!("`{shown}` is neither podman nor docker: it says {:?}", asked.stdout),
                format!("name one of them in `{KEY}`"),
            )
        })?;
        engine.kind = kind;
        engine.version = match kind {
            Kind::Podman => format!("podman {version}"),
            Kind::Docker => format!("docker {version}"),
        };
        if kind == Kind::Podman && numbers(&version) < OLDEST_PODMAN {
            let reason = format!("{} is too old", engine.version);
            return Err(unusable(reason, "install podman 4.3 or later".into()));
        }
        engine.learn()?;
        Ok(engine)
    }

    /// Takes in what the engine says of itself and of the machine.
    fn learn(&mut self) -> Result<(), SetupError> {
        let format = match self.kind {
            Kind::Podman => "json",
            Kind::Docker => "{{json .}}",
        };
        let asked = self.ask(&["info", "--format", format]);
        let asked = asked.map_err(|error| self.dumb(&error.to_string()))?;
        let told: Value = match serde_json::from_str(&asked.stdout) {
            Ok(told) if asked.is_success => told,
            Ok(_) | Err(_) => return Err(self.dumb(asked.stderr.trim())),
        };
        let learned = match self.kind {
            Kind::Podman => of_podman(&told),
            Kind::Docker => of_docker(&told),
        };
        let learned = learned.map_err(|(reason, remedy)| {
            unusable(format!("{}: {reason}", self.version), remedy.into())
        })?;
        if let Some(path) = self.chosen.as_deref().map(Path::new).filter(|path| path.is_absolute())
        {
            trusted::binary(path, "sandbox.oci.runtime", "the runtime")?;
        }
        let chosen = self.chosen.as_deref().unwrap_or(&learned.runtime);
        let name = Path::new(chosen).file_name().unwrap_or_default();
        self.runtime = name.to_string_lossy().into_owned();
        self.limits = learned.limits;
        self.users = match self.is_gvisor() {
            // It has a kernel of its own, and does not follow the maps of the machine's.
            true => Users::Plain,
            false => learned.users,
        };
        Ok(())
    }

    fn dumb(&self, words: &str) -> SetupError {
        let remedy = match self.kind {
            Kind::Podman => {
                "see that `podman info` works as the service's user; an ordinary user needs a range in /etc/subuid and /etc/subgid, and `loginctl enable-linger`"
            }
            Kind::Docker => "start docker's daemon, and let the service's user talk to it",
        };
        unusable(format!("{} does not answer: {words}", self.version), remedy.into())
    }

    /// Whether the runtime is gVisor's, a kernel in a process.
    pub(super) fn is_gvisor(&self) -> bool {
        self.runtime.starts_with("runsc")
    }

    /// Such as `podman 4.3.1 with runsc`.
    pub(super) fn name(&self) -> String {
        format!("{} with {}", self.version, self.runtime)
    }

    /// The command line, up to the engine's own command.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(environment()).current_dir("/").stdin(Stdio::null());
        if let (Kind::Podman, Some(runtime)) = (self.kind, &self.chosen) {
            command.args(["--runtime", runtime]);
        }
        if self.kind == Kind::Podman && self.is_gvisor() {
            // The network that the engine made would be handed to gVisor's own; and the filter holds there only if asked for.
            command.args(["--runtime-flag=network=none", "--runtime-flag=oci-seccomp"]);
        }
        command
    }

    /// The words that choose the runtime where the command for one container does.
    pub(super) fn runtime_words(&self) -> Vec<String> {
        match (self.kind, &self.chosen) {
            (Kind::Docker, Some(runtime)) => vec!["--runtime".into(), runtime.clone()],
            (Kind::Docker, None) | (Kind::Podman, _) => Vec::new(),
        }
    }

    /// Asks one question and waits for the answer. Blocks.
    ///
    /// # Errors
    /// The engine cannot be started, or does not answer in time.
    pub(super) fn ask(&self, words: &[&str]) -> io::Result<Answer> {
        let memory = || streams::memory(b"").map(File::from);
        let (mut stdout, mut stderr) = (memory()?, memory()?);
        let mut command = self.command();
        command.args(words).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        let mut child = command.spawn()?;
        let is_ended = handle(&child).and_then(|handle| is_readable(&handle, PATIENCE));
        if !matches!(is_ended, Ok(true)) {
            // It may have ended meanwhile.
            let _ = child.kill();
        }
        let status = child.wait()?;
        if !is_ended? {
            return Err(io::Error::other(format!(
                "no answer to `{}` within {} s",
                words.join(" "),
                PATIENCE.as_secs()
            )));
        }
        let text = |file: &mut File| {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Answer {
            is_success: status.success(),
            stdout: text(&mut stdout)?,
            stderr: text(&mut stderr)?,
        })
    }

    /// The answer to a question that must succeed.
    ///
    /// # Errors
    /// Also if the engine says no; its words are the error's.
    pub(super) fn told(&self, words: &[&str]) -> io::Result<String> {
        let answer = self.ask(words)?;
        if answer.is_success {
            return Ok(answer.stdout);
        }
        let command = words.first().copied().unwrap_or_default();
        Err(io::Error::other(format!("`{command}` failed: {}", answer.stderr.trim())))
    }

    /// Whether the image is there.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn need_image(&self, image: &str) -> Result<(), SetupError> {
        let asked = self.told(&["image", "inspect", "--format", "{{.Id}}", image]);
        asked.map(drop).map_err(|error| {
            let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
            let user = user.map_or_else(|| "the service's user".into(), |user| user.name);
            let program = self.program.display();
            unusable(
                format!("{} has no image `{image}`: {error}", self.version),
                format!(
                    "nothing is pulled: get it as {user} with `{program} pull {image}` or `{program} import FILE {image}`, or set `sandbox.oci.image`"
                ),
            )
        })
    }
}

pub(super) fn unusable(reason: String, remedy: String) -> SetupError {
    SetupError::Unusable { reason, remedy }
}

fn environment() -> Vec<(&'static str, OsString)> {
    let uid = nix::unistd::geteuid();
    let home = nix::unistd::User::from_uid(uid).ok().flatten().map(|user| user.dir);
    let runtime = PathBuf::from(format!("/run/user/{uid}"));
    let is_own = std::fs::metadata(&runtime).is_ok_and(|found| found.uid() == uid.as_raw());
    let runtime = (is_own && !uid.is_root()).then(|| ("XDG_RUNTIME_DIR", runtime.into()));
    let own = [("PATH", PATH.into()), ("HOME", home.unwrap_or_else(|| "/".into()).into())];
    own.into_iter().chain(runtime).collect()
}

/// What it is and its version, from a line such as `podman version 4.3.1` or `Docker version 24.0.5, build 1234567`.
fn version(line: &str) -> Option<(Kind, String)> {
    let mut words = line.split([' ', ',', '\n']).filter(|word| !word.is_empty());
    let kind = match words.next()?.to_lowercase().as_str() {
        "podman" => Kind::Podman,
        "docker" => Kind::Docker,
        _ => return None,
    };
    let version = words.nth(1)?;
    version.starts_with(|letter: char| letter.is_ascii_digit()).then(|| (kind, version.to_owned()))
}

fn numbers(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// What an engine says of itself.
struct Learned {
    users: Users,
    runtime: String,
    limits: Limited,
}

/// What is wrong, and what to do.
type Wrong = (&'static str, &'static str);

fn of_podman(told: &Value) -> Result<Learned, Wrong> {
    let host = &told["host"];
    if host["serviceIsRemote"].as_bool() == Some(true) {
        return Err((
            "its containers run on another machine, which does not see the workspaces",
            "let `sandbox.oci.engine` be podman itself, not `podman-remote`",
        ));
    }
    let is_rootless = host["security"]["rootless"].as_bool() == Some(true);
    let controllers = host["cgroupControllers"].as_array();
    // The old control groups cannot be handed to an ordinary user.
    let is_able = !(is_rootless && host["cgroupVersion"].as_str() == Some("v1"));
    let has = |name: &str| {
        is_able && controllers.is_some_and(|all| all.iter().any(|one| one.as_str() == Some(name)))
    };
    Ok(Learned {
        users: if is_rootless { Users::Kept } else { Users::Mapped },
        runtime: host["ociRuntime"]["name"].as_str().unwrap_or("its own runtime").to_owned(),
        limits: Limited { memory: has("memory"), processes: has("pids"), cpus: has("cpu") },
    })
}

fn of_docker(told: &Value) -> Result<Learned, Wrong> {
    let options = told["SecurityOptions"].as_array();
    let maps = |option: &Value| {
        let text = option.as_str().unwrap_or_default();
        text.contains("name=rootless") || text.contains("name=userns")
    };
    if options.is_some_and(|options| options.iter().any(maps)) {
        return Err((
            "its daemon maps users by itself, so that none of them is the owner of a workspace",
            "run podman as the service's user instead, or take `userns-remap` out of the daemon's settings",
        ));
    }
    let is = |key: &str| told[key].as_bool() == Some(true);
    Ok(Learned {
        users: Users::Plain,
        runtime: told["DefaultRuntime"].as_str().unwrap_or("its own runtime").to_owned(),
        limits: Limited {
            memory: is("MemoryLimit"),
            processes: is("PidsLimit"),
            cpus: is("CpuCfsQuota"),
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_engine_is_known_by_what_it_says() {
        let podman = version("podman version 4.3.1\n");
        assert_eq!(podman, Some((Kind::Podman, "4.3.1".into())));
        let docker = version("Docker version 24.0.5, build 24.0.5-0ubuntu1\n");
        assert_eq!(docker, Some((Kind::Docker, "24.0.5".into())));
        for other in ["", "nerdctl version 1.0", "podman", "podman version", "podman version x"] {
            assert_eq!(version(other), None, "{other}");
        }
        assert!(numbers("4.2.9") < OLDEST_PODMAN && numbers("5.0.0-dev") > OLDEST_PODMAN);
    }

    #[test]
    fn an_ordinary_user_has_no_limits_with_the_old_control_groups() {
        let told = |rootless: bool, version: &str| {
            let learned = of_podman(&json!({"host": {
                "security": {"rootless": rootless},
                "cgroupVersion": version,
                "cgroupControllers": ["memory", "pids"],
                "ociRuntime": {"name": "crun"},
            }}));
            let learned = learned.map_err(|wrong| wrong.0).unwrap();
            assert_eq!((learned.runtime.as_str(), learned.limits.cpus), ("crun", false));
            (learned.users, learned.limits.memory)
        };
        assert_eq!(told(false, "v1"), (Users::Mapped, true));
        assert_eq!(told(true, "v1"), (Users::Kept, false));
        assert_eq!(told(true, "v2"), (Users::Kept, true));
        assert!(of_podman(&json!({"host": {"serviceIsRemote": true}})).is_err());
    }

    #[test]
    fn a_docker_that_maps_users_is_refused() {
        let told =
            |option: &str| of_docker(&json!({"SecurityOptions": [option], "MemoryLimit": true}));
        assert!(told("name=seccomp,profile=builtin").is_ok_and(|learned| learned.limits.memory));
        assert!(told("name=rootless").is_err() && told("name=userns").is_err());
    }
}
