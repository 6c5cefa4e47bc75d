//! How fast a model computes here, and how fast this machine could feed it.
//!
//! Times are by the clock, so whatever else runs on the machine counts. Nothing is repeated: rounds and medians are the
//! caller's.

use std::time::{Duration, Instant};

use crate::backend::cpu::{Model, Sequence, Snapshot, Stage, Step, Wanted};

/// Tokens are drawn among the first so many: any will do, because no kernel looks at a value.
const IDS: usize = 100_000;

/// One sequence that grows while it is timed.
pub struct Growth<'a> {
    model: &'a Model,
    sequence: Sequence,
    n_drawn: usize,
}

/// What a stage cost in one forward pass, on average.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// The stage.
    pub stage: Stage,
    /// How long it took.
    pub time: Duration,
    /// Bytes that it read and wrote at least: each weight once, the keys and values at the end, the states there and back.
    pub bytes: usize,
}

impl<'a> Growth<'a> {
    /// A sequence without tokens.
    pub fn new(model: &'a Model) -> Self {
        Self { model, sequence: model.sequence(), n_drawn: 0 }
    }

    /// Tokens that it holds.
    pub fn n_tokens(&self) -> usize {
        self.sequence.n_tokens()
    }

    /// Appends tokens as a prompt, in batches as an [`Engine`](crate::Engine) computes them.
    pub fn prefill(&mut self, n_tokens: usize) -> Duration {
        self.append(n_tokens, crate::Options::default().prefill_tokens)
    }

    /// Appends tokens as an answer, one by one.
    pub fn decode(&mut self, n_tokens: usize) -> Duration {
        self.append(n_tokens, 1)
    }

    /// Bytes of memory that the next token reads and writes at least: each weight once, the keys and values so far, and the
    /// states there and back.
    pub fn bytes_of_next_token(&self) -> usize {
        let sequence = &self.sequence;
        self.model.bytes_of_token() + sequence.live_cache_bytes() + 2 * sequence.state_bytes()
    }

    /// A place to come back to.
    pub fn snapshot(&self) -> Snapshot {
        self.sequence.snapshot()
    }

    /// Goes back to a place, and takes other tokens from there.
    pub fn back(&mut self, snapshot: &Snapshot) {
        self.sequence.restore(snapshot, self.model.shape());
    }

    /// What each stage costs in a prompt, in large batches.
    pub fn prefill_costs(&mut self, n_tokens: usize) -> Vec<Cost> {
        self.costs(n_tokens, crate::Options::default().prefill_tokens)
    }

    /// What each stage costs in an answer, token by token.
    pub fn decode_costs(&mut self, n_tokens: usize) -> Vec<Cost> {
        self.costs(n_tokens, 1)
    }

    fn costs(&mut self, n_tokens: usize, n_batch: usize) -> Vec<Cost> {
        let model = self.model;
        let times = model.time_stages(|| {
            self.append(n_tokens, n_batch);
        });
        let n_passes = u32::try_from(n_tokens.div_ceil(n_batch)).unwrap_or(u32::MAX).max(1);
        let cost = |(stage, time): (Stage, Duration)| {
            let moved = match stage {
                Stage::Delta => 2 * self.sequence.state_bytes(),
                Stage::Attention => self.sequence.live_cache_bytes(),
                Stage::Projections | Stage::Mlp | Stage::Norms | Stage::Head => 0,
            };
            Cost { stage, time: time / n_passes, bytes: model.bytes_of_stage(stage) + moved }
        };
        times.map(cost).to_vec()
    }

    fn append(&mut self, n_tokens: usize, n_batch: usize) -> Duration {
        let n_ids = self.model.shape().vocab.min(IDS);
        // A prime far from any period of a kernel.
        let id = |at: usize| u32::try_from(at * 104_729 % n_ids).expect("ids have 32 bits");
        let ids: Vec<u32> = (self.n_drawn..).take(n_tokens).map(id).collect();
        self.n_drawn += n_tokens;
        let begun = Instant::now();
        for ids in ids.chunks(n_batch) {
            let step = Step { sequence: &mut self.sequence, ids, logits: Wanted::Last };
            self.model.forward(&mut [step]).expect("ids are rows of the embedding");
        }
        begun.elapsed()
    }
}

/// Bytes per second that plain threads read: the best of five passes over 1 GiB, which is more than caches hold. There are no more
/// threads than the machine runs at once.
///
/// # Panics
/// There is no memory for it, or there are no threads.
pub fn bandwidth(n_threads: usize) -> f64 {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let n_threads = n_threads.clamp(1, most);
    let values = vec![1_u64; 1 << 27];
    let pass = || {
        let begun = Instant::now();
        let sum: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = values
                .chunks(values.len().div_ceil(n_threads))
                .map(|part| scope.spawn(move || part.iter().fold(0, |sum: u64, x| sum ^ x)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
        });
        std::hint::black_box(sum);
        per_second(values.len() * 8, begun.elapsed())
    };
    (0..5).map(|_| pass()).fold(0.0, f64::max)
}

/// So many in a time, in one second.
#[expect(clippy::cast_precision_loss, reason = "a rate is for people")]
pub fn per_second(n: usize, time: Duration) -> f64 {
    // A clock that did not move says nothing of an infinite speed.
    n as f64 / time.as_secs_f64().max(1e-9)
}

/// The most memory in bytes that this process has held at once, mapped files included; none where the system does not
/// tell.
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Lets the peak begin anew at what the process holds at this moment. Where the system does not let it, the peak stays.
pub fn reset_peak() {
    // `5` is the code for it (proc_pid_clear_refs(5)).
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::backend::cpu::{Dtype, Isa, Options};

    #[test]
    fn a_sequence_grows_by_what_is_timed_and_needs_more_with_every_token() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny0");
        let options = Options { dtype: Some(Dtype::Bf16), n_threads: 1, isa: Isa::detect() };
        let model = Model::load(&folder, &options).expect("the fixture is in order");
        let mut growth = Growth::new(&model);
        let empty = growth.bytes_of_next_token();
        assert!(empty > model.bytes_of_token(), "the states count");
        assert!(growth.prefill(700) > Duration::ZERO);
        assert!(growth.decode(3) > Duration::ZERO);
        assert_eq!(growth.n_tokens(), 703);
        assert!(growth.bytes_of_next_token() > empty, "keys and values count");
        assert_eq!(growth.prefill(0).as_millis(), 0);
        let place = growth.snapshot();
        growth.decode(2);
        growth.back(&place);
        assert_eq!(growth.n_tokens(), 703);
    }

    #[test]
    fn stages_take_the_time_and_read_the_bytes_of_a_forward_pass() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny0");
        let options = Options { dtype: Some(Dtype::Bf16), n_threads: 1, isa: Isa::detect() };
        let model = Model::load(&folder, &options).expect("the fixture is in order");
        let mut growth = Growth::new(&model);
        growth.prefill(100);
        let begun = Instant::now();
        let costs = growth.decode_costs(20);
        let all = begun.elapsed();
        assert_eq!(costs.iter().map(|cost| cost.stage).collect::<Vec<_>>(), Stage::ALL);
        assert!(costs.iter().all(|cost| cost.time > Duration::ZERO), "{costs:?}");
        assert!(costs.iter().map(|cost| 20 * cost.time).sum::<Duration>() <= all, "{costs:?}");
        let bytes: usize = costs.iter().map(|cost| cost.bytes).sum();
        assert_eq!(bytes, growth.bytes_of_next_token());
        assert!(model.time_stages(|| ()).iter().all(|(_, time)| time.is_zero()));
        assert_eq!(growth.prefill_costs(40).len(), Stage::ALL.len());
    }

    #[test]
    fn a_rate_is_finite_even_if_no_time_has_passed() {
        assert_eq!(per_second(500, Duration::from_millis(250)), 2000.0);
        assert!(per_second(1, Duration::ZERO).is_finite());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_sees_what_was_held_for_a_moment() {
        let before = peak_bytes().expect("Linux tells");
        // Touched, or it would never be memory.
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(peak_bytes().expect("Linux tells") > before.max(held.len() as u64));
    }
}
