//! The command `hyla model serve`: its arguments, what is checked before anybody is answered, and the start.

use std::future::Future;
use std::net::SocketAddr;
use std::num::{IntErrorKind, ParseIntError};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use config::{Secret, SecretRef};
use engine::backend::cpu::Dtype;
use engine::{Engine, Summary};

use super::local::name_of;
use super::server::{self, App};
use crate::clock::Clock;
use crate::serve::listen;

/// Threads at most, as for the bot's own model.
const THREADS: usize = 1024;

/// What `hyla model serve` is told.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The model's folder: config.json, safetensors files, tokenizer.json and chat_template.jinja. Replace its files only by
    /// renaming others into their place: weights are used where they lie, and a file that is cut or overwritten ends the server.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Where to listen. Anything but this machine's own addresses needs a key.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = address)]
    listen: SocketAddr,
    /// How weights are kept in memory: bf16, int8 or int4. If left out, as `hyla model quantize` has written them, and as bf16
    /// in any other folder.
    #[arg(long)]
    dtype: Option<Dtype>,
    /// Threads that compute; one for each core if left out.
    #[arg(long, value_name = "N", value_parser = some_threads)]
    threads: Option<usize>,
    /// Turns that run at the same time.
    #[arg(long, value_name = "N", default_value = "4", value_parser = at_least_one)]
    sessions: usize,
    /// Turns that wait for one of these to end; more are answered with 429.
    #[arg(long, value_name = "N", default_value = "64", value_parser = count)]
    waiting: usize,
    /// Tokens of prompt and answer together, at most.
    #[arg(long, value_name = "N", default_value = "131072", value_parser = at_least_one)]
    context: usize,
    /// Bytes at most of what is kept for the next turns of conversations.
    #[arg(long, value_name = "BYTES", default_value = "8589934592", value_parser = count)]
    memory: usize,
    /// A file with the key that clients must show, readable by you alone.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The model's name for clients; its folder's name if left out.
    #[arg(long)]
    name: Option<String>,
    /// How long running turns may take to end when the server is asked to stop. Whatever runs then is broken off.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    grace: humantime::Duration,
}

/// A count of something that there must be.
pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    match count(text)? {
        0 => Err("it must be at least 1".into()),
        number => Ok(number),
    }
}

/// A count.
pub(super) fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "it is too large".into(),
        _ => "write a whole number in digits, such as 4096".into(),
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an address with a port, such as 127.0.0.1:8080".into())
}

fn time(text: &str) -> Result<humantime::Duration, String> {
    text.parse().map_err(|_| "write a time with its unit, such as 30s or 2m".into())
}

/// A number of threads. More than any machine has cores would only be in each other's way, or not start.
pub(super) fn some_threads(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        n_threads @ ..=THREADS => Ok(n_threads),
        _ => Err(format!("it must be at most {THREADS}")),
    }
}

/// Serves until `quit` is ready.
///
/// # Errors
/// The key, the address or the model's folder are not in order.
pub async fn run(
    arguments: Arguments,
    clock: Arc<dyn Clock>,
    quit: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let key = key(&arguments)?;
    let address = arguments.listen;
    // Before the model is loaded, so that a taken port is known at once.
    let listener = listen(address, "name another with --listen").await?;
    let address = listener.local_addr()?;
    let options = server::Options {
        name: arguments.name.clone().unwrap_or_else(|| name_of(&arguments.model)),
        key,
        is_local: address.ip().is_loopback(),
        n_sessions: arguments.sessions,
        memory_bytes: arguments.memory,
        grace: *arguments.grace,
    };
    let engine = open(&arguments).await?;
    tracing::info!(%address, model = options.name, context_tokens = engine.context_tokens(), "answering at /v1");
    server::serve(App::new(engine, options, clock), listener, quit).await;
    Ok(())
}

fn key(arguments: &Arguments) -> anyhow::Result<Option<Secret>> {
    let Some(file) = &arguments.key_file else {
        let address = arguments.listen;
        if !address.ip().is_loopback() {
            bail!(
                "cannot listen on `{address}` without a key: everybody who reaches it could use the model; give --key-file"
            );
        }
        return Ok(None);
    };
    let secret = SecretRef::File(std::path::absolute(file)?);
    secret.read().map(Some).map_err(|reason| anyhow::anyhow!("cannot use --key-file: {reason}"))
}

async fn open(arguments: &Arguments) -> anyhow::Result<Engine> {
    let usual = engine::Options::default();
    let options = engine::Options {
        dtype: arguments.dtype,
        n_threads: arguments.threads.unwrap_or(usual.n_threads),
        n_sessions: arguments.sessions,
        n_waiting: arguments.waiting,
        context_tokens: arguments.context,
        memory_bytes: arguments.memory,
        ..usual
    };
    let folder = arguments.model.clone();
    let open = move || {
        let summary = Summary::read(&folder)?;
        let gigabytes = summary.weight_bytes as f64 / 1e9;
        tracing::info!(folder = %folder.display(), gigabytes, "loading the model");
        Engine::open(&folder, &options)
    };
    Ok(tokio::task::spawn_blocking(open).await.context("cannot load the model")??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_as_many_as_a_machine_may_have() {
        assert_eq!(some_threads("1"), Ok(1));
        assert_eq!(some_threads("1024"), Ok(1024));
        for (text, words) in [
            ("0", "at least 1"),
            ("1025", "at most 1024"),
            ("18446744073709551615", "at most 1024"),
            ("18446744073709551616", "too large"),
            ("lots", "such as 4096"),
        ] {
            let reason = some_threads(text).expect_err(words);
            assert!(reason.contains(words), "{text}: {reason}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_answered_with_what_can() {
        assert!(address("127.0.0.1").unwrap_err().contains("127.0.0.1:8080"));
        assert!(time("300").unwrap_err().contains("30s") && time("2m").is_ok());
        assert!(count("8GB").unwrap_err().contains("digits") && count("0") == Ok(0));
    }
}
