//! The assertions of a GitHub App: signed with RS256, and good for ten minutes at most.

use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::TimeDelta;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Public};
use openssl::rsa::Rsa;
use openssl::sign::Verifier;
use serde_json::Value;

use super::super::server::Reply;
use super::super::state::State;

/// Longest life of an assertion.
const LIFE: TimeDelta = TimeDelta::minutes(10);

/// The keys of the app.
pub(super) struct KeyPair {
    pub private_pem: String,
    pub public: PKey<Public>,
}

/// One pair for a whole run of tests: a fresh one takes longer than most tests.
pub(super) fn key_pair() -> &'static KeyPair {
    static PAIR: OnceLock<KeyPair> = OnceLock::new();
    PAIR.get_or_init(|| {
        let private = Rsa::generate(2048).expect("keys of this size can be made");
        // GitHub's keys begin with `RSA PRIVATE KEY`.
        let pem = private.private_key_to_pem().expect("a fresh key can be written");
        let public = private.public_key_to_pem().expect("a fresh key can be written");
        KeyPair {
            private_pem: String::from_utf8(pem).expect("PEM is text"),
            public: PKey::public_key_from_pem(&public).expect("it was just written"),
        }
    })
}

/// Whether an assertion is the app's, and good now.
pub(super) fn check(state: &State, assertion: &str) -> Result<(), Reply> {
    let unreadable = || state.refused(401, "A JSON web token could not be decoded");
    let app = state.github.app.as_ref().ok_or_else(unreadable)?;
    let (signed, signature) = assertion.rsplit_once('.').ok_or_else(unreadable)?;
    let (header, claims) = signed.split_once('.').ok_or_else(unreadable)?;
    let header = decoded(header).ok_or_else(unreadable)?;
    let claims = decoded(claims).ok_or_else(unreadable)?;
    if header["alg"] != "RS256" {
        return Err(unreadable());
    }
    let issuer = match &claims["iss"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if issuer != app.id.to_string() {
        return Err(state.refused(404, "Integration not found"));
    }
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| unreadable())?;
    let mut verifier =
        Verifier::new(MessageDigest::sha256(), &app.key).expect("RSA and SHA-256 go together");
    verifier.update(signed.as_bytes()).expect("it is in memory");
    if !verifier.verify(&signature).unwrap_or(false) {
        return Err(unreadable());
    }
    let now = state.github.now().timestamp();
    let refused = |message: &str| Err(state.refused(401, message));
    match claims["iat"].as_i64() {
        Some(iat) if iat <= now => {}
        _ => {
            return refused(
                "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued",
            );
        }
    }
    match claims["exp"].as_i64() {
        Some(exp) if exp > now + LIFE.num_seconds() => {
            refused("'Expiration time' claim ('exp') is too far in the future")
        }
        Some(exp) if exp > now => Ok(()),
        _ => refused(
            "'Expiration time' claim ('exp') must be a numeric value representing the future time at which the assertion \
             expires",
        ),
    }
}

fn decoded(part: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}
