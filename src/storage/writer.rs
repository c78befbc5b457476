//! The writer: one thread, one transaction at a time, shared by all who wait (group commit).
//!
//! Each closure runs inside the group's transaction. One that refuses before it wrote costs
//! nothing. One that refuses after it wrote is settled, the transaction is thrown away and the
//! others run again: they see no trace of it. One that met damaged pages, or panics, is settled
//! as well, and the others run again on a new handle: redb's own state may be half-way, and a
//! commit on the old handle can end the process. Nobody is answered before the commit is on disk.
//! When the disk fails, the whole group is told so and the database is reopened.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use redb::Database;
use tokio::sync::oneshot;

use super::database::{Health, catch_panic, unavailable};
use super::store::Shared;
use super::transaction::{Change, WriteTx};
use crate::error::{Error, Result};
use crate::file_lock::FileLock;

/// More closures than this never share a transaction: it bounds the wait of the first of them.
const MAX_GROUP: usize = 256;
/// A group that needs more new handles than this is refused: it bounds the wait of the others.
const MAX_REOPENS: usize = 8;
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(2);

pub(super) enum Message {
    Job(Box<dyn Job>),
    /// A reader met a disk error, or damage.
    Met(Health),
    Stop,
}

/// A closure with the place where its answer goes.
pub(super) trait Job: Send {
    /// Runs the closure, keeps its outcome, and says whether it was `Ok`.
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
        // The client may have left; what it asked for is done all the same.
        let _ = self.reply.send(self.outcome.unwrap_or_else(|| Err(unavailable("never run"))));
    }
}

/// A job of the group that is being committed.
struct Member {
    job: Box<dyn Job>,
    /// It has its error and takes no part in further attempts.
    settled: bool,
}

enum Attempt {
    Committed(Vec<Change>),
    /// A member was settled after it had written; the rest must run again.
    Again,
    /// A member was settled because redb's state may be half-way; the rest must run again on a new handle.
    AgainOnNewHandle,
    /// The disk failed. What was to change may or may not be durable.
    Failed(Vec<Change>, String),
}

pub(super) struct Writer {
    pub shared: Arc<Shared>,
    pub inbox: Receiver<Message>,
    /// Held until the database is closed.
    pub _lock: FileLock,
}

impl Writer {
    /// Serves until told to stop or until nobody is left who could ask.
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

    /// Whether the handle can stay after what readers met. Damaged pages alone are no reason to reopen: they
    /// would be as damaged then, and whoever reads other pages would be refused meanwhile. But a panic may
    /// have left a lock poisoned, so a transaction is tried.
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

    /// The message and what waits behind it, up to a group.
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

    /// Commits a group and answers it; false if the disk failed.
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
        // Before the answers, and after a failure too: who cached a record must drop it now.
        self.shared.announce(&changes, failure.is_some());
        group.into_iter().for_each(|member| member.job.answer());
        failure.is_none()
    }

    /// Closes the database and opens it again for the rest of a group.
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
                    // Whatever the closure made of the error.
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

    /// Drops every handle and opens the file again, as often as it takes; who asks meanwhile is
    /// refused at once. False if told to stop.
    fn reopen(&self) -> bool {
        self.shared.close_database();
        let (mut pause, mut attempts) = (MIN_PAUSE, 0_u64);
        loop {
            attempts += 1;
            let told = attempts.is_power_of_two();
            match catch_panic(|| self.shared.reopen_database()) {
                Some(Ok(())) => return true,
                Some(Err(error)) if told => tracing::error!(%error, attempts, "cannot reopen the database yet"),
                None if told => tracing::error!(attempts, "reopening the database panicked"),
                _ => {}
            }
            if !self.refuse_for(pause) {
                return false;
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Waits, at most for `pause`, and refuses what comes in; false if told to stop.
    fn refuse_for(&self, pause: Duration) -> bool {
        loop {
            match self.inbox.recv_timeout(pause) {
                Ok(Message::Job(mut job)) => {
                    job.fail(unavailable("the database is being reopened"));
                    job.answer();
                    // New writes are refused before they queue, so this drains what was left.
                }
                Ok(Message::Met(_)) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}

/// Takes a member out of its group and throws the transaction away.
fn settle_on_new_handle(member: &mut Member, tx: WriteTx) -> Attempt {
    member.settled = true;
    tx.discard();
    Attempt::AgainOnNewHandle
}

/// `None` if the closure panicked; its member then carries the error. redb's panics do not get here: they are
/// errors already.
fn run_catching_panic(member: &mut Member, tx: &WriteTx) -> Option<bool> {
    let ran = catch_panic(|| member.job.run(tx));
    if ran.is_none() {
        member.job.fail(Error::internal("a write closure panicked"));
    }
    ran
}
