//! Runs the batches: validates their input, runs their requests and ends them.
//!
//! The projects take turns, request by request; the batches of one project run one after the other. A request goes through
//! the same decoder, call and encoder as one that a client waits for, behind [`RequestRunner`]. Interactive requests come first
//! ([`admission`]).
//!
//! If nodes share the store, each loop claims a batch before its next step, and gives it up afterwards.
//!
//! Batches are exempt from the rates, which keep clients from crowding out each other: requests of batches already give
//! way, so a rate would only make them fail. The budget is what the project may spend. A batch that exceeds it waits,
//! because its results would otherwise be thousands of equal errors.

mod admission;
mod requests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use self::admission::Admission;
pub use self::requests::RequestRunner;
use self::requests::{EXPIRY_CHECK_INTERVAL, Outcome, Requests};
use super::background::stop_signal::{LoopStopper, StopSignal, stop_signal};
use super::background::{self, Work};
use crate::clock_rng::ClockRng;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::ids::{BatchId, ProjectId};
use crate::service::batches::{Batch, BatchState, Batches};
use crate::service::usage::Meter;

/// The time until it tries again after an error.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The time between two looks if there is none.
const IDLE_WAIT: Duration = Duration::from_secs(3600);
/// Max projects whose batches run at once; bounds the memory for their inputs.
const MAX_PROJECTS: usize = 64;

/// Runs the batches of all projects. When it is stopped, running requests are given up; they begin again after the next start.
pub struct BatchLoop {
    batches: Batches,
    requests: Requests,
    stop: StopSignal,
}

/// The steps of batches that run now.
#[derive(Default)]
pub(super) struct Running {
    steps: HashSet<BatchId>,
    /// The batch of each project whose requests run.
    projects: HashMap<ProjectId, BatchId>,
    /// When requests of each project last began to run, as a count.
    turns: HashMap<ProjectId, u64>,
}

impl BatchLoop {
    pub fn new(
        engine: Engine,
        batches: Batches,
        meter: Meter,
        clock_rng: Arc<dyn ClockRng>,
        runner: Box<dyn RequestRunner>,
    ) -> (Self, LoopStopper) {
        let (stopper, stop) = stop_signal();
        let admission = Admission::new(engine, meter.clone());
        let requests = Requests { batches: batches.clone(), meter, clock_rng, runner, admission, stop: stop.clone() };
        (Self { batches, requests, stop }, stopper)
    }

    /// Runs until it is stopped.
    pub async fn run(self) {
        tokio::join!(self.validate_all(), background::run(&self, &self.stop));
    }

    /// Validates one batch after the other, the oldest first.
    async fn validate_all(&self) {
        let mut changes = self.batches.changes();
        while !self.stop.is_set() {
            changes.mark_unchanged();
            let wait = match self.validate_next().await {
                Ok(true) => continue,
                Ok(false) => IDLE_WAIT,
                Err(error) => {
                    tracing::warn!(%error, "a batch cannot be validated now");
                    RETRY_DELAY
                }
            };
            tokio::select! {
                _ = changes.changed() => {}
                () = self.stop.wait() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn validate_next(&self) -> Result<bool> {
        let open = self.batches.open().await?;
        let Some(batch) = open.iter().find(|batch| batch.state == BatchState::Validating) else { return Ok(false) };
        self.with_claim(batch, self.batches.validate(batch)).await?;
        Ok(true)
    }

    /// Does a step of a batch, unless another process does it.
    async fn with_claim(&self, batch: &Batch, step: impl Future<Output = Result<()>>) -> Result<()> {
        let (claim, release) = (self.batches.claim(batch.id), self.batches.release(batch.id));
        background::with_claim(batch.id, claim, step, release).await.map(drop)
    }

    async fn try_step(&self, batch: &Batch) -> Result<()> {
        let id = batch.id;
        match batch.state {
            BatchState::Validating => Ok(()),
            BatchState::Cancelling => self.batches.finalize(id, BatchState::Cancelled, None).await,
            BatchState::Finalizing => {
                self.batches.end(batch).await?;
                tracing::info!(batch = %id, project = %batch.project, state = ?batch.ends_as, "a batch has ended");
                Ok(())
            }
            BatchState::InProgress if self.batches.is_expired(batch) => {
                self.batches.finalize(id, BatchState::Expired, None).await
            }
            BatchState::InProgress => match self.requests.run(batch).await? {
                Outcome::Complete => self.batches.finalize(id, BatchState::Completed, None).await,
                Outcome::Expired => self.batches.finalize(id, BatchState::Expired, None).await,
                Outcome::InputDeleted => {
                    self.batches.finalize(id, BatchState::Failed, Some(Batches::input_deleted())).await
                }
                Outcome::Interrupted => Ok(()),
            },
            _ => self.batches.remove_results(id).await,
        }
    }
}

/// The next steps of batches that are validated.
impl Work for BatchLoop {
    type Open = Batch;
    type Next = Batch;
    type Outcome = Batch;
    type Schedule = Running;

    fn changes(&self) -> watch::Receiver<()> {
        self.batches.changes()
    }

    async fn open(&self) -> Result<Vec<Batch>> {
        self.batches.open().await
    }

    fn begin(&self, running: &mut Running, open: Vec<Batch>) -> (Vec<Batch>, Duration) {
        let next = running.begin(&open, |batch| self.batches.is_expired(batch));
        (next, if open.is_empty() { IDLE_WAIT } else { EXPIRY_CHECK_INTERVAL })
    }

    async fn attempt(&self, batch: Batch) -> Batch {
        if let Err(error) = self.with_claim(&batch, self.try_step(&batch)).await {
            tracing::warn!(batch = %batch.id, %error, "a batch cannot go on now");
            tokio::select! {
                () = self.stop.wait() => {}
                () = tokio::time::sleep(RETRY_DELAY) => {}
            }
        }
        batch
    }

    fn end(&self, running: &mut Running, batch: Batch) {
        running.end(&batch);
    }

    fn unreadable(&self, error: &Error) -> Duration {
        tracing::warn!(%error, "the batches cannot be read");
        RETRY_DELAY
    }
}

impl Running {
    /// The batches whose next step begins now. Of each project, one at a time runs requests; the others only end.
    fn begin(&mut self, open: &[Batch], is_expired: impl Fn(&Batch) -> bool) -> Vec<Batch> {
        let turn = |batch: &&Batch| (self.turns.get(&batch.project).copied().unwrap_or(0), batch.id);
        let mut order: Vec<&Batch> = open.iter().filter(|batch| !self.steps.contains(&batch.id)).collect();
        order.sort_by_key(turn);
        order.retain(|batch| match batch.state {
            BatchState::Validating => false,
            BatchState::InProgress => is_expired(batch) || self.take_turn(batch),
            _ => true,
        });
        self.steps.extend(order.iter().map(|batch| batch.id));
        order.into_iter().cloned().collect()
    }

    /// Whether the requests of a batch may run now.
    fn take_turn(&mut self, batch: &Batch) -> bool {
        let is_free = self.projects.len() < MAX_PROJECTS && !self.projects.contains_key(&batch.project);
        if is_free {
            self.projects.insert(batch.project, batch.id);
            let turn = self.turns.values().max().copied().unwrap_or(0) + 1;
            self.turns.insert(batch.project, turn);
        }
        is_free
    }

    fn end(&mut self, batch: &Batch) {
        self.steps.remove(&batch.id);
        if self.projects.get(&batch.project) == Some(&batch.id) {
            self.projects.remove(&batch.project);
        }
    }
}
