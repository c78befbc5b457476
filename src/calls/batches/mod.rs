//! Runs the batches: validates their input, runs their requests and ends them.
//!
//! One batch is validated at a time. The projects take turns, request by request; the batches of one project run one after
//! the other. A request goes through the same decoder, call and encoder as one that a client waits for, behind
//! [`RequestRunner`]. Interactive requests come first ([`admission`]).
//!
//! Batches are exempt from the rates, which keep clients from crowding out each other: requests of batches already give
//! way, so a rate would only make them fail. The budget is what the project may spend. A batch that exceeds it waits,
//! because its results would otherwise be thousands of equal errors.

mod admission;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use self::admission::Admission;
pub use self::requests::RequestRunner;
use self::requests::{EXPIRY_CHECK_INTERVAL, Outcome, Requests};
use crate::calls::background::stop_signal::{LoopStopper, StopSignal, stop_signal};
use crate::calls::background::{self, Attempt, Work};
use crate::clock_rng::ClockRng;
use crate::engine::Engine;
use crate::error::Result;
use crate::ids::{BatchId, ProjectId};
use crate::service::batches::{Batch, BatchRecord, BatchState, Batches};
use crate::service::usage::Meter;

/// Max projects whose batches run at once; bounds the memory for their inputs.
const MAX_PROJECTS: usize = 64;

/// Runs the batches of all projects. When it is stopped, running requests are given up; they begin again after the next start.
pub struct BatchLoop {
    batches: Batches,
    requests: Requests,
    stop: StopSignal,
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
        background::run(&self, &*self.requests.clock_rng, &self.stop).await;
    }

    /// Does the next step of a batch.
    async fn step(&self, batch: &Batch) -> Result<()> {
        let id = batch.id;
        match batch.record.state {
            BatchState::Validating => self.batches.validate(batch).await,
            BatchState::Cancelling => self.batches.finalize(id, BatchState::Cancelled, None).await,
            BatchState::Finalizing => {
                self.batches.end(batch).await?;
                let BatchRecord { project, ends_as, .. } = &batch.record;
                tracing::info!(batch = %id, %project, state = ?ends_as, "a batch has ended");
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

/// The steps of batches.
impl Work for BatchLoop {
    const NAME: &'static str = "batches";
    const RETRY_DELAY: Duration = Duration::from_secs(5);
    const LOOK_INTERVAL: Duration = EXPIRY_CHECK_INTERVAL;

    type Id = BatchId;
    type Piece = Batch;
    type Memo = ();

    fn changes(&self) -> watch::Receiver<()> {
        self.batches.changes()
    }

    async fn open(&self) -> Result<Vec<Batch>> {
        self.batches.open().await
    }

    fn key(batch: &Batch) -> (BatchId, ProjectId) {
        (batch.id, batch.record.project)
    }

    fn may_begin(&self, batch: &Batch, running: &[Batch]) -> bool {
        let mut same_step = running.iter().filter(|other| other.record.state == batch.record.state);
        match batch.record.state {
            BatchState::Validating => same_step.next().is_none(),
            BatchState::InProgress if !self.batches.is_expired(batch) => {
                same_step.clone().count() < MAX_PROJECTS
                    && same_step.all(|other| other.record.project != batch.record.project)
            }
            _ => true,
        }
    }

    fn keeps_place(&self) -> bool {
        true
    }

    async fn claim(&self, id: BatchId) -> Result<bool> {
        self.batches.claim(id).await
    }

    async fn release(&self, id: BatchId) {
        self.batches.release(id).await;
    }

    async fn attempt(&self, batch: Batch, (): &mut ()) -> Result<Attempt> {
        self.step(&batch).await.map(|()| Attempt::Done)
    }
}
