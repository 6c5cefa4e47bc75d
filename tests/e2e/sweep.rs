//! Sweeps over the backlog: what is taken, in which order, how much, and when a sweep stops by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use bot::clock::Clock as _;
use bot::job::{Ask, Outcome, Rule};
use bot::store::Fate;
use bot::sweep::{self, Turn};
use chrono::{DateTime, SubsecRound as _, Utc};
use serde_json::{Value, json};
use tests::forge::{FakeForge, Fault, Matcher};
use tests::house::{House, Place, Setup, demo_issue};
use tests::outside::Outside;
use tests::story::short;

use crate::commands::hyla;

mod quarter;

const NAME: &str = "nightly";

/// A sweep of these keys, at one in the morning of Berlin unless they say otherwise.
fn of(keys: Value) -> config::Sweep {
    let mut all = json!({ "schedule": "0 1 * * *", "zone": "Europe/Berlin" });
    if let (Value::Object(all), Value::Object(keys)) = (&mut all, keys) {
        all.extend(keys);
    }
    serde_json::from_value(all).expect("these are keys of a sweep")
}

async fn house(place: Place, keys: Value) -> House {
    let sweep = of(keys);
    let change = move |config: &mut config::Config| {
        config.sweeps.insert(NAME.to_owned(), sweep);
    };
    House::start(place.with(Setup { change: Box::new(change), ..short() })).await
}

/// Moves the clock to the first instant at which the sweep is due.
async fn until_due(house: &House) -> DateTime<Utc> {
    assert_eq!(turn(house).await, Turn::Rests, "what was due before is nobody's");
    let due = sweep::next(&house.bot, NAME).expect("there is one").expect("it comes");
    house.clock.advance((due - house.clock.now()).to_std().expect("it lies ahead"));
    due
}

async fn turn(house: &House) -> Turn {
    sweep::turn(&house.bot, NAME).await.expect("forge and ledger answer")
}

/// Has the sweep go on until it does nothing more. Returns which issues it took, and its last word.
async fn all_turns(house: &House) -> (Vec<u64>, Turn) {
    let mut taken = Vec::new();
    loop {
        match turn(house).await {
            Turn::Queued(picks) => {
                assert!(picks.len() <= house.bot.config.queue.workers);
                taken.extend(picks.iter().map(|(pick, _)| pick.subject.issue));
                house.work().await;
            }
            last => return (taken, last),
        }
    }
}

#[tokio::test]
async fn the_cheapest_issues_that_nobody_works_on_become_drafts() {
    for place in Place::ALL {
        let house = house(place, json!({ "without_labels": ["wontfix"], "per_sweep": 2 })).await;
        let (title, body) = demo_issue();
        let ann = house.forge.person("ann");
        let plain = ann.open_issue(&house.repo, title, body, &[]).await;
        let traced =
            format!("{body}\n\nTraceback (most recent call last):\n  File \"a.py\", line 1\n");
        let traced = ann.open_issue(&house.repo, title, &traced, &[]).await;
        let assigned = ann.open_issue(&house.repo, title, body, &[]).await;
        ann.toggle_assignee(&house.repo, assigned, "ann").await;
        let unwanted = ann.open_issue(&house.repo, title, body, &["wontfix"]).await;
        let linked = ann.open_issue(&house.repo, title, body, &[]).await;
        ann.commit(&house.repo, "theirs", [("b.txt", "b\n")]);
        let words = ("Of a person", &*format!("Fixes #{linked}"));
        ann.open_pull_saying(&house.repo, words, "theirs", "main").await;

        until_due(&house).await;
        let (taken, last) = all_turns(&house).await;
        assert_eq!(taken, [traced, plain], "{place:?}");
        assert_eq!(last, Turn::Over("`per_sweep` is 2".into()), "{place:?}");
        for issue in [traced, plain] {
            let comments = house.status_comments(issue);
            assert_eq!(comments.len(), 1, "{place:?}");
            assert!(comments[0].contains("Found by the sweep `nightly`."), "{}", comments[0]);
        }
        let drafts: Vec<_> =
            house.forge.pulls(&house.repo).into_iter().filter(|it| it.is_draft).collect();
        assert_eq!(drafts.len(), 2, "{place:?}");
        assert!(
            drafts[0].body.contains("the sweep `nightly` found the issue"),
            "{}",
            drafts[0].body
        );
        for issue in [assigned, unwanted, linked] {
            assert!(house.forge.comments(&house.repo, issue).is_empty(), "{place:?}: {issue}");
        }
        assert_eq!(turn(&house).await, Turn::Rests, "{place:?}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn drafts_that_wait_for_people_hold_a_sweep_back_until_they_are_decided() {
    let house = house(Place::FORGEJO, json!({ "open_drafts": 1 })).await;
    let (first, second) = (house.open_issue().await, house.open_issue().await);
    until_due(&house).await;
    let (taken, last) = all_turns(&house).await;
    assert_eq!((taken, last), (vec![second], Turn::Over("no further issue fits".into())));

    let draft = house.forge.pulls(&house.repo)[0].number;
    house.forge.person("ann").comment(&house.repo, draft, "Not like this, @everybody.").await;
    house.forge.person("rob").comment(&house.repo, draft, "I like it.").await;
    house.forge.person("ann").close(&house.repo, draft).await;
    bot::outcomes::once(&house.bot).await;
    let drafts = house.bot.store.drafts(10).await.expect("it answers");
    let fate = drafts[0].fate.clone().expect("it is known").0;
    assert_eq!(fate, Fate::Closed { why: Some("Not like this, @\u{200b}everybody.".into()) });
    assert!(drafts[0].model.is_some());

    house.clock.advance(Duration::from_secs(24 * 3600));
    let (taken, _) = all_turns(&house).await;
    assert_eq!(taken, [first], "a closed draft means no");
    let draft = house.forge.pulls(&house.repo)[1].number;
    house.forge.person("ann").merge(&house.repo, draft).await;
    bot::outcomes::once(&house.bot).await;
    let drafts = house.bot.store.drafts(10).await.expect("it answers");
    let fates: Vec<&str> =
        drafts.iter().filter_map(|it| Some(it.fate.as_ref()?.0.name())).collect();
    assert_eq!(fates, ["merged", "closed"]);
    house.assert_clean().await;
}

#[tokio::test]
async fn what_happens_to_an_issue_after_it_was_taken_counts_and_is_no_reason_to_speak() {
    let house = house(Place::GITEA, json!({})).await;
    let issue = house.open_issue().await;
    until_due(&house).await;
    let Turn::Queued(picks) = turn(&house).await else { panic!("there is an issue") };
    assert_eq!(picks[0].0.subject.issue, issue);
    house.forge.person("ann").toggle_assignee(&house.repo, issue, "ann").await;
    house.work().await;
    assert_eq!(house.end().await.outcome, Outcome::Refused(Rule::IssueAssigned));
    assert!(house.forge.comments(&house.repo, issue).is_empty());
    assert_eq!(turn(&house).await, Turn::Over("no further issue fits".into()));

    // A person may still ask.
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    house.assert_clean().await;
}

#[tokio::test]
async fn of_many_missed_instants_one_is_caught_up_with_and_a_restart_goes_on() {
    let house = house(Place::FORGEJO, json!({ "per_sweep": 2, "open_drafts": 9 })).await;
    for _ in 0..5 {
        house.open_issue().await;
    }
    let due = until_due(&house).await;
    house.clock.advance(Duration::from_secs(5 * 24 * 3600));
    assert!(matches!(turn(&house).await, Turn::Queued(_)));
    assert!(matches!(turn(&house).await, Turn::Waits(_)), "one at a time");
    house.work().await;
    // Another process on the same data, as after a restart.
    let bot = house.second_bot().await;
    let next = sweep::turn(&bot, NAME).await.expect("it answers");
    assert!(matches!(next, Turn::Queued(_)), "{next:?}");
    house.work().await;
    assert!(matches!(turn(&house).await, Turn::Over(_)));
    assert_eq!(turn(&house).await, Turn::Rests);
    let instants: Vec<i64> = house
        .jobs()
        .await
        .iter()
        .filter_map(|row| match row.job.ask() {
            Some(Ask::Sweep { at, .. }) => Some(at),
            _ => None,
        })
        .collect();
    let last = due.timestamp() + 5 * 24 * 3600;
    assert_eq!(instants, [last, last]);
    house.assert_clean().await;
}

#[tokio::test]
async fn two_processes_take_no_issue_twice_and_no_more_than_the_caps() {
    let house = house(Place::FORGEJO, json!({ "per_sweep": 3, "open_drafts": 9 })).await;
    for _ in 0..6 {
        house.open_issue().await;
    }
    until_due(&house).await;
    let other = house.second_bot().await;
    for _ in 0..6 {
        let both = tokio::join!(sweep::turn(&house.bot, NAME), sweep::turn(&other, NAME));
        assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
        house.work().await;
    }
    let mut issues: Vec<u64> = house.jobs().await.iter().map(|row| row.job.subject.issue).collect();
    issues.sort_unstable();
    issues.dedup();
    assert_eq!((issues.len(), house.jobs().await.len()), (3, 3));
    house.assert_clean().await;
}

#[tokio::test]
async fn quiet_hours_and_caps_of_time_make_a_sweep_wait() {
    let keys = json!({ "quiet": ["00:30-03:00"], "per_hour": 1, "open_drafts": 9 });
    let house = house(Place::FORGEJO, keys).await;
    for _ in 0..2 {
        house.open_issue().await;
    }
    until_due(&house).await;
    assert_eq!(turn(&house).await, Turn::Waits("it is quiet until 03:00".into()));
    let plan = sweep::dry(&house.bot, NAME).await.expect("it answers");
    assert_eq!((plan.held.as_deref(), plan.picks.len()), (Some("it is quiet until 03:00"), 2));
    assert!(sweep::words::plan(NAME, &plan).contains("would not begin now: it is quiet until"));
    house.clock.advance(Duration::from_secs(2 * 3600));
    assert!(matches!(turn(&house).await, Turn::Queued(_)));
    house.work().await;
    assert_eq!(turn(&house).await, Turn::Waits("`per_hour` is 1".into()));
    house.clock.advance(Duration::from_secs(3600));
    assert!(matches!(turn(&house).await, Turn::Queued(_)));
    house.work().await;
    house.assert_clean().await;
}

#[tokio::test]
async fn what_another_schedule_had_due_is_nobodys() {
    let house = house(Place::GITEA, json!({})).await;
    let issue = house.open_issue().await;
    // The configuration had another one until an hour after this one is due.
    let (store, now) = (house.bot.store.as_ref(), house.clock.now());
    store.begin_sweep(NAME, now.trunc_subsecs(0), true).await.expect("it is kept");
    store.follow_schedule(NAME, "0 5 * * * Asia/Tokyo", now).await.expect("it is kept");
    let due = sweep::next(&house.bot, NAME).expect("there is one").expect("it comes");
    house.clock.advance((due - now).to_std().expect("it lies ahead") + Duration::from_secs(3600));
    assert_eq!(turn(&house).await, Turn::Rests);
    house.clock.advance(Duration::from_secs(22 * 3600));
    assert_eq!(turn(&house).await, Turn::Rests);
    house.clock.advance(Duration::from_secs(3600));
    let Turn::Queued(picks) = turn(&house).await else { panic!("it is due") };
    assert_eq!(picks[0].0.subject.issue, issue);
    house.work().await;
    house.assert_clean().await;
}

#[tokio::test]
async fn two_sweeps_share_the_cap_of_a_repository() {
    let change = |config: &mut config::Config| {
        for (name, cap) in [("one", 1), ("two", 2)] {
            config.sweeps.insert(name.to_owned(), of(json!({ "open_drafts": cap })));
        }
    };
    let setup = Setup { change: Box::new(change), ..short() };
    let house = House::start(Place::FORGEJO.with(setup)).await;
    for _ in 0..4 {
        house.open_issue().await;
    }
    let mut memory = sweep::Memory::default();
    sweep::once(&house.bot, &mut memory).await;
    house.clock.advance(Duration::from_secs(24 * 3600));
    for _ in 0..4 {
        sweep::once(&house.bot, &mut memory).await;
        house.work().await;
    }
    let swept = |name: &'static str| move |row: &&bot::store::Row| matches!(row.job.ask(), Some(Ask::Sweep { name: its, .. }) if its == name);
    let jobs = house.jobs().await;
    let n = ["one", "two"].map(|name| jobs.iter().filter(swept(name)).count());
    assert_eq!(n, [1, 1], "the second one may have two pending, with that of the first");
    house.assert_clean().await;
}

#[tokio::test]
async fn a_sweep_that_breaks_is_looked_at_less_and_less_until_its_forge_is_well() {
    let house = house(Place::FORGEJO, json!({})).await;
    house.open_issue().await;
    until_due(&house).await;
    house.work().await;
    let list = Matcher::new("GET", "*/repos/acme/hours/issues");
    house.forge.fault(list, Fault::down(503, "back soon"), usize::MAX);
    let mut memory = sweep::Memory::default();
    let mut looks = Vec::new();
    for second in 0..130 {
        let before = house.forge.requests().len();
        sweep::once(&house.bot, &mut memory).await;
        if house.forge.requests().len() > before {
            looks.push(second);
        }
        house.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(looks, [0, 15, 45, 105]);
    house.forge.clear_faults();
    house.clock.advance(Duration::from_secs(120));
    sweep::once(&house.bot, &mut memory).await;
    house.work().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    house.assert_clean().await;
}

#[tokio::test]
async fn authors_and_age_and_a_list_narrow_what_is_taken() {
    let cases = [
        (json!({ "authors": "writers" }), vec!["ann"]),
        (json!({ "authors": "others" }), vec!["rob"]),
        (json!({ "older_than": "3650d" }), vec![]),
        (json!({ "younger_than": "1s" }), vec![]),
        (json!({ "labels": ["bug"] }), vec!["ann"]),
        (json!({ "exclude": ["Acme/Hours#1"] }), vec!["rob"]),
    ];
    for (keys, expected) in cases {
        let house = house(Place::GITHUB_APP, keys.clone()).await;
        let (title, body) = demo_issue();
        let mut authors = BTreeMap::new();
        for (login, labels) in [("ann", &["bug"][..]), ("rob", &[])] {
            let issue =
                house.forge.person(login).open_issue(&house.repo, title, body, labels).await;
            authors.insert(issue, login);
        }
        // Each was looked at when it was opened, and asks for nothing.
        house.work().await;
        house.clock.advance(Duration::from_secs(3600));
        let plan = sweep::dry(&house.bot, NAME).await.expect("it answers");
        let taken: Vec<&str> = plan.picks.iter().map(|pick| authors[&pick.subject.issue]).collect();
        assert_eq!(taken, expected, "{keys}: {:?}", plan.left);
        assert_eq!(plan.left.values().sum::<usize>(), 2 - taken.len(), "{keys}");
        house.assert_clean().await;
    }
}

/// What `hyla` prints, once it has done what it was told.
async fn said(outside: &Outside, arguments: &[&str]) -> String {
    let ran = hyla(&[arguments, &["--config", &outside.file]].concat()).await;
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}{}", ran.stdout, ran.stderr);
    ran.stdout
}

fn number_of_drafts(forge: &FakeForge, outside: &Outside) -> usize {
    forge.pulls(&outside.repo).len()
}

#[tokio::test]
async fn a_person_sweeps_by_hand_and_reads_what_became_of_it() {
    let more = "[sweep.nightly]\nschedule = \"0 1 * * 1-5\"\nzone = \"Europe/Berlin\"\n";
    let outside = Outside::start(tests::house::demo_recording(), more).await;
    let issue = outside.open_issue(&[]).await;
    let plan = said(&outside, &["sweep", NAME, "--dry-run"]).await;
    assert!(plan.contains("would take one issue") && plan.contains("is short (+2)"), "{plan}");
    assert_eq!(number_of_drafts(&outside.forge, &outside), 0);
    let plan = said(&outside, &["sweep", NAME, "--dry-run", "--json"]).await;
    let plan: Value = serde_json::from_str(&plan).expect("it is JSON");
    assert_eq!(plan["picks"][0]["issue"], format!("main:acme/hours#{issue}"));

    let swept = said(&outside, &["sweep", NAME]).await;
    assert!(
        swept.contains("draft_pr") && swept.contains("is over: no further issue fits"),
        "{swept}"
    );
    assert_eq!(number_of_drafts(&outside.forge, &outside), 1);
    let resumed = said(&outside, &["sweep", NAME, "--resume"]).await;
    assert!(resumed.contains("was not paused; it begins next at 20"), "{resumed}");

    let outcomes = said(&outside, &["outcomes"]).await;
    assert!(outcomes.contains("main:acme/hours, recording"), "{outcomes}");
    let outcomes = said(&outside, &["outcomes", "--json"]).await;
    let outcomes: Value = serde_json::from_str(&outcomes).expect("it is JSON");
    assert_eq!((&outcomes[0]["fate"], &outcomes[0]["issue"]), (&json!("open"), &json!(issue)));
    let csv = said(&outside, &["outcomes", "--csv"]).await;
    assert!(csv.starts_with("job,forge,repository,") && csv.lines().count() == 2, "{csv}");
    let ran = hyla(&["sweep", "nope", "--config", &outside.file]).await;
    assert!(ran.stderr.contains("no sweep is called `nope`"), "{}", ran.stderr);
    outside.forge.assert_clean();
}
