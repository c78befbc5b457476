//! State shared by the store's handles and the writer thread: the open database, its counters and the watchers.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redb::Database;

use super::database::{self, DatabaseFile, unavailable};
use super::error::OpenError;
use super::meta::LAYOUT_KEY;
use super::pepper::Pepper;
use super::tables::{self, Table};
use super::transaction::{Change, ReadTx, Reader as _, WriteTx};
use crate::error::{Code, Error, Result};

/// Notified of every write to a record that decides access, after its commit and before its acknowledgement.
pub trait Watcher: Send + Sync {
    fn changed(&self, table: Table, key: &[u8]);

    /// A commit failed, so anything may have changed.
    fn changes_unknown(&self);
}

/// State shared by the handles and the writer thread.
pub(super) struct SharedState {
    /// `None` while the database is being reopened, and after the store is closed.
    db: ArcSwapOption<Database>,
    pub source: DatabaseFile,
    pub pepper: Arc<Pepper>,
    pub commits: AtomicU64,
    pub writes: AtomicU64,
    /// Failed commits since the last successful one.
    pub failed_commits: AtomicU64,
    /// Number of reads and writes that hit damaged pages.
    damages: AtomicU64,
    pub closing: AtomicBool,
    /// A reader has reported a disk error or damage that the writer has not handled yet.
    pub suspect: AtomicBool,
    pub watchers: Mutex<Vec<Weak<dyn Watcher>>>,
}

impl SharedState {
    pub fn new(db: Database, source: DatabaseFile, pepper: Arc<Pepper>) -> Self {
        Self {
            db: ArcSwapOption::from_pointee(db),
            source,
            pepper,
            commits: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            failed_commits: AtomicU64::new(0),
            damages: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            watchers: Mutex::default(),
        }
    }

    pub fn is_open(&self) -> bool {
        self.db.load().is_some()
    }

    pub fn database(&self) -> Option<Arc<Database>> {
        self.db.load_full()
    }

    /// A snapshot. It does not keep the database open, so reopening never waits for readers.
    pub fn snapshot(&self) -> Result<ReadTx> {
        let Some(db) = self.database() else { return Err(self.absent()) };
        ReadTx::begin(&db, self.pepper.clone()).map_err(|error| database::failed(&error))
    }

    /// The error while there is no database.
    pub fn absent(&self) -> Error {
        if self.closing.load(Acquire) { shutting_down() } else { unavailable("the database is being reopened") }
    }

    /// Closes the database, even if it is being read.
    pub fn close_database(&self) {
        let Some(mut db) = self.db.swap(None) else { return };
        loop {
            match Arc::try_unwrap(db) {
                Ok(db) => {
                    let closed = database::catch_panic(|| db.close());
                    if let Some(Err(error)) = closed {
                        tracing::warn!(%error, "the database did not close cleanly");
                    }
                    return;
                }
                // Another thread is beginning a transaction, which takes microseconds.
                Err(shared) => db = shared,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn reopen_database(&self) -> Result<(), OpenError> {
        self.db.store(Some(Arc::new(self.source.open()?)));
        self.clear_suspicion();
        Ok(())
    }

    /// Allows readers to report again.
    pub fn clear_suspicion(&self) {
        self.suspect.store(false, Release);
    }

    /// Whether the handle can still run transactions.
    pub fn is_working(&self) -> bool {
        let Some(db) = self.database() else { return false };
        let tried = database::catch_panic(|| {
            let tx = WriteTx::begin(&db, self.pepper.clone()).ok()?;
            let read = tx.raw(tables::META, LAYOUT_KEY).ok()?;
            tx.abort().ok()?;
            read
        });
        tried.flatten().is_some()
    }

    /// Logs the first, second, fourth occurrence and so on, because damage may be hit by every request.
    pub fn log_damage(&self) {
        let times = self.damages.fetch_add(1, Relaxed) + 1;
        if times.is_power_of_two() {
            tracing::error!(times, "the database is damaged: run `outpost check`, and restore a backup");
        }
    }

    pub fn log_failed_commit(&self, reason: &str) {
        let times = self.failed_commits.fetch_add(1, Relaxed) + 1;
        if times.is_power_of_two() {
            tracing::error!(reason, times, "a commit failed; reopening the database");
        }
    }

    pub fn close(&self) {
        self.closing.store(true, Release);
        self.close_database();
    }

    pub fn announce(&self, changes: &[Change], changes_unknown: bool) {
        if changes.is_empty() && !changes_unknown {
            return;
        }
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.strong_count() > 0);
        for watcher in watchers.iter().filter_map(Weak::upgrade) {
            if changes_unknown {
                watcher.changes_unknown();
            }
            changes.iter().for_each(|(table, key)| watcher.changed(*table, key));
        }
    }
}

pub(super) fn shutting_down() -> Error {
    Error::new(Code::ShuttingDown, "The server is shutting down. Try again shortly.")
}
