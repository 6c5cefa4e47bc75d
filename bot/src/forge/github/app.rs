//! The bot's own App. As itself it asks with assertions that it signs; in a repository it speaks with tokens, each for one
//! repository and for an hour, minted when it is needed. `octocrab` signs, mints and keeps them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use octocrab::auth::create_jwt;
use octocrab::models::{AppId, InstallationId};
use octocrab::{EncodingKey, Octocrab, OctocrabBuilder};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::{HEADERS, wire};
use crate::forge::client::SetupError;
use crate::forge::http::{Bearer, Call, Http, Mint, Profile, is_limit, retry_after};
use crate::forge::{Delivery, Error, Installation, OwnApp, Webhook};
use crate::halt::chain;
use crate::job::RepoName;

/// How long a token must still hold when it is used: longer than one call or one push takes.
const LEAST: chrono::Duration = chrono::Duration::minutes(10);
/// Deliveries per page: the most that the server gives.
const PAGE_LIMIT: usize = 100;
/// Pages of deliveries that are read at once: 5,000 of them, the newest.
const PAGES_LIMIT: usize = 50;
/// How many of the newest deliveries are asked for where no instant is given.
const NEWEST: usize = 10;

/// Characters of a path within JSON that are told: more than any in a documented answer.
const PATH_LIMIT: usize = 100;

/// An app, as which the bot speaks.
pub(super) struct App {
    /// What it asks as itself.
    http: Http,
    crab: Octocrab,
    /// For each repository, as `owner/name` in small letters, the door that its installation opens.
    doors: Mutex<HashMap<String, Arc<Octocrab>>>,
    /// A repository in which it is installed, for what is about none.
    home: RepoName,
}

/// Signs what the app says as itself: each assertion is good for some minutes, and begins a minute ago.
struct Assertions {
    id: AppId,
    key: EncodingKey,
}

impl App {
    /// # Errors
    /// The key cannot be used.
    pub(super) fn new(
        client: reqwest::Client,
        api: &Url,
        (id, private_key): (u64, &SecretString),
        home: RepoName,
    ) -> Result<Self, SetupError> {
        let id = AppId(id);
        let key = EncodingKey::from_rsa_pem(private_key.expose_secret().as_bytes());
        let key = key.map_err(|_| SetupError::AppKey)?;
        let builder = OctocrabBuilder::new().base_uri(api.as_str());
        let builder = builder.map_err(|_| SetupError::AppKey)?.app(id, key.clone());
        let crab = builder.build_with_reqwest(client.clone()).map_err(|_| SetupError::AppKey)?;
        let bearer = Bearer::Minted(Arc::new(Assertions { id, key }));
        let pause = std::time::Duration::ZERO;
        let http = Http::new(client, Profile { api: api.clone(), headers: HEADERS, pause, bearer });
        Ok(Self { http, crab, doors: Mutex::default(), home })
    }

    /// Its name in addresses.
    ///
    /// # Errors
    /// As for every call.
    pub(super) async fn slug(&self) -> Result<String, Error> {
        let call = Call::read("read the bot's own app".into(), own([]));
        Ok(self.http.send(&call).await?.json::<wire::App>(&call)?.slug)
    }

    async fn wire_installation(
        &self,
        what: String,
        owner: &str,
        name: &str,
    ) -> Result<wire::Installation, Error> {
        let path = ["repos", owner, name, "installation"].map(str::to_owned).to_vec();
        let call = Call::read(what, path);
        match self.http.send(&call).await {
            Ok(answer) => answer.json(&call),
            Err(Error::Missing { call, message }) => {
                Err(Error::Missing { call, message: format!("{message} (is the app installed?)") })
            }
            Err(error) => Err(error),
        }
    }

    async fn door(&self, call: &Call, owner: &str, name: &str) -> Result<Arc<Octocrab>, Error> {
        let key = format!("{owner}/{name}").to_ascii_lowercase();
        if let Some(door) = self.doors().get(&key) {
            return Ok(Arc::clone(door));
        }
        let what = format!("{}, because the app's installation is not known", call.what);
        let id = InstallationId(self.wire_installation(what, owner, name).await?.id);
        let builder = self.crab.installation_builder(id);
        let door = builder.repositories(vec![name.to_owned()]).build();
        let door = Arc::new(door.map_err(|error| failed(call, error))?);
        self.doors().insert(key, Arc::clone(&door));
        Ok(door)
    }

    fn doors(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Octocrab>>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The repository that a call is about.
    fn about<'a>(&'a self, call: &'a Call) -> (&'a str, &'a str) {
        match call.path.as_slice() {
            [root, owner, name, ..] if root == "repos" => (owner, name),
            _ => (&self.home.owner, &self.home.name),
        }
    }

    /// One page of deliveries, the newest first, and where the next begins.
    async fn deliveries(
        &self,
        mut call: Call,
        cursor: Option<String>,
    ) -> Result<(Vec<Delivery>, Option<String>), Error> {
        call.query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let answer = self.http.send(&call).await?;
        let found: Vec<wire::Delivery> = answer.json(&call)?;
        Ok((found.into_iter().map(Into::into).collect(), answer.next_cursor()))
    }
}

/// A path below the app's own.
fn own<const N: usize>(rest: [&str; N]) -> Vec<String> {
    ["app"].into_iter().chain(rest).map(str::to_owned).collect()
}

#[async_trait]
impl OwnApp for App {
    async fn installation(&self, repo: &RepoName) -> Result<Installation, Error> {
        let what = format!("read the app's installation for {repo}");
        Ok(self.wire_installation(what, &repo.owner, &repo.name).await?.into())
    }

    async fn webhook(&self) -> Result<Option<Webhook>, Error> {
        let call = Call::read("read the app's webhook".into(), own(["hook", "config"]));
        match self.http.send(&call).await {
            Ok(answer) => Ok(answer.json::<wire::Webhook>(&call)?.into()),
            Err(Error::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn newest_deliveries(&self) -> Result<Vec<Delivery>, Error> {
        let what = "list the newest deliveries of the app's webhook".into();
        let mut call = Call::read(what, own(["hook", "deliveries"]));
        call.query.push(("per_page", NEWEST.to_string()));
        Ok(self.deliveries(call, None).await?.0)
    }

    async fn deliveries_since(&self, since: Option<DateTime<Utc>>) -> Result<Vec<Delivery>, Error> {
        let (mut found, mut cursor) = (Vec::new(), None);
        for _ in 0..PAGES_LIMIT {
            let what = "list the deliveries of the app's webhook".into();
            let mut call = Call::read(what, own(["hook", "deliveries"]));
            call.query.push(("per_page", PAGE_LIMIT.to_string()));
            let (page, next) = self.deliveries(call, cursor).await?;
            found.extend(page);
            cursor = next;
            let oldest = found.last().map(|oldest| oldest.at);
            if cursor.is_none() || oldest.zip(since).is_some_and(|(oldest, since)| oldest < since) {
                break;
            }
        }
        found.retain(|it| since.is_none_or(|since| it.at >= since));
        Ok(found)
    }

    async fn deliver_again(&self, delivery: &Delivery) -> Result<(), Error> {
        let id = delivery.id.to_string();
        let what = format!("have delivery `{}` of the app's webhook made again", delivery.guid);
        let path = own(["hook", "deliveries", &id, "attempts"]);
        let call = Call { method: Method::POST, ..Call::read(what, path) };
        self.http.send(&call).await?;
        Ok(())
    }
}

#[async_trait]
impl Mint for Assertions {
    async fn token(&self, call: &Call) -> Result<SecretString, Error> {
        let signed = create_jwt(self.id, &self.key);
        signed.map(Into::into).map_err(|_| call.nonsense("the app's key signs nothing"))
    }

    /// The next one is another anyway.
    fn refused(&self, _: &Call) {}
}

#[async_trait]
impl Mint for App {
    async fn token(&self, call: &Call) -> Result<SecretString, Error> {
        let (owner, name) = self.about(call);
        let door = self.door(call, owner, name).await?;
        let token = door.installation_token_with_buffer(LEAST).await;
        token.map_err(|error| failed(call, error))
    }

    fn refused(&self, call: &Call) {
        let (owner, name) = self.about(call);
        self.doors().remove(&format!("{owner}/{name}").to_ascii_lowercase());
    }
}

fn failed(call: &Call, error: octocrab::Error) -> Error {
    let what = call.what.clone();
    let source = match error {
        octocrab::Error::GitHub { source, .. } => source,
        // Only the place is told: serde's own text may quote what stands there, and a token stands there.
        octocrab::Error::Json { source, .. } => {
            let path: String = source.path().to_string().chars().take(PATH_LIMIT).collect();
            let (line, column) = (source.inner().line(), source.inner().column());
            return call.nonsense(format!(
                "its JSON is not as documented at line {line}, column {column}, in `{}`",
                path.escape_default()
            ));
        }
        other => return Error::Unreachable { call: what, source: chain(&other).into() },
    };
    let headers = source.headers.unwrap_or_default();
    let message: String = source.message.chars().filter(|c| !c.is_control()).take(300).collect();
    match source.status_code.as_u16() {
        401 => Error::Auth { call: what, message },
        403 if !is_limit(&headers, &message) => Error::Denied { call: what, message },
        404 => Error::Missing { call: what, message },
        status @ (403 | 429 | 500..=599) => {
            Error::Unwell { call: what, status, message, retry_after: retry_after(&headers) }
        }
        status => Error::Declined { call: what, status, message },
    }
}
