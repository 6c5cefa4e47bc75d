//! Log lines on the standard error stream: for people on a terminal, as JSON elsewhere.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Everything at `info`, but libraries that log headers, statements or bodies only when they warn.
const DEFAULT: &str = "info,hyper=warn,reqwest=warn,sqlx=warn,h2=warn,rustls=warn";

/// Starts logging, once per process. `filter` is what the operator set.
///
/// # Errors
/// The filter makes no sense; the text says where.
pub fn init(filter: Option<&str>) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = match filter {
        // A library named by the operator overrides; one that is not stays quiet.
        Some(filter) => EnvFilter::try_new(format!("{DEFAULT},{filter}"))?,
        None => EnvFilter::try_new(DEFAULT)?,
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_span_events(FmtSpan::NONE);
    if std::io::stderr().is_terminal() {
        lines.compact().init()
    } else {
        lines.json().init()
    }
    Ok(())
}
