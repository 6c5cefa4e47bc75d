//! Every setting of Hyla, in one tree, checked once. `load` reads a file, refuses what it does not know, and names
//! file, key and reason in each error. Secrets are references to a file or to an environment variable.
//!
//! This crate imports nothing of ours. The other libraries take their own options; `bot` converts.

mod evidence;
mod forge;
mod gate;
mod load;
mod model;
mod publish;
mod queue;
mod repo;
mod sandbox;
mod secret;
mod server;
mod session;

pub use evidence::Evidence;
pub use forge::{Forge, ForgeKind};
pub use gate::Gate;
pub use load::{Error, load, parse};
pub use model::Model;
pub use publish::Publish;
pub use queue::Queue;
pub use repo::{RepoFile, parse_repo_file};
pub use sandbox::{Backend, Sandbox};
pub use secret::{Secret, SecretRef};
pub use server::Server;
pub use session::Session;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// The whole of `hyla.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where everything that must survive a restart is kept: database, mirrors, jobs, transcripts.
    #[serde(default = "default_data_dir")]
    pub data_dir: PathBuf,
    /// The HTTP side.
    #[serde(default)]
    pub server: Server,
    /// The forges by the name that stands in their webhook URL.
    #[serde(default, rename = "forge")]
    pub forges: BTreeMap<String, Forge>,
    /// Jobs: workers, leases, attempts.
    #[serde(default)]
    pub queue: Queue,
    /// Which model answers, and where.
    #[serde(default)]
    pub model: Model,
    /// Budgets and limits of a session.
    #[serde(default)]
    pub session: Session,
    /// How the agent's commands are confined.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// The test runs that the bot makes itself.
    #[serde(default)]
    pub evidence: Evidence,
    /// What may cross from the workspace into a patch.
    #[serde(default)]
    pub gate: Gate,
    /// Commits, branches and pull requests.
    #[serde(default)]
    pub publish: Publish,
}

fn default_data_dir() -> PathBuf {
    PathBuf::from("/var/lib/hyla")
}
