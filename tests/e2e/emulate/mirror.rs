//! What git was pushed, put into the emulator through its API. Its ids of files, folders and commits are git's own, so they
//! come out the same or the push has failed.

use std::collections::BTreeMap;
use std::path::Path;

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, FixedOffset};
use git2::{ObjectType, Oid, Repository, TreeWalkMode, TreeWalkResult};
use serde_json::{Value, json};

use super::door::Shared;

/// Where objects are made.
const GIT: &str = "/repos/acme/hours/git";

/// A commit as the API wants it.
struct Commit {
    id: String,
    tree: String,
    /// Entries of the whole tree, each with its path from the root.
    entries: Vec<Value>,
    /// The files, by their ids.
    files: BTreeMap<String, Vec<u8>>,
    body: Value,
}

impl Shared {
    /// Brings the emulator's branches to where git's are, with the token of whoever pushed.
    pub(super) async fn mirror(&self, token: &str) -> Result<(), String> {
        let known = self.get(token, &format!("{GIT}/matching-refs/heads")).await?;
        let known: BTreeMap<String, String> = known
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let sha = entry["object"]["sha"].as_str()?;
                Some((entry["ref"].as_str()?.to_owned(), sha.to_owned()))
            })
            .collect();
        let pushed = pushed(&self.dir, &known).map_err(|error| error.to_string())?;
        for commit in pushed.commits {
            self.put(token, commit).await?;
        }
        for (name, commit) in pushed.branches {
            let (method, path, body) = match known.get(&name) {
                Some(at) if *at == commit => continue,
                Some(_) => {
                    let path = format!("{GIT}/{name}");
                    (Method::PATCH, path, json!({ "sha": commit, "force": true }))
                }
                None => {
                    (Method::POST, format!("{GIT}/refs"), json!({ "ref": name, "sha": commit }))
                }
            };
            self.call(token, (method, &path), body).await?;
        }
        Ok(())
    }

    async fn put(&self, token: &str, commit: Commit) -> Result<(), String> {
        for (id, content) in commit.files {
            let body = json!({ "content": STANDARD.encode(content), "encoding": "base64" });
            self.make(token, "blobs", body, &id).await?;
        }
        self.make(token, "trees", json!({ "tree": commit.entries }), &commit.tree).await?;
        self.make(token, "commits", commit.body, &commit.id).await
    }

    async fn make(&self, token: &str, kind: &str, body: Value, id: &str) -> Result<(), String> {
        let path = format!("{GIT}/{kind}");
        let made = self.call(token, (Method::POST, &path), body).await?;
        match made["sha"].as_str() {
            Some(same) if same == id => Ok(()),
            other => Err(format!("`{id}` of {kind} became {other:?}")),
        }
    }
}

/// What git has.
struct Pushed {
    /// The commits that are not behind any known branch, the oldest first.
    commits: Vec<Commit>,
    /// All branches by their full names, with their commits.
    branches: Vec<(String, String)>,
}

fn pushed(dir: &Path, known: &BTreeMap<String, String>) -> Result<Pushed, git2::Error> {
    let repository = Repository::open_bare(dir)?;
    let mut walk = repository.revwalk()?;
    walk.set_sorting(git2::Sort::TOPOLOGICAL | git2::Sort::REVERSE)?;
    let mut branches = Vec::new();
    for reference in repository.references_glob("refs/heads/*")? {
        let reference = reference?;
        let commit = reference.peel_to_commit()?.id();
        walk.push(commit)?;
        branches.push((reference.name().unwrap_or_default().to_owned(), commit.to_string()));
    }
    for commit in known.values() {
        walk.hide(commit.parse::<Oid>()?)?;
    }
    let commits = walk.map(|id| read(&repository, id?)).collect::<Result<_, _>>()?;
    Ok(Pushed { commits, branches })
}

fn read(repository: &Repository, id: Oid) -> Result<Commit, git2::Error> {
    let commit = repository.find_commit(id)?;
    let tree = commit.tree()?;
    let (mut entries, mut files) = (Vec::new(), BTreeMap::new());
    tree.walk(TreeWalkMode::PreOrder, |folder, entry| {
        if entry.kind() == Some(ObjectType::Blob) {
            let path = format!("{folder}{}", entry.name().unwrap_or_default());
            let (mode, id) = (format!("{:06o}", entry.filemode()), entry.id().to_string());
            entries.push(json!({ "path": path, "mode": mode, "type": "blob", "sha": id }));
            let blob = entry.to_object(repository).and_then(|object| object.peel_to_blob());
            // A file that cannot be read is missed when the emulator is asked for its tree.
            files.extend(blob.ok().map(|blob| (id, blob.content().to_vec())));
        }
        TreeWalkResult::Ok
    })?;
    let body = json!({
        "message": String::from_utf8_lossy(commit.message_raw_bytes()),
        "tree": tree.id().to_string(),
        "parents": commit.parent_ids().map(|parent| parent.to_string()).collect::<Vec<_>>(),
        "author": person(&commit.author()),
        "committer": person(&commit.committer()),
    });
    Ok(Commit { id: id.to_string(), tree: tree.id().to_string(), entries, files, body })
}

fn person(who: &git2::Signature<'_>) -> Value {
    let zone = FixedOffset::east_opt(who.when().offset_minutes() * 60);
    let at = DateTime::from_timestamp(who.when().seconds(), 0).zip(zone);
    let date = at.map(|(at, zone)| at.with_timezone(&zone).to_rfc3339());
    json!({
        "name": String::from_utf8_lossy(who.name_bytes()),
        "email": String::from_utf8_lossy(who.email_bytes()),
        "date": date,
    })
}
