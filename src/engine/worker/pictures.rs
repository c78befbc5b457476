//! The worker's side of image generation: it lets the image thread compute between text steps and embedding layers.

use std::sync::Arc;
use std::time::Duration;

use super::Worker;
use crate::ambient::Ambient;
use crate::engine::budget::Lease;
use crate::engine::guard::generated;
use crate::engine::image::{ImageEvent, ImageJob, ImageThread, MemorySource, Pause};
use crate::engine::queue::Shared;
use crate::engine::registry::Registry;
use crate::engine::request::Failure;
use crate::models::diffusion::pipeline::Interrupted;

/// Length of the image thread's turn while there is other work, and while there is none.
const SLICE: Duration = Duration::from_millis(4);
const ALONE: Duration = Duration::from_millis(20);

impl Worker {
    /// Lets the image thread compute for some milliseconds. `false`: there was nothing to do.
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
            thread.run_until(self.ambient.uptime() + slice);
        }
        true
    }

    fn begin_image(&mut self, job: ImageJob) -> Result<(), Box<ImageJob>> {
        if self.image_thread.is_none() {
            self.image_thread = ImageThread::spawn(Arc::clone(&self.ambient)).ok();
        }
        let Some(thread) = &self.image_thread else { return Err(Box::new(job)) };
        let (shared, registry) = (Arc::clone(&self.shared), Arc::clone(&self.registry));
        let runner = ImageRunner { shared, registry, ambient: Arc::clone(&self.ambient) };
        thread.start(Box::new(move |pause| runner.work(job, pause)));
        Ok(())
    }
}

/// Runs image jobs on the image thread.
struct ImageRunner {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    ambient: Arc<dyn Ambient>,
}

impl ImageRunner {
    /// Generates the next image of a request.
    fn work(&self, mut job: ImageJob, pause: Pause<'_>) {
        let began = self.ambient.uptime();
        let sender = job.sender.clone();
        let stopped = || sender.is_closed() || self.shared.is_aborting();
        let pause = || if stopped() { Err(Interrupted::Cancelled) } else { pause() };
        let outcome = match self.memory(&job) {
            Some(_lease) => generated(|| self.generate(&mut job, &pause)),
            None => Ok(None),
        };
        match outcome {
            Ok(None) => job.fail(Failure::NoMemory),
            Ok(Some(event)) => {
                job.sender.send(Ok(event));
                self.shared.metrics.picture(job.model.id());
                let took = self.ambient.uptime().saturating_sub(began).as_secs_f64();
                self.shared.lock().images.requeue(job, took);
            }
            Err(Interrupted::Cancelled) => job.fail(Failure::ShuttingDown),
            Err(Interrupted::Failed(reason)) => {
                let id = job.model.id().to_owned();
                tracing::error!(model = id, reason, "an image could not be generated");
                job.fail(Failure::Unusable { id, reason });
            }
        }
    }

    /// Leases an image's memory; evicts adapters as a last resort.
    fn memory(&self, job: &ImageJob) -> Option<Lease> {
        let bytes = job.model.image_bytes(job.request.size);
        self.lease(bytes).or_else(|| {
            job.model.evict_adapters();
            self.lease(bytes)
        })
    }

    /// Generates the next image; `None`: not enough memory for its adapters.
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
        tracing::debug!(
            model = model.id(),
            held,
            claimed,
            "an image was generated; bytes of memory beyond the weights"
        );
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
