//! The part of a job that needs no forge: the session, the patch, the gate and the test runs. `run` uses it for a job,
//! `fix` for a folder on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use config::{RepoFile, Secret};

use crate::audit;
use crate::checkout::{self, Base};
use crate::clock::Clock;
use crate::egress::Internet;
use crate::evidence::{self, Evidence, Ran};
use crate::folder::Folder;
use crate::gate::{self, BadPattern, Refusal, Rules};
use crate::input::Input;
use crate::job::NoFix;
use crate::leaf::Leaf;
use crate::model::Model;
use crate::patch::{self, Patch};
use crate::publish::{Author, Signer};
use crate::redact::Redactor;
use crate::sandbox::{Command, End, Sandbox, SetupError};
use crate::session::{self, Budgets, Ended, Parts, Profile, Reason, Record, Tools, Transcript};
use crate::setup::{self, Prepared, Setup};
use crate::whereabouts::Whereabouts;
use crate::workspace::{Owner, Workspace};

/// Bytes of `.hyla.toml` at most; a real one has some hundred.
const REPOSITORY_FILE_BYTES: u64 = 64 << 10;
/// Bytes of `AGENTS.md` that are read at most; the input keeps far less of it.
const INSTRUCTIONS_BYTES: u64 = 4 << 20;
/// Bytes kept of each stream of the setup command.
const SETUP_BYTES: usize = 32 << 10;

/// Tools and rules that all jobs share.
pub struct Workshop {
    /// The model.
    pub model: Arc<dyn Model>,
    /// Where commands run.
    pub sandbox: Arc<dyn Sandbox>,
    /// Where setup commands may download from.
    pub internet: Arc<dyn Internet>,
    /// Who owns the workspaces.
    pub owner: Owner,
    /// System prompt and tool schemas.
    pub profile: Profile,
    /// The settings.
    pub config: config::Config,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Takes the bot's secrets out of transcripts.
    pub redactor: Redactor,
    /// The bot's own secrets, which no patch may hold.
    pub secrets: Vec<Secret>,
    /// What commits are signed with.
    pub signer: Option<Arc<Signer>>,
}

/// What one job is to do, frozen.
#[derive(Debug, Clone)]
pub struct Task {
    /// What the model is told.
    pub input: Input,
    /// SHA-256 of the input and the base commit, as hex.
    pub digest: String,
    /// The repository's own settings, from the base commit.
    pub repo_file: RepoFile,
    /// The server's test command for this repository.
    pub server_command: Option<String>,
}

/// What a session left.
pub struct Worked {
    /// The folder that the model worked in. No process of it lives, and no tool is under way.
    pub workspace: Arc<Workspace>,
    /// What the setup command left, where it may download anything.
    pub prepared: Option<Prepared>,
    /// How it ended.
    pub ended: Ended,
    /// What its transcript was then.
    pub spoken: Spoken,
}

/// A transcript at the end of a session.
#[derive(Debug, Clone)]
pub struct Spoken {
    /// Its length, in bytes.
    pub bytes: u64,
    /// The SHA-256 of those bytes, in hex.
    pub sha256: String,
}

/// Why a stage failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The base commit could not be read or checked out.
    #[error("cannot prepare the work")]
    Checkout(#[from] checkout::Error),
    /// No command can be run safely.
    #[error("cannot run commands")]
    Sandbox(#[from] SetupError),
    /// The session could not go on.
    #[error("the session broke off")]
    Session(#[from] session::Error),
    /// The workspace could not be imported.
    #[error("cannot take over what the agent left")]
    Patch(#[from] patch::Error),
    /// A protected path makes no sense.
    #[error("cannot judge the patch")]
    Pattern(#[from] BadPattern),
    /// The tests could not be run.
    #[error("cannot gather evidence")]
    Evidence(#[from] evidence::Error),
    /// Nothing could be set up.
    #[error("cannot set up the work")]
    Setup(#[source] setup::Error),
    /// The disk said no.
    #[error("cannot write `{}`", path.display())]
    Disk {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl From<setup::Error> for Error {
    fn from(error: setup::Error) -> Self {
        match error {
            setup::Error::Sandbox(error) => Self::Sandbox(error),
            setup::Error::Checkout(error) => Self::Checkout(error),
            other => Self::Setup(other),
        }
    }
}

impl Error {
    /// The sandbox's own error, where it is one.
    pub fn sandbox(&self) -> Option<&SetupError> {
        match self {
            Self::Sandbox(error)
            | Self::Session(session::Error::Sandbox(error))
            | Self::Evidence(evidence::Error::Sandbox(error)) => Some(error),
            Self::Checkout(_)
            | Self::Session(_)
            | Self::Patch(_)
            | Self::Pattern(_)
            | Self::Evidence(_)
            | Self::Setup(_)
            | Self::Disk { .. } => None,
        }
    }
}

impl Workshop {
    /// Lets the model work on a fresh workspace. `watch` sees the session as it goes.
    ///
    /// # Errors
    /// The disk, the sandbox or the model failed.
    pub async fn session(
        &self,
        task: &Task,
        base: &Base,
        folder: &Folder,
        watch: &mut (dyn FnMut(&Record) + Send),
    ) -> Result<Worked, Error> {
        // Before a session is spent on a workspace that something else may write.
        self.sandbox.quiet().await?;
        let stock = base.stock(folder.stock());
        let mut workspace = stock.workspace(&base.commit, &folder.workspace(), self.owner).await?;
        let path = folder.transcript();
        let disk = |source| Error::Disk { path: path.clone(), source };
        let mut transcript = Transcript::open(&path, &self.redactor, watch).map_err(disk)?;
        let input = Record::Input {
            digest: task.digest.clone(),
            base: base.commit.clone(),
            input: task.input.clone(),
        };
        transcript.append(&input).map_err(disk)?;
        let mut prepared = None;
        if let Some(command) = &task.repo_file.setup_command {
            let text = if self.config.egress.is_open() {
                let setup = self.setup().prepare(command, base, &stock, &folder.runs()).await?;
                let (given, copied) = setup.give(self.sandbox.as_ref(), workspace).await?;
                workspace = given;
                let text = format!("{}{}", of_setup(&setup.ran), of_copy(&copied));
                prepared = Some(setup);
                text
            } else {
                of_setup(&self.set_up(&workspace, command).await?)
            };
            transcript.append(&Record::Notice { text }).map_err(disk)?;
        }
        let workspace = Arc::new(workspace);
        let limits = (&self.config.session).into();
        let leaf = Leaf::new(Arc::clone(&workspace), Arc::clone(&self.sandbox), limits);
        let parts = Parts {
            model: self.model.as_ref(),
            tools: &Told { tools: &leaf, redactor: &self.redactor },
            profile: &self.profile,
            clock: self.clock.as_ref(),
        };
        let budgets = Budgets::from(&self.config.session);
        let ended = session::run(&parts, &task.input.text(), &budgets, &mut transcript).await;
        // The time may have been up in the middle of a file tool or a command.
        leaf.quiet().await;
        let quiet = self.sandbox.quiet().await;
        // An error of the session's own says more.
        let mut ended = ended?;
        quiet?;
        // The model may know where the bot lives, and may say so.
        let whereabouts = Whereabouts::of(workspace.root());
        ended.final_text = self.redactor.redact(&whereabouts.hide(&ended.final_text));
        let spoken = spoken(&path).map_err(disk)?;
        Ok(Worked { workspace, prepared, ended, spoken })
    }

    /// Runs the repository's setup command. Its failure is no end: the model may get along without.
    async fn set_up(&self, workspace: &Workspace, script: &str) -> Result<Ran, Error> {
        let command = Command::new(script, self.config.evidence.timeout, SETUP_BYTES);
        Ok(self.sandbox.run(workspace, &command).await?.into())
    }

    /// Who commits are from. `own_email` is the forge's address for the bot, for where the operator sets none.
    pub fn author(&self, own_email: Option<&str>) -> Author {
        Author::new(&self.config.publish, own_email, self.signer.clone())
    }

    /// How a setup command is run that may download.
    fn setup(&self) -> Setup<'_> {
        Setup {
            sandbox: self.sandbox.as_ref(),
            internet: Arc::clone(&self.internet),
            egress: &self.config.egress,
            owner: self.owner,
            timeout: self.config.evidence.timeout,
            output_bytes: self.config.evidence.output_bytes,
        }
    }

    /// Takes over what the session left, as a patch in the mirror and as a file beside the transcript.
    ///
    /// # Errors
    /// The mirror or the disk failed.
    pub async fn patch(
        &self,
        worked: &Worked,
        base: &Base,
        folder: &Folder,
    ) -> Result<Patch, Error> {
        let limits = patch::Limits::for_gate(&self.config.gate);
        let mut patch =
            patch::import(&worked.workspace, &base.mirror, &base.commit, &limits).await?;
        patch.text = self.redactor.redact(&patch.text);
        for left in &mut patch.left_out {
            left.path = self.redactor.redact(&left.path);
        }
        let path = folder.patch();
        if !patch.is_empty() {
            Folder::keep(&path, &patch.text).map_err(|source| Error::Disk { path, source })?;
        }
        Ok(patch)
    }

    /// Whether a patch may be published.
    ///
    /// # Errors
    /// A protected path of the configuration makes no sense. The inner error is the rule that says no.
    pub fn gate(&self, patch: &Patch, task: &Task) -> Result<Result<(), Refusal>, Error> {
        let judged = gate::check(patch, &self.rules(&task.repo_file)?);
        Ok(judged.map_err(|refusal| Refusal {
            path: refusal.path.map(|path| self.redactor.redact(&path)),
            detail: self.redactor.redact(&refusal.detail),
            ..refusal
        }))
    }

    /// The rules for a repository.
    ///
    /// # Errors
    /// A protected path makes no sense, or there are too many.
    pub fn rules(&self, repo_file: &RepoFile) -> Result<Rules, BadPattern> {
        Rules::new(&self.config.gate, repo_file, self.secrets.clone())
    }

    /// Runs the tests, and keeps what they print beside the transcript.
    ///
    /// # Errors
    /// The disk or the sandbox failed; tests that fail are evidence.
    pub async fn evidence(
        &self,
        task: &Task,
        base: &Base,
        worked: &Worked,
        patch: &Patch,
        folder: &Folder,
    ) -> Result<Evidence, Error> {
        let server = task.server_command.as_deref();
        let command =
            evidence::find_in(&base.mirror, &base.commit, server, &task.repo_file).await?;
        let options = evidence::Options {
            scratch: &folder.runs(),
            owner: self.owner,
            timeout: self.config.evidence.timeout,
            output_bytes: self.config.evidence.output_bytes,
            prepared: worked.prepared.as_ref(),
        };
        let sandbox = self.sandbox.as_ref();
        let command = command.as_ref();
        let stock = base.stock(folder.stock());
        let mut evidence = evidence::gather(sandbox, &stock, patch, command, &options).await?;
        if let Some(traffic) = &mut evidence.traffic {
            traffic.map_asked(|asked| self.redactor.redact(asked));
        }
        // Before the words about it are cut.
        for command in evidence.commands() {
            *command = self.redactor.redact(command);
        }
        for output in evidence.outputs() {
            *output = self.redactor.redact(output);
        }
        if let Some(log) = evidence.log() {
            let path = folder.test_log();
            Folder::keep(&path, &log).map_err(|source| Error::Disk { path, source })?;
        }
        Ok(evidence)
    }
}

/// Reads a transcript for the audit record.
fn spoken(path: &Path) -> std::io::Result<Spoken> {
    let file = std::fs::File::open(path)?;
    let bytes = file.metadata()?.len();
    Ok(Spoken { bytes, sha256: audit::digest_of(file, bytes)? })
}

/// What the transcript says of a setup command.
fn of_setup(ran: &Ran) -> String {
    match ran.end {
        End::Exited(0) => "the setup command ran".into(),
        other => format!("the setup command failed ({other:?}): {}", ran.output),
    }
}

/// What it says of the copy of what a setup command left, where there is something to say.
fn of_copy(copied: &Result<(), Ran>) -> String {
    match copied {
        Ok(()) => String::new(),
        Err(ran) => format!("; not all that it left could be copied: {}", ran.output),
    }
}

/// Tools of which the model is told everything but the bot's secrets: a file of the repository may hold one.
struct Told<'a> {
    tools: &'a dyn Tools,
    redactor: &'a Redactor,
}

#[async_trait]
impl Tools for Told<'_> {
    async fn call(&self, name: &str, arguments: &str) -> Result<String, SetupError> {
        Ok(self.redactor.redact(&self.tools.call(name, arguments).await?))
    }
}

impl Worked {
    /// Why there is no fix, if nothing was changed.
    pub fn no_fix(&self) -> NoFix {
        match self.ended.reason {
            Reason::Finished => NoFix::NoChange,
            Reason::BrokenCall => NoFix::BrokenCall,
            Reason::Repeated => NoFix::Repeated,
            Reason::TurnCut | Reason::Turns | Reason::Context | Reason::Time => NoFix::Budget,
        }
    }

    /// The session in one line, for the draft.
    pub fn summary(&self, model: &str) -> String {
        let ended = &self.ended;
        let elapsed = Duration::from_secs(ended.elapsed.as_secs().max(1));
        format!(
            "{} took {} and {} in {}; {}",
            crate::reply::code_span(model),
            crate::reply::count(ended.turns, "turn"),
            crate::reply::count(ended.calls, "tool call"),
            crate::clock::shown(elapsed),
            ended.reason
        )
    }
}

/// The repository's own settings at the base commit, and as they are written, if the repository has any; the inner error
/// says what is wrong with them.
///
/// # Errors
/// The commit cannot be read.
pub async fn repo_file(
    base: &Base,
) -> Result<Result<(RepoFile, Option<String>), config::Error>, checkout::Error> {
    const NAME: &str = ".hyla.toml";
    let bytes = match base.mirror.file_at(&base.commit, NAME, REPOSITORY_FILE_BYTES).await {
        Ok(bytes) => bytes,
        Err(error @ checkout::Error::FileTooLarge { .. }) => {
            let (file, key) = (NAME.into(), String::new());
            return Ok(Err(config::Error { file, key, reason: error.to_string() }));
        }
        Err(error) => return Err(error),
    };
    let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let settings = config::parse_repo_file(text.as_deref().unwrap_or_default());
    Ok(settings.map(|settings| (settings, text)))
}

/// The repository's instructions for agents at the base commit. What no model could read is none.
///
/// # Errors
/// The commit cannot be read.
pub async fn instructions(base: &Base) -> Result<Option<String>, checkout::Error> {
    match base.mirror.file_at(&base.commit, "AGENTS.md", INSTRUCTIONS_BYTES).await {
        Ok(bytes) => Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
        Err(checkout::Error::FileTooLarge { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
