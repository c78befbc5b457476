//! Transcription on the compute thread: it lets the transcription thread compute for some milliseconds in each turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::batch::WindowBatch;
use super::queue::TranscriptionQueue;
use super::scheduler::WindowJob;
use crate::error::Failure;
use crate::kinds::{QueuedWorkload, RequestQueue};
use crate::runtime::Runtime;
use crate::runtime::turn_thread::TurnThread;
use crate::runtime::workload::Workload;
use outpost_models::ModelError;
use outpost_models::backend::Pause;

pub struct TranscriptionWorkload {
    queue: Arc<TranscriptionQueue>,
    runtime: Arc<Runtime>,
    /// Started with the first window.
    thread: Option<TurnThread>,
}

impl Workload for TranscriptionWorkload {
    fn name(&self) -> &'static str {
        "transcription"
    }

    fn sweep(&mut self) {
        self.queue.lock().drop_ended(self.runtime.clock.uptime());
    }

    /// Some milliseconds of a batch of windows.
    fn step(&mut self, busy: bool) -> bool {
        if self.thread.as_ref().is_none_or(|thread| !thread.is_busy()) {
            self.runtime.faults.point("transcription.next_window");
            let Some(job) = self.queue.lock().next_window(None) else { return false };
            let id = job.request_id;
            if self.begin(job).is_err() {
                self.queue.lock().fail(id, Failure::Internal("no thread could be started".to_owned()));
                return true;
            }
        }
        if let Some(thread) = &self.thread {
            thread.run_slice(busy);
        }
        true
    }

    fn needs_polling(&self) -> bool {
        self.queue.waiting() > 0
    }

    fn fail(&mut self, failure: &Failure, running: bool) {
        self.queue.lock().fail_all(failure, running);
    }

    /// The transcription thread catches panics of its own: nothing of a window is on this one.
    fn recover(&mut self, _: &Failure) {
        drop(self.queue.lock());
    }
}

impl QueuedWorkload for TranscriptionWorkload {
    type Queue = TranscriptionQueue;

    fn new(queue: Arc<TranscriptionQueue>) -> Self {
        let runtime = Arc::clone(queue.runtime());
        Self { queue, runtime, thread: None }
    }
}

impl TranscriptionWorkload {
    fn begin(&mut self, job: WindowJob) -> std::io::Result<()> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => TurnThread::spawn("transcription", Arc::clone(&self.runtime.clock))?,
        };
        let (queue, runtime) = (Arc::clone(&self.queue), Arc::clone(&self.runtime));
        thread.start(Box::new(move |pause| run(&queue, &runtime, job, pause)));
        self.thread = Some(thread);
        Ok(())
    }
}

/// Transcribes windows until none is left, on the transcription thread. After a panic, the requests of the batch fail.
fn run(queue: &Arc<TranscriptionQueue>, runtime: &Arc<Runtime>, job: WindowJob, pause: Pause) {
    let aborting = Arc::clone(runtime);
    let pause: Pause = Arc::new(move || if aborting.is_aborting() { Err(ModelError::Interrupted) } else { pause() });
    let mut batch = WindowBatch::new(Arc::clone(queue), Arc::clone(&job.model));
    let outcome = catch_unwind(AssertUnwindSafe(|| batch.run(job, pause)));
    let failure = match outcome {
        Ok(Ok(())) => return,
        Ok(Err(failure)) => failure,
        Err(_) => {
            tracing::error!("a transcription panicked; its requests fail");
            runtime.metrics.panic("transcription");
            Failure::panicked()
        }
    };
    let mut scheduler = queue.lock();
    batch.request_ids().for_each(|id| scheduler.fail(id, failure.clone()));
}
