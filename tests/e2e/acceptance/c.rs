//! Check C: every webhook is lost, and the sweep finds the labelled issues within one period.

use std::sync::Arc;
use std::time::Duration;

use bot::clock::System;
use bot::job::{Outcome, Rule};
use bot::reconcile::Memory;
use bot::serve;
use tests::forge::{Fault, Matcher};
use tests::house::{House, Setup, demo_issue};
use tests::model::PATIENCE;
use tests::story::{short, short_house, swept};

/// Requests so far whose path ends so.
fn n_requests(house: &House, end: &str) -> usize {
    house.forge.requests().iter().filter(|request| request.path.ends_with(end)).count()
}

#[tokio::test]
async fn check_c_one_sweep_finds_every_ask_without_a_webhook() {
    let house = short_house().await;
    house.forge.hold_hooks(true);
    let (title, body) = demo_issue();
    let ann = house.forge.person("ann");
    let labelled = house.open_issue().await;
    ann.add_label(&house.repo, labelled, "hyla").await;
    let at_creation = ann.open_issue(&house.repo, title, body, &["hyla"]).await;
    let by_rob = house.open_issue().await;
    house.forge.person("rob").add_label(&house.repo, by_rob, "hyla").await;
    let unlabelled = ann.open_issue(&house.repo, title, body, &["bug"]).await;
    let closed = ann.open_issue(&house.repo, title, body, &["hyla"]).await;
    ann.close(&house.repo, closed).await;

    let mut memory = Memory::default();
    assert_eq!(swept(&house, &mut memory).await, 3);
    for issue in [labelled, at_creation] {
        assert_eq!(house.status_comments(issue).len(), 1, "{issue}");
        let head = format!("hyla/issue-{issue}-1");
        let pulls = house.forge.pulls(&house.repo);
        assert_eq!(pulls.iter().filter(|pull| pull.head == head).count(), 1, "{issue}");
    }
    assert!(house.status_comments(by_rob)[0].contains("write access"));
    for issue in [unlabelled, closed] {
        assert!(house.status_comments(issue).is_empty(), "{issue}");
    }
    assert_eq!(house.forge.pulls(&house.repo).len(), 2);
    assert_eq!(house.jobs().await.len(), 3);

    // What is answered costs nothing but the list, once that has been seen twice.
    for _ in 0..2 {
        assert_eq!(swept(&house, &mut memory).await, 0);
    }
    let (n_timelines, n_lists) = (n_requests(&house, "/timeline"), n_requests(&house, "/issues"));
    for _ in 0..3 {
        assert_eq!(swept(&house, &mut memory).await, 0);
    }
    assert_eq!(n_requests(&house, "/timeline"), n_timelines);
    assert_eq!(n_requests(&house, "/issues") - n_lists, 3 * 2, "one page, and an empty one");
    assert_eq!(house.jobs().await.len(), 3);

    // The service starts again and remembers nothing but what its database says.
    assert_eq!(swept(&house, &mut Memory::default()).await, 0);
    house.assert_clean().await;
}

#[tokio::test]
async fn check_c_the_service_sweeps_by_itself_and_a_late_webhook_changes_nothing() {
    let setup = Setup {
        change: Box::new(|config| {
            config.server.listen = ([127, 0, 0, 1], 0).into();
            config.queue.reconcile = Duration::from_millis(100);
        }),
        ..short()
    };
    let house = House::start(setup).await;
    house.forge.hold_hooks(true);
    let bot = Arc::new(house.second_bot_at(Arc::new(System)).await);
    let story = async {
        while n_requests(&house, "/issues") == 0 {
            tokio::task::yield_now().await;
        }
        // It has swept when it started; what comes now is for the next one.
        let issue = house.open_issue().await;
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        let told = || house.status_comments(issue).iter().any(|text| text.contains("is ready"));
        while !told() {
            tokio::task::yield_now().await;
        }
        issue
    };
    let (done, quit) = tokio::sync::oneshot::channel();
    let secrets = house.secrets();
    let hangups = serve::hangups().expect("signals can be listened to");
    let service = serve::serve(bot, &secrets, hangups, async move {
        // Either way it is time to stop.
        let _ = quit.await;
    });
    let telling = async {
        let issue = tokio::time::timeout(PATIENCE, story).await.expect("a sweep finds it");
        done.send(()).expect("the service runs");
        issue
    };
    let (served, issue) = tokio::join!(service, telling);
    served.expect("the service stops in good order");
    for delivered in house.forge.deliveries() {
        house.forge.redeliver(&delivered.id).await;
    }
    house.clock.advance(Duration::from_secs(365 * 24 * 3600));
    house.work().await;
    house.assert_one_of_each(issue, "at the end").await;
    house.assert_clean().await;
}

#[tokio::test]
async fn check_c_a_sweep_beside_a_webhook_makes_no_second_job() {
    let house = short_house().await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    assert_eq!(swept(&house, &mut Memory::default()).await, 0, "one waits already");
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    assert_eq!(house.jobs().await.len(), 1);
    house.assert_clean().await;
}

#[tokio::test]
async fn check_c_a_broken_repository_stops_no_other_and_a_forge_that_is_down_is_left_alone() {
    let setup = Setup {
        change: Box::new(|config| {
            for forge in config.forges.values_mut() {
                let names = ["acme/gone", "acme/moved", "acme/hours", "acme/more"];
                forge.repositories = names.map(str::to_owned).to_vec();
            }
        }),
        ..short()
    };
    let house = House::start(setup).await;
    house.forge.hold_hooks(true);
    let moved = house.forge.add_repository("acme", "moved", [("a.txt", "a\n")]);
    house.forge.rename_repository(&moved, "elsewhere");
    house.forge.add_repository("acme", "more", [("a.txt", "a\n")]);
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;

    let mut memory = Memory::default();
    house.forge.fault(Matcher::new("*", "*"), Fault::down(503, "back soon"), usize::MAX);
    for _ in 0..3 {
        let n_before = house.forge.requests().len();
        assert_eq!(swept(&house, &mut memory).await, 0);
        assert!(house.forge.requests().len() - n_before <= 2, "it asks once, and waits");
    }
    house.forge.clear_faults();
    // One issue whose timeline makes no sense stands before the good one.
    let odd = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, odd, "hyla").await;
    let timeline = format!("/api/v1/repos/acme/hours/issues/{odd}/timeline");
    house.forge.fault(Matcher::new("GET", &timeline), Fault::Garbage, 1);
    assert_eq!(swept(&house, &mut memory).await, 1);
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    assert_eq!(swept(&house, &mut memory).await, 1);
    assert_eq!(house.forge.pulls(&house.repo).len(), 2);
    house.assert_clean().await;
}

#[tokio::test]
async fn check_c_a_label_that_nobody_made_is_no_reason_to_read_every_issue() {
    let setup = Setup {
        change: Box::new(|config| {
            for forge in config.forges.values_mut() {
                forge.label = "nobody-made-it".into();
            }
        }),
        ..short()
    };
    let house = House::start(setup).await;
    house.forge.hold_hooks(true);
    for _ in 0..120 {
        house.open_issue().await;
    }
    assert_eq!(swept(&house, &mut Memory::default()).await, 0);
    assert_eq!((n_requests(&house, "/issues"), n_requests(&house, "/timeline")), (1, 0));
    // With the label, all pages are read.
    let ann = house.forge.person("ann");
    for issue in 1..=60 {
        ann.add_label(&house.repo, issue, "nobody-made-it").await;
        ann.close(&house.repo, issue).await;
        ann.reopen(&house.repo, issue).await;
    }
    assert_eq!(bot::reconcile::once(&house.bot, &mut Memory::default()).await, 60);
}

#[tokio::test]
async fn check_c_a_refusal_is_found_and_told_once() {
    let house = short_house().await;
    house.forge.hold_hooks(true);
    let issue = house.open_issue().await;
    let ann = house.forge.person("ann");
    ann.add_label(&house.repo, issue, "hyla").await;
    ann.lock(&house.repo, issue);
    let mut memory = Memory::default();
    assert_eq!(swept(&house, &mut memory).await, 1);
    assert_eq!(house.end().await.outcome, Outcome::Refused(Rule::IssueLocked));
    for _ in 0..3 {
        assert_eq!(swept(&house, &mut memory).await, 0);
    }
    assert_eq!(house.status_comments(issue).len(), 1);
    house.assert_clean().await;
}
