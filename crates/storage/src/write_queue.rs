//! Jobs of the writer thread: closures, with the channels for their results. Those that wait together are committed
//! together (group commit).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::engine::{Health, unavailable};
use crate::error::{Error, Result};
use crate::transaction::WriteTx;

/// Max closures per transaction; bounds the wait of the first of them.
const MAX_GROUP: usize = 256;

pub(super) enum Message {
    Write(Box<dyn QueuedWrite>),
    /// A reader met a failure or damage.
    Met(Health),
    Stop,
}

/// The jobs that wait for the writer.
pub(super) struct Gathered {
    pub writes: Vec<Box<dyn QueuedWrite>>,
    /// The worst that readers met.
    pub met: Health,
    /// The writer must stop after these writes.
    pub stop: bool,
}

/// Collects the message and what waits behind it, up to a group.
pub(super) fn gather(inbox: &Receiver<Message>, first: Message) -> Gathered {
    let (mut gathered, mut next) = (Gathered { writes: Vec::new(), met: Health::Sound, stop: false }, Some(first));
    while let Some(message) = next {
        match message {
            Message::Write(write) => gathered.writes.push(write),
            Message::Met(health) => gathered.met = gathered.met.max(health),
            Message::Stop => {
                gathered.stop = true;
                break;
            }
        }
        next = if gathered.writes.len() < MAX_GROUP { inbox.try_recv().ok() } else { None };
    }
    gathered
}

/// A closure with the channel for its result.
pub(super) trait QueuedWrite: Send {
    /// Runs the closure, stores its outcome, and returns whether it was `Ok`.
    fn run(&mut self, tx: &WriteTx) -> bool;
    /// Replaces the outcome.
    fn fail(&mut self, error: Error);
    /// Sends the outcome.
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

impl<T: Send, F: FnMut(&WriteTx) -> Result<T> + Send> QueuedWrite for Task<T, F> {
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

/// A write of the group that is being committed.
pub(super) struct Member {
    pub write: Box<dyn QueuedWrite>,
    /// It has failed and takes no part in further attempts.
    pub settled: bool,
}

impl Member {
    pub fn group(writes: Vec<Box<dyn QueuedWrite>>) -> Vec<Self> {
        writes.into_iter().map(|write| Self { write, settled: false }).collect()
    }

    /// Whether the closure returned `Ok`; `None` if it panicked, and then its outcome is an error. Panics of the engine
    /// are errors here.
    pub fn run(&mut self, tx: &WriteTx) -> Option<bool> {
        let ran = catch_unwind(AssertUnwindSafe(|| self.write.run(tx))).ok();
        if ran.is_none() {
            self.write.fail(Error::internal("a write closure panicked"));
        }
        ran
    }
}

/// Refuses incoming writes for `pause`; false if the writer must stop.
pub(super) fn refuse_for(inbox: &Receiver<Message>, pause: Duration, reason: &str) -> bool {
    loop {
        match inbox.recv_timeout(pause) {
            Ok(Message::Write(mut write)) => {
                write.fail(unavailable(reason));
                write.answer();
                // New writes are refused before they are queued, so this drains the rest.
            }
            Ok(Message::Met(_)) => {}
            Err(RecvTimeoutError::Timeout) => return true,
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}
