//! What every backend that runs commands does alike: it runs none where a limit that is required is not enforced, or where
//! an earlier one may still live, and it is quiet when all that it started is dead.

use async_trait::async_trait;

use super::ending::Dying;
use super::{Command, Confinement, Finished, Report, Sandbox, SetupError};
use crate::workspace::Workspace;

/// The user's limit of processes, in commands, where those of each command are counted: as many as there may be workers
/// (`queue.workers`), so that no command takes what another one may have.
const COMMANDS: u64 = 64;

/// What a backend has of its own. The rest makes it a [`Sandbox`].
#[async_trait]
pub(super) trait Backend: Send + Sync {
    /// See [`Sandbox::name`].
    fn name(&self) -> String;

    /// See [`Sandbox::confinement`].
    fn confinement(&self) -> Confinement {
        Confinement::Sealed
    }

    /// See [`Sandbox::probe`].
    async fn probe(&self) -> Report;

    /// Why no command may run, if a limit that is required is not enforced.
    fn refusal(&self) -> Option<SetupError>;

    /// Runs one command, whatever is required: to show what is.
    async fn run_anyway(
        &self,
        workspace: &Workspace,
        command: &Command,
    ) -> Result<Finished, SetupError>;

    /// The commands that are about to start or to end.
    fn dying(&self) -> &Dying;

    /// The settings of `[sandbox]`.
    fn settings(&self) -> &config::Sandbox;

    /// Whether something limits the processes of each command apart from those of its user's other commands.
    fn counts_processes(&self) -> bool;

    /// What `RLIMIT_NPROC` is set to, which counts all processes of the user.
    fn processes_of_user(&self) -> u64 {
        let processes = self.settings().processes;
        if self.counts_processes() { processes * COMMANDS } else { processes }
    }
}

#[async_trait]
impl<B: Backend> Sandbox for B {
    fn name(&self) -> String {
        Backend::name(self)
    }

    fn confinement(&self) -> Confinement {
        Backend::confinement(self)
    }

    async fn probe(&self) -> Report {
        Backend::probe(self).await
    }

    async fn run(&self, workspace: &Workspace, command: &Command) -> Result<Finished, SetupError> {
        match self.refusal() {
            Some(refusal) => Err(refusal),
            None => self.run_anyway(workspace, command).await,
        }
    }

    async fn quiet(&self) -> Result<(), SetupError> {
        self.dying().quiet().await
    }

    fn is_sure(&self) -> bool {
        !self.dying().is_unproven()
    }
}
