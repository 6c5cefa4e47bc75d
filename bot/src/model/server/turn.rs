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
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::Instant;

use super::Seat;
use super::answer::Answer;
use super::desk::Place;
use super::fault::Fault;
use super::metrics::Outcome;

/// Events that wait for a slow client at most, behind what the system's own buffers hold: at 20 tokens a second this is
/// most of a minute.
const EVENTS: usize = 1024;
/// How often a stream says that it is alive while nothing comes, so that nobody on the way gives up.
const BEAT: Duration = Duration::from_secs(10);
/// Events that go out in one write at most.
const WRITE_EVENTS: usize = 64;

/// A comment of the event stream, which clients ignore.
const BEAT_TEXT: &str = ": the turn goes on\n\n";

/// A turn that runs for a client. Dropping it cancels the turn.
pub(super) struct Running {
    events: Receiver<Event>,
    own: Own,
}

struct Own {
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

impl Drop for Own {
    fn drop(&mut self) {
        self.turn.put(None);
    }
}

/// Starts a turn, unless the engine refuses it. The place at the desk is held until the prompt is made.
pub(super) async fn start(mut seat: Seat, query: Query, place: Place) -> Result<Running, Fault> {
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
        drop(place);
        started
    });
    let started = match started.await {
        Ok(started) => started.map_err(Fault::from),
        Err(_) => Err(Fault::defect("the prompt could not be made")),
    };
    turn.put(Some(started.inspect_err(|fault| seat.refused(fault))?));
    Ok(Running { events, own: Own { turn, seat } })
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
                    self.own.done(&finished, &body["choices"][0]["finish_reason"]);
                    return Ok(body);
                }
                Some(Event::End(Err(failure))) => return Err(self.own.failed(failure)),
                None => return Err(self.own.failed(Failure::Cancelled)),
            }
        }
    }

    /// The answer as server-sent events.
    pub(super) fn stream(self, mut answer: Answer) -> Response {
        let first = lines(&answer.first());
        let Self { events, own } = self;
        let begun =
            Stream { events, first: Some(first), rest: Rest { own, answer, is_done: false } };
        let bytes = futures_util::stream::unfold(begun, |mut stream| async move {
            let text = stream.next().await?;
            Some((Ok::<_, Infallible>(Bytes::from(text)), stream))
        });
        let headers =
            [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(bytes)).into_response()
    }
}

impl Own {
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
    events: Receiver<Event>,
    first: Option<String>,
    rest: Rest,
}

/// What makes the texts of a stream.
struct Rest {
    own: Own,
    answer: Answer,
    is_done: bool,
}

impl Stream {
    /// The next text to send, or none behind the end.
    async fn next(&mut self) -> Option<String> {
        let Self { events, first, rest } = self;
        if rest.is_done {
            return None;
        }
        if let Some(first) = first.take().filter(|first| !first.is_empty()) {
            return Some(first);
        }
        // It is asked for once the text before it has left.
        let due = Instant::now() + BEAT;
        let mut text = next_text(events, due, &mut |event| rest.take(event)).await;
        for _ in 1..WRITE_EVENTS {
            match events.try_recv() {
                Ok(event) if !rest.is_done => text.push_str(&rest.take(Some(event))),
                Ok(_) | Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        Some(text)
    }
}

/// The text of the next events that have one, or when it is due a sign of life: a call is told when it is whole, and its
/// tokens come long before it.
async fn next_text(
    events: &mut Receiver<Event>,
    due: Instant,
    take: &mut (dyn FnMut(Option<Event>) -> String + Send),
) -> String {
    loop {
        let Ok(event) = tokio::time::timeout_at(due, events.recv()).await else {
            return BEAT_TEXT.into();
        };
        let text = take(event);
        if !text.is_empty() {
            return text;
        }
    }
}

impl Rest {
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
                    self.own.done(&finished, &reason.into());
                    text.push_str("data: [DONE]\n\n");
                }
                text
            }
            Err(failure) => lines(&[self.own.failed(failure).body()]),
        }
    }
}

fn lines(parts: &[Value]) -> String {
    parts.iter().map(|part| format!("data: {part}\n\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Candidate, DrawnToken, Piece};

    #[tokio::test]
    async fn tokens_that_tell_nothing_put_off_no_sign_of_life() {
        let (sender, mut events) = channel(EVENTS);
        let token = || {
            let drawn = Candidate { id: 1, bytes: b"x".to_vec(), logprob: 0.0 };
            Event::Token(DrawnToken { drawn, likeliest: Vec::new() })
        };
        let mut n_tokens = 0;
        let mut take = |event: Option<Event>| match event {
            Some(Event::Piece(Piece::Text(text))) => text,
            Some(_) => {
                n_tokens += 1;
                String::new()
            }
            None => panic!("the sender is there"),
        };
        for _ in 0..3 {
            sender.try_send(token()).unwrap();
        }
        let due = Instant::now();
        let beat = tokio::time::timeout(BEAT / 2, next_text(&mut events, due, &mut take)).await;
        assert_eq!(beat.expect("it was due at once"), BEAT_TEXT);
        sender.try_send(token()).unwrap();
        sender.try_send(Event::Piece(Piece::Text("y".into()))).unwrap();
        assert_eq!(next_text(&mut events, due, &mut take).await, "y");
        assert_eq!(n_tokens, 4);
    }
}
