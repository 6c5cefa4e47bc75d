//! Sweeps over the backlog: at the times of its schedule, a sweep looks for open issues that nobody works on, takes the one
//! that looks cheapest, and has the bot work on it as if somebody had asked; then the next one, as far as its caps go.
//!
//! It plans anew before each job, from what forge and ledger say at that moment, so a restart loses nothing and what people
//! do meanwhile counts. The ledger lets no issue be taken that was ever asked about.

mod caps;
mod order;
mod query;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, SubsecRound as _, TimeDelta, Utc};
use config::Authors;

pub use caps::Room;
pub use order::Weight;

use crate::bot::{Bot, Place};
use crate::clock::{doubled, later};
use crate::forge::{self, Issue};
use crate::halt::chain;
use crate::job::{JobId, RepoName, Subject};
use crate::serve;
use crate::store::{self, Drafted, SweepAsk, SweepState, Taken};
use crate::worker::{Stop, Worker};
use order::Record;

/// How often the service looks whether a sweep is due or may go on.
const LOOK: Duration = Duration::from_secs(15);
/// Issues that are looked at closely for one plan: more than that would use up what a forge allows in an hour.
const LOOKS: usize = 300;
/// Drafts that are looked back at.
const DRAFTS: u32 = 1_000;

/// Why a sweep did nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration has no such sweep.
    #[error(
        "no sweep is called `{0}`; add a section `[sweep.{0}]`, as `config/example.toml` shows"
    )]
    Unknown(String),
    /// Its schedule cannot be read.
    #[error("the schedule of the sweep makes no sense: {0}")]
    Schedule(String),
    /// The forge does not say what is open.
    #[error("cannot look through the backlog")]
    Forge(#[from] forge::Error),
    /// The ledger does not answer.
    #[error("cannot look into the ledger")]
    Store(#[from] store::Error),
}

/// What was found at one look, and what is done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// It is not due.
    Rests,
    /// It is paused; why.
    Paused(String),
    /// It may not begin anything now; why.
    Waits(String),
    /// It is over for this instant; why.
    Over(String),
    /// It has queued this.
    Queued(Vec<(Pick, JobId)>),
}

/// An issue that a sweep takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    /// The issue.
    pub subject: Subject,
    /// Its title.
    pub title: String,
    /// Why it comes when it comes.
    pub weight: Weight,
}

/// What a sweep would do, and what it would leave alone.
#[derive(Debug, Default)]
pub struct Plan {
    /// What it would take, in this order.
    pub picks: Vec<Pick>,
    /// How many open issues it would leave alone, by the reason.
    pub left: BTreeMap<String, usize>,
    /// Why it would not begin now, where only its caps of time, its pause or its jobs under way are in the way.
    pub held: Option<String>,
}

/// What earlier looks found, so that nothing is said twice, and a sweep that breaks is not looked at all the time.
#[derive(Debug, Default)]
pub struct Memory {
    said: BTreeMap<String, String>,
    broken: BTreeMap<String, Broken>,
}

/// A sweep whose last looks broke.
#[derive(Debug)]
struct Broken {
    n_times: u32,
    until: DateTime<Utc>,
}

impl Memory {
    fn rests(&self, name: &str, now: DateTime<Utc>) -> bool {
        self.broken.get(name).is_some_and(|broken| now < broken.until)
    }

    /// Notes how a look went. A wait doubles with each one that broke.
    fn note(&mut self, name: &str, is_broken: bool, now: DateTime<Utc>, limit: Duration) {
        if !is_broken {
            self.broken.remove(name);
            return;
        }
        let n_times = self.broken.get(name).map_or(0, |broken| broken.n_times);
        let until = later(now, doubled(LOOK, n_times).min(limit));
        self.broken.insert(name.to_owned(), Broken { n_times: n_times.saturating_add(1), until });
    }
}

/// Looks again and again until it is time to stop.
pub async fn run(bot: &Bot, stop: &Stop) {
    let mut memory = Memory::default();
    while !stop.is_stopped() {
        tokio::select! {
            () = stop.stopped() => return,
            () = once(bot, &mut memory) => {}
        }
        stop.rest(LOOK).await;
    }
}

/// One look at every sweep.
pub async fn once(bot: &Bot, memory: &mut Memory) {
    for name in bot.config.sweeps.keys() {
        if memory.rests(name, bot.clock.now()) {
            continue;
        }
        let turned = turn(bot, name).await;
        memory.note(name, turned.is_err(), bot.clock.now(), bot.config.queue.backoff_limit);
        let words = match turned {
            Ok(Turn::Rests) => String::new(),
            Ok(Turn::Queued(picks)) => {
                for (Pick { subject, weight, .. }, _) in picks {
                    let reasons = weight.reasons.join(", ");
                    tracing::info!(sweep = name, issue = %subject, reasons, "the sweep takes an issue");
                }
                String::new()
            }
            Ok(Turn::Paused(why)) => {
                format!("it is paused: {why}; `hyla sweep {name} --resume` ends that")
            }
            Ok(Turn::Waits(why)) => format!("it waits: {why}"),
            Ok(Turn::Over(why)) => format!("it is over: {why}"),
            Err(error) => chain(&error),
        };
        let before = memory.said.insert(name.clone(), words.clone());
        if !words.is_empty() && before.as_ref() != Some(&words) {
            tracing::info!(sweep = name, words, "how the sweep stands");
        }
    }
}

/// Has a sweep begin what is due and may begin now.
///
/// # Errors
/// Forge or ledger do not answer, or there is no such sweep.
pub async fn turn(bot: &Bot, name: &str) -> Result<Turn, Error> {
    let sweep = named(bot, name)?;
    let now = bot.clock.now();
    let schedule = sweep.schedule().map_err(Error::Schedule)?;
    let written = format!("{} {}", sweep.schedule, sweep.zone);
    bot.store.follow_schedule(name, &written, now).await?;
    let Some(state) = bot.store.sweep(name).await? else {
        // What was due before it was first seen is nobody's.
        bot.store.begin_sweep(name, now.trunc_subsecs(0), true).await?;
        return Ok(Turn::Rests);
    };
    // Of several instants that were missed, the last one counts.
    if let Some(due) = schedule.last_between(state.since, now) {
        bot.store.begin_sweep(name, due, false).await?;
    }
    feed(bot, name).await
}

/// Begins a sweep by hand, unless it is under way.
///
/// # Errors
/// As for every look.
pub async fn begin(bot: &Bot, name: &str) -> Result<(), Error> {
    named(bot, name)?;
    let is_under_way = bot.store.sweep(name).await?.is_some_and(|state| !state.is_over);
    if !is_under_way {
        bot.store.begin_sweep(name, bot.clock.now().trunc_subsecs(0), false).await?;
    }
    Ok(())
}

/// Begins a sweep by hand and works on what it takes until it is over, or until something must be waited for. `tell` is
/// given a sentence for each step.
///
/// # Errors
/// As for every look and every job.
pub async fn by_hand(
    bot: &Bot,
    name: &str,
    (worker, stop): (&Worker, &Stop),
    tell: &mut (dyn FnMut(String) -> anyhow::Result<()> + Send),
) -> anyhow::Result<()> {
    begin(bot, name).await?;
    while !stop.is_stopped() {
        match feed(bot, name).await? {
            Turn::Queued(picks) => {
                for (Pick { subject, weight, .. }, job) in picks {
                    let reasons = weight.reasons.join(", ");
                    tell(format!("{subject}: {} points: {reasons}\n", weight.points))?;
                    let end = serve::until_ended(bot, worker, job, stop).await?;
                    tell(format!("{subject}: {}: {}\n", end.outcome, end.person))?;
                }
            }
            Turn::Rests => return Ok(()),
            Turn::Over(why) => return tell(format!("The sweep `{name}` is over: {why}.\n")),
            Turn::Waits(why) => {
                return tell(format!(
                    "The sweep `{name}` waits: {why}. `hyla serve` goes on with it; or run this again later.\n"
                ));
            }
            Turn::Paused(why) => {
                return tell(format!(
                    "The sweep `{name}` is paused: {why}. `hyla sweep {name} --resume` ends that.\n"
                ));
            }
        }
    }
    Ok(())
}

/// Queues what a sweep that has begun may take now.
///
/// # Errors
/// As for every look.
pub async fn feed(bot: &Bot, name: &str) -> Result<Turn, Error> {
    let sweep = named(bot, name)?;
    let now = bot.clock.now();
    let Some(state) = bot.store.sweep(name).await?.filter(|state| !state.is_over) else {
        return Ok(Turn::Rests);
    };
    let drafts = bot.store.drafts(DRAFTS).await?;
    if let Some(why) = paused(bot, (name, sweep), &state, &drafts).await? {
        return Ok(Turn::Paused(why));
    }
    let since = state.instant.min(now - TimeDelta::days(1));
    let swept = bot.store.swept(name, since, now).await?;
    let n = match caps::room(sweep, bot.config.queue.workers, &swept, state.instant, now) {
        Room::For(n) => n,
        Room::Waits(why) => return Ok(Turn::Waits(why)),
        Room::Over(why) => {
            bot.store.finish_sweep(name, state.instant).await?;
            return Ok(Turn::Over(why));
        }
    };
    let plan = plan(bot, name, &drafts, n).await?;
    if plan.picks.is_empty() && swept.iter().any(|job| !job.has_ended) {
        // What comes of them decides what may follow.
        return Ok(Turn::Waits("its jobs are under way".into()));
    }
    if plan.picks.is_empty() {
        bot.store.finish_sweep(name, state.instant).await?;
        return Ok(Turn::Over("no further issue fits".into()));
    }
    let mut queued = Vec::new();
    for pick in plan.picks {
        let ask = SweepAsk {
            subject: &pick.subject,
            name,
            instant: state.instant,
            n_known: swept.len() + queued.len(),
            since,
            cap: usize::try_from(sweep.open_drafts).unwrap_or(usize::MAX),
        };
        match bot.store.ask_by_sweep(&ask, now).await? {
            Taken::Job(job) => queued.push((pick, job)),
            Taken::WasAsked | Taken::IsFull => {}
            // The next look sees what the other one did.
            Taken::Raced => break,
        }
    }
    if queued.is_empty() {
        return Ok(Turn::Waits("others were faster".into()));
    }
    bot.wake.notify_one();
    Ok(Turn::Queued(queued))
}

/// Why a sweep is paused, if it is; it is from now on, if too many of its drafts were closed.
async fn paused(
    bot: &Bot,
    (name, sweep): (&str, &config::Sweep),
    state: &SweepState,
    drafts: &[Drafted],
) -> Result<Option<String>, Error> {
    if let Some((_, why)) = &state.paused {
        return Ok(Some(why.clone()));
    }
    let why = caps::pause((name, sweep), drafts, state.resumed_at);
    if let Some(why) = &why {
        bot.store.pause_sweep(name, why, bot.clock.now()).await?;
    }
    Ok(why)
}

/// What a sweep would take first, at most `per_sweep`, and what keeps it from that now.
///
/// # Errors
/// As for every look.
pub async fn dry(bot: &Bot, name: &str) -> Result<Plan, Error> {
    let sweep = named(bot, name)?;
    let drafts = bot.store.drafts(DRAFTS).await?;
    let n = usize::try_from(sweep.per_sweep).unwrap_or(usize::MAX);
    let held = held(bot, (name, sweep), &drafts).await?;
    Ok(Plan { held, ..plan(bot, name, &drafts, n).await? })
}

/// Why a sweep that would begin now could not.
async fn held(
    bot: &Bot,
    (name, sweep): (&str, &config::Sweep),
    drafts: &[Drafted],
) -> Result<Option<String>, Error> {
    let state = bot.store.sweep(name).await?;
    let resumed_at = state.as_ref().and_then(|state| state.resumed_at);
    let paused = state.and_then(|state| state.paused).map(|(_, why)| why);
    if let Some(why) = paused.or_else(|| caps::pause((name, sweep), drafts, resumed_at)) {
        return Ok(Some(format!("it is paused: {why}; `hyla sweep {name} --resume` ends that")));
    }
    let now = bot.clock.now();
    let swept = bot.store.swept(name, now - TimeDelta::days(1), now).await?;
    Ok(match caps::room(sweep, bot.config.queue.workers, &swept, now, now) {
        Room::For(_) => None,
        Room::Waits(why) | Room::Over(why) => Some(why),
    })
}

/// Plans at most `n` picks.
async fn plan(bot: &Bot, name: &str, drafts: &[Drafted], n: usize) -> Result<Plan, Error> {
    let sweep = named(bot, name)?;
    let place = place(bot, sweep).await?;
    let mut plan = Plan::default();
    let (mut room, mut records) = (BTreeMap::new(), BTreeMap::new());
    let mut found = Vec::new();
    for repo in repositories(sweep, &place) {
        let n_open = bot.store.pending(&place.name, &repo).await?;
        let cap = usize::try_from(sweep.open_drafts).unwrap_or(usize::MAX);
        room.insert(repo.clone(), cap.saturating_sub(n_open));
        records.insert(repo.clone(), record(drafts, &place.name, &repo));
        match place.forge.open_issues(&repo).await {
            Ok(issues) => found.extend(issues.into_iter().map(|issue| (repo.clone(), issue))),
            // One repository that is gone or hidden holds up no other.
            Err(
                error @ (forge::Error::Missing { .. }
                | forge::Error::Denied { .. }
                | forge::Error::Moved { .. }),
            ) => {
                tracing::warn!(sweep = name, error = %chain(&error), "a sweep leaves a repository out");
            }
            Err(error) => return Err(error.into()),
        }
    }
    let asked = bot.store.asked(&place.name).await?;
    let asked: BTreeSet<(String, u64)> = asked.iter().map(place_of).collect();
    let now = bot.clock.now();
    let mut fit = Vec::new();
    for (repo, issue) in found {
        let subject = Subject { forge: place.name.clone(), repo, issue: issue.number };
        let trigger = &place.settings.label;
        let why = match query::unfit(sweep, (&subject.repo, &issue), trigger, now) {
            None if asked.contains(&place_of(&subject)) => Some("it was asked about before"),
            why => why,
        };
        match why {
            Some(why) => plan.leave(why),
            None => {
                let record = records.get(&subject.repo).copied().unwrap_or_default();
                let weight = order::weigh(&issue, record, now);
                fit.push((subject, issue, weight));
            }
        }
    }
    // The newest of equals first.
    fit.sort_by_key(|(_, issue, weight)| {
        std::cmp::Reverse((weight.points, issue.created_at, issue.number))
    });
    let mut close = Close { place: &place, sweep, rights: BTreeMap::new(), n_looks: 0 };
    for (subject, issue, weight) in fit {
        let left = room.get_mut(&subject.repo);
        let why = match left.as_deref() {
            _ if plan.picks.len() >= n => Some("others come first"),
            Some(0) | None => Some("`open_drafts` of its repository wait for people"),
            Some(_) => close.look(&subject, &issue).await?,
        };
        match (why, left) {
            (None, Some(left)) => {
                *left -= 1;
                plan.picks.push(Pick { subject, title: issue.title, weight });
            }
            (why, _) => plan.leave(why.unwrap_or("its repository is unknown")),
        }
    }
    Ok(plan)
}

impl Plan {
    fn leave(&mut self, why: &str) {
        *self.left.entry(why.to_owned()).or_default() += 1;
    }
}

/// What only further calls tell: asked for those issues alone that are about to be taken.
struct Close<'a> {
    place: &'a Place,
    sweep: &'a config::Sweep,
    /// Whether each author may write to each repository, as far as it was asked.
    rights: BTreeMap<(RepoName, i64), bool>,
    n_looks: usize,
}

impl Close<'_> {
    async fn look(
        &mut self,
        subject: &Subject,
        issue: &Issue,
    ) -> Result<Option<&'static str>, Error> {
        if self.n_looks >= LOOKS {
            return Ok(Some("others were looked at first"));
        }
        self.n_looks += 1;
        if let Some(why) = self.author(subject, issue).await? {
            return Ok(Some(why));
        }
        let label = &self.place.settings.label;
        let history = self.place.forge.history(&subject.repo, subject.issue, label).await?;
        Ok(match (history.pulls.is_empty(), history.labels.is_empty()) {
            (false, _) => Some("an open pull request would close it"),
            // Whoever took the label off does not want this.
            (true, false) => Some("it had the label that asks"),
            (true, true) => None,
        })
    }

    async fn author(
        &mut self,
        subject: &Subject,
        issue: &Issue,
    ) -> Result<Option<&'static str>, Error> {
        if self.sweep.authors == Authors::Anybody {
            return Ok(None);
        }
        let key = (subject.repo.clone(), issue.author.id);
        let is_writer = match self.rights.get(&key) {
            Some(known) => *known,
            None => self.place.may_write(&subject.repo, &issue.author).await?,
        };
        self.rights.insert(key, is_writer);
        Ok(match (self.sweep.authors, is_writer) {
            (Authors::Writers, false) => Some("its author may not write to the repository"),
            (Authors::Others, true) => Some("its author may write to the repository"),
            (Authors::Anybody | Authors::Writers | Authors::Others, _) => None,
        })
    }
}

/// An issue within its forge. Forges do not tell small from capital letters.
fn place_of(subject: &Subject) -> (String, u64) {
    (subject.repo.to_string().to_ascii_lowercase(), subject.issue)
}

fn named<'a>(bot: &'a Bot, name: &str) -> Result<&'a config::Sweep, Error> {
    bot.config.sweeps.get(name).ok_or_else(|| Error::Unknown(name.to_owned()))
}

/// The forge of a sweep.
async fn place(bot: &Bot, sweep: &config::Sweep) -> Result<Place, Error> {
    let is_meant = |name: &str| sweep.forge.as_ref().is_none_or(|forge| forge == name);
    let door = bot.doors().find(|(name, _)| is_meant(name));
    // The configuration was checked, so there is one.
    let (name, door) = door.ok_or_else(|| Error::Unknown("the forge of the sweep".into()))?;
    Ok(door.place(name).await?)
}

fn repositories(sweep: &config::Sweep, place: &Place) -> Vec<RepoName> {
    let listed = match sweep.repositories.is_empty() {
        true => &place.settings.repositories,
        false => &sweep.repositories,
    };
    let written = |name: &String| place.settings.allowed(name)?.parse().ok();
    listed.iter().filter_map(written).collect()
}

/// What became of the bot's drafts in a repository.
fn record(drafts: &[Drafted], forge: &str, repo: &RepoName) -> Record {
    let mut record = Record::default();
    for draft in drafts {
        let its = &draft.row.job.subject;
        if (its.forge.as_str(), &its.repo) != (forge, repo) {
            continue;
        }
        match draft.fate {
            Some((store::Fate::Merged { .. }, _)) => record.n_merged += 1,
            Some((store::Fate::Closed { .. }, _)) => record.n_closed += 1,
            Some((store::Fate::Gone, _)) | None => {}
        }
    }
    record
}

/// When a sweep is due next.
///
/// # Errors
/// There is no such sweep.
pub fn next(bot: &Bot, name: &str) -> Result<Option<DateTime<Utc>>, Error> {
    let schedule = named(bot, name)?.schedule().map_err(Error::Schedule)?;
    Ok(schedule.next_after(bot.clock.now()))
}
