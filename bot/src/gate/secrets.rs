//! Secrets in what a patch adds: keys and tokens whose shape is well known, and the values that the bot itself holds.
//!
//! It does not guess by randomness: a test's fixture would be refused and a password would pass. The reason names the
//! kind of secret and never its value.

use std::sync::OnceLock;

use regex::bytes::Regex;
use secrecy::ExposeSecret;

use crate::patch::Change;

/// Shapes, each from its issuer's documentation. A 40-digit token of Gitea and Forgejo looks like a commit's id, so it is
/// one only beside its name.
const SHAPES: [(&str, &str); 13] = [
    ("a private key", r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    ("an AWS access key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),
    ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})"),
    ("a GitLab token", r"\bgl(?:pat|dt|rt|ptt|cbt)-[A-Za-z0-9_\-]{20,}"),
    (
        "a Gitea or Forgejo token",
        r#"(?i)(?:gitea|forgejo)[a-z0-9_\-]*(?:token|key|secret|password)["' ]*[:= ]+["' ]*[0-9a-f]{40}\b"#,
    ),
    ("a Slack token", r"\bxox[abeoprs]-[A-Za-z0-9\-]{10,}"),
    ("a Slack webhook", r"hooks\.slack\.com/services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{20,}"),
    ("a Stripe key", r"\b[rs]k_live_[0-9A-Za-z]{20,}"),
    ("a Google API key", r"\bAIza[0-9A-Za-z_\-]{35}\b"),
    ("an npm token", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("a PyPI token", r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_\-]{50,}"),
    ("a key of a model provider", r"\bsk-(?:ant|proj|svcacct)-[A-Za-z0-9_\-]{20,}"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{34,}\b"),
];

/// Shorter values of the bot's would be found everywhere; real tokens are far longer.
const OWN_SECRET_BYTES: usize = 8;

pub(super) fn problem(change: &Change, own_secrets: &[config::Secret]) -> Option<String> {
    if own_secrets.iter().any(|secret| holds(change, secret.expose_secret())) {
        return Some("it holds a secret of the bot's".to_owned());
    }
    let found = shapes().iter().find(|(_, shape)| {
        // Issuers mark the keys of their documentation by this word.
        shape.find_iter(&change.added_bytes).any(|hit| !contains(hit.as_bytes(), b"EXAMPLE"))
    });
    found.map(|(name, _)| format!("it adds what looks like {name}"))
}

fn holds(change: &Change, secret: &str) -> bool {
    secret.len() >= OWN_SECRET_BYTES
        && (contains(&change.added_bytes, secret.as_bytes()) || change.path.contains(secret))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn shapes() -> &'static [(&'static str, Regex)] {
    static COMPILED: OnceLock<Vec<(&'static str, Regex)>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let compile = |shape: &str| {
            Regex::new(shape).expect("the shapes above are valid, which a test shows")
        };
        SHAPES.iter().map(|(name, shape)| (*name, compile(shape))).collect()
    })
}
