//! The threads that share one step's work.
//!
//! A decode step is a hundred short parallel sections, a few microseconds each, so starting one must
//! cost less than that: idle workers spin for some tens of microseconds and only then sleep. Tasks are
//! claimed one by one from an atomic counter. Nobody waits for a thread that the system has put aside
//! except for the one task which that thread holds, and whoever waits yields and then sleeps, so that a
//! core shared with another process slows the work down by that process's share and not by more.

#[cfg(all(test, loom))]
mod model;
mod shared;

use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

use crate::Isa;
use crate::activations::BufferPool;
use shared::Shared;

/// Threads for short parallel sections, and the instruction set that kernels run with on them.
///
/// Made for one owner: a call from inside a task, or while another thread's call runs, is correct but
/// works its tasks off alone.
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
    /// `threads` in all, the caller among them (at least one), with the best instruction set here.
    /// Where the system refuses threads, the pool has fewer.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::detect())
    }

    /// The same with a given instruction set; one that this CPU lacks becomes the portable one.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        let shared = Arc::new(Shared::new());
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("kernels-{index}")).spawn(move || shared.work()).ok()
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

    /// Calls `task` once for each index below `tasks`, on all threads, and returns when all are done.
    /// A panic in a task is carried to the caller, after the other tasks have run; where the caller works
    /// alone, it ends the call at once.
    pub fn run<F: Fn(usize) + Sync>(&self, tasks: usize, task: F) {
        let owner = match self.owner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if owner.is_none() || self.workers.is_empty() || !(2..=Shared::MOST).contains(&tasks) {
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
            // A worker catches the panics of its tasks, so it does not end with one.
            drop(worker.join());
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).field("path", &self.isa).finish()
    }
}
