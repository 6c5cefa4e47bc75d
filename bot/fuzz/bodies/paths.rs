//! A path as a model writes it, given to the file tools: it leads to what is inside, or it is refused.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Component, Path};

use bot::workspace::{Error, Limits, Owner, Workspace, relative};

const SECRET: &[u8] = b"the secret outside";
const INSIDE: &[u8] = b"inside";

/// A workspace with links to every place that it must not lead to, and a secret beside it.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    workspace: Workspace,
}

/// What became of a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is a file of the workspace.
    Inside,
    /// By its text it is beneath the workspace; there is no file, or a link on the way.
    Nothing,
    /// By its text it is not beneath the workspace.
    Refused,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("the temp folder can be written");
        let outside = folder.path().join("workspace-evil");
        std::fs::create_dir(&outside).expect("the folder is ours");
        std::fs::write(outside.join("f"), SECRET).expect("the folder is ours");
        let root = folder.path().join("workspace");
        let workspace = Workspace::create(&root, Owner::Service).expect("the folder is ours");
        std::fs::create_dir_all(root.join("d/e")).expect("the folder is ours");
        std::fs::create_dir(root.join(".git")).expect("the folder is ours");
        for path in ["f", "d/f", "d/e/f", ".git/f", "w"] {
            std::fs::write(root.join(path), INSIDE).expect("the folder is ours");
        }
        for (target, link) in [
            (outside.as_path(), "out"),
            (&outside.join("f"), "g"),
            (Path::new("../workspace-evil"), "d/up"),
            (Path::new("/proc/self/root"), "root"),
            (Path::new("/proc/self/cwd"), "cwd"),
            (Path::new(".."), "parent"),
            (Path::new("d"), "inner"),
        ] {
            symlink(target, root.join(link)).expect("the folder is ours");
        }
        Self { folder, workspace }
    }

    pub(crate) fn run(&self, bytes: &[u8]) -> Outcome {
        let path = Path::new(OsStr::from_bytes(bytes));
        let outcome = self.look(path);
        let outside = self.folder.path().join("workspace-evil");
        assert_eq!(std::fs::read(outside.join("f")).expect("it is there"), SECRET, "{path:?}");
        let n_outside = std::fs::read_dir(&outside).expect("it is there").count();
        let n_beside = std::fs::read_dir(self.folder.path()).expect("it is there").count();
        assert_eq!((n_outside, n_beside), (1, 2), "{path:?} has made something outside");
        outcome
    }

    fn look(&self, path: &Path) -> Outcome {
        let beneath = match relative(path) {
            Ok(beneath) => beneath,
            Err(error) => {
                assert!(matches!(error, Error::Refused { .. }) && error.to_string().len() < 2000);
                // What is refused by its text is refused by every tool.
                assert!(self.workspace.read(path, 100).is_err(), "{path:?}");
                assert!(self.workspace.write(path, INSIDE).is_err(), "{path:?}");
                assert!(self.workspace.read_link(path).is_err(), "{path:?}");
                return Outcome::Refused;
            }
        };
        assert!(beneath.components().all(|part| matches!(part, Component::Normal(_))));
        assert_eq!(relative(&beneath.join(".")).expect("it is one already"), beneath);
        if let Ok(target) = self.workspace.read_link(path) {
            let link = self.workspace.root().join(&beneath);
            assert_eq!(std::fs::read_link(link).expect("it is one"), target);
        }
        let limits = Limits { entries: 100, depth: 4 };
        for entry in self.workspace.walk(path, limits).into_iter().flatten().flatten() {
            assert!(entry.path.starts_with(&beneath), "{path:?} leads to {:?}", entry.path);
        }
        let outcome = match self.workspace.read(path, 100) {
            Ok(bytes) => {
                assert_eq!(bytes, INSIDE, "{path:?}");
                Outcome::Inside
            }
            Err(_) => Outcome::Nothing,
        };
        // A write to what is there leaves it as it was, so that the next path finds the same.
        if outcome == Outcome::Inside {
            self.workspace.write(path, INSIDE).expect("it was read");
        }
        outcome
    }

    /// Writes where nothing is, and takes it away again.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let path = Path::new(OsStr::from_bytes(bytes));
        let Ok(beneath) = relative(path) else { return };
        let place = self.workspace.root().join(&beneath);
        let is_free = beneath.components().count() == 1 && place.symlink_metadata().is_err();
        if is_free && self.workspace.write(path, INSIDE).is_ok() {
            assert_eq!(std::fs::read(&place).expect("it was written"), INSIDE, "{path:?}");
            std::fs::remove_file(&place).expect("it was written");
        }
    }
}
