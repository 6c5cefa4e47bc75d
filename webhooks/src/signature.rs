//! Whether a body was signed with one of our secrets. Pure.
//!
//! Every signature header that is there must hold: a forge repeats the same digest under several names, and a
//! delivery whose headers disagree was not made by one.

use axum::http::HeaderMap;
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretString};
use sha2::Sha256;

/// SHA-256 digests as bare hex, or with a prefix. SHA-1 twins are not looked at.
const HEADERS: [(&str, &str); 4] = [
    ("x-forgejo-signature", ""),
    ("x-gitea-signature", ""),
    ("x-gogs-signature", ""),
    ("x-hub-signature-256", "sha256="),
];

/// Why a delivery is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Wrong {
    #[error("the delivery has no signature; set a secret on the webhook")]
    Missing,
    #[error("the signature is empty or malformed; set a secret on the webhook")]
    Malformed,
    #[error("the signature does not fit; the webhook's secret differs from the bot's")]
    Mismatch,
}

/// The digests in all signature headers; there is at least one.
pub(crate) fn digests(headers: &HeaderMap) -> Result<Vec<Vec<u8>>, Wrong> {
    let mut digests = Vec::new();
    for (name, prefix) in HEADERS {
        for value in headers.get_all(name) {
            let hex_digits = value.to_str().ok().and_then(|text| text.strip_prefix(prefix));
            let digest = hex_digits.and_then(|digits| hex::decode(digits).ok());
            match digest {
                Some(digest) if digest.len() == 32 => digests.push(digest),
                Some(_) | None => return Err(Wrong::Malformed),
            }
        }
    }
    if digests.is_empty() { Err(Wrong::Missing) } else { Ok(digests) }
}

/// Checks every digest against each secret, in constant time.
pub(crate) fn check(
    digests: &[Vec<u8>],
    signed: &[u8],
    secrets: &[SecretString],
) -> Result<(), Wrong> {
    let fits = |secret: &SecretString| digests.iter().all(|digest| verify(secret, signed, digest));
    // Both secrets are always tried, so that the time does not tell which one is in use.
    let fit = secrets.iter().fold(false, |fit, secret| fits(secret) | fit);
    if fit { Ok(()) } else { Err(Wrong::Mismatch) }
}

fn verify(secret: &SecretString, signed: &[u8], digest: &[u8]) -> bool {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose_secret().as_bytes())
        .expect("HMAC takes keys of any length");
    mac.update(signed);
    mac.verify_slice(digest).is_ok()
}
