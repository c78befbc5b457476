//! The worker's half of painting: it lets the painter compute between steps of answers and layers of texts.

use std::sync::Arc;
use std::time::Duration;

use super::Worker;
use crate::clock_rng::ClockRng;
use crate::engine::error::Failure;
use crate::engine::image::{ImageEvent, ImageJob, ImageThread, MemorySource, Pause};
use crate::engine::runtime::memory::Lease;
use crate::engine::runtime::panics::painted;
use crate::engine::runtime::queue::Shared;
use crate::engine::runtime::registry::Registry;
use crate::models::diffusion::pipeline::Interrupted;

/// How long it computes before others have their turn again: where there are others, and where newcomers may come.
const SLICE: Duration = Duration::from_millis(4);
const ALONE: Duration = Duration::from_millis(20);

impl Worker {
    /// Some milliseconds of a picture. `false`: there was nothing to do.
    pub(super) fn generate_image(&mut self, busy: bool) -> bool {
        if self.image_thread.as_ref().is_none_or(|thread| !thread.is_busy()) {
            let Some(job) = self.shared.lock().images.next_job() else { return false };
            if let Err(job) = self.begin_image(job) {
                job.fail(Failure::Broken("no thread could be started".to_owned()));
                return true;
            }
        }
        let slice = if busy { SLICE } else { ALONE };
        if let Some(thread) = &self.image_thread {
            thread.run_until(self.clock.uptime() + slice);
        }
        true
    }

    fn begin_image(&mut self, job: ImageJob) -> Result<(), Box<ImageJob>> {
        if self.image_thread.is_none() {
            self.image_thread = ImageThread::spawn(Arc::clone(&self.clock)).ok();
        }
        let Some(thread) = &self.image_thread else { return Err(Box::new(job)) };
        let (shared, registry) = (Arc::clone(&self.shared), Arc::clone(&self.registry));
        let runner = ImageRunner { shared, registry, clock: Arc::clone(&self.clock) };
        thread.start(Box::new(move |pause| runner.work(job, pause)));
        Ok(())
    }
}

/// What a picture's work needs of the engine.
struct ImageRunner {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    clock: Arc<dyn ClockRng>,
}

impl ImageRunner {
    /// Paints the next picture of a request.
    fn work(&self, mut job: ImageJob, pause: Pause<'_>) {
        let began = self.clock.uptime();
        let sender = job.sender.clone();
        let stopped = || sender.is_closed() || self.shared.is_aborting();
        let pause = || if stopped() { Err(Interrupted::Cancelled) } else { pause() };
        let outcome = match self.memory(&job) {
            Some(_lease) => painted(|| self.generate(&mut job, &pause)),
            None => Ok(None),
        };
        match outcome {
            Ok(None) => job.fail(Failure::NoMemory),
            Ok(Some(event)) => {
                job.sender.send(Ok(event));
                self.shared.metrics.picture(job.model.id());
                let took = self.clock.uptime().saturating_sub(began).as_secs_f64();
                self.shared.lock().images.requeue(job, took);
            }
            Err(Interrupted::Cancelled) => job.fail(Failure::ShuttingDown),
            Err(Interrupted::Failed(reason)) => {
                let id = job.model.id().to_owned();
                tracing::error!(model = id, reason, "a picture could not be painted");
                job.fail(Failure::Unusable { id, reason });
            }
        }
    }

    /// The memory that a picture takes, for which adapters of other pictures go at last.
    fn memory(&self, job: &ImageJob) -> Option<Lease> {
        let bytes = job.model.image_bytes(job.request.size);
        self.lease(bytes).or_else(|| {
            job.model.evict_adapters();
            self.lease(bytes)
        })
    }

    /// The next picture; `None`: there is no memory for its adapters.
    fn generate(&self, job: &mut ImageJob, pause: Pause<'_>) -> Result<Option<ImageEvent>, Interrupted> {
        let ImageJob { model, request, prompts, embeds, next, sender, .. } = job;
        let index = *next;
        let seed = request.seeds.get(index).copied().unwrap_or_default();
        let cpu = Arc::clone(model.cpu());
        let ctx = model.op_context(cpu.pool(), pause);
        let Some(lora_deltas) = model.lora_deltas(request, &ctx, self)? else { return Ok(None) };
        let ctx = ctx.with_lora(lora_deltas);
        if embeds.is_none() {
            *embeds = Some(model.encode_prompts(&ctx, prompts, request.negative_prompt.is_some())?);
        }
        let Some(embeds) = embeds.as_ref() else { return Err(Interrupted::Failed("the prompts were lost".to_owned())) };
        let mut on_step = |step, steps, preview| sender.send(Ok(ImageEvent::Step { index, step, steps, preview }));
        let image = model.generate(&ctx, embeds, request, seed, &mut on_step)?;
        let (held, claimed) = (ctx.peak_bytes(), model.image_bytes(request.size));
        tracing::debug!(model = model.id(), held, claimed, "a picture is painted; bytes of memory beside the weights");
        Ok(Some(ImageEvent::Done { index, image }))
    }
}

impl MemorySource for ImageRunner {
    fn try_lease(&self, bytes: u64) -> Option<Lease> {
        self.shared.lease(bytes, 0)
    }

    fn lease(&self, bytes: u64) -> Option<Lease> {
        loop {
            if let Some(lease) = self.try_lease(bytes) {
                return Some(lease);
            }
            if !self.registry.unload_idle() {
                return None;
            }
        }
    }
}
