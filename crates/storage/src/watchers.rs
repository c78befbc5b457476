//! Announces changes of records that are kept in memory.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::tables::Table;
use super::transaction::Change;

/// Notified of every write to a [watched](super::Record::WATCHED) record: of this process after its commit and before its
/// acknowledgement, of other nodes shortly after their commits (see [`Cluster::is_current`](super::Cluster::is_current)).
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
