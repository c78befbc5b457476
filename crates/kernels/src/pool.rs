//! The thread pool.
//!
//! A decode step has about 120 parallel sections of 5 to 100 µs, so starting a section must take less
//! than that. Idle workers therefore spin for tens of microseconds before they sleep. Tasks are claimed one by one from
//! an atomic counter. If the system preempts a thread, the other threads wait only for the task that it runs. They yield
//! and then sleep while they wait, so they do not take a core from other processes.
//!
//! The number of threads is an argument. candle's thread pools read theirs from the environment, so the server does not
//! use them.

#[cfg(all(test, loom))]
mod loom_tests;
mod shared;

use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

use crate::Isa;
use crate::buffer_pool::BufferPool;
use shared::Shared;

/// A thread pool for short parallel sections, and the instruction set of their kernels.
///
/// One thread at a time uses all workers. A call from within a task, or during another thread's call, runs on the calling
/// thread alone.
pub struct Pool {
    shared: Arc<Shared>,
    owner: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    isa: Isa,
    buffers: Mutex<BufferPool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts a pool of `threads` threads, including the caller, with the fastest instruction set of this CPU. If the
    /// system refuses to start threads, the pool has fewer.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::detect())
    }

    /// Like [`Pool::new`], with this instruction set, or with the portable one if the CPU lacks it.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        let shared = Arc::new(Shared::new());
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("kernels-{index}")).spawn(move || shared.run_worker()).ok()
        };
        let workers = (1..threads).filter_map(worker).collect();
        let isa = if isa.is_available() { isa } else { Isa::Portable };
        Self { shared, owner: Mutex::new(()), workers, isa, buffers: Mutex::default() }
    }

    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub(crate) fn buffers(&self) -> MutexGuard<'_, BufferPool> {
        lock(&self.buffers)
    }

    /// Calls `task` once for each index below `tasks`, on all threads, and returns when all calls have returned.
    ///
    /// # Panics
    /// If a task panics. The other tasks run first, unless the call uses a single thread.
    pub fn run<F: Fn(usize) + Sync>(&self, tasks: usize, task: F) {
        let owner = match self.owner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if owner.is_none() || self.workers.is_empty() || !(2..=Shared::MAX_TASKS).contains(&tasks) {
            return (0..tasks).for_each(task);
        }
        let panic = self.shared.run(tasks, &task);
        drop(owner);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop();
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so joining cannot fail.
            drop(worker.join());
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).field("isa", &self.isa).finish()
    }
}
