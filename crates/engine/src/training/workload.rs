//! Training on the compute thread, at the lowest priority: while other workloads compute, it takes at most half as much time
//! as they do.
//!
//! That half is a credit. A fixed slice in each round would slow down a small model, whose steps take less time than
//! the slice, more than a large one. The credit also pays back turns that took longer than planned.

use std::sync::Arc;
use std::time::Duration;

use super::events::{EventSender, TrainingEvent};
use super::queue::{TrainingQueue, fail};
use super::run::{Ending, Training};
use crate::error::Failure;
use crate::kinds::QueuedWorkload;
use crate::runtime::Runtime;
use crate::runtime::catch_panic::catch_compute_panic;
use crate::runtime::turn_thread::TurnThread;
use crate::runtime::workload::Workload;
use outpost_models::ModelError;
use outpost_models::backend::Pause;

/// The longest turn where other workloads have something to do, and where they do not but a request for them may come.
const SLICE: Duration = Duration::from_millis(4);
const SLICE_ALONE: Duration = Duration::from_millis(20);
/// The shortest turn.
const MIN_SLICE: Duration = Duration::from_micros(500);
/// The share of the time that other workloads compute.
const SHARE: f64 = 0.5;

pub struct TrainingWorkload {
    queue: Arc<TrainingQueue>,
    runtime: Arc<Runtime>,
    /// Started with the first training.
    thread: Option<TurnThread>,
    /// The events of the training that runs.
    running: Option<EventSender>,
    /// When the last turn ended.
    paused_at: Duration,
    /// Seconds that it may compute while others do; negative after a turn that was too long.
    credit: f64,
}

impl Workload for TrainingWorkload {
    fn name(&self) -> &'static str {
        "training"
    }

    fn sweep(&mut self) {
        self.queue.drop_cancelled();
    }

    fn step(&mut self, busy: bool) -> bool {
        if self.thread.as_ref().is_none_or(|thread| !thread.is_busy()) {
            self.running = None;
            let Some(training) = self.queue.next() else { return false };
            self.begin(training);
        }
        // A cancelled training needs a turn to end; one whose events are not received waits.
        if self.running.as_ref().is_some_and(|events| !events.has_room()) {
            return false;
        }
        let now = self.runtime.clock.uptime();
        let slice = if busy { self.slice(now) } else { Some(SLICE_ALONE) };
        if let (Some(thread), Some(slice)) = (&self.thread, slice) {
            thread.run_until(now + slice);
            let took = self.runtime.clock.uptime().saturating_sub(now).as_secs_f64();
            self.credit = if busy { self.credit - took } else { 0. };
            self.paused_at = self.runtime.clock.uptime();
        }
        true
    }

    fn needs_polling(&self) -> bool {
        self.running.is_some()
    }

    fn fail(&mut self, failure: &Failure, running: bool) {
        self.queue.fail_all(failure);
        if running && let Some(events) = self.running.take() {
            // The thread is interrupted when it is dropped.
            self.thread = None;
            // Without room, the receiver sees that the events end.
            if events.has_room() {
                fail(&events, failure.clone());
            }
        }
    }

    /// The thread catches panics of its own: nothing of a training is on this one.
    fn recover(&mut self, _: &Failure) {}
}

impl QueuedWorkload for TrainingWorkload {
    type Queue = TrainingQueue;

    fn new(queue: Arc<TrainingQueue>) -> Self {
        let runtime = Arc::clone(queue.runtime());
        let paused_at = runtime.clock.uptime();
        Self { queue, runtime, thread: None, running: None, paused_at, credit: 0. }
    }
}

impl TrainingWorkload {
    /// The length of a turn beside other workloads; `None`: it is not its turn.
    fn slice(&mut self, now: Duration) -> Option<Duration> {
        let others = now.saturating_sub(self.paused_at).as_secs_f64();
        self.paused_at = now;
        self.credit = (self.credit + SHARE * others).min(SLICE.as_secs_f64());
        (self.credit >= MIN_SLICE.as_secs_f64()).then(|| Duration::from_secs_f64(self.credit))
    }

    fn begin(&mut self, training: Training) {
        if self.thread.is_none() {
            self.thread = TurnThread::spawn("training", Arc::clone(&self.runtime.clock)).ok();
        }
        let Some(thread) = &self.thread else {
            return fail(&training.events, Failure::Internal("no thread could be started".to_owned()));
        };
        self.running = Some(training.events.clone());
        let runtime = Arc::clone(&self.runtime);
        thread.start(Box::new(move |pause| run(training, &runtime, pause)));
    }
}

/// Trains on the thread. After a panic the training fails.
fn run(training: Training, runtime: &Runtime, pause: Pause) {
    let (events, id) = (training.events.clone(), training.model.id.clone());
    let event = match catch_compute_panic(|| training.run(Arc::clone(&pause))) {
        Ok(Ending::Complete) => TrainingEvent::Complete,
        Ok(Ending::Stopped) => TrainingEvent::Stopped,
        Err(ModelError::Interrupted) => return,
        Err(error) => {
            tracing::warn!(model = id, reason = %error, "a training has failed");
            TrainingEvent::Failed(runtime.model_failure(&id, &error))
        }
    };
    // If it is interrupted, nobody receives the event.
    let _ = events.send(event, &pause);
}
