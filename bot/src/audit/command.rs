//! `hyla audit`: the record in words and in a file.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::json;

use super::{Broken, Head, Transcripts, Verified};
use crate::folder;
use crate::job::JobId;
use crate::jobs;
use crate::store::sqlite::Sqlite;

/// What to do with the audit record.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show that the record and the transcripts are what was written.
    #[command(after_help = "Example: hyla audit verify --head 120:5e88…")]
    Verify {
        /// A head that an earlier call printed: the record must hold it. May be given several times.
        #[arg(long, value_name = "NUMBER:HEX")]
        head: Vec<Head>,
        /// Read an exported record in place of the database; transcripts are left alone.
        #[arg(long)]
        file: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the record, one line of JSON for each thing that happened.
    #[command(after_help = "Example: hyla audit export > audit.jsonl")]
    Export,
}

/// Carries it out. Returns whether all is as it was written.
///
/// # Errors
/// Something cannot be read or written.
pub async fn run(
    command: Command,
    config: &config::Config,
    say: &mut (dyn FnMut(&str) -> anyhow::Result<()> + Send),
) -> anyhow::Result<bool> {
    match command {
        Command::Export => {
            let Some(database) = jobs::database(&config.data_dir)? else { return Ok(true) };
            let store = Sqlite::open(&database).await?;
            super::verify(&store, vec![], &mut |line| say(&format!("{line}\n"))).await?;
            Ok(true)
        }
        Command::Verify { head, file, json } => {
            let (read, transcripts) = match file {
                Some(file) => (super::verify_file(&file, head), None),
                None => of_ledger(config, head).await?,
            };
            let verified = match read {
                Ok(verified) => verified,
                Err(error) => {
                    let broken = error.downcast::<Broken>()?;
                    say(&match json {
                        true => {
                            format!("{:#}\n", json!({"whole": false, "why": broken.to_string()}))
                        }
                        false => format!(
                            "The audit record is not what was written: {broken}.\nSee who may write to the data folder, keep the database as it is, and compare it with a backup.\n"
                        ),
                    })?;
                    return Ok(false);
                }
            };
            let is_whole = transcripts.as_ref().is_none_or(|found| found.changed.is_empty());
            say(&match json {
                true => format!("{:#}\n", as_json(&verified, transcripts.as_ref(), is_whole)),
                false => as_words(&verified, transcripts.as_ref()),
            })?;
            Ok(is_whole)
        }
    }
}

type Read = (anyhow::Result<Verified>, Option<Transcripts>);

async fn of_ledger(config: &config::Config, head: Vec<Head>) -> anyhow::Result<Read> {
    let database = jobs::database(&config.data_dir)?;
    let Some(database) = database else {
        let chain = super::Chain::with(head);
        let empty = chain.end().map(|head| Verified { head, spoken: vec![] });
        return Ok((empty.map_err(anyhow::Error::from), None));
    };
    let store = Sqlite::open(&database).await?;
    let verified = super::verify(&store, head, &mut |_| Ok(())).await;
    let transcripts = match &verified {
        Ok(verified) => {
            let file = |job| folder::transcript_of(&config.data_dir, JobId(job));
            let found = super::transcripts(&verified.spoken, file);
            Some(found.context("cannot compare the transcripts with the record")?)
        }
        Err(_) => None,
    };
    Ok((verified, transcripts))
}

fn as_words(verified: &Verified, transcripts: Option<&Transcripts>) -> String {
    let Some(head) = &verified.head else {
        return "The audit record is empty: nothing has been asked for yet.\n".into();
    };
    let mut words = format!("The audit record is whole: {} records.\n", head.number);
    if let Some(Transcripts { n_whole, n_gone, changed }) = transcripts {
        words.push_str(&format!(
            "Transcripts: {n_whole} are what was written; {n_gone} were removed after their time.\n"
        ));
        if !changed.is_empty() {
            let jobs: Vec<String> = changed.iter().map(i64::to_string).collect();
            words.push_str(&format!(
                "Changed since: those of the jobs {}. See who may write to the data folder.\n",
                jobs.join(", ")
            ));
        }
    }
    words.push_str(&format!(
        "Keep this head on another machine, and give it with --head next time:\n{head}\n"
    ));
    words
}

fn as_json(
    verified: &Verified,
    transcripts: Option<&Transcripts>,
    is_whole: bool,
) -> serde_json::Value {
    json!({
        "whole": is_whole,
        "records": verified.head.as_ref().map_or(0, |head| head.number),
        "head": verified.head.as_ref().map(Head::to_string),
        "transcripts": transcripts.map(|found| json!({
            "whole": found.n_whole,
            "removed": found.n_gone,
            "changed": found.changed,
        })),
    })
}
