//! What this process keeps for its containers: the small files that they see, the profile, and a lock by which others know
//! that it lives.
//!
//! It lies in the data folder, with a number of its own that is the label of every container of that folder: so a service
//! finds what a killed one left, and never touches what belongs to another data folder or to a process that still runs.
//! Where there is no data folder to write to, as for `hyla fix`, it is a folder for temporary files: a killed process then
//! leaves records of containers to `podman container prune`, but nothing that runs.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::super::arguments::small_files;
use super::super::{SetupError, seccomp};
use super::arguments::Mount;
use super::engine::{Engine, unusable};
use super::gone;

/// Beneath the data folder.
const NAME: &str = "oci";
const LOCK: &str = "lock";
const PROFILE: &str = "seccomp.json";
/// The label's name.
const LABEL: &str = "hyla.data";
/// In front of a container's name.
const PREFIX: &str = "hyla-";

/// The folder of this process. Dropped, it is removed.
pub(super) struct Folder {
    /// `hyla.data=` and the data folder's number.
    pub(super) label: String,
    /// What the names of this process's containers begin with.
    pub(super) prefix: String,
    pub(super) profile: String,
    /// The small files, by where a container sees them.
    pub(super) mounts: Vec<Mount>,
    own: PathBuf,
    _lock: File,
    /// The whole of it, where there is no data folder.
    _temporary: Option<tempfile::TempDir>,
}

impl Folder {
    /// Makes it, and removes the containers of processes of the same data folder that no longer live.
    ///
    /// # Errors
    /// It cannot be written, or a container that was left cannot be removed.
    pub(super) fn make(data: &Path, user: (u32, u32), engine: &Engine) -> Result<Self, SetupError> {
        let (root, temporary) = root(data).map_err(|error| wrong(data, &error))?;
        let folder = Self::make_in(&root, temporary, user).map_err(|error| wrong(&root, &error))?;
        clear(&root, &folder, engine)?;
        Ok(folder)
    }

    fn make_in(
        root: &Path,
        temporary: Option<tempfile::TempDir>,
        user: (u32, u32),
    ) -> io::Result<Self> {
        let number = number(root)?;
        // No other process takes a folder for a dead one's between its making and its locking.
        let guard = open(&root.join("guard"))?;
        guard.lock()?;
        let own = tempfile::Builder::new().prefix("").rand_bytes(12).tempdir_in(root)?.keep();
        let lock = open(&own.join(LOCK))?;
        lock.lock()?;
        let mut mounts = Vec::new();
        for (path, text) in small_files(user) {
            let file = own.join(Path::new(path).file_name().unwrap_or_default());
            write(&file, text.as_bytes())?;
            mounts.push(Mount::new(&file, path, false)?);
        }
        let profile = own.join(PROFILE);
        let rules = seccomp::profile().map_err(io::Error::other)?;
        write(&profile, &serde_json::to_vec(&rules)?)?;
        let name = own.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        Ok(Self {
            label: format!("{LABEL}={number}"),
            prefix: format!("{PREFIX}{name}-"),
            profile: profile.to_string_lossy().into_owned(),
            mounts,
            own,
            _lock: lock,
            _temporary: temporary,
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is removed by the next process.
        let _ = fs::remove_dir_all(&self.own);
    }
}

fn wrong(folder: &Path, error: &io::Error) -> SetupError {
    unusable(
        format!("cannot prepare the folder for containers in `{}`: {error}", folder.display()),
        "let the service's user write there".into(),
    )
}

/// The folder in the data folder, or one for temporary files.
fn root(data: &Path) -> io::Result<(PathBuf, Option<tempfile::TempDir>)> {
    let root = data.join(NAME);
    match fs::DirBuilder::new().mode(0o700).create(&root) {
        Ok(()) => return Ok((root, None)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if rustix::fs::access(&root, rustix::fs::Access::WRITE_OK).is_ok() {
                return Ok((root, None));
            }
        }
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem => {}
            _ => return Err(error),
        },
    }
    let temporary = tempfile::tempdir()?;
    Ok((temporary.path().to_owned(), Some(temporary)))
}

/// The data folder's own number, made once: a path may be another folder on another machine that shares an engine.
fn number(root: &Path) -> io::Result<String> {
    let path = root.join("id");
    let random = tempfile::Builder::new().prefix("id-").rand_bytes(24).tempfile_in(root)?;
    let name = random.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut file = random.as_file();
    file.write_all(name.trim_start_matches("id-").as_bytes())?;
    match random.persist_noclobber(&path) {
        Ok(_) => {}
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.error),
    }
    let number = fs::read_to_string(&path)?;
    let is_number =
        !number.is_empty() && number.chars().all(|letter| letter.is_ascii_alphanumeric());
    if is_number {
        return Ok(number);
    }
    Err(io::Error::other(format!("`{}` holds no number; remove it", path.display())))
}

/// Removes what dead processes left: their containers, then their folders.
fn clear(root: &Path, folder: &Folder, engine: &Engine) -> Result<(), SetupError> {
    let guard = open(&root.join("guard")).and_then(|guard| guard.lock().map(|()| guard));
    let _guard = guard.map_err(|error| wrong(root, &error))?;
    let left = |error: io::Error| {
        unusable(
            format!("cannot remove a container that a killed process left: {error}"),
            format!("remove it by hand; the containers have the label `{}`", folder.label),
        )
    };
    let filter = format!("label={}", folder.label);
    let names = engine.told(&["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"]);
    for name in names.map_err(left)?.lines().map(str::trim).filter(|name| !name.is_empty()) {
        if is_dead(root, name) {
            engine.told(&["rm", "--force", name]).map_err(left)?;
            if !gone(engine, name).map_err(left)? {
                return Err(left(io::Error::other(format!("`{name}` is still there"))));
            }
            tracing::warn!(container = name, "removed a container that a killed process left");
        }
    }
    for entry in fs::read_dir(root).into_iter().flatten().filter_map(Result::ok) {
        let path = entry.path();
        if path.join(LOCK).exists() && !is_locked(&path) {
            // What stays takes a few small files of room.
            let _ = fs::remove_dir_all(path);
        }
    }
    Ok(())
}

/// Whether the process is dead that started a container of this name.
fn is_dead(root: &Path, name: &str) -> bool {
    let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
    let folders = fs::read_dir(root).into_iter().flatten().filter_map(Result::ok);
    let is_owner = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        Some(name.as_str()) == owner
    };
    let owners: Vec<PathBuf> =
        folders.map(|entry| entry.path()).filter(|path| is_owner(path)).collect();
    !owners.iter().any(|path| is_locked(path))
}

/// Whether the process of a folder lives.
fn is_locked(folder: &Path) -> bool {
    let Ok(lock) = File::open(folder.join(LOCK)) else { return false };
    matches!(lock.try_lock(), Err(TryLockError::WouldBlock))
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// Writes a file that a container sees, whoever is root there.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::options().create_new(true).write(true).mode(0o444).open(path)?;
    file.write_all(content)
}
