//! Budgets of a session and limits of what its tools show. The defaults are those that the model was evaluated with.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

/// `[session]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Session {
    /// A profile file (system prompt and tool schemas as JSON) to use instead of the built-in one.
    pub profile: Option<PathBuf>,
    /// Model turns at most.
    pub turns: u32,
    /// Size of the context in tokens; the server's window must be at least this.
    pub context_tokens: u64,
    /// Tokens at most in one turn.
    pub turn_tokens: u32,
    /// How long the whole session may take.
    #[serde(with = "humantime_serde")]
    pub wall_time: Duration,
    /// Softmax temperature.
    pub temperature: f32,
    /// Nucleus mass.
    pub top_p: f32,
    /// Number of candidate tokens; 0 is all.
    pub top_k: u32,
    /// Smallest relative probability kept.
    pub min_p: f32,
    /// Whether the model reasons before it answers.
    pub thinking: bool,
    /// Characters at most that `Read` shows.
    pub read_chars: usize,
    /// Characters at most that `Bash` shows.
    pub bash_chars: usize,
    /// Paths at most that `Glob` shows.
    pub glob_paths: usize,
    /// How long a `Bash` command may run when the model names no limit.
    #[serde(with = "humantime_serde")]
    pub bash_timeout: Duration,
    /// How long a `Bash` command may run at most, whatever the model asks.
    #[serde(with = "humantime_serde")]
    pub bash_timeout_limit: Duration,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            profile: None,
            turns: 150,
            context_tokens: 131_072,
            turn_tokens: 8192,
            wall_time: Duration::from_secs(10_800),
            temperature: 0.6,
            top_p: 0.95,
            top_k: 20,
            min_p: 0.0,
            thinking: true,
            read_chars: 20_000,
            bash_chars: 30_000,
            glob_paths: 1000,
            bash_timeout: Duration::from_secs(120),
            bash_timeout_limit: Duration::from_secs(1000),
        }
    }
}
