//! The tokens of a GitHub App: each is for one repository and for an hour, and is minted when it is needed. `octocrab` signs,
//! asks and keeps them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use octocrab::models::{AppId, InstallationId};
use octocrab::{Octocrab, OctocrabBuilder};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use url::Url;

use super::wire;
use crate::forge::Error;
use crate::forge::client::SetupError;
use crate::forge::http::{Call, Mint, is_limit, join, retry_after};
use crate::halt::chain;
use crate::job::RepoName;

/// How long a token must still hold when it is used: longer than one call or one push takes.
const LEAST: chrono::Duration = chrono::Duration::minutes(10);

/// Characters of a path within JSON that are told: more than any in a documented answer.
const PATH_LIMIT: usize = 100;

/// An app, as which the bot speaks.
pub(super) struct App {
    crab: Octocrab,
    /// For each repository, as `owner/name` in small letters, the door that its installation opens.
    doors: Mutex<HashMap<String, Arc<Octocrab>>>,
    /// A repository in which it is installed, for what is about none.
    home: RepoName,
    /// Any address without a path: `octocrab` puts the API's own before what it is asked.
    root: Url,
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
        let builder = OctocrabBuilder::new()
            .base_uri(api.as_str())
            .and_then(|builder| {
                builder.app_from_rsa_pem(AppId(id), private_key.expose_secret().as_bytes())
            })
            .map_err(|_| SetupError::AppKey)?;
        let crab = builder.build_with_reqwest(client).map_err(|_| SetupError::AppKey)?;
        let mut root = api.clone();
        root.set_path("/");
        Ok(Self { crab, doors: Mutex::default(), home, root })
    }

    /// Asks as the app itself, not as one of its installations.
    ///
    /// # Errors
    /// As for every call.
    pub(super) async fn get<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        let path = join(&self.root, &call.path);
        let answer = self.crab.get::<T, _, ()>(path.path(), None).await;
        answer.map_err(|error| failed(call, error))
    }

    async fn door(&self, call: &Call, owner: &str, name: &str) -> Result<Arc<Octocrab>, Error> {
        let key = format!("{owner}/{name}").to_ascii_lowercase();
        if let Some(door) = self.doors().get(&key) {
            return Ok(Arc::clone(door));
        }
        let path = ["repos", owner, name, "installation"].map(str::to_owned).to_vec();
        let what = format!("{}, because the app's installation is not known", call.what);
        let installation: wire::Id = self.get(&Call::read(what, path)).await?;
        let id = u64::try_from(installation.id)
            .map_err(|_| call.nonsense("the app's installation has no number"))?;
        let builder = self.crab.installation_builder(InstallationId(id));
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
        401 => Error::Auth {
            call: what,
            message: format!("{message} (compare the clocks, and the app's number and key)"),
        },
        403 if !is_limit(&headers, &message) => Error::Denied { call: what, message },
        404 => Error::Missing { call: what, message: format!("{message} (is the app installed?)") },
        status @ (403 | 429 | 500..=599) => {
            Error::Unwell { call: what, status, message, retry_after: retry_after(&headers) }
        }
        status => Error::Declined { call: what, status, message },
    }
}
