//! A request for images and its progress.

use std::sync::Arc;

use super::model::ImageModel;
use super::request::{ImageEvent, ImageRequest, PromptIds};
use crate::engine::jobs::{Job, JobEvent};
use crate::engine::text::scheduler::Tenant;
use crate::models::diffusion::pipeline::PromptEmbeds;

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

impl JobEvent for ImageEvent {
    fn is_result(&self) -> bool {
        matches!(self, Self::Done { .. })
    }
}
