//! Commits, branches and pull requests.

use serde::Deserialize;

use crate::SecretRef;
use crate::secret::Secret;

/// `[publish]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Publish {
    /// Name of the author and committer.
    pub author_name: String,
    /// Address of the author and committer; the forge's own for the bot, or [`Publish::EMAIL`], without any.
    pub author_email: Option<String>,
    /// Whether a commit's message ends in a `Signed-off-by` line of its author.
    pub sign_off: bool,
    /// What commits are signed with.
    pub signing: Option<Signing>,
    /// What the bot's branches start with; it pushes nowhere else.
    pub branch_prefix: String,
    /// Characters at most of a pull request or comment body.
    pub body_chars: usize,
}

impl Publish {
    /// The address of author and committer where neither the operator nor the forge gives the bot one.
    pub const EMAIL: &str = "hyla@localhost";
}

impl Default for Publish {
    fn default() -> Self {
        Self {
            author_name: "Hyla".into(),
            author_email: None,
            sign_off: false,
            signing: None,
            branch_prefix: "hyla/".into(),
            body_chars: 65_536,
        }
    }
}

/// `publish.signing`: one of the two keys.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signing {
    /// A private SSH key, as OpenSSH writes it.
    #[serde(default)]
    pub ssh_key: Option<SecretRef>,
    /// A private OpenPGP key, as `gpg --armor` exports it.
    #[serde(default)]
    pub openpgp_key: Option<SecretRef>,
    /// What unlocks the key, if it is locked.
    #[serde(default)]
    pub passphrase: Option<SecretRef>,
}

impl Signing {
    /// Reads the key and its passphrase.
    ///
    /// # Errors
    /// Names the key of the configuration and why; never a value.
    pub(crate) fn read(&self) -> Result<SigningKey, (&'static str, String)> {
        let (kind, key, from) = match (&self.ssh_key, &self.openpgp_key) {
            (Some(key), _) => (KeyKind::Ssh, "publish.signing.ssh_key", key),
            (None, Some(key)) => (KeyKind::OpenPgp, "publish.signing.openpgp_key", key),
            // The check of the configuration lets nothing through that has neither.
            (None, None) => return Err(("publish.signing", ONE_KEY.into())),
        };
        let text = from.read_text().map_err(|reason| (key, reason))?;
        let passphrase = self.passphrase.as_ref().map(SecretRef::read).transpose();
        let passphrase = passphrase.map_err(|reason| ("publish.signing.passphrase", reason))?;
        Ok(SigningKey { kind, text, passphrase, from: from.clone() })
    }
}

/// What is wrong with a table that names no key, or two.
pub(crate) const ONE_KEY: &str =
    "name one key: `{ ssh_key = { file = \"..\" } }` or `{ openpgp_key = { file = \"..\" } }`";

/// A key that signs commits, as it is in its file. `Debug` prints no secret.
#[derive(Debug, Clone)]
pub struct SigningKey {
    /// What it is.
    pub kind: KeyKind,
    /// The file's text.
    pub text: Secret,
    /// What unlocks it.
    pub passphrase: Option<Secret>,
    /// Where it was read from.
    pub from: SecretRef,
}

/// What a key that signs commits is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// An SSH key.
    Ssh,
    /// An OpenPGP key.
    OpenPgp,
}
