//! Whether a repository's git address answers by sending the caller elsewhere. One request, to the configured address only;
//! the answer is not followed, and an address that does not answer is left for git to report.

use std::time::Duration;

use reqwest::header::LOCATION;
use secrecy::ExposeSecret;

use super::Remote;
use super::client::Client;
use crate::redact::Redactor;

/// As long as git itself waits for a connection.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Where the address sends a git client that presents the token, if it sends it anywhere.
pub(crate) async fn redirect_of(remote: &Remote) -> Option<String> {
    if !matches!(remote.url.scheme(), "http" | "https") {
        return None;
    }
    let address = format!("{}/info/refs", remote.url.as_str().trim_end_matches('/'));
    let answer = client(remote)?
        .get(address)
        .query(&[("service", "git-upload-pack")])
        .basic_auth(&remote.user, Some(remote.password.expose_secret()))
        .send()
        .await
        .ok()?;
    if !answer.status().is_redirection() {
        return None;
    }
    let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
    // Before it is cut: half a token is found by nobody.
    let to = Redactor::new(&[&remote.password]).redact(to);
    Some(to.chars().filter(|letter| !letter.is_control()).take(200).collect())
}

fn client(remote: &Remote) -> Option<reqwest::Client> {
    let client = Client {
        url: &remote.url,
        public_url: None,
        ca_file: remote.ca_file.as_ref(),
        proxy: remote.proxy.as_ref(),
        timeout: TIMEOUT,
    };
    client.build().ok()
}
