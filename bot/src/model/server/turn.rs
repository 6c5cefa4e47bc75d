//! One turn between the engine's thread and a client: bounded, so that a slow client holds up nobody, and cancelled at the
//! next token when the client goes away.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use engine::{Event, Failure, Finished, Query, Turn};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Receiver, channel};

use super::Seat;
use super::answer::Answer;
use super::fault::Fault;
use super::metrics::Outcome;

/// Events that wait for a slow client at most, behind what the system's own buffers hold: at 20 tokens a second this is
/// most of a minute.
const EVENTS: usize = 1024;
/// How often a stream says that it is alive while nothing comes, so that nobody on the way gives up.
const BEAT: Duration = Duration::from_secs(10);
/// Events that go out in one write at most.
const WRITE_EVENTS: usize = 64;

/// A turn that runs for a client. Dropping it cancels the turn.
pub(super) struct Running {
    events: Receiver<Event>,
    turn: Arc<Held>,
    seat: Seat,
}

/// The turn, where the engine's thread can end it too.
#[derive(Default)]
struct Held(Mutex<Option<Turn>>);

impl Held {
    fn put(&self, turn: Option<Turn>) {
        // What was in there is dropped behind the lock, and with it cancelled.
        let _old =
            std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), turn);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.turn.put(None);
    }
}

/// Starts a turn, unless the engine refuses it. The place at the desk is held until the prompt is made.
pub(super) async fn start(
    mut seat: Seat,
    query: Query,
    desk: Arc<OwnedSemaphorePermit>,
) -> Result<Running, Fault> {
    let (sender, events) = channel(EVENTS);
    let turn = Arc::new(Held::default());
    let own = Arc::clone(&turn);
    let mut sender = Some(sender);
    let sink = move |event| {
        let is_full = sender.as_ref().is_some_and(|sender| sender.try_send(event).is_err());
        if is_full {
            sender = None;
            own.put(None);
        }
    };
    let engine = seat.app.engine.clone();
    // Making a long prompt takes longer than other requests should wait.
    let started = tokio::task::spawn_blocking(move || {
        let started = engine.start(query, sink);
        drop(desk);
        started
    });
    let started = match started.await {
        Ok(started) => started.map_err(Fault::from),
        Err(_) => Err(Fault::defect("the prompt could not be made")),
    };
    turn.put(Some(started.inspect_err(|fault| seat.refused(fault))?));
    Ok(Running { events, turn, seat })
}

impl Running {
    /// The whole answer, once the turn is over.
    pub(super) async fn whole(mut self, mut answer: Answer) -> Result<Value, Fault> {
        loop {
            match self.events.recv().await {
                Some(Event::Token(token)) => answer.keep(token),
                Some(Event::Piece(_)) => {}
                Some(Event::End(Ok(finished))) => {
                    let body = answer.whole(&finished);
                    self.done(&finished, &body["choices"][0]["finish_reason"]);
                    return Ok(body);
                }
                Some(Event::End(Err(failure))) => return Err(self.failed(failure)),
                None => return Err(self.failed(Failure::Cancelled)),
            }
        }
    }

    /// The answer as server-sent events.
    pub(super) fn stream(self, mut answer: Answer) -> Response {
        let first = lines(&answer.first());
        let begun = Stream { running: self, answer, first: Some(first), is_done: false };
        let bytes = futures_util::stream::unfold(begun, |mut stream| async move {
            let text = stream.next().await?;
            Some((Ok::<_, Infallible>(Bytes::from(text)), stream))
        });
        let headers =
            [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(bytes)).into_response()
    }

    fn done(&mut self, finished: &Finished, reason: &Value) {
        let outcome = match reason.as_str() {
            Some("length") => Outcome::Length,
            Some("tool_calls") => Outcome::ToolCalls,
            Some(_) | None => Outcome::Stop,
        };
        self.seat.done(finished, outcome);
    }

    fn failed(&mut self, failure: Failure) -> Fault {
        if failure != Failure::Cancelled {
            tracing::error!(error = %failure, "a turn broke off");
            self.seat.outcome = Outcome::Failed;
        }
        failure.into()
    }
}

struct Stream {
    running: Running,
    answer: Answer,
    first: Option<String>,
    is_done: bool,
}

impl Stream {
    /// The next text to send, or none behind the end.
    async fn next(&mut self) -> Option<String> {
        if self.is_done {
            return None;
        }
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Some(first);
        }
        let mut text = String::new();
        while text.is_empty() {
            match tokio::time::timeout(BEAT, self.running.events.recv()).await {
                Ok(event) => text.push_str(&self.take(event)),
                Err(_) => return Some(": the turn goes on\n\n".into()),
            }
        }
        for _ in 1..WRITE_EVENTS {
            match self.running.events.try_recv() {
                Ok(event) if !self.is_done => text.push_str(&self.take(Some(event))),
                Ok(_) | Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        Some(text)
    }

    fn take(&mut self, event: Option<Event>) -> String {
        let event = event.unwrap_or(Event::End(Err(Failure::Cancelled)));
        let finished = match &event {
            Event::End(Ok(finished)) => Some(finished.clone()),
            Event::End(Err(_)) | Event::Piece(_) | Event::Token(_) => None,
        };
        self.is_done = matches!(event, Event::End(_));
        match self.answer.next(event) {
            Ok(parts) => {
                let mut text = lines(&parts);
                if let Some(finished) = finished {
                    let reason = self.answer.finish_reason(finished.reply.stop);
                    self.running.done(&finished, &reason.into());
                    text.push_str("data: [DONE]\n\n");
                }
                text
            }
            Err(failure) => lines(&[self.running.failed(failure).body()]),
        }
    }
}

fn lines(parts: &[Value]) -> String {
    parts.iter().map(|part| format!("data: {part}\n\n")).collect()
}
