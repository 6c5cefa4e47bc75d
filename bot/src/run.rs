//! One job, from the ask to the draft: read this and you know the product.
//!
//! Each stage takes what the stage before it made. An error of any stage is judged in `halt`; what people read is
//! written in `reply`. Nothing here knows SQL, HTTP, git or processes.

use std::time::Duration;

use crate::ask::{self, Asked, Look, No, Signs, Still};
use crate::bot::{Bot, Place};
use crate::checkout::Base;
use crate::command;
use crate::desk::Desk;
use crate::evidence::Evidence;
use crate::forge::{
    self, Comment, Issue, LabelEvent, LinkedPull, NewDraft, Permission, Pull, Repository,
};
use crate::halt;
use crate::input::{self, Input};
use crate::job::{self, Ask, End, Failure, Job, Outcome, Ready, Rule, Stage};
use crate::patch::Patch;
use crate::publish::{self, Author};
use crate::reply::{self, Draft};
use crate::store::{Halt, Identified, Lease};
use crate::worker::{Stop, Verdict};
use crate::workshop::{self, Spoken, Task, Worked};

/// Branch names tried at most for one ask, and of earlier asks looked at.
const BRANCHES_TRIED: u32 = 20;

/// Pull requests that would close an issue and are looked at closely; any further one is somebody else's.
const LINKED_READ: usize = 5;

/// How often a job looks whether another process was told to stop it; in this one it hears of it at once.
const HALT_LOOK: Duration = Duration::from_secs(1);

/// Carries one job as far as it goes. What people read of its end is the desk's business.
pub async fn run(bot: &Bot, job: &Job, lease: &Lease, stop: &Stop) -> Verdict {
    let verdict = tokio::select! {
        biased;
        () = stop.stopped() => Verdict::Parked,
        halt = halted(bot, job) => Verdict::Ended(reply::stopped(&halt)),
        end = story(bot, job, lease) => end.map_or_else(|halt| halt, Verdict::Ended),
    };
    match job.ask() {
        Some(Ask::Comment { .. }) => verdict.map_text(&reply::for_whoever_commented),
        Some(Ask::Label { .. } | Ask::Opened { .. } | Ask::Command { .. } | Ask::Sweep { .. })
        | None => verdict,
    }
}

/// Ready once somebody wants the job stopped. One whose work is done finds out for itself, because it may have published.
async fn halted(bot: &Bot, job: &Job) -> Halt {
    if job.ready.is_some() || job.untold.is_some() {
        return std::future::pending().await;
    }
    loop {
        let woken = bot.halts.notified();
        tokio::pin!(woken);
        woken.as_mut().enable();
        match bot.store.halt_of(job.id).await {
            Ok(Some(halt)) => return halt,
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(error = %halt::chain(&error), "cannot look whether to stop");
            }
        }
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(HALT_LOOK) => {}
        }
    }
}

async fn story(bot: &Bot, job: &Job, lease: &Lease) -> Result<End, Verdict> {
    if let (Some(end), Some(_key)) = (&job.untold, &job.key) {
        return Ok(end.clone());
    }
    let place = &bot.place(job).await?;
    let desk = &mut Desk::new(bot, place, job, lease);
    if let Some(ready) = &job.ready {
        return open_draft(bot, place, job, desk, ready).await;
    }
    let seen = look(bot, place, job, desk, None).await?;
    if let Some(halt) = bot.store.halt_of(job.id).await? {
        return Ok(reply::stopped(&halt));
    }
    greet(place, job).await;
    let default_branch = admit(place, job).await?.default_branch;
    let author = author(bot, place)?;
    let words = freeze(bot, place, job, desk, &seen).await?;
    let branch = free_branch(bot, place, job, desk, &default_branch, &[]).await?;

    desk.enter(Stage::Checkout, None).await?;
    let base = fetch(bot, place, job, &default_branch).await?;
    let task = task(bot, job, desk, words, &base).await?;

    desk.enter(Stage::Session, Some(&base.commit)).await?;
    let folder = bot.folder(job.id).make().await?;
    let worked = bot.workshop.session(&task, &base, &folder, &mut |_| {}).await?;
    bot.metrics.session(&worked.ended);
    let Spoken { bytes, sha256 } = &worked.spoken;
    bot.store.note_session(desk.lease, *bytes, sha256, bot.clock.now()).await?;

    desk.enter(Stage::Gate, Some(&base.commit)).await?;
    let patch = bot.workshop.patch(&worked, &base, &folder).await?;
    if patch.is_empty() {
        return Ok(reply::no_fix(worked.no_fix()));
    }
    if let Err(refusal) = bot.workshop.gate(&patch, &task)? {
        return Ok(reply::refused_patch(&refusal));
    }

    desk.enter(Stage::Evidence, Some(&base.commit)).await?;
    let evidence = bot.workshop.evidence(&task, &base, &worked, &patch, &folder).await?;

    desk.enter(Stage::Publish, Some(&base.commit)).await?;
    let made = Made { author, branch, base, worked, patch, evidence };
    let ready = prepare(bot, job, desk, &task, &made).await?;
    open_draft(bot, place, job, desk, &ready).await
}

/// An issue as it stands, and who asked for what on it.
struct Seen {
    issue: Issue,
    asked: Asked,
    /// The open pull request from the job's own branch, where the issue's history names one.
    own: Option<Pull>,
}

/// Reads the issue and its history again: has somebody asked for something that no other job has done, does that ask
/// still stand, may whoever asked still ask, and is nobody else at work on it? `ready` is what is about to be published.
async fn look(
    bot: &Bot,
    place: &Place,
    job: &Job,
    desk: &mut Desk<'_>,
    ready: Option<&Ready>,
) -> Result<Seen, Verdict> {
    let (repo, number) = (&job.subject.repo, job.subject.issue);
    let issue = place.forge.issue(repo, number).await?;
    let history = place.forge.history(repo, number, &place.settings.label).await?;
    let asked = asked(bot, place, job, desk, &issue, &history.labels).await?;
    may_ask(place, job, &asked).await?;
    let (own, others) = apart(bot, place, job, ready, history.pulls).await?;
    ask::manners(&issue, &asked, &others, place.bots()).map_err(decline)?;
    Ok(Seen { issue, asked, own })
}

/// What the job answers: the ask that it has answered all along, or the one that the issue shows it.
async fn asked(
    bot: &Bot,
    place: &Place,
    job: &Job,
    desk: &mut Desk<'_>,
    issue: &Issue,
    events: &[LabelEvent],
) -> Result<Asked, Verdict> {
    let label = &place.settings.label;
    if let Some(ask) = desk.ask() {
        let comments = match ask {
            Ask::Comment { .. } => {
                place.forge.comments(&job.subject.repo, job.subject.issue).await?
            }
            Ask::Label { .. } | Ask::Opened { .. } | Ask::Command { .. } | Ask::Sweep { .. } => {
                Vec::new()
            }
        };
        return match ask::still(issue, label, Signs { events, comments: &comments }, ask) {
            Still::Asked(asked) => {
                desk.asked_by(&asked);
                Ok(asked)
            }
            Still::Withdrawn => Err(Verdict::Ended(reply::cancelled())),
            Still::ClosedBefore => Err(decline(No::ClosedBefore)),
            Still::Closed => Err(refuse(Rule::IssueClosed, "the issue is closed")),
            Still::Pull => Err(refuse(Rule::PullRequest, "the number is a pull request's")),
            Still::Locked => Err(refuse(Rule::IssueLocked, "the issue is locked")),
            Still::AdderUnknown => Err(decline(No::AdderUnknown)),
        };
    }
    let (asked, no) = match ask::look(issue, label, events, place.bots()) {
        Look::Nothing(why) => return Err(Verdict::Dropped { why: why.into() }),
        Look::Refused(asked, no) => (asked, Some(no)),
        Look::Asked(asked) => (asked, None),
    };
    let key = job::key(&job.subject, &asked.ask);
    let asked_by = asked.by.as_ref().map(|by| bot.redactor.redact(&by.login));
    match bot.store.identify(desk.lease, &key, asked_by.as_deref(), bot.clock.now()).await? {
        Identified::Other(other) => return Err(Verdict::Joined(other)),
        Identified::Mine { ask_number } => desk.identified(key, &asked, ask_number),
    }
    match no {
        Some(no) => Err(decline(no)),
        None => Ok(asked),
    }
}

/// Sets the job's own pull request apart from those of others.
async fn apart(
    bot: &Bot,
    place: &Place,
    job: &Job,
    ready: Option<&Ready>,
    pulls: Vec<LinkedPull>,
) -> Result<(Option<Pull>, Vec<LinkedPull>), Verdict> {
    let repo = &job.subject.repo;
    let (mut own, mut others) = (None, Vec::new());
    for (n_before, linked) in pulls.into_iter().enumerate() {
        let is_here = linked.repo.to_string().eq_ignore_ascii_case(&repo.to_string());
        if let Some(ready) = ready.filter(|_| is_here && n_before < LINKED_READ)
            && let Some(pull) = place.forge.pull(repo, linked.number).await?
            && is_of_our_work(bot, place, job, &pull, ready).await?
        {
            own = Some(pull);
        } else if !(is_here && job.pull == Some(linked.number)) {
            others.push(linked);
        }
    }
    Ok((own, others))
}

/// Whether a pull request, whoever opened it, asks for a merge of what the job has pushed: a name alone says nothing, because
/// anybody may call a branch so.
async fn is_of_our_work(
    bot: &Bot,
    place: &Place,
    job: &Job,
    pull: &Pull,
    ready: &Ready,
) -> Result<bool, Verdict> {
    if !pull.is_from_here || pull.head != ready.branch {
        return Ok(false);
    }
    Ok(pull.head_commit.as_ref() == Some(&ready.commit)
        || has_grown(bot, place, job, ready).await?)
}

/// Asks the forge whether this person may ask: a right may be taken away while the job runs or waits.
async fn may_ask(place: &Place, job: &Job, asked: &Asked) -> Result<(), Verdict> {
    let Some(by) = &asked.by else { return Ok(()) };
    let repo = &job.subject.repo;
    let permission = place.forge.permission(repo, by).await?;
    if permission < Permission::Write {
        let detail = format!("user {} of `{repo}` has {permission}", by.id);
        return Err(refuse(Rule::AdderCannotWrite, &detail));
    }
    Ok(())
}

/// The first sign of life comes before any slow work; a forge without this reaction still gets the comment.
async fn greet(place: &Place, job: &Job) {
    if let Err(error) = place.forge.react(&job.subject.repo, job.subject.issue, "eyes").await {
        tracing::warn!(error = %halt::chain(&error), "the issue got no reaction");
    }
}

/// Asks the forge whether the bot may work here: at the start, and once more before anything is pushed.
async fn admit(place: &Place, job: &Job) -> Result<Repository, Verdict> {
    let repo = &job.subject.repo;
    let repository = place.forge.repository(repo).await?;
    if repository.archived {
        return Err(refuse(Rule::RepositoryArchived, "the repository is archived"));
    }
    if !repository.has_pulls {
        return Err(refuse(Rule::PullsDisabled, "pull requests are switched off"));
    }
    if !repository.can_push {
        let why = format!("the bot's user may not push to `{repo}`");
        return Err(Verdict::Ended(reply::failed(Failure::ForgeDenied, why)));
    }
    Ok(repository)
}

/// Who the commit will be from. A key that has expired since the start is told before a session is spent.
fn author(bot: &Bot, place: &Place) -> Result<Author, Verdict> {
    let author = bot.workshop.author(place.own_email.as_deref());
    if let Some(signer) = &author.signer {
        signer.is_valid(bot.clock.now()).map_err(publish::Error::from)?;
    }
    Ok(author)
}

/// Brings the head of the default branch into the trusted mirror: the base commit.
async fn fetch(bot: &Bot, place: &Place, job: &Job, branch: &str) -> Result<Base, Verdict> {
    let repo = &job.subject.repo;
    let remote = place.forge.remote(repo).await?;
    Ok(bot.mirrors.fetch(&place.name, repo, &remote, branch).await?)
}

/// Freezes what people say: from here on, edits on the forge reach neither this attempt nor a later one. An issue that
/// was edited since the label was put on is not what was asked for.
async fn freeze(
    bot: &Bot,
    place: &Place,
    job: &Job,
    desk: &Desk<'_>,
    seen: &Seen,
) -> Result<Input, Verdict> {
    if let Some(words) = &job.input {
        return Ok(words.clone());
    }
    let sightings = bot.store.sightings(job.id).await?;
    if !input::is_as_asked(&seen.issue, &seen.asked.ask, &sightings, &bot.redactor) {
        return Err(refuse(Rule::IssueChanged, "its words differ from those of the delivery"));
    }
    let (repo, forge) = (&job.subject.repo, place.forge.as_ref());
    let comments = forge.comments(repo, job.subject.issue).await?.into_iter();
    let comments = comments.filter_map(|comment| {
        let body = command::as_words(&comment.body)?;
        Some(Comment { body, ..comment })
    });
    let comments = comments.collect();
    let comments =
        input::trusted_comments(forge, repo, &seen.asked, place.own_id, comments).await?;
    let words = Input::new(&seen.issue, &comments, &bot.redactor);
    bot.store.note_words(desk.lease, &words).await?;
    Ok(words)
}

/// Puts what people say together with what the repository says at the base commit.
async fn task(
    bot: &Bot,
    job: &Job,
    desk: &Desk<'_>,
    words: Input,
    base: &Base,
) -> Result<Task, Verdict> {
    let (repo_file, repo_text) = match workshop::repo_file(base).await? {
        Ok(file) => file,
        Err(error) => {
            let end = reply::repository_file(&error.key, &error.reason, &error.to_string());
            return Err(Verdict::Ended(end));
        }
    };
    if repo_file.enabled == Some(false) {
        return Err(refuse(Rule::RepositoryDisabled, "`enabled = false`"));
    }
    if let Err(error) = bot.workshop.rules(&repo_file) {
        let why = halt::chain(&error);
        return Err(Verdict::Ended(reply::repository_file("protected_paths", &why, &why)));
    }
    let instructions = workshop::instructions(base).await?;
    let input = words.with_repository(instructions, repo_text, &bot.redactor);
    let digest = input.digest(&base.commit);
    let (model, now) = (bot.workshop.model.name(), bot.clock.now());
    bot.store.note_input(desk.lease, &base.commit, &digest, model, now).await?;
    let repo = job.subject.repo.to_string();
    let server_command = bot.config.test_command(&repo).map(str::to_owned);
    Ok(Task { input, digest, repo_file, server_command })
}

/// What the stages made, for the one commit and the one body.
struct Made {
    author: Author,
    branch: String,
    base: Base,
    worked: Worked,
    patch: Patch,
    evidence: Evidence,
}

/// Commits the patch in the trusted mirror and writes down all that is needed to publish it, after a crash too.
async fn prepare(
    bot: &Bot,
    job: &Job,
    desk: &Desk<'_>,
    task: &Task,
    made: &Made,
) -> Result<Ready, Verdict> {
    let message = reply::commit_message(&task.input.title, job.subject.issue);
    let mirror = &made.base.mirror;
    let commit =
        publish::commit(mirror, &made.patch, &message, &made.author, bot.clock.now()).await?;
    publish::keep(mirror, job.id, &commit).await?;
    // Before it is cut.
    let base_branch = bot.redactor.redact(&made.base.branch);
    let ask = job.ask();
    let draft = Draft {
        issue: job.subject.issue,
        changes: &made.patch.changes,
        left_out: &made.patch.left_out,
        evidence: &made.evidence.table(),
        words: &made.worked.ended.final_text,
        session: &made.worked.summary(bot.workshop.model.name()),
        sandbox: &bot.workshop.sandbox.name(),
        confinement: bot.workshop.sandbox.confinement(),
        asked_by: desk.asker(),
        found_by: match &ask {
            Some(Ask::Sweep { name, .. }) => Some(name),
            _ => None,
        },
        base_branch: &base_branch,
        base: &made.base.commit,
        digest: &task.digest,
    };
    let ready = Ready {
        commit,
        branch: made.branch.clone(),
        base_branch: made.base.branch.clone(),
        title: reply::title(&task.input.title, job.subject.issue),
        body: bot.redactor.redact(&reply::body(&draft, bot.config.publish.body_chars)),
    };
    bot.store.note_ready(desk.lease, &ready, bot.clock.now()).await?;
    Ok(ready)
}

/// The first branch name of this ask that nobody uses or has used: a lost database must not lead to the branch of an
/// earlier job, nor to its pull request, which keeps the name of a branch that is gone. It is chosen before the session,
/// so that a forge that does not answer, or a branch that leaves no room for the bot's, costs no session. `taken` are
/// names that were found taken in some other way. A draft of the bot's that is open on one of the names ends the search:
/// there is never a second one.
async fn free_branch(
    bot: &Bot,
    place: &Place,
    job: &Job,
    desk: &Desk<'_>,
    base: &str,
    taken: &[String],
) -> Result<String, Verdict> {
    let (repo, prefix) = (&job.subject.repo, &bot.config.publish.branch_prefix);
    let named = |number: u32| format!("{prefix}issue-{}-{number}", job.subject.issue);
    let first = desk.ask_number();
    for number in first.saturating_sub(BRANCHES_TRIED).max(1)..first.saturating_add(BRANCHES_TRIED)
    {
        let branch = named(number);
        let pull = place.forge.pull_by_head(repo, base, &branch).await?;
        if let Some(pull) = pull.as_ref().filter(|pull| is_own_draft(place, job, pull)) {
            return Err(decline(No::OwnDraft(linked(job, pull))));
        }
        if number < first
            || pull.is_some()
            || taken.contains(&branch)
            || place.forge.branch_head(repo, &branch).await?.is_some()
        {
            continue;
        }
        // Git keeps branches as files: a branch `hyla` leaves no room for `hyla/x`.
        for (at, _) in prefix.match_indices('/') {
            let folder = &prefix[..at];
            if place.forge.branch_head(repo, folder).await?.is_some() {
                return Err(Verdict::Ended(reply::branch_in_the_way(folder, prefix)));
            }
        }
        return Ok(branch);
    }
    let last = first.saturating_add(BRANCHES_TRIED) - 1;
    Err(Verdict::Ended(reply::branches_taken(&named(first), &named(last))))
}

/// Whether a pull request is an open draft of the bot's for another ask.
fn is_own_draft(place: &Place, job: &Job, pull: &Pull) -> bool {
    pull.is_open && pull.author == place.own_id && job.pull != Some(pull.number)
}

fn linked(job: &Job, pull: &Pull) -> LinkedPull {
    LinkedPull {
        repo: job.subject.repo.clone(),
        number: pull.number,
        link: pull.link.clone(),
        author: pull.author,
    }
}

/// Pushes and opens the draft. An earlier attempt may have done so already, and its draft may have been merged and have
/// closed the issue since; so the draft is looked for first, and the ask need stand only where there is none.
async fn open_draft(
    bot: &Bot,
    place: &Place,
    job: &Job,
    desk: &mut Desk<'_>,
    ready: &Ready,
) -> Result<End, Verdict> {
    // Whoever lost the lease learns it here, before anything is published; and from here on nobody stops the job.
    let halt = bot.store.publish(desk.lease, bot.clock.now()).await?;
    let pull = match (own_pull(place, job, ready).await?, halt) {
        (Some(pull), _) => pull,
        (None, Some(halt)) => {
            return with_branch_left(place, job, ready, reply::stopped(&halt)).await;
        }
        (None, None) => match look(bot, place, job, desk, Some(ready)).await {
            Ok(Seen { own: Some(pull), .. }) => pull,
            Ok(Seen { own: None, .. }) => {
                publish_afresh(bot, place, job, desk, ready.clone()).await?
            }
            Err(Verdict::Ended(end)) => {
                return Err(Verdict::Ended(with_branch_left(place, job, ready, end).await?));
            }
            Err(halt) => return Err(halt),
        },
    };
    bot.store.note_pull(desk.lease, pull.number, bot.clock.now()).await?;
    Ok(match pull.author == place.own_id {
        true => reply::opened(&pull, &place.settings.draft_prefix, &ready.commit),
        false => reply::opened_by_another(&pull),
    })
}

/// The end of a job that opens no draft after all, with its branch named where an earlier attempt has pushed it.
async fn with_branch_left(
    place: &Place,
    job: &Job,
    ready: &Ready,
    end: End,
) -> Result<End, Verdict> {
    // What broke is no answer to the ask, and whoever asks again goes on from there.
    if matches!(end.outcome, Outcome::Failed(_)) {
        return Ok(end);
    }
    let head = place.forge.branch_head(&job.subject.repo, &ready.branch).await?;
    Ok(match head.is_some_and(|head| head == ready.commit) {
        true => reply::with_branch_left(end, &ready.branch),
        false => end,
    })
}

/// Pushes and opens a draft. Where somebody has taken the branch's name meanwhile, the work goes to the next one; where
/// somebody has opened a pull request from the branch, it is that one, because forges take no second. The draft asks for
/// a merge into the branch that the work is based on, however that has moved, or, once it is gone, into the default one.
async fn publish_afresh(
    bot: &Bot,
    place: &Place,
    job: &Job,
    desk: &Desk<'_>,
    mut ready: Ready,
) -> Result<Pull, Verdict> {
    let repo = &job.subject.repo;
    let default_branch = admit(place, job).await?.default_branch;
    if default_branch != ready.base_branch
        && place.forge.branch_head(repo, &ready.base_branch).await?.is_none()
    {
        ready.base_branch = default_branch;
        bot.store.note_ready(desk.lease, &ready, bot.clock.now()).await?;
    }
    let mirror = bot.mirrors.existing(&place.name, repo)?;
    let prefix = &bot.config.publish.branch_prefix;
    let remote = place.forge.remote(repo).await?;
    let mut taken = Vec::new();
    while let Err(error) =
        publish::push(&mirror, &ready.commit, &ready.branch, prefix, &remote).await
    {
        if !matches!(error, publish::Error::BranchTaken { .. }) {
            return Err(error.into());
        }
        if has_grown(bot, place, job, &ready).await? {
            break;
        }
        taken.push(ready.branch);
        ready.branch = free_branch(bot, place, job, desk, &ready.base_branch, &taken).await?;
        bot.store.note_ready(desk.lease, &ready, bot.clock.now()).await?;
    }
    let (base, head) = (ready.base_branch.clone(), ready.branch.clone());
    let draft = NewDraft {
        title: ready.title,
        body: ready.body,
        head: ready.branch,
        base: ready.base_branch,
    };
    match place.forge.open_draft(repo, &draft).await {
        Err(declined @ forge::Error::Declined { .. }) => {
            let found = place.forge.pull_by_head(repo, &base, &head).await?;
            found.filter(|pull| pull.is_open).ok_or_else(|| declined.into())
        }
        opened => Ok(opened?),
    }
}

/// Whether the branch is the one that an earlier attempt pushed, with commits of people on top: they belong to the draft.
async fn has_grown(bot: &Bot, place: &Place, job: &Job, ready: &Ready) -> Result<bool, Verdict> {
    if place.forge.branch_head(&job.subject.repo, &ready.branch).await?.is_none() {
        // Another branch leaves no room for it.
        return Ok(false);
    }
    let theirs = fetch(bot, place, job, &ready.branch).await?;
    Ok(publish::is_on_top(&theirs.mirror, &theirs.commit, &ready.commit).await?)
}

/// The pull request that the job has opened, in whatever state it is.
pub(crate) async fn own_pull(
    place: &Place,
    job: &Job,
    ready: &Ready,
) -> Result<Option<Pull>, forge::Error> {
    let (base, head) = (&ready.base_branch, &ready.branch);
    let repo = &job.subject.repo;
    let found = match (place.forge.pull_by_head(repo, base, head).await?, job.pull) {
        // Somebody may have turned it towards another branch.
        (None, Some(number)) => place.forge.pull(repo, number).await?,
        (found, _) => found,
    };
    Ok(found.filter(|pull| pull.author == place.own_id))
}

fn decline(no: No) -> Verdict {
    Verdict::Ended(reply::declined(&no))
}

fn refuse(rule: Rule, detail: &str) -> Verdict {
    Verdict::Ended(reply::refused(rule, detail))
}
