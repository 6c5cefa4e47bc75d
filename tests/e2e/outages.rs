//! A forge that is away for a while: nothing is lost, and in the end people know.

use std::time::Duration;

use bot::job::{Failure, Outcome};
use tests::forge::{Fault, Matcher};
use tests::house::{House, Setup};

const HOUR: Duration = Duration::from_secs(3600);

fn down(house: &House, method: &str, pattern: &str) {
    let fault = Fault::down(503, "back soon");
    house.forge.fault(Matcher::new(method, pattern), fault, usize::MAX);
}

async fn house() -> House {
    let change = |config: &mut config::Config| config.queue.forge_patience = 2 * HOUR;
    House::start(Setup { change: Box::new(change), ..Setup::default() }).await
}

#[tokio::test]
async fn a_label_put_on_just_before_an_outage_leads_to_a_draft() {
    let house = house().await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    down(&house, "*", "*");
    // Longer than the patience: nobody could be told, so nothing ends.
    house.work_for(3 * HOUR).await;
    assert!(house.status_comments(issue).is_empty());
    house.forge.clear_faults();
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert!(house.status_comments(issue)[0].contains("The draft is ready"));
    house.assert_clean().await;
}

#[tokio::test]
async fn an_outage_before_the_push_costs_no_second_session() {
    let house = house().await;
    let issue = house.open_issue().await;
    down(&house, "POST", "/acme/hours.git/git-receive-pack");
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work_for(HOUR).await;
    let asked = house.model.requests().len();
    let comment = house.status_comments(issue).join("\n=====\n");
    assert!(
        comment.contains("Hyla: waiting") && comment.contains("as soon as it does"),
        "{comment}"
    );
    house.forge.clear_faults();
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    assert_eq!(house.model.requests().len(), asked, "no second session");
    house.assert_clean().await;
}

#[tokio::test]
async fn an_outage_that_never_ends_is_told_of_once_it_has_ended() {
    let house = house().await;
    let issue = house.open_issue().await;
    let push = Matcher::new("POST", "/acme/hours.git/git-receive-pack");
    house.forge.fault(push, Fault::down(503, "back soon"), usize::MAX);
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work().await;
    down(&house, "*", "*");
    house.work_for(3 * HOUR).await;
    let row = house.jobs().await.remove(0);
    let owed = row.job.untold.expect("it has ended, and nobody knows");
    assert_eq!(owed.outcome, Outcome::Failed(Failure::ForgeDown));
    house.forge.clear_faults();
    house.work_through_retries().await;
    assert_eq!(house.end().await, owed);
    let comments = house.status_comments(issue);
    assert_eq!(comments.len(), 1);
    assert!(comments[0].contains("could not finish") && comments[0].contains(&owed.next));
    house.assert_clean().await;
}

#[tokio::test]
async fn a_last_word_that_was_not_heard_is_said_again() {
    let house = house().await;
    let issue = house.open_issue().await;
    down(&house, "PATCH", "/api/v1/repos/acme/hours/issues/comments/*");
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work_for(HOUR).await;
    assert!(house.status_comments(issue)[0].contains("working"));
    assert_eq!(house.forge.pulls(&house.repo).len(), 1);
    house.forge.clear_faults();
    house.work_through_retries().await;
    assert!(house.status_comments(issue)[0].contains("The draft is ready"));
    assert_eq!(house.forge.pulls(&house.repo).len(), 1);
    house.assert_clean().await;
}
