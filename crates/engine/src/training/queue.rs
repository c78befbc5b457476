//! The trainings of a device: one is computed, and one may wait for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::events::{EventSender, TrainingEvent, TrainingRun};
use super::options::{TrainingData, TrainingOptions};
use super::run::Training;
use super::trainable::TrainableModel;
use crate::error::{Failure, Refused};
use crate::kinds::RequestQueue;
use crate::runtime::Runtime;

pub struct TrainingQueue {
    runtime: Arc<Runtime>,
    /// At most one, because it holds its base model in memory.
    waiting: Mutex<Option<Training>>,
}

impl RequestQueue for TrainingQueue {
    fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, waiting: Mutex::default() })
    }
}

impl TrainingQueue {
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// No code panics while it holds this lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, Option<Training>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the training or refuses it, at once.
    pub fn push(
        &self,
        model: TrainableModel,
        data: TrainingData,
        options: TrainingOptions,
        saved: Option<Vec<u8>>,
    ) -> Result<TrainingRun, Refused> {
        if self.runtime.is_shutting_down() {
            return Err(Refused::ShuttingDown);
        }
        let mut waiting = self.lock();
        if waiting.is_some() {
            return Err(Refused::QueueFull { retry_after: std::time::Duration::from_secs(60) });
        }
        let (run, events, stop) = TrainingRun::new(&self.runtime);
        let clock = Arc::clone(&self.runtime.clock);
        *waiting = Some(Training { model, data, options, saved, events, stop, clock });
        drop(waiting);
        self.runtime.wake();
        Ok(run)
    }

    pub(super) fn next(&self) -> Option<Training> {
        self.lock().take()
    }

    /// Drops a training that was cancelled while it waited.
    pub(super) fn drop_cancelled(&self) {
        self.lock().take_if(|training| training.events.is_closed());
    }

    pub(super) fn fail_all(&self, failure: &Failure) {
        if let Some(training) = self.next() {
            fail(&training.events, failure.clone());
        }
    }
}

/// Tells the receiver that the training has failed.
pub(super) fn fail(events: &EventSender, failure: Failure) {
    events.send_now(TrainingEvent::Failed(failure));
}
