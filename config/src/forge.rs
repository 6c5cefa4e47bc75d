//! One forge: where it is, which repositories of it are worked on, and where its secrets are.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use url::Url;

use crate::SecretRef;

/// `[forge.NAME]`. `kind`, `url`, `webhook_secrets`, `repositories` and one of `token` and `app` have no default.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forge {
    /// What software it is.
    pub kind: ForgeKind,
    /// The address that the bot reaches it at, with any sub-path, without `/api/v1` or `/api/v3`.
    #[serde(deserialize_with = "crate::address::required")]
    pub url: Url,
    /// The address that people reach it at, when it differs; used in links only.
    #[serde(default, deserialize_with = "crate::address::optional")]
    pub public_url: Option<Url>,
    /// The access token of the bot's user.
    #[serde(default)]
    pub token: Option<SecretRef>,
    /// The app that the bot is on GitHub, in place of a user with a token.
    #[serde(default)]
    pub app: Option<App>,
    /// One webhook secret, or two while they are rotated.
    pub webhook_secrets: Vec<SecretRef>,
    /// The allow-list, as `owner/name`. A repository that is not here is never touched.
    pub repositories: Vec<String>,
    /// The label that asks for a draft.
    #[serde(default = "default_label")]
    pub label: String,
    /// The logins of other bots, whose labels ask for nothing.
    #[serde(default)]
    pub bots: Vec<String>,
    /// The title prefix that makes a pull request a draft on Gitea and Forgejo. It must be one of the server's
    /// `WORK_IN_PROGRESS_PREFIXES`, which no API tells.
    #[serde(default = "default_draft_prefix")]
    pub draft_prefix: String,
    /// What to do where GitHub takes no drafts in a repository.
    #[serde(default)]
    pub without_drafts: WithoutDrafts,
    /// How long a write to GitHub waits after the one before.
    #[serde(default = "default_write_pause", with = "humantime_serde")]
    pub write_pause: Duration,
    /// A PEM file with certificate authorities to trust besides the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// A proxy that leads to the forge, for its API and for git, which needs an https address then. Without one the forge is
    /// reached directly, whatever the environment says.
    #[serde(default, deserialize_with = "crate::address::optional")]
    pub proxy: Option<Url>,
    /// How long one request may take.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    pub timeout: Duration,
}

impl Forge {
    /// Whether a repository, written as `owner/name`, is on the allow-list.
    pub fn allows(&self, repository: &str) -> bool {
        self.allowed(repository).is_some()
    }

    /// A repository as the allow-list writes it, if it is there. Forges do not tell small from capital letters.
    pub fn allowed(&self, repository: &str) -> Option<&str> {
        let found =
            self.repositories.iter().find(|allowed| allowed.eq_ignore_ascii_case(repository));
        found.map(String::as_str)
    }
}

/// A GitHub App.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct App {
    /// Its number, as its settings show it.
    pub id: u64,
    /// Its private key, in PEM.
    pub private_key: SecretRef,
}

/// What to do where GitHub takes no drafts in a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutDrafts {
    /// Open nothing, and say so on the issue.
    #[default]
    Refuse,
    /// Open a pull request with `draft_prefix` before its title.
    Prefix,
}

/// What software a forge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ForgeKind {
    /// Gitea 1.24 and later.
    Gitea,
    /// Forgejo 11 and later.
    Forgejo,
    /// GitHub Enterprise Server 3.14 and later.
    GitHub,
}

impl TryFrom<String> for ForgeKind {
    type Error = &'static str;

    fn try_from(kind: String) -> Result<Self, Self::Error> {
        match kind.as_str() {
            "gitea" => Ok(Self::Gitea),
            "forgejo" => Ok(Self::Forgejo),
            "github" => Ok(Self::GitHub),
            _ => Err("it must be `gitea`, `forgejo` or `github`"),
        }
    }
}

fn default_label() -> String {
    "hyla".into()
}

fn default_draft_prefix() -> String {
    "WIP:".into()
}

fn default_write_pause() -> Duration {
    Duration::from_secs(1)
}

fn default_timeout() -> Duration {
    Duration::from_secs(30)
}
