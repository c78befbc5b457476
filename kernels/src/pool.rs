//! The threads that share one step's work.
//!
//! A decode step is a hundred short parallel sections, a few microseconds each, so starting one must
//! cost less than that: idle workers spin for some tens of microseconds and only then sleep. Tasks are
//! claimed one by one from an atomic counter. Nobody waits for a thread that the system has put aside
//! except for the one task which that thread holds, and whoever waits yields and then sleeps, so that a
//! core shared with another process slows the work down by that process's share and not by more.
//!
//! The counter holds the number of the section as well as the next task. A claim is a compare-exchange
//! of both: a worker that comes late with the number of a finished section cannot succeed, and so never
//! touches a closure that is gone.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

use crate::Path;
use crate::activations::Spare;

/// Turns of an idle spin before sleeping; a turn is one pause instruction, 10 to 40 ns.
const SPINS: u32 = 2_000;
/// Yields to other processes between spinning and sleeping, for the caller that waits for the last task.
const YIELDS: u32 = 20;
/// Low bits of the claim: the next task. The rest: the section's number.
const INDEX_BITS: u32 = 24;
const INDEX: u64 = (1 << INDEX_BITS) - 1;

/// Threads for short parallel sections, and the instruction set that kernels run with on them.
///
/// Made for one owner: a call from inside a task, or while another thread's call runs, is correct but
/// works its tasks off alone.
pub struct Pool {
    shared: Arc<Shared>,
    owner: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    path: Path,
    spare: Mutex<Spare>,
}

struct Shared {
    claim: AtomicU64,
    tasks: AtomicUsize,
    job: AtomicPtr<Job>,
    /// Tasks of the current section that are not finished yet.
    left: AtomicUsize,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    caller_sleeps: AtomicBool,
    gate: Mutex<()>,
    wake_workers: Condvar,
    wake_caller: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A closure without its type; lives on the caller's stack while its section runs.
struct Job {
    closure: *const (),
    call: unsafe fn(*const (), usize),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// `threads` in all, the caller among them (at least one), with the best instruction set here.
    /// Where the system refuses threads, the pool has fewer.
    pub fn new(threads: usize) -> Self {
        Self::with_path(threads, Path::best())
    }

    /// The same with a given instruction set; one that this CPU lacks becomes the portable one.
    pub fn with_path(threads: usize, path: Path) -> Self {
        let shared = Arc::new(Shared {
            claim: AtomicU64::new(0),
            tasks: AtomicUsize::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            left: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
            gate: Mutex::new(()),
            wake_workers: Condvar::new(),
            wake_caller: Condvar::new(),
            panic: Mutex::new(None),
        });
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("kernels-{index}")).spawn(move || shared.work()).ok()
        };
        let workers = (1..threads).filter_map(worker).collect();
        let path = if path.is_available() { path } else { Path::Portable };
        Self { shared, owner: Mutex::new(()), workers, path, spare: Mutex::default() }
    }

    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    pub fn path(&self) -> Path {
        self.path
    }

    pub(crate) fn spare(&self) -> MutexGuard<'_, Spare> {
        lock(&self.spare)
    }

    /// Calls `task` once for each index below `tasks`, on all threads, and returns when all are done.
    /// A panic in a task is carried to the caller, after the other tasks have run.
    pub fn run<F: Fn(usize) + Sync>(&self, tasks: usize, task: F) {
        let owner = match self.owner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if owner.is_none() || self.workers.is_empty() || tasks < 2 || tasks as u64 >= INDEX {
            return (0..tasks).for_each(task);
        }
        unsafe fn call<F: Fn(usize)>(closure: *const (), index: usize) {
            // SAFETY: `closure` is the `&F` of the section that this job was made for; see `Shared::help`.
            unsafe { (*closure.cast::<F>())(index) }
        }
        let job = Job { closure: std::ptr::from_ref(&task).cast(), call: call::<F> };
        self.shared.publish(tasks, &job);
        self.shared.help();
        self.shared.wait();
        let panic = lock(&self.shared.panic).take();
        drop(owner);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.gate));
        self.shared.wake_workers.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so it does not end with one.
            drop(worker.join());
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).field("path", &self.path).finish()
    }
}

impl Shared {
    fn publish(&self, tasks: usize, job: &Job) {
        let last = self.claim.load(Ordering::Relaxed) >> INDEX_BITS;
        // Closed first: whoever reads the new number of tasks below must fail to claim with an old index.
        self.claim.store((last << INDEX_BITS) | INDEX, Ordering::SeqCst);
        self.tasks.store(tasks, Ordering::Release);
        self.job.store(std::ptr::from_ref(job).cast_mut(), Ordering::Release);
        self.left.store(tasks, Ordering::Relaxed);
        let section = last.wrapping_add(1);
        // Sequentially consistent, as is `sleepers`: either this sees a sleeper, or the sleeper sees this.
        self.claim.store(section << INDEX_BITS, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.gate));
            self.wake_workers.notify_all();
        }
    }

    /// Works tasks off until none is unclaimed.
    fn help(&self) {
        let mut claim = self.claim.load(Ordering::Acquire);
        loop {
            let (tasks, job) = (self.tasks.load(Ordering::Acquire), self.job.load(Ordering::Acquire));
            let index = (claim & INDEX) as usize;
            if index >= tasks {
                return;
            }
            match self.claim.compare_exchange_weak(claim, claim + 1, Ordering::AcqRel, Ordering::Acquire) {
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
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 && self.caller_sleeps.load(Ordering::SeqCst) {
            drop(lock(&self.gate));
            self.wake_caller.notify_all();
        }
    }

    /// The caller's wait for tasks that workers still hold.
    fn wait(&self) {
        let done = || self.left.load(Ordering::SeqCst) == 0;
        for turn in 0..SPINS + YIELDS {
            if done() {
                return;
            }
            if turn < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let mut gate = lock(&self.gate);
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !done() {
            gate = self.wake_caller.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// A worker's life.
    fn work(&self) {
        let mut seen = 0;
        while let Some(section) = self.next_section(seen) {
            seen = section;
            self.help();
        }
    }

    /// Waits for a section other than `seen`; `None` when the pool is dropped.
    fn next_section(&self, seen: u64) -> Option<u64> {
        let news = || {
            let section = self.claim.load(Ordering::SeqCst) >> INDEX_BITS;
            (section != seen).then_some(section)
        };
        for _ in 0..SPINS {
            if let Some(section) = news() {
                return Some(section);
            }
            std::hint::spin_loop();
        }
        let mut gate = lock(&self.gate);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let section = loop {
            if self.stop.load(Ordering::SeqCst) {
                break None;
            }
            if let Some(section) = news() {
                break Some(section);
            }
            gate = self.wake_workers.wait(gate).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        section
    }
}
