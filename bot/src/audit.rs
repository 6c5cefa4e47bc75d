//! The audit record: who asked, what the model was given, what was refused, what was pushed. Each record is one line of JSON
//! that holds the SHA-256 of the line before it, so that nothing in it can be changed, taken out or put in unseen; and
//! whoever keeps a head of it elsewhere sees, too, if its end is cut off or all of it is written anew.

pub mod command;

use std::io::{BufRead as _, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::job::CommitId;
use crate::store::Store;

/// What the first record has in place of a digest.
pub const START: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Bytes of one record that are read at most.
const LINE_BYTES: u64 = 1 << 20;

/// What happened. The names are those in the record, and stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Somebody asked for a draft.
    Asked {
        /// The ask: a label's event, a comment, a sweep's instant, a command of the operator's.
        key: String,
        /// The login, where somebody is known to have asked.
        by: Option<String>,
    },
    /// A comment with a command was carried out, or was not.
    Command {
        /// The forge's id of the comment.
        comment: i64,
        /// The forge's id of who wrote it.
        author: i64,
        /// What came of it.
        note: String,
    },
    /// Somebody had a job stopped.
    Halted {
        /// The login.
        by: String,
    },
    /// A model is about to be given this.
    Given {
        /// The base commit.
        base: CommitId,
        /// The SHA-256 of the frozen input.
        digest: String,
        /// The model's name.
        model: String,
    },
    /// A session has ended. Its transcript holds all that went to the model and came back.
    Spoke {
        /// How long the transcript was then, in bytes; a further attempt goes on behind them.
        bytes: u64,
        /// Their SHA-256.
        sha256: String,
    },
    /// This is about to be pushed.
    Ready {
        /// The branch.
        branch: String,
        /// The commit.
        commit: CommitId,
    },
    /// A draft pull request is there.
    Drafted {
        /// Its number.
        pull: u64,
    },
    /// A job has ended.
    Ended {
        /// How, by its stable name; what was refused is `refused(RULE)`.
        outcome: String,
    },
    /// A sweep has paused itself.
    SweepPaused {
        /// Its name.
        sweep: String,
        /// Why.
        why: String,
    },
    /// An operator had a sweep go on.
    SweepResumed {
        /// Its name.
        sweep: String,
    },
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Counted from 1.
    pub number: u64,
    /// The SHA-256 of the line before, in hex; [`START`] in the first one.
    pub previous: String,
    /// When, RFC 3339, UTC.
    pub at: String,
    /// `FORGE:OWNER/REPO#NUMBER`, where it is about an issue.
    pub issue: Option<String>,
    /// The job.
    pub job: Option<i64>,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

impl Record {
    /// The line, without its end.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("a record holds only strings and numbers")
    }
}

/// SHA-256 in hex.
pub fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// How far the record goes, and the digest of its last line: `NUMBER:HEX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The number of the last record.
    pub number: u64,
    /// The digest of its line.
    pub digest: String,
}

impl Head {
    /// The head of a record that ends with this line.
    pub fn of(line: &str) -> Option<Self> {
        let record: Record = serde_json::from_str(line).ok()?;
        Some(Self { number: record.number, digest: digest(line.as_bytes()) })
    }
}

impl std::fmt::Display for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.number, self.digest)
    }
}

impl std::str::FromStr for Head {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "a head is NUMBER:HEX, as `hyla audit verify` prints it";
        let (number, digest) = text.split_once(':').ok_or(wrong)?;
        let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = number.parse().ok().filter(|number| *number > 0 && is_digest);
        Ok(Self { number: number.ok_or(wrong)?, digest: digest.to_ascii_lowercase() })
    }
}

/// Where and how a record is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// No record can be read here.
    #[error("record {number} cannot be read: {reason}")]
    Unreadable {
        /// The number that it should have.
        number: u64,
        /// Why.
        reason: String,
    },
    /// One is missing, or one is too many.
    #[error("record {expected} is missing: number {found} stands in its place")]
    Gap {
        /// The number that comes next.
        expected: u64,
        /// The one that is there.
        found: u64,
    },
    /// The line before it is not the one that it was written behind.
    #[error("record {} was changed or replaced after record {number} was written", number - 1)]
    Changed {
        /// The record that tells.
        number: u64,
    },
    /// A head that somebody kept does not belong to it.
    #[error("the record was written anew: its line {number} has the digest {found}, not {kept}")]
    Another {
        /// The head's number.
        number: u64,
        /// Its digest.
        kept: String,
        /// The one that is there.
        found: String,
    },
    /// It is shorter than it was.
    #[error(
        "the record was cut off: it ends with record {last}, and a head of record {kept} was kept"
    )]
    Short {
        /// The last number.
        last: u64,
        /// The head's number.
        kept: u64,
    },
}

/// A session of which the record has the transcript's digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spoken {
    /// The job.
    pub job: i64,
    /// Bytes of its transcript.
    pub bytes: u64,
    /// Their digest.
    pub sha256: String,
}

/// A record as far as it has been read, line by line.
#[derive(Debug, Default)]
pub struct Chain {
    head: Option<Head>,
    kept: Vec<Head>,
}

impl Chain {
    /// A chain that must hold these heads.
    pub fn with(kept: Vec<Head>) -> Self {
        Self { head: None, kept }
    }

    /// How far it goes.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// The number of its last record; 0 where there is none.
    pub fn n_records(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.number)
    }

    /// Takes the next line.
    ///
    /// # Errors
    /// It does not follow the one before, or is not the one whose head was kept.
    pub fn take(&mut self, line: &str) -> Result<Record, Broken> {
        let expected = self.n_records() + 1;
        let record: Record = serde_json::from_str(line)
            .map_err(|error| Broken::Unreadable { number: expected, reason: error.to_string() })?;
        if record.number != expected {
            return Err(Broken::Gap { expected, found: record.number });
        }
        if record.previous != self.head.as_ref().map_or(START, |head| &head.digest) {
            return Err(Broken::Changed { number: record.number });
        }
        let digest = digest(line.as_bytes());
        for kept in self.kept.iter().filter(|kept| kept.number == expected) {
            if kept.digest != digest {
                let (kept, found) = (kept.digest.clone(), digest);
                return Err(Broken::Another { number: expected, kept, found });
            }
        }
        self.head = Some(Head { number: expected, digest });
        Ok(record)
    }

    /// Ends it.
    ///
    /// # Errors
    /// A head was kept that it does not reach.
    pub fn end(self) -> Result<Option<Head>, Broken> {
        let last = self.n_records();
        match self.kept.iter().map(|kept| kept.number).max() {
            Some(kept) if kept > last => Err(Broken::Short { last, kept }),
            Some(_) | None => Ok(self.head),
        }
    }
}

/// What a whole record came to.
#[derive(Debug, Default)]
pub struct Verified {
    /// Its head; none where it is empty.
    pub head: Option<Head>,
    /// The sessions that it tells of.
    pub spoken: Vec<Spoken>,
}

impl Verified {
    fn note(&mut self, record: &Record) {
        if let (Some(job), Event::Spoke { bytes, sha256 }) = (record.job, &record.event) {
            self.spoken.push(Spoken { job, bytes: *bytes, sha256: sha256.clone() });
        }
    }
}

/// Reads the whole record of a ledger. `tell` is given each line.
///
/// # Errors
/// The ledger does not answer, the record is broken, or `tell` fails.
pub async fn verify(
    store: &dyn Store,
    kept: Vec<Head>,
    tell: &mut (dyn FnMut(&str) -> anyhow::Result<()> + Send),
) -> anyhow::Result<Verified> {
    let (mut chain, mut verified) = (Chain::with(kept), Verified::default());
    loop {
        let lines = store.audit(chain.n_records()).await?;
        for line in &lines {
            verified.note(&chain.take(line)?);
            tell(line)?;
        }
        if lines.is_empty() {
            verified.head = chain.end()?;
            return Ok(verified);
        }
    }
}

/// Reads an exported record.
///
/// # Errors
/// The file cannot be read, or the record is broken.
pub fn verify_file(path: &Path, kept: Vec<Head>) -> anyhow::Result<Verified> {
    let shown = path.display();
    let failed = |error| anyhow::anyhow!("cannot read the audit record `{shown}`: {error}");
    let mut file = std::io::BufReader::new(std::fs::File::open(path).map_err(failed)?);
    let (mut chain, mut verified) = (Chain::with(kept), Verified::default());
    let mut line = String::new();
    while (&mut file).take(LINE_BYTES).read_line(&mut line).map_err(failed)? > 0 {
        verified.note(&chain.take(line.strip_suffix('\n').unwrap_or(&line))?);
        line.clear();
    }
    verified.head = chain.end()?;
    Ok(verified)
}

/// How transcripts stand beside the record.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Transcripts {
    /// As they were.
    pub n_whole: usize,
    /// Not there any more: the bot removes old jobs' files.
    pub n_gone: usize,
    /// The jobs whose transcripts are not what was written.
    pub changed: Vec<i64>,
}

/// Compares transcripts with their digests. `file` names that of a job.
///
/// # Errors
/// A file is there and cannot be read.
pub fn transcripts(
    spoken: &[Spoken],
    file: impl Fn(i64) -> std::path::PathBuf,
) -> anyhow::Result<Transcripts> {
    let mut found = Transcripts::default();
    for Spoken { job, bytes, sha256 } in spoken {
        let path = file(*job);
        let failed = |error| anyhow::anyhow!("cannot read `{}`: {error}", path.display());
        let opened = match std::fs::File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                found.n_gone += 1;
                continue;
            }
            opened => opened.map_err(failed)?,
        };
        match digest_of(opened, *bytes).map_err(failed)? == *sha256 {
            true => found.n_whole += 1,
            false => found.changed.push(*job),
        }
    }
    found.changed.dedup();
    Ok(found)
}

/// The SHA-256 of the first bytes of a file.
///
/// # Errors
/// It cannot be read.
pub fn digest_of(file: std::fs::File, bytes: u64) -> std::io::Result<String> {
    let (mut file, mut digest) = (file.take(bytes), Sha256::new());
    let mut part = vec![0; 1 << 16];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(hex::encode(digest.finalize())),
            n => digest.update(&part[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a few lines.
    fn lines() -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for number in 1..=4 {
            let previous = lines.last().map_or(START.into(), |line| digest(line.as_bytes()));
            let event = Event::Drafted { pull: number };
            let at = "2027-01-15T08:00:00Z".into();
            let issue = Some("main:acme/app#7".into());
            lines.push(Record { number, previous, at, issue, job: Some(1), event }.text());
        }
        lines
    }

    fn read(lines: &[String], kept: &[Head]) -> Result<Option<Head>, Broken> {
        let mut chain = Chain::with(kept.to_vec());
        for line in lines {
            chain.take(line)?;
        }
        chain.end()
    }

    #[test]
    fn whatever_is_done_to_a_record_it_tells() {
        let whole = lines();
        let head = read(&whole, &[]).unwrap().unwrap();
        assert_eq!(head, Head::of(&whole[3]).unwrap());
        assert_eq!(head.to_string().parse(), Ok(head.clone()));
        assert_eq!(read(&[], &[]), Ok(None));

        let mut changed = whole.clone();
        changed[1] = changed[1].replace("\"pull\":2", "\"pull\":9");
        assert_eq!(read(&changed, &[]), Err(Broken::Changed { number: 3 }));
        let mut missing = whole.clone();
        missing.remove(1);
        assert_eq!(read(&missing, &[]), Err(Broken::Gap { expected: 2, found: 3 }));
        let mut swapped = whole.clone();
        swapped.swap(1, 2);
        assert_eq!(read(&swapped, &[]), Err(Broken::Gap { expected: 2, found: 3 }));
        let mut torn = whole.clone();
        torn[2].truncate(20);
        assert!(matches!(read(&torn, &[]), Err(Broken::Unreadable { number: 3, .. })));

        // The last line has none behind it, and whoever writes all anew breaks nothing: a head kept elsewhere tells.
        let mut last = whole.clone();
        last[3] = last[3].replace("\"pull\":4", "\"pull\":9");
        assert!(read(&last, &[]).is_ok());
        let told = read(&last, std::slice::from_ref(&head));
        assert!(matches!(told, Err(Broken::Another { number: 4, .. })), "{told:?}");
        let told = read(&whole[..2], std::slice::from_ref(&head));
        assert_eq!(told, Err(Broken::Short { last: 2, kept: 4 }));
        assert!(read(&whole, &[head]).is_ok());
    }

    #[test]
    fn a_head_that_makes_no_sense_is_refused() {
        for text in ["", "7", "7:", "7:ab", &format!("0:{START}"), &format!("x:{START}")] {
            assert!(text.parse::<Head>().is_err(), "{text}");
        }
    }
}
