//! What the server counts, as text for Prometheus. It counts requests and tokens, and looks at no text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::Finished;

/// Upper ends in seconds: a cached prompt on a fast machine takes some 50 ms, a long one on a slow machine minutes.
const FIRST_TOKEN: [f64; 12] =
    [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// Upper ends in seconds: from 200 tokens in a second to 1.
const EACH_TOKEN: [f64; 10] = [0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0];

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// The model ended its turn.
    Stop,
    /// The limit of tokens cut it.
    Length,
    /// The model called tools.
    ToolCalls,
    /// The client went away, or did not read.
    Cancelled,
    /// It was not a request that can be answered.
    Refused,
    /// Too many others ran and waited, or the server was stopping.
    Busy,
    /// The engine broke it off.
    Failed,
}

impl Outcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Busy => "busy",
            Self::Failed => "failed",
        }
    }
}

/// The counters.
#[derive(Debug)]
pub(super) struct Metrics(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    requests: BTreeMap<Outcome, u64>,
    prompt_computed: u64,
    prompt_cached: u64,
    drafted: u64,
    accepted: u64,
    first_token: Histogram,
    each_token: Histogram,
}

/// What is true at this moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gauges {
    pub(super) n_running: usize,
    pub(super) n_waiting: usize,
    /// Tokens that were generated, those of turns that broke off too.
    pub(super) n_generated: u64,
    /// Bytes of the process in memory, where the system tells.
    pub(super) resident_bytes: Option<u64>,
    /// Bytes that may be kept for later turns.
    pub(super) cache_limit_bytes: usize,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Counts {
            requests: BTreeMap::new(),
            prompt_computed: 0,
            prompt_cached: 0,
            drafted: 0,
            accepted: 0,
            first_token: Histogram::new(&FIRST_TOKEN),
            each_token: Histogram::new(&EACH_TOKEN),
        }))
    }

    /// Counts a request that has ended.
    pub(super) fn request(&self, outcome: Outcome) {
        *self.counts().requests.entry(outcome).or_default() += 1;
    }

    /// Counts the work of a turn that came to its end.
    pub(super) fn turn(&self, finished: &Finished) {
        let mut counts = self.counts();
        let timings = &finished.timings;
        let n_generated = finished.reply.usage.unwrap_or_default().completion_tokens;
        counts.prompt_computed += timings.n_prefilled as u64;
        counts.prompt_cached += timings.n_cached as u64;
        counts.drafted += timings.n_drafted as u64;
        counts.accepted += timings.n_accepted as u64;
        counts.first_token.observe(timings.first_token());
        if let Some(steps) = u32::try_from(n_generated).ok().filter(|n| *n > 1) {
            counts.each_token.observe(timings.decode / (steps - 1));
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // A half counted turn is better than none at all.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text for Prometheus.
    pub(super) fn text(&self, gauges: Gauges) -> String {
        let counts = self.counts();
        let mut text = Text::default();
        text.head("hyla_requests_total", "counter", "Requests by how they ended.");
        for (outcome, n) in &counts.requests {
            text.row(&format!("hyla_requests_total{{outcome=\"{}\"}}", outcome.name()), *n as f64);
        }
        text.head("hyla_turns_running", "gauge", "Turns that the engine works on.");
        text.row("hyla_turns_running", gauges.n_running as f64);
        text.head("hyla_turns_waiting", "gauge", "Turns that wait for one of these to end.");
        text.row("hyla_turns_waiting", gauges.n_waiting as f64);
        text.head("hyla_prompt_tokens_total", "counter", "Tokens of prompts, computed or cached.");
        text.row("hyla_prompt_tokens_total{source=\"computed\"}", counts.prompt_computed as f64);
        text.row("hyla_prompt_tokens_total{source=\"cached\"}", counts.prompt_cached as f64);
        for (name, help, n) in [
            ("hyla_generated_tokens_total", "Tokens that were generated.", gauges.n_generated),
            ("hyla_drafted_tokens_total", "Tokens that were drafted.", counts.drafted),
            ("hyla_accepted_tokens_total", "Drafted tokens that were right.", counts.accepted),
        ] {
            text.head(name, "counter", help);
            text.row(name, n as f64);
        }
        let help = "From the start of a turn to its first token.";
        text.histogram("hyla_time_to_first_token_seconds", help, &counts.first_token);
        let help = "Between two tokens, as the mean of each turn.";
        text.histogram("hyla_inter_token_seconds", help, &counts.each_token);
        text.head("hyla_cache_limit_bytes", "gauge", "Bytes that may be kept for later turns.");
        text.row("hyla_cache_limit_bytes", gauges.cache_limit_bytes as f64);
        if let Some(bytes) = gauges.resident_bytes {
            let name = "process_resident_memory_bytes";
            text.head(name, "gauge", "Bytes of the process in memory.");
            text.row(name, bytes as f64);
        }
        text.0
    }
}

#[derive(Debug)]
struct Histogram {
    ends: &'static [f64],
    /// As many as ends; what lies beyond is in `n` alone.
    below: Vec<u64>,
    n: u64,
    sum: f64,
}

impl Histogram {
    fn new(ends: &'static [f64]) -> Self {
        Self { ends, below: vec![0; ends.len()], n: 0, sum: 0.0 }
    }

    fn observe(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (n, end) in self.below.iter_mut().zip(self.ends) {
            *n += u64::from(seconds <= *end);
        }
        self.n += 1;
        self.sum += seconds;
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn row(&mut self, name: &str, value: f64) {
        self.line(format_args!("{name} {value}"));
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        for (n, end) in histogram.below.iter().zip(histogram.ends) {
            self.row(&format!("{name}_bucket{{le=\"{end}\"}}"), *n as f64);
        }
        self.row(&format!("{name}_bucket{{le=\"+Inf\"}}"), histogram.n as f64);
        self.row(&format!("{name}_sum"), histogram.sum);
        self.row(&format!("{name}_count"), histogram.n as f64);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // A `String` takes everything.
        let _ = writeln!(self.0, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_each_end() {
        let mut histogram = Histogram::new(&[0.1, 1.0]);
        for millis in [50, 100, 500, 5000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut text = Text::default();
        text.histogram("x", "y", &histogram);
        let rows: Vec<&str> = text.0.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            rows,
            [
                "x_bucket{le=\"0.1\"} 2",
                "x_bucket{le=\"1\"} 3",
                "x_bucket{le=\"+Inf\"} 4",
                "x_sum 5.65",
                "x_count 4"
            ]
        );
    }
}
