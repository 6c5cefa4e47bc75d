//! The bot put together from its configuration: everything that a job needs and that outlives it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, anyhow, bail};
use async_trait::async_trait;
use config::{Config, Secrets};
use tokio::sync::{Notify, OnceCell};

use crate::ask::Bots;
use crate::checkout::Mirrors;
use crate::clock::{Clock, later};
use crate::doctor::ADD_A_FORGE;
use crate::egress;
use crate::folder::{self, Folder, make_way};
use crate::forge::{self, Forge, Permission, User};
use crate::halt::chain;
use crate::job::{Job, JobId, RepoName, Rule, Subject};
use crate::metrics::Metrics;
use crate::model::{self, Error, Model, Settings};
use crate::owner;
use crate::publish::Signer;
use crate::redact::Redactor;
use crate::reply;
use crate::sandbox::{self, Sandbox, SetupError};
use crate::session::Profile;
use crate::store::sqlite::Sqlite;
use crate::store::{self, Lease, Store};
use crate::worker::{Stop, Verdict, Work, Worker};
use crate::workshop::Workshop;
use crate::workspace::Owner;

/// Everything that outlives a job.
pub struct Bot {
    /// The settings.
    pub config: Config,
    /// Deliveries and jobs.
    pub store: Arc<dyn Store>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The trusted mirrors.
    pub mirrors: Mirrors,
    /// Sessions, patches, evidence.
    pub workshop: Workshop,
    /// Takes the secrets out of every text that leaves.
    pub redactor: Redactor,
    /// Told when there may be a job to claim.
    pub wake: Arc<Notify>,
    /// Told when there is a command to carry out.
    pub orders: Arc<Notify>,
    /// Told when a running job may have to stop.
    pub halts: Notify,
    /// What is counted of all that.
    pub metrics: Metrics,
    doors: BTreeMap<String, Door>,
    /// Why no agent may run, while the sandbox does not hold.
    barred: Mutex<Option<String>>,
}

/// A forge with its settings and, once it has been asked, who the bot is there.
pub(crate) struct Door {
    forge: Arc<dyn Forge>,
    settings: config::Forge,
    own: OnceCell<forge::User>,
}

/// Where a job is done.
pub struct Place {
    /// The forge's name in the configuration.
    pub name: String,
    /// The forge.
    pub forge: Arc<dyn Forge>,
    /// Its settings.
    pub settings: config::Forge,
    /// The bot's own user there.
    pub own_id: i64,
    /// The address that the forge has for the bot's commits, if it gives one.
    pub own_email: Option<String>,
}

impl Place {
    /// Whose asks are not followed here.
    pub(crate) fn bots(&self) -> Bots<'_> {
        Bots { own_id: self.own_id, others: &self.settings.bots }
    }

    /// Whether a user may write to a repository. A right that the forge does not tell is none.
    ///
    /// # Errors
    /// The forge does not answer.
    pub(crate) async fn may_write(
        &self,
        repo: &RepoName,
        user: &User,
    ) -> Result<bool, forge::Error> {
        match self.forge.permission(repo, user).await {
            Ok(permission) => Ok(permission >= Permission::Write),
            Err(forge::Error::Denied { .. } | forge::Error::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Door {
    /// The forge of this name, with the bot's own user there.
    ///
    /// # Errors
    /// The forge does not say who the bot is.
    pub(crate) async fn place(&self, name: &str) -> Result<Place, forge::Error> {
        let own = self.own.get_or_try_init(|| self.forge.whoami()).await?;
        Ok(Place {
            name: name.to_owned(),
            forge: Arc::clone(&self.forge),
            settings: self.settings.clone(),
            own_id: own.id,
            own_email: self.forge.email_of(own),
        })
    }
}

impl Bot {
    /// Puts the bot together. Nothing is asked of a forge or a model yet. `helper` is the `hyla` binary.
    ///
    /// # Errors
    /// No forge is configured, which is said before anything is made; or the data folder, the database, a secret's use or
    /// the sandbox's parts are not in order.
    pub async fn open(
        config: Config,
        secrets: &Secrets,
        helper: PathBuf,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        // Before anything is made on the disk.
        if config.forges.is_empty() {
            bail!("no forge is configured: {ADD_A_FORGE}");
        }
        let workshop = workshop(&config, secrets, helper, Arc::clone(&clock))?;
        let data = &config.data_dir;
        make_folders(data, workshop.owner)?;
        let forges = forges(&config, secrets)?.into_iter();
        let doors = forges.zip(config.forges.values()).map(|((name, forge), settings)| {
            (name, Door { forge, settings: settings.clone(), own: OnceCell::new() })
        });
        let doors = doors.collect();
        let store = Sqlite::open(&data.join("hyla.db")).await;
        let store = Arc::new(store.map_err(|error| with_owner(error.into(), data))?);
        Ok(Self {
            store,
            mirrors: Mirrors::new(data.join("mirrors")),
            workshop,
            redactor: Redactor::new(&secrets.all()),
            wake: Arc::new(Notify::new()),
            orders: Arc::new(Notify::new()),
            halts: Notify::new(),
            metrics: Metrics::default(),
            clock,
            doors,
            barred: Mutex::new(None),
            config,
        })
    }

    /// The place of a job, if the bot may work there.
    ///
    /// # Errors
    /// The forge or the repository is not configured, or the forge does not say who the bot is.
    pub(crate) async fn place(&self, job: &Job) -> Result<Place, Verdict> {
        let subject = &job.subject;
        let closed = |why: String| match job.key {
            // Nobody knows of a job without a key.
            None => Verdict::Dropped { why },
            Some(_) => Verdict::Ended(reply::refused(Rule::RepositoryNotAllowed, &why)),
        };
        let Some(door) = self.doors.get(&subject.forge) else {
            return Err(closed(format!("no forge is called `{}`", subject.forge)));
        };
        if !door.settings.allows(&subject.repo.to_string()) {
            return Err(closed(format!(
                "`{}` is not among the repositories of `{}`",
                subject.repo, subject.forge
            )));
        }
        Ok(door.place(&subject.forge).await?)
    }

    /// The place of an issue; none if the bot may not work there.
    ///
    /// # Errors
    /// The forge does not say who the bot is.
    pub(crate) async fn place_of(&self, subject: &Subject) -> Result<Option<Place>, forge::Error> {
        let door = self.doors.get(&subject.forge);
        match door.filter(|door| door.settings.allows(&subject.repo.to_string())) {
            Some(door) => door.place(&subject.forge).await.map(Some),
            None => Ok(None),
        }
    }

    /// The doors to the forges, by name.
    pub(crate) fn doors(&self) -> impl Iterator<Item = (&str, &Door)> {
        self.doors.iter().map(|(name, door)| (name.as_str(), door))
    }

    /// The forges by name.
    pub fn forges(&self) -> impl Iterator<Item = (&str, &dyn Forge)> {
        self.doors.iter().map(|(name, door)| (name.as_str(), door.forge.as_ref()))
    }

    /// The folder of a job.
    pub fn folder(&self, job: JobId) -> Folder {
        Folder::new(folder::of_job(&self.config.data_dir, job), self.workshop.owner)
    }

    /// Prolongs a lease. Whether it is held still, as far as the database answers.
    pub(crate) async fn holds(&self, lease: &Lease) -> bool {
        let until = later(self.clock.now(), self.config.queue.lease);
        !matches!(self.store.renew(lease, until).await, Err(store::Error::LostLease { .. }))
    }

    /// Removes a job's workspaces, once nothing of it runs any more.
    pub(crate) async fn tidy_up(&self, job: JobId) {
        if let Err(error) = self.workshop.sandbox.quiet().await {
            tracing::error!(error = %chain(&error), "a job's folder stays: a command may still run");
            return;
        }
        if let Err(error) = self.folder(job).clear().await {
            tracing::error!(%error, "a workspace was not removed");
        }
    }

    /// Whether jobs can be worked on; if not, why and what to do.
    ///
    /// # Errors
    /// The sandbox does not hold, or cannot prove that every command is dead.
    pub fn health(&self) -> Result<(), SetupError> {
        let remedy = "`hyla doctor` shows all checks; webhooks are kept meanwhile";
        match self.barred().clone() {
            Some(reason) => Err(SetupError::Unusable { reason, remedy: remedy.into() }),
            None if self.workshop.sandbox.is_sure() => Ok(()),
            None => Err(SetupError::Unsure),
        }
    }

    /// Looks whether the sandbox holds, and lets no job be claimed where it does not.
    pub async fn look_at_sandbox(&self) -> bool {
        let proven = prove(self.workshop.sandbox.as_ref()).await;
        let reason = proven.err().map(|error| error.to_string());
        let mut barred = self.barred();
        if let Some(reason) = &reason
            && barred.as_ref() != Some(reason)
        {
            tracing::error!(reason, "no agent runs; webhooks are kept until one may");
        }
        *barred = reason;
        barred.is_none()
    }

    /// Whether no agent may run because the sandbox does not hold.
    pub fn is_barred(&self) -> bool {
        self.barred().is_some()
    }

    fn barred(&self) -> MutexGuard<'_, Option<String>> {
        self.barred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker of the bot's queue.
    pub fn worker(&self, name: String) -> Worker {
        Worker {
            store: Arc::clone(&self.store),
            clock: Arc::clone(&self.clock),
            queue: self.config.queue.clone(),
            name,
            wake: Arc::clone(&self.wake),
        }
    }
}

#[async_trait]
impl Work for Bot {
    async fn job(&self, job: &Job, lease: &Lease, stop: &Stop) -> Verdict {
        let verdict = crate::run::run(self, job, lease, stop).await;
        verdict.map_text(&|text| self.redactor.redact(text))
    }

    fn may_claim(&self) -> bool {
        self.health().is_ok()
    }

    async fn close(&self, job: &Job, lease: &Lease, verdict: Verdict) -> Verdict {
        // The folder belongs to whoever has the lease. An attempt may break because another worker has it by now.
        let verdict = match verdict {
            // The job is gone, and nothing was done for it.
            Verdict::Joined(_) | Verdict::LeaseLost => verdict,
            _ if !self.holds(lease).await => Verdict::LeaseLost,
            verdict => verdict,
        };
        if !matches!(verdict, Verdict::LeaseLost) {
            self.tidy_up(job.id).await;
        }
        let verdict = crate::desk::close(self, job, lease, verdict).await;
        verdict.map_text(&|text| self.redactor.redact(text))
    }

    fn settled(&self, verdict: &Verdict) {
        self.metrics.attempt(verdict);
    }
}

/// The forges of a configuration, by name. Nothing is asked of them yet.
///
/// # Errors
/// A secret was not read, or cannot be used.
pub fn forges(
    config: &Config,
    secrets: &Secrets,
) -> anyhow::Result<BTreeMap<String, Arc<dyn Forge>>> {
    let build = |(name, settings): (&String, &config::Forge)| {
        let Some(own) = secrets.forges.get(name) else {
            bail!("the secrets of forge `{name}` were not read")
        };
        Ok((name.clone(), forge::build(settings, &own.credential)?))
    };
    config.forges.iter().map(build).collect()
}

/// What a session needs, for the service and for `hyla fix`.
///
/// # Errors
/// The profile, the model's settings, a folder of the configuration, the sandbox's parts or the key that signs commits
/// are not in order.
pub fn workshop(
    config: &Config,
    secrets: &Secrets,
    helper: PathBuf,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Workshop> {
    let missing = config.sandbox.read_only.iter().find(|folder| !folder.exists());
    if let Some(folder) = missing {
        bail!(
            "cannot use `sandbox.read_only`: `{}` does not exist; make it, or take it out of the configuration",
            folder.display()
        );
    }
    let data = config.data_dir.clone();
    let options = sandbox::Options { config: config.sandbox.clone(), helper, data };
    let profile = match &config.session.profile {
        Some(file) => Profile::load(file)?,
        None => Profile::built_in(),
    };
    let email = config.publish.author_email.as_deref().unwrap_or_default();
    let open = |key| Signer::open(key, email, clock.now()).map(Arc::new);
    let signer = secrets.signing.as_ref().map(open).transpose();
    Ok(Workshop {
        model: model::build(config, secrets.model.as_ref())?,
        signer: signer.map_err(|error| anyhow!("{}", chain(&error)))?,
        owner: sandbox::workspace_owner(&options),
        sandbox: sandbox::build_or_none(options),
        internet: Arc::new(egress::System),
        profile,
        config: config.clone(),
        clock,
        redactor: Redactor::new(&secrets.all()),
        secrets: secrets.all().into_iter().cloned().collect(),
    })
}

/// Proves that the sandbox holds. No agent runs otherwise.
///
/// # Errors
/// Names each property that does not hold and what to do.
pub async fn prove(sandbox: &dyn Sandbox) -> anyhow::Result<()> {
    if let Some(banner) = reply::banner(sandbox.confinement()) {
        tracing::warn!("{banner}");
    }
    let report = sandbox.probe().await;
    for check in report.checks.iter().filter(|check| check.verdict == sandbox::Verdict::Warns) {
        tracing::info!(
            check = check.name,
            detail = check.detail,
            "the sandbox holds without this; `hyla doctor` shows all checks"
        );
    }
    if report.holds() {
        return Ok(());
    }
    let failed: Vec<String> = report
        .checks
        .iter()
        .filter(|check| check.verdict == sandbox::Verdict::Fails)
        .map(|check| format!("  {}: {}", check.name, check.detail))
        .collect();
    bail!("the sandbox does not hold here:\n{}", failed.join("\n"))
}

/// Checks the model's context window, and loads a model in this process. A server that does not answer yet is no error: jobs wait for it.
///
/// # Errors
/// The server serves another model, or its window is smaller than the session's.
pub async fn check_window(model: &dyn Model, config: &Config) -> anyhow::Result<()> {
    let needed = config.session.context_tokens;
    match model.context_window().await {
        Ok(Some(window)) => {
            fits(window, needed)?;
            Ok(model.prepare().await?)
        }
        Ok(None) => {
            tracing::warn!("{}", untold(needed));
            Ok(())
        }
        Err(
            error @ (Error::OtherModel { .. }
            | Error::WithoutV1 { .. }
            | Error::Refused { .. }
            | Error::Load { .. }),
        ) => Err(anyhow!("{}; {}", chain(&error), error.next(Settings::File))),
        Err(error) => {
            let next = error.next(Settings::File);
            tracing::warn!(error = %chain(&error), next, "the model's server does not answer yet");
            Ok(())
        }
    }
}

/// Whether a session fits a model's window.
///
/// # Errors
/// It does not; the text says what to do.
pub fn fits(window: u64, needed: u64) -> anyhow::Result<()> {
    if window < needed {
        bail!(
            "the model's server has a context of {window} tokens, less than `session.context_tokens` ({needed}); start it with a larger one, or set the key to {window}"
        );
    }
    Ok(())
}

/// What to make sure of where a server does not tell its window.
pub fn untold(needed: u64) -> String {
    format!(
        "the model's server does not tell its context; make sure that it has {needed} tokens, or set `session.context_tokens` to what it has"
    )
}

/// Makes the data folder: the way to the workspaces, and beside it the mirrors, which only the service may see.
fn make_folders(data: &Path, owner: Owner) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mirrors = data.join("mirrors");
    make_way(&data.join("jobs"), owner)
        .and_then(|()| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&mirrors))
        .with_context(|| {
            let folder = data.display();
            format!("cannot write the data folder `{folder}`; make it, and give it to the service's user")
        })
        .map_err(|error| with_owner(error, data))
}

/// An error of the data folder with what to do, where something in it belongs to the wrong user.
fn with_owner(error: anyhow::Error, data: &Path) -> anyhow::Error {
    match owner::advice(data) {
        Some(advice) => anyhow!("{}; {advice}", chain(error.as_ref())),
        None => error,
    }
}
