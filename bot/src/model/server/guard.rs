//! Who may ask, and how much: the key, pages of a browser that point here, the size and the time of a body.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use config::Secret;
use futures_util::StreamExt;
use hmac::{Hmac, KeyInit, Mac};
use secrecy::ExposeSecret;
use sha2::Sha256;

use super::App;
use super::fault::Fault;

/// Bytes of a body at most: a conversation of 131,072 tokens has about 600 kB, and escapes may double it.
const BODY_BYTES: usize = 8 << 20;
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Lets a request through, or answers it.
pub(super) async fn check(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, Fault> {
    let is_open = request.uri().path() == "/health";
    match &app.options.key {
        Some(key) if !is_open => key_is_right(request.headers(), key)?,
        Some(_) => {}
        None if app.options.is_local => host_is_local(request.headers())?,
        None => {}
    }
    Ok(next.run(request).await)
}

fn key_is_right(headers: &HeaderMap, key: &Secret) -> Result<(), Fault> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match given {
        Some((_, given)) if is_equal(given.trim(), key.expose_secret()) => Ok(()),
        Some(_) => Err(unauthorized("the key is wrong")),
        None => Err(unauthorized("give the key as `Authorization: Bearer KEY`")),
    }
}

fn unauthorized(message: &str) -> Fault {
    Fault::request(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message)
}

/// Compares in a time that does not tell how much is right: digests of the same length, by the library's own comparison.
fn is_equal(given: &str, key: &str) -> bool {
    let digest = |text: &str| {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"hyla model serve")
            .expect("HMAC takes keys of any length");
        mac.update(text.as_bytes());
        mac
    };
    let expected = digest(key).finalize().into_bytes();
    digest(given).verify_slice(&expected).is_ok()
}

/// A page that a browser on this machine shows may point a name of its own here; what it asks then names that host.
fn host_is_local(headers: &HeaderMap) -> Result<(), Fault> {
    let Some(host) = headers.get(header::HOST) else { return Ok(()) };
    let host = host.to_str().unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => name,
        Some(_) | None => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok() {
        return Ok(());
    }
    let message = "without a key this server answers only by its address or as `localhost`";
    Err(Fault::request(StatusCode::FORBIDDEN, None, message))
}

/// Reads at most the limit, in at most the time.
pub(super) async fn body(body: Body, headers: &HeaderMap) -> Result<Vec<u8>, Fault> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    // A page elsewhere cannot send this type without being asked first.
    if !media_type.eq_ignore_ascii_case("application/json") {
        let message = "the content type must be application/json";
        return Err(Fault::request(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, message));
    }
    let too_large = || {
        let message = format!("the body is larger than {BODY_BYTES} bytes");
        Fault::request(StatusCode::PAYLOAD_TOO_LARGE, None, message)
    };
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > BODY_BYTES as u64) {
        return Err(too_large());
    }
    let whole = async {
        let mut bytes = Vec::new();
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let broke_off = |_| Fault::request(StatusCode::BAD_REQUEST, None, "the body broke off");
            let chunk = chunk.map_err(broke_off)?;
            if bytes.len() + chunk.len() > BODY_BYTES {
                return Err(too_large());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    let late = |_| Fault::request(StatusCode::REQUEST_TIMEOUT, None, "the body took too long");
    tokio::time::timeout(BODY_TIMEOUT, whole).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, header::HeaderValue::from_static(value))])
    }

    #[test]
    fn only_the_whole_key_is_right() {
        let key = Secret::from("sk-1234");
        for (value, is_right) in [
            ("Bearer sk-1234", true),
            ("bearer  sk-1234 ", true),
            ("Bearer sk-123", false),
            ("Bearer sk-12345", false),
            ("Basic sk-1234", false),
            ("sk-1234", false),
            ("", false),
        ] {
            let given = headers(header::AUTHORIZATION, value);
            assert_eq!(key_is_right(&given, &key).is_ok(), is_right, "{value:?}");
        }
        assert!(key_is_right(&HeaderMap::new(), &key).is_err());
    }

    #[test]
    fn without_a_key_a_foreign_host_is_refused() {
        for (host, is_local) in [
            ("127.0.0.1:8080", true),
            ("localhost", true),
            ("LocalHost:1", true),
            ("[::1]:8080", true),
            ("evil.example:8080", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(host_is_local(&headers(header::HOST, host)).is_ok(), is_local, "{host:?}");
        }
    }
}
