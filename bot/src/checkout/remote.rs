//! Talking to a remote: the token goes to the configured address and nowhere else, once; redirects to other hosts are
//! refused; a transfer has limits of bytes and of time; and what went wrong has a name.
//!
//! No proxy but the configured one, no credential helper and no configuration of the machine takes part.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use git2::{Cred, ErrorClass, ErrorCode, FetchOptions, ProxyOptions, PushOptions, RemoteCallbacks};
use secrecy::ExposeSecret;
use url::Url;

use super::options;
use crate::forge::Remote;
use crate::job::Failure;

/// Bytes that one fetch may receive. Larger than the packs of well-known large repositories, smaller than a disk.
const FETCH_BYTES: usize = 8 << 30;

/// How long one transfer may take altogether: a first fetch of such a repository over a slow line.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3600);

/// Bytes kept of what a server tells people.
const WORDS_BYTES: usize = 1000;

/// Why git could not do something at a remote.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The token was refused.
    #[error("the forge refused the token for git")]
    Auth {
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// The token may not do this.
    #[error("the forge denied it to the token (403)")]
    Denied {
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// No such repository, or hidden from the token.
    #[error("there is no such repository, or it is hidden from the token")]
    Missing {
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// The server sent the bot elsewhere. The token did not go there.
    #[error(
        "the server redirects to another address, which is not followed; name that address in the configuration"
    )]
    Redirected {
        /// What libgit2 said, or where to.
        #[source]
        source: git2::Error,
    },
    /// The server's certificate is not trusted.
    #[error("the server's certificate is not trusted; `ca_file` names further authorities")]
    Certificate {
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// A server error, or too many requests.
    #[error("the forge is unwell ({status})")]
    Unwell {
        /// The HTTP status.
        status: u16,
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// No connection, or it broke, or the server fell silent.
    #[error("the forge did not answer")]
    Unreachable {
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
    /// The transfer passed a limit of the bot's.
    #[error("the transfer passed the limit of {limit}")]
    Limit {
        /// Which, in words.
        limit: &'static str,
    },
    /// Something else that git said.
    #[error("git failed")]
    Git {
        /// libgit2's words.
        #[source]
        source: git2::Error,
    },
}

impl RemoteError {
    /// What broke, for the job's end.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Auth { .. } => Failure::ForgeAuth,
            Self::Denied { .. } => Failure::ForgeDenied,
            Self::Missing { .. } => Failure::ForgeMissing,
            Self::Certificate { .. } | Self::Unwell { .. } | Self::Unreachable { .. } => {
                Failure::ForgeDown
            }
            Self::Redirected { .. } | Self::Limit { .. } | Self::Git { .. } => Failure::Git,
        }
    }

    /// Whether the same call may succeed later without anyone changing anything.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Unwell { .. } | Self::Unreachable { .. } => true,
            Self::Auth { .. }
            | Self::Denied { .. }
            | Self::Missing { .. }
            | Self::Redirected { .. }
            | Self::Certificate { .. }
            | Self::Limit { .. }
            | Self::Git { .. } => false,
        }
    }
}

/// Asks once whether the address answers by sending the bot elsewhere. libgit2 1.9 reads a null pointer on a redirect to a
/// path that ends in `/info/refs` without a query, which would end the whole service, so none may reach it.
pub(crate) async fn refuse_redirect(remote: &Remote) -> Result<(), RemoteError> {
    match crate::forge::redirect_of(remote).await {
        Some(to) => {
            let source = git2::Error::from_str(&format!("the server redirects to `{to}`"));
            Err(RemoteError::Redirected { source })
        }
        None => Ok(()),
    }
}

/// One conversation with a remote. Its options borrow it, so that it still knows afterwards what the callbacks saw.
pub(crate) struct Conversation<'r> {
    remote: &'r Remote,
    started: Instant,
    n_asked: Cell<u32>,
    elsewhere: Cell<bool>,
    over: Cell<Option<&'static str>>,
    /// What the server said of each ref of a push: its name and, if it was rejected, why.
    pub(crate) statuses: RefCell<Vec<(String, Option<String>)>>,
    words: RefCell<Vec<u8>>,
}

impl<'r> Conversation<'r> {
    /// Prepares libgit2 for this remote.
    pub(crate) fn new(remote: &'r Remote) -> Result<Self, RemoteError> {
        let prepared = match &remote.ca_file {
            Some(ca_file) => options::trust(ca_file),
            None => options::prepare(),
        };
        prepared.map_err(|source| RemoteError::Certificate { source })?;
        Ok(Self {
            remote,
            started: Instant::now(),
            n_asked: Cell::new(0),
            elsewhere: Cell::new(false),
            over: Cell::new(None),
            statuses: RefCell::new(Vec::new()),
            words: RefCell::new(Vec::new()),
        })
    }

    pub(crate) fn callbacks(&self) -> RemoteCallbacks<'_> {
        let mut callbacks = RemoteCallbacks::new();
        callbacks.credentials(|url, _user, _kinds| self.credentials(url));
        callbacks.transfer_progress(|progress| {
            if progress.received_bytes() > FETCH_BYTES {
                self.over.set(Some("8 GiB"));
            }
            self.keep_going()
        });
        callbacks.sideband_progress(|words| {
            let mut kept = self.words.borrow_mut();
            let room = WORDS_BYTES.saturating_sub(kept.len());
            kept.extend(words.iter().take(room));
            self.keep_going()
        });
        callbacks.push_update_reference(|name, status| {
            self.statuses.borrow_mut().push((name.to_owned(), status.map(str::to_owned)));
            Ok(())
        });
        callbacks
    }

    /// The proxy that leads to the remote, and never one of the machine's.
    pub(crate) fn proxy(&self) -> ProxyOptions<'_> {
        let mut options = ProxyOptions::new();
        if let Some(proxy) = &self.remote.proxy {
            // libgit2 takes a final slash for the proxy's path.
            options.url(proxy.as_str().trim_end_matches('/'));
        }
        options
    }

    pub(crate) fn fetch_options(&self) -> FetchOptions<'_> {
        let mut options = FetchOptions::new();
        options
            .remote_callbacks(self.callbacks())
            .proxy_options(self.proxy())
            .download_tags(git2::AutotagOption::None)
            .update_fetchhead(false)
            .follow_redirects(git2::RemoteRedirect::None);
        options
    }

    pub(crate) fn push_options(&self) -> PushOptions<'_> {
        let mut options = PushOptions::new();
        options
            .remote_callbacks(self.callbacks())
            .proxy_options(self.proxy())
            .follow_redirects(git2::RemoteRedirect::None);
        options
    }

    /// What the server told people while it worked, such as the reason of a hook, as one line.
    pub(crate) fn words(&self) -> String {
        let mut words = String::from_utf8_lossy(&self.words.borrow()).into_owned();
        if self.words.borrow().len() >= WORDS_BYTES {
            // The last word was cut, and half a token is found by no redaction.
            words.truncate(words.rfind(char::is_whitespace).unwrap_or_default());
        }
        let lines = words.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty());
        let line = lines.collect::<Vec<_>>().join("; ");
        line.chars().filter(|letter| !letter.is_control()).collect()
    }

    fn keep_going(&self) -> bool {
        if self.started.elapsed() > TRANSFER_TIMEOUT {
            self.over.set(Some("one hour"));
        }
        self.over.get().is_none()
    }

    /// Hands out the token, if the asker is the configured address and asks for the first time. A second question means
    /// that the token was refused: answering again would go on for ever.
    fn credentials(&self, asker: &str) -> Result<Cred, git2::Error> {
        if !is_same_address(&self.remote.url, asker) {
            self.elsewhere.set(true);
            return Err(git2::Error::from_str("credentials were asked for by another address"));
        }
        self.n_asked.set(self.n_asked.get() + 1);
        if self.n_asked.get() > 1 {
            let words = "the token was presented once and refused";
            return Err(git2::Error::new(ErrorCode::Auth, ErrorClass::Http, words));
        }
        Cred::userpass_plaintext(&self.remote.user, self.remote.password.expose_secret())
    }

    /// Gives an error of libgit2 its name.
    pub(crate) fn name(&self, source: git2::Error) -> RemoteError {
        if let Some(limit) = self.over.get() {
            return RemoteError::Limit { limit };
        }
        if self.elsewhere.get() || source.message().contains("redirect") {
            return RemoteError::Redirected { source };
        }
        if self.n_asked.get() > 1 || source.code() == ErrorCode::Auth {
            return RemoteError::Auth { source };
        }
        match status_in(source.message()) {
            Some(401) => return RemoteError::Auth { source },
            Some(403) => return RemoteError::Denied { source },
            Some(404 | 410) => return RemoteError::Missing { source },
            Some(status @ (429 | 500..=599)) => return RemoteError::Unwell { status, source },
            Some(_) | None => {}
        }
        // The local transport has no code for a path that is not there.
        if self.remote.url.scheme() == "file" && source.class() == ErrorClass::Os {
            return RemoteError::Missing { source };
        }
        match (source.code(), source.class()) {
            (ErrorCode::Certificate, _) | (_, ErrorClass::Ssl) => {
                RemoteError::Certificate { source }
            }
            (ErrorCode::NotFound, ErrorClass::Repository | ErrorClass::Os) => {
                RemoteError::Missing { source }
            }
            (ErrorCode::Timeout | ErrorCode::Eof, _) | (_, ErrorClass::Net | ErrorClass::Os) => {
                RemoteError::Unreachable { source }
            }
            (_, ErrorClass::Http) if source.message().contains("unexpected EOF") => {
                RemoteError::Unreachable { source }
            }
            (_, _) => RemoteError::Git { source },
        }
    }
}

/// The status in libgit2's only sentence that holds one.
fn status_in(message: &str) -> Option<u16> {
    message.split_once("http status code: ")?.1.trim().parse().ok()
}

/// Whether an address is the configured one: scheme, host, port and path. libgit2 asks with the remote's own address,
/// which a redirect within the host may have changed.
fn is_same_address(own: &Url, asker: &str) -> bool {
    let Ok(asker) = Url::parse(asker) else { return false };
    own.scheme() == asker.scheme()
        && own.host() == asker.host()
        && own.port_or_known_default() == asker.port_or_known_default()
        && own.path().trim_end_matches('/') == asker.path().trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_for_the_same_scheme_host_port_and_path_only() {
        let own = Url::parse("https://forge.example/git/acme/app.git").unwrap();
        let cases = [
            ("https://forge.example/git/acme/app.git", true),
            ("https://forge.example:443/git/acme/app.git/", true),
            ("https://FORGE.example/git/acme/app.git", true),
            ("http://forge.example/git/acme/app.git", false),
            ("https://forge.example:8443/git/acme/app.git", false),
            ("https://forge.example.evil/git/acme/app.git", false),
            ("https://forge.example@evil/git/acme/app.git", false),
            ("https://forge.example/git/acme/other.git", false),
            ("https://forge.example/git/acme/app.git/../other.git", false),
            ("forge.example:git/acme/app.git", false),
        ];
        for (asker, expected) in cases {
            assert_eq!(is_same_address(&own, asker), expected, "{asker}");
        }
    }

    #[test]
    fn a_status_is_read_from_the_sentence_that_holds_one() {
        assert_eq!(status_in("unexpected http status code: 503"), Some(503));
        assert_eq!(status_in("failed to connect to forge.example: 503"), None);
    }
}
