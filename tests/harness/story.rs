//! The shortest way through every stage, and people who meddle on the way.

use std::time::Duration;

use bot::job::{Ask, End, Failure, Outcome, Rule};
use bot::reconcile::{self, Memory};
use serde_json::json;

use crate::house::{House, Setup};
use crate::model::{Recording, Turn};

const HOUR: Duration = Duration::from_secs(3600);

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

/// A setup whose jobs wait no longer than two hours for the forge.
pub fn hasty() -> Setup {
    let change = |config: &mut config::Config| config.queue.forge_patience = 2 * HOUR;
    Setup { change: Box::new(change), ..short() }
}

/// What may become of a repository while the model works, and how the job ends then.
pub const TAKEN_AWAY: [(&str, Outcome); 3] = [
    ("renamed", Outcome::Failed(Failure::RepositoryMoved)),
    ("archived", Outcome::Refused(Rule::RepositoryArchived)),
    ("deleted", Outcome::Failed(Failure::ForgeMissing)),
];

/// Has one of these happen to the repository of a [`hasty`] house, and waits for the end. Nothing may have been pushed.
///
/// # Panics
/// Something was, or the job has not ended so.
pub async fn taken_away(house: &House, (what, outcome): (&str, Outcome)) -> End {
    let n_branches = house.forge.branches(&house.repo).len();
    let git_dir = house.forge.git_dir(&house.repo);
    meddled(house, async |house, _| match what {
        "renamed" => drop(house.forge.rename_repository(&house.repo, "elsewhere")),
        "archived" => house.forge.archive(&house.repo),
        _ => house.forge.delete_repository(&house.repo),
    })
    .await;
    house.work_for(4 * HOUR).await;
    house.work_through_retries().await;
    let end = house.end().await;
    let dialect = house.forge.dialect();
    assert_eq!(end.outcome, outcome, "{dialect:?} {what}: {}", end.operator);
    let refs = git2::Repository::open(git_dir).expect("it is there");
    let refs = refs.references_glob("refs/heads/*").expect("it has branches");
    assert_eq!(refs.count(), n_branches, "{dialect:?} {what}: nothing was pushed");
    end
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
