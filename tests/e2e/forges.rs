//! Stories that each forge tells in words of its own, on all of them: who put the label on, what is told twice, what lies on
//! an issue already, and what is not where it was.

use bot::forge::Permission;
use bot::job::{Outcome, Rule};
use bot::reconcile::Memory;
use tests::forge::{ContentType, Dialect};
use tests::house::{House, Place, WEBHOOK_SECRET, demo_issue};
use tests::story::{TAKEN_AWAY, ask_again, hasty, short, swept, taken_away};

async fn house(place: Place) -> House {
    House::start(place.with(short())).await
}

#[tokio::test]
async fn a_label_by_somebody_who_may_not_write_is_refused() {
    for place in Place::ALL {
        let house = house(place).await;
        let issue = house.open_issue().await;
        house.forge.person("rob").add_label(&house.repo, issue, "hyla").await;
        house.work().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::Refused(Rule::AdderCannotWrite), "{place:?}");
        assert_eq!(house.status_comments(issue).len(), 1, "{place:?}");
        assert!(house.model.requests().is_empty(), "{place:?}");
        ask_again(&house, issue).await;
        assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{place:?}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_label_that_comes_with_the_issue_counts() {
    for place in Place::ALL {
        let house = house(place).await;
        let (title, body) = demo_issue();
        let ann = house.forge.person("ann");
        let issue = ann.open_issue(&house.repo, title, body, &["hyla"]).await;
        house.work().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{place:?}: {}", end.operator);
        house.assert_one_of_each(issue, place).await;
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn what_is_delivered_twice_is_done_once() {
    for place in Place::ALL {
        let house = house(place).await;
        // A second hook for the same events, as an organisation and a repository may both have one.
        house.forge.register_hook_as(&house.repo, &house.hook, WEBHOOK_SECRET, ContentType::Form);
        let issue = house.open_issue().await;
        let ann = house.forge.person("ann");
        for _ in 0..3 {
            ann.add_label(&house.repo, issue, "hyla").await;
            ann.add_label(&house.repo, issue, "bug").await;
        }
        for delivered in house.forge.deliveries() {
            let again = house.forge.redeliver(&delivered.id).await;
            assert_eq!(again.status, Some(202), "{place:?}: {}", again.answer);
            assert_eq!(again.id == delivered.id, place.dialect.is_github(), "{place:?}");
        }
        house.work().await;
        for delivered in house.forge.deliveries() {
            house.forge.redeliver(&delivered.id).await;
        }
        house.work().await;
        assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{place:?}");
        house.assert_one_of_each(issue, place).await;
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_label_of_which_nobody_was_told_is_found() {
    for place in Place::ALL {
        let house = house(place).await;
        house.forge.hold_hooks(true);
        let ann = house.forge.person("ann");
        // A pull request may carry the label too, and is no issue.
        ann.commit(&house.repo, "theirs", [("b.txt", "b\n")]);
        let pull = ann.open_pull(&house.repo, "Of a person", "theirs", "main").await;
        ann.add_label(&house.repo, pull, "hyla").await;
        let issue = house.open_issue().await;
        ann.add_label(&house.repo, issue, "hyla").await;
        let n_queued = swept(&house, &mut Memory::default()).await;
        // An app asks first for what was missed, and that may come before the sweep has looked.
        assert!(n_queued == 1 || place.is_app(), "{place:?}: {n_queued}");
        house.forge.settle().await;
        house.work().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{place:?}: {}", end.operator);
        assert_eq!(house.jobs().await.len(), 1, "{place:?}");
        assert_eq!(swept(&house, &mut Memory::default()).await, 0, "{place:?}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_delivery_that_nobody_took_is_asked_for_again() {
    for dialect in Dialect::GITHUB {
        let house = house(Place { dialect, ..Place::GITHUB_APP }).await;
        house.forge.hold_hooks(true);
        let issue = house.open_issue().await;
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        house.forge.hold_hooks(false);
        let missed = house.forge.deliveries().into_iter().filter(|it| it.status.is_none());
        let missed: Vec<String> = missed.map(|it| it.id).collect();
        assert_eq!(missed.len(), 2, "{dialect:?}: the issue and its label");

        let mut memory = Memory::default();
        swept(&house, &mut memory).await;
        house.forge.settle().await;
        house.work().await;
        let again = || house.forge.deliveries().into_iter().filter(|it| it.is_again);
        assert!(again().all(|it| it.status == Some(202)), "{dialect:?}");
        assert_eq!(
            again().map(|it| it.id).collect::<Vec<_>>(),
            missed,
            "{dialect:?}: in their order"
        );
        for id in &missed {
            assert_eq!(house.bot.store.deliveries(id).await.expect("it answers").len(), 1);
        }
        house.assert_one_of_each(issue, dialect).await;
        assert_eq!(house.jobs().await.len(), 1, "{dialect:?}");

        swept(&house, &mut memory).await;
        swept(&house, &mut Memory::default()).await;
        house.forge.settle().await;
        assert_eq!(again().count(), missed.len(), "{dialect:?}: what has come is not asked for");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_delivery_that_always_fails_is_asked_for_three_times() {
    let house = house(Place::GITHUB_APP).await;
    // The app's owner has typed another secret.
    house.forge.set_app_hook(&house.hook, "another");
    let issue = house.open_issue().await;
    house.forge.person("ann").comment(&house.repo, issue, "Hello").await;
    let refused = || house.forge.deliveries().into_iter().filter(|it| it.status == Some(401));
    let n_refused = refused().count();
    assert!(n_refused >= 2, "{n_refused}");
    let mut memory = Memory::default();
    for _ in 0..5 {
        swept(&house, &mut memory).await;
        house.forge.settle().await;
    }
    assert_eq!(refused().count(), n_refused * 4);
    house.assert_clean().await;
}

#[tokio::test]
async fn a_pull_request_of_a_person_that_would_close_the_issue_comes_first() {
    for place in Place::ALL {
        let house = house(place).await;
        let issue = house.open_issue().await;
        let ann = house.forge.person("ann");
        ann.commit(&house.repo, "theirs", [("b.txt", "b\n")]);
        let words = ("Of a person", &*format!("Fixes #{issue}"));
        ann.open_pull_saying(&house.repo, words, "theirs", "main").await;
        ann.add_label(&house.repo, issue, "hyla").await;
        house.work().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::Refused(Rule::PullLinked), "{place:?}: {}", end.operator);
        assert!(house.model.requests().is_empty(), "{place:?}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn the_bots_own_open_draft_comes_first_and_a_closed_one_does_not() {
    for place in Place::ALL {
        let house = house(place).await;
        let issue = house.labelled_and_worked().await;
        ask_again(&house, issue).await;
        assert_eq!(house.end().await.outcome, Outcome::Refused(Rule::PullLinked), "{place:?}");
        let draft = house.forge.pulls(&house.repo)[0].number;
        house.forge.person("ann").close(&house.repo, draft).await;
        ask_again(&house, issue).await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{place:?}: {}", end.operator);
        let pulls = house.forge.pulls(&house.repo);
        let heads: Vec<&str> = pulls.iter().map(|pull| pull.head.as_str()).collect();
        assert!(heads.len() == 2 && heads[0] != heads[1], "{place:?}: {heads:?}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn comments_of_people_with_write_access_reach_the_model_and_no_others() {
    for place in Place::ALL {
        let house = house(place).await;
        let issue = house.open_issue().await;
        house.forge.add_user("eve", Permission::None);
        for (login, words) in
            [("ann", "look at line 3"), ("rob", "ignore ann"), ("eve", "run this")]
        {
            house.forge.person(login).comment(&house.repo, issue, words).await;
        }
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        house.work().await;
        let task = house.model.requests()[0].to_string();
        assert!(task.contains("look at line 3"), "{place:?}");
        assert!(!task.contains("ignore ann") && !task.contains("run this"), "{place:?}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn a_repository_that_is_renamed_archived_or_deleted_meanwhile_is_left_alone() {
    for place in [Place::FORGEJO, Place::GITHUB_APP, Place::GITHUB_USER] {
        for case in TAKEN_AWAY {
            let house = House::start(place.with(hasty())).await;
            let end = taken_away(&house, case).await;
            if case.0 == "renamed" {
                assert!(end.operator.contains("acme/elsewhere"), "{place:?}: {}", end.operator);
            }
            house.assert_clean().await;
        }
    }
}
