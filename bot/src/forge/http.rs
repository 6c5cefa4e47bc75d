//! One request to the forge's API: the token in one header, bounded answers, mapped errors, bounded repetition.
//!
//! It follows no redirect and reads nothing but JSON. What the answers mean is the business of each forge.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, LINK, LOCATION, RETRY_AFTER};
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Client, Method, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::Url;

use super::client::{SetupError, in_repo};
use super::shorten::Shortened;
use crate::forge::Error;
use crate::job::RepoName;
use crate::redact::Redactor;

/// Largest answer that is kept, long texts in it cut. All comments of an issue come in one answer; this holds 170 of
/// the longest.
const BODY_LIMIT_BYTES: usize = 64 << 20;
/// Largest answer that is read at all. Anybody may write comments, as long and as many as the forge takes.
const READ_LIMIT_BYTES: usize = 1 << 30;
/// Longest piece of the forge's own words in an error, in characters.
const MESSAGE_LIMIT: usize = 300;
/// How often a call that may be repeated is sent. A restart of a forge takes longer than any wait that is sane here;
/// the queue repeats the whole job later.
const ATTEMPTS: u32 = 3;
/// Wait before the first repetition; each later one waits four times as long.
const BACKOFF: Duration = Duration::from_millis(250);
/// The longest `Retry-After` that is waited for inside a call. A longer one is given to the caller.
const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(5);

/// How many calls GitHub still takes, and, in seconds since 1970, from when on it takes more.
const LIMIT_LEFT: &str = "x-ratelimit-remaining";
const LIMIT_RESET: &str = "x-ratelimit-reset";

/// What the forge is asked, and how.
pub(super) struct Call {
    /// For errors and logs, such as `read issue 7 of acme/app`.
    pub what: String,
    /// The method.
    pub method: Method,
    /// The path below the API, segment by segment, not yet percent-encoded.
    pub path: Vec<String>,
    /// The query.
    pub query: Vec<(&'static str, String)>,
    /// The JSON body.
    pub body: Option<Value>,
    /// Whether it may be sent again.
    pub repeat: Repeat,
}

/// Whether a call may be sent again after an answer or an error that leaves its effect open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// A second one changes nothing.
    Harmless,
    /// A second one would do it twice, so only when the first cannot have been carried out.
    Doubles,
}

impl Call {
    /// A call that only reads.
    pub(super) fn read(what: String, path: Vec<String>) -> Self {
        Self {
            what,
            method: Method::GET,
            path,
            query: vec![],
            body: None,
            repeat: Repeat::Harmless,
        }
    }

    /// A call that writes.
    pub(super) fn write(
        what: String,
        method: Method,
        path: Vec<String>,
        body: Value,
        repeat: Repeat,
    ) -> Self {
        Self { what, method, path, query: vec![], body: Some(body), repeat }
    }

    /// A call that puts a reaction on something of a repository, which is named in words and by its path.
    pub(super) fn react<const N: usize>(
        (what, repo): (String, &RepoName),
        path: [&str; N],
        reaction: &str,
    ) -> Self {
        let mut path = in_repo(repo, path);
        path.push("reactions".into());
        Self::write(
            format!("react with `{reaction}` to {what} of {repo}"),
            Method::POST,
            path,
            json!({ "content": reaction }),
            Repeat::Harmless,
        )
    }

    /// A call that deletes.
    pub(super) fn delete(what: String, path: Vec<String>) -> Self {
        Self { method: Method::DELETE, ..Self::read(what, path) }
    }

    /// An answer that is not what the API says.
    pub(super) fn nonsense(&self, reason: impl Into<String>) -> Error {
        Error::Answer { call: self.what.clone(), reason: reason.into() }
    }
}

/// A 2xx answer.
pub(super) struct Answer {
    content_type: String,
    links: String,
    body: Vec<u8>,
}

impl Answer {
    /// Its body as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        if !is_json(&self.content_type) {
            return Err(call.nonsense(format!("it is no JSON but `{}`", self.content_type)));
        }
        // Only the position is told: serde's own text may quote the body.
        serde_json::from_slice(&self.body).map_err(|e| {
            let (line, column) = (e.line(), e.column());
            call.nonsense(format!("its JSON is not as documented at line {line}, column {column}"))
        })
    }

    /// Where the next page of a list begins that is not counted, if there is one.
    pub(super) fn next_cursor(&self) -> Option<String> {
        let link = self.links.split(',').find(|link| link.contains("rel=\"next\""))?;
        let address = link.split_once('<')?.1.split_once('>')?.0;
        let url = Url::parse(address).ok()?;
        url.query_pairs().find(|(key, _)| key == "cursor").map(|(_, value)| value.into_owned())
    }
}

/// What stands in the header of a call.
pub(super) enum Bearer {
    /// The same for every call, with what takes it out of texts.
    Fixed(HeaderValue, Redactor),
    /// One that is asked for, again when it has run out.
    Minted(Arc<dyn Mint>),
}

/// Gives tokens for calls.
#[async_trait]
pub(super) trait Mint: Send + Sync {
    /// The token for a call.
    async fn token(&self, call: &Call) -> Result<SecretString, Error>;
    /// The token for this call was refused: the next one must be another.
    fn refused(&self, call: &Call);
}

impl Bearer {
    /// # Errors
    /// The text cannot stand in a header.
    pub(super) fn fixed(text: &str, token: &SecretString) -> Result<Self, SetupError> {
        let value = header(text).ok_or(SetupError::Token)?;
        Ok(Self::Fixed(value, Redactor::new(&[token])))
    }
}

fn header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What differs between the APIs of forges.
pub(super) struct Profile {
    /// Where the API begins.
    pub api: Url,
    /// Headers of every call.
    pub headers: &'static [(&'static str, &'static str)],
    /// How long a write waits after the one before.
    pub pause: Duration,
    /// Whose call it is.
    pub bearer: Bearer,
}

/// The API of one forge.
pub(super) struct Http {
    client: Client,
    profile: Profile,
    /// Held by the write that is under way; the time of the last one.
    last_write: tokio::sync::Mutex<Option<tokio::time::Instant>>,
}

/// The words of a forge without the token of the call: some proxies repeat the headers of a request that they refuse.
struct Clean(Redactor);

impl Http {
    /// Nothing is sent yet.
    pub(super) fn new(client: Client, profile: Profile) -> Self {
        Self { client, profile, last_write: tokio::sync::Mutex::default() }
    }

    /// What stands in the call's header, and what takes it out of texts.
    async fn authorization(&self, call: &Call) -> Result<(HeaderValue, Clean), Error> {
        match &self.profile.bearer {
            Bearer::Fixed(value, redactor) => Ok((value.clone(), Clean(redactor.clone()))),
            Bearer::Minted(mint) => {
                let token = mint.token(call).await?;
                let value = header(&format!("Bearer {}", token.expose_secret()));
                let value = value.ok_or_else(|| call.nonsense("the token fits no header"))?;
                Ok((value, Clean(Redactor::new(&[&token]))))
            }
        }
    }

    /// Sends a call until it is answered 2xx, or until sending it again would be wrong or useless.
    pub(super) async fn send(&self, call: &Call) -> Result<Answer, Error> {
        let _turn = self.turn(call).await;
        let (mut wait, mut attempt, mut is_renewed) = (BACKOFF, 1, false);
        loop {
            let (error, may_repeat) = match self.send_once(call).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if let (Error::Auth { .. }, Bearer::Minted(mint), false) =
                (&error, &self.profile.bearer, is_renewed)
            {
                mint.refused(call);
                is_renewed = true;
                continue;
            }
            let asked = match &error {
                Error::Unwell { retry_after, .. } => *retry_after,
                _ => None,
            };
            let pause = asked.unwrap_or(wait);
            if !may_repeat || attempt >= ATTEMPTS || pause > RETRY_AFTER_LIMIT {
                return Err(error);
            }
            tracing::debug!(call = call.what, attempt, error = %error, "forge call will be repeated");
            tokio::time::sleep(pause).await;
            wait *= 4;
            attempt += 1;
        }
    }

    /// The server's time, whatever it thinks of a call without a token.
    pub(super) async fn clock(&self, call: &Call) -> Result<Option<DateTime<Utc>>, Error> {
        let url = join(&self.profile.api, &call.path);
        let answer = self.client.get(url).send().await.map_err(|source| Error::Unreachable {
            call: call.what.clone(),
            source: source.without_url().into(),
        })?;
        let date = httpdate::parse_http_date(&text(answer.headers(), DATE));
        Ok(date.ok().map(Into::into))
    }

    /// Writes go one at a time, each some time after the one before.
    async fn turn(
        &self,
        call: &Call,
    ) -> Option<tokio::sync::MutexGuard<'_, Option<tokio::time::Instant>>> {
        if call.method == Method::GET || self.profile.pause.is_zero() {
            return None;
        }
        let mut last = self.last_write.lock().await;
        if let Some(last) = *last {
            tokio::time::sleep_until(last + self.profile.pause).await;
        }
        *last = Some(tokio::time::Instant::now());
        Some(last)
    }

    /// One try: the answer, or the error and whether the call may be sent again.
    async fn send_once(&self, call: &Call) -> Result<Answer, (Error, bool)> {
        let (authorization, clean) =
            self.authorization(call).await.map_err(|error| (error, false))?;
        clean.check_path(call).map_err(|error| (error, false))?;
        let url = join(&self.profile.api, &call.path);
        let mut request = self.client.request(call.method.clone(), url).query(&call.query);
        for (name, value) in self.profile.headers {
            request = request.header(*name, *value);
        }
        request = request.header(AUTHORIZATION, authorization);
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        let harmless = call.repeat == Repeat::Harmless;
        let lost = |source: reqwest::Error| {
            // A connection that never stood carried nothing. A timeout has cost enough already.
            let may_repeat = source.is_connect() || (harmless && !source.is_timeout());
            (
                Error::Unreachable { call: call.what.clone(), source: source.without_url().into() },
                may_repeat,
            )
        };
        let mut response = request.send().await.map_err(lost)?;
        let status = response.status();
        let headers = std::mem::take(response.headers_mut());
        let (mut body, mut n_read) = (Shortened::default(), 0);
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            n_read += chunk.len();
            body.push(&chunk);
            if body.bytes.len() > BODY_LIMIT_BYTES || n_read > READ_LIMIT_BYTES {
                let reason = format!("it is longer than {BODY_LIMIT_BYTES} bytes");
                return Err((call.nonsense(reason), false));
            }
        }
        let body = body.bytes;
        tracing::debug!(call = call.what, status = status.as_u16(), "forge answered");
        let content_type = clean.line(&text(&headers, CONTENT_TYPE));
        if status.is_success() {
            let links = text(&headers, LINK);
            return Ok(Answer { content_type, links, body });
        }
        let error = clean.refusal(call, status, &headers, clean.words(&content_type, &body));
        let may_repeat = match (&error, status.as_u16()) {
            // The limit says that the call was not carried out.
            (Error::Unwell { .. }, 403 | 429) => true,
            (_, 500 | 502..=504) => harmless,
            _ => false,
        };
        Err((error, may_repeat))
    }
}

impl Clean {
    /// A name such as `..` would silently ask for something else.
    fn check_path(&self, call: &Call) -> Result<(), Error> {
        let is_odd =
            |name: &str| matches!(name, "" | "." | "..") || name.contains(char::is_control);
        match call.path.iter().find(|segment| is_odd(segment)) {
            Some(odd) => Err(Error::Missing {
                call: call.what.clone(),
                message: format!("nothing can be named `{}`", self.line(odd)),
            }),
            None => Ok(()),
        }
    }

    fn refusal(
        &self,
        call: &Call,
        status: StatusCode,
        headers: &HeaderMap,
        message: String,
    ) -> Error {
        let what = call.what.clone();
        match status.as_u16() {
            401 => Error::Auth { call: what, message },
            403 if is_limit(headers, &message) => Error::Unwell {
                call: what,
                status: 403,
                message,
                retry_after: retry_after(headers),
            },
            403 => Error::Denied { call: what, message },
            404 => Error::Missing { call: what, message },
            300..=399 => match moved(&call.path, &text(headers, LOCATION)) {
                Some(to) => Error::Moved { call: what, to: self.line(&to) },
                None => call.nonsense(self.redirected(status, headers)),
            },
            429 | 408 | 500..=599 => Error::Unwell {
                call: what,
                status: status.as_u16(),
                message,
                retry_after: retry_after(headers),
            },
            400..=499 => Error::Declined { call: what, status: status.as_u16(), message },
            _ => call.nonsense(format!("its status is {status}")),
        }
    }

    /// The forge's own words from an error's body, cut and cleaned. Of anything but the documented shape only the
    /// type is told: proxies and login pages say nothing that helps and may say too much.
    fn words(&self, content_type: &str, body: &[u8]) -> String {
        #[derive(serde::Deserialize)]
        struct Body {
            #[serde(default)]
            message: String,
            #[serde(default)]
            errors: Option<Vec<Value>>,
        }
        let parsed = serde_json::from_slice::<Body>(body);
        let Some(body) = parsed.ok().filter(|_| is_json(content_type)) else {
            return match content_type {
                "" => "no words".to_owned(),
                other => format!("no words, but `{other}`"),
            };
        };
        let mut words = body.message;
        for error in body.errors.unwrap_or_default() {
            let said = error.as_str().or_else(|| error.get("message")?.as_str());
            if let Some(said) = said.or_else(|| error.get("code")?.as_str()) {
                words.push_str("; ");
                words.push_str(said);
            }
        }
        match words.as_str() {
            "" => "no words".to_owned(),
            _ => self.line(&words),
        }
    }

    fn redirected(&self, status: StatusCode, headers: &HeaderMap) -> String {
        let location = text(headers, LOCATION);
        let target = match Url::parse(&location) {
            Ok(mut url) => {
                url.set_query(None);
                url.set_fragment(None);
                // These fail only for addresses that cannot hold credentials in the first place.
                let _ = (url.set_username(""), url.set_password(None));
                url.to_string()
            }
            Err(_) => location.split(['?', '#']).next().unwrap_or_default().to_owned(),
        };
        format!(
            "it redirects ({}) to `{}`, and a token is never carried along: write the final address as `url` in the \
             configuration, and a renamed repository by its present name",
            status.as_u16(),
            self.line(&target),
        )
    }

    /// Words from outside without the token, on one line, without control characters, cut. The token first: half a token
    /// is found by nobody.
    fn line(&self, words: &str) -> String {
        let words = self.0.redact(words);
        let mut out: String = words
            .chars()
            .take(MESSAGE_LIMIT)
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        if words.chars().nth(MESSAGE_LIMIT).is_some() {
            out.push('…');
        }
        out
    }
}

/// `base` with further path segments, each percent-encoded.
pub(super) fn join<S: AsRef<str>>(base: &Url, segments: impl IntoIterator<Item = S>) -> Url {
    let mut url = base.clone();
    url.path_segments_mut()
        .expect("the address was checked to be http or https")
        .pop_if_empty()
        .extend(segments);
    // RFC 3986 allows no bare brackets in a path, as in `/users/NAME[bot]`, and some proxies take none.
    let path = url.path().replace('[', "%5B").replace(']', "%5D");
    url.set_path(&path);
    url
}

/// The present name of the repository that a call is about, where a redirect names another one.
fn moved(path: &[String], location: &str) -> Option<String> {
    let [root, owner, name, ..] = path else { return None };
    if root != "repos" {
        return None;
    }
    let location = location.split(['?', '#']).next().unwrap_or_default();
    let segments: Vec<&str> = location.split('/').collect();
    // GitHub tells the number of a repository that was renamed.
    if let Some(at) = segments.iter().position(|segment| *segment == "repositories") {
        let number = segments.get(at + 1).filter(|number| number.parse::<u64>().is_ok())?;
        return Some(format!("repositories/{number}"));
    }
    let at = segments.iter().position(|segment| segment == root)?;
    let (to_owner, to_name) = (*segments.get(at + 1)?, *segments.get(at + 2)?);
    let is_same = to_owner.eq_ignore_ascii_case(owner) && to_name.eq_ignore_ascii_case(name);
    (!is_same).then(|| format!("{to_owner}/{to_name}"))
}

/// GitHub answers 403 as well when it is asked too often, and says so in a header or in words alone.
pub(super) fn is_limit(headers: &HeaderMap, message: &str) -> bool {
    let is_used_up = headers.get(LIMIT_LEFT).is_some_and(|left| left.as_bytes() == b"0");
    is_used_up
        || headers.contains_key(RETRY_AFTER)
        || message.to_ascii_lowercase().contains("rate limit")
}

/// `Retry-After` as seconds or as a date, against the server's own clock where it tells it; without it, when GitHub's limit
/// begins anew.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = text(headers, RETRY_AFTER);
    if let Ok(seconds) = value.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let reset = || {
        let is_used_up = headers.get(LIMIT_LEFT).is_some_and(|left| left.as_bytes() == b"0");
        let second: u64 = headers.get(LIMIT_RESET)?.to_str().ok()?.trim().parse().ok()?;
        is_used_up.then(|| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(second)))?
    };
    let until = httpdate::parse_http_date(&value).ok().or_else(reset)?;
    let from =
        httpdate::parse_http_date(&text(headers, DATE)).unwrap_or_else(|_| SystemTime::now());
    Some(until.duration_since(from).unwrap_or_default())
}

fn text(headers: &HeaderMap, name: HeaderName) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}
