//! Where the time of forward passes goes. Off, it costs a look at one flag for each stage of a layer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A part of a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The linear layers before and behind what mixes tokens.
    Projections,
    /// Convolution and recurrence of Gated DeltaNet.
    Delta,
    /// Writing and reading keys and values.
    Attention,
    /// SwiGLU, its linear layers among it.
    Mlp,
    /// Norms of the residual stream.
    Norms,
    /// Logits, with their norm.
    Head,
}

impl Stage {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Projections, Self::Delta, Self::Attention, Self::Mlp, Self::Norms, Self::Head];

    /// As a benchmark names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Projections => "projections",
            Self::Delta => "delta",
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Norms => "norms",
            Self::Head => "head",
        }
    }
}

/// Adds up the time of each stage while it is on.
#[derive(Default)]
pub(super) struct Clock {
    is_on: AtomicBool,
    nanoseconds: [AtomicU64; Stage::ALL.len()],
}

impl Clock {
    /// Does some work of a stage.
    pub(super) fn time<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        if !self.is_on.load(Ordering::Relaxed) {
            return work();
        }
        let begun = Instant::now();
        let done = work();
        let passed = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds[stage as usize].fetch_add(passed, Ordering::Relaxed);
        done
    }

    /// Is on during some work; the time of each stage, in their order.
    pub(super) fn during(&self, work: impl FnOnce()) -> [Duration; Stage::ALL.len()] {
        self.nanoseconds.iter().for_each(|n| n.store(0, Ordering::Relaxed));
        self.is_on.store(true, Ordering::Relaxed);
        work();
        self.is_on.store(false, Ordering::Relaxed);
        self.nanoseconds.each_ref().map(|n| Duration::from_nanos(n.load(Ordering::Relaxed)))
    }
}
