//! What a command writes besides its workspace: a home and a folder for temporary files, made for it and removed after it.
//! They lie beside the workspace, so that they are on its file system and go with its job.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, lchown};
use std::path::{Path, PathBuf};

use crate::sandbox::Command;
use crate::sandbox::arguments::ARGUMENT_BYTES;
use crate::sandbox::ending::Dying;
use crate::workspace::{Error, Owner, Workspace, scratch_beside};

/// The folder around both.
pub(super) struct Scratch {
    folder: Workspace,
    script: String,
}

impl Scratch {
    /// Makes it, in place of one that a command left whose end nobody waited for.
    /// Whoever waits for quiet waits for this too, whether or not anybody waits for the answer.
    pub(super) async fn make(
        workspace: &Workspace,
        command: &Command,
        dying: &Dying,
    ) -> io::Result<Self> {
        let (root, owner) = (scratch_beside(workspace.root()), workspace.owner());
        let (script, counted) = (command.script.clone(), dying.count());
        let work = move || {
            let made = make(&root, owner, script);
            drop(counted);
            made
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }

    /// The folder around both.
    pub(super) fn folder(&self) -> &Workspace {
        &self.folder
    }

    /// The command's home.
    pub(super) fn home(&self) -> PathBuf {
        self.folder.root().join("home")
    }

    /// Where it puts temporary files.
    pub(super) fn temporary(&self) -> PathBuf {
        self.folder.root().join("tmp")
    }

    /// What the command's shell is told to run.
    pub(super) fn script(&self) -> &str {
        &self.script
    }

    /// Removes it. Nothing may be writing it any more.
    pub(super) async fn remove(self, dying: &Dying) {
        let (root, counted) = (self.folder.root().to_owned(), dying.count());
        let work = move || {
            let removed = self.folder.remove();
            drop(counted);
            removed
        };
        let removed = tokio::task::spawn_blocking(work).await;
        // The next command, or the end of the job, removes it once more.
        match removed.map_err(io::Error::other) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => left(&root, &io::Error::other(error)),
            Err(error) => left(&root, &error),
        }
    }
}

fn left(root: &Path, error: &io::Error) {
    tracing::warn!(path = %root.display(), %error, "a command's temporary files were not removed");
}

fn make(root: &Path, owner: Owner, script: String) -> io::Result<Scratch> {
    match Workspace::open(root, owner) {
        Ok(left) => left.remove().map_err(|error: Error| io::Error::other(error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let folder = Workspace::create(root, owner)?;
    let own = |path: &Path| match owner {
        Owner::Sandbox { uid, gid } => lchown(path, Some(uid), Some(gid)),
        Owner::Service => Ok(()),
    };
    for name in ["home", "tmp"] {
        let path = root.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        own(&path)?;
    }
    if script.len() <= ARGUMENT_BYTES {
        return Ok(Scratch { folder, script });
    }
    let path = root.join("command");
    std::fs::write(&path, script)?;
    own(&path)?;
    // By a variable whose value the service set: the path may hold anything.
    Ok(Scratch { folder, script: ". \"$TMPDIR/../command\"".into() })
}
