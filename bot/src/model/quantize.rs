//! The command `hyla model quantize`: its arguments, how far it is, and what is said at the end. The engine does the work.

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow};
use engine::quantised::{Progress, Quantised, write};
use engine::{Error, Summary};

use super::serve::some_threads;

/// What `hyla model quantize` is told.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The model's folder, as published.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The folder to write; it must not be there yet, or be empty. To replace a folder that is in use, write another beside it,
    /// then rename both: a weights file that is cut or overwritten ends the programs that have it open.
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Bits of a weight: int8 or int4. int4 is half as large, and its answers are worse.
    #[arg(long)]
    dtype: Quantised,
    /// Threads that compute; one for each core if left out.
    #[arg(long, value_name = "N", value_parser = some_threads)]
    threads: Option<usize>,
}

/// Writes the folder, and returns what to tell. When `quit` is ready it stops, and leaves nothing.
///
/// # Errors
/// The source is not in order, or the target cannot be written.
pub async fn run(arguments: Arguments, quit: impl Future<Output = ()>) -> anyhow::Result<String> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let mut writing = tokio::task::spawn_blocking({
        let is_stopped = Arc::clone(&is_stopped);
        move || quantise(&arguments, &is_stopped)
    });
    let ended = tokio::select! {
        ended = &mut writing => ended,
        () = quit => {
            is_stopped.store(true, Ordering::Relaxed);
            writing.await
        }
    };
    ended.context("cannot quantise the model")?
}

fn quantise(arguments: &Arguments, is_stopped: &AtomicBool) -> anyhow::Result<String> {
    let Arguments { folder, out, dtype, threads } = arguments;
    let n_threads = threads.unwrap_or_else(|| engine::Options::default().n_threads);
    let mut sign = Sign { is_terminal: std::io::stderr().is_terminal(), shown: String::new() };
    let mut all_bytes = 0;
    let written = write(folder, out, *dtype, n_threads, &mut |progress| {
        all_bytes = progress.all_bytes;
        sign.show(progress);
        let is_stopped = is_stopped.load(Ordering::Relaxed);
        if is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(sign);
    written.map_err(|error| explained(error, all_bytes))?;
    let (before, after) = (Summary::read(folder)?, Summary::read(out)?);
    let (before, after) = (gigabytes(before.weight_bytes), gigabytes(after.weight_bytes));
    Ok(format!(
        "wrote `{}`: {}, {after} of weights instead of {before}\n",
        out.display(),
        dtype.name()
    ))
}

/// An error, with what a person can do about it where it does not say so itself.
fn explained(error: Error, all_bytes: u64) -> anyhow::Error {
    match &error {
        Error::Stopped => anyhow!("stopped; nothing was written"),
        Error::Write { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            let needed = gigabytes(all_bytes);
            let words = format!("the disk is full: {needed} are needed; nothing was left behind");
            anyhow::Error::from(error).context(words)
        }
        Error::Read { .. }
        | Error::File { .. }
        | Error::Key { .. }
        | Error::Threads { .. }
        | Error::Quantised { .. }
        | Error::Write { .. }
        | Error::Tensor { .. } => error.into(),
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

/// How far it is, for a terminal. It takes itself away.
struct Sign {
    is_terminal: bool,
    shown: String,
}

impl Sign {
    fn show(&mut self, progress: Progress) {
        let words = words(progress);
        if self.is_terminal && words != self.shown {
            put(&format!("\r{words}\x1b[K"));
            self.shown = words;
        }
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        if !self.shown.is_empty() {
            put("\r\x1b[K");
        }
    }
}

fn words(progress: Progress) -> String {
    let Progress { written_bytes, all_bytes } = progress;
    let percent = written_bytes * 100 / all_bytes.max(1);
    format!("quantising: {percent} % of {}", gigabytes(all_bytes))
}

fn put(text: &str) {
    // A closed terminal is no reason to stop the work.
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::halt::chain;

    #[test]
    fn progress_is_told_in_percent() {
        let progress = Progress { written_bytes: 1_120_000_000, all_bytes: 4_464_000_000 };
        assert_eq!(words(progress), "quantising: 25 % of 4.46 GB");
    }

    #[test]
    fn a_full_disk_and_a_stop_say_what_is_left() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = Error::Write { file: "/models/out/model.safetensors".into(), source: full };
        let words = chain(explained(error, 4_464_000_000).as_ref());
        assert!(
            words.starts_with(
                "the disk is full: 4.46 GB are needed; nothing was left behind: \
                 cannot write `/models/out/model.safetensors`: "
            ),
            "{words}"
        );
        let words = chain(explained(Error::Stopped, 1).as_ref());
        assert_eq!(words, "stopped; nothing was written");
    }
}
