//! `hyla replay`: a kept delivery is read again; acting on it repeats nothing that has been done.

use std::time::Duration;

use bot::clean_up;
use bot::inbox::Inbox;
use bot::job::Outcome;
use bot::replay::{self, Error, Plan};
use tests::house::House;
use tests::outside::Outside;
use webhooks::Accepted;

use super::commands::hyla;

pub(crate) fn inbox(house: &House) -> Inbox {
    Inbox {
        store: std::sync::Arc::clone(&house.bot.store),
        clock: std::sync::Arc::clone(&house.bot.clock),
        forges: house.bot.config.forges.clone(),
        settle: house.bot.config.queue.settle,
        wake: std::sync::Arc::clone(&house.bot.wake),
        orders: std::sync::Arc::clone(&house.bot.orders),
        redactor: house.bot.redactor.clone(),
    }
}

async fn plan(house: &House, id: &str) -> Result<replay::Replay, Error> {
    replay::plan(house.bot.store.as_ref(), &house.bot.config.forges, id, None).await
}

/// The id of the delivery with this event and action.
fn delivered(house: &House, event: &str, action: &str) -> String {
    let deliveries = house.forge.deliveries();
    let found = deliveries.iter().find(|each| each.event == event && each.action == action);
    found.expect("it was delivered").id.clone()
}

#[tokio::test]
async fn a_replay_after_the_draft_makes_no_second_of_anything() {
    let house = House::usual().await;
    let issue = house.labelled_and_worked().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr);
    house.forge.settle().await;
    let id = delivered(&house, "issue_label", "label_updated");

    let before = house.jobs().await.len();
    let replayed = plan(&house, &id).await.expect("it is kept");
    assert!(matches!(replayed.plan, Plan::Queue { .. }), "{:?}", replayed.plan);
    let shown = replay::text(&replayed);
    assert!(
        shown.contains("@label:")
            && shown.contains("draft_pr")
            && shown.contains("comes to nothing"),
        "{shown}"
    );
    house.work().await;
    assert_eq!(house.jobs().await.len(), before, "looking changes nothing");

    for _ in 0..3 {
        let accepted = replay::act(&inbox(&house), &replayed).await.expect("it is kept");
        assert_eq!(accepted, Accepted::Queued);
        let joined = plan(&house, &id).await.expect("it is kept");
        assert!(matches!(joined.plan, Plan::Join { .. }), "{:?}", joined.plan);
        house.work().await;
    }
    house.assert_one_of_each(issue, "at the end").await;
    house.assert_clean().await;
}

#[tokio::test]
async fn a_replay_does_what_a_lost_look_would_have_done() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    let ann = house.forge.person("ann");
    ann.add_label(&house.repo, issue, "hyla").await;
    ann.close(&house.repo, issue).await;
    house.work().await;
    assert!(house.jobs().await.is_empty(), "a closed issue asks for nothing");
    // What the forge says of the reopening is lost.
    house.forge.hold_hooks(true);
    ann.reopen(&house.repo, issue).await;
    house.work().await;
    assert!(house.jobs().await.is_empty(), "nobody knows that it is open again");
    let id = delivered(&house, "issue_label", "label_updated");
    let replayed = plan(&house, &id).await.expect("it is kept");
    replay::act(&inbox(&house), &replayed).await.expect("it is kept");
    house.work().await;
    assert_eq!(house.jobs().await.len(), 1);
    assert_eq!(house.forge.pulls(&house.repo).len(), 1);
    house.assert_clean().await;
}

#[tokio::test]
async fn what_cannot_be_replayed_says_why() {
    let house = House::usual().await;
    let issue = house.labelled_and_worked().await;
    house.forge.person("ann").close(&house.repo, issue).await;
    house.forge.settle().await;
    let closed = plan(&house, &delivered(&house, "issues", "closed")).await.expect("it is kept");
    assert_eq!(closed.plan, Plan::Ignore { why: "this change alone asks for nothing" });
    assert_eq!(replay::act(&inbox(&house), &closed).await.expect("it is kept"), Accepted::Ignored);
    assert!(matches!(plan(&house, "nope").await, Err(Error::Unknown { .. })));

    house.clock.advance(Duration::from_secs(40 * 24 * 3600));
    clean_up::once(&house.bot).await.expect("it works");
    let error = plan(&house, &closed.id).await.expect_err("its text is gone").to_string();
    assert!(error.contains("has been forgotten") && error.contains("put it on again"), "{error}");
    house.assert_clean().await;
}

#[tokio::test]
async fn the_command_reads_and_acts_only_when_told() {
    let outside = Outside::usual().await;
    let repo = "acme/hours".parse().expect("that is a name");
    let mut service = outside.serve_logged();
    outside.is_heard().await;
    let issue = outside.forge.person("ann").open_issue(&repo, "t", "b", &[]).await;
    outside.forge.settle().await;
    let id = outside.forge.deliveries()[0].id.clone();
    service.kill().await.expect("it is ours");
    let config = ["--config", outside.file.as_str()];
    let read = hyla(&[&["replay", &id][..], &config].concat()).await;
    assert_eq!(read.code, Some(0), "{}", read.stderr);
    assert!(read.stdout.contains(&format!("main:acme/hours#{issue}")), "{}", read.stdout);
    assert!(read.stdout.contains("nothing was changed"), "{}", read.stdout);
    let acted = hyla(&[&["replay", &id, "--act", "--json"][..], &config].concat()).await;
    let json: serde_json::Value = serde_json::from_str(&acted.stdout).expect("it is JSON");
    assert!(json["acted"] == "queued" || json["acted"] == "joined", "{json}");
    let explained = hyla(&[&["explain", "acme/hours#1"][..], &config].concat()).await;
    assert!(explained.stdout.contains(&format!("{id}+replay-")), "{}", explained.stdout);
    let unknown = hyla(&[&["replay", "nope"][..], &config].concat()).await;
    assert!(
        unknown.code == Some(1) && unknown.stderr.contains("hyla explain"),
        "{}",
        unknown.stderr
    );
    let other = hyla(&[&["replay", &id, "--forge", "other"][..], &config].concat()).await;
    assert_eq!(other.code, Some(1), "{}", other.stderr);
    outside.forge.assert_clean();
}
