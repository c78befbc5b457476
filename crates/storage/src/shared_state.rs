//! What the store's handles and the writer thread of any engine share, and the watchers that learn of changes to
//! records which are kept in memory.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::cluster::NodeProcess;
use crate::error::{Code, Error};
use crate::pepper::Pepper;
use crate::tables::Table;
use crate::transaction::Change;

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

/// Notified of every write to a [watched](crate::Record::WATCHED) record: of this process after its commit and before its
/// acknowledgement, of other nodes shortly after their commits (see [`Cluster::is_current`](crate::Cluster::is_current)).
pub trait Watcher: Send + Sync {
    fn changed(&self, table: Table, key: &[u8]);

    /// A commit failed, so anything may have changed.
    fn changes_unknown(&self);
}

/// The watchers of a store.
#[derive(Default)]
pub(super) struct Watchers(Mutex<Vec<Weak<dyn Watcher>>>);

impl Watchers {
    pub fn add(&self, watcher: Weak<dyn Watcher>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(watcher);
    }

    pub fn announce(&self, changes: &[Change], changes_unknown: bool) {
        if changes.is_empty() && !changes_unknown {
            return;
        }
        for watcher in self.alive() {
            if changes_unknown {
                watcher.changes_unknown();
            }
            changes.iter().for_each(|(table, key)| watcher.changed(*table, key));
        }
    }

    fn alive(&self) -> Vec<Arc<dyn Watcher>> {
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.iter().filter_map(Weak::upgrade).collect()
    }
}
