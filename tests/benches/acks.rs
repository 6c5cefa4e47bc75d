//! How fast deliveries are acknowledged: `cargo bench -p tests --bench acks`.
//!
//! The real `hyla serve`, with its database on disk, a forge on loopback that it asks about the issues, and no model. 64
//! connections send 10,000 deliveries, each with an id of its own, as fast as they are answered; every one is on disk before
//! its answer. The issues have no label, so that each look ends after two requests.
//!
//! The last line is `acks_per_s=N p50_ms=N p99_ms=N rss_mb=N`: acknowledgements in a second, how long one took from the last
//! byte sent to the last byte read, and the most memory that the service held, in megabytes of a million bytes.

#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tests::forge::signature;
use tests::house::WEBHOOK_SECRET;
use tests::model::Recording;
use tests::outside::Outside;
use tests::release;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Child;

const CONNECTIONS: usize = 64;
const DELIVERIES: usize = 10_000;
/// Deliveries before the measured ones.
const WARM_UP: usize = 500;
/// Issues that the deliveries are about.
const ISSUES: usize = 64;

fn main() -> anyhow::Result<()> {
    release::build()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut world = World::start().await;
        let mut service = world.outside.serve_logged();
        world.outside.is_heard().await;
        world.fill().await;
        let world = Arc::new(world);
        send(&world, 0, WARM_UP).await?;
        let begun = Instant::now();
        let mut times = send(&world, WARM_UP, DELIVERIES).await?;
        let elapsed = begun.elapsed();
        let rss = peak_bytes(&service)?;
        service.kill().await?;
        world.are_kept(WARM_UP + DELIVERIES).await?;
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
        println!(
            "deliveries={DELIVERIES} connections={CONNECTIONS} seconds={:.2}",
            elapsed.as_secs_f64()
        );
        println!(
            "acks_per_s={:.0} p50_ms={:.1} p99_ms={:.1} rss_mb={:.1}",
            f64::from(u32::try_from(DELIVERIES)?) / elapsed.as_secs_f64(),
            at(50),
            at(99),
            f64::from(u32::try_from(rss / 1000)?) / 1e3,
        );
        Ok(())
    })
}

/// The forge, the configuration, and what its deliveries say.
struct World {
    outside: Outside,
    /// Each with its signature.
    payloads: Vec<(String, String)>,
}

impl World {
    async fn start() -> Self {
        let outside = Outside::start(Recording::default(), "").await;
        Self { outside, payloads: Vec::new() }
    }

    /// What the hook of the repository hears of the issues.
    async fn fill(&mut self) {
        let (forge, repo) = (&self.outside.forge, &self.outside.repo);
        forge.hold_hooks(true);
        let ann = forge.person("ann");
        for number in 0..ISSUES {
            let body = "It shows the wrong hours. ".repeat(40);
            let issue = ann.open_issue(repo, &format!("Issue {number}"), &body, &[]).await;
            ann.add_label(repo, issue, "bug").await;
        }
        let labelled = forge.deliveries().into_iter().filter(|each| each.event == "issue_label");
        let signed = |payload: String| (signature(WEBHOOK_SECRET, payload.as_bytes()), payload);
        self.payloads = labelled.map(|each| signed(each.payload)).collect();
    }

    /// The request of one delivery.
    fn request(&self, number: usize) -> Vec<u8> {
        let (signature, payload) = &self.payloads[number % self.payloads.len()];
        let head = format!(
            "POST /hooks/main HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             X-Gitea-Delivery: {number:08x}-0000-4000-8000-000000000000\r\nX-Gitea-Event: issues\r\n\
             X-Gitea-Event-Type: issue_label\r\nX-Gitea-Signature: {signature}\r\n\
             Content-Length: {}\r\n\r\n",
            payload.len()
        );
        [head.as_bytes(), payload.as_bytes()].concat()
    }

    /// Every delivery is in the database of a service that was killed.
    async fn are_kept(&self, n: usize) -> anyhow::Result<()> {
        let path = self.outside.data().join("hyla.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
        let pool = sqlx::sqlite::SqlitePool::connect_with(options).await?;
        let kept: i64 =
            sqlx::query_scalar("SELECT count(*) FROM deliveries").fetch_one(&pool).await?;
        ensure!(usize::try_from(kept) == Ok(n), "{kept} of {n} deliveries were kept");
        Ok(())
    }
}

/// Sends the deliveries `first..first + n` over all connections. Returns how long each answer took.
async fn send(world: &Arc<World>, first: usize, n: usize) -> anyhow::Result<Vec<Duration>> {
    let next = Arc::new(AtomicUsize::new(first));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        tasks.spawn(connection(Arc::clone(world), Arc::clone(&next), first + n));
    }
    let mut times = Vec::with_capacity(n);
    while let Some(done) = tasks.join_next().await {
        times.extend(done.context("a connection panicked")??);
    }
    Ok(times)
}

async fn connection(
    world: Arc<World>,
    next: Arc<AtomicUsize>,
    end: usize,
) -> anyhow::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(world.outside.address).await?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= end {
            return Ok(times);
        }
        stream.write_all(&world.request(number)).await?;
        let sent = Instant::now();
        let answer = answer(&mut stream).await?;
        ensure!(answer.starts_with("HTTP/1.1 202"), "a delivery was answered: {answer}");
        times.push(sent.elapsed());
    }
}

/// One answer with its body.
async fn answer(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut bytes = Vec::with_capacity(512);
    loop {
        ensure!(stream.read_buf(&mut bytes).await? > 0, "the connection was closed");
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        if body.len() >= length.unwrap_or(0) {
            return Ok(text.into_owned());
        }
    }
}

/// The most bytes of the service in memory, as Linux counts them.
fn peak_bytes(service: &Child) -> anyhow::Result<u64> {
    let id = service.id().context("`hyla serve` has ended")?;
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kilobytes.context("Linux does not tell the memory of `hyla serve`")? * 1024)
}
