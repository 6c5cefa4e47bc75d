//! Failures on demand: which requests, what goes wrong, how often.
//!
//! A fault that happens instead of the effect leaves the state as it was; `AfterEffect` changes it and then lies.

use std::sync::Arc;

use tokio::sync::Notify;

/// Which requests a fault is for.
#[derive(Debug, Clone)]
pub struct Matcher {
    method: String,
    pattern: String,
}

impl Matcher {
    /// A method, or `*`, and the path below the forge's address, in which each `*` stands for anything. Git's own
    /// requests have paths too, such as `/acme/app.git/git-receive-pack`.
    pub fn new(method: &str, pattern: &str) -> Self {
        Self { method: method.to_owned(), pattern: pattern.to_owned() }
    }

    fn matches(&self, method: &str, path: &str) -> bool {
        (self.method == "*" || self.method == method) && wildcard(&self.pattern, path)
    }
}

/// What goes wrong.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Another answer, and no effect.
    Status {
        /// The status.
        status: u16,
        /// The body.
        body: String,
        /// Further headers; `content-type` is JSON unless it is among them.
        headers: Vec<(String, String)>,
    },
    /// Nothing goes wrong. It holds a later fault for the same requests back.
    Pass,
    /// No answer, ever, and no effect.
    Hang,
    /// The request is carried out, and answered, only once the test lets it, as by a proxy that was slow.
    Waits(Arc<Notify>),
    /// The request is carried out, and never answered.
    HangAfterEffect,
    /// The connection ends in the middle of the answer.
    CloseConnection,
    /// A 200 that calls itself JSON and is not.
    Garbage,
    /// The request is carried out, and then answered with this status.
    AfterEffect(u16),
}

impl Fault {
    /// A forge that is down and says when to come back: nobody asks again within the same call.
    pub fn down(status: u16, message: &str) -> Self {
        match Self::status(status, message) {
            Self::Status { status, body, .. } => {
                let headers = vec![("retry-after".to_owned(), "20".to_owned())];
                Self::Status { status, body, headers }
            }
            other => other,
        }
    }

    /// The same status with further headers.
    pub fn with(self, further: &[(&str, &str)]) -> Self {
        let further = further.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        match self {
            Self::Status { status, body, headers } => {
                Self::Status { status, body, headers: headers.into_iter().chain(further).collect() }
            }
            other => other,
        }
    }

    /// A status in the forge's own error shape.
    pub fn status(status: u16, message: &str) -> Self {
        let body = serde_json::json!({ "message": message, "url": "/api/swagger" }).to_string();
        Self::Status { status, body, headers: vec![] }
    }
}

/// The faults that are armed.
#[derive(Debug, Default)]
pub(super) struct Faults {
    armed: Vec<(Matcher, Fault, usize)>,
}

impl Faults {
    pub(super) fn arm(&mut self, matcher: Matcher, fault: Fault, times: usize) {
        self.armed.push((matcher, fault, times));
    }

    pub(super) fn clear(&mut self) {
        self.armed.clear();
    }

    /// The fault for a request, used up by one.
    pub(super) fn take(&mut self, method: &str, path: &str) -> Option<Fault> {
        let position = self
            .armed
            .iter()
            .position(|(matcher, _, times)| *times > 0 && matcher.matches(method, path))?;
        let (_, fault, times) = &mut self.armed[position];
        *times -= 1;
        Some(fault.clone())
    }
}

/// Whether a text is what a pattern with `*` describes.
fn wildcard(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(start) else { return false };
    (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| wildcard(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        let table = [
            ("/a/b", "/a/b", true),
            ("/a/b", "/a/bc", false),
            ("/a/*", "/a/", true),
            ("/a/*/c", "/a/x/y/c", true),
            ("/a/*/c", "/a/x/y/d", false),
            ("*", "/anything", true),
            ("*/git-receive-pack", "/acme/app.git/git-receive-pack", true),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(wildcard(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_fault_happens_as_often_as_it_was_armed() {
        let mut faults = Faults::default();
        faults.arm(Matcher::new("GET", "/x"), Fault::Garbage, 2);
        assert!(faults.take("POST", "/x").is_none());
        assert!(faults.take("GET", "/x").is_some());
        assert!(faults.take("GET", "/x").is_some());
        assert!(faults.take("GET", "/x").is_none());
    }
}
