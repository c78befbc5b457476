//! Jobs on the compute thread: it lets the thread of the jobs compute for some milliseconds in each turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::job::ComputedJob;
use super::queue::JobQueue;
use super::scheduler::QueuedJob;
use crate::error::Failure;
use crate::kinds::QueuedWorkload;
use crate::runtime::Runtime;
use crate::runtime::catch_panic::catch_compute_panic;
use crate::runtime::turn_thread::TurnThread;
use crate::runtime::workload::Workload;
use outpost_models::ModelError;
use outpost_models::backend::Pause;

pub struct JobWorkload<J: ComputedJob> {
    queue: Arc<JobQueue<J>>,
    runtime: Arc<Runtime>,
    /// Started with the first job.
    thread: Option<TurnThread>,
}

impl<J: ComputedJob> Workload for JobWorkload<J> {
    fn name(&self) -> &'static str {
        J::WORKLOAD
    }

    fn sweep(&mut self) {
        let (now, timeout) = (self.runtime.clock.uptime(), self.runtime.settings.client_timeout);
        let mut scheduler = self.queue.lock();
        scheduler.drop_cancelled();
        scheduler.drop_stalled(now, timeout);
    }

    /// Some milliseconds of a result.
    fn step(&mut self, busy: bool) -> bool {
        if self.thread.as_ref().is_none_or(|thread| !thread.is_busy()) {
            self.runtime.faults.point(J::FAULT_POINTS[0]);
            let Some(job) = self.queue.lock().next_job() else { return false };
            if let Err(job) = self.begin(job) {
                job.fail(Failure::Internal("no thread could be started".to_owned()));
                return true;
            }
        }
        if let Some(thread) = &self.thread {
            thread.run_slice(busy);
        }
        true
    }

    fn needs_polling(&self) -> bool {
        self.queue.lock().has_receivers()
    }

    fn fail(&mut self, failure: &Failure, running: bool) {
        self.queue.lock().fail_all(failure, running);
    }

    /// The thread of the jobs catches panics of its own: nothing of a job is on this one.
    fn recover(&mut self, _: &Failure) {
        drop(self.queue.lock());
    }
}

impl<J: ComputedJob> QueuedWorkload for JobWorkload<J> {
    type Queue = JobQueue<J>;

    fn new(queue: Arc<JobQueue<J>>) -> Self {
        let runtime = Arc::clone(queue.runtime());
        Self { queue, runtime, thread: None }
    }
}

impl<J: ComputedJob> JobWorkload<J> {
    fn begin(&mut self, job: QueuedJob<J>) -> Result<(), Box<QueuedJob<J>>> {
        if self.thread.is_none() {
            self.thread = TurnThread::spawn(J::WORKLOAD, Arc::clone(&self.runtime.clock)).ok();
        }
        let Some(thread) = &self.thread else { return Err(Box::new(job)) };
        let (queue, runtime) = (Arc::clone(&self.queue), Arc::clone(&self.runtime));
        thread.start(Box::new(move |pause| run(&queue, &runtime, job, pause)));
        Ok(())
    }
}

/// Computes the job's next result, on the thread of the jobs. After a panic the job fails.
fn run<J: ComputedJob>(queue: &JobQueue<J>, runtime: &Arc<Runtime>, job: QueuedJob<J>, pause: Pause) {
    let sender = job.sender.clone();
    if catch_unwind(AssertUnwindSafe(|| compute(queue, runtime, job, pause))).is_err() {
        tracing::error!(workload = J::WORKLOAD, "a computation panicked; its request fails");
        runtime.metrics.panic(J::WORKLOAD);
        sender.send(Err(Failure::panicked()));
    }
}

fn compute<J: ComputedJob>(queue: &JobQueue<J>, runtime: &Arc<Runtime>, mut queued: QueuedJob<J>, pause: Pause) {
    runtime.faults.point(J::FAULT_POINTS[1]);
    let began = runtime.clock.uptime();
    let (receiver, aborting) = (queued.sender.clone(), Arc::clone(runtime));
    let stopped = move || receiver.is_closed() || aborting.is_aborting();
    let pause: Pause = Arc::new(move || if stopped() { Err(ModelError::Interrupted) } else { pause() });
    let QueuedJob { job, sender, .. } = &mut queued;
    match catch_compute_panic(|| job.compute(sender, pause, runtime)) {
        Ok(None) => queued.fail(Failure::OutOfMemory),
        Ok(Some(result)) => {
            queued.job.record(&result, runtime);
            queued.sender.send(Ok(result));
            let took = runtime.clock.uptime().saturating_sub(began).as_secs_f64();
            let mut scheduler = queue.lock();
            runtime.faults.point(J::FAULT_POINTS[2]);
            scheduler.requeue(queued, took);
        }
        Err(ModelError::Interrupted) => queued.fail(Failure::ShuttingDown),
        Err(error) => {
            let id = queued.job.model_id();
            tracing::error!(workload = J::WORKLOAD, model = id, reason = %error, "a request failed");
            let failure = runtime.model_failure(id, &error);
            queued.fail(failure);
        }
    }
}
