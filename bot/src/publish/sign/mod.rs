//! The key that signs the bot's commits: read and tried out at the start, so that a bad one is known before any work, and
//! used in this process alone. No program is called, and no text or error holds any of the key.

mod openpgp;
mod ssh;

use std::fmt;

use chrono::{DateTime, Utc};
use config::{KeyKind, SigningKey};

/// A key that is ready to sign. `Debug` prints its fingerprint alone.
pub struct Signer {
    key: Key,
    from: String,
}

enum Key {
    Ssh(Box<ssh::Key>),
    OpenPgp(Box<openpgp::Key>),
}

/// Why a key signs nothing.
#[derive(Debug, thiserror::Error)]
#[error("cannot sign commits with {from}")]
pub struct Error {
    /// Where the key was read from.
    from: String,
    /// What is wrong with it, and what to do.
    #[source]
    flaw: Flaw,
}

/// What is wrong with a key, and what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum Flaw {
    #[error("it is a public key; name the private one, which has no `.pub` at its end")]
    PublicSsh,
    #[error(
        "it is a private key in another format than OpenSSH's own; convert a copy with `ssh-keygen -p -f COPY`"
    )]
    OtherSsh,
    #[error("it is no private SSH key; make one with `ssh-keygen -t ed25519 -f FILE`")]
    NotSsh,
    #[error(
        "its algorithm `{0}` cannot be used; make a key with `ssh-keygen -t ed25519 -f FILE`, or of type ecdsa or rsa"
    )]
    Algorithm(String),
    #[error(
        "an RSA key of {0} bits is too short; make a key with `ssh-keygen -t ed25519 -f FILE`, or one of 3072 bits"
    )]
    Short(usize),
    #[error("it is a public key; export the private one with `gpg --armor --export-secret-keys`")]
    PublicOpenPgp,
    #[error(
        "it is no private OpenPGP key; export one with `gpg --armor --export-secret-keys ADDRESS`"
    )]
    NotOpenPgp,
    #[error("it holds {0} keys; export the one that is to sign")]
    Several(usize),
    #[error("it is encrypted; set `publish.signing.passphrase`")]
    Locked,
    #[error("`publish.signing.passphrase` does not unlock it; put the right one there")]
    Passphrase,
    #[error("the key is revoked; name another")]
    Revoked,
    #[error("the key has expired; prolong it and export it again, or name another")]
    Expired,
    #[error(
        "it holds the private part of no key that may sign; export one that may with `gpg --armor --export-secret-keys`"
    )]
    NothingSigns,
    #[error(
        "`publish.author_email` is `{email}`, and the key is of {whose}; set the address to one of the key, or add it to the key with `gpg --quick-add-uid`"
    )]
    OtherOwner { email: String, whose: String },
    #[error("its signatures do not fit its public half; export it again, or name another")]
    Broken,
}

impl Signer {
    /// A key that has been tried out. `email` is the committer's address, which an OpenPGP key must hold.
    ///
    /// # Errors
    /// The key cannot sign; the text says why and what to do.
    pub fn open(secret: &SigningKey, email: &str, now: DateTime<Utc>) -> Result<Self, Error> {
        let opened = match secret.kind {
            KeyKind::Ssh => ssh::Key::open(secret).map(|key| Key::Ssh(Box::new(key))),
            KeyKind::OpenPgp => {
                openpgp::Key::open(secret, email, now).map(|key| Key::OpenPgp(Box::new(key)))
            }
        };
        let from = secret.from.to_string();
        match opened {
            Ok(key) => Ok(Self { key, from }),
            Err(flaw) => Err(Error { from, flaw }),
        }
    }

    /// Whether the key may sign at that time. It may have expired since it was read.
    ///
    /// # Errors
    /// It may not.
    pub fn is_valid(&self, at: DateTime<Utc>) -> Result<(), Error> {
        match &self.key {
            Key::Ssh(_) => Ok(()),
            Key::OpenPgp(key) => key.is_valid(at).map_err(|flaw| self.error(flaw)),
        }
    }

    /// The signature of a commit, without a final line feed, as it stands in the commit's header.
    ///
    /// # Errors
    /// The key has expired.
    pub(super) fn sign(&self, commit: &[u8], at: DateTime<Utc>) -> Result<String, Error> {
        let signed = match &self.key {
            Key::Ssh(key) => key.sign(commit),
            Key::OpenPgp(key) => key.is_valid(at).and_then(|()| key.sign(commit, at)),
        };
        let signed = signed.map_err(|flaw| self.error(flaw))?;
        Ok(signed.trim_end().to_owned())
    }

    fn error(&self, flaw: Flaw) -> Error {
        Error { from: self.from.clone(), flaw }
    }
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Key::Ssh(key) => write!(f, "SSH key {}", key.fingerprint()),
            Key::OpenPgp(key) => write!(f, "OpenPGP key {}", key.fingerprint()),
        }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
