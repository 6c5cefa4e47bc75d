//! The main job: a label on an issue becomes a draft pull request.

use bot::job::Outcome;
use tests::house::{House, Place};

#[tokio::test]
async fn a_label_becomes_a_draft_pull_request() {
    for place in Place::ALL.into_iter().chain(Place::OTHERS) {
        a_label_becomes_a_draft(place).await;
    }
}

async fn a_label_becomes_a_draft(place: Place) {
    let house = House::start(place.setup()).await;
    let issue = house.labelled_and_worked().await;

    let end = house.end().await;
    assert_eq!(end.outcome, Outcome::DraftPr, "{place:?}: {}", end.operator);
    let pulls = house.forge.pulls(&house.repo);
    assert_eq!(pulls.len(), 1, "{place:?}");
    let pull = &pulls[0];
    assert!(pull.is_draft && pull.is_open && pull.author == place.login(), "{place:?}");
    let title = pull.title.strip_prefix(place.draft_prefix()).expect("a draft has its prefix");
    insta::assert_snapshot!("draft_title", title);
    insta::assert_snapshot!("draft_diff", house.forge.diff(&house.repo, pull.number));
    // A page of a pull request has another address on GitHub, and an issue of another number another mark.
    let mut filters = tests::house::filters();
    filters.extend([(r"/pulls?/", "/pulls/"), (r"status:[0-9a-f]{16}", "status:[mark]")]);
    insta::with_settings!({ filters => filters }, {
        insta::assert_snapshot!("draft_body", pull.body);
        insta::assert_snapshot!("status_comment", house.status_comments(issue).join("\n=====\n"));
    });
    let page = if place.dialect.is_github() { "/acme/hours/pull/" } else { "/acme/hours/pulls/" };
    assert!(house.status_comments(issue)[0].contains(page), "{place:?}");
    let eyes = (place.login().to_owned(), "eyes".to_owned());
    assert_eq!(house.forge.reactions(&house.repo, issue), [eyes]);
    house.assert_clean().await;
}
