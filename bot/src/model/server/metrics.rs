//! What the server counts, as text for Prometheus. It counts requests and tokens, and looks at no text.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::Finished;

use crate::prometheus::{Histogram, Text};

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
        let outcomes = counts.requests.iter().map(|(outcome, n)| (outcome.name(), *n as f64));
        let help = "Requests by how they ended.";
        text.family("hyla_requests_total", "counter", help, "outcome", outcomes);
        let help = "Turns that the engine works on.";
        text.single("hyla_turns_running", "gauge", help, gauges.n_running as f64);
        let help = "Turns that wait for one of these to end.";
        text.single("hyla_turns_waiting", "gauge", help, gauges.n_waiting as f64);
        let sources = [("computed", counts.prompt_computed), ("cached", counts.prompt_cached)];
        let help = "Tokens of prompts, computed or cached.";
        let rows = sources.map(|(source, n)| (source, n as f64));
        text.family("hyla_prompt_tokens_total", "counter", help, "source", rows);
        for (name, help, n) in [
            ("hyla_generated_tokens_total", "Tokens that were generated.", gauges.n_generated),
            ("hyla_drafted_tokens_total", "Tokens that were drafted.", counts.drafted),
            ("hyla_accepted_tokens_total", "Drafted tokens that were right.", counts.accepted),
        ] {
            text.single(name, "counter", help, n as f64);
        }
        let help = "From the start of a turn to its first token.";
        text.histogram("hyla_time_to_first_token_seconds", help, &counts.first_token);
        let help = "Between two tokens, as the mean of each turn.";
        text.histogram("hyla_inter_token_seconds", help, &counts.each_token);
        let help = "Bytes that may be kept for later turns.";
        text.single("hyla_cache_limit_bytes", "gauge", help, gauges.cache_limit_bytes as f64);
        text.memory();
        text.0
    }
}
