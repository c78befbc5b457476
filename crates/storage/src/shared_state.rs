//! What the store's handles and the writer thread of any engine share.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::cluster::NodeProcess;
use super::pepper::Pepper;
use super::watchers::Watchers;
use crate::error::{Code, Error};

pub(super) struct SharedState {
    pub pepper: Arc<Pepper>,
    /// This process, if others use the same database.
    pub process: Option<NodeProcess>,
    pub watchers: Watchers,
    /// The store refuses new writes.
    pub closing: AtomicBool,
    pub commits: AtomicU64,
    pub writes: AtomicU64,
}

impl SharedState {
    pub fn new(pepper: Arc<Pepper>, process: Option<NodeProcess>) -> Self {
        Self {
            pepper,
            process,
            watchers: Watchers::default(),
            closing: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        }
    }

    /// Counts a transaction: whether it was committed rather than empty, and how many of its closures wrote.
    pub fn count_commit(&self, written: bool, writers: u64) {
        self.commits.fetch_add(u64::from(written), Relaxed);
        self.writes.fetch_add(writers, Relaxed);
    }
}

pub(super) fn shutting_down() -> Error {
    Error::new(Code::ShuttingDown, "The server is shutting down. Try again shortly.")
}
