//! The rules. A line that would break its own rule is put together from two halves. What needs to read Rust is in `code`.

use super::code::{doors, module_names, unsafety};

/// A line's number, from 1, and what is wrong with it.
pub(crate) type Found = Vec<(usize, String)>;

/// One rule, with examples of what it sees and of what it lets pass.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&str, &str) -> Found,
    pub(crate) bad: &'static [(&'static str, &'static str)],
    pub(crate) good: &'static [(&'static str, &'static str)],
}

/// Lines of one file at most.
const LINES: usize = 800;

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "a file says first what it promises",
        check: first_line,
        bad: &[("bot/src/x.rs", "use std::fs;\n")],
        good: &[("bot/src/x.rs", "//! X.\n"), ("x.md", "# X\n")],
    },
    Rule {
        name: "a file has a readable length",
        check: length,
        bad: &[("bot/src/x.rs", LONG)],
        good: &[("bot/src/x.rs", "//! X.\n"), ("Cargo.lock", LONG)],
    },
    Rule {
        name: "each outside thing has one door",
        check: doors,
        bad: &[
            ("bot/src/run.rs", "use git2::Repository;"),
            ("bot/src/run.rs", "sqlx::query(\"x\")"),
            ("bot/src/run.rs", "use reqwest::Client;"),
            ("bot/src/run.rs", "use reqwest as web;"),
            ("bot/src/leaf/bash.rs", "use std::process::Command;"),
            ("bot/src/leaf/bash.rs", "use std::process::{Command as Process, Stdio};"),
            ("bot/src/leaf/bash.rs", "use std::{\n    fs,\n    process,\n};"),
            ("bot/src/leaf/bash.rs", "let it = async { tokio::process::Command::new(\"x\") };"),
            ("bot/src/run.rs", "let url = \"http://x\"; std::env::var(\"X\")"),
            ("bot/src/run.rs", "use std::env;"),
            ("bot/src/main.rs", "std::env::vars()"),
            ("bot/src/run.rs", "format!(\"{}\", std::env::temp_dir())"),
            ("bot/src/reply/mod.rs", "let html = \"<p>x</p></body>\";"),
        ],
        good: &[
            ("bot/src/checkout/mod.rs", "use git2::Repository;"),
            ("bot/src/store/sqlite.rs", "sqlx::query(\"x\")"),
            ("bot/src/sandbox/spawner.rs", "use std::process::Command;"),
            ("config/src/secret.rs", "std::env::var(\"X\")"),
            ("bot/src/main.rs", "std::env::current_exe()"),
            ("bot/src/main.rs", "std::env::args_os()"),
            ("bot/src/page/mod.rs", "let html = \"<p>x</p></body>\";"),
            ("bot/src/run.rs", "// git2::Oid is not used here"),
            ("bot/src/run.rs", "let text = r#\"std::env::var(\"X\")\"#;"),
            ("bot/src/run.rs", "std::process::id(); rustix::process::geteuid();"),
            ("bot/src/run.rs", "std::env::consts::ARCH"),
            ("tests/e2e/main.rs", "use std::process::Command;"),
        ],
    },
    Rule {
        name: "unsafe code stands only where the README says, each with its reason",
        check: unsafety,
        bad: &[
            ("bot/src/run.rs", "    unsafe { x() }"),
            ("bot/src/checkout/options.rs", "    let a = 1;\n    unsafe { x() }"),
            ("bot/src/run.rs", "let url = \"http://x\"; unsafe { x() }"),
        ],
        good: &[
            ("bot/src/checkout/options.rs", "    // SAFETY: once.\n    unsafe { x() }"),
            ("engine/src/backend/cpu/pool.rs", "/// # Safety\n/// Once.\nunsafe fn x() {}"),
            ("bot/src/run.rs", "// an unsafe thing\nlet a = \"unsafe\";"),
            ("bot/src/run.rs", "#![forbid(unsafe_code)]"),
        ],
    },
    Rule {
        name: "a crate imports only the crates of ours that it may",
        check: imports,
        bad: &[
            ("config/Cargo.toml", "[dependencies]\nbot.workspace = true\n"),
            ("webhooks/Cargo.toml", "[dependencies]\nconfig.workspace = true\n"),
            ("bot/Cargo.toml", "[dependencies]\ntests = { workspace = true }\n"),
            ("engine/Cargo.toml", "[target.'cfg(unix)'.dependencies]\nbot.workspace = true\n"),
            ("helper/Cargo.toml", "[package]\nname = \"helper\"\n"),
        ],
        good: &[("bot/Cargo.toml", "[dependencies]\nconfig.workspace = true\n")],
    },
    Rule {
        name: "versions and lints are the workspace's",
        check: versions,
        bad: &[
            ("bot/Cargo.toml", "[dependencies]\nserde = \"1\"\n\n[lints]\nworkspace = true\n"),
            (
                "bot/Cargo.toml",
                "[dev-dependencies.serde]\npath = \"x\"\n\n[lints]\nworkspace = true\n",
            ),
            ("bot/Cargo.toml", "[dependencies]\nserde.workspace = true\n"),
        ],
        good: &[
            (
                "bot/Cargo.toml",
                "[dependencies]\n# Why.\nserde.workspace = true\n\n[lints]\nworkspace = true\n",
            ),
            ("Cargo.toml", "[workspace.dependencies]\nserde = \"1\"\n"),
            ("bot/fuzz/Cargo.toml", "[workspace]\n[dependencies]\nserde = \"1\"\n"),
        ],
    },
    Rule {
        name: "packages come from crates.io and nowhere else",
        check: sources,
        bad: &[
            ("Cargo.lock", "[[package]]\nsource = \"registry+https://example.org/index\"\n"),
            ("Cargo.lock", "source = \"git+https://example.org/x#1\"\n"),
            (".cargo/config.toml", "[source.crates-io]\nreplace-with = \"x\"\n"),
            ("Cargo.toml", "x = { version = \"1\", registry = \"x\" }\n"),
            ("Cargo.toml", "x = {git = \"https://example.org/x\"}\n"),
            ("Cargo.toml", "[patch.crates-io]\n"),
        ],
        good: &[
            (
                "Cargo.lock",
                concat!("source = \"", "registry+https://github.com/rust-lang/crates.io-index\"\n"),
            ),
            ("Cargo.toml", "description = \"with real git, and a registry\"\n"),
            (".deny.toml", "[sources]\nunknown-registry = \"deny\"\n"),
        ],
    },
    Rule {
        name: "work that is left open names its issue",
        check: open_work,
        bad: &[
            ("bot/src/x.rs", concat!("// TO", "DO: later")),
            ("README.md", concat!("FIX", "ME")),
        ],
        good: &[
            ("bot/src/x.rs", concat!("// TO", "DO(#12): later")),
            ("bot/src/x.rs", "todo_list"),
        ],
    },
    Rule {
        name: "a module's name says what is in it",
        check: names,
        bad: &[
            ("bot/src/utils.rs", ""),
            ("bot/src/helpers/mod.rs", ""),
            ("bot/src/session_manager.rs", ""),
            ("bot/src/run.rs", "mod x;\npub(crate) mod common {}"),
        ],
        good: &[("bot/src/session/mod.rs", ""), ("bot/src/run.rs", "// mod utils\nmod ask;")],
    },
    Rule {
        name: "nothing names the place where it was written",
        check: places,
        bad: &[
            ("README.md", concat!("cd /wo", "rk/main")),
            ("bot/src/x.rs", concat!("\"/ro", "ot/.cargo\"")),
        ],
        good: &[("bot/src/x.rs", "\"/workspace/a\""), ("bot/src/x.rs", "\"/root\"")],
    },
    Rule {
        name: "a shell script stops at its first error",
        check: scripts,
        bad: &[
            ("deploy/x.sh", "#!/usr/bin/env bash\nfalse\n"),
            ("deploy/x.sh", "#!/usr/bin/env bash\nfalse\nset -euo pipefail\n"),
            (".ci/run", "#!/bin/sh\nfalse\n"),
            ("deploy/x.sh", "false\n"),
        ],
        good: &[
            ("deploy/x.sh", "#!/usr/bin/env bash\n# Why.\n\nset -euo pipefail\n"),
            ("deploy/part.sh", "# Sourced by others.\n"),
        ],
    },
    Rule {
        name: "migrations are numbered",
        check: migrations,
        bad: &[("bot/migrations/first.sql", ""), ("bot/migrations/0001ledger.sql", "")],
        good: &[("bot/migrations/0001_ledger.sql", "")],
    },
];

const LONG: &str = {
    // 1,024 empty lines.
    const BYTES: [u8; 1024] = [b'\n'; 1024];
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => "",
    }
};

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

fn first_line(path: &str, text: &str) -> Found {
    let is_wrong = is_rust(path) && !text.starts_with("//! ");
    is_wrong.then(|| (1, "begin with `//! ` and one sentence".to_owned())).into_iter().collect()
}

fn length(path: &str, text: &str) -> Found {
    let n_lines = text.lines().count();
    let is_wrong = is_rust(path) && n_lines > LINES;
    is_wrong
        .then(|| (n_lines, format!("more than {LINES} lines; look for a seam")))
        .into_iter()
        .collect()
}

/// Which crates of ours each may import.
const IMPORTS: [(&str, &[&str]); 7] = [
    ("bot/Cargo.toml", &["config", "engine", "webhooks"]),
    ("bot/fuzz/Cargo.toml", &["bot", "config", "engine"]),
    ("config/Cargo.toml", &[]),
    ("engine/Cargo.toml", &[]),
    ("engine/fuzz/Cargo.toml", &["engine"]),
    ("tests/Cargo.toml", &["bot", "config", "engine", "webhooks"]),
    ("webhooks/Cargo.toml", &[]),
];

/// The lines of a manifest's tables of dependencies, with the name of each; of `[dependencies.NAME]` its header.
fn dependencies(text: &str) -> Vec<(usize, &str, &str)> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for (at, line) in text.lines().enumerate() {
        if let Some(header) = line.strip_prefix('[') {
            let (_, name) = header.split_once("dependencies").unzip();
            is_inside = name.is_some();
            if let Some(name) = name.and_then(|name| name.strip_prefix('.')) {
                found.push((at + 1, name.trim_end_matches(']'), line));
            }
            continue;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if is_inside && !name.is_empty() && !name.starts_with('#') {
            found.push((at + 1, name, line));
        }
    }
    found
}

fn imports(path: &str, text: &str) -> Found {
    let Some((_, allowed)) = IMPORTS.iter().find(|(manifest, _)| *manifest == path) else {
        let is_crate = path.ends_with("/Cargo.toml");
        let what = "say in `IMPORTS` which crates of ours it may import";
        return is_crate.then(|| (1, what.to_owned())).into_iter().collect();
    };
    let ours = ["bot", "config", "engine", "tests", "webhooks"];
    dependencies(text)
        .into_iter()
        .filter(|(_, name, _)| ours.contains(name) && !allowed.contains(name))
        .map(|(number, name, _)| (number, format!("it may not import `{name}`")))
        .collect()
}

fn versions(path: &str, text: &str) -> Found {
    // Fuzz targets are workspaces of their own.
    if !path.ends_with("/Cargo.toml") || path.ends_with("/fuzz/Cargo.toml") {
        return Found::new();
    }
    let is_own = |(_, _, line): &(usize, &str, &str)| !line.contains("workspace = true");
    let own = dependencies(text).into_iter().filter(is_own);
    let mut found: Found = own
        .map(|(number, name, _)| {
            (number, format!("the version of `{name}` belongs into the workspace's Cargo.toml"))
        })
        .collect();
    if !text.contains("[lints]\nworkspace = true\n") {
        found.push((1, "add `[lints]` with `workspace = true`".into()));
    }
    found
}

fn sources(path: &str, text: &str) -> Found {
    const INDEX: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let mut found = Found::new();
    for (at, line) in text.lines().enumerate() {
        let is_elsewhere = match path {
            "Cargo.lock" => line.starts_with("source = ") && line != INDEX,
            _ if path.ends_with(".toml") => {
                let dense = line.replace(' ', "");
                let mut keys = dense.split(['{', ',']);
                ["[source.", "[registr", "[patch"].iter().any(|table| line.starts_with(table))
                    || keys.any(|key| {
                        ["git=", "registry=", "registry-index="]
                            .iter()
                            .any(|each| key.starts_with(each))
                    })
            }
            _ => false,
        };
        if is_elsewhere {
            found.push((at + 1, "a fresh machine cannot fetch this".into()));
        }
    }
    found
}

fn open_work(path: &str, text: &str) -> Found {
    if path == "Cargo.lock" || path == "LICENSE" {
        return Found::new();
    }
    let words = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let mut found = Found::new();
    for (at, line) in text.lines().enumerate() {
        for word in words {
            let is_word =
                line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|each| each == word);
            if is_word && !line.contains(&format!("{word}(#")) {
                found.push((at + 1, format!("write `{word}(#ISSUE)`, or do it")));
            }
        }
    }
    found
}

fn names(path: &str, text: &str) -> Found {
    const VAGUE: [&str; 7] = ["utils", "util", "common", "helpers", "manager", "service", "impl"];
    if !is_rust(path) {
        return Found::new();
    }
    let folders = path.split('/').map(|part| (1, part.trim_end_matches(".rs").to_owned()));
    let words = folders.chain(module_names(text));
    let vague = words.filter(|(_, name)| name.split('_').any(|part| VAGUE.contains(&part)));
    vague.map(|(number, name)| (number, format!("`{name}` says nothing"))).collect()
}

fn places(path: &str, text: &str) -> Found {
    if path == "Cargo.lock" {
        return Found::new();
    }
    let words = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/user")];
    let mut found = Found::new();
    for (at, line) in text.lines().enumerate() {
        for word in words {
            if line.contains(word) {
                found.push((at + 1, format!("`{word}` is a place on somebody's machine")));
            }
        }
    }
    found
}

fn scripts(path: &str, text: &str) -> Found {
    let is_started =
        text.starts_with("#!") && text.lines().next().is_some_and(|line| line.ends_with("sh"));
    let is_sourced = path.ends_with(".sh") && text.starts_with("# Sourced");
    if is_sourced || !(is_started || path.ends_with(".sh")) {
        return Found::new();
    }
    let mut lines = text.lines().enumerate();
    match lines.find(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        Some((_, "set -euo pipefail")) => Found::new(),
        Some((at, _)) => vec![(at + 1, "begin with `set -euo pipefail`".into())],
        None => vec![(1, "it does nothing".into())],
    }
}

fn migrations(path: &str, _: &str) -> Found {
    let Some(name) = path.strip_prefix("bot/migrations/") else { return Found::new() };
    let is_numbered = name.len() > 5
        && name.as_bytes()[..4].iter().all(u8::is_ascii_digit)
        && name.as_bytes()[4] == b'_';
    (!is_numbered).then(|| (1, "call it `0002_what.sql`".to_owned())).into_iter().collect()
}
