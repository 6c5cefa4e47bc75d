//! What the service counts for whoever watches it, as text for Prometheus. No label names a repository, an issue or a
//! person, and each has few values. Counters begin with the process; gauges are what the database says at that moment, so
//! several processes on one data folder show the same ones.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use webhooks::Accepted;

use crate::job::{End, Failure, Outcome, Stage, name_of};
use crate::prometheus::{Histogram, Text};
use crate::session::{Ended, Reason};
use crate::store::Tally;
use crate::worker::Verdict;

/// Upper ends in seconds: a small fix on a fast machine takes half a minute, the budget of a session is hours at most.
const SESSION: [f64; 10] = [10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0, 7200.0];

/// What became of deliveries that were not kept: nobody could believe them, or the service could not write.
const REFUSED: &str = "refused";
const NOT_KEPT: &str = "not_kept";

/// The counters of one process.
#[derive(Debug)]
pub struct Metrics(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    deliveries: Counter,
    attempts: Counter,
    ended: Counter,
    failed: Counter,
    sessions: Counter,
    turns: u64,
    calls: u64,
    generated_tokens: u64,
    session: Histogram,
}

/// Counts by name. Each name stands there from the start: what appears with its first count looks as if it had not grown.
#[derive(Debug)]
struct Counter(BTreeMap<String, u64>);

/// What is true at this moment.
#[derive(Debug)]
pub(crate) struct Now<'a> {
    /// The time.
    pub(crate) at: DateTime<Utc>,
    /// The jobs that have not ended.
    pub(crate) tally: Tally,
    /// What confines the commands.
    pub(crate) sandbox: &'a str,
    /// Whether jobs can be worked on.
    pub(crate) is_healthy: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        let accepted = [Accepted::Queued, Accepted::Joined, Accepted::Ignored, Accepted::Repeated];
        let reasons = [
            Reason::Finished,
            Reason::BrokenCall,
            Reason::TurnCut,
            Reason::Repeated,
            Reason::Turns,
            Reason::Context,
            Reason::Time,
        ];
        Self(Mutex::new(Counts {
            deliveries: Counter::of(
                accepted.map(Accepted::name).into_iter().chain([REFUSED, NOT_KEPT]),
            ),
            attempts: Counter::of([
                "ended",
                "untold",
                "dropped",
                "joined",
                "retry",
                "unreachable",
                "parked",
                "lease_lost",
            ]),
            ended: Counter::of(["draft_pr", "no_fix", "refused", "failed", "cancelled"]),
            failed: Counter::of(Failure::ALL.iter().map(name_of)),
            sessions: Counter::of(reasons.iter().map(name_of)),
            turns: 0,
            calls: 0,
            generated_tokens: 0,
            session: Histogram::new(&SESSION),
        }))
    }
}

impl Metrics {
    /// Counts an answer to a delivery; `accepted` is none where it was not kept.
    pub(crate) fn delivery(&self, accepted: Option<Accepted>, is_own_fault: bool) {
        let unkept = if is_own_fault { NOT_KEPT } else { REFUSED };
        self.counts().deliveries.add(accepted.map_or(unkept, Accepted::name));
    }

    /// Counts what an attempt at a job came to, once it is written down.
    pub(crate) fn attempt(&self, verdict: &Verdict) {
        let mut counts = self.counts();
        if let Verdict::Ended(end) = verdict {
            counts.end(end);
        }
        counts.attempts.add(match verdict {
            Verdict::Ended(_) => "ended",
            Verdict::Untold { .. } => "untold",
            Verdict::Dropped { .. } => "dropped",
            Verdict::Joined(_) => "joined",
            Verdict::Retry { .. } => "retry",
            Verdict::Unreachable { .. } => "unreachable",
            Verdict::Parked => "parked",
            Verdict::LeaseLost => "lease_lost",
        });
    }

    /// Counts a session.
    pub(crate) fn session(&self, ended: &Ended) {
        let mut counts = self.counts();
        counts.sessions.add(&name_of(&ended.reason));
        counts.turns += u64::from(ended.turns);
        counts.calls += u64::from(ended.calls);
        counts.generated_tokens += ended.generated_tokens;
        counts.session.observe(ended.elapsed);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // A half counted job is better than none at all.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text for Prometheus.
    pub(crate) fn text(&self, now: &Now<'_>) -> String {
        let mut text = Text::default();
        text.head("hyla_build_info", "gauge", "The version of this program.");
        text.row("hyla_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        text.head("hyla_sandbox_info", "gauge", "What confines the agent's commands.");
        text.row("hyla_sandbox_info", &[("backend", now.sandbox)], 1.0);
        let help = "1 while the sandbox holds and jobs can be worked on.";
        text.single("hyla_sandbox_holds", "gauge", help, f64::from(u8::from(now.is_healthy)));
        now.waiting(&mut text);
        self.counts().write(&mut text);
        text.memory();
        text.0
    }
}

impl Now<'_> {
    fn waiting(&self, text: &mut Text) {
        let tally = &self.tally;
        let help = "Jobs that wait, those of a retry too.";
        text.single("hyla_jobs_queued", "gauge", help, tally.n_queued as f64);
        let help = "Jobs among them that a worker may take.";
        text.single("hyla_jobs_due", "gauge", help, tally.n_due as f64);
        let age = tally.oldest_due.and_then(|due| (self.at - due).to_std().ok());
        let help = "For how long the oldest of these has been due.";
        let seconds = age.unwrap_or_default().as_secs_f64();
        text.single("hyla_jobs_oldest_due_seconds", "gauge", help, seconds);
        let of = |stage| tally.running.iter().filter(|each| **each == stage).count() as f64;
        let rows = Stage::ALL.map(|stage| (stage.name(), of(stage)));
        text.family("hyla_jobs_running", "gauge", "Jobs at work by stage.", "stage", rows);
    }
}

impl Counts {
    fn end(&mut self, end: &End) {
        let outcome = match end.outcome {
            Outcome::DraftPr => "draft_pr",
            Outcome::NoFix(_) => "no_fix",
            Outcome::Refused(_) => "refused",
            Outcome::Failed(failure) => {
                self.failed.add(&name_of(&failure));
                "failed"
            }
            Outcome::Cancelled => "cancelled",
        };
        self.ended.add(outcome);
    }

    fn write(&self, text: &mut Text) {
        for (name, label, counter, help) in [
            (
                "hyla_deliveries_total",
                "status",
                &self.deliveries,
                "Deliveries of webhooks by what became of them.",
            ),
            (
                "hyla_attempts_total",
                "verdict",
                &self.attempts,
                "Attempts at jobs by what they came to.",
            ),
            ("hyla_jobs_ended_total", "outcome", &self.ended, "Jobs that ended by how."),
            (
                "hyla_jobs_failed_total",
                "why",
                &self.failed,
                "Jobs that ended as failed by what broke.",
            ),
            (
                "hyla_sessions_total",
                "reason",
                &self.sessions,
                "Sessions of the model by why they ended.",
            ),
        ] {
            let rows = counter.0.iter().map(|(of, n)| (of.as_str(), *n as f64));
            text.family(name, "counter", help, label, rows);
        }
        for (name, help, n) in [
            ("hyla_session_turns_total", "Turns of the model.", self.turns),
            ("hyla_session_calls_total", "Calls of tools.", self.calls),
            (
                "hyla_session_generated_tokens_total",
                "Tokens that the model wrote.",
                self.generated_tokens,
            ),
        ] {
            text.single(name, "counter", help, n as f64);
        }
        text.histogram("hyla_session_seconds", "How long sessions took.", &self.session);
    }
}

impl Counter {
    fn of<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Self {
        Self(names.into_iter().map(|name| (name.into(), 0)).collect())
    }

    fn add(&mut self, name: &str) {
        *self.0.entry(name.to_owned()).or_default() += 1;
    }
}
