//! The writer thread: one transaction at a time, shared by all waiting writes (group commit).
//!
//! Writes are acknowledged after the database has confirmed their commit. If the connection is lost during a commit, the
//! writer connects again and asks whether it was carried out. Only if it gets no answer for a while, the group gets an
//! error although its changes may be durable.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::group::{Ran, run};
use super::known_rows::KeptRows;
use super::{Remote, RemoteError};
use crate::engine::{Failed, Health, unavailable};
use crate::error::{Code, Error};
use crate::shared_state::SharedState;
use crate::write_queue::{Gathered, Member, Message, gather, refuse_for};

/// Attempts to commit a group that conflicts, which take about five seconds.
const MAX_CONFLICTS: u32 = 30;
/// Attempts to learn whether a commit was carried out, which take about half a second if the database refuses connections.
const MAX_SETTLE_ATTEMPTS: u32 = 8;
/// Number of transactions that run alone after a conflict.
const TURNS: u32 = 50;
const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(200);
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// The availability of the database. Shared with the store's handles.
#[derive(Debug, Default)]
pub(crate) struct Availability {
    /// The writer has no connection.
    is_lost: AtomicBool,
    /// Another process has taken over.
    is_fenced: AtomicBool,
}

impl Availability {
    /// # Errors
    /// If the database cannot be written.
    pub fn check(&self) -> Result<(), Failed> {
        let reason = match (self.is_fenced(), self.is_lost.load(Acquire)) {
            (true, _) => "another process has taken over this node",
            (false, true) => "the database cannot be reached",
            (false, false) => return Ok(()),
        };
        Err(Failed { health: Health::Sound, reason: reason.to_owned() })
    }

    pub fn is_fenced(&self) -> bool {
        self.is_fenced.load(Acquire)
    }

    /// Another process has taken over, for good.
    pub fn fence(&self) {
        self.is_fenced.store(true, Release);
    }

    fn set(&self, available: bool) {
        self.is_lost.store(!available, Release);
    }
}

pub(crate) struct Writer<R> {
    remote: R,
    inbox: Receiver<Message>,
    shared: Arc<SharedState>,
    availability: Arc<Availability>,
    /// The number of next transactions that run while no other process writes.
    turns: u32,
    kept: KeptRows,
}

/// How a group ended.
enum Ended {
    Committed(Ran),
    /// It conflicted too often. None of its writes are durable.
    Conflicted,
    /// The database refused it. None of its writes are durable.
    Refused(String),
    /// The connection is lost. The last writes may be durable.
    Lost(String),
    /// The writer must stop.
    Fenced(String),
}

impl<R: Remote> Writer<R> {
    pub fn new(remote: R, inbox: Receiver<Message>, shared: Arc<SharedState>, availability: Arc<Availability>) -> Self {
        Self { remote, inbox, shared, availability, turns: 0, kept: KeptRows::default() }
    }

    /// Runs until stopped or until all senders are gone.
    pub fn run(mut self) {
        while let Ok(message) = self.inbox.recv() {
            // Readers have connections of their own, so what they met does not matter here.
            let Gathered { writes, stop, .. } = gather(&self.inbox, message);
            let goes_on = writes.is_empty() || self.commit(Member::group(writes));
            if stop || !goes_on {
                break;
            }
        }
        self.availability.set(false);
        self.remote.rollback();
        self.remote.close();
        self.shared.closing.store(true, Release);
    }

    /// Commits the members in one or more transactions, and sends the results. False if the writer must stop.
    fn commit(&mut self, mut waiting: Vec<Member>) -> bool {
        let mut size = waiting.len();
        while !waiting.is_empty() {
            size = size.min(waiting.len());
            let ended = self.commit_group(&mut waiting, &mut size);
            match ended {
                Ended::Committed(ran) => {
                    self.kept.keep(&ran.writes, self.shared.process);
                    self.shared.count_commit(!ran.writes.is_empty(), ran.writers);
                    // Announced before the acknowledgements, because caches must drop these records.
                    self.shared.watchers.announce(&ran.changes, false);
                    waiting.drain(..ran.members).for_each(|member| member.write.answer());
                }
                Ended::Conflicted => fail(waiting.drain(..size), conflicted),
                Ended::Refused(reason) => fail(waiting.drain(..size), || Error::internal(reason.clone())),
                Ended::Lost(reason) => {
                    self.kept.clear();
                    self.availability.set(false);
                    self.shared.watchers.announce(&[], true);
                    fail(waiting.drain(..), || unavailable(reason.clone()));
                    tracing::error!(reason, "the database is lost; connecting again");
                    return self.reconnect();
                }
                Ended::Fenced(reason) => {
                    self.availability.fence();
                    self.shared.watchers.announce(&[], true);
                    fail(waiting.drain(..), || unavailable(reason.clone()));
                    tracing::error!(reason, "this process must not write to the database any more");
                    return false;
                }
            }
        }
        true
    }

    /// Tries to commit the first `size` members until they are committed or fail. Lowers `size` after conflicts.
    fn commit_group(&mut self, members: &mut [Member], size: &mut usize) -> Ended {
        let (mut conflicts, mut losses) = (0, 0);
        loop {
            let attempted = self.attempt_in_turn(members.get_mut(..*size).unwrap_or_default());
            let error = match attempted {
                Ok(ran) => return Ended::Committed(ran),
                Err(error) => error,
            };
            match error {
                RemoteError::Conflict(reason) if conflicts == MAX_CONFLICTS => {
                    tracing::warn!(reason, conflicts, "a group of writes conflicted too often");
                    return Ended::Conflicted;
                }
                RemoteError::Conflict(_) => {
                    conflicts += 1;
                    self.turns = TURNS;
                    // A smaller group meets fewer others.
                    if conflicts > 2 {
                        *size = size.div_ceil(2);
                    }
                    std::thread::sleep(pause_after(conflicts));
                }
                // One closure may be the cause.
                RemoteError::Refused(_) if *size > 1 => *size = size.div_ceil(2),
                RemoteError::Refused(reason) => return Ended::Refused(reason),
                RemoteError::Fenced(reason) => return Ended::Fenced(reason),
                RemoteError::Unknown(reason) => return Ended::Lost(reason),
                RemoteError::Unavailable(reason) => {
                    losses += 1;
                    // Perhaps only the connection is lost.
                    match self.remote.reconnect() {
                        Ok(_) if losses == 1 => {}
                        Err(RemoteError::Fenced(reason)) => return Ended::Fenced(reason),
                        _ => return Ended::Lost(reason),
                    }
                }
            }
        }
    }

    /// As [`Self::attempt`], while no other process writes if there were conflicts lately.
    fn attempt_in_turn(&mut self, members: &mut [Member]) -> Result<Ran, RemoteError> {
        if self.turns > 0 {
            self.turns -= 1;
            self.remote.take_turn();
        }
        let attempted = self.attempt(members);
        if attempted.is_err() {
            self.remote.rollback();
        }
        attempted
    }

    /// Runs the members in one transaction and commits it.
    fn attempt(&mut self, members: &mut [Member]) -> Result<Ran, RemoteError> {
        let ran = run(&mut self.remote, members, &self.shared, &self.kept)?;
        match self.remote.commit(&ran.writes, &ran.changes) {
            Ok(()) => Ok(ran),
            Err(RemoteError::Unknown(reason)) if self.was_committed(&reason)? => Ok(ran),
            Err(RemoteError::Unknown(reason)) => Err(RemoteError::Conflict(reason)),
            Err(error) => Err(error),
        }
    }

    /// Finds out if a commit was carried out during which the connection was lost.
    fn was_committed(&mut self, reason: &str) -> Result<bool, RemoteError> {
        self.availability.set(false);
        for attempt in 1..=MAX_SETTLE_ATTEMPTS {
            match self.remote.reconnect() {
                Ok(settled) => {
                    self.availability.set(true);
                    return Ok(settled);
                }
                Err(RemoteError::Fenced(reason)) => return Err(RemoteError::Fenced(reason)),
                Err(_) if self.remote.is_unreachable() => break,
                Err(_) => std::thread::sleep(pause_after(attempt)),
            }
        }
        Err(RemoteError::Unknown(reason.to_owned()))
    }

    /// Connects until it succeeds; refuses writes meanwhile. False if stopped.
    fn reconnect(&mut self) -> bool {
        let (mut pause, mut attempts) = (MIN_PAUSE, 0_u64);
        loop {
            attempts += 1;
            match self.remote.reconnect() {
                Ok(_) => break,
                Err(RemoteError::Fenced(reason)) => {
                    self.availability.fence();
                    self.shared.watchers.announce(&[], true);
                    tracing::error!(reason, "this process must not write to the database any more");
                    return false;
                }
                Err(error) if attempts.is_power_of_two() => {
                    tracing::error!(%error, attempts, "cannot connect to the database yet");
                }
                Err(_) => {}
            }
            if !refuse_for(&self.inbox, pause, "the database cannot be reached") {
                return false;
            }
            pause = (pause * 2).min(MAX_RECONNECT_PAUSE);
        }
        // A commit whose outcome was unknown may have been carried out since the caches were filled again.
        self.shared.watchers.announce(&[], true);
        tracing::info!(attempts, "connected to the database again");
        self.availability.set(true);
        true
    }
}

fn fail(members: impl Iterator<Item = Member>, error: impl Fn() -> Error) {
    for mut member in members {
        member.write.fail(error());
        member.write.answer();
    }
}

/// The pause after a number of conflicts.
fn pause_after(conflicts: u32) -> Duration {
    if conflicts < 2 { Duration::ZERO } else { (MIN_PAUSE * (1 << conflicts.min(10))).min(MAX_PAUSE) }
}

fn conflicted() -> Error {
    Error::new(Code::Overloaded, "Too many writes change the same records. Try again shortly, with backoff.")
}
