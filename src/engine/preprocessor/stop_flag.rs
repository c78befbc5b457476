//! Tells the sandbox processes that the server stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Once set, running requests fail within a moment, their processes are killed, and no new ones are started.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
