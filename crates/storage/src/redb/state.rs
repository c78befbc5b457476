//! The open redb database, and what is known of its condition.

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redb::Database;

use super::database::{self, DatabaseFile};
use super::free_pages::FreePages;
use super::spare_space::SpareSpace;
use super::transaction::{RedbSnapshot, RedbWrite};
use crate::engine::{EngineRead as _, EngineSnapshot, Failed, Health};
use crate::meta::LAYOUT_KEY;
use crate::shared_state::SharedState;
use crate::store_engine::StoreEngine;
use crate::store_error::OpenError;
use crate::tables;
use crate::write_queue::Message;
use outpost_common::disk_space::DiskReserve;

/// State shared by the store's handles and the writer thread.
pub(crate) struct RedbState {
    /// `None` while the database is being reopened, and after the store is closed.
    db: ArcSwapOption<Database>,
    source: DatabaseFile,
    /// Of the disk with the database.
    pub reserve: DiskReserve,
    pub spare: SpareSpace,
    pub free_pages: FreePages,
    pub shared: Arc<SharedState>,
    /// Failed commits since the last successful one.
    failed_commits: AtomicU64,
    /// Number of reads and writes that hit damaged pages.
    damages: AtomicU64,
    /// A reader has reported a disk error or damage that the writer has not handled yet.
    suspect: AtomicBool,
}

impl StoreEngine for RedbState {
    fn check_open(&self) -> Result<(), Failed> {
        if self.db.load().is_some() { Ok(()) } else { Err(absent()) }
    }

    /// The snapshot does not keep the database open, so reopening never waits for readers.
    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>, Failed> {
        let db = self.database().ok_or_else(absent)?;
        // The database is open but cannot create a snapshot.
        let broken = |error: redb::Error| Failed { health: Health::Broken, reason: error.to_string() };
        Ok(Box::new(RedbSnapshot::begin(&db).map_err(broken)?))
    }

    /// Tells the writer to check the database, once for any number of reports.
    fn report(&self, met: Health, writer: &SyncSender<Message>) {
        if met == Health::Sound {
            return;
        }
        if met == Health::Damaged {
            self.log_damage();
        }
        if !self.suspect.swap(true, AcqRel) && writer.try_send(Message::Met(met)).is_err() {
            // If the queue is full, a later reader or the writer itself reports it.
            self.clear_suspicion();
        }
    }

    fn written_bytes(&self) -> u64 {
        std::fs::metadata(&self.source.path).map_or(0, |found| found.blocks().saturating_mul(512))
    }

    fn reserve(&self) -> Option<&DiskReserve> {
        Some(&self.reserve)
    }

    fn keep_space_back(&self) {
        self.spare.fill();
    }

    fn bytes(&self) -> u64 {
        std::fs::metadata(&self.source.path).map_or(0, |found| found.len())
    }
}

impl RedbState {
    pub fn new(
        db: Database,
        source: DatabaseFile,
        (reserve, spare): (DiskReserve, SpareSpace),
        shared: Arc<SharedState>,
    ) -> Self {
        Self {
            db: ArcSwapOption::from_pointee(db),
            source,
            reserve,
            spare,
            free_pages: FreePages::default(),
            shared,
            failed_commits: AtomicU64::new(0),
            damages: AtomicU64::new(0),
            suspect: AtomicBool::new(false),
        }
    }

    pub fn database(&self) -> Option<Arc<Database>> {
        self.db.load_full()
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

    /// True while the handle can run transactions.
    pub fn is_working(&self) -> bool {
        let Some(db) = self.database() else { return false };
        let tried = database::catch_panic(|| {
            let tx = RedbWrite::begin(&db).ok()?;
            let read = tx.get(tables::META, LAYOUT_KEY).ok()?;
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
        self.shared.closing.store(true, Release);
        self.close_database();
    }

    /// Counts a successful transaction.
    pub fn count_commit(&self, written: bool, writers: u64) {
        self.shared.count_commit(written, writers);
        self.failed_commits.store(0, Relaxed);
    }
}

fn absent() -> Failed {
    Failed { health: Health::Sound, reason: "the database is being reopened".to_owned() }
}
