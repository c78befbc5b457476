//! Image generation on the compute thread: it lets the image thread compute for some milliseconds in each turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::device_pipeline::ImageInput;
use super::job::ImageJob;
use super::queue::ImageQueue;
use super::request::ImageEvent;
use crate::engine::error::Failure;
use crate::engine::jobs::QueuedJob;
use crate::engine::runtime::Runtime;
use crate::engine::runtime::catch_panic::catch_compute_panic;
use crate::engine::runtime::memory_budget::Lease;
use crate::engine::runtime::turn_thread::TurnThread;
use crate::engine::runtime::workload::Workload;
use crate::models::ModelError;
use crate::models::backend::Pause;

/// How long the image thread computes in a turn where other workloads have something to do, and where they do not but
/// a request for them may come.
const SLICE: Duration = Duration::from_millis(4);
const SLICE_ALONE: Duration = Duration::from_millis(20);

pub struct ImageWorkload {
    queue: Arc<ImageQueue>,
    runtime: Arc<Runtime>,
    /// Started with the first image.
    thread: Option<TurnThread>,
}

impl Workload for ImageWorkload {
    fn name(&self) -> &'static str {
        "image"
    }

    fn sweep(&mut self) {
        let (now, timeout) = (self.runtime.clock.uptime(), self.runtime.settings.client_timeout);
        let mut scheduler = self.queue.lock();
        scheduler.drop_cancelled();
        scheduler.drop_stalled(now, timeout);
    }

    /// Some milliseconds of an image.
    fn step(&mut self, busy: bool) -> bool {
        if self.thread.as_ref().is_none_or(|thread| !thread.is_busy()) {
            self.runtime.faults.point("image.next_job");
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

    /// The image thread catches panics of its own: nothing of an image is on this one.
    fn recover(&mut self, _: &Failure) {
        drop(self.queue.lock());
    }
}

impl ImageWorkload {
    pub fn new(queue: Arc<ImageQueue>) -> Self {
        let runtime = Arc::clone(queue.runtime());
        Self { queue, runtime, thread: None }
    }

    fn begin(&mut self, job: QueuedJob<ImageJob>) -> Result<(), Box<QueuedJob<ImageJob>>> {
        if self.thread.is_none() {
            self.thread = TurnThread::spawn("images", Arc::clone(&self.runtime.clock)).ok();
        }
        let Some(thread) = &self.thread else { return Err(Box::new(job)) };
        let runner = ImageRunner { queue: Arc::clone(&self.queue), runtime: Arc::clone(&self.runtime) };
        thread.start(Box::new(move |pause| runner.run(job, pause)));
        Ok(())
    }
}

/// What generates the next image of a request, on the image thread.
struct ImageRunner {
    queue: Arc<ImageQueue>,
    runtime: Arc<Runtime>,
}

impl ImageRunner {
    /// Generates the job's next image. After a panic the job fails.
    fn run(&self, job: QueuedJob<ImageJob>, pause: Pause) {
        let sender = job.sender.clone();
        if catch_unwind(AssertUnwindSafe(|| self.work(job, pause))).is_err() {
            tracing::error!("generating an image panicked; its request fails");
            self.runtime.metrics.panic("image");
            sender.send(Err(Failure::panicked()));
        }
    }

    fn work(&self, mut queued: QueuedJob<ImageJob>, pause: Pause) {
        self.runtime.faults.point("image.work");
        let began = self.runtime.clock.uptime();
        let sender = queued.sender.clone();
        let (runtime, receiver) = (Arc::clone(&self.runtime), sender.clone());
        let stopped = move || receiver.is_closed() || runtime.is_aborting();
        let pause: Pause = Arc::new(move || if stopped() { Err(ModelError::Interrupted) } else { pause() });
        let outcome = match self.memory(&queued.job) {
            Some(_lease) => catch_compute_panic(|| self.generate(&mut queued, pause)),
            None => Ok(None),
        };
        match outcome {
            Ok(None) => queued.fail(Failure::OutOfMemory),
            Ok(Some(event)) => {
                queued.sender.send(Ok(event));
                self.runtime.metrics.image_generated(queued.job.model.id());
                let took = self.runtime.clock.uptime().saturating_sub(began).as_secs_f64();
                let mut scheduler = self.queue.lock();
                self.runtime.faults.point("image.requeue");
                scheduler.requeue(queued, took);
            }
            Err(ModelError::Interrupted) => queued.fail(Failure::ShuttingDown),
            Err(error) => {
                tracing::error!(model = queued.job.model.id(), reason = %error, "an image could not be generated");
                let failure = self.runtime.model_failure(queued.job.model.id(), &error);
                queued.fail(failure);
            }
        }
    }

    /// The memory that an image takes. Adapters of other images give way to it last.
    fn memory(&self, job: &ImageJob) -> Option<Lease> {
        let bytes = job.model.image_bytes(job.request.size);
        self.runtime.lease_reclaiming(bytes).or_else(|| {
            job.model.evict_adapters();
            self.runtime.lease_reclaiming(bytes)
        })
    }

    /// The next image; `None`: there is no memory for its adapters.
    fn generate(&self, queued: &mut QueuedJob<ImageJob>, pause: Pause) -> Result<Option<ImageEvent>, ModelError> {
        let QueuedJob { job: ImageJob { model, request, prompts, embeds, next }, sender, .. } = queued;
        let index = *next;
        let seed = request.seeds[index];
        let mut on_step = |step, steps, preview| sender.send(Ok(ImageEvent::Step { index, step, steps, preview }));
        let (runtime, on_step) = (&self.runtime, &mut on_step);
        let image =
            model.pipeline().generate(ImageInput { request, prompts, embeds, seed, pause, runtime, on_step })?;
        Ok(image.map(|image| ImageEvent::Done { index, image }))
    }
}
