//! Threads that share one list of tasks. They claim tasks one by one, so that a thread that the system has taken away holds
//! up one task and not a fixed part of the work, and they spin only for a moment before they sleep.
//!
//! One caller at a time hands in work; it takes part in it and returns when all of it is done.

use std::mem::transmute;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread without work looks for more before it sleeps. The gap between two phases of a layer is some
/// microseconds; a sleep and a wake cost about fifty.
const SPIN: Duration = Duration::from_micros(60);
/// How long the caller, which has nothing left to claim, gives way to others before it sleeps. The last task of another thread
/// rarely takes longer, unless the system has taken that thread away.
const GIVE_WAY: Duration = Duration::from_micros(300);
/// Most threads of a pool: more than any machine has cores, and far below what a system would let anybody start.
const MOST: usize = 4096;

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
    /// The caller sleeps here until the last task of a round is done.
    end: Mutex<()>,
    over: Condvar,
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

    fn n_tasks(self) -> u64 {
        self.0 >> BITS & ((1 << BITS) - 1)
    }

    fn has_task(self) -> bool {
        self.next() < self.n_tasks()
    }
}

impl Pool {
    /// A pool in which `n_threads` threads work, at least the caller's own.
    ///
    /// # Errors
    /// They are too many for anybody, or the system starts no more.
    pub fn new(n_threads: usize) -> std::io::Result<Self> {
        if n_threads > MOST {
            let reason = format!("the largest number of threads is {MOST}");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, reason));
        }
        let n_others = n_threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            claim: AtomicU64::new(0),
            task: [AtomicUsize::new(0), AtomicUsize::new(0)],
            n_done: AtomicU32::new(0),
            has_panicked: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            sleepers: (0..n_others).map(|_| AtomicBool::new(false)).collect(),
            end: Mutex::new(()),
            over: Condvar::new(),
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
        // A round has no room for more.
        const PART: usize = (1 << BITS) - 1;
        for from in (0..n_tasks).step_by(PART) {
            let n = u32::try_from(PART.min(n_tasks - from)).expect("a number of 20 bits");
            self.round(n, &|at| task(from + at));
        }
    }

    fn round(&self, n_tasks: u32, task: &Task<'_>) {
        let mut round = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
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
        shared.wait(n_tasks);
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
        let n_done = self.n_done.fetch_add(1, Ordering::Release) + 1;
        if u64::from(n_done) == claim.n_tasks() {
            // With the lock in between, the caller has either seen the number or waits already.
            drop(self.end.lock().unwrap_or_else(PoisonError::into_inner));
            self.over.notify_one();
        }
        true
    }

    /// Until all tasks are done: spins for a moment, gives the processor to others between two looks for another, then sleeps.
    fn wait(&self, n_tasks: u32) {
        let is_over = || self.n_done.load(Ordering::Acquire) == n_tasks;
        let begun = Instant::now();
        while !is_over() {
            let waited = begun.elapsed();
            if waited < SPIN {
                std::hint::spin_loop();
            } else if waited < GIVE_WAY {
                std::thread::yield_now();
            } else {
                let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
                let slept = self.over.wait_while(end, |()| !is_over());
                drop(slept.unwrap_or_else(PoisonError::into_inner));
            }
        }
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

    /// Looks until something is so; false if it takes so long that it never will be.
    fn becomes(is_so: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        while !is_so() {
            if begun.elapsed() > Duration::from_secs(20) {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    #[test]
    fn items_are_changed_in_place_by_all_threads_and_sleeping_ones_wake() {
        let pool = Pool::new(3).unwrap();
        for round in 0..20 {
            let sleepers = &pool.shared.sleepers;
            assert!(becomes(|| sleepers.iter().all(|sleeper| sleeper.load(Ordering::SeqCst))));
            // Every task waits for the others, so no thread can do two of them.
            let n_there = AtomicU32::new(0);
            let mut items = vec![(1_u64, false); 3];
            pool.each(&mut items, |(item, has_met)| {
                *item += 1;
                n_there.fetch_add(1, Ordering::SeqCst);
                *has_met = becomes(|| n_there.load(Ordering::SeqCst) == 3);
            });
            assert_eq!(items, vec![(2, true); 3], "{round}");
        }
    }

    /// Whether a thread of this process sleeps, as the system says it.
    #[cfg(target_os = "linux")]
    fn sleeps(thread: &str) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
        // The name before it may have spaces and brackets.
        status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_caller_sleeps_while_others_finish() {
        let pool = Pool::new(2).unwrap();
        let caller = std::fs::read_link("/proc/thread-self").unwrap();
        let caller = caller.to_str().unwrap();
        let is_caller = {
            let id = std::thread::current().id();
            move || std::thread::current().id() == id
        };
        let (n_there, has_slept) = (AtomicU32::new(0), AtomicBool::new(false));
        pool.run(2, &|_| {
            n_there.fetch_add(1, Ordering::SeqCst);
            assert!(becomes(|| n_there.load(Ordering::SeqCst) == 2));
            if !is_caller() {
                has_slept.store(becomes(|| sleeps(caller)), Ordering::SeqCst);
            }
        });
        assert!(has_slept.into_inner());
    }

    #[test]
    fn more_tasks_than_a_round_has_room_for_are_done_all_the_same() {
        let pool = Pool::new(2).unwrap();
        let sum = AtomicU64::new(0);
        pool.run((1 << BITS) + 5, &|at| {
            sum.fetch_add(at as u64, Ordering::Relaxed);
        });
        let n = (1_u64 << BITS) + 5;
        assert_eq!(sum.into_inner(), n * (n - 1) / 2);
    }

    #[test]
    fn a_number_of_threads_that_no_machine_has_is_an_error() {
        for n_threads in [MOST + 1, usize::MAX] {
            let error = Pool::new(n_threads).err().unwrap();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        }
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
