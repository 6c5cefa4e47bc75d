//! How the agent's commands are confined: backend, identity, what they can see, and limits.

use std::path::PathBuf;

use serde::Deserialize;

/// `[sandbox]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    /// Which mechanism. `auto` means bubblewrap, or no agent at all.
    pub backend: Backend,
    /// The engine of the backend `oci`; unused by the others.
    pub oci: Oci,
    /// Whether the backend `landlock-degraded` may be used, which keeps commands in less than bubblewrap does.
    pub allow_degraded: bool,
    /// The bubblewrap binary: absolute, owned by root, not setuid, writable by root alone.
    pub bwrap: PathBuf,
    /// The uid that commands run as when the service runs as root. Ignored otherwise: commands then run as the service.
    pub uid: u32,
    /// The gid that goes with `uid`.
    pub gid: u32,
    /// Folders that commands may read besides `/usr`, at the same path inside; for toolchains.
    pub read_only: Vec<PathBuf>,
    /// Folders put in front of the default `PATH`; each must be inside `/usr` or one of `read_only`.
    pub path: Vec<PathBuf>,
    /// Environment variables set inside, for toolchains. Never a secret: the agent reads them.
    pub env: std::collections::BTreeMap<String, String>,
    /// Size of `/tmp`, in bytes.
    pub tmp_bytes: u64,
    /// Size of the home folder, in bytes.
    pub home_bytes: u64,
    /// Size of `/dev/shm`, in bytes.
    pub shm_bytes: u64,
    /// Memory of one command, in bytes; what it writes to `/tmp`, the home folder and `/dev/shm` counts.
    pub memory_bytes: u64,
    /// Processor cores that one command may keep busy, such as 1.5; 0 is all of them.
    pub cpus: f64,
    /// Processes and threads of one command.
    pub processes: u64,
    /// Largest single file that a command may write, in bytes.
    pub file_bytes: u64,
    /// Open files of one process.
    pub open_files: u64,
    /// Bytes that the workspace may hold; a command that passes it is ended.
    pub workspace_bytes: u64,
    /// Files and folders that the workspace may hold, 200 of them within each other; a command that passes either is ended.
    pub workspace_files: u64,
    /// Bytes of the workspace's file system that stay free for everybody else; a command that takes them is ended.
    pub free_bytes: u64,
    /// The limits without which no command runs. None is [`Sandbox::required`].
    pub require: Option<Vec<Limit>>,
}

/// A limit of one command that not every machine can enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// `memory_bytes`
    Memory,
    /// `processes`
    Processes,
    /// `cpus`
    Cpus,
}

impl Sandbox {
    /// The limits without which no command runs. `is_unit`: the service manager started this process as a unit of its own,
    /// where one line of the unit provides them.
    pub fn required(&self, is_unit: bool) -> Vec<Limit> {
        match &self.require {
            Some(limits) => limits.clone(),
            None if is_unit => vec![Limit::Memory, Limit::Processes],
            None => Vec::new(),
        }
    }
}

/// The variable of the environment without which the backend `none` runs nothing; it must be `1`.
pub const ACCEPTS_UNSANDBOXED: &str = "HYLA_I_ACCEPT_UNSANDBOXED_AGENT";

/// Whether whoever started this process accepts commands without a sandbox.
pub fn accepts_unsandboxed() -> bool {
    std::env::var_os(ACCEPTS_UNSANDBOXED).is_some_and(|value| value == "1")
}

/// Which mechanism confines the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Bubblewrap, or no agent at all.
    Auto,
    /// Bubblewrap.
    Bubblewrap,
    /// A container engine: podman, or docker's command line.
    Oci,
    /// Landlock, a filter that denies every socket, and a user of its own; needs [`Sandbox::allow_degraded`].
    LandlockDegraded,
    /// No sandbox; needs [`ACCEPTS_UNSANDBOXED`] besides.
    None,
}

/// `[sandbox.oci]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Oci {
    /// The engine's command line, podman's or docker's: absolute, owned by root, not setuid, writable by root alone.
    pub engine: PathBuf,
    /// The runtime that the engine starts containers with, by name or path; the engine's own choice if none.
    pub runtime: Option<String>,
    /// The image that commands see as the machine. It must be there already: nothing is ever pulled.
    pub image: String,
}

impl Default for Oci {
    fn default() -> Self {
        Self { engine: PathBuf::from("/usr/bin/podman"), runtime: None, image: String::new() }
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        Self {
            backend: Backend::Auto,
            oci: Oci::default(),
            allow_degraded: false,
            bwrap: PathBuf::from("/usr/bin/bwrap"),
            uid: 64_023,
            gid: 64_023,
            read_only: Vec::new(),
            path: Vec::new(),
            env: std::collections::BTreeMap::new(),
            tmp_bytes: 2 << 30,
            home_bytes: 1 << 30,
            shm_bytes: 64 << 20,
            memory_bytes: 4 << 30,
            cpus: 0.0,
            processes: 512,
            file_bytes: 4 << 30,
            open_files: 4096,
            workspace_bytes: 20 << 30,
            workspace_files: 1_000_000,
            free_bytes: 256 << 20,
            require: None,
        }
    }
}
