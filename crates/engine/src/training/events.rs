//! Events of a running training.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::discovery::AdapterFiles;
use crate::error::Failure;
use crate::runtime::Runtime;
use outpost_models::ModelError;
use outpost_models::backend::Pause;

/// Max events that wait for the receiver. The training pauses when there are more.
const CAPACITY: usize = 2;

/// Loss and accuracy of a step or of a validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Supervised: the mean of the targets' negated log probabilities. Preferences: the loss of DPO.
    pub loss: f32,
    /// The share of targets that were the most likely token, or of pairs whose chosen text has the higher reward.
    pub accuracy: f32,
}

/// A step of the optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Counted from one.
    pub step: u32,
    /// Steps of the whole training.
    pub steps: u32,
    pub measured: Measurement,
    pub learning_rate: f32,
    /// The norm of the gradient before it was clipped.
    pub gradient_norm: f32,
    /// Tokens of the step's examples.
    pub tokens: u64,
    /// Tokens that were trained on since the beginning.
    pub trained_tokens: u64,
    pub took: Duration,
}

/// The state of a training between two steps.
#[derive(Clone, Debug)]
pub struct TrainingCheckpoint {
    pub step: u32,
    /// Tokens that were trained on since the beginning.
    pub tokens: u64,
    /// The state from which [`Engine::train`](crate::Engine::train) can resume.
    pub state: Vec<u8>,
    /// The adapter, at the end of an epoch and of a training that was [ended](TrainingRun::finish).
    pub adapter: Option<AdapterFiles>,
}

#[derive(Clone, Debug)]
pub enum TrainingEvent {
    Step(StepReport),
    Validation {
        step: u32,
        measured: Measurement,
    },
    Checkpoint(Box<TrainingCheckpoint>),
    /// All steps were taken. Nothing follows.
    Complete,
    /// It was [stopped](TrainingRun::stop) or [ended](TrainingRun::finish) early, after a checkpoint. Nothing follows.
    Stopped,
    /// Nothing follows.
    Failed(Failure),
}

/// A training that the engine has accepted. Dropping it cancels the training.
#[derive(Debug)]
pub struct TrainingRun {
    events: mpsc::Receiver<TrainingEvent>,
    stop: Arc<StopSignal>,
    runtime: Arc<Runtime>,
}

/// The request to end a training before its last step.
#[derive(Debug, Default)]
pub struct StopSignal(AtomicU8);

impl StopSignal {
    const STOP: u8 = 1;
    const FINISH: u8 = 2;

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// True if the last checkpoint must contain the adapter.
    pub fn wants_adapter(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::FINISH
    }
}

/// The other end.
#[derive(Clone, Debug)]
pub struct EventSender(mpsc::Sender<TrainingEvent>);

impl TrainingRun {
    /// A run, and what its training has of it.
    pub(super) fn new(runtime: &Arc<Runtime>) -> (Self, EventSender, Arc<StopSignal>) {
        let (sender, events) = mpsc::channel(CAPACITY);
        let stop = Arc::new(StopSignal::default());
        (Self { events, stop: Arc::clone(&stop), runtime: Arc::clone(runtime) }, EventSender(sender), stop)
    }

    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<TrainingEvent> {
        let event = self.events.recv().await;
        // The training may have waited for room.
        self.runtime.wake();
        event
    }

    /// Asks the training to end after the step that it computes, with a checkpoint.
    pub fn stop(&self) {
        self.stop.0.store(StopSignal::STOP, Ordering::Relaxed);
    }

    /// Like [`Self::stop`], for a training that will not be resumed: the checkpoint has the adapter.
    pub fn finish(&self) {
        self.stop.0.store(StopSignal::FINISH, Ordering::Relaxed);
    }
}

impl Drop for TrainingRun {
    fn drop(&mut self) {
        self.events.close();
        self.runtime.wake();
    }
}

impl EventSender {
    /// True if another event can be sent without waiting.
    pub fn has_room(&self) -> bool {
        self.0.capacity() > 0 || self.0.is_closed()
    }

    /// True once the training was cancelled.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Waits until there is room for the event, and sends it.
    ///
    /// # Errors
    /// What `pause` returns.
    pub fn send(&self, event: TrainingEvent, pause: &Pause) -> Result<(), ModelError> {
        while !self.has_room() {
            pause()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.send_now(event);
        Ok(())
    }

    /// Sends an event for which there is room.
    pub fn send_now(&self, event: TrainingEvent) {
        if self.0.try_send(event).is_err() && !self.is_closed() {
            tracing::error!("an event of a training is lost");
        }
    }
}
