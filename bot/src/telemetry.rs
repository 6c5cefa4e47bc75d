//! Log lines on the standard error stream: for people on a terminal and in commands, as JSON for whoever collects a
//! service's log. No line holds a secret that is known by then: names and errors of others stand in many of them, and
//! libraries write lines too.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::redact::Redactor;

/// The secrets of this process, once they have been read.
static REDACTOR: OnceLock<Redactor> = OnceLock::new();

/// Libraries that log headers, statements or bodies only when they warn.
const LIBRARIES: &str = "hyper=warn,reqwest=warn,sqlx=warn,h2=warn,rustls=warn";

/// Who reads the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Whoever keeps the service's log.
    Service,
    /// Somebody who waits for the job of one command.
    Watcher,
    /// Somebody who wants a command's result, and besides only what is not in order.
    Person,
}

/// Starts logging, once per process. `filter` is what the operator set.
///
/// # Errors
/// The filter makes no sense; the text says where.
pub fn init(
    filter: Option<&str>,
    reader: Reader,
) -> Result<(), tracing_subscriber::filter::ParseError> {
    let usual = match reader {
        Reader::Service | Reader::Watcher => "info",
        Reader::Person => "warn",
    };
    // A library named by the operator overrides; one that is not stays quiet.
    let more = filter.map(|filter| format!(",{filter}")).unwrap_or_default();
    let filter = EnvFilter::try_new(format!("{usual},{LIBRARIES}{more}"))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Lines)
        .with_span_events(FmtSpan::NONE);
    match reader {
        Reader::Service if std::io::stderr().is_terminal() => lines.compact().init(),
        Reader::Service => lines.json().init(),
        Reader::Watcher | Reader::Person => {
            let is_terminal = std::io::stderr().is_terminal();
            lines.compact().without_time().with_target(false).with_ansi(is_terminal).init();
        }
    }
    Ok(())
}

/// From now on, no line holds what this redactor knows. A process reads its secrets once, so only the first counts.
pub fn redact_with(redactor: &Redactor) {
    let _ = REDACTOR.set(redactor.clone());
}

/// The standard error stream, for whole lines: the subscriber writes each with one call.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = match REDACTOR.get() {
            Some(known) => known.redact(&text),
            None => text.into_owned(),
        };
        std::io::stderr().write_all(text.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}
