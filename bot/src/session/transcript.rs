//! The record of a session: JSON lines, only ever appended to, readable by the service alone, without the bot's secrets.
//!
//! It lies outside the workspace. A crash can tear its last line and nothing else.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use chrono::{DateTime, Utc};
use engine::{ToolCall, Usage};
use serde::{Deserialize, Serialize};

use super::Reason;
use crate::input::Input;
use crate::job::CommitId;
use crate::redact::Redactor;
use crate::reply::lines;

/// Bytes of one transcript at most; 150 turns with their observations are some 5 MB.
const FILE_BYTES: u64 = 256 << 20;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// What was frozen for the session that begins: all that its digest is made of.
    Input {
        /// The digest, as the pull request shows it.
        digest: String,
        /// The base commit.
        base: CommitId,
        /// What people and the repository said.
        input: Input,
    },
    /// A session begins.
    Start {
        /// When.
        at: DateTime<Utc>,
        /// The model's name.
        model: String,
        /// SHA-256 of the profile, as hex.
        profile: String,
        /// The system prompt.
        system: String,
        /// What the model is asked.
        task: String,
    },
    /// The model answered.
    Turn {
        /// Counted from 1.
        number: u32,
        /// Its thoughts.
        reasoning: String,
        /// Its words.
        content: String,
        /// Its calls.
        calls: Vec<ToolCall>,
        /// Token counts.
        usage: Option<Usage>,
        /// How long it took, in milliseconds.
        elapsed_ms: u64,
    },
    /// A tool answered.
    Observation {
        /// The call's id.
        call_id: String,
        /// The tool's name.
        name: String,
        /// What the model sees.
        content: String,
        /// How long it took, in milliseconds.
        elapsed_ms: u64,
    },
    /// Something that the model does not see.
    Notice {
        /// What.
        text: String,
    },
    /// The session ended.
    End {
        /// Why.
        reason: Reason,
        /// Turns taken.
        turns: u32,
        /// Calls run.
        calls: u32,
    },
}

/// An open transcript.
pub struct Transcript<'a> {
    file: File,
    n_bytes: u64,
    redactor: &'a Redactor,
    watch: &'a mut (dyn FnMut(&Record) + Send),
}

impl<'a> Transcript<'a> {
    /// Opens a file to append to; makes it, for the service alone, if it is not there. `watch` sees each record too.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(
        file: &Path,
        redactor: &'a Redactor,
        watch: &'a mut (dyn FnMut(&Record) + Send),
    ) -> io::Result<Self> {
        let mut file =
            std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
        let n_bytes = file.metadata()?.len();
        if n_bytes > 0 {
            // An earlier attempt may have died in the middle of a line.
            file.write_all(b"\n")?;
        }
        Ok(Self { file, n_bytes, redactor, watch })
    }

    /// Appends one record.
    ///
    /// # Errors
    /// The disk said no, or the transcript has reached its limit.
    pub fn append(&mut self, record: &Record) -> io::Result<()> {
        let line = serde_json::to_string(record).map_err(io::Error::other)?;
        let mut line = self.redactor.redact(&line);
        line.push('\n');
        self.n_bytes += line.len() as u64;
        if self.n_bytes > FILE_BYTES {
            return Err(io::Error::other(format!(
                "the transcript is larger than {FILE_BYTES} bytes"
            )));
        }
        // One write per line: a reader never sees half of one unless the machine dies.
        self.file.write_all(line.as_bytes())?;
        (self.watch)(record);
        Ok(())
    }
}

/// All records that can be read; a torn line is left out.
///
/// # Errors
/// The file cannot be read.
pub fn read(file: &Path) -> io::Result<Vec<Record>> {
    let text = std::fs::read(file)?;
    let lines = text.split(|&byte| byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

impl std::fmt::Display for Record {
    /// For a terminal: nothing in it can move the cursor or change a colour.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Input { digest, base, input } => {
                let verdict = match input.digest(base) == *digest {
                    true => "it is that of what this transcript keeps",
                    false => "it is NOT that of what this transcript keeps",
                };
                let (digest, base) = (lines(digest), lines(&base.0));
                writeln!(f, "── input frozen on {base} ──\ndigest {digest}; {verdict}")
            }
            Self::Start { model, system, task, .. } => {
                writeln!(f, "── what {} was told first ──\n{}", lines(model), lines(system))?;
                writeln!(f, "── and its task ──\n{}", lines(task))
            }
            Self::Turn { number, reasoning, content, calls, usage, .. } => {
                let tokens =
                    usage.map(|usage| format!(", {} tokens", usage.total())).unwrap_or_default();
                writeln!(f, "── turn {number}{tokens} ──")?;
                if !reasoning.is_empty() {
                    writeln!(f, "({})", lines(reasoning.trim()))?;
                }
                if !content.is_empty() {
                    writeln!(f, "{}", lines(content.trim()))?;
                }
                for call in calls {
                    writeln!(f, "▶ {} {}", lines(&call.name), lines(&call.arguments))?;
                }
                Ok(())
            }
            Self::Observation { content, .. } => {
                for line in lines(content).lines() {
                    writeln!(f, "  {line}")?;
                }
                Ok(())
            }
            Self::Notice { text } => writeln!(f, "── {} ──", lines(text)),
            Self::End { reason, turns, calls } => {
                let turns = crate::reply::count(*turns, "turn");
                let calls = crate::reply::count(*calls, "tool call");
                writeln!(f, "── ended after {turns} and {calls}: {reason} ──")
            }
        }
    }
}
