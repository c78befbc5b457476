//! State shared by the caller and the workers.
//!
//! Workers watch the atomic word `claim`, and the caller watches `unfinished`. Each word has a bit that is set while a
//! thread sleeps until the word changes. The operation that changes the word also reads that bit, so no ordering between
//! two words is needed. `loom_tests.rs` checks the interleavings.
//!
//! `claim` holds the section's number together with the next task. A compare-exchange on both claims a task. It fails for
//! a late worker that still has the number of a finished section, so that worker never calls a dropped closure.

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

/// The low bits of `claim`: the next task.
const INDEX_MASK: u64 = (1 << 24) - 1;
/// The next bit of `claim`: a worker sleeps or is about to sleep.
const WORKER_SLEEPS: u64 = INDEX_MASK + 1;
/// The shift of the section's number, which is in the remaining bits of `claim`.
const SECTION_SHIFT: u32 = WORKER_SLEEPS.trailing_zeros() + 1;
/// A bit of `unfinished`: the caller sleeps.
const CALLER_SLEEPS: usize = 1 << (usize::BITS - 1);

pub(super) struct Shared {
    claim: AtomicU64,
    tasks: AtomicUsize,
    job: AtomicPtr<Job>,
    /// The number of unfinished tasks of the current section.
    unfinished: AtomicUsize,
    /// Locked while a thread goes to sleep or is woken. The value is true if workers must exit.
    sleep_lock: Mutex<bool>,
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
    pub const MAX_TASKS: usize = INDEX_MASK as usize - 1;

    pub fn new() -> Self {
        Self {
            claim: AtomicU64::new(0),
            tasks: AtomicUsize::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            unfinished: AtomicUsize::new(0),
            sleep_lock: Mutex::new(false),
            wake_workers: Condvar::new(),
            wake_caller: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Calls `task` once for each index below `tasks`, on this thread and on the threads in [`Self::run_worker`]. Returns
    /// when all tasks have ended, with the payload of the first panic, if any.
    ///
    /// Only one thread may call it at a time, with at most [`Self::MAX_TASKS`] tasks.
    pub fn run<F: Fn(usize) + Sync>(&self, tasks: usize, task: &F) -> Option<Box<dyn Any + Send>> {
        unsafe fn call<F: Fn(usize)>(closure: *const (), index: usize) {
            // SAFETY: `closure` is the `&F` of the section that this job belongs to; see `run_task`.
            unsafe { (*closure.cast::<F>())(index) }
        }
        let job = Job { closure: std::ptr::from_ref(task).cast(), call: call::<F> };
        self.publish(tasks, &job);
        self.run_tasks();
        self.wait_for_workers();
        lock(&self.panic).take()
    }

    /// The main loop of a worker; it ends after [`Self::stop`].
    pub fn run_worker(&self) {
        let mut seen = 0;
        while let Some(section) = self.next_section(seen) {
            seen = section;
            self.run_tasks();
        }
    }

    /// Makes the workers exit.
    pub fn stop(&self) {
        *lock(&self.sleep_lock) = true;
        self.wake_workers.notify_all();
    }

    /// Starts a section.
    fn publish(&self, tasks: usize, job: &Job) {
        // The index is invalidated first, so that a thread that reads the new task count cannot claim an old index.
        let previous = self.claim.fetch_or(INDEX_MASK, Ordering::Relaxed) >> SECTION_SHIFT;
        self.tasks.store(tasks, Ordering::Release);
        self.job.store(std::ptr::from_ref(job).cast_mut(), Ordering::Release);
        self.unfinished.store(tasks, Ordering::Relaxed);
        let old_claim = self.claim.swap(previous.wrapping_add(1) << SECTION_SHIFT, Ordering::Release);
        if old_claim & WORKER_SLEEPS != 0 {
            // The thread that set the bit holds the lock until it sleeps.
            drop(lock(&self.sleep_lock));
            self.wake_workers.notify_all();
        }
    }

    /// Runs tasks until all are claimed.
    fn run_tasks(&self) {
        let mut claim = self.claim.load(Ordering::Acquire);
        loop {
            let (tasks, job) = (self.tasks.load(Ordering::Acquire), self.job.load(Ordering::Acquire));
            let index = (claim & INDEX_MASK) as usize;
            if index >= tasks {
                return;
            }
            match self.claim.compare_exchange_weak(claim, claim + 1, Ordering::Acquire, Ordering::Acquire) {
                Err(current) => claim = current,
                Ok(_) => {
                    self.run_task(job, index);
                    claim = self.claim.load(Ordering::Acquire);
                }
            }
        }
    }

    fn run_task(&self, job: *const Job, index: usize) {
        // SAFETY: the claim succeeded, so its section was the current one when `job` was read. The section ends only when
        // `unfinished` reaches zero, which requires the decrement below. Until then, the job and its closure live on the
        // caller's stack.
        let task = || unsafe { ((*job).call)((*job).closure, index) };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(task)) {
            lock(&self.panic).get_or_insert(payload);
        }
        if self.unfinished.fetch_sub(1, Ordering::Release) == CALLER_SLEEPS | 1 {
            drop(lock(&self.sleep_lock));
            self.wake_caller.notify_all();
        }
    }

    /// Waits for tasks that workers still run.
    fn wait_for_workers(&self) {
        for attempt in 0..SPINS + YIELDS {
            if self.unfinished.load(Ordering::Acquire) == 0 {
                return;
            }
            if attempt < SPINS { spin_loop() } else { yield_now() }
        }
        let mut exit = lock(&self.sleep_lock);
        self.unfinished.fetch_or(CALLER_SLEEPS, Ordering::Relaxed);
        while self.unfinished.load(Ordering::Acquire) != CALLER_SLEEPS {
            exit = self.wake_caller.wait(exit).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a section other than `seen`; `None` if workers must exit.
    fn next_section(&self, seen: u64) -> Option<u64> {
        let new_section = |claim: u64| (claim >> SECTION_SHIFT != seen).then_some(claim >> SECTION_SHIFT);
        let poll = || new_section(self.claim.load(Ordering::Acquire));
        for _ in 0..SPINS {
            if let Some(section) = poll() {
                return Some(section);
            }
            spin_loop();
        }
        let mut exit = lock(&self.sleep_lock);
        while !*exit {
            // Polls first, so that the bit is not set in a section that this thread does not sleep through.
            let section = poll().or_else(|| new_section(self.claim.fetch_or(WORKER_SLEEPS, Ordering::Acquire)));
            if section.is_some() {
                return section;
            }
            exit = self.wake_workers.wait(exit).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}
