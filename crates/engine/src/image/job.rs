//! A request for images and its progress.

use std::sync::Arc;

use super::device_pipeline::ImageInput;
use super::model::ImageModel;
use super::request::{ImageEvent, ImageRequest, PromptIds};
use crate::ids::Tenant;
use crate::jobs::{ComputedJob, Job, JobEvent, Sender};
use crate::runtime::Runtime;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::Description;
use crate::settings::Settings;
use outpost_models::ModelError;
use outpost_models::backend::Pause;
use outpost_models::diffusion::pipeline::PromptEmbeds;

/// The metric of generated images.
pub const GENERATED: Description = Description { name: "images", help: "Images generated" };

/// A request and its progress.
pub struct ImageJob {
    pub model: Arc<ImageModel>,
    pub request: ImageRequest,
    pub prompts: PromptIds,
    /// The encoded prompts, once computed.
    pub embeds: Option<PromptEmbeds>,
    /// Index of the next image.
    pub next: usize,
}

impl Job for ImageJob {
    type Event = ImageEvent;

    fn tenant(&self) -> Tenant {
        self.request.tenant
    }

    fn remaining(&self) -> usize {
        self.request.seeds.len().saturating_sub(self.next)
    }

    /// Steps times pixels.
    fn work(&self) -> f64 {
        let [width, height] = self.request.size;
        (width * height * self.request.steps) as f64
    }

    fn remaining_work(&self) -> f64 {
        self.work() * self.remaining() as f64
    }

    fn has_begun(&self) -> bool {
        self.next > 0
    }

    fn advance(&mut self) {
        self.next += 1;
    }
}

impl ImageJob {
    pub fn new(model: &Arc<ImageModel>, request: ImageRequest, prompts: PromptIds) -> Self {
        Self { model: Arc::clone(model), request, prompts, embeds: None, next: 0 }
    }

    /// The memory that an image takes. Adapters of other images give way to it last.
    fn memory(&self, runtime: &Runtime) -> Option<Lease> {
        let bytes = self.model.image_bytes(self.request.size);
        runtime.lease_reclaiming(bytes).or_else(|| {
            self.model.evict_adapters();
            runtime.lease_reclaiming(bytes)
        })
    }
}

impl ComputedJob for ImageJob {
    const WORKLOAD: &'static str = "image";
    const FAULT_POINTS: [&'static str; 3] = ["image.next_job", "image.work", "image.requeue"];

    fn queue_limit(settings: &Settings) -> usize {
        settings.max_queued_images
    }

    fn model_id(&self) -> &str {
        self.model.id()
    }

    /// The next image; `None`: there is no memory for it or for its adapters.
    fn compute(
        &mut self,
        sender: &Sender<ImageEvent>,
        pause: Pause,
        runtime: &Runtime,
    ) -> Result<Option<ImageEvent>, ModelError> {
        let Some(_lease) = self.memory(runtime) else { return Ok(None) };
        let Self { model, request, prompts, embeds, next } = self;
        let index = *next;
        let seed = request.seeds[index];
        let on_step = &mut |step, steps, preview| sender.send(Ok(ImageEvent::Step { index, step, steps, preview }));
        let input = ImageInput { request, prompts, embeds, seed, pause, runtime, on_step };
        let image = model.pipeline().generate(input)?;
        Ok(image.map(|image| ImageEvent::Done { index, image }))
    }

    fn record(&self, _: &ImageEvent, runtime: &Runtime) {
        runtime.metrics.count(GENERATED, self.model.id());
    }
}

impl JobEvent for ImageEvent {
    fn is_result(&self) -> bool {
        matches!(self, Self::Done { .. })
    }
}
