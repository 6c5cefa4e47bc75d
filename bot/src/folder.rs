//! A job's own folder: what stays (transcript, patch, output of the tests) and what goes when the job stops (workspaces, and
//! what they are made from).

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::job::JobId;
use crate::workspace::{Owner, Workspace, scratch_beside};

const TRANSCRIPT: &str = "transcript.jsonl";

/// The folder of one job.
#[derive(Debug, Clone)]
pub struct Folder {
    root: PathBuf,
    owner: Owner,
}

impl Folder {
    /// A folder that need not exist yet.
    pub fn new(root: PathBuf, owner: Owner) -> Self {
        Self { root, owner }
    }

    /// Makes it, without what an earlier attempt left to be removed.
    ///
    /// # Errors
    /// The disk does not let it.
    pub async fn make(self) -> std::io::Result<Self> {
        self.clear().await?;
        make_way(&self.runs(), self.owner)?;
        Ok(self)
    }

    /// Writes a file of the folder that stays, for the service alone.
    ///
    /// # Errors
    /// The disk says no.
    pub fn keep(path: &Path, text: &str) -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(text.as_bytes())
    }

    /// Removes every workspace in it and what they are made from; what is kept stays.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub async fn clear(&self) -> std::io::Result<()> {
        let folder = self.clone();
        let cleared = tokio::task::spawn_blocking(move || folder.clear_blocking()).await;
        cleared.map_err(std::io::Error::other)?
    }

    /// Removes it with all that is in it, workspaces first.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub async fn remove(&self) -> std::io::Result<()> {
        self.clear().await?;
        let root = self.root.clone();
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(root)).await;
        match removed.map_err(std::io::Error::other)? {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn clear_blocking(&self) -> std::io::Result<()> {
        let runs = match std::fs::read_dir(self.runs()) {
            Ok(entries) => {
                entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let own = [self.workspace(), scratch_beside(&self.workspace())];
        for place in runs.into_iter().chain(own) {
            match Workspace::open(&place, self.owner) {
                Ok(left_over) => left_over.remove().map_err(std::io::Error::other)?,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        // Only the bot writes into the stock.
        for removed in [std::fs::remove_dir_all(self.stock()), std::fs::remove_dir(self.runs())] {
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Where the agent works.
    pub fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    /// Where the bot's own test runs have their workspaces.
    pub fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// What its workspaces are made from, for the service alone.
    pub fn stock(&self) -> PathBuf {
        self.root.join("stock")
    }

    /// The record of the session.
    pub fn transcript(&self) -> PathBuf {
        self.root.join(TRANSCRIPT)
    }

    /// The patch, as a unified diff.
    pub fn patch(&self) -> PathBuf {
        self.root.join("patch.diff")
    }

    /// What the bot's own test runs printed.
    pub fn test_log(&self) -> PathBuf {
        self.root.join("tests.log")
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// Where the folder of a job is in the data folder.
pub fn of_job(data: &Path, job: JobId) -> PathBuf {
    data.join("jobs").join(job.to_string())
}

/// Where the record of a job's session is in the data folder.
pub fn transcript_of(data: &Path, job: JobId) -> PathBuf {
    of_job(data, job).join(TRANSCRIPT)
}

/// Makes a folder on the way to workspaces.
///
/// # Errors
/// The disk says no.
pub fn make_way(folder: &Path, owner: Owner) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(way_mode(owner)).create(folder)
}

/// Opens a folder that is on the way to workspaces.
///
/// # Errors
/// The folder is not ours.
pub fn open_way(folder: &Path, owner: Owner) -> std::io::Result<()> {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(way_mode(owner)))
}

/// A patched bubblewrap resolves the way to a workspace as the sandbox's user, so he must be let through and see names.
/// What lies beside the way has permissions of its own.
fn way_mode(owner: Owner) -> u32 {
    match owner {
        Owner::Service => 0o700,
        Owner::Sandbox { .. } => 0o755,
    }
}

#[cfg(test)]
mod tests {
    use super::Folder;
    use crate::workspace::Owner;

    #[tokio::test]
    async fn clearing_takes_the_stock_and_keeps_the_record() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::new(data.path().join("7"), Owner::Service).make().await.unwrap();
        Folder::keep(&folder.transcript(), "{}\n").unwrap();
        std::fs::create_dir_all(folder.stock().join("half.new")).unwrap();
        folder.clear().await.unwrap();
        assert!(!folder.stock().exists() && !folder.runs().exists());
        assert!(folder.transcript().exists());
        folder.clear().await.unwrap();
    }
}
