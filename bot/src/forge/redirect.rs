//! Whether a repository's git address answers by sending the caller elsewhere. One request, to the configured address only;
//! the answer is not followed, and an address that does not answer is left for git to report.

use std::time::Duration;

use reqwest::header::LOCATION;
use reqwest::redirect::Policy;
use secrecy::ExposeSecret;

use super::Remote;
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
    let mut builder = reqwest::Client::builder()
        .redirect(Policy::none())
        .no_proxy()
        .timeout(TIMEOUT)
        .user_agent("hyla");
    if let Some(proxy) = &remote.proxy {
        builder = builder.proxy(reqwest::Proxy::all(proxy.clone()).ok()?);
    }
    if let Some(ca_file) = &remote.ca_file {
        let pem = std::fs::read(ca_file).ok()?;
        for certificate in reqwest::Certificate::from_pem_bundle(&pem).ok()? {
            builder = builder.add_root_certificate(certificate);
        }
    }
    builder.build().ok()
}
