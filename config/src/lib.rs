//! Every setting of Hyla, in one tree, checked once. `load` reads a file, refuses what it does not know, and names
//! file, key and reason in each error. Secrets are references to a file or to an environment variable.
//!
//! This crate imports nothing of ours. The other libraries take their own options; `bot` converts.

mod address;
mod check;
mod clean_up;
mod egress;
mod evidence;
mod forge;
mod gate;
mod host;
mod load;
mod local;
mod model;
mod publish;
mod queue;
mod repo;
mod sandbox;
mod schedule;
mod secret;
mod server;
mod session;
mod sweep;
#[cfg(test)]
mod tests;

pub use check::showable;
pub use clean_up::CleanUp;
pub use egress::Egress;
pub use evidence::Evidence;
pub use forge::{App, Forge, ForgeKind, WithoutDrafts};
pub use gate::{BadPattern, Gate, Protected};
pub use host::Host;
pub use load::{Error, load, parse};
pub use local::{Dtype, Local, ModelKind};
pub use model::{Model, endpoint};
pub use publish::{KeyKind, Publish, Signing, SigningKey};
pub use queue::Queue;
pub use repo::{RepoFile, parse_repo_file};
pub use sandbox::{ACCEPTS_UNSANDBOXED, Backend, Limit, Oci, Sandbox, accepts_unsandboxed};
pub use schedule::Schedule;
pub use secret::{Secret, SecretRef};
pub use server::Server;
pub use session::Session;
pub use sweep::{Authors, Span, Sweep};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use secrecy::ExposeSecret;
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
    /// Sweeps over the backlog by their name.
    #[serde(default, rename = "sweep")]
    pub sweeps: BTreeMap<String, Sweep>,
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
    /// What a repository's setup command may download.
    #[serde(default)]
    pub egress: Egress,
    /// The test runs that the bot makes itself.
    #[serde(default)]
    pub evidence: Evidence,
    /// What may cross from the workspace into a patch.
    #[serde(default)]
    pub gate: Gate,
    /// Commits, branches and pull requests.
    #[serde(default)]
    pub publish: Publish,
    /// What the service forgets, and when.
    #[serde(default)]
    pub clean_up: CleanUp,
}

impl Default for Config {
    /// Every default and no forge, as an empty file says.
    fn default() -> Self {
        Self {
            data_dir: default_data_dir(),
            server: Server::default(),
            forges: BTreeMap::new(),
            sweeps: BTreeMap::new(),
            queue: Queue::default(),
            model: Model::default(),
            session: Session::default(),
            sandbox: Sandbox::default(),
            egress: Egress::default(),
            evidence: Evidence::default(),
            gate: Gate::default(),
            publish: Publish::default(),
            clean_up: CleanUp::default(),
        }
    }
}

impl Config {
    /// Reads every secret at once, so that a missing one is known before any work begins.
    ///
    /// # Errors
    /// Names file, key and reason, never a value.
    pub fn secrets(&self, file: &Path) -> Result<Secrets, Error> {
        let read = |key: String, secret: &SecretRef| {
            secret.read().map_err(|reason| Error { file: file.into(), key, reason })
        };
        let mut forges = BTreeMap::new();
        for (name, forge) in &self.forges {
            let credential = match (&forge.token, &forge.app) {
                (_, Some(App { id, private_key })) => {
                    let key = format!("forge.{name}.app.private_key");
                    let read = private_key.read_text();
                    let reason = |reason| Error { file: file.into(), key, reason };
                    Credential::App { id: *id, private_key: read.map_err(reason)? }
                }
                (Some(token), None) => {
                    Credential::Token(read(format!("forge.{name}.token"), token)?)
                }
                // The check of the configuration lets nothing through that has neither.
                (None, None) => continue,
            };
            let key = format!("forge.{name}.webhook_secrets");
            let webhooks: Vec<Secret> = forge
                .webhook_secrets
                .iter()
                .map(|secret| read(key.clone(), secret))
                .collect::<Result<_, _>>()?;
            if let [one, two] = webhooks.as_slice()
                && one.expose_secret() == two.expose_secret()
            {
                let reason =
                    "both secrets are the same; while rotating, give the next one and the last one"
                        .into();
                return Err(Error { file: file.into(), key, reason });
            }
            forges.insert(name.clone(), ForgeSecrets { credential, webhooks });
        }
        let model =
            self.model.key.as_ref().map(|secret| read("model.key".into(), secret)).transpose()?;
        let signing = self.publish.signing.as_ref().map(Signing::read).transpose();
        let signing = signing.map_err(|(key, reason)| {
            let key = key.to_owned();
            Error { file: file.into(), key, reason }
        })?;
        Ok(Secrets { forges, model, signing })
    }

    /// The files that secrets are read from, as they are named.
    pub fn secret_files(&self) -> impl Iterator<Item = &Path> {
        let forges = self.forges.values().flat_map(|forge| {
            let app = forge.app.as_ref().map(|app| &app.private_key);
            forge.token.iter().chain(app).chain(&forge.webhook_secrets)
        });
        let signing = self.publish.signing.iter().flat_map(|signing| {
            signing.ssh_key.iter().chain(&signing.openpgp_key).chain(&signing.passphrase)
        });
        forges.chain(&self.model.key).chain(signing).filter_map(|secret| match secret {
            SecretRef::File(path) => Some(path.as_path()),
            SecretRef::Env(_) => None,
        })
    }

    /// The server's own test command for a repository, written as `owner/name`.
    pub fn test_command(&self, repository: &str) -> Option<&str> {
        let commands = &self.evidence.test_commands;
        commands
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(repository))
            .map(|(_, command)| command.as_str())
    }
}

/// The values of all secrets. `Debug` prints none.
#[derive(Debug, Clone)]
pub struct Secrets {
    /// By the forge's name.
    pub forges: BTreeMap<String, ForgeSecrets>,
    /// The model server's key.
    pub model: Option<Secret>,
    /// The key that signs commits.
    pub signing: Option<SigningKey>,
}

/// The secrets of one forge.
#[derive(Debug, Clone)]
pub struct ForgeSecrets {
    /// What the bot shows the forge.
    pub credential: Credential,
    /// What webhooks are signed with.
    pub webhooks: Vec<Secret>,
}

/// What the bot shows a forge. `Debug` prints no secret.
#[derive(Debug, Clone)]
pub enum Credential {
    /// The access token of its user.
    Token(Secret),
    /// It is a GitHub App.
    App {
        /// The app's number.
        id: u64,
        /// The app's private key, in PEM.
        private_key: Secret,
    },
}

impl Credential {
    fn secret(&self) -> &Secret {
        match self {
            Self::Token(secret) | Self::App { private_key: secret, .. } => secret,
        }
    }
}

impl Secrets {
    /// All of them, for redaction.
    pub fn all(&self) -> Vec<&Secret> {
        let own = self.forges.values().map(|forge| forge.credential.secret());
        let webhooks = self.forges.values().flat_map(|forge| &forge.webhooks);
        let forges = own.chain(webhooks);
        let signing =
            self.signing.iter().flat_map(|key| [Some(&key.text), key.passphrase.as_ref()]);
        forges.chain(&self.model).chain(signing.flatten()).collect()
    }
}

/// The filter of log lines in `HYLA_LOG`, such as `debug` or `bot=debug,info`.
pub fn log_filter() -> Option<String> {
    std::env::var("HYLA_LOG").ok().filter(|filter| !filter.trim().is_empty())
}

fn default_data_dir() -> PathBuf {
    PathBuf::from("/var/lib/hyla")
}
