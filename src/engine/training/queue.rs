//! The trainings of a device: one is computed at a time, in the order of their requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::events::{EventSender, TrainingEvent, TrainingRun};
use super::options::{TrainingData, TrainingOptions};
use super::run::Training;
use super::trainable::TrainableModel;
use crate::engine::error::{Failure, Refused};
use crate::engine::runtime::Runtime;

/// Trainings that may wait. Each holds its base model in memory.
const MAX_WAITING: usize = 1;

pub struct TrainingQueue {
    runtime: Arc<Runtime>,
    waiting: Mutex<VecDeque<Training>>,
}

impl TrainingQueue {
    pub fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, waiting: Mutex::default() })
    }

    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// No code panics while it holds this lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Training>> {
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
        if waiting.len() >= MAX_WAITING {
            return Err(Refused::QueueFull { retry_after: std::time::Duration::from_secs(60) });
        }
        let (run, events, stop) = TrainingRun::new(&self.runtime);
        let clock = Arc::clone(&self.runtime.clock);
        waiting.push_back(Training { model, data, options, saved, events, stop, clock });
        drop(waiting);
        self.runtime.wake();
        Ok(run)
    }

    pub(super) fn next(&self) -> Option<Training> {
        self.lock().pop_front()
    }

    /// Drops trainings that were cancelled while they waited.
    pub(super) fn drop_cancelled(&self) {
        self.lock().retain(|training| !training.events.is_closed());
    }

    pub(super) fn fail_all(&self, failure: &Failure) {
        let waiting = std::mem::take(&mut *self.lock());
        waiting.iter().for_each(|training| fail(&training.events, failure.clone()));
    }
}

/// Tells the receiver that the training has failed.
pub(super) fn fail(events: &EventSender, failure: Failure) {
    events.send(TrainingEvent::Failed(failure));
}
