//! What one job costs outside of the model and the tests: `cargo bench -p tests --bench job_overhead`.
//!
//! The whole bot, with git over HTTP and the real sandbox, on a repository of 100 MB that an earlier job has mirrored. The
//! model answers at once and makes four calls, and the repository's tests are `true`; so what is left is reading the issue, the
//! workspaces, the starts of sandboxes, the walk over what the agent left, the gate, the push and the pull request.
//!
//! Prints the seconds of each job and of its stages, then as the last line the median of all, `overhead_s=N`.

#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use std::time::{Duration, Instant};

use anyhow::ensure;
use bot::job::{Outcome, State};
use serde_json::json;
use tests::house::{House, Setup};
use tests::model::{Recording, Turn};
use tests::release;

/// Files of the repository, and their bytes: 100 MB that do not compress.
const FILES: u64 = 2_000;
const FILE_BYTES: u64 = 50_000;
/// Jobs that are measured.
const JOBS: usize = 5;

fn main() -> anyhow::Result<()> {
    release::build()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let change = |config: &mut config::Config| {
            config.evidence.test_commands.insert("acme/hours".into(), "true".into());
        };
        let folder = files()?;
        let house = House::start(Setup {
            files: folder.path().into(),
            recording: recording(),
            change: Box::new(change),
            ..Setup::default()
        });
        let house = house.await;
        job(&house).await?;
        let mut times = Vec::new();
        for _ in 0..JOBS {
            times.push(job(&house).await?);
        }
        times.sort_unstable();
        println!("jobs={JOBS} megabytes={}", FILES * FILE_BYTES / 1_000_000);
        println!("overhead_s={:.2}", times[JOBS / 2].as_secs_f64());
        Ok(())
    })
}

/// A job on an issue of its own.
async fn job(house: &House) -> anyhow::Result<Duration> {
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.clock.advance(house.bot.config.queue.settle);
    let begun = Instant::now();
    let (is_done, stages) = tokio::join!(house.step(), stages(house));
    ensure!(is_done, "no job was due");
    let elapsed = begun.elapsed();
    let end = house.end().await;
    ensure!(end.outcome == Outcome::DraftPr, "{}", end.operator);
    let parts = stages
        .iter()
        .zip(stages.iter().skip(1))
        .map(|((name, at), (_, next))| format!(" {name}={:.2}", (*next - *at).as_secs_f64()));
    println!("job={issue} seconds={:.2}{}", elapsed.as_secs_f64(), parts.collect::<String>());
    house.work().await;
    Ok(elapsed)
}

/// When the newest job entered each of its stages, and when it ended.
async fn stages(house: &House) -> Vec<(&'static str, Instant)> {
    let mut stages: Vec<(&'static str, Instant)> = Vec::new();
    loop {
        let jobs = house.jobs().await;
        let name = match &jobs[0].job.state {
            State::Queued => "queued",
            State::Running { stage } => stage.name(),
            State::Ended { .. } => "ended",
        };
        if stages.last().is_none_or(|(last, _)| *last != name) {
            stages.push((name, Instant::now()));
        }
        if name == "ended" {
            return stages;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn recording() -> Recording {
    let edit = json!({ "file_path": "notes.md", "old_string": "one", "new_string": "two" });
    let turns = vec![
        Turn::call("Glob", &json!({ "pattern": "*.md" })),
        Turn::call("Read", &json!({ "file_path": "notes.md" })),
        Turn::call("Edit", &edit),
        Turn::bash("true"),
        Turn::says("Done."),
    ];
    Recording { turns, each_conversation: true, ..Recording::default() }
}

/// The repository's files, in a folder.
fn files() -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("notes.md"), "one\n")?;
    let mut seed = 1_u64;
    for number in 0..FILES {
        let words = (0..FILE_BYTES / 8).flat_map(|_| {
            // xorshift64 of Marsaglia, 2003.
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.to_le_bytes()
        });
        let below = folder.path().join(format!("data/{}", number % 50));
        std::fs::create_dir_all(&below)?;
        std::fs::write(below.join(format!("{number}.bin")), words.collect::<Vec<u8>>())?;
    }
    Ok(folder)
}
