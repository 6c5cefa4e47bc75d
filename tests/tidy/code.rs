//! The rules that need to read Rust: names in comments and in texts are no code, and one `use` may hold many paths.
//! Types are not resolved: what one file of ours passes on to another is not seen.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::rules::Found;

/// A path as the code spells it, with the braces of a `use` taken apart.
struct Named {
    line: usize,
    path: String,
}

fn names(text: &str) -> Result<Vec<Named>, Found> {
    let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
        vec![(error.span().start().line, format!("this is not Rust: {error}"))]
    })?;
    let mut found = Vec::new();
    collect(tokens, "", &mut found);
    Ok(found)
}

/// `prefix` is what stands before the braces of a `use`, with its `::`, and otherwise empty.
fn collect(tokens: TokenStream, prefix: &str, found: &mut Vec<Named>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => collect(group.stream(), "", found),
            // The name after `as` is the file's own, not part of the path.
            TokenTree::Ident(word) if word == "as" && !prefix.is_empty() => at += 1,
            TokenTree::Ident(word) => {
                let (path, end) = path(&tokens, at, format!("{prefix}{word}"));
                match &tokens.get(end) {
                    Some(TokenTree::Group(group)) if path.ends_with("::") => {
                        collect(group.stream(), &path, found);
                        at = end;
                    }
                    _ => {
                        found.push(Named { line: word.span().start().line, path });
                        at = end - 1;
                    }
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        at += 1;
    }
}

/// The path that begins with the word at `at`, and where it ends. It ends with `::` before the braces of a `use`.
fn path(tokens: &[TokenTree], at: usize, first: String) -> (String, usize) {
    let is_colon =
        |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(mark)) if mark.as_char() == ':');
    let (mut path, mut end) = (first, at + 1);
    while is_colon(end) && is_colon(end + 1) {
        match tokens.get(end + 2) {
            Some(TokenTree::Ident(word)) => path.push_str(&format!("::{word}")),
            Some(TokenTree::Punct(star)) if star.as_char() == '*' => path.push_str("::*"),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                return (path + "::", end + 2);
            }
            _ => return (path, end),
        }
        end += 3;
    }
    (path, end)
}

/// Whether `path` is `whole` or lies in it.
fn is_in(path: &str, whole: &str) -> bool {
    path.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// What leads out of the process, and where it may be used. Tests of the whole bot make their own world and are not asked.
const DOORS: [(&str, &[&str]); 8] = [
    ("git2", &["bot/src/checkout/", "bot/src/patch/", "bot/src/publish/"]),
    ("sqlx", &["bot/src/store/"]),
    ("reqwest", &["bot/src/forge/", "bot/src/model/"]),
    ("std::process", &["bot/src/sandbox/", "bot/src/checkout/testing", "bot/src/checkout/tests/"]),
    ("std::os::unix::process", &["bot/src/sandbox/"]),
    ("tokio::process", &["bot/src/sandbox/"]),
    ("command_fds", &["bot/src/sandbox/"]),
    ("std::env", &["config/src/", "bot/src/checkout/testing"]),
];

/// What stands behind a door and does not lead out, and where it is needed.
const SPARED: [(&str, &str); 7] = [
    ("std::env::consts", ""),
    ("std::env::args_os", "bot/src/main.rs"),
    ("std::env::current_exe", "bot/src/main.rs"),
    // A test that starts itself once more, as a process with an environment of its own.
    ("std::env::current_exe", "bot/src/checkout/tests/"),
    ("std::process::id", ""),
    ("std::process::ExitCode", "bot/src/main.rs"),
    ("std::process::Output", "bot/src/checkout/testing"),
];

/// Ends of what only a page has. Comments on a forge use a few tags of their own.
const PAGES: [&str; 3] = ["</html>", "</body>", "</div>"];

pub(crate) fn doors(path: &str, text: &str) -> Found {
    let is_product = ["bot/src/", "config/src/", "engine/src/", "webhooks/src/"]
        .iter()
        .any(|folder| path.starts_with(folder));
    if !is_product || !path.ends_with(".rs") {
        return Found::new();
    }
    let names = match names(text) {
        Ok(names) => names,
        Err(found) => return found,
    };
    let mut found = Found::new();
    for name in names {
        let door = DOORS.iter().find(|(door, _)| is_in(&name.path, door));
        let Some((_, places)) = door else { continue };
        let is_spared = SPARED
            .iter()
            .any(|(spared, place)| is_in(&name.path, spared) && path.starts_with(place));
        if !is_spared && !places.iter().any(|place| path.starts_with(place)) {
            found.push((name.line, format!("`{}` belongs into {}", name.path, places.join(", "))));
        }
    }
    for (at, line) in text.lines().enumerate() {
        let tag = PAGES.iter().find(|tag| line.contains(*tag));
        if let Some(tag) = tag.filter(|_| !path.starts_with("bot/src/page")) {
            found.push((at + 1, format!("`{tag}` belongs into bot/src/page")));
        }
    }
    found
}

/// Files and folders that may hold unsafe code.
const UNSAFE: [&str; 3] =
    ["bot/src/checkout/options.rs", "engine/src/backend/", "engine/src/checkpoint.rs"];

pub(crate) fn unsafety(path: &str, text: &str) -> Found {
    if !path.ends_with(".rs") {
        return Found::new();
    }
    let names = match names(text) {
        Ok(names) => names,
        Err(found) => return found,
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Found::new();
    for name in names.iter().filter(|name| name.path == "unsafe") {
        if !UNSAFE.iter().any(|place| path.starts_with(place)) {
            found.push((name.line, "no unsafe code here".into()));
            continue;
        }
        let is_note =
            |line: &&&str| ["//", "#["].iter().any(|start| line.trim_start().starts_with(start));
        let above = lines[..name.line - 1].iter().rev().take_while(is_note);
        // What an unsafe function asks of its callers stands in its documentation.
        let is_reason = |line: &&str| line.contains("SAFETY:") || line.contains("/// # Safety");
        if !above.into_iter().any(is_reason) {
            found.push((name.line, "say above, after `SAFETY:`, why it is sound".into()));
        }
    }
    found
}

/// The modules that a file declares: the line of each, and its name.
pub(crate) fn module_names(text: &str) -> Vec<(usize, String)> {
    let names = names(text).unwrap_or_default();
    let pairs = names.windows(2).filter(|pair| pair[0].path == "mod");
    pairs.map(|pair| (pair[1].line, pair[1].path.clone())).collect()
}
