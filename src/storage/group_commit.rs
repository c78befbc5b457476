//! The writer thread: one transaction at a time, shared by all waiting writes (group commit).
//!
//! Each closure runs in the group's transaction. A closure that fails before it has written costs nothing. If it fails
//! after it has written, it is settled, the transaction is discarded and the others run again. If it hits damaged pages
//! or panics, it is settled as well, and the others run again on a new handle, because redb's state may be inconsistent
//! and a commit on the old handle could abort the process. Writes are acknowledged only after the commit is durable. If
//! the disk fails, the whole group gets an error and the database is reopened.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use redb::Database;
use tokio::sync::oneshot;

use super::database::{Health, catch_panic, unavailable};
use super::shared_state::SharedState;
use super::transaction::{Change, WriteTx};
use crate::error::{Error, Result};
use crate::file_lock::FileLock;

/// Max closures per transaction; bounds the wait of the first of them.
const MAX_GROUP: usize = 256;
/// Max new handles per group, after which it fails; bounds the wait of later writes.
const MAX_REOPENS: usize = 8;
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(2);

pub(super) enum Message {
    Job(Box<dyn Job>),
    /// A reader hit a disk error or damage.
    Met(Health),
    Stop,
}

/// A closure with the channel for its result.
pub(super) trait Job: Send {
    /// Runs the closure, stores its outcome, and returns whether it was `Ok`.
    fn run(&mut self, tx: &WriteTx) -> bool;
    fn fail(&mut self, error: Error);
    fn answer(self: Box<Self>);
}

pub(super) struct Task<T, F> {
    run: F,
    outcome: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Task<T, F> {
    pub fn new(run: F, reply: oneshot::Sender<Result<T>>) -> Self {
        Self { run, outcome: None, reply }
    }
}

impl<T: Send, F: FnMut(&WriteTx) -> Result<T> + Send> Job for Task<T, F> {
    fn run(&mut self, tx: &WriteTx) -> bool {
        let outcome = (self.run)(tx);
        let accepted = outcome.is_ok();
        self.outcome = Some(outcome);
        accepted
    }

    fn fail(&mut self, error: Error) {
        self.outcome = Some(Err(error));
    }

    fn answer(self: Box<Self>) {
        // The client may have disconnected; the write is done anyway.
        let _ = self.reply.send(self.outcome.unwrap_or_else(|| Err(unavailable("never run"))));
    }
}

/// A job of the group that is being committed.
struct Member {
    job: Box<dyn Job>,
    /// It has failed and takes no part in further attempts.
    settled: bool,
}

enum Attempt {
    Committed(Vec<Change>),
    /// A member failed after it had written; the others must run again.
    Again,
    /// redb's state may be inconsistent; the others must run again on a new handle.
    AgainOnNewHandle,
    /// The disk failed. The changes may or may not be durable.
    Failed(Vec<Change>, String),
}

pub(super) struct Writer {
    pub shared: Arc<SharedState>,
    pub inbox: Receiver<Message>,
    /// Held until the database is closed.
    pub _lock: FileLock,
}

impl Writer {
    /// Runs until stopped or until all senders are gone.
    pub fn run(self) {
        while let Ok(message) = self.inbox.recv() {
            let (jobs, met, stop) = self.gather(message);
            let failed = !jobs.is_empty() && !self.commit(jobs);
            if stop {
                break;
            }
            if (failed || !self.is_usable(met)) && !self.reopen() {
                break;
            }
        }
        self.shared.close();
    }

    /// Whether the handle stays usable after reported errors. Damaged pages alone are no reason to reopen, because
    /// reopening does not repair them and would refuse reads of other pages meanwhile. But a panic may have poisoned a
    /// lock, so a transaction is tried.
    fn is_usable(&self, met: Health) -> bool {
        let usable = match met {
            Health::Sound => return true,
            Health::Damaged => self.shared.is_working(),
            Health::Broken => false,
        };
        if usable {
            self.shared.clear_suspicion();
        }
        usable
    }

    /// Collects the message and what waits behind it, up to a group.
    fn gather(&self, first: Message) -> (Vec<Box<dyn Job>>, Health, bool) {
        let (mut jobs, mut met, mut next) = (Vec::new(), Health::Sound, Some(first));
        while let Some(message) = next {
            match message {
                Message::Job(job) => jobs.push(job),
                Message::Met(health) => met = met.max(health),
                Message::Stop => return (jobs, met, true),
            }
            next = if jobs.len() < MAX_GROUP { self.inbox.try_recv().ok() } else { None };
        }
        (jobs, met, false)
    }

    /// Commits a group and sends the results; false if the disk failed.
    fn commit(&self, jobs: Vec<Box<dyn Job>>) -> bool {
        let mut group: Vec<_> = jobs.into_iter().map(|job| Member { job, settled: false }).collect();
        let mut handles = 0;
        let (changes, failure) = loop {
            let attempt = match self.shared.database() {
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
            self.shared.log_failed_commit(reason);
            self.shared.close_database();
            group.iter_mut().for_each(|member| member.job.fail(unavailable(reason.clone())));
        }
        // Announced before the acknowledgements, and after a failure too, because caches must drop these records.
        self.shared.announce(&changes, failure.is_some());
        group.into_iter().for_each(|member| member.job.answer());
        failure.is_none()
    }

    /// Reopens the database for the rest of a group.
    fn renew(&self, handles: usize) -> Result<(), String> {
        self.shared.close_database();
        if handles > MAX_REOPENS {
            return Err("many writes of a group met damaged pages".into());
        }
        match catch_panic(|| self.shared.reopen_database()) {
            Some(opened) => opened.map_err(|error| error.to_string()),
            None => Err("reopening the database panicked".into()),
        }
    }

    fn attempt(&self, db: &Database, group: &mut [Member]) -> Attempt {
        let tx = match WriteTx::begin(db, self.shared.pepper.clone()) {
            Ok(tx) => tx,
            Err(error) => return Attempt::Failed(Vec::new(), error.to_string()),
        };
        let mut writers = 0;
        for member in group.iter_mut().filter(|member| !member.settled) {
            let before = tx.writes();
            let accepted = run_catching_panic(member, &tx);
            let wrote = tx.writes() > before;
            match (tx.health(), accepted) {
                (Health::Broken, _) => {
                    return Attempt::Failed(Vec::new(), "the disk failed inside a transaction".into());
                }
                (Health::Damaged, _) => {
                    self.shared.log_damage();
                    // Overrides what the closure made of the error.
                    member.job.fail(unavailable("a write met damaged pages"));
                    return settle_on_new_handle(member, tx);
                }
                (Health::Sound, None) => return settle_on_new_handle(member, tx),
                (Health::Sound, Some(true)) => writers += u64::from(wrote),
                (Health::Sound, Some(false)) if !wrote => {}
                (Health::Sound, Some(false)) => {
                    member.settled = true;
                    return tx
                        .abort()
                        .map_or_else(|error| Attempt::Failed(Vec::new(), error.to_string()), |()| Attempt::Again);
                }
            }
        }
        self.finish(tx, writers)
    }

    fn finish(&self, tx: WriteTx, writers: u64) -> Attempt {
        let changes = tx.take_changes();
        let written = tx.writes() > 0;
        let done = if written { tx.commit() } else { tx.abort() };
        match done {
            Ok(()) => {
                self.shared.commits.fetch_add(u64::from(written), Relaxed);
                self.shared.writes.fetch_add(writers, Relaxed);
                self.shared.failed_commits.store(0, Relaxed);
                Attempt::Committed(changes)
            }
            Err(error) => Attempt::Failed(changes, error.to_string()),
        }
    }

    /// Reopens the file until it succeeds; refuses writes meanwhile. False if stopped.
    fn reopen(&self) -> bool {
        self.shared.close_database();
        let (mut pause, mut attempts) = (MIN_PAUSE, 0_u64);
        loop {
            attempts += 1;
            let should_log = attempts.is_power_of_two();
            match catch_panic(|| self.shared.reopen_database()) {
                Some(Ok(())) => return true,
                Some(Err(error)) if should_log => tracing::error!(%error, attempts, "cannot reopen the database yet"),
                None if should_log => tracing::error!(attempts, "reopening the database panicked"),
                _ => {}
            }
            if !self.refuse_for(pause) {
                return false;
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Waits for at most `pause` and refuses incoming writes; false if stopped.
    fn refuse_for(&self, pause: Duration) -> bool {
        loop {
            match self.inbox.recv_timeout(pause) {
                Ok(Message::Job(mut job)) => {
                    job.fail(unavailable("the database is being reopened"));
                    job.answer();
                    // New writes are refused before they are queued, so this drains the rest.
                }
                Ok(Message::Met(_)) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}

/// Settles a member and discards the transaction.
fn settle_on_new_handle(member: &mut Member, tx: WriteTx) -> Attempt {
    member.settled = true;
    tx.discard();
    Attempt::AgainOnNewHandle
}

/// `None` if the closure panicked; its member then has the error. Panics of redb are already errors here.
fn run_catching_panic(member: &mut Member, tx: &WriteTx) -> Option<bool> {
    let ran = catch_panic(|| member.job.run(tx));
    if ran.is_none() {
        member.job.fail(Error::internal("a write closure panicked"));
    }
    ran
}
