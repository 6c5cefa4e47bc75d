//! The main job: a label on an issue becomes a draft pull request.

use bot::job::Outcome;
use tests::house::House;

#[tokio::test]
async fn a_label_becomes_a_draft_pull_request() {
    let house = House::usual().await;
    let issue = house.labelled_and_worked().await;

    let end = house.end().await;
    assert_eq!(end.outcome, Outcome::DraftPr, "{}", end.operator);
    let pulls = house.forge.pulls(&house.repo);
    assert_eq!(pulls.len(), 1);
    let pull = &pulls[0];
    assert!(pull.is_draft && pull.is_open && pull.author == "hyla");
    insta::assert_snapshot!("draft_title", pull.title);
    insta::assert_snapshot!("draft_diff", house.forge.diff(&house.repo, pull.number));
    insta::with_settings!({ filters => tests::house::filters() }, {
        insta::assert_snapshot!("draft_body", pull.body);
        insta::assert_snapshot!("status_comment", house.status_comments(issue).join("\n=====\n"));
    });
    assert_eq!(house.forge.reactions(&house.repo, issue), [("hyla".to_owned(), "eyes".to_owned())]);
    house.assert_clean().await;
}
