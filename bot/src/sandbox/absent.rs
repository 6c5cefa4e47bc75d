//! No sandbox yet: every command is refused with the reason for which there is none. Nothing is ever run in another way.
//!
//! Each probe tries again to build the one that the configuration asks for, so that a machine that is put in order while
//! the service runs is found in order.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::OnceCell;

use super::{
    Check, Command, Confinement, Finished, Options, Report, Sandbox, SetupError, Verdict, build,
};
use crate::workspace::Workspace;

/// What every use of it is told.
const THEN: &str = "a changed setting counts once the service is started again";

/// A sandbox that could not be built when the service started.
pub(super) struct Absent {
    options: Options,
    /// Why there is none, and what to do.
    why: Mutex<(String, String)>,
    built: OnceCell<Arc<dyn Sandbox>>,
}

impl Absent {
    pub(super) fn new(options: Options, why: SetupError) -> Self {
        Self { options, why: Mutex::new(words(why)), built: OnceCell::new() }
    }

    fn why(&self) -> MutexGuard<'_, (String, String)> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox, if it can be built by now.
    async fn look(&self) -> Option<&Arc<dyn Sandbox>> {
        let options = self.options.clone();
        // Programs are asked for their versions, and files are read.
        let work = async || match tokio::task::spawn_blocking(move || build(options)).await {
            Ok(built) => built,
            Err(error) => Err(SetupError::Start {
                reason: "building it was given up".into(),
                source: Some(std::io::Error::other(error)),
            }),
        };
        match self.built.get_or_try_init(work).await {
            Ok(built) => Some(built),
            Err(error) => {
                *self.why() = words(error);
                None
            }
        }
    }
}

fn words(why: SetupError) -> (String, String) {
    match why {
        SetupError::Unusable { reason, remedy } => (reason, format!("{remedy}; {THEN}")),
        other @ (SetupError::Start { .. } | SetupError::StillAlive { .. } | SetupError::Unsure) => {
            (other.to_string(), "it is tried again whenever the sandbox is looked at".into())
        }
    }
}

#[async_trait]
impl Sandbox for Absent {
    fn name(&self) -> String {
        self.built.get().map_or_else(|| "none".into(), |built| built.name())
    }

    fn confinement(&self) -> Confinement {
        self.built.get().map_or(Confinement::Sealed, |built| built.confinement())
    }

    async fn probe(&self) -> Report {
        if let Some(built) = self.look().await {
            return built.probe().await;
        }
        let (reason, remedy) = self.why().clone();
        let detail = format!("{reason}; {remedy}");
        let check = Check { name: "backend", verdict: Verdict::Fails, detail };
        Report { backend: self.name(), checks: vec![check] }
    }

    async fn run(&self, workspace: &Workspace, command: &Command) -> Result<Finished, SetupError> {
        if let Some(built) = self.built.get() {
            return built.run(workspace, command).await;
        }
        let (reason, remedy) = self.why().clone();
        Err(SetupError::Unusable { reason, remedy })
    }

    async fn quiet(&self) -> Result<(), SetupError> {
        match self.built.get() {
            Some(built) => built.quiet().await,
            None => Ok(()),
        }
    }

    fn is_sure(&self) -> bool {
        self.built.get().is_none_or(|built| built.is_sure())
    }
}
