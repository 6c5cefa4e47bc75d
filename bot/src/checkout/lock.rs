//! One lock per mirror: a queue of tasks in this process, then a lock file against other processes of the machine.
//! The kernel gives the file's lock back when its holder dies, so a crash leaves nothing to clean up.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::Error;

/// The locks of this process. Mirrors that nobody waits for keep a few bytes each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Locks(Arc<Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>>);

/// The turn of one task of this process.
pub(crate) struct Turn {
    _guard: OwnedMutexGuard<()>,
}

/// The mirror is held against everyone until this is dropped.
pub(crate) struct Held {
    _turn: Option<Turn>,
    _file: File,
}

impl Locks {
    /// Waits for the mirror's turn in this process.
    pub(crate) async fn hold(&self, mirror: &Path) -> Turn {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(locks.entry(mirror.to_owned()).or_default())
        };
        Turn { _guard: lock.lock_owned().await }
    }

    /// Waits, blocking, until neither another process nor another task holds the mirror's file.
    pub(crate) fn hold_blocking(mirror: &Path) -> Result<Held, Error> {
        Ok(Held { _turn: None, _file: hold_file(mirror)? })
    }
}

impl Turn {
    /// Waits, blocking, until no other process holds the mirror.
    pub(crate) fn across_processes(self, mirror: &Path) -> Result<Held, Error> {
        let held = hold_file(mirror)?;
        Ok(Held { _turn: Some(self), _file: held })
    }
}

fn hold_file(mirror: &Path) -> Result<File, Error> {
    let path = mirror.with_extension("git.lock");
    let failed = |source| Error::Disk { path: path.clone(), source };
    if let Some(parent) = path.parent() {
        super::mirror::create_private(parent).map_err(failed)?;
    }
    let file =
        File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    file.lock().map_err(failed)?;
    Ok(file)
}
