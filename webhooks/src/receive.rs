//! The HTTP side: forge, headers, size, signature, JSON, event, inbox, in this order, so that nothing is read of a
//! request that could not be believed. A body is never logged, and an answer tells no more than the operator of the
//! webhook needs.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use axum::{Extension, Router};
use futures_util::StreamExt;
use secrecy::ExposeSecret;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::signature::{self, Wrong};
use crate::{Delivery, Dialect, Event, Inbox, Options, payload};

/// Longest delivery id and event name that are believed; forges send UUIDs and short words.
const HEADER_CHARS: usize = 128;
/// How many of the largest bodies may be in memory at once. Real ones have a thousandth of that size.
const LARGEST_BODIES: usize = 4;

/// A forge whose deliveries could not be verified.
#[derive(Debug, thiserror::Error)]
#[error("cannot receive webhooks of forge `{forge}`: {reason}")]
pub struct BuildError {
    /// The forge's name in the configuration.
    pub forge: String,
    /// What is wrong with its secrets.
    pub reason: &'static str,
}

/// `POST /hooks/{forge}` for every configured forge.
///
/// # Errors
/// A forge has no secret, an empty one, or more than two.
pub fn router(options: Options, inbox: Arc<dyn Inbox>) -> Result<Router, BuildError> {
    for (forge, hook) in &options.hooks {
        let wrong = |reason| Err(BuildError { forge: forge.clone(), reason });
        if hook.secrets.iter().any(|secret| secret.expose_secret().trim().is_empty()) {
            return wrong("a webhook secret is empty");
        }
        if !(1..=2).contains(&hook.secrets.len()) {
            return wrong("it needs one webhook secret, or two while they are rotated");
        }
    }
    let room = options.body_limit_bytes.saturating_mul(LARGEST_BODIES).min(Semaphore::MAX_PERMITS);
    let state = Arc::new(Receiver { options, inbox, room: Arc::new(Semaphore::new(room)) });
    Ok(Router::new().route("/hooks/{forge}", post(receive).fallback(only_post)).with_state(state))
}

struct Receiver {
    options: Options,
    inbox: Arc<dyn Inbox>,
    /// A permit for each byte that may be in memory.
    room: Arc<Semaphore>,
}

/// A body and its share of the room, which it has until it is dropped.
struct Whole {
    bytes: Vec<u8>,
    share: Option<OwnedSemaphorePermit>,
}

/// What somebody reads who opens the address in a browser.
async fn only_post() -> (StatusCode, &'static str) {
    (
        StatusCode::METHOD_NOT_ALLOWED,
        "This is the address of a webhook: the forge sends its deliveries here, with POST.\n",
    )
}

/// An answer that is not 2xx.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1 + "\n").into_response()
    }
}

async fn receive(
    State(receiver): State<Arc<Receiver>>,
    Path(forge): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let outcome = delivery(&receiver, &forge, &headers, body).await;
    let (delivery, event, _share) = match outcome {
        Ok(verified) => verified,
        Err(refusal) => {
            tracing::warn!(%forge, status = refusal.0.as_u16(), reason = refusal.1, "refused a delivery");
            return Err(refusal);
        }
    };
    let (id, name) = (delivery.id.clone(), delivery.event.clone());
    match receiver.inbox.accept(delivery, event).await {
        Ok(accepted) => {
            let status = accepted.name();
            tracing::info!(%forge, delivery = %id, event = %name, status, "kept a delivery");
            let body = Json(serde_json::json!({ "status": status }));
            // The extension is for whoever counts.
            Ok((StatusCode::ACCEPTED, Extension(accepted), body).into_response())
        }
        Err(error) => {
            let cause = error.source.as_ref();
            tracing::error!(%forge, delivery = %id, error = %error, cause = %cause, "could not keep a delivery");
            let text = "the delivery was not kept; please deliver it again later".to_owned();
            Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, text))
        }
    }
}

async fn delivery(
    receiver: &Receiver,
    forge: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Delivery, Event, Option<OwnedSemaphorePermit>), Refusal> {
    let unknown = || Refusal(StatusCode::NOT_FOUND, "no forge has this name here".into());
    let hook = receiver.options.hooks.get(forge).ok_or_else(unknown)?;
    let wrong = |wrong: Wrong| Refusal(StatusCode::UNAUTHORIZED, wrong.to_string());
    let encoding = encoding(headers)?;
    let digests = signature::digests(headers).map_err(wrong)?;
    let bad = |reason: &str| Refusal(StatusCode::BAD_REQUEST, reason.to_owned());
    let id = payload::first(headers, payload::delivery_headers(hook.dialect))
        .filter(|id| is_word(id))
        .ok_or_else(|| bad("the delivery has no usable id"))?;
    let name = payload::first(headers, payload::event_headers(hook.dialect))
        .filter(|name| is_word(name))
        .ok_or_else(|| bad("the delivery names no usable event"))?;

    let Whole { bytes, share } = read(receiver, body, headers).await?;
    let check = |signed: &[u8]| signature::check(&digests, signed, &hook.secrets).map_err(wrong);
    let payload = match hook.dialect {
        Dialect::GitHub => {
            check(&bytes)?;
            text(encoding, bytes)?
        }
        // These sign the JSON text, whichever way it comes.
        Dialect::Gitea | Dialect::Forgejo => {
            let payload = text(encoding, bytes)?;
            check(&payload)?;
            payload
        }
    };
    let event = payload::event(name, &payload)
        .map_err(|reason| Refusal(StatusCode::UNPROCESSABLE_ENTITY, reason))?;
    let delivery =
        Delivery { forge: forge.to_owned(), id: id.to_owned(), event: name.to_owned(), payload };
    Ok((delivery, event, share))
}

fn is_word(text: &str) -> bool {
    (1..=HEADER_CHARS).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic())
}

/// Reads at most the limit, in at most the time, as far as there is room.
async fn read(receiver: &Receiver, body: Body, headers: &HeaderMap) -> Result<Whole, Refusal> {
    let limit = receiver.options.body_limit_bytes;
    let too_large =
        || Refusal(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {limit} bytes"));
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let whole = async {
        let mut whole = Whole { bytes: Vec::new(), share: None };
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk =
                chunk.map_err(|_| Refusal(StatusCode::BAD_REQUEST, "the body broke off".into()))?;
            if whole.bytes.len() + chunk.len() > limit {
                return Err(too_large());
            }
            whole.take(&chunk, &receiver.room)?;
        }
        Ok(whole)
    };
    let late = |_| Refusal(StatusCode::REQUEST_TIMEOUT, "the body took too long".into());
    tokio::time::timeout(receiver.options.body_timeout, whole).await.map_err(late)?
}

impl Whole {
    /// Adds a piece if there is room for it.
    fn take(&mut self, chunk: &[u8], room: &Arc<Semaphore>) -> Result<(), Refusal> {
        let n_bytes = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
        let more = Arc::clone(room).try_acquire_many_owned(n_bytes).map_err(|_| {
            let text = "too many large bodies at once; please deliver it again later";
            Refusal(StatusCode::SERVICE_UNAVAILABLE, text.into())
        })?;
        match &mut self.share {
            Some(share) => share.merge(more),
            share @ None => *share = Some(more),
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }
}

/// Where the JSON text is.
#[derive(Debug, Clone, Copy)]
enum Encoding {
    /// It is the body itself.
    Json,
    /// It is the field `payload` of a form.
    Form,
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, Refusal> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") {
        return Ok(Encoding::Json);
    }
    if media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return Ok(Encoding::Form);
    }
    let text = "the content type must be application/json or application/x-www-form-urlencoded";
    Err(Refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, text.into()))
}

/// The JSON text.
fn text(encoding: Encoding, body: Vec<u8>) -> Result<Vec<u8>, Refusal> {
    match encoding {
        Encoding::Json => return Ok(body),
        Encoding::Form => {}
    }
    let mut payloads = url::form_urlencoded::parse(&body).filter(|(name, _)| name == "payload");
    match (payloads.next(), payloads.next()) {
        (Some((_, text)), None) => Ok(text.into_owned().into_bytes()),
        _ => Err(Refusal(StatusCode::BAD_REQUEST, "the form must have one field `payload`".into())),
    }
}
