//! The writer thread: one transaction at a time, shared by all waiting writes (group commit).
//!
//! Each closure runs in the group's transaction. A closure that fails before it has written costs nothing. If it fails
//! after it has written, it is settled, the transaction is discarded and the others run again. If it hits damaged pages
//! or panics, it is settled as well, and the others run again on a new handle, because redb's state may be inconsistent
//! and a commit on the old handle could abort the process. Writes are acknowledged only after the commit is durable. If
//! the disk fails, the whole group gets an error and the database is reopened.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use redb::Database;

use super::database::catch_panic;
use super::state::RedbState;
use super::transaction::RedbWrite;
use crate::engine::{Health, unavailable};
use crate::store_engine::StoreEngine as _;
use crate::transaction::{Change, WriteTx};
use crate::write_queue::{Gathered, Member, Message, QueuedWrite, gather, refuse_for};
use outpost_common::file_lock::FileLock;

/// Max new handles per group, after which it fails; bounds the wait of later writes.
const MAX_REOPENS: usize = 8;
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(2);

enum Attempt {
    Committed(Vec<Change>),
    /// A member failed after it had written; the others must run again.
    Again,
    /// redb's state may be inconsistent; the others must run again on a new handle.
    AgainOnNewHandle,
    /// The disk failed. The changes may or may not be durable.
    Failed(Vec<Change>, String),
}

/// The outcome of a group's members in one transaction.
enum Ran {
    All {
        writers: u64,
    },
    /// A member failed after it had written.
    FailedAfterWriting,
    /// A member met damaged pages or panicked. redb's state may be inconsistent.
    Damaged,
    /// The disk failed.
    Broken,
}

pub(crate) struct Writer {
    pub state: Arc<RedbState>,
    pub inbox: Receiver<Message>,
    /// Held until the database is closed.
    pub _lock: FileLock,
}

impl Writer {
    /// Runs until stopped or until all senders are gone.
    pub fn run(self) {
        while let Ok(message) = self.inbox.recv() {
            let Gathered { writes, met, stop } = gather(&self.inbox, message);
            let failed = !writes.is_empty() && !self.commit(writes);
            if stop {
                break;
            }
            if (failed || !self.is_usable(met)) && !self.reopen() {
                break;
            }
        }
        self.state.close();
    }

    /// Decides if the handle stays in use after reported errors. Damaged pages alone are no reason to reopen, because
    /// reopening does not repair them and would refuse reads of other pages meanwhile. But a panic may have poisoned a
    /// lock, so a transaction is tried.
    fn is_usable(&self, met: Health) -> bool {
        let usable = match met {
            Health::Sound => return true,
            Health::Damaged => self.state.is_working(),
            Health::Broken => false,
        };
        if usable {
            self.state.clear_suspicion();
        }
        usable
    }

    /// Commits a group and sends the results; false if the disk failed.
    fn commit(&self, writes: Vec<Box<dyn QueuedWrite>>) -> bool {
        // Before a write fails. Looking at the free space takes about a microsecond.
        self.state.spare.release_if_full();
        let mut group = Member::group(writes);
        let mut handles = 0;
        let (changes, failure) = loop {
            let attempt = match self.state.database() {
                Some(db) => catch_panic(|| self.attempt(&db, &mut group))
                    .unwrap_or_else(|| Attempt::Failed(Vec::new(), "the database panicked".into())),
                None => Attempt::Failed(Vec::new(), "the database is closed".into()),
            };
            match attempt {
                Attempt::Committed(changes) => break (changes, None),
                Attempt::Failed(changes, reason) => break (changes, Some(reason)),
                Attempt::Again => {}
                Attempt::AgainOnNewHandle => {
                    handles += 1;
                    if let Err(reason) = self.renew(handles) {
                        break (Vec::new(), Some(reason));
                    }
                }
            }
        };
        if let Some(reason) = &failure {
            self.state.log_failed_commit(reason);
            self.state.close_database();
            group.iter_mut().for_each(|member| member.write.fail(unavailable(reason.clone())));
        }
        // Announced before the acknowledgements, and after a failure too, because caches must drop these records.
        self.state.shared.watchers.announce(&changes, failure.is_some());
        group.into_iter().for_each(|member| member.write.answer());
        failure.is_none()
    }

    /// Reopens the database for the rest of a group.
    fn renew(&self, handles: usize) -> Result<(), String> {
        self.state.close_database();
        if handles > MAX_REOPENS {
            return Err("many writes of a group met damaged pages".into());
        }
        match catch_panic(|| self.state.reopen_database()) {
            Some(opened) => opened.map_err(|error| error.to_string()),
            None => Err("reopening the database panicked".into()),
        }
    }

    fn attempt(&self, db: &Database, group: &mut [Member]) -> Attempt {
        let failed = |error: redb::Error| Attempt::Failed(Vec::new(), error.to_string());
        let engine = match RedbWrite::begin(db) {
            Ok(engine) => engine,
            Err(error) => return failed(error),
        };
        let tx = WriteTx::new(&engine, self.state.shared.pepper.clone())
            .within(&self.state.reserve, self.state.free_pages.bytes());
        let ran = self.run_members(&tx, group);
        let (changes, written) = (tx.take_changes(), tx.writes() > 0);
        match ran {
            Ran::All { writers } => self.finish(engine, changes, written, writers),
            Ran::FailedAfterWriting => engine.abort().map_or_else(failed, |()| Attempt::Again),
            Ran::Damaged => {
                engine.discard();
                Attempt::AgainOnNewHandle
            }
            Ran::Broken => Attempt::Failed(Vec::new(), "the disk failed inside a transaction".into()),
        }
    }

    fn run_members(&self, tx: &WriteTx, group: &mut [Member]) -> Ran {
        let mut writers = 0;
        for member in group.iter_mut().filter(|member| !member.settled) {
            let before = tx.writes();
            let accepted = member.run(tx);
            let wrote = tx.writes() > before;
            match (tx.health(), accepted) {
                (Health::Broken, _) => return Ran::Broken,
                (Health::Damaged, _) => {
                    self.state.log_damage();
                    // Overrides what the closure made of the error.
                    member.write.fail(unavailable("a write met damaged pages"));
                    member.settled = true;
                    return Ran::Damaged;
                }
                (Health::Sound, None) => {
                    member.settled = true;
                    return Ran::Damaged;
                }
                (Health::Sound, Some(true)) => writers += u64::from(wrote),
                (Health::Sound, Some(false)) if !wrote => {}
                (Health::Sound, Some(false)) => {
                    member.settled = true;
                    return Ran::FailedAfterWriting;
                }
            }
        }
        Ran::All { writers }
    }

    fn finish(&self, engine: RedbWrite, changes: Vec<Change>, written: bool, writers: u64) -> Attempt {
        let (change, bytes_before) = (engine.change(), self.state.written_bytes());
        let done = if written { engine.commit() } else { engine.abort() };
        match done {
            Ok(()) => {
                self.state.free_pages.committed(change, bytes_before.saturating_sub(self.state.written_bytes()));
                self.state.count_commit(written, writers);
                Attempt::Committed(changes)
            }
            Err(error) => Attempt::Failed(changes, error.to_string()),
        }
    }

    /// Reopens the file until it succeeds; refuses writes meanwhile. False if stopped.
    fn reopen(&self) -> bool {
        self.state.close_database();
        let (mut pause, mut attempts) = (MIN_PAUSE, 0_u64);
        loop {
            attempts += 1;
            self.state.spare.release_if_full();
            let should_log = attempts.is_power_of_two();
            match catch_panic(|| self.state.reopen_database()) {
                Some(Ok(())) => return true,
                Some(Err(error)) if should_log => tracing::error!(%error, attempts, "cannot reopen the database yet"),
                None if should_log => tracing::error!(attempts, "reopening the database panicked"),
                _ => {}
            }
            if !refuse_for(&self.inbox, pause, "the database is being reopened") {
                return false;
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }
}
