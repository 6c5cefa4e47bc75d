//! Everything at once, by dice: people who ask, change their minds and meddle, a forge and a model that fail, webhooks
//! that are lost and repeated, and a service that is killed again and again. After each storm comes a calm, in which
//! the bot must have answered every ask once and left nothing behind.
//!
//! `cargo test -p tests --test chaos` plays one storm with a fixed seed. `CHAOS_SECONDS=600` plays storms for that long
//! with a seed of its own, or with `CHAOS_SEED=N`; the seed is printed. The seed fixes what is done, not how fast the
//! machine is, so a failure may need several runs to come again.

mod calm;
mod dice;
mod storm;

use std::time::{Duration, Instant};

use storm::World;

/// The seed of the short run.
const SEED: u64 = 4;
/// Storms of the short run.
const STORMS: usize = 1;
/// Acts in one storm.
const ACTS: usize = 60;

#[tokio::test]
async fn whatever_happens_each_ask_is_answered_once() {
    let seconds: Option<u64> = number("CHAOS_SECONDS");
    let seed = number("CHAOS_SEED").unwrap_or_else(|| match seconds {
        Some(_) => fastrand::u64(..),
        None => SEED,
    });
    say(&format!("CHAOS_SEED={seed}"));
    let begun = Instant::now();
    let mut world = World::start(seed).await;
    let mut n_storms = 0;
    loop {
        world.storm(ACTS).await;
        calm::comes(&mut world).await;
        n_storms += 1;
        say(&format!("{:?}: storm {n_storms}, {}", begun.elapsed(), world.tally()));
        let is_over = match seconds {
            Some(seconds) => begun.elapsed() >= Duration::from_secs(seconds),
            None => n_storms >= STORMS,
        };
        if is_over {
            break;
        }
    }
    calm::ends(world).await;
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is `{text}` and must be a number")))
}

/// Prints a line, which the test's runner shows when the test fails, or with `--nocapture`.
#[expect(clippy::print_stderr, reason = "it is read where the test's own output is")]
fn say(line: &str) {
    eprintln!("{line}");
}
