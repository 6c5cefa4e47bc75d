//! The shortest way through every stage, and people who meddle on the way.

use bot::job::Ask;
use bot::reconcile::{self, Memory};
use serde_json::json;

use crate::house::{House, Setup};
use crate::model::{Recording, Turn};

/// A repository without tests and a model that changes one file, in each of its conversations.
pub fn short() -> Setup {
    let write = Turn::call("Write", &json!({ "file_path": "a.txt", "content": "better\n" }));
    let turns = vec![write, Turn::default()];
    Setup {
        recording: Recording { turns, each_conversation: true, ..Recording::default() },
        files: [("a.txt", "good\n"), ("README.md", "a\n")].into(),
        ..Setup::default()
    }
}

/// A house for it.
pub async fn short_house() -> House {
    House::start(short()).await
}

/// Lets `ann` ask on an issue, and `meddle` happen as soon as the model has been asked; then nothing is left to do at
/// once.
pub async fn meddled(house: &House, meddle: impl AsyncFnOnce(&House, u64)) -> u64 {
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.clock.advance(house.bot.config.queue.settle);
    let n_before = house.model.requests().len();
    let meddling = async {
        while house.model.requests().len() == n_before {
            tokio::task::yield_now().await;
        }
        meddle(house, issue).await;
    };
    tokio::join!(house.step(), meddling);
    house.work().await;
    issue
}

/// Takes the label off and puts it on again, as `ann`, and works until nothing is due.
pub async fn ask_again(house: &House, issue: u64) {
    let ann = house.forge.person("ann");
    ann.remove_label(&house.repo, issue, "hyla").await;
    ann.add_label(&house.repo, issue, "hyla").await;
    house.work().await;
}

/// Asks as an operator does on the command line, and works until nothing is due.
///
/// # Panics
/// The store does not answer.
pub async fn ask_by_command(house: &House, issue: u64) {
    let subject = format!("main:{}#{issue}", house.repo);
    let subject = subject.parse().expect("that is an issue's name");
    let now = bot::clock::Clock::now(house.clock.as_ref());
    let key = bot::job::key(&subject, &Ask::Command { at: now.timestamp() });
    house.bot.store.ask(&subject, &key, now).await.expect("the store answers");
    house.work().await;
}

/// One sweep for asks without a webhook, and the work that it finds. Returns how many looks it queued.
pub async fn swept(house: &House, memory: &mut Memory) -> u32 {
    let n_queued = reconcile::once(&house.bot, memory).await;
    house.work().await;
    n_queued
}
