//! Whom the bot leaves in peace: named rules, one comment at most, and never a failure. Each holds when a job begins and
//! once more before anything is pushed.

use std::time::Duration;

use bot::job::{Outcome, Rule};
use tests::forge::{Dialect, Fault, Matcher};
use tests::house::{House, Setup};
use tests::story::{ask_again, ask_by_command, meddled, short, short_house};

const HOUR: Duration = Duration::from_secs(3600);

/// Opens the issue, lets people act, lets `ann` ask, and works.
async fn asked_after(house: &House, act: impl AsyncFnOnce(&House, u64)) -> u64 {
    let issue = house.open_issue().await;
    act(house, issue).await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work().await;
    issue
}

/// The newest job was refused by this rule, with one quiet comment that says so; nothing was made.
async fn assert_refused(house: &House, issue: u64, rule: Rule, words: &str) {
    let end = house.end().await;
    assert_eq!(end.outcome, Outcome::Refused(rule), "{}", end.operator);
    let told = house.status_comments(issue);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("Hyla: not done") && told[0].contains(words), "{}", told[0]);
    assert!(told[0].contains(&end.person) && told[0].contains(&end.next), "{}", told[0]);
    let branches = house.forge.branches(&house.repo);
    assert!(branches.iter().all(|(name, _)| !name.starts_with("hyla/")), "{branches:?}");
    let requests = house.forge.requests();
    assert!(requests.iter().all(|request| !request.path.contains("/statuses/")), "no red status");
    house.assert_clean().await;
}

#[tokio::test]
async fn an_issue_of_somebody_else_is_left_to_them() {
    for dialect in Dialect::ALL {
        let house = House::start(Setup { dialect, ..short() }).await;
        let issue = asked_after(&house, async |house, issue| {
            house.forge.person("ann").toggle_assignee(&house.repo, issue, "rob").await;
        })
        .await;
        assert_refused(&house, issue, Rule::IssueAssigned, "assigned to `rob`").await;
        assert!(house.model.requests().is_empty());

        // It is the bot's as well, so the next ask is followed.
        house.forge.person("ann").toggle_assignee(&house.repo, issue, "hyla").await;
        ask_again(&house, issue).await;
        assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    }
}

#[tokio::test]
async fn an_issue_of_whoever_asks_is_worked_on() {
    let house = short_house().await;
    asked_after(&house, async |house, issue| {
        for login in ["rob", "ann"] {
            house.forge.person("ann").toggle_assignee(&house.repo, issue, login).await;
        }
    })
    .await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    house.assert_clean().await;
}

#[tokio::test]
async fn somebody_who_takes_the_issue_while_the_job_runs_keeps_it() {
    let house = short_house().await;
    let issue = meddled(&house, async |house, issue| {
        house.forge.person("ann").toggle_assignee(&house.repo, issue, "rob").await;
    })
    .await;
    assert_refused(&house, issue, Rule::IssueAssigned, "assigned to `rob`").await;
}

#[tokio::test]
async fn a_pull_request_that_would_close_the_issue_comes_first() {
    for dialect in Dialect::ALL {
        let house = House::start(Setup { dialect, ..short() }).await;
        let ann = house.forge.person("ann");
        let issue = asked_after(&house, async |house, issue| {
            let ann = house.forge.person("ann");
            ann.commit(&house.repo, "topic", [("b.txt", "b\n")]);
            let words = ("Mend it", format!("This fixes #{issue}."));
            let words = (words.0, words.1.as_str());
            ann.open_pull_saying(&house.repo, words, "topic", "main").await;
        })
        .await;
        assert_refused(&house, issue, Rule::PullLinked, "[Pull request #2](").await;
        assert!(house.model.requests().is_empty());

        // One that is closed, or no longer says so, is in nobody's way.
        match dialect {
            Dialect::Gitea124 => drop(ann.close(&house.repo, 2).await),
            Dialect::Gitea127 | Dialect::Forgejo15 | Dialect::Ghes314 | Dialect::Ghes319 => {
                ann.rewrite(&house.repo, 2, "This is about something else.").await;
            }
        }
        ask_again(&house, issue).await;
        assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    }
}

#[tokio::test]
async fn a_pull_request_that_comes_while_the_job_runs_comes_first() {
    let house = short_house().await;
    let issue = meddled(&house, async |house, issue| {
        let ann = house.forge.person("ann");
        ann.commit(&house.repo, "topic", [("b.txt", "b\n")]);
        let words = format!("Closes #{issue}");
        ann.open_pull_saying(&house.repo, (&words, ""), "topic", "main").await;
    })
    .await;
    assert_refused(&house, issue, Rule::PullLinked, "[Pull request #2](").await;
}

#[tokio::test]
async fn there_is_never_a_second_open_draft_for_an_issue() {
    // Whether the draft still says that it closes the issue or not.
    for text in [None, Some("Reworded.")] {
        let house = short_house().await;
        let issue = asked_after(&house, async |_, _| {}).await;
        assert_eq!(house.end().await.outcome, Outcome::DraftPr);
        let ann = house.forge.person("ann");
        let first = house.forge.pulls(&house.repo).remove(0);
        if let Some(text) = text {
            ann.rewrite(&house.repo, first.number, text).await;
        }
        let n_asked = house.model.requests().len();
        ask_again(&house, issue).await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::Refused(Rule::PullLinked), "{}", end.operator);
        let link = format!("My earlier draft for this issue, [pull request #{}](", first.number);
        let told = house.status_comments(issue);
        assert!(told.len() == 2 && told[1].contains(&link), "one for each ask: {told:?}");
        assert!(told[1].contains("close it first"), "{}", told[1]);
        assert_eq!(house.model.requests().len(), n_asked);
        ask_by_command(&house, issue).await;
        assert_eq!(house.end().await.outcome, Outcome::Refused(Rule::PullLinked));
        assert_eq!(house.forge.pulls(&house.repo).len(), 1);

        ann.close(&house.repo, first.number).await;
        ask_again(&house, issue).await;
        assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
        assert_eq!(house.forge.pulls(&house.repo)[1].head, "hyla/issue-1-4");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn an_operator_is_as_polite_as_a_label() {
    let house = short_house().await;
    let issue = house.open_issue().await;
    let ann = house.forge.person("ann");
    ann.toggle_assignee(&house.repo, issue, "ann").await;
    ask_by_command(&house, issue).await;
    assert_refused(&house, issue, Rule::IssueAssigned, "assigned to `ann`").await;

    ann.toggle_assignee(&house.repo, issue, "ann").await;
    ann.commit(&house.repo, "topic", [("b.txt", "b\n")]);
    ann.open_pull_saying(&house.repo, ("Mend it", "Closes #1"), "topic", "main").await;
    house.clock.advance(Duration::from_secs(5));
    ask_by_command(&house, issue).await;
    assert_eq!(house.end().await.outcome, Outcome::Refused(Rule::PullLinked));
    assert_eq!(house.forge.pulls(&house.repo).len(), 1);
    house.assert_clean().await;
}

#[tokio::test]
async fn another_bot_is_refused_and_not_answered() {
    let setup = Setup {
        change: Box::new(|config| {
            for forge in config.forges.values_mut() {
                forge.bots = vec!["Renovate".into()];
            }
        }),
        ..short()
    };
    let house = House::start(setup).await;
    house.forge.add_user("renovate", bot::forge::Permission::Write);
    let renovate = house.forge.person("renovate");
    let labelled = house.open_issue().await;
    renovate.add_label(&house.repo, labelled, "hyla").await;
    let opened = renovate.open_issue(&house.repo, "Update", "All of it.", &["hyla"]).await;
    house.work().await;
    let jobs = house.jobs().await;
    assert_eq!(jobs.len(), 2, "both are recorded");
    for row in &jobs {
        let bot::job::State::Ended { end } = &row.job.state else { panic!("{:?}", row.job.state) };
        assert_eq!(end.outcome, Outcome::Refused(Rule::AdderIsBot));
    }
    for issue in [labelled, opened] {
        assert!(house.status_comments(issue).is_empty());
        assert!(house.forge.reactions(&house.repo, issue).is_empty());
    }
    house.forge.person("ann").remove_label(&house.repo, labelled, "hyla").await;
    house.forge.person("ann").add_label(&house.repo, labelled, "hyla").await;
    house.work().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    house.assert_clean().await;
}

#[tokio::test]
async fn a_label_on_a_closed_issue_is_answered_once_and_one_from_before_is_not() {
    let house = short_house().await;
    let ann = house.forge.person("ann");
    let issue = house.open_issue().await;
    ann.close(&house.repo, issue).await;
    for label in ["hyla", "bug", "hyla"] {
        ann.add_label(&house.repo, issue, label).await;
        house.work().await;
    }
    assert_refused(&house, issue, Rule::IssueClosed, "closed before the label").await;
    // Opening it again is no ask: the label is that of an ask which was answered.
    ann.reopen(&house.repo, issue).await;
    house.work().await;
    assert_eq!((house.jobs().await.len(), house.forge.pulls(&house.repo).len()), (1, 0));
    ask_again(&house, issue).await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);

    let other = ann.open_issue(&house.repo, "Other", "Text.", &["hyla"]).await;
    ann.close(&house.repo, other).await;
    ann.add_label(&house.repo, other, "bug").await;
    house.work().await;
    assert!(house.status_comments(other).is_empty());
    assert_eq!(house.jobs().await.len(), 2);
    house.assert_clean().await;
}

#[tokio::test]
async fn a_locked_issue_on_which_nobody_may_speak_ends_as_that() {
    for may_speak in [true, false] {
        let change = |config: &mut config::Config| config.queue.forge_patience = 2 * HOUR;
        let house = House::start(Setup { change: Box::new(change), ..short() }).await;
        if !may_speak {
            let comments = Matcher::new("POST", "/api/v1/repos/acme/hours/issues/1/comments");
            let fault = Fault::status(403, "cannot comment on locked issue");
            house.forge.fault(comments, fault, usize::MAX);
        }
        let issue = asked_after(&house, async |house, issue| {
            house.forge.person("ann").lock(&house.repo, issue);
        })
        .await;
        if may_speak {
            assert_refused(&house, issue, Rule::IssueLocked, "locked").await;
            continue;
        }
        house.work_for(4 * HOUR).await;
        house.work_through_retries().await;
        assert_eq!(house.end().await.outcome, Outcome::Refused(Rule::IssueLocked));
        assert!(house.status_comments(issue).is_empty() && house.model.requests().is_empty());
        house.assert_clean().await;
    }
}
