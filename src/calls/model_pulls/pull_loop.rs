//! Carries out the pulls, one at a time.
//!
//! A pull already uses several connections, and two pulls would compete for the same network and disk. Free space and
//! names are also simpler to check: no other pull of this server changes them in the meantime.
//!
//! It is not a loop of [`background`](crate::calls::background), because the queue is in memory: no other process takes from
//! it, no project has a turn, and a pull that has failed is not repeated.

use std::sync::Arc;

use super::errors::cancelled;
use super::job::Job;
use super::{Installer, ModelPulls};
use crate::calls::background::stop_signal::{LoopStopper, StopSignal, stop_signal};
use crate::calls::blocking::run_blocking;

/// Runs the queued pulls. Stopping it cancels the running pull and keeps the downloaded parts.
pub struct PullLoop {
    pulls: ModelPulls,
    stop: StopSignal,
}

impl PullLoop {
    pub fn new(pulls: ModelPulls) -> (Self, LoopStopper) {
        let (stopper, stop) = stop_signal();
        (Self { pulls, stop }, stopper)
    }

    /// Runs until it is stopped.
    pub async fn run(self) {
        // Without an installer, nothing is ever queued.
        let Some(installer) = self.pulls.0.installer.clone() else { return self.stop.wait().await };
        while !self.stop.is_set() {
            match self.pulls.0.queue.next() {
                Some(job) => self.pull(&installer, job).await,
                None => tokio::select! {
                    () = self.pulls.0.queued.notified() => {}
                    () = self.stop.wait() => {}
                },
            }
        }
        self.pulls.0.queue.close();
        while let Some(job) = self.pulls.0.queue.next() {
            job.cancel(None);
            self.pulls.end(&job, Err(cancelled(false))).await;
        }
    }

    async fn pull(&self, installer: &Installer, job: Arc<Job>) {
        tracing::info!(pull = %job.id, model = job.request.model(), "a pull begins");
        let (installer, own) = (installer.clone(), Arc::clone(&job));
        let mut installing = std::pin::pin!(run_blocking(move || installer.install(&own)));
        let outcome = tokio::select! {
            outcome = &mut installing => outcome,
            () = self.stop.wait() => {
                job.cancel(None);
                installing.await
            }
        };
        self.pulls.end(&job, outcome).await;
    }
}
