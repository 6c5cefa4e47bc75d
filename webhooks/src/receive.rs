//! The HTTP side: size, forge, content type, signature, JSON, event, inbox, in this order. A body is never logged, and
//! an answer tells no more than the operator of the webhook needs.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use chrono::Utc;
use futures_util::StreamExt;
use secrecy::ExposeSecret;

use crate::{Accepted, Delivery, Event, Hook, Inbox, Options, gitea, signature};

/// Longest delivery id and event name that are believed; forges send UUIDs and short words.
const HEADER_CHARS: usize = 128;

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
    let state = Arc::new(Receiver { options, inbox });
    Ok(Router::new().route("/hooks/{forge}", post(receive).fallback(only_post)).with_state(state))
}

struct Receiver {
    options: Options,
    inbox: Arc<dyn Inbox>,
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
    let (delivery, event) = match outcome {
        Ok(verified) => verified,
        Err(refusal) => {
            tracing::warn!(%forge, status = refusal.0.as_u16(), reason = refusal.1, "refused a delivery");
            return Err(refusal);
        }
    };
    let (id, name) = (delivery.id.clone(), delivery.event.clone());
    match receiver.inbox.accept(delivery, event).await {
        Ok(accepted) => {
            let status = words(accepted);
            tracing::info!(%forge, delivery = %id, event = %name, status, "kept a delivery");
            Ok((StatusCode::ACCEPTED, Json(serde_json::json!({ "status": status })))
                .into_response())
        }
        Err(error) => {
            let cause = error.source.as_ref();
            tracing::error!(%forge, delivery = %id, error = %error, cause = %cause, "could not keep a delivery");
            let text = "the delivery was not kept; please deliver it again later".to_owned();
            Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, text))
        }
    }
}

fn words(accepted: Accepted) -> &'static str {
    match accepted {
        Accepted::Queued => "queued",
        Accepted::Joined => "joined",
        Accepted::Ignored => "ignored",
        Accepted::Repeated => "repeated",
    }
}

async fn delivery(
    receiver: &Receiver,
    forge: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Delivery, Event), Refusal> {
    let body = read(body, headers, &receiver.options).await?;
    let unknown = || Refusal(StatusCode::NOT_FOUND, "no forge has this name here".into());
    let hook = receiver.options.hooks.get(forge).ok_or_else(unknown)?;
    let payload = payload(headers, body)?;
    verify(headers, &payload, hook)?;

    let bad = |reason: &str| Refusal(StatusCode::BAD_REQUEST, reason.to_owned());
    let id = gitea::first(headers, gitea::delivery_headers(hook.dialect))
        .filter(|id| is_word(id))
        .ok_or_else(|| bad("the delivery has no usable id"))?;
    let name = gitea::first(headers, gitea::event_headers(hook.dialect))
        .filter(|name| is_word(name))
        .ok_or_else(|| bad("the delivery names no usable event"))?;
    let event = gitea::event(name, &payload)
        .map_err(|reason| Refusal(StatusCode::UNPROCESSABLE_ENTITY, reason))?;
    let delivery = Delivery {
        forge: forge.to_owned(),
        id: id.to_owned(),
        event: name.to_owned(),
        payload,
        received_at: Utc::now(),
    };
    Ok((delivery, event))
}

fn is_word(text: &str) -> bool {
    (1..=HEADER_CHARS).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic())
}

/// Reads at most the limit, in at most the time.
async fn read(body: Body, headers: &HeaderMap, options: &Options) -> Result<Vec<u8>, Refusal> {
    let limit = options.body_limit_bytes;
    let too_large =
        || Refusal(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {limit} bytes"));
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let whole = async {
        let mut bytes = Vec::new();
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk =
                chunk.map_err(|_| Refusal(StatusCode::BAD_REQUEST, "the body broke off".into()))?;
            if bytes.len() + chunk.len() > limit {
                return Err(too_large());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    let late = |_| Refusal(StatusCode::REQUEST_TIMEOUT, "the body took too long".into());
    tokio::time::timeout(options.body_timeout, whole).await.map_err(late)?
}

/// The JSON text: the body itself, or the `payload` of a form. Gitea and Forgejo sign the JSON text in both cases.
fn payload(headers: &HeaderMap, body: Vec<u8>) -> Result<Vec<u8>, Refusal> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") {
        return Ok(body);
    }
    if !media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let text = "the content type must be application/json or application/x-www-form-urlencoded";
        return Err(Refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, text.into()));
    }
    let mut payloads = url::form_urlencoded::parse(&body).filter(|(name, _)| name == "payload");
    match (payloads.next(), payloads.next()) {
        (Some((_, text)), None) => Ok(text.into_owned().into_bytes()),
        _ => Err(Refusal(StatusCode::BAD_REQUEST, "the form must have one field `payload`".into())),
    }
}

fn verify(headers: &HeaderMap, payload: &[u8], hook: &Hook) -> Result<(), Refusal> {
    signature::check(headers, payload, &hook.secrets)
        .map_err(|wrong| Refusal(StatusCode::UNAUTHORIZED, wrong.to_string()))
}
