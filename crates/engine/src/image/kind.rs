//! Image models as a kind of models.

use std::path::Path;

use super::job::{GENERATED, ImageJob};
use super::model::{ImageModel, open};
use crate::jobs::JobWorkload;
use crate::kinds::{LoadOptions, LoadSource, LoadedModel, MemoryNeed, Model, Runs};
use crate::model_info::ModelKind;
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::{Description, KindMetrics};
use crate::settings::Settings;
use outpost_models::backend::{Convolutions, Recurrent};
use outpost_models::diffusion::pipeline::Components;

impl Model for ImageModel {
    const KINDS: &'static [ModelKind] = &[ModelKind::Image];

    type Checkpoint = Components;

    type Workload = JobWorkload<ImageJob>;

    const METRICS: KindMetrics = KindMetrics {
        waiting: Some(Description { name: "images_queued", help: "Queued images" }),
        count: Some(GENERATED),
        ..KindMetrics::NONE
    };

    fn open(path: &Path) -> Result<Components, String> {
        open(path)
    }
}

impl<B: Convolutions + Recurrent> Runs<ImageModel> for B {
    fn memory(&self, checkpoint: &Components, options: LoadOptions, _: &Settings) -> Result<MemoryNeed, String> {
        Ok(MemoryNeed::new(checkpoint.footprint(self, options.precision.kind()), 0))
    }

    fn load(&self, checkpoint: &Components, source: &LoadSource<'_>, lease: Lease) -> Result<ImageModel, String> {
        ImageModel::new(checkpoint, source, lease, self)
    }
}

impl LoadedModel for ImageModel {
    fn id(&self) -> &str {
        self.id()
    }

    fn device(&self) -> DeviceIndex {
        self.device
    }

    fn lease(&self) -> &Lease {
        &self.lease
    }
}
