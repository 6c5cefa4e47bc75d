//! Forges do not tell small from capital letters in the name of a repository; nor may the bot, or it asks twice.

use bot::job::Outcome;
use bot::reconcile::Memory;
use tests::house::{House, Setup};
use tests::story::{short, swept};

#[tokio::test]
async fn a_repository_that_is_configured_in_other_letters_is_the_same_one() {
    let setup = short();
    let house = House::start(Setup {
        change: Box::new(|config| {
            let forge = config.forges.get_mut("main").expect("it is configured");
            forge.repositories = vec!["Acme/HOURS".into()];
        }),
        ..setup
    })
    .await;
    let issue = house.labelled_and_worked().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert_eq!(swept(&house, &mut Memory::default()).await, 0);
    let again = house.forge.deliveries().last().expect("it was sent").id.clone();
    house.forge.redeliver(&again).await;
    house.work().await;
    house.assert_one_of_each(issue, "after a sweep and a repetition").await;
    house.assert_clean().await;
}
