//! The setup command with a way out: it runs once, on the base commit and before the model sees anything, and may download
//! from the hosts of `[egress]`. What it leaves besides the repository's own files, and in its home folder, is kept apart;
//! each workspace of the job gets a copy of its own.
//!
//! Whatever it downloads is nobody's word: it is copied by a command in the sandbox, and no workspace leads to another.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::net::UnixListener;

use crate::checkout::{self, Base, Stock, blocking};
use crate::egress::{Internet, Proxy, Traffic};
use crate::evidence::Ran;
use crate::sandbox::{Command, End, Extras, Sandbox, SetupError};
use crate::workspace::{self, MOUNT, Owner, Workspace};

/// Where the copying command sees what was set up.
const KEPT: &str = "/run/setup";
const KEPT_HOME: &str = "/run/setup-home";
/// What a home folder is called that belongs to the workspace of this name.
const HOME: &str = "-home";
/// The proxy's socket, in a folder of its own.
const SOCKET: &str = "socket";

/// How a setup command is run.
pub struct Setup<'a> {
    /// Where it runs.
    pub sandbox: &'a dyn Sandbox,
    /// Names and connections.
    pub internet: Arc<dyn Internet>,
    /// What it may download.
    pub egress: &'a config::Egress,
    /// Who owns the workspaces.
    pub owner: Owner,
    /// How long it may take.
    pub timeout: Duration,
    /// Bytes kept of each of its streams, half from the head and half from the tail.
    pub output_bytes: usize,
}

/// What a setup command left.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// What came of the command.
    pub ran: Ran,
    /// What it sent, received and was refused.
    pub traffic: Traffic,
    kept: Arc<OwnedFd>,
    kept_home: Arc<OwnedFd>,
    timeout: Duration,
    output_bytes: usize,
}

/// Why nothing could be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A workspace could not be made.
    #[error("cannot prepare the setup command")]
    Checkout(#[from] checkout::Error),
    /// The disk said no.
    #[error("cannot prepare a folder for the setup command at `{}`", path.display())]
    Disk {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The repository's own files could not be told from what was set up.
    #[error("cannot tell what the setup command made")]
    Workspace(#[from] workspace::Error),
    /// The sandbox could not run it.
    #[error("cannot run the setup command")]
    Sandbox(#[from] SetupError),
}

impl Setup<'_> {
    /// Runs the command on the base commit. Its folders are made in `places`, a folder on the way to workspaces, and stay
    /// there. A command that fails has prepared what it has.
    ///
    /// # Errors
    /// It could not be run.
    pub async fn prepare(
        &self,
        script: &str,
        base: &Base,
        stock: &Stock,
        places: &Path,
    ) -> Result<Prepared, Error> {
        let root = places.join("setup");
        let workspace = stock.workspace(&base.commit, &root, self.owner).await?;
        let home = home_of(&root, self.owner)?;
        let own = |folder: &Workspace| folder.dir().try_clone_to_owned().map(Arc::new);
        let disk = |source| Error::Disk { path: root.clone(), source };
        let (kept, kept_home) = (own(&workspace).map_err(disk)?, own(&home).map_err(disk)?);
        let workspace = workspace.with_home(home);

        let door = places.join("egress");
        let (listener, socket) =
            listen(&door, self.owner).map_err(|source| Error::Disk { path: door, source })?;
        let proxy = Proxy::start(listener, self.egress.clone(), Arc::clone(&self.internet));
        let extras = Extras { proxy: Some(Arc::new(socket)), ..Extras::default() };
        let command = Command { extras, ..Command::new(script, self.timeout, self.output_bytes) };
        let finished = self.sandbox.run(&workspace, &command).await;
        let traffic = proxy.finish().await;
        tracing::info!(n_bytes = traffic.n_bytes, "the setup command sent and received");
        for ((asked, why), n_times) in &traffic.refused {
            tracing::warn!(asked, %why, n_times, "the setup command was refused a connection");
        }
        let ran = finished?.into();

        let own_files = base.mirror.paths(&base.commit).await?;
        blocking(move || own_files.iter().try_for_each(|path| take_away(&workspace, path))).await?;
        let Self { timeout, output_bytes, .. } = *self;
        Ok(Prepared { ran, traffic, kept, kept_home, timeout, output_bytes })
    }
}

impl Prepared {
    /// Gives a workspace a copy of what was set up, and a home folder beside it. The inner error is a command that did not
    /// copy all of it.
    ///
    /// # Errors
    /// The home folder cannot be made, or nothing can be run.
    pub async fn give(
        &self,
        sandbox: &dyn Sandbox,
        workspace: Workspace,
    ) -> Result<(Workspace, Result<(), Ran>), Error> {
        let home = home_of(workspace.root(), workspace.owner())?;
        let workspace = workspace.with_home(home);
        let folders =
            vec![(KEPT, Arc::clone(&self.kept)), (KEPT_HOME, Arc::clone(&self.kept_home))];
        let extras = Extras { folders, ..Extras::default() };
        let copy = Command { extras, ..Command::new(&copy(), self.timeout, self.output_bytes) };
        let ran = Ran::from(sandbox.run(&workspace, &copy).await?);
        let copied = if ran.end == End::Exited(0) { Ok(()) } else { Err(ran) };
        Ok((workspace, copied))
    }
}

/// Copies what is not there yet. The repository's own files and its `.git` are there.
fn copy() -> String {
    format!(
        "find {KEPT} -mindepth 1 -maxdepth 1 ! -name .git -exec cp -a --no-clobber --reflink=auto -t {MOUNT} {{}} +\n\
         cp -a --reflink=auto {KEPT_HOME}/. \"$HOME\"/\n"
    )
}

/// The path of the home folder that belongs to a workspace.
pub fn home_beside(workspace: &Path) -> PathBuf {
    let mut path = workspace.as_os_str().to_owned();
    path.push(HOME);
    path.into()
}

fn home_of(workspace: &Path, owner: Owner) -> Result<Workspace, Error> {
    let path = home_beside(workspace);
    Workspace::create(&path, owner).map_err(|source| Error::Disk { path, source })
}

/// Takes one of the repository's own files out of what was set up: what the patch deletes must not come back by a copy.
fn take_away(workspace: &Workspace, path: &Path) -> Result<(), workspace::Error> {
    match workspace.remove_file(path) {
        // The command has put something else in its place, or in the place of a folder above it.
        Err(
            workspace::Error::Folder { .. }
            | workspace::Error::Link { .. }
            | workspace::Error::Missing { .. }
            | workspace::Error::NotFolder { .. },
        ) => Ok(()),
        Err(workspace::Error::Denied { .. }) => {
            // The command has closed a folder. What stays closed cannot be copied either, and is told of then.
            let folders: Vec<&Path> = path.ancestors().skip(1).collect();
            for folder in folders.into_iter().rev().filter(|folder| !folder.as_os_str().is_empty())
            {
                let _ = workspace.unlock(folder);
            }
            workspace.remove_file(path).or(Ok(()))
        }
        removed => removed,
    }
}

/// A socket in a folder of its own that the sandbox's user may enter, and the same opened by its path.
fn listen(folder: &Path, owner: Owner) -> std::io::Result<(UnixListener, OwnedFd)> {
    let folder = Workspace::create(folder, owner)?;
    // The way through the open folder is short; a path of a socket has some hundred bytes at most.
    let path = format!("/proc/self/fd/{}/{SOCKET}", folder.dir().as_raw_fd());
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    if let Owner::Sandbox { uid, gid } = owner {
        std::os::unix::fs::lchown(&path, Some(uid), Some(gid))?;
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok((listener, rustix::fs::open(&path, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::workspace::testing::as_ordinary_user;

    #[test]
    fn a_repositorys_own_file_is_taken_away_wherever_the_command_has_put_it() {
        as_ordinary_user(|| {
            let folder = tempfile::tempdir().unwrap();
            let workspace = Workspace::create(&folder.path().join("w"), Owner::Service).unwrap();
            let root = workspace.root();
            for name in ["closed/deep", "read", "swapped"] {
                fs::create_dir_all(root.join(name)).unwrap();
            }
            for name in ["closed/deep/f", "read/f", "plain"] {
                fs::write(root.join(name), "old").unwrap();
            }
            for (name, mode) in [("read", 0o555), ("closed/deep", 0o000), ("closed", 0o000)] {
                fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
            }
            for path in ["closed/deep/f", "read/f", "plain", "plain/f", "swapped", "none/f"] {
                take_away(&workspace, Path::new(path)).unwrap();
            }
            assert!(!root.join("closed/deep/f").exists() && !root.join("read/f").exists());
            assert!(!root.join("plain").exists() && root.join("swapped").is_dir());
        });
    }
}
