//! `Glob`: files by a pattern, with the rules of Python's `glob.glob(..., recursive=True)`: `*`, `?` and `[...]` within
//! a name, `**` over folders, no braces, and a name that starts with a dot only where the pattern spells the dot.
//!
//! A walk carries the parts of the pattern that are still to be met. So a folder that cannot hold a match is not
//! entered, and no pattern costs more than its length at each entry.

use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::git_name::is_dot_git;
use crate::workspace::{self, Entry, Error, Kind, Workspace};

use super::arguments::Arguments;
use super::text::{Cut, shown};
use super::{Failure, Limits, beneath};

/// Entries that a search meets at most. The largest public repositories hold about half a million files.
const ENTRIES: usize = 1_000_000;

/// Levels that a search enters: what a path may have.
const DEPTH: usize = 128;

/// How long a search may take: the original's limit for file tools.
const TIME: Duration = Duration::from_secs(120);

/// Characters of the answer for each path that it may show. Paths are 50 long on average, but may be 4000.
const PATH_CHARS: usize = 200;

pub(super) fn glob(
    workspace: &Workspace,
    limits: &Limits,
    arguments: &Arguments,
) -> Result<String, Failure> {
    let pattern = arguments.text("pattern")?.filter(|pattern| !pattern.is_empty());
    let pattern = pattern.ok_or_else(|| Failure::value("pattern is required"))?;
    let base = arguments.text("path")?.filter(|path| !path.is_empty()).unwrap_or(".");
    let (folder, parts) = parse(pattern, base, workspace)?;
    let found = match workspace
        .walk(folder.as_ref(), workspace::Limits { entries: ENTRIES, depth: DEPTH })
    {
        Ok(walk) => search(walk, &parts, limits.glob_paths),
        Err(Error::Missing { .. } | Error::NotFolder { .. }) => {
            return Ok("No files matched.".to_owned());
        }
        Err(error) => Err(Failure::access(&error, workspace)),
    }?;
    Ok(found.show(limits.glob_paths))
}

/// The folder to start from, and what is to be met beneath it. A pattern is relative to `base` unless it is absolute.
fn parse(pattern: &str, base: &str, workspace: &Workspace) -> Result<(String, Vec<Part>), Failure> {
    let is_folder = pattern.ends_with('/');
    let base = if pattern.starts_with('/') { "" } else { base };
    let mut names: Vec<&str> = base.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    let n_literal = names.len();
    let from_pattern = pattern.split('/').filter(|name| !matches!(*name, "" | "."));
    let start = if pattern.starts_with('/') || base.starts_with('/') { "/" } else { "./" };
    names.extend(from_pattern);
    let wild = |(at, name): (usize, &&str)| at >= n_literal && name.contains(['*', '?', '[']);
    let n_fixed = names.iter().enumerate().position(wild).unwrap_or(names.len());
    // The last name is met by the walk, so that a plain path is a pattern, too.
    let (fixed, rest) = names.split_at(n_fixed.min(names.len().saturating_sub(1)).max(n_literal));
    let mut parts = Vec::new();
    for name in rest {
        match *name {
            ".." => {
                return Err(Failure::value(
                    "pattern must not have `..` at its end or behind a wildcard",
                ));
            }
            name if parts.last().is_some_and(Part::is_any) && name == "**" => {}
            name => parts.push(Part::parse(name)),
        }
    }
    // Only folders match a pattern that ends with a slash, and only files are listed.
    if is_folder {
        parts.clear();
    }
    Ok((shown(&beneath(&format!("{start}{}", fixed.join("/")), workspace)?), parts))
}

/// One part of a pattern.
enum Part {
    /// `**`: any number of folders, also none.
    Any,
    /// One name, as it is.
    Name(String),
    /// One name, by wildcards.
    Wild(Vec<Wild>),
}

/// One element of a name's pattern.
enum Wild {
    /// `*`
    Some,
    /// `?`
    One,
    /// `[...]`, and `[!...]` by `true`.
    Class(bool, Vec<(char, char)>),
    /// A character.
    Just(char),
}

impl Part {
    fn parse(name: &str) -> Self {
        if name == "**" {
            return Self::Any;
        }
        if !name.contains(['*', '?', '[']) {
            return Self::Name(name.to_owned());
        }
        let chars: Vec<char> = name.chars().collect();
        let mut wild = Vec::new();
        let mut at = 0;
        while let Some(character) = chars.get(at) {
            at += 1;
            match character {
                '*' if matches!(wild.last(), Some(Wild::Some)) => {}
                '*' => wild.push(Wild::Some),
                '?' => wild.push(Wild::One),
                '[' => match class(&chars[at..]) {
                    Some((class, length)) => {
                        wild.push(class);
                        at += length;
                    }
                    None => wild.push(Wild::Just('[')),
                },
                other => wild.push(Wild::Just(*other)),
            }
        }
        Self::Wild(wild)
    }

    fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => !name.starts_with('.'),
            Self::Name(expected) => name == expected,
            Self::Wild(wild) => {
                let is_dotted = matches!(wild.first(), Some(Wild::Just('.')));
                (is_dotted || !name.starts_with('.')) && is_match(wild, name)
            }
        }
    }
}

/// A class, and how many characters it takes after its opening bracket; none when it is not closed.
fn class(chars: &[char]) -> Option<(Wild, usize)> {
    let is_negated = chars.first() == Some(&'!');
    let start = usize::from(is_negated);
    // A bracket in the first place is a member.
    let end = start + 1 + chars.get(start + 1..)?.iter().position(|character| *character == ']')?;
    let members = &chars[start..end];
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < members.len() {
        match members[at..] {
            [first, '-', last, ..] => {
                ranges.push((first, last));
                at += 3;
            }
            [single, ..] => {
                ranges.push((single, single));
                at += 1;
            }
            [] => break,
        }
    }
    Some((Wild::Class(is_negated, ranges), end + 1))
}

/// Matches a whole name. On a mismatch only the last `*` takes one more, which is enough and never exponential.
fn is_match(wild: &[Wild], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut element) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while at < name.len() {
        let is_one = match wild.get(element) {
            Some(Wild::Some) => {
                retry = Some((element + 1, at));
                element += 1;
                continue;
            }
            Some(Wild::One) => true,
            Some(Wild::Just(expected)) => name[at] == *expected,
            Some(Wild::Class(is_negated, ranges)) => {
                ranges.iter().any(|(first, last)| (first..=last).contains(&&name[at]))
                    != *is_negated
            }
            None => false,
        };
        if is_one {
            (at, element) = (at + 1, element + 1);
            continue;
        }
        let Some((behind, taken)) = retry else { return false };
        retry = Some((behind, taken + 1));
        (at, element) = (taken + 1, behind);
    }
    wild[element..].iter().all(|rest| matches!(rest, Wild::Some))
}

/// What was found: the first paths in order, and how many there are.
struct Found {
    paths: BinaryHeap<String>,
    count: usize,
}

impl Found {
    fn show(self, limit: usize) -> String {
        if self.count == 0 {
            return "No files matched.".to_owned();
        }
        let n_more = self.count - self.paths.len();
        let mut text = Cut::new(limit.saturating_mul(PATH_CHARS));
        text.push(&self.paths.into_sorted_vec().join("\n"));
        if n_more > 0 {
            text.push(&format!("\n... {n_more} more files"));
        }
        text.finish()
    }
}

fn search(mut walk: workspace::Walk<'_>, parts: &[Part], limit: usize) -> Result<Found, Failure> {
    let deadline = Instant::now() + TIME;
    let mut found = Found { paths: BinaryHeap::new(), count: 0 };
    // For each level that is being walked, which parts may be met by an entry of it.
    let mut levels = vec![reach(parts, [0])];
    while let Some(step) = walk.next() {
        if Instant::now() > deadline {
            let message = format!(
                "no answer within {} seconds; give a path or a narrower pattern",
                TIME.as_secs()
            );
            return Err(Failure::Model { kind: "TimeoutError", message });
        }
        let entry = match step {
            Ok(entry) => entry,
            Err(Error::TooMany { limit, .. }) => {
                let message = format!(
                    "more than {limit} entries to search; give a path or a narrower pattern"
                );
                return Err(Failure::value(message));
            }
            // One folder that is closed, too deep or gone; the rest is still worth an answer.
            Err(_) => continue,
        };
        levels.truncate(entry.depth);
        let Some(open) = levels.last() else { continue };
        let (is_match, next) = meet(parts, open, &entry);
        match entry.metadata.kind {
            Kind::File if is_match => {
                found.count += 1;
                found.paths.push(shown(&entry.path));
                if found.paths.len() > limit {
                    found.paths.pop();
                }
            }
            Kind::Folder if next.is_empty() => walk.skip_folder(),
            Kind::Folder => levels.push(next),
            Kind::File | Kind::Symlink | Kind::Other => {}
        }
    }
    Ok(found)
}

/// Whether the entry completes the pattern, and which parts the entries below it may meet.
fn meet(parts: &[Part], open: &[usize], entry: &Entry) -> (bool, Vec<usize>) {
    let name = entry.path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    if is_dot_git(name.as_bytes()) {
        return (false, Vec::new());
    }
    let met = open.iter().copied().filter(|at| parts[*at].matches(&name)).collect::<Vec<_>>();
    let is_match = met.last().is_some_and(|at| at + 1 == parts.len());
    (is_match, reach(parts, met.into_iter().map(|at| if parts[at].is_any() { at } else { at + 1 })))
}

/// The parts themselves, and what follows each `**` among them, which may stand for nothing; in order, each once.
fn reach(parts: &[Part], from: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut reached = Vec::new();
    for at in from {
        reached.push(at);
        if parts.get(at).is_some_and(Part::is_any) {
            reached.push(at + 1);
        }
    }
    reached.retain(|at| *at < parts.len());
    reached.sort_unstable();
    reached.dedup();
    reached
}
