//! What a workspace does with ordinary and with hostile content. The tests make their trees by plain file access.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode};

use super::testing::as_ordinary_user;
use super::{Error, Kind, Limits, Owner, Refusal, Workspace, is_partial, relative, write};

const LIMITS: Limits = Limits { entries: 1000, depth: 16 };

/// A workspace with a secret beside it.
struct Place {
    folder: tempfile::TempDir,
    workspace: Workspace,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "canary").unwrap();
        let workspace = Workspace::create(&folder.path().join("w"), Owner::Service).unwrap();
        Self { folder, workspace }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.workspace.root().join(name)
    }

    fn secret(&self) -> PathBuf {
        self.folder.path().join("secret")
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        self.workspace.read(Path::new(path), 1000)
    }

    fn write(&self, path: &str) -> Result<(), Error> {
        self.workspace.write(Path::new(path), b"new")
    }

    fn names(&self) -> Vec<String> {
        let walk = self.workspace.walk(Path::new("."), LIMITS).unwrap();
        walk.map(|entry| {
            entry.map_or_else(|error| error.to_string(), |entry| entry.path.display().to_string())
        })
        .collect()
    }
}

#[test]
fn a_path_is_beneath_the_workspace_or_refused_by_its_text() {
    let long_name = "n".repeat(256);
    let long = "n/".repeat(2500);
    let deep = "n/".repeat(129);
    let table: &[(&str, Result<&str, Refusal>)] = &[
        ("a/b.rs", Ok("a/b.rs")),
        ("./a//b/.", Ok("a/b")),
        ("a/../b", Ok("b")),
        (".", Ok("")),
        ("/workspace", Ok("")),
        ("/workspace/a", Ok("a")),
        ("/workspace/../workspace/a", Ok("a")),
        ("..a/...", Ok("..a/...")),
        ("a\n\u{1b}[0m", Ok("a\n\u{1b}[0m")),
        ("", Err(Refusal::Empty)),
        ("..", Err(Refusal::Outside)),
        ("a/../../x", Err(Refusal::Outside)),
        ("../workspace/a", Err(Refusal::Outside)),
        ("/", Err(Refusal::Outside)),
        ("/etc/passwd", Err(Refusal::Outside)),
        ("/workspace-evil/a", Err(Refusal::Outside)),
        ("/workspace/../etc/passwd", Err(Refusal::Outside)),
        ("a\0b", Err(Refusal::Nul)),
        (&long_name, Err(Refusal::LongName)),
        (&long, Err(Refusal::Long)),
        (&deep, Err(Refusal::Deep)),
    ];
    for (given, expected) in table {
        match (relative(Path::new(given)), expected) {
            (Ok(path), Ok(expected)) => assert_eq!(path, Path::new(expected), "{given:?}"),
            (Err(Error::Refused { reason, .. }), Err(expected)) => {
                assert_eq!(reason, *expected, "{given:?}")
            }
            (answer, expected) => panic!("{given:?}: {answer:?} is not {expected:?}"),
        }
    }
}

#[test]
fn a_refused_path_is_shown_shortened() {
    let error = relative(Path::new(&"x".repeat(1_000_000))).unwrap_err();
    assert!(error.to_string().len() < 400, "{error}");
}

#[test]
fn a_file_is_read_whole_or_not_at_all() {
    let place = Place::new();
    fs::write(place.path("f"), [b'x'; 1000]).unwrap();
    assert_eq!(place.read("f").unwrap().len(), 1000);
    fs::write(place.path("f"), [b'x'; 1001]).unwrap();
    assert!(matches!(
        place.read("f"),
        Err(Error::TooLarge { size_bytes: 1001, limit_bytes: 1000, .. })
    ));
    assert!(matches!(place.read("none"), Err(Error::Missing { .. })));
    assert!(matches!(place.read("f/x"), Err(Error::NotFolder { .. })));
    assert!(matches!(place.read("."), Err(Error::Folder { .. })));
}

#[test]
fn a_sparse_file_of_ten_gigabytes_is_refused_unread() {
    let place = Place::new();
    fs::File::create(place.path("f")).unwrap().set_len(10 << 30).unwrap();
    let answer = place.workspace.read(Path::new("f"), 64 << 20);
    assert!(matches!(answer, Err(Error::TooLarge { size_bytes: 10_737_418_240, .. })));
}

#[test]
fn pipes_sockets_and_devices_are_refused_at_once() {
    let place = Place::new();
    rustix::fs::mknodat(CWD, place.path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
    let mut names = vec!["pipe", "socket"];
    // Only root makes devices.
    if rustix::fs::mknodat(CWD, place.path("null"), FileType::CharacterDevice, Mode::RWXU, 0x103)
        .is_ok()
    {
        names.push("null");
    }
    for name in names {
        assert!(matches!(place.read(name), Err(Error::Special { .. })), "{name}");
        assert!(matches!(place.write(name), Err(Error::Special { .. })), "{name}");
    }
}

#[test]
fn no_link_is_followed_by_a_read() {
    let place = Place::new();
    fs::create_dir(place.path("d")).unwrap();
    fs::write(place.path("d/f"), "inside").unwrap();
    symlink(place.secret(), place.path("absolute")).unwrap();
    symlink("../secret", place.path("upward")).unwrap();
    symlink(place.folder.path(), place.path("folder")).unwrap();
    symlink("/proc/self/root", place.path("magic")).unwrap();
    symlink("d", place.path("inner-folder")).unwrap();
    symlink("d/f", place.path("inner")).unwrap();
    for path in [
        "absolute",
        "upward",
        "folder/secret",
        "magic/etc/passwd",
        "inner-folder/f",
        "inner",
        "folder/../d/../inner",
    ] {
        assert!(matches!(place.read(path), Err(Error::Link { .. })), "{path}");
    }
    assert_eq!(place.workspace.read_link(Path::new("upward")).unwrap(), Path::new("../secret"));
    assert!(place.workspace.read_link(Path::new("folder/secret")).is_err());
}

#[test]
fn a_write_replaces_a_link_and_never_passes_through_one() {
    let place = Place::new();
    symlink(place.secret(), place.path("link")).unwrap();
    symlink(place.folder.path(), place.path("folder")).unwrap();
    place.write("link").unwrap();
    assert_eq!(fs::read(place.path("link")).unwrap(), b"new");
    assert!(fs::symlink_metadata(place.path("link")).unwrap().is_file());
    for path in ["folder/secret", "folder/made/f"] {
        let error = place.write(path).unwrap_err();
        assert!(matches!(error, Error::Link { .. } | Error::NotFolder { .. }), "{path}: {error}");
    }
    assert_eq!(fs::read(place.secret()).unwrap(), b"canary");
    assert!(!place.folder.path().join("made").exists());
}

#[test]
fn a_removal_takes_a_link_itself_and_never_passes_through_one() {
    let place = Place::new();
    let remove = |path: &str| place.workspace.remove_file(Path::new(path));
    symlink(place.secret(), place.path("link")).unwrap();
    symlink(place.folder.path(), place.path("folder")).unwrap();
    fs::create_dir_all(place.path("a/b")).unwrap();
    fs::write(place.path("a/f"), "old").unwrap();
    for path in ["link", "a/f", "a/none", "none/f"] {
        remove(path).unwrap();
    }
    assert!(matches!(remove("folder/secret"), Err(Error::Link { .. } | Error::NotFolder { .. })));
    assert!(matches!(remove("a/b"), Err(Error::Folder { .. })));
    assert!(matches!(remove("."), Err(Error::Folder { .. })));
    assert!(matches!(remove("../secret"), Err(Error::Refused { .. })));
    assert_eq!(fs::read(place.secret()).unwrap(), b"canary");
    assert_eq!(place.names(), ["a", "a/b", "folder"]);
}

#[test]
fn a_write_makes_folders_and_keeps_the_permission_bits() {
    let place = Place::new();
    place.write("a/b/c.txt").unwrap();
    assert_eq!(fs::read(place.path("a/b/c.txt")).unwrap(), b"new");
    assert_eq!(fs::metadata(place.path("a/b/c.txt")).unwrap().mode() & 0o7777, 0o644);
    assert_eq!(fs::metadata(place.path("a/b")).unwrap().mode() & 0o7777, 0o755);
    fs::write(place.path("run.sh"), "old").unwrap();
    fs::set_permissions(place.path("run.sh"), fs::Permissions::from_mode(0o4751)).unwrap();
    place.write("run.sh").unwrap();
    assert_eq!(fs::metadata(place.path("run.sh")).unwrap().mode() & 0o7777, 0o751);
    assert_eq!(place.names(), ["a", "a/b", "a/b/c.txt", "run.sh"], "nothing else stays behind");
    let (name, _file) = write::fresh_file(place.workspace.dir(), Path::new("x")).unwrap();
    assert!(is_partial(name.as_encoded_bytes()), "{name:?}");
}

#[test]
fn a_write_to_a_folder_or_below_a_file_or_to_a_hard_link_fails_and_leaves_nothing() {
    let place = Place::new();
    fs::create_dir(place.path("d")).unwrap();
    fs::write(place.path("f"), "old").unwrap();
    fs::hard_link(place.path("f"), place.path("g")).unwrap();
    assert!(matches!(place.write("d"), Err(Error::Folder { .. })));
    assert!(matches!(place.write("."), Err(Error::Folder { .. })));
    assert!(matches!(place.write("f/x"), Err(Error::NotFolder { .. })));
    assert!(matches!(place.write("g"), Err(Error::HardLinked { links: 2, .. })));
    assert_eq!(fs::read(place.path("f")).unwrap(), b"old");
    assert_eq!(place.names(), ["d", "f", "g"]);
}

#[test]
fn what_is_made_belongs_to_the_sandbox_user() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root hands files over");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let owner = Owner::Sandbox { uid: 12_345, gid: 12_346 };
    let workspace = Workspace::create(&folder.path().join("w"), owner).unwrap();
    workspace.write(Path::new("a/f"), b"x").unwrap();
    for path in ["w", "w/a", "w/a/f"] {
        let status = fs::metadata(folder.path().join(path)).unwrap();
        assert_eq!((status.uid(), status.gid()), (12_345, 12_346), "{path}");
    }
}

#[test]
fn a_walk_shows_everything_in_the_order_of_bytes_and_follows_nothing() {
    let place = Place::new();
    fs::create_dir_all(place.path("b/deep")).unwrap();
    fs::write(place.path("b/deep/f"), "").unwrap();
    fs::write(place.path("b.txt"), "four").unwrap();
    fs::write(place.path("A"), "").unwrap();
    fs::write(place.path("line\nbreak"), "").unwrap();
    fs::write(place.workspace.root().join(OsStr::from_bytes(b"\xff")), "").unwrap();
    symlink(place.folder.path(), place.path("up")).unwrap();
    assert_eq!(
        place.names(),
        ["A", "b", "b/deep", "b/deep/f", "b.txt", "line\nbreak", "up", "\u{fffd}"]
    );
    let entries: Vec<_> =
        place.workspace.walk(Path::new("."), LIMITS).unwrap().map(Result::unwrap).collect();
    assert_eq!(entries.last().unwrap().path.as_os_str().as_bytes(), b"\xff");
    assert_eq!(entries[4].metadata.size_bytes, 4);
    assert_eq!(entries[6].metadata.kind, Kind::Symlink);
    assert_eq!((entries[0].depth, entries[3].depth), (1, 3));
    assert!(matches!(
        place.workspace.walk(Path::new("up"), LIMITS),
        Err(Error::Link { .. } | Error::NotFolder { .. })
    ));
    let below: Vec<_> = place
        .workspace
        .walk(Path::new("b"), LIMITS)
        .unwrap()
        .map(|entry| entry.unwrap().path)
        .collect();
    assert_eq!(below, [Path::new("b/deep"), Path::new("b/deep/f")]);
}

#[test]
fn a_walk_leaves_out_the_folder_that_its_caller_skips() {
    let place = Place::new();
    fs::create_dir_all(place.path(".git/objects")).unwrap();
    fs::write(place.path("f"), "").unwrap();
    let mut walk = place.workspace.walk(Path::new("."), LIMITS).unwrap();
    assert_eq!(walk.next().unwrap().unwrap().path, Path::new(".git"));
    walk.skip_folder();
    assert_eq!(walk.next().unwrap().unwrap().path, Path::new("f"));
    assert!(walk.next().is_none());
}

#[test]
fn a_walk_stays_within_its_limits() {
    let place = Place::new();
    for n in 0..100 {
        fs::create_dir_all(place.path(&format!("many/{n}/x"))).unwrap();
    }
    let limits = Limits { entries: 150, depth: 3 };
    let mut walk = place.workspace.walk(Path::new("."), limits).unwrap();
    let last = walk.by_ref().filter_map(Result::err).last().unwrap();
    assert!(matches!(last, Error::TooMany { limit: 150, .. }), "{last}");
    assert!(walk.next().is_none());
    let limits = Limits { entries: 1000, depth: 2 };
    let deep =
        place.workspace.walk(Path::new("."), limits).unwrap().filter_map(Result::err).count();
    assert_eq!(deep, 100, "each folder on the last level says that it was not entered");
}

#[test]
fn a_closed_folder_is_one_error_and_the_walk_goes_on() {
    if rustix::process::getuid().is_root() {
        eprintln!("skipped: nothing is closed to root");
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("closed")).unwrap();
    fs::set_permissions(place.path("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::write(place.path("f"), "").unwrap();
    assert_eq!(place.names(), ["closed", "cannot open `closed`: permission denied", "f"]);
    place.workspace.remove().unwrap();
}

/// Makes a chain of folders that no path could name.
fn chain(at: &Path, n_folders: usize) {
    let mut dir = rustix::fs::open(at, rustix::fs::OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..n_folders {
        rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, "d", rustix::fs::OFlags::PATH, Mode::empty()).unwrap();
    }
}

#[test]
fn a_tree_of_any_depth_and_any_modes_is_removed() {
    let place = Place::new();
    chain(place.workspace.root(), 5000);
    fs::create_dir_all(place.path("closed/inner/.hyla-removed-1")).unwrap();
    fs::write(place.path("closed/inner/f"), "").unwrap();
    fs::write(place.path(".hyla-removed-2"), "").unwrap();
    fs::create_dir_all(place.path(".hyla-removed-3/x/y/z")).unwrap();
    symlink(place.folder.path(), place.path("closed/up")).unwrap();
    rustix::fs::mknodat(CWD, place.path("pipe"), FileType::Fifo, Mode::empty(), 0).unwrap();
    for path in ["closed/inner", "closed", ""] {
        fs::set_permissions(place.path(path), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let root = place.workspace.root().to_owned();
    place.workspace.remove().unwrap();
    assert!(!root.exists());
    assert_eq!(fs::read(place.folder.path().join("secret")).unwrap(), b"canary");
}

#[test]
fn a_workspace_that_the_agent_closed_opens_again() {
    for mode in [0o000, 0o400, 0o644, 0o300] {
        let place = Place::new();
        fs::create_dir(place.path("d")).unwrap();
        fs::write(place.path("d/f"), "inside").unwrap();
        fs::write(place.path("closed"), "inside").unwrap();
        fs::set_permissions(place.path("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        let close = || {
            fs::set_permissions(place.workspace.root(), fs::Permissions::from_mode(mode)).unwrap();
        };
        close();
        as_ordinary_user(|| {
            assert_eq!(place.read("d/f").unwrap(), b"inside");
            close();
            place.write("d/g").unwrap();
            close();
            let again = Workspace::open(place.workspace.root(), Owner::Service).unwrap();
            assert_eq!(again.walk(Path::new("."), LIMITS).unwrap().count(), 4);
            let closed = Path::new("closed");
            assert!(matches!(again.read(closed, 100), Err(Error::Denied { .. })));
            again.unlock(closed).unwrap();
            assert_eq!(again.read(closed, 100).unwrap(), b"inside");
            close();
            again.remove().unwrap();
        });
    }
}

#[test]
fn a_link_in_the_workspaces_own_place_does_not_open() {
    let place = Place::new();
    symlink(place.workspace.root(), place.folder.path().join("link")).unwrap();
    assert!(Workspace::open(&place.folder.path().join("link"), Owner::Service).is_err());
}

/// Swaps a file and a folder with links to the outside, while the host reads, writes and walks.
#[test]
fn a_race_of_renames_never_reaches_outside() {
    let place = Place::new();
    fs::create_dir(place.folder.path().join("outside")).unwrap();
    fs::write(place.folder.path().join("outside/f"), "canary").unwrap();
    fs::create_dir(place.path("d")).unwrap();
    fs::write(place.path("d/f"), "inside").unwrap();
    symlink("../outside", place.path("fake")).unwrap();
    let done = AtomicBool::new(false);
    let (mut seen, mut n_refused) = (BTreeSet::new(), 0);
    // Nothing in the scope may panic: the other thread would never end.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let _ =
                    rustix::fs::renameat_with(CWD, place.path("d"), CWD, place.path("fake"), flags);
            }
        });
        for turn in 0..20_000 {
            match place.read("d/f") {
                Ok(bytes) => drop(seen.insert(bytes)),
                Err(_) => n_refused += 1,
            }
            if turn % 20 == 0 {
                drop(place.write("d/f"));
                drop(place.write("d/made/g"));
                let walk = place.workspace.walk(Path::new("."), LIMITS);
                drop(walk.map(Iterator::count));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!seen.is_empty() && n_refused > 0, "both sides were met: {seen:?} and {n_refused}");
    assert!(!seen.contains(&b"canary"[..]), "{seen:?}");
    assert_eq!(fs::read(place.folder.path().join("outside/f")).unwrap(), b"canary");
    assert_eq!(fs::read_dir(place.folder.path().join("outside")).unwrap().count(), 1);
    place.workspace.remove().unwrap();
    assert_eq!(fs::read_dir(place.folder.path().join("outside")).unwrap().count(), 1);
}

#[test]
fn without_openat2_every_access_fails_and_says_why() {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    for errno in [rustix::io::Errno::NOSYS, rustix::io::Errno::PERM] {
        let place = Place::new();
        fs::write(place.path("f"), "inside").unwrap();
        let action = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
        let architecture = std::env::consts::ARCH.try_into().unwrap();
        // The number is the same on every architecture.
        let rules = [(437, vec![])].into();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, architecture).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        std::thread::scope(|scope| {
            let filtered = scope.spawn(|| {
                seccompiler::apply_filter(&program).unwrap();
                let walk = place.workspace.walk(Path::new("."), LIMITS);
                [place.read("f").unwrap_err(), place.write("f").unwrap_err(), walk.unwrap_err()]
            });
            for error in filtered.join().unwrap() {
                assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            }
        });
        assert_eq!(fs::read(place.path("f")).unwrap(), b"inside");
    }
}
