//! State shared by the caller and the workers.
//!
//! Two atomic words carry it: `claim`, which workers watch, and `left`, which the caller watches. Each has a bit that
//! says that a thread sleeps until the word changes. Changing the word reads that bit in the same step, so no ordering
//! between two words is needed. `model.rs` checks the interleavings with loom.
//!
//! `claim` holds the section's number together with the next task, and a compare-exchange advances both. A late worker
//! that still has a finished section's number cannot succeed, so it never touches a closure that is gone.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

#[cfg(all(test, loom))]
use loom::{hint::spin_loop, sync, thread::yield_now};
#[cfg(not(all(test, loom)))]
use std::{hint::spin_loop, sync, thread::yield_now};

use sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use sync::{Condvar, Mutex, MutexGuard};

/// Iterations of the idle spin before sleeping; one is a pause instruction, 10 to 40 ns.
const SPINS: u32 = if cfg!(loom) { 0 } else { 2_000 };
/// Yields between spinning and sleeping, for the caller that waits for the last task.
const YIELDS: u32 = if cfg!(loom) { 0 } else { 20 };

/// Low bits of `claim`: the next task.
const INDEX: u64 = (1 << 24) - 1;
/// The next bit: a worker sleeps, or is about to.
const WORKERS_SLEEP: u64 = INDEX + 1;
/// The remaining bits: the section's number.
const SECTION: u32 = WORKERS_SLEEP.trailing_zeros() + 1;
/// A bit of `left`: the caller sleeps.
const CALLER_SLEEPS: usize = 1 << (usize::BITS - 1);

pub(super) struct Shared {
    claim: AtomicU64,
    tasks: AtomicUsize,
    job: AtomicPtr<Job>,
    /// Unfinished tasks of the current section.
    left: AtomicUsize,
    /// Held while a thread goes to sleep or is woken; true when workers must exit.
    gate: Mutex<bool>,
    wake_workers: Condvar,
    wake_caller: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A type-erased closure; it lives on the caller's stack while its section runs.
struct Job {
    closure: *const (),
    call: unsafe fn(*const (), usize),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Maximum tasks of a section.
    pub const MAX_TASKS: usize = INDEX as usize - 1;

    pub fn new() -> Self {
        Self {
            claim: AtomicU64::new(0),
            tasks: AtomicUsize::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            left: AtomicUsize::new(0),
            gate: Mutex::new(false),
            wake_workers: Condvar::new(),
            wake_caller: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Calls `task` once for each index below `tasks`, on this thread and on those in [`Self::work`]. Only one thread
    /// may call it at a time, with at most [`Self::MAX_TASKS`] tasks. Returns when all are done, with the payload of a panic
    /// if there was one.
    pub fn run<F: Fn(usize) + Sync>(&self, tasks: usize, task: &F) -> Option<Box<dyn Any + Send>> {
        unsafe fn call<F: Fn(usize)>(closure: *const (), index: usize) {
            // SAFETY: `closure` is the `&F` of the section that this job was made for; see `perform`.
            unsafe { (*closure.cast::<F>())(index) }
        }
        let job = Job { closure: std::ptr::from_ref(task).cast(), call: call::<F> };
        self.publish(tasks, &job);
        self.help();
        self.wait();
        lock(&self.panic).take()
    }

    /// A worker's main loop, until [`Self::stop`].
    pub fn work(&self) {
        let mut seen = 0;
        while let Some(section) = self.next_section(seen) {
            seen = section;
            self.help();
        }
    }

    pub fn stop(&self) {
        *lock(&self.gate) = true;
        self.wake_workers.notify_all();
    }

    fn publish(&self, tasks: usize, job: &Job) {
        // Closed first, so that a thread that reads the new task count cannot claim with an old index.
        let last = self.claim.fetch_or(INDEX, Ordering::Relaxed) >> SECTION;
        self.tasks.store(tasks, Ordering::Release);
        self.job.store(std::ptr::from_ref(job).cast_mut(), Ordering::Release);
        self.left.store(tasks, Ordering::Relaxed);
        let before = self.claim.swap(last.wrapping_add(1) << SECTION, Ordering::Release);
        if before & WORKERS_SLEEP != 0 {
            // The thread that set the bit holds the gate until it sleeps.
            drop(lock(&self.gate));
            self.wake_workers.notify_all();
        }
    }

    /// Runs tasks until all are claimed.
    fn help(&self) {
        let mut claim = self.claim.load(Ordering::Acquire);
        loop {
            let (tasks, job) = (self.tasks.load(Ordering::Acquire), self.job.load(Ordering::Acquire));
            let index = (claim & INDEX) as usize;
            if index >= tasks {
                return;
            }
            match self.claim.compare_exchange_weak(claim, claim + 1, Ordering::Acquire, Ordering::Acquire) {
                Err(now) => claim = now,
                Ok(_) => {
                    self.perform(job, index);
                    claim = self.claim.load(Ordering::Acquire);
                }
            }
        }
    }

    fn perform(&self, job: *const Job, index: usize) {
        // SAFETY: the claim succeeded, so the section it belongs to was the current one since before
        // `job` was read, and it ends only when `left` reaches zero, which takes this task's own
        // decrement below. Until then the job and its closure live on the caller's stack.
        let task = || unsafe { ((*job).call)((*job).closure, index) };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(task)) {
            lock(&self.panic).get_or_insert(payload);
        }
        if self.left.fetch_sub(1, Ordering::Release) == CALLER_SLEEPS | 1 {
            drop(lock(&self.gate));
            self.wake_caller.notify_all();
        }
    }

    /// The caller waits for tasks that workers still run.
    fn wait(&self) {
        for turn in 0..SPINS + YIELDS {
            if self.left.load(Ordering::Acquire) == 0 {
                return;
            }
            if turn < SPINS { spin_loop() } else { yield_now() }
        }
        let mut gate = lock(&self.gate);
        self.left.fetch_or(CALLER_SLEEPS, Ordering::Relaxed);
        while self.left.load(Ordering::Acquire) != CALLER_SLEEPS {
            gate = self.wake_caller.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a section other than `seen`; `None` when workers must exit.
    fn next_section(&self, seen: u64) -> Option<u64> {
        let news = |claim: u64| (claim >> SECTION != seen).then_some(claim >> SECTION);
        let look = || news(self.claim.load(Ordering::Acquire));
        for _ in 0..SPINS {
            if let Some(section) = look() {
                return Some(section);
            }
            spin_loop();
        }
        let mut gate = lock(&self.gate);
        while !*gate {
            // Checks first, to leave no bit behind in a section that no thread sleeps through.
            let section = look().or_else(|| news(self.claim.fetch_or(WORKERS_SLEEP, Ordering::Acquire)));
            if section.is_some() {
                return section;
            }
            gate = self.wake_workers.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}
