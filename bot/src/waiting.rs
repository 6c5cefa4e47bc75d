//! A model with somebody in front of it: while a turn is waited for, the standard error stream says so.
//!
//! It changes nothing in what is asked and answered.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use engine::{Piece, Reply, Request};

use crate::model::{Error, Model};

/// How often a terminal is told.
const TICK: Duration = Duration::from_secs(1);
/// How long a wait is before a file or a pipe is told of it, once.
const LONG: Duration = Duration::from_secs(5);

/// Another model, watched.
pub struct Watched {
    /// The model.
    pub model: Arc<dyn Model>,
    /// How long it may be silent before it is given up.
    pub silence: Duration,
}

#[async_trait]
impl Model for Watched {
    async fn turn(
        &self,
        request: &Request,
        pieces: &mut (dyn FnMut(Piece) + Send),
    ) -> Result<Reply, Error> {
        let n_chars = AtomicUsize::new(0);
        let mut counted = |piece: Piece| {
            let n = match &piece {
                Piece::Text(text) | Piece::Reasoning(text) => text.chars().count(),
                Piece::Call(call) => call.arguments.chars().count(),
            };
            n_chars.fetch_add(n, Ordering::Relaxed);
            pieces(piece);
        };
        let turn = self.model.turn(request, &mut counted);
        tokio::pin!(turn);
        let mut sign = Sign::new(self.silence);
        let mut tick = tokio::time::interval(TICK);
        tick.tick().await;
        loop {
            tokio::select! {
                reply = &mut turn => return reply,
                _ = tick.tick() => sign.show(n_chars.load(Ordering::Relaxed)),
            }
        }
    }

    async fn context_window(&self) -> Result<Option<u64>, Error> {
        self.model.context_window().await
    }

    async fn prepare(&self) -> Result<(), Error> {
        self.model.prepare().await
    }

    fn name(&self) -> &str {
        self.model.name()
    }
}

/// What is shown of one wait. It takes itself away.
struct Sign {
    begun: Instant,
    silence: Duration,
    is_terminal: bool,
    is_shown: bool,
}

impl Sign {
    fn new(silence: Duration) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { begun: Instant::now(), silence, is_terminal, is_shown: false }
    }

    fn show(&mut self, n_chars: usize) {
        let elapsed = self.begun.elapsed();
        let limit = crate::clock::shown(self.silence);
        let words = match n_chars {
            0 => format!(
                "waiting for the model for {} s; it is given up after {limit} of silence",
                elapsed.as_secs()
            ),
            n => format!("the model has written {n} characters in {} s", elapsed.as_secs()),
        };
        if self.is_terminal {
            self.is_shown = true;
            put(&format!("\r{words}\x1b[K"));
        } else if elapsed >= LONG && !self.is_shown {
            self.is_shown = true;
            put(&format!("{words}\n"));
        }
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        if self.is_terminal && self.is_shown {
            put("\r\x1b[K");
        }
    }
}

fn put(text: &str) {
    // A closed terminal is no reason to stop the work.
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
