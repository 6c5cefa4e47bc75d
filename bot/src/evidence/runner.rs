//! Which changes of a patch decide how the tests are run, by their paths alone: with them a run may pass without a fix.
//!
//! It is a hint for the reviewer and no verdict: most such changes are honest, and code under test can cheat as well.

use super::TestCommand;
use super::paths::is_test;
use crate::patch::{Change, Kind, Patch};

/// Files that configure or are the runner of some language, at any depth.
const NAMES: [&str; 64] = [
    "Makefile",
    "makefile",
    "GNUmakefile",
    "justfile",
    "Justfile",
    ".justfile",
    "Taskfile.yml",
    "Taskfile.yaml",
    "Rakefile",
    "Gemfile",
    ".rspec",
    "spec_helper.rb",
    "package.json",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pnpmfile.cjs",
    "pnpm-workspace.yaml",
    ".babelrc",
    "bunfig.toml",
    "deno.json",
    "deno.jsonc",
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "tox.ini",
    "noxfile.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".coveragerc",
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "Cargo.toml",
    "build.rs",
    "rust-toolchain",
    "rust-toolchain.toml",
    "go.mod",
    "go.work",
    "pom.xml",
    "build.gradle",
    "build.gradle.kts",
    "settings.gradle",
    "settings.gradle.kts",
    "gradle.properties",
    "gradlew",
    "mvnw",
    "build.sbt",
    "CMakeLists.txt",
    "CTestTestfile.cmake",
    "meson.build",
    "BUILD",
    "BUILD.bazel",
    "WORKSPACE",
    "MODULE.bazel",
    ".bazelrc",
    "phpunit.xml",
    "phpunit.xml.dist",
    "composer.json",
    "mix.exs",
    "test_helper.exs",
    "Package.swift",
    "global.json",
];

/// Beginnings of such names, whatever their ending.
const BEGINNINGS: [&str; 12] = [
    "jest.config.",
    "vitest.config.",
    "vitest.workspace.",
    "vite.config.",
    "karma.conf.",
    "ava.config.",
    "playwright.config.",
    "cypress.config.",
    "babel.config.",
    ".mocharc.",
    "Directory.Build.",
    "nuget.config",
];

/// Endings of such names.
const ENDINGS: [&str; 9] =
    [".mk", ".pth", ".csproj", ".fsproj", ".vbproj", ".sln", ".slnx", ".runsettings", ".gemspec"];

/// Folders at the root whose files are the runner's, or stand in for other people's code.
const FOLDERS: [&str; 7] =
    [".cargo/", ".config/", ".mvn/", "gradle/", "buildSrc/", "node_modules/", "vendor/"];

/// Names of runners: an added file or folder of such a name may be found in the place of the real one.
const RUNNERS: [&str; 22] = [
    "pytest",
    "_pytest",
    "pluggy",
    "nose",
    "nose2",
    "unittest",
    "unittest2",
    "doctest",
    "behave",
    "hypothesis",
    "trial",
    "tox",
    "nox",
    "jest",
    "vitest",
    "mocha",
    "jasmine",
    "rspec",
    "minitest",
    "phpunit",
    "exunit",
    "ctest",
];

/// The modules that come with Python, 3.11 and its neighbours (`sys.stdlib_module_names`). Runners import many of them, and
/// a file of the repository is found first.
const STANDARD_LIBRARY: &str = "\
    _abc _aix_support _ast _asyncio _bisect _blake2 _bootsubprocess _bz2 _codecs _codecs_cn _codecs_hk \
    _codecs_iso2022 _codecs_jp _codecs_kr _codecs_tw _collections _collections_abc _compat_pickle _compression \
    _contextvars _crypt _csv _ctypes _curses _curses_panel _datetime _dbm _decimal _elementtree _frozen_importlib \
    _frozen_importlib_external _functools _gdbm _hashlib _heapq _imp _io _json _locale _lsprof _lzma _markupbase \
    _md5 _msi _multibytecodec _multiprocessing _opcode _operator _osx_support _overlapped _pickle _posixshmem \
    _posixsubprocess _py_abc _pydecimal _pyio _queue _random _scproxy _sha1 _sha256 _sha3 _sha512 _signal \
    _sitebuiltins _socket _sqlite3 _sre _ssl _stat _statistics _string _strptime _struct _symtable _thread \
    _threading_local _tkinter _tokenize _tracemalloc _typing _uuid _warnings _weakref _weakrefset _winapi _zoneinfo \
    abc aifc annotationlib argparse array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii bisect \
    builtins bz2 cProfile calendar cgi cgitb chunk cmath cmd code codecs codeop collections colorsys compileall \
    compression concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes curses dataclasses \
    datetime dbm decimal difflib dis distutils doctest email encodings ensurepip enum errno faulthandler fcntl \
    filecmp fileinput fnmatch fractions ftplib functools gc genericpath getopt getpass gettext glob graphlib grp \
    gzip hashlib heapq hmac html http idlelib imaplib imghdr imp importlib inspect io ipaddress itertools json \
    keyword lib2to3 linecache locale logging lzma mailbox mailcap marshal math mimetypes mmap modulefinder msilib \
    msvcrt multiprocessing netrc nis nntplib nt ntpath nturl2path numbers opcode operator optparse os ossaudiodev \
    pathlib pdb pickle pickletools pipes pkgutil platform plistlib poplib posix posixpath pprint profile pstats pty \
    pwd py_compile pyclbr pydoc pydoc_data pyexpat queue quopri random re readline reprlib resource rlcompleter \
    runpy sched secrets select selectors shelve shlex shutil signal site smtpd smtplib sndhdr socket socketserver \
    spwd sqlite3 sre_compile sre_constants sre_parse ssl stat statistics string stringprep struct subprocess sunau \
    symtable sys sysconfig syslog tabnanny tarfile telnetlib tempfile termios textwrap threading time timeit tkinter \
    token tokenize tomllib trace traceback tracemalloc tty turtle turtledemo types typing unicodedata unittest \
    urllib uu uuid venv warnings wave weakref webbrowser winreg winsound wsgiref xdrlib xml xmlrpc zipapp zipfile \
    zipimport zlib zoneinfo";

/// The paths of a patch that decide how `command` runs the tests, each with what happened to it, in order.
pub(super) fn changed(patch: &Patch, command: &TestCommand) -> Vec<(String, Kind)> {
    let is_part = |change: &&Change| {
        let path = change.path.as_str();
        is_runners(path)
            || is_named(path, command)
            || change.kind == Kind::Added && takes_a_place(path)
    };
    let parts = patch.changes.iter().filter(is_part);
    parts.map(|change| (change.path.clone(), change.kind)).collect()
}

fn is_runners(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    NAMES.contains(&name)
        || BEGINNINGS.iter().any(|start| name.starts_with(start))
        || ENDINGS.iter().any(|end| name.ends_with(end))
        || FOLDERS.iter().any(|folder| path.starts_with(folder))
}

/// Whether the command starts the file by its path, or as a module of Python.
fn is_named(path: &str, command: &TestCommand) -> bool {
    let is_end = |c: char| c.is_whitespace() || "'\"`;&|()<>=$".contains(c);
    let scripts = [Some(&command.command), command.setup.as_ref()];
    let mut words = scripts.into_iter().flatten().flat_map(|script| script.split(is_end));
    let module = path.strip_suffix(".py").unwrap_or_default();
    let module = module.strip_suffix("/__main__").unwrap_or(module).replace('/', ".");
    !is_test(path)
        && words.any(|word| {
            word.strip_prefix("./").unwrap_or(word) == path || !word.is_empty() && word == module
        })
}

/// Whether an added file may be found in the place of a runner's, or of a module that a runner imports.
fn takes_a_place(path: &str) -> bool {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.split('.').next().unwrap_or_default();
    let mut parts = folders.split('/').chain([stem]);
    if parts.clone().any(|part| RUNNERS.contains(&part)) {
        return true;
    }
    // Python looks into the root first, and into the folder of a test.
    let is_root =
        |part: &&str| matches!(*part, "" | "src" | "lib") || is_test(&format!("{part}/x"));
    let first = parts.find(|part| !is_root(part)).unwrap_or_default();
    let is_module = |name: &str| STANDARD_LIBRARY.split(' ').any(|module| module == name);
    name.ends_with(".py") && (is_module(first) || is_test(path) && is_module(stem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Source;

    #[test]
    fn what_runs_the_tests_is_known_by_its_path() {
        for path in [
            "Makefile",
            "sub/package.json",
            "jest.config.ts",
            "ci/rules.mk",
            ".cargo/config.toml",
            "tests/conftest.py",
        ] {
            assert!(is_runners(path), "{path}");
        }
        for path in
            ["src/main.rs", "docs/Makefile.md", "README.md", "src/vendor/x.go", "tests/test_a.py"]
        {
            assert!(!is_runners(path), "{path}");
        }
    }

    #[test]
    fn a_place_is_taken_where_a_runner_looks_first() {
        for path in [
            "unittest.py",
            "tests/re.py",
            "unittest/__init__.py",
            "src/json/__init__.py",
            "lib/rspec/core.rb",
            "pytest.py",
            "tests/unit/traceback.py",
        ] {
            assert!(takes_a_place(path), "{path}");
        }
        for path in [
            "app/calendar.py",
            "hours.py",
            "src/app/types.py",
            "signal.c",
            "tests/test_json.py",
            "json/a.txt",
        ] {
            assert!(!takes_a_place(path), "{path}");
        }
    }

    #[test]
    fn what_the_command_names_is_its_part() {
        let command = |text: &str| TestCommand {
            command: text.into(),
            setup: Some("sh ci/setup.sh".into()),
            source: Source::RepoFile,
        };
        for (path, text) in [
            ("run.sh", "./run.sh --all"),
            ("ci/test.py", "python3 -m ci.test"),
            ("ci/__main__.py", "python3 -m ci"),
            ("ci/setup.sh", "true"),
        ] {
            assert!(is_named(path, &command(text)), "{path}");
        }
        assert!(!is_named("tests/test_a.py", &command("python3 tests/test_a.py")));
        assert!(!is_named("README", &command("make test")));
    }
}
