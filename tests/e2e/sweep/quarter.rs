//! Ninety nights of a clock that the test moves: 500 issues, a model that succeeds at a given rate, reviewers who manage so
//! many drafts a day and have a bad month. Sandbox and session are left out; forge, ledger, queue and sweep are real.

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use bot::bot::Bot;
use bot::forge::NewDraft;
use bot::job::{CommitId, End, Job, NoFix, Outcome, Ready};
use bot::store::Lease;
use bot::worker::{Stop, Verdict, Work};

use super::*;

const ISSUES: usize = 500;
const DAYS: u32 = 90;
const PER_SWEEP: u32 = 5;
const OPEN_DRAFTS: usize = 8;
/// Drafts that the reviewers decide in a day.
const CAPACITY: usize = 4;
/// The days on which they like nothing.
const BAD: std::ops::Range<u32> = 30..45;

/// Opens a draft for some issues and finds nothing to change for others.
struct Model<'a> {
    house: &'a House,
    dice: Mutex<fastrand::Rng>,
}

fn ended(outcome: Outcome) -> Verdict {
    let words = || "simulated".to_owned();
    Verdict::Ended(End { outcome, person: words(), operator: words(), next: words() })
}

#[async_trait]
impl Work for Model<'_> {
    async fn job(&self, job: &Job, lease: &Lease, _stop: &Stop) -> Verdict {
        let works = self.dice.lock().expect("nobody panics with it").u32(0..10) < 6;
        self.house.clock.advance(Duration::from_secs(600));
        if !works {
            return ended(Outcome::NoFix(NoFix::NoChange));
        }
        let Bot { store, .. } = self.house.bot.as_ref();
        let branch = format!("hyla/issue-{}-1", job.subject.issue);
        let words = format!("for {}", job.subject.issue);
        let files = [("note.txt", words.as_str())];
        let commit =
            self.house.forge.person(&self.house.login).commit(&self.house.repo, &branch, files);
        let (title, body) = (format!("Fix {}", job.subject.issue), "x".to_owned());
        let ready = Ready {
            commit: CommitId(commit),
            branch: branch.clone(),
            base_branch: "main".into(),
            title: title.clone(),
            body: body.clone(),
        };
        store.note_ready(lease, &ready, self.house.clock.now()).await.expect("the lease holds");
        let (_, forge) = self.house.bot.forges().next().expect("there is one");
        let draft = NewDraft { title, body, head: branch, base: "main".into() };
        let pull = forge.open_draft(&self.house.repo, &draft).await.expect("the forge is well");
        store.note_pull(lease, pull.number, self.house.clock.now()).await.expect("the lease holds");
        ended(Outcome::DraftPr)
    }

    async fn close(&self, _: &Job, _: &Lease, verdict: Verdict) -> Verdict {
        verdict
    }
}

/// The reviewers' day: they decide the oldest drafts.
async fn review(
    house: &House,
    day: u32,
    dice: &mut fastrand::Rng,
    tally: &mut BTreeMap<&str, usize>,
) {
    let mut open: Vec<u64> =
        house.forge.pulls(&house.repo).iter().filter(|it| it.is_open).map(|it| it.number).collect();
    open.sort_unstable();
    for number in open.into_iter().take(CAPACITY) {
        let ann = house.forge.person("ann");
        let is_liked = !BAD.contains(&day) && dice.u32(0..10) < 9;
        match is_liked {
            true => drop(ann.merge(&house.repo, number).await),
            false => drop(ann.close(&house.repo, number).await),
        }
        *tally.entry(if is_liked { "merged" } else { "closed" }).or_default() += 1;
    }
    bot::outcomes::once(&house.bot).await;
}

/// The ledger adds up with what people did, and with the forge.
async fn assert_ledger(house: &House, tally: &BTreeMap<&str, usize>) {
    let drafts = house.bot.store.drafts(10_000).await.expect("it answers");
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for draft in &drafts {
        *known.entry(draft.fate.as_ref().map_or("open", |(fate, _)| fate.name())).or_default() += 1;
    }
    let n_open = known.remove("open").unwrap_or_default();
    assert_eq!(&known, tally);
    assert_eq!(drafts.len(), house.forge.pulls(&house.repo).len());
    assert_eq!(n_open, house.forge.pulls(&house.repo).iter().filter(|it| it.is_open).count());
}

#[tokio::test]
async fn a_quarter_of_nights_stays_within_its_caps_pauses_and_goes_on() {
    let keys = json!({
        "per_sweep": PER_SWEEP, "per_day": PER_SWEEP, "open_drafts": OPEN_DRAFTS,
        "pause_share": 0.5, "pause_drafts": 6,
    });
    let sweep = of(keys);
    let change = move |config: &mut config::Config| {
        config.sweeps.insert(NAME.to_owned(), sweep);
        // A night's jobs in one go: 500 issues are read before each.
        config.queue.workers = PER_SWEEP as usize;
    };
    let setup = Setup { change: Box::new(change), ..short() };
    let house = House::start(Place::GITHUB_USER.with(setup)).await;
    house.forge.hold_hooks(true);
    let ann = house.forge.person("ann");
    for number in 0..ISSUES {
        let body =
            if number % 3 == 0 { "Traceback (most recent call last):" } else { "It is wrong." };
        ann.open_issue(&house.repo, &format!("Issue {number}"), body, &[]).await;
    }
    let model = Model { house: &house, dice: Mutex::new(fastrand::Rng::with_seed(7)) };
    let worker = house.bot.worker("quarter".into());
    let mut dice = fastrand::Rng::with_seed(8);
    let (mut tally, mut paused_on, mut n_resumed) = (BTreeMap::new(), vec![], 0);
    let mut due = until_due(&house).await;
    for day in 0..DAYS {
        let mut n_tonight = 0;
        let last = loop {
            match turn(&house).await {
                Turn::Queued(picks) => {
                    n_tonight += picks.len();
                    while worker.step(&model, &Stop::default()).await.expect("the store answers") {}
                    let n_open =
                        house.forge.pulls(&house.repo).iter().filter(|it| it.is_open).count();
                    assert!(n_open <= OPEN_DRAFTS, "day {day}: {n_open} drafts are open");
                }
                last => break last,
            }
        };
        assert!(n_tonight <= PER_SWEEP as usize, "day {day}: {n_tonight}");
        if let Turn::Paused(_) = last {
            assert_eq!(n_tonight, 0, "day {day}: a sweep that is paused begins nothing");
            paused_on.push(day);
            // Somebody sees it, once the bad month is over.
            if day >= BAD.end {
                assert!(
                    house
                        .bot
                        .store
                        .resume_sweep(NAME, house.clock.now())
                        .await
                        .expect("it answers")
                );
                n_resumed += 1;
            }
        }
        review(&house, day, &mut dice, &mut tally).await;
        due = sweep::next(&house.bot, NAME)
            .expect("there is one")
            .filter(|at| *at > due)
            .expect("it comes");
        house.clock.advance((due - house.clock.now()).to_std().unwrap_or_default());
    }

    let rows = house.bot.store.jobs(10_000).await.expect("it answers");
    let mut issues: Vec<u64> = rows.iter().map(|row| row.job.subject.issue).collect();
    issues.sort_unstable();
    issues.dedup();
    assert_eq!(issues.len(), rows.len(), "no issue was worked on twice");
    assert!(rows.len() > 200, "{}", rows.len());
    assert!(BAD.contains(&paused_on[0]) && n_resumed == 1, "{paused_on:?} {n_resumed}");
    assert!(paused_on.iter().all(|day| (BAD.start..=BAD.end).contains(day)), "{paused_on:?}");

    assert_ledger(&house, &tally).await;
    house.forge.assert_clean();
}
