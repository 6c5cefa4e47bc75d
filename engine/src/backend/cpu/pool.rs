//! Threads that share one list of tasks. They claim tasks one by one, so that a thread that the system has taken away holds
//! up one task and not a fixed part of the work, and they spin only for a moment before they sleep.
//!
//! One caller at a time hands in work; it takes part in it and returns when all of it is done.

use std::mem::transmute;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread without work looks for more before it sleeps. The gap between two phases of a layer is some
/// microseconds; a sleep and a wake cost about fifty.
const SPIN: Duration = Duration::from_micros(60);

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// A fixed number of threads, the caller's among them.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held while work is handed in.
    turn: Mutex<u64>,
}

struct Shared {
    /// A [`Claim`].
    claim: AtomicU64,
    /// The task of this round, as the two words of a fat pointer.
    task: [AtomicUsize; 2],
    n_done: AtomicU32,
    has_panicked: AtomicBool,
    is_closed: AtomicBool,
    sleepers: Vec<AtomicBool>,
}

/// One word: the round in 24 bits, its number of tasks in 20, and the next task that nobody has claimed in 20. They change
/// together, so that nobody takes the numbers of one round for those of another.
#[derive(Clone, Copy)]
struct Claim(u64);

/// Bits of a number of tasks.
const BITS: u32 = 20;

impl Claim {
    fn new(round: u64, n_tasks: u64) -> Self {
        Self(round << (2 * BITS) | n_tasks << BITS)
    }

    fn next(self) -> u64 {
        self.0 & ((1 << BITS) - 1)
    }

    fn has_task(self) -> bool {
        self.next() < self.0 >> BITS & ((1 << BITS) - 1)
    }
}

impl Pool {
    /// A pool in which `n_threads` threads work, at least the caller's own.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn new(n_threads: usize) -> std::io::Result<Self> {
        let n_others = n_threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            claim: AtomicU64::new(0),
            task: [AtomicUsize::new(0), AtomicUsize::new(0)],
            n_done: AtomicU32::new(0),
            has_panicked: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            sleepers: (0..n_others).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut pool = Self { shared, threads: Vec::new(), turn: Mutex::new(0) };
        for at in 0..n_others {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new().name(format!("engine-{at}"));
            pool.threads.push(thread.spawn(move || shared.work(at))?);
        }
        Ok(pool)
    }

    /// Threads that work, the caller's included.
    pub fn n_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `task` once with every number below `n_tasks`, on all threads, in no order.
    ///
    /// # Panics
    /// A task has panicked.
    pub fn run(&self, n_tasks: usize, task: &Task<'_>) {
        if self.threads.is_empty() || n_tasks < 2 {
            (0..n_tasks).for_each(task);
            return;
        }
        let count = u32::try_from(n_tasks).ok().filter(|n| *n < 1 << BITS);
        let n_tasks = count.expect("phases have some thousand tasks");
        let mut round = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *round = (*round + 1) & 0xff_ffff;
        let shared = &*self.shared;
        // SAFETY: a fat pointer is two words. They are used by `step` alone, which reads them only after it claimed a task
        // of this round; this function returns when all of them are done.
        let words: [usize; 2] = unsafe { transmute::<&Task<'_>, [usize; 2]>(task) };
        shared.task[0].store(words[0], Ordering::Relaxed);
        shared.task[1].store(words[1], Ordering::Relaxed);
        shared.n_done.store(0, Ordering::Relaxed);
        // Publishes the stores above, and is ordered with the sleepers' flags.
        shared.claim.store(Claim::new(*round, u64::from(n_tasks)).0, Ordering::SeqCst);
        for (sleeper, thread) in shared.sleepers.iter().zip(&self.threads) {
            if sleeper.swap(false, Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        while shared.step() {}
        wait(|| shared.n_done.load(Ordering::Acquire) == n_tasks);
        if shared.has_panicked.swap(false, Ordering::Relaxed) {
            drop(round);
            panic!("a part of the computation has panicked");
        }
    }

    /// Calls `task` once with every item.
    pub fn each<T: Send>(&self, items: &mut [T], task: impl Fn(&mut T) + Sync) {
        let start = Start(items.as_mut_ptr());
        self.run(items.len(), &|at| {
            // SAFETY: `at` is below the length, and each number is given out once.
            task(unsafe { &mut *start.at(at) });
        });
    }
}

/// The first of some items that are handed out one by one.
struct Start<T>(*mut T);

// SAFETY: the pointer is only turned into references to different items, each on one thread, as if they were sent there.
unsafe impl<T: Send> Sync for Start<T> {}

impl<T> Start<T> {
    fn at(&self, at: usize) -> *mut T {
        self.0.wrapping_add(at)
    }
}

impl Shared {
    /// Claims one task and runs it; false if there is none left.
    fn step(&self) -> bool {
        let claim = Claim(self.claim.load(Ordering::Acquire));
        if !claim.has_task() {
            return false;
        }
        let next = claim.0 + 1;
        let taken = self.claim.compare_exchange(claim.0, next, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_err() {
            return true;
        }
        // The round cannot end before the claimed task is done, so these are its words.
        let words = [self.task[0].load(Ordering::Relaxed), self.task[1].load(Ordering::Relaxed)];
        // SAFETY: `run` has made the words from a reference to a task, and waits until it is done.
        let task = unsafe { transmute::<[usize; 2], &Task<'_>>(words) };
        let at = usize::try_from(claim.next()).expect("a task's number has 20 bits");
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task(at)));
        if ran.is_err() {
            self.has_panicked.store(true, Ordering::Relaxed);
        }
        self.n_done.fetch_add(1, Ordering::Release);
        true
    }

    fn has_work(&self) -> bool {
        Claim(self.claim.load(Ordering::SeqCst)).has_task()
    }

    fn work(&self, at: usize) {
        while !self.is_closed.load(Ordering::SeqCst) {
            if self.step() {
                continue;
            }
            let begun = Instant::now();
            while begun.elapsed() < SPIN && !self.has_work() {
                std::hint::spin_loop();
            }
            if self.has_work() {
                continue;
            }
            self.sleepers[at].store(true, Ordering::SeqCst);
            // Work that came in between has not seen the flag.
            if !self.has_work() && !self.is_closed.load(Ordering::SeqCst) {
                std::thread::park();
            }
            self.sleepers[at].store(false, Ordering::SeqCst);
        }
    }
}

/// Spins for a moment, then gives the processor to others between two looks.
fn wait(is_over: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_over() {
        if begun.elapsed() < SPIN {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        self.threads.iter().map(JoinHandle::thread).for_each(Thread::unpark);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        let pool = Pool::new(4).unwrap();
        for round in 0..20_000 {
            let counts: Vec<AtomicU32> = (0..round % 37).map(|_| AtomicU32::new(0)).collect();
            pool.run(counts.len(), &|at| {
                counts[at].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{round}");
        }
    }

    #[test]
    fn items_are_changed_in_place_and_sleeping_threads_wake() {
        let pool = Pool::new(3).unwrap();
        let mut items = vec![1_u64; 100];
        for _ in 0..3 {
            std::thread::park_timeout(SPIN * 10);
            pool.each(&mut items, |item| *item *= 2);
        }
        assert_eq!(items, vec![8; 100]);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(2).unwrap();
        let hit = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(10, &|at| assert_ne!(at, 7));
        }));
        assert!(hit.is_err());
        let n = AtomicU32::new(0);
        pool.run(10, &|_| {
            n.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(n.load(Ordering::Relaxed), 10);
    }
}
