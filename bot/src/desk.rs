//! What a running job may write outside its own folder: its row in the store, under its lease, and its one status
//! comment on the issue.

use crate::ask::Asked;
use crate::bot::{Bot, Place};
use crate::clock::later;
use crate::forge;
use crate::halt::chain;
use crate::job::{Ask, CommitId, Job, Stage};
use crate::reply::{self, Status};
use crate::store::{Error, Lease};
use crate::worker::Verdict;

/// The writing side of one job.
pub(crate) struct Desk<'a> {
    pub(crate) lease: &'a Lease,
    bot: &'a Bot,
    place: &'a Place,
    job: &'a Job,
    comment: Option<i64>,
    identity: Option<Identity>,
    asked_by: Option<String>,
}

/// What a job is once it has been found to answer an ask.
struct Identity {
    key: String,
    ask: Ask,
    ask_number: u32,
}

impl<'a> Desk<'a> {
    pub(crate) fn new(bot: &'a Bot, place: &'a Place, job: &'a Job, lease: &'a Lease) -> Self {
        let identity = match (&job.key, job.ask()) {
            (Some(key), Some(ask)) => {
                Some(Identity { key: key.clone(), ask, ask_number: job.ask_number.unwrap_or(1) })
            }
            (Some(_) | None, _) => None,
        };
        let asked_by = job.asked_by.clone();
        Self { lease, bot, place, job, comment: job.comment, identity, asked_by }
    }

    /// What the job answers; none until it is known.
    pub(crate) fn ask(&self) -> Option<&Ask> {
        self.identity.as_ref().map(|identity| &identity.ask)
    }

    /// Which ask on this issue it is, from 1.
    pub(crate) fn ask_number(&self) -> u32 {
        self.identity.as_ref().map_or(1, |identity| identity.ask_number)
    }

    /// The login of who asked; none where an operator did.
    pub(crate) fn asker(&self) -> Option<&str> {
        self.asked_by.as_deref()
    }

    /// The job has its key: from here on it may speak on the issue.
    pub(crate) fn identified(&mut self, key: String, asked: &Asked, ask_number: u32) {
        self.identity = Some(Identity { key, ask: asked.ask.clone(), ask_number });
        self.asked_by(asked);
    }

    /// Notes who asked.
    pub(crate) fn asked_by(&mut self, asked: &Asked) {
        self.asked_by = asked.by.as_ref().map(|by| by.login.clone());
    }

    /// Notes a stage and shows it.
    ///
    /// # Errors
    /// The lease is lost, or the forge does not let the bot comment.
    pub(crate) async fn enter(
        &mut self,
        stage: Stage,
        base: Option<&CommitId>,
    ) -> Result<(), Verdict> {
        self.bot.store.enter(self.lease, stage, self.bot.clock.now()).await?;
        tracing::info!(stage = stage.name(), "entered a stage");
        self.show(Status::Working { stage, base }).await
    }

    /// Shows how the job ended, or that it will be tried again, and passes the verdict on.
    pub(crate) async fn close(&mut self, verdict: Verdict) -> Verdict {
        // A worker that lost its lease says nothing more: the next one does.
        let until = later(self.bot.clock.now(), self.bot.config.queue.lease);
        let is_last_word = matches!(verdict, Verdict::Ended(_) | Verdict::Retry { .. });
        if is_last_word
            && let Err(Error::LostLease { .. }) = self.bot.store.renew(self.lease, until).await
        {
            return Verdict::LeaseLost;
        }
        let attempts = self.bot.config.queue.attempts;
        let shown = match &verdict {
            Verdict::Ended(end) => self.show(Status::Ended(end)).await,
            Verdict::Retry { end, .. } if self.job.attempt < attempts => {
                let attempt = self.job.attempt + 1;
                self.show(Status::Waiting { why: &end.person, attempt, attempts }).await
            }
            Verdict::Retry { end, .. } => self.show(Status::Ended(end)).await,
            Verdict::Dropped { .. } | Verdict::Joined(_) | Verdict::Parked | Verdict::LeaseLost => {
                Ok(())
            }
        };
        if let Err(halt) = shown {
            tracing::warn!(?halt, "people on the issue were not told how the job stands");
        }
        verdict
    }

    /// Writes the status comment, or edits it in place.
    async fn show(&mut self, status: Status<'_>) -> Result<(), Verdict> {
        let Some(identity) = &self.identity else { return Ok(()) };
        let (repo, issue) = (&self.job.subject.repo, self.job.subject.issue);
        let body = reply::status(&identity.key, self.asked_by.as_deref(), status);
        let body = self.bot.redactor.redact(&body);
        if self.comment.is_none() {
            self.comment = self.own_comment(&identity.key).await?;
        }
        if let Some(comment) = self.comment {
            match self.place.forge.edit_comment(repo, comment, &body).await {
                Ok(()) => return Ok(()),
                // Somebody deleted it; a job without a visible state would be worse than a second comment.
                Err(forge::Error::Missing { .. })
                    if self.own_comment(&identity.key).await? != Some(comment) => {}
                // The work is worth more than the news of it.
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "the status comment was not edited");
                    return Ok(());
                }
            }
        }
        let comment = self.place.forge.comment(repo, issue, &body).await?;
        self.comment = Some(comment);
        self.bot.store.note_comment(self.lease, comment).await?;
        Ok(())
    }

    /// The comment that an earlier attempt wrote just before it died: the bot's own, with this job's marker.
    async fn own_comment(&self, key: &str) -> Result<Option<i64>, forge::Error> {
        let marker = reply::marker(key);
        let comments =
            self.place.forge.comments(&self.job.subject.repo, self.job.subject.issue).await?;
        let own = comments
            .iter()
            .find(|each| each.author.id == self.place.own_id && each.body.starts_with(&marker));
        Ok(own.map(|comment| comment.id))
    }
}
