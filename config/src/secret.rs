//! A secret is a reference to a file or to an environment variable; its value is read once and never printed.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use secrecy::SecretString;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

/// A secret's value. Its `Debug` prints none of it.
pub type Secret = SecretString;

/// Where a secret is: `{ file = "/path" }` or `{ env = "NAME" }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretRef {
    /// A file whose content, without surrounding white space, is the secret. A name without a folder means a credential
    /// that systemd passes to the service.
    File(PathBuf),
    /// The name of an environment variable of the service.
    Env(String),
}

impl SecretRef {
    /// Reads the value.
    ///
    /// # Errors
    /// It is not there, empty, or others on this machine could read it. Never tells the value.
    pub fn read(&self) -> Result<Secret, String> {
        let value = self.text()?;
        if value.chars().any(char::is_control) {
            return Err(format!(
                "the secret in {self} has more than one line or a control character"
            ));
        }
        Ok(value.into())
    }

    /// Reads a value that may have several lines, such as a key in PEM.
    ///
    /// # Errors
    /// As for [`SecretRef::read`].
    pub fn read_text(&self) -> Result<Secret, String> {
        Ok(self.text()?.into())
    }

    fn text(&self) -> Result<String, String> {
        let value = match self {
            Self::File(path) => read_file(&place(path)?)?,
            Self::Env(name) => std::env::var(name).map_err(|_| {
                format!("the environment variable `{name}` is not set, or is not text")
            })?,
        };
        match value.trim() {
            "" => Err(format!("the secret in {self} is empty")),
            value => Ok(value.to_owned()),
        }
    }
}

impl std::fmt::Display for SecretRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "the file `{}`", path.display()),
            Self::Env(name) => write!(f, "the environment variable `{name}`"),
        }
    }
}

fn place(path: &Path) -> Result<PathBuf, String> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY").ok_or_else(|| {
        format!(
            "`{name}` is not an absolute path, so it is a credential of systemd, which passes none to this process; write the whole path of a file, or pass it: `systemd-run --pipe --wait -p User=hyla -p LoadCredential={name}:/etc/hyla/{name} hyla ...`",
            name = path.display()
        )
    })?;
    Ok(Path::new(&folder).join(path))
}

fn read_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        let next = match error.kind() {
            ErrorKind::NotFound => format!(
                "make the file, as with `sudo install -m 600 -o hyla /dev/stdin {shown}`, or name another"
            ),
            ErrorKind::PermissionDenied => format!(
                "run this as a user who may read it, such as `sudo -u hyla hyla ...`, or give it to whoever runs this: `sudo chown USER {shown}`"
            ),
            _ => "name another file".to_owned(),
        };
        format!("cannot read the secret in `{shown}`: {error}; {next}")
    };
    let found = std::fs::metadata(path).map_err(cannot)?;
    if found.is_dir() {
        return Err(format!("cannot read the secret in `{shown}`: it is a folder; name the file"));
    }
    let mode = found.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(format!(
            "the secret in `{shown}` can be read or changed by every user of this machine (mode {:03o}); run `chmod 600 {shown}`",
            mode & 0o777
        ));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

impl<'de> Deserialize<'de> for SecretRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretRefVisitor)
    }
}

/// Says what to write without repeating what was written: it may be the secret itself.
const HOW: &str = "write `{ file = \"/path\" }` or `{ env = \"NAME\" }`: a secret itself does not belong in this file";

struct SecretRefVisitor;

impl<'de> Visitor<'de> for SecretRefVisitor {
    type Value = SecretRef;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(HOW)
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<SecretRef, E> {
        Err(E::custom(HOW))
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<SecretRef, E> {
        Err(E::custom(HOW))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SecretRef, A::Error> {
        let mut found = None;
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            let reference = match key.as_str() {
                "file" => SecretRef::File(value.into()),
                "env" => SecretRef::Env(value),
                _ => return Err(A::Error::custom(HOW)),
            };
            if found.replace(reference).is_some() {
                return Err(A::Error::custom(HOW));
            }
        }
        found.ok_or_else(|| A::Error::custom(HOW))
    }
}
