//! The runs themselves: which trees they need, and one workspace and sandbox for each.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::paths::is_test;
use super::{Options, Outcome, Ran, TestCommand, Which, counts, report};
use crate::checkout::{self, Mirror, Stock, blocking};
use crate::job::{CommitId, Failure};
use crate::patch::{self, Patch, variants};
use crate::sandbox::{Command, End, Finished, Sandbox, SetupError, Stream};
use crate::setup::{self, Prepared};
use crate::workspace::{self, Owner, Workspace};

/// Why there is no evidence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A workspace could not be made.
    #[error("cannot prepare a test run")]
    Checkout(#[from] checkout::Error),
    /// The files of a run could not be put together.
    #[error("cannot compose the files of a test run")]
    Compose(#[from] patch::Error),
    /// A workspace could not be removed.
    #[error("cannot remove the workspace `{}`", path.display())]
    Remove {
        /// The workspace.
        path: PathBuf,
        /// Why.
        #[source]
        source: workspace::Error,
    },
    /// The sandbox could not run a command.
    #[error("cannot run the tests")]
    Sandbox(#[from] SetupError),
    /// What the setup command left could not be given to a run.
    #[error("cannot set up a test run")]
    Setup(#[source] setup::Error),
}

impl From<setup::Error> for Error {
    fn from(error: setup::Error) -> Self {
        match error {
            setup::Error::Sandbox(error) => Self::Sandbox(error),
            other => Self::Setup(other),
        }
    }
}

impl Error {
    /// What broke, for the job's end.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Checkout(source) => source.failure(),
            Self::Compose(source) => source.failure(),
            Self::Remove { .. } | Self::Setup(_) => Failure::Internal,
            Self::Sandbox(_) => Failure::Sandbox,
        }
    }
}

/// Which commit each run checks out, or why there is nothing to run.
pub(super) type Plan = Vec<(Which, Result<CommitId, &'static str>)>;

/// Decides the four runs and has the commits made that they need.
pub(super) async fn plan(mirror: &Mirror, patch: &Patch) -> Result<Plan, Error> {
    let variants = variants(mirror, patch, is_test).await?;
    let touches_code = patch.changes.iter().any(|change| !is_test(&change.path));
    let new_tests = match variants.brought {
        None => Err("the patch adds and edits no test"),
        Some(_) if !touches_code => Err("the patch changes nothing but tests"),
        Some(commit) => Ok(commit),
    };
    Ok(vec![
        (Which::Base, Ok(patch.base.clone())),
        (Which::Patched, Ok(variants.patched)),
        (Which::NewTestsOnBase, new_tests),
        (Which::OldTestsOnPatch, variants.restored.ok_or("the patch edits no existing test")),
    ])
}

/// The folder of each run's workspace, one after the other.
pub(super) fn place(options: &Options<'_>) -> PathBuf {
    options.scratch.join("evidence")
}

/// Checks a commit out, runs the commands there, and removes it once nothing runs there any more.
pub(super) async fn at(
    sandbox: &dyn Sandbox,
    stock: &Stock,
    commit: &CommitId,
    command: &TestCommand,
    options: &Options<'_>,
) -> Result<Outcome, Error> {
    let root = place(options);
    remove_all(&root, options.owner).await?;
    let workspace = stock.workspace(commit, &root, options.owner).await?;
    let outcome = match options.prepared {
        Some(prepared) => run_prepared(sandbox, workspace, prepared, command, options).await,
        None => run_in(sandbox, &workspace, command, options).await,
    };
    // A process may still write there: whoever waits for quiet removes it then, as after a run that is given up.
    if let Err(Error::Sandbox(SetupError::StillAlive { .. } | SetupError::Unsure)) = outcome {
        return outcome;
    }
    let removed = remove_all(&root, options.owner).await;
    let outcome = outcome?;
    removed?;
    Ok(outcome)
}

/// Runs the tests where the setup command has run before.
async fn run_prepared(
    sandbox: &dyn Sandbox,
    workspace: Workspace,
    prepared: &Prepared,
    command: &TestCommand,
    options: &Options<'_>,
) -> Result<Outcome, Error> {
    if prepared.ran.end != End::Exited(0) {
        return Ok(Outcome::SetupFailed(prepared.ran.clone()));
    }
    let (workspace, copied) = prepared.give(sandbox, workspace).await?;
    if let Err(ran) = copied {
        return Ok(Outcome::SetupFailed(ran));
    }
    Ok(Outcome::Ran(one(sandbox, &workspace, &command.command, options).await?))
}

async fn run_in(
    sandbox: &dyn Sandbox,
    workspace: &Workspace,
    command: &TestCommand,
    options: &Options<'_>,
) -> Result<Outcome, Error> {
    if let Some(setup) = &command.setup {
        let ran = one(sandbox, workspace, setup, options).await?;
        if ran.end != End::Exited(0) {
            return Ok(Outcome::SetupFailed(ran));
        }
    }
    Ok(Outcome::Ran(one(sandbox, workspace, &command.command, options).await?))
}

async fn one(
    sandbox: &dyn Sandbox,
    workspace: &Workspace,
    script: &str,
    options: &Options<'_>,
) -> Result<Ran, Error> {
    let command = Command::new(script, options.timeout, options.output_bytes);
    Ok(sandbox.run(workspace, &command).await?.into())
}

impl From<Finished> for Ran {
    fn from(Finished { end, stdout, stderr, elapsed }: Finished) -> Self {
        let output = [text(&stdout), text(&stderr)];
        let output: Vec<_> = output.into_iter().filter(|text| !text.is_empty()).collect();
        let output = output.join("\n");
        Self { end, elapsed, counts: counts::parse(&output), output }
    }
}

/// A stream for people: what was dropped is said, and nothing moves the cursor.
fn text(stream: &Stream) -> String {
    let mut text = String::from_utf8_lossy(&stream.head).into_owned();
    if stream.dropped_bytes > 0 {
        text.push_str(&format!("\n[{} bytes are left out here]\n", stream.dropped_bytes));
    }
    text.push_str(&String::from_utf8_lossy(&stream.tail));
    report::plain(&text)
}

/// Removes a run's workspace and its home folder, if they are there.
async fn remove_all(root: &Path, owner: Owner) -> Result<(), Error> {
    remove(root, owner).await?;
    remove(&setup::home_beside(root), owner).await
}

async fn remove(root: &Path, owner: Owner) -> Result<(), Error> {
    let root = root.to_owned();
    blocking(move || {
        remove_blocking(&root, owner).map_err(|source| Error::Remove { path: root, source })
    })
    .await
}

/// Removes a workspace, if there is one.
fn remove_blocking(root: &Path, owner: Owner) -> Result<(), workspace::Error> {
    match Workspace::open(root, owner) {
        Ok(workspace) => workspace.remove(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(workspace::Error::Io { path: root.to_owned(), source }),
    }
}
