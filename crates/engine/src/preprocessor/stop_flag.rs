//! Ends the sandbox processes when the server stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::sandbox_protocol::lock;

/// A process that can be killed.
pub trait Kill: Send + Sync {
    fn kill(&self);
}

/// Once set, running requests fail, all processes are killed, and no new ones are started.
#[derive(Clone, Default)]
pub struct StopFlag(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_set: AtomicBool,
    processes: Mutex<Vec<Weak<dyn Kill>>>,
}

impl StopFlag {
    /// A process that is stopped by a signal does not notice that the server has exited, so each one is killed.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::SeqCst);
        let processes = std::mem::take(&mut *lock(&self.0.processes));
        processes.iter().filter_map(Weak::upgrade).for_each(|process| process.kill());
    }

    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst)
    }

    /// Adds a process that has just been started.
    pub fn add(&self, process: Weak<dyn Kill>) {
        let mut processes = lock(&self.0.processes);
        processes.retain(|process| process.strong_count() > 0);
        processes.push(process);
    }
}
