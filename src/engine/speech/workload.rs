//! Speech on the compute thread: it lets the speech thread compute for some milliseconds in each turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::device_network::PartInput;
use super::job::SpeechJob;
use super::queue::SpeechQueue;
use super::request::SpokenPart;
use crate::engine::error::Failure;
use crate::engine::jobs::QueuedJob;
use crate::engine::runtime::Runtime;
use crate::engine::runtime::catch_panic::catch_compute_panic;
use crate::engine::runtime::turn_thread::TurnThread;
use crate::engine::runtime::workload::Workload;
use crate::models::ModelError;
use crate::models::backend::Pause;

/// How long the speech thread computes in a turn where other workloads have something to do, and where they do not but a
/// request for them may come.
const SLICE: Duration = Duration::from_millis(4);
const SLICE_ALONE: Duration = Duration::from_millis(20);

pub struct SpeechWorkload {
    queue: Arc<SpeechQueue>,
    runtime: Arc<Runtime>,
    /// Started with the first part.
    thread: Option<TurnThread>,
}

impl Workload for SpeechWorkload {
    fn name(&self) -> &'static str {
        "speech"
    }

    fn sweep(&mut self) {
        let (now, timeout) = (self.runtime.clock.uptime(), self.runtime.settings.client_timeout);
        let mut scheduler = self.queue.lock();
        scheduler.drop_cancelled();
        scheduler.drop_stalled(now, timeout);
    }

    /// Some milliseconds of a part.
    fn step(&mut self, busy: bool) -> bool {
        if self.thread.as_ref().is_none_or(|thread| !thread.is_busy()) {
            self.runtime.faults.point("speech.next_job");
            let Some(job) = self.queue.lock().next_job() else { return false };
            if let Err(job) = self.begin(job) {
                job.fail(Failure::Internal("no thread could be started".to_owned()));
                return true;
            }
        }
        if let Some(thread) = &self.thread {
            let slice = if busy { SLICE } else { SLICE_ALONE };
            thread.run_until(self.runtime.clock.uptime() + slice);
        }
        true
    }

    fn needs_polling(&self) -> bool {
        self.queue.lock().has_receivers()
    }

    fn fail(&mut self, failure: &Failure, running: bool) {
        self.queue.lock().fail_all(failure, running);
    }

    /// The speech thread catches panics of its own: nothing of a part is on this one.
    fn recover(&mut self, _: &Failure) {
        drop(self.queue.lock());
    }
}

impl SpeechWorkload {
    pub fn new(queue: Arc<SpeechQueue>) -> Self {
        let runtime = Arc::clone(queue.runtime());
        Self { queue, runtime, thread: None }
    }

    fn begin(&mut self, job: QueuedJob<SpeechJob>) -> Result<(), Box<QueuedJob<SpeechJob>>> {
        if self.thread.is_none() {
            self.thread = TurnThread::spawn("speech", Arc::clone(&self.runtime.clock)).ok();
        }
        let Some(thread) = &self.thread else { return Err(Box::new(job)) };
        let (queue, runtime) = (Arc::clone(&self.queue), Arc::clone(&self.runtime));
        thread.start(Box::new(move |pause| run(&queue, &runtime, job, pause)));
        Ok(())
    }
}

/// Speaks the job's next part, on the speech thread. After a panic the job fails.
fn run(queue: &SpeechQueue, runtime: &Arc<Runtime>, job: QueuedJob<SpeechJob>, pause: Pause) {
    let sender = job.sender.clone();
    if catch_unwind(AssertUnwindSafe(|| speak(queue, runtime, job, pause))).is_err() {
        tracing::error!("speaking a text panicked; its request fails");
        runtime.metrics.panic("speech");
        sender.send(Err(Failure::panicked()));
    }
}

fn speak(queue: &SpeechQueue, runtime: &Arc<Runtime>, queued: QueuedJob<SpeechJob>, pause: Pause) {
    runtime.faults.point("speech.work");
    let began = runtime.clock.uptime();
    let (receiver, aborting) = (queued.sender.clone(), Arc::clone(runtime));
    let stopped = move || receiver.is_closed() || aborting.is_aborting();
    let pause: Pause = Arc::new(move || if stopped() { Err(ModelError::Interrupted) } else { pause() });
    let job = &queued.job;
    let input = PartInput {
        tokens: job.tokens(),
        style: job.voice.style(job.tokens().len().saturating_sub(2)),
        speed: job.speed,
        seed: job.seed.wrapping_add(job.next as u64),
        pause,
        runtime,
    };
    match catch_compute_panic(|| job.model.network().speak(input)) {
        Ok(None) => queued.fail(Failure::OutOfMemory),
        Ok(Some(samples)) => {
            let seconds = samples.len() as f64 / f64::from(job.model.sample_rate());
            runtime.metrics.audio_spoken(job.model.id(), seconds);
            queued.sender.send(Ok(SpokenPart { samples }));
            let took = runtime.clock.uptime().saturating_sub(began).as_secs_f64();
            queue.lock().requeue(queued, took);
        }
        Err(ModelError::Interrupted) => queued.fail(Failure::ShuttingDown),
        Err(error) => {
            tracing::error!(model = job.model.id(), reason = %error, "a text could not be spoken");
            let failure = runtime.model_failure(job.model.id(), &error);
            queued.fail(failure);
        }
    }
}
