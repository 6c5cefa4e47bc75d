//! What one sandboxed command costs, and one look at a file: `cargo bench -p tests --bench sandbox`.
//!
//! The real sandbox with the real `hyla` as its helper runs `true`, one command after the other and then eight beside each
//! other, each from the call to the proof that every process of it is dead. The file tool reads a file of 100 KB, as it is
//! asked by a model.
//!
//! The last line is `median_ms=N p95_ms=N read_ms=N`: one command where no other runs, and the median of the reads. What
//! eight at once cost stands in the line before it.

#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use bot::leaf::{Leaf, Limits};
use bot::sandbox::{self, Command, End, Options, Sandbox};
use bot::workspace::Workspace;
use config::Config;
use tests::house::hyla_binary;
use tests::release;

/// Commands before the measured ones.
const WARM_UP: usize = 20;
/// Commands one after the other, and reads.
const RUNS: usize = 200;
/// Commands beside each other, and how many each of these runs.
const AT_ONCE: usize = 8;
const RUNS_EACH: usize = 25;
/// Bytes of the file.
const FILE_BYTES: usize = 100_000;

fn main() -> anyhow::Result<()> {
    release::build()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let folder = tempfile::tempdir()?;
        let (config, helper) = (config::Sandbox::default(), hyla_binary());
        let options = Options { config, helper, data: folder.path().join("data") };
        let owner = sandbox::workspace_owner(&options);
        bot::folder::open_way(folder.path(), owner)?;
        let sandbox = sandbox::build(options)?;
        let mut workspaces = Vec::new();
        for number in 0..AT_ONCE {
            let path = folder.path().join(number.to_string());
            workspaces.push(Arc::new(Workspace::create(&path, owner)?));
        }

        commands(&sandbox, &workspaces[0], WARM_UP).await?;
        let alone = Times::of(commands(&sandbox, &workspaces[0], RUNS).await?);
        let mut tasks = tokio::task::JoinSet::new();
        let begun = Instant::now();
        for workspace in &workspaces {
            let (sandbox, workspace) = (Arc::clone(&sandbox), Arc::clone(workspace));
            tasks.spawn(async move { commands(&sandbox, &workspace, RUNS_EACH).await });
        }
        let mut times = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            times.extend(ended??);
        }
        let elapsed = begun.elapsed();
        let beside = Times::of(times);
        let read = Times::of(reads(sandbox, &workspaces[0]).await?);
        println!(
            "at_once={AT_ONCE} median_ms={:.2} p95_ms={:.2} ms_each={:.2}",
            beside.at(50),
            beside.at(95),
            elapsed.as_secs_f64() * 1e3 / f64::from(u32::try_from(AT_ONCE * RUNS_EACH)?)
        );
        println!(
            "median_ms={:.2} p95_ms={:.2} read_ms={:.3}",
            alone.at(50),
            alone.at(95),
            read.at(50)
        );
        Ok(())
    })
}

async fn commands(
    sandbox: &Arc<dyn Sandbox>,
    workspace: &Workspace,
    n_runs: usize,
) -> anyhow::Result<Vec<Duration>> {
    let command = Command {
        script: "true".into(),
        timeout: Duration::from_secs(60),
        head_bytes: 4096,
        tail_bytes: 4096,
        ..Command::default()
    };
    let mut times = Vec::new();
    for _ in 0..n_runs {
        let begun = Instant::now();
        let finished = sandbox.run(workspace, &command).await?;
        times.push(begun.elapsed());
        ensure!(finished.end == End::Exited(0), "a command ended with {:?}", finished.end);
    }
    Ok(times)
}

async fn reads(
    sandbox: Arc<dyn Sandbox>,
    workspace: &Arc<Workspace>,
) -> anyhow::Result<Vec<Duration>> {
    let line = "A line of sixty-four bytes, as they stand in files of source...\n";
    let text = line.repeat(FILE_BYTES.div_ceil(line.len()));
    workspace.write("file.txt".as_ref(), &text.as_bytes()[..FILE_BYTES])?;
    let session = config::Session { read_chars: 1_000_000, ..Config::default().session };
    let leaf = Leaf::new(Arc::clone(workspace), sandbox, Limits::from(&session));
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let begun = Instant::now();
        let seen = leaf.call("Read", r#"{"file_path": "file.txt"}"#).await?;
        times.push(begun.elapsed());
        ensure!(seen.len() >= FILE_BYTES, "it shows {} bytes", seen.len());
    }
    Ok(times)
}

/// Sorted, in milliseconds.
struct Times(Vec<Duration>);

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    fn at(&self, share: usize) -> f64 {
        self.0[(self.0.len() - 1) * share / 100].as_secs_f64() * 1e3
    }
}
