//! Check J: the token ends in the middle of a run, the forge has had enough of the bot, answers 502, or does not take the
//! pull request. Each is waited for, mended or named, and nothing is made twice.

use std::time::Duration;

use bot::clock::Clock;
use bot::job::{Failure, Outcome, State};
use chrono::TimeDelta;
use config::WithoutDrafts;
use tests::forge::{Fault, Matcher, Request};
use tests::house::{House, Place, Setup};
use tests::story::{meddled, short};

const HOUR: Duration = Duration::from_secs(3600);

/// How many tokens the app has asked for.
fn n_minted(house: &House) -> usize {
    let requests = house.forge.requests();
    requests.iter().filter(|asked| asked.path.ends_with("/access_tokens")).count()
}

#[tokio::test]
async fn check_j_an_apps_token_that_ends_mid_run_is_minted_anew() {
    for place in Place::ALL.into_iter().chain(Place::OTHERS).filter(|place| place.is_app()) {
        let house = House::start(place.with(short())).await;
        let issue = meddled(&house, async |house, _| house.forge.expire_app_tokens()).await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{place:?}: {}", end.operator);
        assert_eq!(n_minted(&house), 2, "{place:?}");
        let is_refused = |it: &Request| it.path.starts_with("/api/") && it.status == Some(401);
        let refused = house.forge.requests().into_iter().filter(is_refused);
        assert_eq!(refused.count(), 1, "{place:?}: the end of a token is seen once");
        house.assert_one_of_each(issue, place).await;
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn check_j_a_users_token_that_ends_mid_run_is_waited_for() {
    for place in [Place::FORGEJO, Place::GITHUB_USER] {
        let house = House::start(place.with(short())).await;
        let issue = meddled(&house, async |house, _| house.forge.revoke(&house.token)).await;
        assert!(matches!(house.jobs().await[0].job.state, State::Queued), "{place:?}");
        let asked = house.model.requests().len();
        house.work_for(HOUR).await;
        house.forge.restore(&house.token);
        house.work_through_retries().await;
        assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{place:?}");
        assert_eq!(house.model.requests().len(), asked, "{place:?}: no second session");
        house.assert_one_of_each(issue, place).await;
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn check_j_an_app_that_is_no_longer_installed_ends_the_job_by_name() {
    let place = Place::GITHUB_APP;
    let house = House::start(place.with(short())).await;
    let issue = meddled(&house, async |house, _| {
        house.forge.uninstall_app(&house.repo);
        house.forge.expire_app_tokens();
    })
    .await;
    house.work_for(HOUR).await;
    house.forge.install_app(&house.repo);
    house.work_through_retries().await;
    let end = house.end().await;
    assert_eq!(end.outcome, Outcome::Failed(Failure::ForgeMissing), "{}", end.operator);
    assert!(end.operator.contains("is the app installed?"), "{}", end.operator);
    assert!(house.status_comments(issue)[0].contains(&end.person));
    house.assert_clean().await;
}

/// Ninety seconds, in every way that a forge says so, or no word of how long.
fn limits(place: Place) -> Vec<(&'static str, Fault, i64)> {
    let date = "Wed, 02 Dec 2026 07:28:00 GMT";
    let then = "Wed, 02 Dec 2026 07:29:30 GMT";
    let words = "You have exceeded a secondary rate limit. Please wait a few minutes.";
    let plain = |status| Fault::status(status, "slow down");
    let mut limits = vec![
        ("429 in seconds", plain(429).with(&[("retry-after", "90")]), 90),
        ("429 by date", plain(429).with(&[("date", date), ("retry-after", then)]), 90),
        ("503 in seconds", plain(503).with(&[("retry-after", "90")]), 90),
    ];
    if place.dialect.is_github() {
        let used_up = [
            ("date", date),
            ("x-ratelimit-remaining", "0"),
            // 07:29:30 of that day.
            ("x-ratelimit-reset", "1796196570"),
        ];
        limits.extend([
            ("403 in seconds", plain(403).with(&[("retry-after", "90")]), 90),
            ("403 by date", plain(403).with(&[("date", date), ("retry-after", then)]), 90),
            ("403 at the primary limit", plain(403).with(&used_up), 90),
            ("403 in words", Fault::status(403, words), 1),
        ]);
    }
    limits
}

#[tokio::test]
async fn check_j_a_limit_is_waited_for_as_long_as_the_forge_asks() {
    for place in [Place::GITEA, Place::GITHUB_APP] {
        for (name, fault, least) in limits(place) {
            let house = House::start(place.with(short())).await;
            let issue = house.open_issue().await;
            // In words alone it is tried again within the call, three times in all.
            let times = if least == 1 { 3 } else { 1 };
            house.forge.fault(Matcher::new("POST", &place.in_repo("/pulls")), fault, times);
            house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
            house.work().await;
            assert!(house.forge.pulls(&house.repo).is_empty(), "{place:?} {name}");
            let due = house.bot.store.next_due().await.expect("the store answers");
            let wait = due.expect("the job waits") - house.clock.now();
            assert!(wait >= TimeDelta::seconds(least), "{place:?} {name}: {wait}");
            house.work_through_retries().await;
            let end = house.end().await;
            assert_eq!(end.outcome, Outcome::DraftPr, "{place:?} {name}: {}", end.operator);
            house.assert_one_of_each(issue, (place, name)).await;
            house.assert_clean().await;
        }
    }
}

#[tokio::test]
async fn check_j_a_limit_on_tokens_is_no_missing_right() {
    let place = Place::GITHUB_APP;
    for (name, fault, least) in limits(place) {
        let house = House::start(place.with(short())).await;
        let mint = Matcher::new("POST", "/api/v3/app/installations/*/access_tokens");
        house.forge.fault(mint, fault, usize::MAX);
        let issue = house.labelled_and_worked().await;
        let row = house.jobs().await.remove(0);
        assert!(row.job.untold.is_none(), "{name}: it has ended: {:?}", row.job.untold);
        let wait = row.due_at - house.clock.now();
        assert!(wait >= TimeDelta::seconds(least), "{name}: {wait}");
        house.forge.clear_faults();
        house.work_through_retries().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{name}: {}", end.operator);
        house.assert_one_of_each(issue, name).await;
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn check_j_a_bad_gateway_before_and_after_the_draft_makes_one() {
    for place in Place::ALL {
        for fault in [Fault::status(502, ""), Fault::AfterEffect(502), Fault::AfterEffect(422)] {
            // A pull request that is there already is told with this number by GitHub alone.
            if matches!(fault, Fault::AfterEffect(422)) && !place.dialect.is_github() {
                continue;
            }
            let house = House::start(place.with(short())).await;
            let open = Matcher::new("POST", &place.in_repo("/pulls"));
            house.forge.fault(open, fault.clone(), 1);
            let issue = house.labelled_and_worked().await;
            house.work_through_retries().await;
            let end = house.end().await;
            assert_eq!(end.outcome, Outcome::DraftPr, "{place:?} {fault:?}: {}", end.operator);
            assert!(house.forge.pulls(&house.repo)[0].is_draft, "{place:?} {fault:?}");
            house.assert_one_of_each(issue, (place, fault)).await;
            house.assert_clean().await;
        }
    }
}

#[tokio::test]
async fn check_j_a_draft_that_is_refused_ends_by_its_name_with_the_forges_words() {
    for place in Place::ALL {
        let house = House::start(place.with(short())).await;
        let open = Matcher::new("POST", &place.in_repo("/pulls"));
        house.forge.fault(open, Fault::status(422, "Validation Failed"), usize::MAX);
        let issue = house.labelled_and_worked().await;
        house.work_through_retries().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::Failed(Failure::ForgeDenied), "{place:?}");
        assert!(end.operator.contains("(422): Validation Failed"), "{place:?}: {}", end.operator);
        assert!(house.status_comments(issue)[0].contains(&end.next), "{place:?}");
        assert!(house.forge.pulls(&house.repo).is_empty(), "{place:?}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn check_j_where_there_are_no_drafts_the_operator_decides() {
    for (policy, place) in
        [(WithoutDrafts::Refuse, Place::GITHUB_APP), (WithoutDrafts::Prefix, Place::GITHUB_USER)]
    {
        let change = move |config: &mut config::Config| {
            config.forges.values_mut().for_each(|forge| forge.without_drafts = policy);
        };
        let setup = Setup { change: Box::new(change), ..short() };
        let house = House::start(place.with(setup)).await;
        house.forge.refuse_drafts();
        let issue = house.labelled_and_worked().await;
        let (end, pulls) = (house.end().await, house.forge.pulls(&house.repo));
        match policy {
            WithoutDrafts::Refuse => {
                assert_eq!(end.outcome, Outcome::Failed(Failure::ForgeDenied), "{}", end.operator);
                assert!(end.operator.contains("Draft pull requests are not supported"));
                assert!(pulls.is_empty());
            }
            WithoutDrafts::Prefix => {
                assert_eq!(end.outcome, Outcome::DraftPr, "{}", end.operator);
                assert!(pulls[0].title.starts_with("WIP: ") && !pulls[0].is_draft);
            }
        }
        assert!(house.status_comments(issue)[0].contains(&end.person));
        house.assert_clean().await;
    }
}
