//! Decides when a request of a batch may begin, so that clients that wait come first.
//!
//! While an interactive request waits for the engine, none begins. While one runs, one request of a batch runs at a time.
//! Otherwise up to [`MAX_RUNNING`] run, which the engine computes together.
//!
//! Requests of batches wait outside the engine until it has room, so the engine needs no second priority.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::service::usage::Meter;

/// Max requests of batches that run at once, of all projects.
const MAX_RUNNING: usize = 16;
/// The time between two looks at the engine.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Admits requests of batches, in the order in which they ask.
pub struct Admission {
    engine: Engine,
    meter: Meter,
    slots: Arc<Semaphore>,
    running: Arc<AtomicUsize>,
}

/// The right to run a request, given up on drop.
pub struct Slot {
    running: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    pub fn new(engine: Engine, meter: Meter) -> Self {
        Self { engine, meter, slots: Arc::new(Semaphore::new(MAX_RUNNING)), running: Arc::default() }
    }

    /// Waits until a request may begin.
    pub async fn acquire(&self) -> Result<Slot> {
        let permit = Arc::clone(&self.slots).acquire_owned().await.map_err(Error::internal)?;
        while !self.may_begin() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.running.fetch_add(1, Ordering::Relaxed);
        Ok(Slot { running: Arc::clone(&self.running), _permit: permit })
    }

    fn may_begin(&self) -> bool {
        let is_alone = self.meter.running_outside_batches() == 0 || self.running.load(Ordering::Relaxed) == 0;
        is_alone && self.engine.load().queued == 0
    }
}
