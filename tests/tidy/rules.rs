//! The rules. A line that would break its own rule is put together from two halves.

/// A line's number, from 1, and what is wrong with it.
type Found = Vec<(usize, String)>;

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
            ("bot/src/leaf/bash.rs", "use std::process::Command;"),
            ("bot/src/run.rs", "std::env::var(\"X\")"),
        ],
        good: &[
            ("bot/src/checkout/mod.rs", "use git2::Repository;"),
            ("bot/src/store/sqlite.rs", "sqlx::query(\"x\")"),
            ("bot/src/sandbox/spawner.rs", "use std::process::Command;"),
            ("config/src/secret.rs", "std::env::var(\"X\")"),
            ("bot/src/main.rs", "std::env::current_exe()"),
            ("bot/src/run.rs", "// git2 is not used here"),
        ],
    },
    Rule {
        name: "unsafe code stands only where the README says, each with its reason",
        check: unsafety,
        bad: &[
            ("bot/src/run.rs", "    unsafe { x() }"),
            ("bot/src/checkout/options.rs", "    let a = 1;\n    unsafe { x() }"),
        ],
        good: &[
            ("bot/src/checkout/options.rs", "    // SAFETY: once.\n    unsafe { x() }"),
            ("bot/src/run.rs", "// an unsafe thing"),
            ("bot/src/run.rs", "#![forbid(unsafe_code)]"),
        ],
    },
    Rule {
        name: "a crate imports only the crates of ours that it may",
        check: imports,
        bad: &[
            ("config/Cargo.toml", "[dependencies]\nbot.workspace = true\n"),
            ("webhooks/Cargo.toml", "[dependencies]\nconfig.workspace = true\n"),
            ("bot/Cargo.toml", "[dependencies]\nserde = \"1\"\n"),
        ],
        good: &[(
            "bot/Cargo.toml",
            "[dependencies]\nconfig.workspace = true\nserde.workspace = true\n",
        )],
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
        ],
        good: &[("bot/src/session/mod.rs", "")],
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
        bad: &[("deploy/x.sh", "#!/usr/bin/env bash\nfalse\n")],
        good: &[
            ("deploy/x.sh", "#!/usr/bin/env bash\nset -euo pipefail\n"),
            ("deploy/part.sh", "# Sourced.\n"),
        ],
    },
    Rule {
        name: "migrations are numbered",
        check: migrations,
        bad: &[("bot/migrations/first.sql", "")],
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

/// Lines without what stands in comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate();
    lines.map(|(at, line)| (at + 1, line.split("//").next().unwrap_or(line)))
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

/// Words, and the places that may use them. Tests of the whole bot make their own world and are not asked.
const DOORS: [(&str, &[&str]); 7] = [
    ("git2::", &["bot/src/checkout/", "bot/src/patch/", "bot/src/publish/"]),
    ("sqlx::", &["bot/src/store/"]),
    ("reqwest::", &["bot/src/forge/", "bot/src/model/"]),
    (
        "std::process::Command",
        &["bot/src/sandbox/", "bot/src/checkout/testing", "bot/src/checkout/tests/"],
    ),
    ("tokio::process", &["bot/src/sandbox/"]),
    ("env::var", &["config/src/", "bot/src/checkout/testing"]),
    ("env::set_var", &[]),
];

fn doors(path: &str, text: &str) -> Found {
    let is_product = is_rust(path)
        && ["bot/src/", "config/", "webhooks/", "engine/"]
            .iter()
            .any(|crate_| path.starts_with(crate_));
    if !is_product {
        return Found::new();
    }
    let mut found = Found::new();
    for (number, line) in code(text) {
        for (word, places) in DOORS {
            if line.contains(word) && !places.iter().any(|place| path.starts_with(place)) {
                found.push((number, format!("`{word}` belongs into {}", places.join(", "))));
            }
        }
    }
    found
}

/// Files that may hold unsafe code.
const UNSAFE: [&str; 2] = ["bot/src/checkout/options.rs", "engine/src/checkpoint.rs"];

fn unsafety(path: &str, text: &str) -> Found {
    if !is_rust(path) || path.starts_with("tests/tidy/") {
        return Found::new();
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Found::new();
    for (number, line) in code(text) {
        let is_unsafe =
            line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
        if !is_unsafe {
            continue;
        }
        if !UNSAFE.contains(&path) {
            found.push((number, "no unsafe code here".into()));
            continue;
        }
        let is_note =
            |line: &&&str| ["//", "#["].iter().any(|start| line.trim_start().starts_with(start));
        let above = lines[..number - 1].iter().rev().take_while(is_note);
        if !above.into_iter().any(|line| line.contains("SAFETY:")) {
            found.push((number, "say above, after `SAFETY:`, why it is sound".into()));
        }
    }
    found
}

/// Which crates of ours each may import.
const IMPORTS: [(&str, &[&str]); 5] = [
    ("bot/Cargo.toml", &["config", "engine", "webhooks"]),
    ("config/Cargo.toml", &[]),
    ("engine/Cargo.toml", &[]),
    ("tests/Cargo.toml", &["bot", "config", "engine", "webhooks"]),
    ("webhooks/Cargo.toml", &[]),
];

fn imports(path: &str, text: &str) -> Found {
    let Some((_, allowed)) = IMPORTS.iter().find(|(manifest, _)| *manifest == path) else {
        return Found::new();
    };
    let mut found = Found::new();
    let mut in_dependencies = false;
    for (at, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
            continue;
        }
        let Some(name) =
            line.split(['.', ' ', '=']).next().filter(|name| in_dependencies && !name.is_empty())
        else {
            continue;
        };
        let is_ours = ["bot", "config", "engine", "tests", "webhooks"].contains(&name);
        if is_ours && !allowed.contains(&name) {
            found.push((at + 1, format!("it may not import `{name}`")));
        }
        if !line.contains("workspace = true") {
            found.push((
                at + 1,
                format!("the version of `{name}` belongs into the workspace's Cargo.toml"),
            ));
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

fn names(path: &str, _: &str) -> Found {
    const VAGUE: [&str; 7] = ["utils", "util", "common", "helpers", "manager", "service", "impl"];
    let parts = path.split('/').flat_map(|part| part.trim_end_matches(".rs").split('_'));
    let vague = parts.into_iter().find(|part| is_rust(path) && VAGUE.contains(part));
    vague.map(|part| (1, format!("`{part}` says nothing"))).into_iter().collect()
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
    let is_script = text.starts_with("#!/usr/bin/env bash") || text.starts_with("#!/bin/bash");
    let is_wrong = is_script && !is_rust(path) && !text.contains("\nset -euo pipefail\n");
    is_wrong.then(|| (1, "add `set -euo pipefail`".to_owned())).into_iter().collect()
}

fn migrations(path: &str, _: &str) -> Found {
    let Some(name) = path.strip_prefix("bot/migrations/") else { return Found::new() };
    let is_numbered = name.len() > 5
        && name.as_bytes()[..4].iter().all(u8::is_ascii_digit)
        && name.as_bytes()[4] == b'_';
    (!is_numbered).then(|| (1, "call it `0002_what.sql`".to_owned())).into_iter().collect()
}
