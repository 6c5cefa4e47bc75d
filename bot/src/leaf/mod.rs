//! Leaf's five tools: the name and the arguments of a call in, the text of the observation out, in the format that the
//! model was trained on (Microsoft's FrogNano, `harness/leaf/tool_runner.py`). Whatever the model sends has an
//! observation; only a sandbox that does not hold is an error, and it is never shown to the model.
//!
//! Two things differ on purpose, in what happens and not in how it reads: paths are confined to the workspace, with
//! links not followed and git's own folder closed, and an edit works on bytes, so that it changes nothing that it was
//! not asked to change. It does not run anything itself, and it does not know the session.

mod arguments;
mod bash;
mod edit;
mod glob;
mod read;
mod text;
mod write;

#[cfg(test)]
mod tests;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::git_name::is_dot_git;
use crate::sandbox::{Sandbox, SetupError};
use crate::whereabouts::Whereabouts;
use crate::workspace::{self, Workspace};

use tokio::sync::RwLock;

use arguments::Arguments;
use text::shown;

/// Bytes of a file at most that a tool reads or makes. The original has no limit; no source file comes near this one.
const FILE_BYTES: u64 = 64 << 20;

/// Characters of an unknown tool's name that are repeated to the model.
const NAME_CHARS: usize = 100;

/// The tools of one session.
pub struct Leaf {
    workspace: Arc<Workspace>,
    sandbox: Arc<dyn Sandbox>,
    limits: Limits,
    /// Shared by the file tools that are under way, whether or not anybody still waits for their answer.
    under_way: Arc<RwLock<()>>,
    /// None where commands see the workspace at its own path, which the model then works with.
    whereabouts: Option<Whereabouts>,
}

/// What a session allows its tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Characters at most that `Read` shows.
    pub read_chars: usize,
    /// Characters at most that `Bash` shows.
    pub bash_chars: usize,
    /// Paths at most that `Glob` shows.
    pub glob_paths: usize,
    /// How long a command may run when the model names no limit.
    pub bash_timeout: Duration,
    /// How long a command may run at most, whatever the model asks.
    pub bash_timeout_limit: Duration,
}

impl From<&config::Session> for Limits {
    fn from(session: &config::Session) -> Self {
        Self {
            read_chars: session.read_chars,
            bash_chars: session.bash_chars,
            glob_paths: session.glob_paths,
            bash_timeout: session.bash_timeout,
            bash_timeout_limit: session.bash_timeout_limit,
        }
    }
}

/// The tools that only touch files.
type FileTool = fn(&Workspace, &Limits, &Arguments) -> Result<String, Failure>;

impl Leaf {
    /// The tools over one workspace.
    pub fn new(workspace: Arc<Workspace>, sandbox: Arc<dyn Sandbox>, limits: Limits) -> Self {
        let is_moved = sandbox.confinement().workspace(&workspace) != workspace.root();
        let whereabouts = is_moved.then(|| Whereabouts::of(workspace.root()));
        Self { workspace, sandbox, limits, under_way: Arc::default(), whereabouts }
    }

    /// Carries out one call and returns its observation. `arguments` is JSON text as the model wrote it: what is not an
    /// object counts as an empty one. Dropping the future ends a command; a file tool under way completes, and
    /// [`Leaf::quiet`] waits for it.
    ///
    /// # Errors
    /// The sandbox or the kernel cannot hold what the tools need: the session must end.
    pub async fn call(&self, name: &str, arguments: &str) -> Result<String, SetupError> {
        let place = self.sandbox.confinement().workspace(&self.workspace);
        let arguments = Arguments::parse(arguments).beneath_mount(place);
        let answer = match name {
            "Read" => self.file_tool(read::read, arguments).await,
            "Write" => self.file_tool(write::write, arguments).await,
            "Edit" => self.file_tool(edit::edit, arguments).await,
            "Glob" => self.file_tool(glob::glob, arguments).await,
            "Bash" => bash::bash(&self.workspace, &*self.sandbox, &self.limits, &arguments).await,
            unknown => Ok(format!(
                "Unknown tool: {}",
                unknown.chars().take(NAME_CHARS).collect::<String>()
            )),
        };
        match answer {
            Ok(observation) => Ok(match &self.whereabouts {
                Some(whereabouts) => whereabouts.hide(&observation),
                None => observation,
            }),
            Err(Failure::Model { kind, message }) => Ok(format!("{kind}: {message}")),
            Err(Failure::Setup(error)) => Err(error),
        }
    }

    /// Returns when no file tool is under way. Only then, and once the sandbox is quiet, is the workspace at rest.
    pub async fn quiet(&self) {
        drop(self.under_way.write().await);
    }

    async fn file_tool(&self, tool: FileTool, arguments: Arguments) -> Result<String, Failure> {
        let (workspace, limits) = (Arc::clone(&self.workspace), self.limits);
        let under_way = Arc::clone(&self.under_way).read_owned().await;
        let work = move || {
            let answer = tool(&workspace, &limits, &arguments);
            drop(under_way);
            answer
        };
        let joined = tokio::task::spawn_blocking(work).await;
        match joined.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(answer) => answer,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(_)) => {
                let reason = "the runtime is shutting down".to_owned();
                Err(Failure::Setup(SetupError::Start { reason, source: None }))
            }
        }
    }
}

/// A call that did not do what it says.
#[derive(Debug)]
enum Failure {
    /// For the model, under the name that Python has for such an error.
    Model { kind: &'static str, message: String },
    /// For the operator.
    Setup(SetupError),
}

impl Failure {
    fn value(message: impl Into<String>) -> Self {
        Self::Model { kind: "ValueError", message: message.into() }
    }

    /// What a refused or failed access means, with what the model can do about it.
    fn access(error: &workspace::Error, workspace: &Workspace) -> Self {
        use workspace::Error;
        let (kind, advice) = match error {
            Error::Missing { .. } => ("FileNotFoundError", String::new()),
            Error::Folder { .. } => ("IsADirectoryError", String::new()),
            Error::NotFolder { .. } => ("NotADirectoryError", String::new()),
            Error::Link { path } => ("PermissionError", link_advice(path, workspace)),
            Error::Refused { reason: workspace::Refusal::Outside, .. } | Error::Denied { .. } => {
                ("PermissionError", String::new())
            }
            Error::Refused { .. } => ("ValueError", String::new()),
            Error::TooLarge { .. } => {
                ("ValueError", "; use Bash to look at a part of it".to_owned())
            }
            Error::TooMany { .. } | Error::TooDeep { .. } => {
                ("ValueError", "; give a path or a narrower pattern".to_owned())
            }
            Error::HardLinked { .. } => {
                ("OSError", "; use Bash to replace it by a copy first".to_owned())
            }
            Error::Special { .. } => ("OSError", String::new()),
            Error::Io { source, .. } => ("OSError", format!(": {source}")),
            Error::Unsupported { .. } => {
                return Self::Setup(SetupError::Unusable {
                    reason: error.to_string(),
                    remedy: "allow the system call or use a kernel that has it".to_owned(),
                });
            }
        };
        Self::Model { kind, message: format!("{error}{advice}") }
    }
}

fn link_advice(path: &Path, workspace: &Workspace) -> String {
    match workspace.read_link(path) {
        Ok(target) => format!("; it leads to `{}`", target.display()),
        Err(_) => String::new(),
    }
}

/// The file that a call names: its path beneath the workspace, and how the model sees it.
struct Target {
    beneath: PathBuf,
    shown: String,
}

impl Target {
    fn of(arguments: &Arguments, workspace: &Workspace) -> Result<Self, Failure> {
        let given = match arguments.text("file_path")? {
            Some(path) => Some(path),
            None => arguments.text("path")?,
        };
        let given = given.filter(|path| !path.is_empty());
        let given = given.ok_or_else(|| Failure::value("file_path is required"))?;
        let beneath = beneath(given, workspace)?;
        Ok(Self { shown: shown(&beneath), beneath })
    }
}

/// Whether a tool may make a file of this size.
fn fits(size_bytes: u64, target: &Target) -> Result<(), Failure> {
    if size_bytes <= FILE_BYTES {
        return Ok(());
    }
    let shown = &target.shown;
    let message = format!("{shown} would have {size_bytes} bytes, more than {FILE_BYTES}");
    Err(Failure::value(message))
}

/// The path that the model means, relative to the workspace, where the tools may touch it.
fn beneath(given: &str, workspace: &Workspace) -> Result<PathBuf, Failure> {
    if given == "~" || given.starts_with("~/") {
        // The original expands the home folder, which lies outside of the workspace.
        let error =
            workspace::Error::Refused { path: given.into(), reason: workspace::Refusal::Outside };
        return Err(Failure::access(&error, workspace));
    }
    let beneath = workspace::relative(Path::new(given))
        .map_err(|error| Failure::access(&error, workspace))?;
    if beneath.iter().any(|name| is_dot_git(name.as_bytes())) {
        let message = format!("`{}` belongs to git; use git by Bash", shown(&beneath));
        return Err(Failure::Model { kind: "PermissionError", message });
    }
    // An empty path would read as none in an error's text.
    Ok(if beneath.as_os_str().is_empty() { PathBuf::from(".") } else { beneath })
}
