//! `hyla fix`: the session, the gate and the evidence of a job on a folder of this machine, with no forge. It writes
//! nothing into that folder unless it is asked for a branch.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use chrono::{DateTime, Utc};

use crate::checkout::{Base, Mirrors};
use crate::folder::{Folder, open_way};
use crate::halt::chain;
use crate::input::Input;
use crate::model::Settings;
use crate::publish;
use crate::reply;
use crate::session::{self, Record};
use crate::workshop::{self, Task, Worked, Workshop};

/// Bytes of an issue's file at most.
const ISSUE_BYTES: u64 = 1 << 20;

/// What to work on.
#[derive(Debug, Clone)]
pub struct Options {
    /// The repository's folder.
    pub repo: PathBuf,
    /// The file with the issue: its first line is the title.
    pub issue: PathBuf,
    /// The branch to put the change on.
    pub write: Option<String>,
    /// Where to keep the transcript.
    pub transcript: Option<PathBuf>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// There is a patch, and the gate lets it pass.
    Patch,
    /// There is no change.
    NoChange,
    /// There is a patch that the gate refuses.
    Refused,
}

/// Everything that was asked for, found to be in order, before anything is asked of a model.
pub struct Prepared {
    task: Task,
    base: Base,
    scratch: tempfile::TempDir,
    _private: tempfile::TempDir,
}

/// Reads issue and repository, and checks where the results are to go: all that may be wrong and costs no time.
///
/// # Errors
/// Says which of them is not in order, and what to do.
pub async fn prepare(workshop: &Workshop, options: &Options) -> anyhow::Result<Prepared> {
    let (title, body) = issue(&options.issue)?;
    if let Some(file) = &options.transcript {
        writable(file)?;
    }
    let scratch = tempfile::Builder::new()
        .prefix("hyla-fix-")
        .tempdir()
        .context("cannot make a folder for the work")?;
    let private =
        tempfile::tempdir_in(scratch.path()).context("cannot make a folder for the work")?;
    open_way(scratch.path(), workshop.owner).context("cannot make a folder for the work")?;
    let mirrors = Mirrors::new(private.path().to_owned());
    let local = mirrors.adopt_local(&options.repo).await.context("cannot use --repo")?;
    if let Some(branch) = &options.write {
        publish::check_branch(&options.repo, branch).await.context("cannot use --write")?;
    }
    let base = local.base;
    let (repo_file, repo_text) = workshop::repo_file(&base).await??;
    let instructions = workshop::instructions(&base).await?;
    let input = Input::of(&title, &body, &workshop.redactor).with_repository(
        instructions,
        repo_text,
        &workshop.redactor,
    );
    let digest = input.digest(&base.commit);
    if local.has_uncommitted_changes {
        tell(
            workshop,
            "note: the folder has uncommitted changes; the work starts from the last commit and does not see them\n",
        );
    }
    let task = Task { input, digest, repo_file, server_command: None };
    Ok(Prepared { task, base, scratch, _private: private })
}

/// Works on the issue. The session is shown on the standard error stream as it goes; then the patch and the evidence are
/// printed on the standard output.
///
/// # Errors
/// The model, the sandbox or the disk is not in order. A patch that was made has been printed even then.
pub async fn fix(
    workshop: &Workshop,
    options: &Options,
    prepared: Prepared,
    now: DateTime<Utc>,
) -> anyhow::Result<Outcome> {
    let root = prepared.scratch.path().join("job");
    let folder = Folder::new(root, workshop.owner).make().await?;
    let outcome = attempt(workshop, options, &prepared, &folder, now).await;
    // Whatever the agent made, it must not outlive the command.
    if let Err(error) = workshop.sandbox.quiet().await {
        let kept = prepared.scratch.keep();
        return Err(error).with_context(|| format!("the folder `{}` stays", kept.display()));
    }
    folder.clear().await.context("cannot remove the workspace")?;
    outcome
}

async fn attempt(
    workshop: &Workshop,
    options: &Options,
    prepared: &Prepared,
    folder: &Folder,
    now: DateTime<Utc>,
) -> anyhow::Result<Outcome> {
    let Prepared { task, base, .. } = prepared;
    let mut watch = |record: &Record| tell(workshop, &record.to_string());
    let worked = workshop.session(task, base, folder, &mut watch).await;
    let kept = keep(&folder.transcript(), options.transcript.as_deref());
    let worked = worked.map_err(told)?;
    let outcome = deliver(workshop, options, prepared, folder, worked, now).await?;
    // The patch is worth more than the record of how it came about, so this is said last.
    kept?;
    Ok(outcome)
}

/// A session's error, with what to do where it is the model's.
fn told(error: workshop::Error) -> anyhow::Error {
    match &error {
        workshop::Error::Session(session::Error::Model(model)) => {
            anyhow!("{}; {}", chain(&error), model.next(Settings::Arguments))
        }
        _ => error.into(),
    }
}

async fn deliver(
    workshop: &Workshop,
    options: &Options,
    prepared: &Prepared,
    folder: &Folder,
    worked: Worked,
    now: DateTime<Utc>,
) -> anyhow::Result<Outcome> {
    let Prepared { task, base, .. } = prepared;
    let patch = workshop.patch(&worked, base, folder).await?;
    if patch.is_empty() {
        say(&format!("No change: {}.\n", worked.ended.reason))?;
        return Ok(Outcome::NoChange);
    }
    print(&shown(&patch.text))?;
    if let Err(refusal) = workshop.gate(&patch, task)? {
        let rule = crate::job::name_of(&refusal.rule);
        say(&format!("\nThe gate refuses this patch by rule `{rule}`: {refusal}\n"))?;
        return Ok(Outcome::Refused);
    }
    tell(workshop, "── running the tests ──\n");
    let evidence = workshop.evidence(task, base, &worked, &patch, folder).await?;
    say(&format!("\n{}\n{}\n", evidence.table(), worked.summary(workshop.model.name())))?;
    if let Some(branch) = &options.write {
        let author = workshop.author(None);
        let message = reply::local_message(&task.input.title);
        let commit = publish::commit(&base.mirror, &patch, &message, &author, now).await?;
        publish::write_branch(&options.repo, &base.mirror, &commit, branch).await?;
        say(&format!(
            "The change is on branch `{branch}`; see it with `git diff {}...{branch}`.\n",
            base.commit.short()
        ))?;
    } else {
        say(
            "Nothing was written into the folder. `git apply` takes all of this output from a file; `--write BRANCH` makes a branch instead.\n",
        )?;
    }
    Ok(Outcome::Patch)
}

/// A patch as it is for a program that reads it, and without control characters for a terminal.
fn shown(patch: &str) -> String {
    if !std::io::stdout().is_terminal() {
        return patch.to_owned();
    }
    reply::lines(patch)
}

/// Title and text of an issue in a file.
fn issue(file: &Path) -> anyhow::Result<(String, String)> {
    let shown = file.display();
    let found =
        std::fs::metadata(file).with_context(|| format!("cannot read the issue `{shown}`"))?;
    if found.is_dir() {
        bail!("cannot use the issue `{shown}`: it is a folder; name the file with the issue");
    }
    if found.len() > ISSUE_BYTES {
        let size = found.len();
        bail!("cannot use the issue `{shown}`: it has {size} bytes, more than {ISSUE_BYTES}");
    }
    let text = std::fs::read(file).with_context(|| format!("cannot read the issue `{shown}`"))?;
    let text = String::from_utf8(text).ok().filter(|text| !text.contains('\0'));
    let Some(text) = text else {
        bail!(
            "cannot use the issue `{shown}`: it is no text in UTF-8; write a title into its first line and what is wrong below it"
        );
    };
    let text = text.trim_start_matches('\u{feff}').trim();
    let (title, body) = text.split_once('\n').unwrap_or((text, ""));
    let title = title.trim_start_matches('#').trim();
    if title.is_empty() {
        bail!(
            "cannot use the issue `{shown}`: it is empty; write a title into its first line and what is wrong below it"
        );
    }
    Ok((title.to_owned(), body.trim().to_owned()))
}

/// Whether the transcript can be kept there. Nothing is made yet.
fn writable(file: &Path) -> anyhow::Result<()> {
    let cannot = || {
        format!(
            "cannot keep the transcript as `{}`; name a file in a folder that is there and yours",
            file.display()
        )
    };
    match std::fs::metadata(file) {
        Ok(found) if found.is_dir() => bail!(
            "cannot keep the transcript as `{}`: it is a folder; name a file in it",
            file.display()
        ),
        Ok(found) if found.is_file() => {
            std::fs::OpenOptions::new().append(true).open(file).map(drop).with_context(cannot)
        }
        // Something else, such as a terminal, is what the user says that it is.
        Ok(_) => Ok(()),
        Err(_) => {
            let folder = match file.parent() {
                Some(folder) if folder != Path::new("") => folder,
                Some(_) | None => Path::new("."),
            };
            // A file without a name, which is gone with this line.
            tempfile::tempfile_in(folder).map(drop).with_context(cannot)
        }
    }
}

fn keep(transcript: &Path, wanted: Option<&Path>) -> anyhow::Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    if transcript.exists() {
        std::fs::copy(transcript, wanted)
            .with_context(|| format!("cannot keep the transcript as `{}`", wanted.display()))?;
    }
    Ok(())
}

/// Words that may hold somebody else's.
fn say(text: &str) -> std::io::Result<()> {
    print(&reply::lines(text))
}

fn print(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn tell(workshop: &Workshop, text: &str) {
    let text = reply::lines(&workshop.redactor.redact(text));
    // A closed terminal is no reason to stop the work.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
