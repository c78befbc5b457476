//! What the writer thread receives: closures, with the channels for their results.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::oneshot;

use super::engine::{Health, unavailable};
use super::transaction::WriteTx;
use crate::error::{Error, Result};

pub(super) enum Message {
    Job(Box<dyn Job>),
    /// A reader met a failure or damage.
    Met(Health),
    Stop,
}

/// A closure with the channel for its result.
pub(super) trait Job: Send {
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
pub(super) struct Member {
    pub job: Box<dyn Job>,
    /// It has failed and takes no part in further attempts.
    pub settled: bool,
}

impl Member {
    pub fn group(jobs: Vec<Box<dyn Job>>) -> Vec<Self> {
        jobs.into_iter().map(|job| Self { job, settled: false }).collect()
    }

    /// Whether the closure returned `Ok`; `None` if it panicked, and then its outcome is an error. Panics of the engine
    /// are errors here.
    pub fn run(&mut self, tx: &WriteTx) -> Option<bool> {
        let ran = catch_unwind(AssertUnwindSafe(|| self.job.run(tx))).ok();
        if ran.is_none() {
            self.job.fail(Error::internal("a write closure panicked"));
        }
        ran
    }
}
