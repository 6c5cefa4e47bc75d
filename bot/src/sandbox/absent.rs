//! No sandbox: every command is refused with the reason for which there is none. Nothing is ever run in another way.

use async_trait::async_trait;

use super::{Check, Command, Finished, Report, Sandbox, SetupError, Verdict};
use crate::workspace::Workspace;

/// What every use of it is told.
const THEN: &str = "then start the service again";

/// A sandbox that could not be built.
pub(super) struct Absent {
    reason: String,
    remedy: String,
}

impl Absent {
    pub(super) fn new(why: SetupError) -> Self {
        match why {
            SetupError::Unusable { reason, remedy } => {
                Self { reason, remedy: format!("{remedy}, {THEN}") }
            }
            other => Self { reason: other.to_string(), remedy: THEN.into() },
        }
    }
}

#[async_trait]
impl Sandbox for Absent {
    fn name(&self) -> String {
        "none".into()
    }

    async fn probe(&self) -> Report {
        let detail = format!("{}; {}", self.reason, self.remedy);
        let check = Check { name: "backend", verdict: Verdict::Fails, detail };
        Report { backend: self.name(), checks: vec![check] }
    }

    async fn run(&self, _: &Workspace, _: &Command) -> Result<Finished, SetupError> {
        let (reason, remedy) = (self.reason.clone(), self.remedy.clone());
        Err(SetupError::Unusable { reason, remedy })
    }

    async fn quiet(&self) -> Result<(), SetupError> {
        Ok(())
    }

    fn is_sure(&self) -> bool {
        true
    }
}
