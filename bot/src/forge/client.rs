//! What the clients of all forges share besides the door itself: what may go wrong while one is made, the HTTP client with the
//! operator's certificate authorities, and the parts of paths.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Certificate, redirect};
use url::Url;

use crate::job::RepoName;

/// Why no client could be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The address cannot be used as it is.
    #[error(
        "cannot use forge address `{url}`: it must be http or https, without user, query or fragment"
    )]
    Url {
        /// The address, without credentials.
        url: String,
    },
    /// The token cannot stand in a header.
    #[error("cannot use the forge token: it is empty or holds characters that no token has")]
    Token,
    /// The app's key is none.
    #[error(
        "cannot use the app's private key: it must be an RSA key in PEM, as GitHub makes it for the app"
    )]
    AppKey,
    /// The app has no repository to speak in.
    #[error("cannot use a GitHub App without a repository: name one in `repositories`")]
    NoRepository,
    /// The draft prefix is empty, so nothing would be a draft.
    #[error(
        "cannot use an empty draft prefix: the forge would open pull requests that are no drafts"
    )]
    DraftPrefix,
    /// The certificate file cannot be read.
    #[error("cannot read certificate authorities from `{path}`")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The certificate file holds no certificates.
    #[error("cannot find PEM certificates in `{path}`")]
    CaPem {
        /// The file.
        path: PathBuf,
        /// Why, where the parser says.
        #[source]
        source: Option<reqwest::Error>,
    },
    /// The HTTP client cannot be made.
    #[error("cannot set up the HTTP client for the forge")]
    Client(#[source] reqwest::Error),
}

/// Where the forge is, and how it is reached.
pub(super) struct Client<'a> {
    /// The address that the bot reaches it at.
    pub url: &'a Url,
    /// The address that people reach it at, when it differs.
    pub public_url: Option<&'a Url>,
    /// A PEM file with certificate authorities to trust besides the system's.
    pub ca_file: Option<&'a PathBuf>,
    /// A proxy that leads there.
    pub proxy: Option<&'a Url>,
    /// How long one request may take, all in all.
    pub timeout: Duration,
}

impl Client<'_> {
    /// A client that follows no redirect, uses no proxy of the environment and carries no token along.
    ///
    /// # Errors
    /// An address or the certificates cannot be used.
    pub(super) fn build(self) -> Result<reqwest::Client, SetupError> {
        for url in [Some(self.url), self.public_url].into_iter().flatten() {
            check_url(url)?;
        }
        let builder = reqwest::Client::builder().no_proxy();
        let builder = match self.proxy {
            Some(proxy) => {
                let proxy = reqwest::Proxy::all(proxy.clone()).map_err(SetupError::Client)?;
                builder.proxy(proxy)
            }
            None => builder,
        };
        builder
            .tls_backend_native()
            .tls_certs_merge(certificates(self.ca_file)?)
            .redirect(redirect::Policy::none())
            .referer(false)
            .timeout(self.timeout)
            .user_agent(concat!("hyla/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(SetupError::Client)
    }
}

/// The path of something inside a repository.
pub(super) fn in_repo<const N: usize>(repo: &RepoName, rest: [&str; N]) -> Vec<String> {
    let start = ["repos", &repo.owner, &repo.name];
    start.into_iter().chain(rest).map(str::to_owned).collect()
}

/// Whether it is a whole commit id, of either length.
pub(super) fn is_commit_id(id: &str) -> bool {
    matches!(id.len(), 40 | 64) && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn check_url(url: &Url) -> Result<(), SetupError> {
    let is_http = matches!(url.scheme(), "http" | "https");
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if is_http && is_plain {
        return Ok(());
    }
    let host = url.host_str().unwrap_or_default();
    Err(SetupError::Url { url: format!("{}://{host}{}", url.scheme(), url.path()) })
}

fn certificates(file: Option<&PathBuf>) -> Result<Vec<Certificate>, SetupError> {
    let Some(path) = file else { return Ok(vec![]) };
    let pem =
        std::fs::read(path).map_err(|source| SetupError::CaFile { path: path.clone(), source })?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(SetupError::CaPem { path: path.clone(), source: None }),
        Err(source) => Err(SetupError::CaPem { path: path.clone(), source: Some(source) }),
    }
}
