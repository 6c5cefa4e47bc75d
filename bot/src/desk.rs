//! What a running job may write outside its own folder: its row in the store, under its lease, and its one status
//! comment on the issue.

use crate::ask::Asked;
use crate::bot::{Bot, Place};
use crate::forge;
use crate::job::{Ask, CommitId, End, Failure, Job, Outcome, Rule, Stage, State};
use crate::reply::{self, Status};
use crate::run;
use crate::sandbox::Confinement;
use crate::store::{self, Lease};
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
        let is_known = self.comment.is_some();
        match self.show(Status::Working { stage, base }).await {
            Err(Verdict::LeaseLost) => Err(Verdict::LeaseLost),
            // The work is worth more than the news of it, once there is a comment at all.
            Err(halt) if is_known => {
                tracing::warn!(reason = %halt, "the status comment was not edited");
                Ok(())
            }
            shown => shown,
        }
    }

    /// How far commands are kept in, which every comment tells where it is not as it should be.
    fn confinement(&self) -> Confinement {
        self.bot.workshop.sandbox.confinement()
    }

    /// Writes the status comment, or edits it in place.
    async fn show(&mut self, status: Status<'_>) -> Result<(), Verdict> {
        let Some(identity) = &self.identity else { return Ok(()) };
        let (repo, issue) = (&self.job.subject.repo, self.job.subject.issue);
        let body =
            reply::status(&identity.key, self.asked_by.as_deref(), self.confinement(), status);
        let body = self.bot.redactor.redact(&body);
        if self.comment.is_none() {
            self.comment = self.own_comment(&identity.key).await?;
        }
        if let Some(comment) = self.comment {
            match self.place.forge.edit_comment(repo, comment, &body).await {
                Ok(()) => return self.still_ours(comment).await,
                // Somebody deleted it; a job without a visible state would be worse than a second comment.
                Err(forge::Error::Missing { .. })
                    if self.own_comment(&identity.key).await? != Some(comment) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let comment = self.place.forge.comment(repo, issue, &body).await?;
        self.comment = Some(comment);
        match self.bot.store.note_comment(self.lease, comment).await {
            Err(store::Error::LostLease { .. }) => {
                self.take_back(comment).await?;
                Err(Verdict::LeaseLost)
            }
            noted => Ok(noted?),
        }
    }

    /// Deletes a comment that arrived after another worker had taken the job, unless that one has found and kept it.
    async fn take_back(&self, comment: i64) -> Result<(), Verdict> {
        let row = self.bot.store.job(self.lease.job).await?;
        if row.is_some_and(|row| row.job.comment == Some(comment)) {
            return Ok(());
        }
        tracing::warn!(comment, "takes back a comment that came too late");
        Ok(self.place.forge.delete_comment(&self.job.subject.repo, comment).await?)
    }

    /// A forge that was slow, or a machine that slept, may have let another worker finish the job before an edit of this
    /// one arrived. How the job ended is then said once more, because nobody else will.
    async fn still_ours(&self, comment: i64) -> Result<(), Verdict> {
        if self.bot.holds(self.lease).await {
            return Ok(());
        }
        let job = self.bot.store.job(self.lease.job).await?.map(|row| row.job);
        if let Some(Job { key: Some(key), state: State::Ended { end }, asked_by, .. }) = job {
            let ended = Status::Ended(&end);
            let body = reply::status(&key, asked_by.as_deref(), self.confinement(), ended);
            let body = self.bot.redactor.redact(&body);
            self.place.forge.edit_comment(&self.job.subject.repo, comment, &body).await?;
        }
        Err(Verdict::LeaseLost)
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

/// Shows how a job ended, or that it will be tried again, and passes the verdict on. An end of which people could not be
/// told comes back as one that they have yet to be told of.
pub(crate) async fn close(bot: &Bot, job: &Job, lease: &Lease, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Ended(_) | Verdict::Retry { .. } | Verdict::Unreachable { .. } => {}
        Verdict::Untold { .. }
        | Verdict::Dropped { .. }
        | Verdict::Joined(_)
        | Verdict::Parked
        | Verdict::LeaseLost => return verdict,
    }
    // A worker that lost its lease, perhaps while the workspaces were removed, says nothing more: the next one does.
    if !bot.holds(lease).await {
        return Verdict::LeaseLost;
    }
    match tell(bot, lease, verdict.clone()).await {
        Ok(told) => told,
        Err(halt) => match verdict {
            Verdict::Ended(end) => untold(bot, job, end, &halt),
            verdict => {
                tracing::warn!(reason = %halt, "people on the issue were not told how the job stands");
                verdict
            }
        },
    }
}

/// Tells people. The attempt may have given the job its key or its comment, so its row is read again.
async fn tell(bot: &Bot, lease: &Lease, verdict: Verdict) -> Result<Verdict, Verdict> {
    let Some(row) = bot.store.job(lease.job).await? else { return Ok(verdict) };
    let job = row.job;
    if let (Verdict::Ended(end), None) = (&verdict, &job.key) {
        // Nobody knows of it yet, so there is no place to say how it ended.
        return match end.outcome {
            // There will be none either; should the issue come back, a sweep finds it.
            Outcome::Failed(Failure::ForgeMissing) => {
                Ok(Verdict::Dropped { why: end.operator.clone() })
            }
            _ => Err(verdict),
        };
    }
    let place = bot.place(&job).await?;
    let mut desk = Desk::new(bot, &place, &job, lease);
    let attempts = bot.config.queue.attempts;
    let verdict = match (verdict, &job.ready) {
        // Whatever failed afterwards: there is something to review.
        (Verdict::Ended(end), Some(ready)) if matches!(end.outcome, Outcome::Failed(_)) => {
            let pull = run::own_pull(&place, &job, ready).await?;
            let prefix = &place.settings.draft_prefix;
            let opened = pull.map(|pull| reply::opened(&pull, prefix, &ready.commit));
            Verdict::Ended(opened.unwrap_or(end))
        }
        (verdict, _) => verdict,
    };
    match &verdict {
        // Two bots that answer each other never stop.
        Verdict::Ended(End { outcome: Outcome::Refused(Rule::AdderIsBot), .. })
            if job.comment.is_none() => {}
        // Nobody has asked, so nobody waits for an answer.
        Verdict::Ended(End { outcome: Outcome::Refused(_), .. })
            if job.comment.is_none() && matches!(job.ask(), Some(Ask::Sweep { .. })) => {}
        Verdict::Ended(end) => desk.show(Status::Ended(end)).await?,
        Verdict::Retry { end, .. } => {
            let attempt = job.attempt.saturating_add(1);
            desk.show(Status::Waiting { why: &end.person, attempt, attempts }).await?;
        }
        Verdict::Unreachable { end, .. } => {
            desk.show(Status::Unreachable { why: &end.person }).await?;
        }
        Verdict::Untold { .. }
        | Verdict::Dropped { .. }
        | Verdict::Joined(_)
        | Verdict::Parked
        | Verdict::LeaseLost => {}
    }
    Ok(verdict)
}

/// What becomes of an end of which people could not be told, for the reason in `halt`. What passes by itself or by an
/// operator's hand is waited for as long as it takes, anything else as long as a forge that is out of reach.
fn untold(bot: &Bot, job: &Job, end: End, halt: &Verdict) -> Verdict {
    let (reason, why) = match halt {
        Verdict::Ended(end) => (end.outcome, end.operator.clone()),
        Verdict::Retry { end, why, .. }
        | Verdict::Unreachable { end, why, .. }
        | Verdict::Untold { end, why } => (end.outcome, why.clone()),
        Verdict::LeaseLost => return Verdict::LeaseLost,
        Verdict::Dropped { .. } | Verdict::Joined(_) | Verdict::Parked => return halt.clone(),
    };
    let is_worth_it = match reason {
        Outcome::Failed(Failure::ForgeDown | Failure::ForgeAuth) => true,
        Outcome::Failed(_) => job.is_patient(&bot.config.queue, bot.clock.now()),
        // The repository is no longer the bot's to speak in.
        Outcome::Refused(_) | Outcome::DraftPr | Outcome::NoFix(_) | Outcome::Cancelled => false,
    };
    if is_worth_it {
        return Verdict::Untold { end, why };
    }
    tracing::error!(why, "people on the issue were not told how the job ended");
    Verdict::Ended(end)
}
