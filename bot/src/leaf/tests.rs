//! Each case of the observation grammar, and what hostile content does to the tools. Commands are not run here: a
//! scripted sandbox says how they ended.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use rustix::fs::{CWD, FileType, Mode};

use super::{Arguments, Failure, Leaf, Limits};
use crate::sandbox::{Command, Confinement, End, Finished, Report, Sandbox, SetupError, Stream};
use crate::workspace::{Owner, Workspace};

const LIMITS: Limits = Limits {
    read_chars: 20_000,
    bash_chars: 30_000,
    glob_paths: 1000,
    bash_timeout: Duration::from_secs(120),
    bash_timeout_limit: Duration::from_secs(600),
};

/// Answers each command with the same end, and keeps the last command.
struct Scripted {
    finished: Mutex<Option<Finished>>,
    last: Mutex<Option<Command>>,
    confinement: Confinement,
}

#[async_trait]
impl Sandbox for Scripted {
    fn name(&self) -> String {
        "scripted".into()
    }

    fn confinement(&self) -> Confinement {
        self.confinement
    }

    async fn quiet(&self) -> Result<(), SetupError> {
        Ok(())
    }

    fn is_sure(&self) -> bool {
        true
    }

    async fn probe(&self) -> Report {
        Report { backend: "scripted".to_owned(), checks: Vec::new() }
    }

    async fn run(&self, _: &Workspace, command: &Command) -> Result<Finished, SetupError> {
        *self.last.lock().unwrap() = Some(command.clone());
        let dead = || SetupError::StillAlive { reason: "as scripted".to_owned() };
        self.finished.lock().unwrap().clone().ok_or_else(dead)
    }
}

fn finished(end: End, stdout: &[u8], stderr: &[u8]) -> Finished {
    let stream = |bytes: &[u8]| Stream { head: bytes.to_vec(), ..Stream::default() };
    Finished { end, stdout: stream(stdout), stderr: stream(stderr), elapsed: Duration::ZERO }
}

struct Place {
    _folder: tempfile::TempDir,
    workspace: Arc<Workspace>,
    sandbox: Arc<Scripted>,
    leaf: Leaf,
}

impl Place {
    fn new() -> Self {
        Self::with(LIMITS, Some(finished(End::Exited(0), b"", b"")))
    }

    fn with(limits: Limits, finished: Option<Finished>) -> Self {
        Self::kept_in(Confinement::Sealed, limits, finished)
    }

    fn kept_in(confinement: Confinement, limits: Limits, finished: Option<Finished>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "canary").unwrap();
        let workspace =
            Arc::new(Workspace::create(&folder.path().join("w"), Owner::Service).unwrap());
        let sandbox = Arc::new(Scripted {
            finished: Mutex::new(finished),
            last: Mutex::new(None),
            confinement,
        });
        let leaf =
            Leaf::new(Arc::clone(&workspace), Arc::clone(&sandbox) as Arc<dyn Sandbox>, limits);
        Self { _folder: folder, workspace, sandbox, leaf }
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.workspace.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn bytes(&self, path: &str) -> Vec<u8> {
        fs::read(self.workspace.root().join(path)).unwrap()
    }

    /// What the next command says.
    fn says(&self, words: &str) {
        *self.sandbox.finished.lock().unwrap() =
            Some(finished(End::Exited(0), words.as_bytes(), b""));
    }

    async fn call(&self, name: &str, arguments: serde_json::Value) -> String {
        self.leaf.call(name, &arguments.to_string()).await.unwrap()
    }

    async fn glob(&self, pattern: &str) -> String {
        self.call("Glob", serde_json::json!({"pattern": pattern})).await
    }
}

macro_rules! call {
    ($place:expr, $name:ident $arguments:tt) => {
        $place.call(stringify!($name), serde_json::json!($arguments)).await
    };
}

/// A command that asks where it is is told so, and the file tools take what it was told.
#[tokio::test]
async fn where_commands_see_the_workspace_at_its_own_path_the_tools_do_too() {
    for (confinement, is_own) in
        [(Confinement::Sealed, false), (Confinement::Degraded, true), (Confinement::None, true)]
    {
        let place = Place::kept_in(confinement, LIMITS, Some(finished(End::Exited(0), b"", b"")));
        place.put("src/a.rs", "one\n");
        let root = place.workspace.root().display().to_string();
        place.says(&format!("{root}/src\n"));
        let said = call!(place, Bash {"command": "cd src && pwd"});
        let inside = if is_own { root.as_str() } else { "/workspace" };
        assert!(said.contains(&format!("\n{inside}/src\n")), "{said}");
        for path in [inside, "/workspace"] {
            let read = call!(place, Read {"file_path": format!("{path}/src/a.rs")});
            assert!(read.contains("one"), "{path}: {read}");
            let found = call!(place, Glob {"pattern": format!("{path}/src/*.rs")});
            assert_eq!(found, "src/a.rs", "{path}");
        }
        for path in [format!("{root}/../secret"), format!("{root}-beside/a")] {
            let refused = call!(place, Read {"file_path": path});
            assert!(refused.starts_with("PermissionError"), "{refused}");
        }
    }
}

#[tokio::test]
async fn read_shows_the_path_and_numbered_lines() {
    let place = Place::new();
    place.put("src/a.rs", "one\n\n  three\nfour");
    let whole = "src/a.rs\n1. one\n2. \n3.   three\n4. four";
    assert_eq!(call!(place, Read {"file_path": "src/a.rs"}), whole);
    assert_eq!(call!(place, Read {"file_path": "/workspace/src/a.rs"}), whole);
    assert_eq!(call!(place, Read {"path": "./src/../src/a.rs"}), whole);
    assert_eq!(
        call!(place, Read {"file_path": "src/a.rs", "offset": 2, "limit": 2}),
        "src/a.rs\n2. \n3.   three"
    );
    assert_eq!(
        call!(place, Read {"file_path": "src/a.rs", "offset": "4", "limit": "9"}),
        "src/a.rs\n4. four"
    );
    assert_eq!(call!(place, Read {"file_path": "src/a.rs", "offset": -3, "limit": 0}), whole);
    assert_eq!(call!(place, Read {"file_path": "src/a.rs", "offset": null, "limit": -1}), whole);
    assert_eq!(call!(place, Read {"file_path": "src/a.rs", "offset": 5}), "src/a.rs\n");
    assert_eq!(call!(place, Read {"file_path": "src/a.rs", "offset": 1e300}), "src/a.rs\n");
    place.put("empty", "");
    assert_eq!(call!(place, Read {"file_path": "empty"}), "empty\n");
}

#[tokio::test]
async fn read_splits_lines_as_python_does_and_replaces_what_is_not_text() {
    let place = Place::new();
    place.put("f", b"\xef\xbb\xbfa\r\nb\x0cc\xe2\x80\xa8d\x85\re\n\n");
    assert_eq!(
        call!(place, Read {"file_path": "f"}),
        "f\n1. \u{feff}a\n2. b\n3. c\n4. d\u{fffd}\n5. e\n6. "
    );
}

#[tokio::test]
async fn read_keeps_the_head_and_says_how_many_characters_are_cut() {
    let place = Place::with(Limits { read_chars: 10, ..LIMITS }, None);
    place.put("f", "äöüäö");
    assert_eq!(call!(place, Read {"file_path": "f"}), "f\n1. äöüäö");
    place.put("f", "äöüäöüä");
    assert_eq!(call!(place, Read {"file_path": "f"}), "f\n1. äöüäö\n[truncated 2 chars]");
    place.put("f", "äöüäö\nx");
    assert_eq!(call!(place, Read {"file_path": "f"}), "f\n1. äöüäö\n[truncated 5 chars]");
}

#[tokio::test]
async fn one_line_of_five_megabytes_is_cut() {
    let place = Place::new();
    place.put("f", vec![b'x'; 5_000_000]);
    let text = call!(place, Read {"file_path": "f"});
    assert!(text.ends_with("x\n[truncated 4980005 chars]"), "{}", &text[text.len() - 50..]);
    assert_eq!(text.chars().count(), 20_000 + "\n[truncated 4980005 chars]".len());
}

#[tokio::test]
async fn an_error_has_pythons_type_name_and_states_the_fact() {
    let place = Place::new();
    place.put("d/f", "x");
    symlink("/etc/passwd", place.workspace.root().join("link")).unwrap();
    symlink("/etc", place.workspace.root().join("etc")).unwrap();
    rustix::fs::mknodat(CWD, place.workspace.root().join("pipe"), FileType::Fifo, Mode::RWXU, 0)
        .unwrap();
    fs::File::create(place.workspace.root().join("sparse")).unwrap().set_len(10 << 30).unwrap();
    let table = [
        ("none", "FileNotFoundError: cannot find `none`"),
        ("d", "IsADirectoryError: cannot open `d` as a file: it is a folder"),
        ("/workspace", "IsADirectoryError: cannot open `.` as a file: it is a folder"),
        ("d/f/g", "NotADirectoryError: cannot open `d/f/g`: a part of it is not a folder"),
        (
            "link",
            "PermissionError: cannot open `link`: it is or passes through a symbolic link, and links are not followed; \
             it leads to `/etc/passwd`",
        ),
        (
            "etc/passwd",
            "PermissionError: cannot open `etc/passwd`: it is or passes through a symbolic link, and links are not \
             followed",
        ),
        (
            "/etc/passwd",
            "PermissionError: cannot use path `/etc/passwd`: it is outside of the workspace",
        ),
        (
            "d/../../secret",
            "PermissionError: cannot use path `d/../../secret`: it is outside of the workspace",
        ),
        ("~/x", "PermissionError: cannot use path `~/x`: it is outside of the workspace"),
        (".git/config", "PermissionError: `.git/config` belongs to git; use git by Bash"),
        ("d/.GIT", "PermissionError: `d/.GIT` belongs to git; use git by Bash"),
        ("GIT~1/config", "PermissionError: `GIT~1/config` belongs to git; use git by Bash"),
        (".g\u{200c}it", "PermissionError: `.g\u{200c}it` belongs to git; use git by Bash"),
        ("a\0b", "ValueError: cannot use path `a\0b`: it contains a NUL byte"),
        ("pipe", "OSError: cannot open `pipe`: it is neither a file nor a folder"),
        (
            "sparse",
            "ValueError: cannot read `sparse`: it has 10737418240 bytes, more than the limit of 67108864; use Bash to \
             look at a part of it",
        ),
        ("", "ValueError: file_path is required"),
    ];
    for (path, expected) in table {
        assert_eq!(call!(place, Read {"file_path": path}), expected);
    }
}

#[tokio::test]
async fn arguments_of_every_shape_have_an_observation() {
    let place = Place::new();
    place.put("f", "x");
    let table = [
        ("Read", "", "ValueError: file_path is required"),
        ("Read", "{\"file_path\": \"f\"", "ValueError: file_path is required"),
        ("Read", "[1]", "ValueError: file_path is required"),
        ("Read", "{\"file_path\": \"\\ud800\"}", "ValueError: file_path is required"),
        ("Read", "{\"file_path\": null}", "ValueError: file_path is required"),
        ("Read", "{\"file_path\": 5}", "ValueError: file_path must be a string, not a number"),
        (
            "Read",
            "{\"file_path\": \"f\", \"offset\": \"x\"}",
            "ValueError: offset must be a number",
        ),
        (
            "Read",
            "{\"file_path\": \"f\", \"limit\": []}",
            "ValueError: limit must be a number, not an array",
        ),
        (
            "Read",
            "{\"file_path\": \"f\", \"limit\": \"NaN\"}",
            "ValueError: limit must be a number",
        ),
        ("Read", "{\"file_path\": \"f\", \"more\": {}}", "f\n1. x"),
        ("Write", "{\"file_path\": \"f\"}", "ValueError: content is required"),
        (
            "Write",
            "{\"file_path\": \"f\", \"content\": {}}",
            "ValueError: content must be a string, not an object",
        ),
        ("Edit", "{\"file_path\": \"f\"}", "ValueError: old_string is required"),
        (
            "Edit",
            "{\"file_path\": \"f\", \"old_string\": \"x\"}",
            "ValueError: new_string is required",
        ),
        ("Glob", "{}", "ValueError: pattern is required"),
        ("Bash", "{\"command\": \"\"}", "ValueError: command is required"),
        ("Bash", "{\"command\": \"a\\u0000b\"}", "ValueError: command contains a NUL byte"),
        (
            "Bash",
            "{\"command\": \"a\", \"timeout\": true}",
            "ValueError: timeout must be a number, not a boolean",
        ),
        ("read", "{}", "Unknown tool: read"),
        ("", "{}", "Unknown tool: "),
    ];
    for (name, arguments, expected) in table {
        assert_eq!(place.leaf.call(name, arguments).await.unwrap(), expected, "{name} {arguments}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(place.leaf.call("Read", &deep).await.unwrap(), "ValueError: file_path is required");
    assert_eq!(
        place.leaf.call(&"n".repeat(1000), "{}").await.unwrap().len(),
        "Unknown tool: ".len() + 100
    );
}

#[tokio::test]
async fn write_makes_folders_counts_characters_and_keeps_the_mode() {
    let place = Place::new();
    let answer = call!(place, Write {"file_path": "/workspace/a/b.sh", "content": "ä\r\n"});
    assert_eq!(answer, "Wrote a/b.sh (3 bytes).");
    assert_eq!(place.bytes("a/b.sh"), "ä\r\n".as_bytes());
    let path = place.workspace.root().join("a/b.sh");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(call!(place, Write {"path": "a/b.sh", "content": ""}), "Wrote a/b.sh (0 bytes).");
    assert_eq!(
        call!(place, Edit {"file_path": "a/b.sh", "old_string": "x", "new_string": ""}),
        "ValueError: old_string was not found in a/b.sh"
    );
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(
        call!(place, Write {"file_path": "a", "content": ""}),
        "IsADirectoryError: cannot open `a` as a file: it is a folder"
    );
}

#[tokio::test]
async fn write_keeps_what_read_does_not_show_of_the_file_that_it_replaces() {
    let place = Place::new();
    for (before, content, after) in [
        (&b"a\r\nb\r\n"[..], "a\nc\n", &b"a\r\nc\r\n"[..]),
        (b"a\r\nb\r\n", "a\r\nc\n", b"a\r\nc\n"),
        (b"a\r\nb\n", "a\nc\n", b"a\nc\n"),
        (b"\xef\xbb\xbfa\n", "b\n", b"\xef\xbb\xbfb\n"),
        (b"\xef\xbb\xbfa\n", "\u{feff}b\n", b"\xef\xbb\xbfb\n"),
        (b"\xef\xbb\xbfa\r\n", "b\n", b"\xef\xbb\xbfb\r\n"),
        (b"a\xe9\n", "b\n", b"b\n"),
        (b"a\n", "b\u{fffd}\n", "b\u{fffd}\n".as_bytes()),
    ] {
        place.put("f", before);
        assert!(
            call!(place, Write {"file_path": "f", "content": content}).starts_with("Wrote f (")
        );
        assert_eq!(place.bytes("f"), after, "{content:?} over {before:?}");
    }
    place.put("latin", b"caf\xe9\n");
    assert_eq!(
        call!(place, Write {"file_path": "latin", "content": "caf\u{fffd}!\n"}),
        "ValueError: latin is not UTF-8, and the content would lose the bytes that are shown as U+FFFD; use Edit, which keeps them"
    );
    assert_eq!(place.bytes("latin"), b"caf\xe9\n");
}

#[tokio::test]
async fn edit_counts_its_replacements_and_refuses_what_is_ambiguous() {
    let place = Place::new();
    let table = [
        ("a b a", "b", "c", "false", "Edited f (1 replacement).", "a c a"),
        ("a b a", "a", "c", "true", "Edited f (2 replacements).", "c b c"),
        (
            "a b a",
            "a",
            "c",
            "",
            "ValueError: old_string matched 2 times in f; set replace_all to true, or give a longer \
            string that matches once",
            "a b a",
        ),
        ("aaa", "aa", "b", "yes", "Edited f (1 replacement).", "ba"),
        ("a", "a", "a", "", "Edited f (1 replacement).", "a"),
        ("a", "x", "y", "", "ValueError: old_string was not found in f", "a"),
        (
            "a",
            "",
            "y",
            "",
            "ValueError: old_string must not be empty; use Write to make a file",
            "a",
        ),
        ("a\nb\n", "a\nb\n", "", "", "Edited f (1 replacement).", ""),
    ];
    for (content, old, new, all, expected, after) in table {
        place.put("f", content);
        let answer = call!(place, Edit {"file_path": "f", "old_string": old, "new_string": new, "replace_all": all});
        assert_eq!(answer, expected);
        assert_eq!(place.bytes("f"), after.as_bytes(), "{content:?} {old:?}");
    }
}

#[tokio::test]
async fn edit_makes_no_file_that_is_too_large_to_read() {
    let place = Place::new();
    let (many, long) = ("a".repeat(4000), "b".repeat(40_000));
    place.put("f", &many);
    let answer = call!(place, Edit {"file_path": "f", "old_string": "a", "new_string": long, "replace_all": true});
    assert_eq!(answer, "ValueError: f would have 160000000 bytes, more than 67108864");
    assert_eq!(place.bytes("f"), many.as_bytes());
}

#[tokio::test]
async fn edit_keeps_every_other_byte() {
    let place = Place::new();
    let table: &[(&[u8], &str, &str, &[u8])] = &[
        (b"\xff a \xfe\xe2\x82 a\x00", " a ", "\n", b"\xff\n\xfe\xe2\x82 a\x00"),
        (b"\xef\xbb\xbfa\r\nb\r\n", "a\nb", "c\nd\ne", b"\xef\xbb\xbfc\r\nd\r\ne\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "c", b"c\r\n"),
        (b"a\nb\r\nc\r\n", "b\nc", "x\ny", b"a\nx\r\ny\r\n"),
        (b"a\nb\r\nc\r\n", "a\nb", "x\ny", b"x\ny\r\nc\r\n"),
        (b"a\nb\r\n", "a", "x\ny", b"x\ny\nb\r\n"),
        ("\u{e9}".as_bytes(), "\u{e9}", "e", b"e"),
    ];
    for (content, old, new, after) in table {
        place.put("f", content);
        let answer = call!(place, Edit {"file_path": "f", "old_string": old, "new_string": new});
        assert_eq!(answer, "Edited f (1 replacement).", "{content:?}");
        assert_eq!(place.bytes("f"), *after, "{:?}", String::from_utf8_lossy(content));
    }
}

#[tokio::test]
async fn edit_does_not_part_hard_links_or_follow_links() {
    let place = Place::new();
    place.put("f", "a");
    fs::hard_link(place.workspace.root().join("f"), place.workspace.root().join("g")).unwrap();
    symlink("f", place.workspace.root().join("l")).unwrap();
    assert_eq!(
        call!(place, Edit {"file_path": "g", "old_string": "a", "new_string": "b"}),
        "OSError: cannot write `g`: it has 2 hard links; use Bash to replace it by a copy first"
    );
    let answer = call!(place, Edit {"file_path": "l", "old_string": "a", "new_string": "b"});
    assert!(
        answer.starts_with("PermissionError: ") && answer.ends_with("; it leads to `f`"),
        "{answer}"
    );
    assert_eq!(place.bytes("f"), b"a");
}

#[tokio::test]
async fn glob_follows_pythons_rules() {
    let place = Place::new();
    for path in [
        "a.py",
        "b.rs",
        ".hidden.py",
        "src/a.py",
        "src/deep/er/b.py",
        "src/.venv/x.py",
        "src/[x].py",
        "{a,b}.py",
        "\u{e9}.py",
        ".git/config.py",
        "a-b",
        "A.py",
    ] {
        place.put(path, "");
    }
    symlink("a.py", place.workspace.root().join("link.py")).unwrap();
    symlink("src", place.workspace.root().join("other")).unwrap();
    let none = "No files matched.";
    let table = [
        ("*.py", "A.py\na.py\n{a,b}.py\n\u{e9}.py"),
        ("?.py", "A.py\na.py\n\u{e9}.py"),
        ("**/*.py", "A.py\na.py\nsrc/[x].py\nsrc/a.py\nsrc/deep/er/b.py\n{a,b}.py\n\u{e9}.py"),
        ("src/**", "src/[x].py\nsrc/a.py\nsrc/deep/er/b.py"),
        ("src/**/b.py", "src/deep/er/b.py"),
        ("src/**/a.py", "src/a.py"),
        ("**/er/**/*", "src/deep/er/b.py"),
        ("src/*/*/b.py", "src/deep/er/b.py"),
        ("src/a**y", "src/a.py"),
        (".*.py", ".hidden.py"),
        ("[.]hidden.py", none),
        (".hidden.py", ".hidden.py"),
        ("src/.venv/*", "src/.venv/x.py"),
        ("src/.*/*.py", "src/.venv/x.py"),
        ("{a,b}.py", "{a,b}.py"),
        ("{a,b}{a,b}{a,b}{a,b}.py", none),
        ("[a-c].*", "a.py\nb.rs"),
        ("[!a-z].py", "A.py\n\u{e9}.py"),
        ("[]-]*", none),
        ("a[-]b", "a-b"),
        ("src/[[]x].py", "src/[x].py"),
        ("src/[x].py", none),
        ("a[", none),
        ("*[", none),
        ("a.py", "a.py"),
        ("./src//a.py", "src/a.py"),
        ("src/../a.py", "a.py"),
        ("/workspace/src/*.py", "src/[x].py\nsrc/a.py"),
        ("src", none),
        ("src/", none),
        ("**/", none),
        ("link.py", none),
        ("none/*.py", none),
        ("a.py/*", none),
        ("**/.git/*", none),
        ("../*", "PermissionError: cannot use path `./..`: it is outside of the workspace"),
        ("/etc/*", "PermissionError: cannot use path `/etc`: it is outside of the workspace"),
        (".git/*", "PermissionError: `.git` belongs to git; use git by Bash"),
        ("*/../../*", "ValueError: pattern must not have `..` at its end or behind a wildcard"),
    ];
    for (pattern, expected) in table {
        assert_eq!(place.glob(pattern).await, expected, "{pattern}");
    }
    assert_eq!(call!(place, Glob {"pattern": "**/b.py", "path": "src"}), "src/deep/er/b.py");
    assert_eq!(
        call!(place, Glob {"pattern": "*.py", "path": "/workspace/src/"}),
        "src/[x].py\nsrc/a.py"
    );
    let answer = call!(place, Glob {"pattern": "*.py", "path": "other"});
    assert!(
        answer.starts_with("PermissionError: ") && answer.ends_with("it leads to `src`"),
        "{answer}"
    );
}

#[tokio::test]
async fn glob_shows_the_first_paths_of_many() {
    let place = Place::with(Limits { glob_paths: 2, ..LIMITS }, None);
    for name in ["d/z", "c", "b", "a/x"] {
        place.put(name, "");
    }
    assert_eq!(place.glob("**").await, "a/x\nb\n... 2 more files");
    place.put("line\nbreak\u{1b}[0m", "x");
    assert_eq!(place.glob("l*").await, "line\nbreak\u{1b}[0m");
    assert_eq!(
        call!(place, Read {"file_path": "line\nbreak\u{1b}[0m"}),
        "line\nbreak\u{1b}[0m\n1. x"
    );
}

#[tokio::test]
async fn no_pattern_explodes() {
    let place = Place::new();
    place.put(&format!("{}f", "a/".repeat(60)), "");
    place.put(&format!("{}b", "a".repeat(200)), "");
    let begin = std::time::Instant::now();
    assert_eq!(place.glob(&format!("{}none", "**/".repeat(1000))).await, "No files matched.");
    assert_eq!(place.glob(&format!("{}none", "**/a/".repeat(700))).await, "No files matched.");
    assert_eq!(place.glob(&format!("{}none", "**/*/".repeat(700))).await, "No files matched.");
    assert_eq!(place.glob(&format!("{}c", "*a".repeat(1500))).await, "No files matched.");
    assert_eq!(place.glob(&"[".repeat(4000)).await, "No files matched.");
    assert_eq!(place.glob(&"{a,b}".repeat(700)).await, "No files matched.");
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn glob_answers_over_a_hundred_thousand_entries() {
    let place = Place::new();
    fs::create_dir(place.workspace.root().join("d")).unwrap();
    for number in 0..100_000 {
        rustix::fs::mknodat(
            place.workspace.dir(),
            format!("d/{number:06}"),
            FileType::RegularFile,
            Mode::RWXU,
            0,
        )
        .unwrap();
    }
    let text = place.glob("**/*").await;
    assert!(text.starts_with("d/000000\nd/000001\n"), "{}", &text[..40]);
    assert!(text.ends_with("d/000999\n... 99000 more files"), "{}", &text[text.len() - 40..]);
}

#[tokio::test]
async fn bash_shows_the_end_and_both_streams() {
    let table = [
        (finished(End::Exited(0), b"out\n", b""), "Exit code: 0\nSTDOUT:\nout\n\nSTDERR:\n"),
        (
            finished(End::Exited(137), b"", b"e\xff"),
            "Exit code: 137\nSTDOUT:\n\nSTDERR:\ne\u{fffd}",
        ),
        (finished(End::TimedOut, b"a", b"b"), "Timed out after 120.0s\nSTDOUT:\na\nSTDERR:\nb"),
        (
            finished(End::DiskFull, b"", b"b"),
            "Exit code: 137\nSTDOUT:\n\nSTDERR:\nb\n[killed: the disk limit is reached]",
        ),
        (
            finished(End::DiskFull, b"", b""),
            "Exit code: 137\nSTDOUT:\n\nSTDERR:\n[killed: the disk limit is reached]",
        ),
        (
            finished(End::OutOfMemory, b"a", b""),
            "Exit code: 137\nSTDOUT:\na\nSTDERR:\n[killed: the memory limit is reached]",
        ),
    ];
    for (finished, expected) in table {
        let place = Place::with(LIMITS, Some(finished));
        assert_eq!(call!(place, Bash {"command": "x", "description": "y"}), expected);
    }
}

#[tokio::test]
async fn bash_keeps_the_head_and_counts_what_was_never_kept() {
    let stdout =
        Stream { head: b"0123456789".to_vec(), tail: b"xyz".to_vec(), dropped_bytes: 1000 };
    let scripted = Finished { stdout, ..finished(End::Exited(0), b"", b"err") };
    let place = Place::with(Limits { bash_chars: 27, ..LIMITS }, Some(scripted));
    let expected = "Exit code: 0\nSTDOUT:\n012345\n[truncated 1019 chars]";
    assert_eq!(call!(place, Bash {"command": "x"}), expected);
    let command = place.sandbox.last.lock().unwrap().clone().unwrap();
    assert_eq!((command.head_bytes, command.tail_bytes), (108, 0));
}

#[tokio::test]
async fn bash_reads_its_time_limit_in_seconds_or_milliseconds() {
    let table = [
        (serde_json::json!({}), 120.0, "120.0"),
        (serde_json::json!({"timeout": 5}), 5.0, "5.0"),
        (serde_json::json!({"timeout": "2.25"}), 2.25, "2.2"),
        (serde_json::json!({"timeout": 1000}), 600.0, "600.0"),
        (serde_json::json!({"timeout": 1001}), 1.001, "1.0"),
        (serde_json::json!({"timeout": 60_000}), 60.0, "60.0"),
        (serde_json::json!({"timeout_ms": 500}), 0.5, "0.5"),
        (serde_json::json!({"timeout": 3, "timeout_ms": 500}), 3.0, "3.0"),
        (serde_json::json!({"timeout": 0}), 0.1, "0.1"),
        (serde_json::json!({"timeout": -5}), 0.1, "0.1"),
        (serde_json::json!({"timeout": 1e300}), 600.0, "600.0"),
        (serde_json::json!({"timeout": "inf"}), 600.0, "600.0"),
    ];
    let place = Place::with(LIMITS, Some(finished(End::TimedOut, b"", b"")));
    for (mut arguments, seconds, shown) in table {
        arguments["command"] = "x".into();
        let text = place.call("Bash", arguments.clone()).await;
        assert_eq!(text, format!("Timed out after {shown}s\nSTDOUT:\n\nSTDERR:\n"), "{arguments}");
        let command = place.sandbox.last.lock().unwrap().clone().unwrap();
        assert_eq!(command.timeout, Duration::from_secs_f64(seconds), "{arguments}");
    }
}

/// Where the next test leaves its ends of two channels for its own tool: it tells that it has begun, and waits.
static GATE: Mutex<Option<(Sender<()>, Receiver<()>)>> = Mutex::new(None);

fn slow(workspace: &Workspace, _: &Limits, _: &Arguments) -> Result<String, Failure> {
    let (begun, go_on) = GATE.lock().unwrap().take().unwrap();
    begun.send(()).unwrap();
    if go_on.recv().is_ok() {
        workspace.write(Path::new("late"), b"whole").unwrap();
    }
    Ok(String::new())
}

#[tokio::test]
async fn a_file_tool_that_nobody_waits_for_is_waited_for_before_the_workspace_is_at_rest() {
    let place = Place::new();
    place.leaf.quiet().await;
    let ((begun, has_begun), (go_on, may_go_on)) = (channel(), channel());
    *GATE.lock().unwrap() = Some((begun, may_go_on));
    let given_up = place.leaf.file_tool(slow, Arguments::parse("{}")).now_or_never();
    assert!(given_up.is_none());
    has_begun.recv().unwrap();
    let mut quiet = Box::pin(place.leaf.quiet());
    assert!((&mut quiet).now_or_never().is_none());
    go_on.send(()).unwrap();
    quiet.await;
    assert_eq!(place.bytes("late"), b"whole");
}

#[tokio::test]
async fn a_sandbox_that_does_not_hold_is_no_observation() {
    let place = Place::with(LIMITS, None);
    let answer = place.leaf.call("Bash", r#"{"command": "x"}"#).await;
    assert!(matches!(answer, Err(SetupError::StillAlive { .. })));
    assert!(!Path::new("x").exists());
}

#[tokio::test]
async fn a_command_longer_than_the_kernel_takes_is_not_run() {
    let place = Place::with(LIMITS, None);
    let text = call!(place, Bash {"command": "x".repeat(200_000)});
    assert_eq!(
        text,
        "OSError: command is longer than 131071 bytes; write it into a file and run that"
    );
}
