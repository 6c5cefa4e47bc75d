//! Check B: six label hooks at once, a label at creation, a label removed before the claim, a label by a non-writer.

use bot::job::{Outcome, Rule};
use tests::house::demo_issue;
use tests::story::short_house;

#[tokio::test]
async fn check_b_six_label_hooks_at_once_make_one_draft() {
    let house = short_house().await;
    let issue = house.open_issue().await;
    let ann = house.forge.person("ann");
    for label in ["bug", "old", "late"] {
        ann.add_label(&house.repo, issue, label).await;
    }
    house.work().await;
    // Three labels for three others, one of them the one that asks: six hooks, and none says which label it is about.
    let n_before = house.forge.deliveries().len();
    tokio::join!(
        ann.remove_label(&house.repo, issue, "bug"),
        ann.remove_label(&house.repo, issue, "old"),
        ann.remove_label(&house.repo, issue, "late"),
        ann.add_label(&house.repo, issue, "new"),
        ann.add_label(&house.repo, issue, "hyla"),
        ann.add_label(&house.repo, issue, "good"),
    );
    assert_eq!(house.forge.deliveries().len() - n_before, 6);
    house.work().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    house.assert_one_of_each(issue, "at the end").await;
    house.assert_clean().await;
}

#[tokio::test]
async fn check_b_a_label_at_creation_makes_one_draft() {
    let house = short_house().await;
    let (title, body) = demo_issue();
    let ann = house.forge.person("ann");
    let issue = ann.open_issue(&house.repo, title, body, &["bug", "hyla"]).await;
    // It is put on once more, which changes nothing and is told all the same.
    ann.add_label(&house.repo, issue, "hyla").await;
    house.work().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    house.assert_one_of_each(issue, "at the end").await;
    house.assert_clean().await;
}

#[tokio::test]
async fn check_b_a_label_removed_before_the_claim_leaves_no_trace() {
    let house = short_house().await;
    let issue = house.open_issue().await;
    let ann = house.forge.person("ann");
    ann.add_label(&house.repo, issue, "hyla").await;
    ann.remove_label(&house.repo, issue, "hyla").await;
    house.work().await;
    assert!(house.jobs().await.is_empty());
    assert!(house.status_comments(issue).is_empty());
    assert!(house.forge.reactions(&house.repo, issue).is_empty());
    assert!(house.forge.pulls(&house.repo).is_empty() && house.model.requests().is_empty());
    house.assert_clean().await;
}

#[tokio::test]
async fn check_b_a_label_by_a_non_writer_is_refused_once() {
    let house = short_house().await;
    let issue = house.open_issue().await;
    let rob = house.forge.person("rob");
    for label in ["hyla", "bug", "hyla"] {
        rob.add_label(&house.repo, issue, label).await;
        house.work().await;
    }
    for delivered in house.forge.deliveries() {
        house.forge.redeliver(&delivered.id).await;
    }
    house.work().await;
    assert_eq!(house.end().await.outcome, Outcome::Refused(Rule::AdderCannotWrite));
    assert_eq!(house.jobs().await.len(), 1);
    assert_eq!(house.status_comments(issue).len(), 1);
    assert!(house.forge.pulls(&house.repo).is_empty() && house.model.requests().is_empty());
    house.assert_clean().await;
}
