//! What an agent could leave in a workspace, imported: whatever it is, the import ends, takes nothing from outside, and no
//! path of the patch is one that a repository must not have.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use bot::checkout::{Base, Mirrors};
use bot::patch::{Limits, Patch, import};
use bot::workspace::Owner;

const SECRET: &[u8] = b"the secret outside";
const NAMES: [&[u8]; 24] = [
    b"a.txt",
    b"dir",
    b"dir/b.txt",
    b"link",
    b"run.sh",
    b"new.txt",
    b"x",
    b"x/y",
    b".git",
    b".git/config",
    b".GIT",
    b"git~1",
    b".g\xe2\x80\x8cit",
    b"dir/.git/HEAD",
    b"vendor/.git",
    b".gitmodules",
    b".gitattributes",
    b".gitignore",
    b"aux",
    b"end.",
    b"A.txt",
    b"\xff\xfe",
    b"node_modules/m.js",
    b"line\nbreak",
];

/// A repository, and a secret beside its workspaces.
pub(crate) struct World {
    folder: tempfile::TempDir,
    base: Base,
    runtime: tokio::runtime::Runtime,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("the temp folder can be written");
        let repository = folder.path().join("repository");
        std::fs::create_dir_all(repository.join("dir")).expect("the folder is ours");
        std::fs::write(folder.path().join("secret"), SECRET).expect("the folder is ours");
        for (path, content) in [
            ("a.txt", "one\n"),
            ("dir/b.txt", "two\n"),
            ("run.sh", "#!/bin/sh\n"),
            (".gitignore", "*.log\n"),
        ] {
            std::fs::write(repository.join(path), content).expect("the folder is ours");
        }
        symlink("a.txt", repository.join("link")).expect("the folder is ours");
        for arguments in [
            &["init", "--quiet"][..],
            &["add", "--all"],
            &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "x"],
        ] {
            let done = Command::new("git").args(arguments).current_dir(&repository).status();
            assert!(done.expect("git is installed").success());
        }
        let runtime =
            tokio::runtime::Builder::new_current_thread().build().expect("a thread starts");
        let mirrors = Mirrors::new(folder.path().join("mirrors"));
        let local = runtime.block_on(mirrors.adopt_local(&repository)).expect("it is a repository");
        Self { folder, base: local.base, runtime }
    }

    /// Each act is a byte for what, one for where, one for how much of what follows is its content.
    pub(crate) fn run(&self, acts: &[u8]) -> Patch {
        let root = self.folder.path().join("workspace");
        let Base { mirror, commit, .. } = &self.base;
        let stock = self.base.stock(self.folder.path().join("stock"));
        let made = self.runtime.block_on(stock.workspace(commit, &root, Owner::Service));
        let workspace = made.expect("the folder is ours");
        let mut rest = acts;
        while let [what, place, n_bytes, more @ ..] = rest {
            let (content, next) = more.split_at(more.len().min(usize::from(*n_bytes)));
            self.act(&root, *what, *place, content);
            rest = next;
        }
        let limits = Limits { entries: 500, ..Limits::for_gate(&config()) };
        let patch = self.runtime.block_on(import(&workspace, mirror, commit, &limits));
        let patch = patch.expect("what an agent leaves is no error");
        judge(&patch);
        let outside = std::fs::read(self.folder.path().join("secret")).expect("it is there");
        assert_eq!(outside, SECRET);
        workspace.remove().expect("it is ours");
        patch
    }

    /// Does it as an agent would, who cares for no error.
    fn act(&self, root: &Path, what: u8, place: u8, content: &[u8]) {
        let own = content.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = NAMES.get(usize::from(place)).copied().unwrap_or(own);
        let Some(path) = beneath(root, name) else { return };
        if matches!(what % 8, 0 | 6) && path.is_symlink() {
            // Writing would follow it, which an agent in its sandbox cannot.
            let _ = std::fs::remove_file(&path);
        }
        let _ = match what % 8 {
            0 => std::fs::write(&path, content),
            1 => std::fs::create_dir(&path),
            2 => symlink(OsStr::from_bytes(own), &path),
            3 => symlink(self.folder.path().join("secret"), &path),
            4 => std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path)),
            5 => mode(&path, content.first().copied().unwrap_or(0)),
            6 => std::fs::File::create(&path).and_then(|file| file.set_len(1 << 40)),
            _ => std::fs::hard_link(root.join("a.txt"), &path),
        };
    }
}

fn config() -> config::Gate {
    config::Gate::default()
}

/// The path, where it leads through no link: the test itself must stay inside.
fn beneath(root: &Path, name: &[u8]) -> Option<PathBuf> {
    let mut path = root.to_owned();
    for part in name.split(|byte| *byte == b'/') {
        if path.is_symlink() || matches!(part, b"" | b"." | b"..") {
            return None;
        }
        path.push(OsStr::from_bytes(part));
    }
    let parent = path.parent()?;
    if parent != root && !parent.is_symlink() {
        let _ = std::fs::create_dir_all(parent);
    }
    Some(path)
}

fn mode(path: &Path, bits: u8) -> std::io::Result<()> {
    if path.is_symlink() {
        return Ok(());
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(u32::from(bits) << 1))
}

fn judge(patch: &Patch) {
    for change in &patch.changes {
        let is_sound = |part: &str| {
            !part.is_empty() && part != "." && part != ".." && !part.eq_ignore_ascii_case(".git")
        };
        assert!(change.path.split('/').all(is_sound), "{:?} is in the patch", change.path);
        let taken = change.added_bytes.windows(SECRET.len()).any(|bytes| bytes == SECRET);
        assert!(!taken, "{:?} brings what lies outside", change.path);
        let is_barred = patch.barred.iter().any(|barred| barred.path == change.path);
        assert!(!is_barred, "{:?} is barred and in the patch", change.path);
    }
}
