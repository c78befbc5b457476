//! Image models as a kind of models.

use std::path::Path;

use super::model::{ImageModel, open};
use crate::kinds::{LoadSource, LoadedModel, MemoryNeed, Model};
use crate::model_info::ModelKind;
use crate::precision::Precision;
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::settings::Settings;
use outpost_models::backend::Backend;
use outpost_models::diffusion::pipeline::Components;

impl Model for ImageModel {
    const KINDS: &'static [ModelKind] = &[ModelKind::Image];

    type Checkpoint = Components;

    fn open(path: &Path) -> Result<Components, String> {
        open(path)
    }

    fn memory<B: Backend>(
        checkpoint: &Components,
        backend: &B,
        precision: Precision,
        _: &Settings,
    ) -> Result<MemoryNeed, String> {
        Ok(MemoryNeed::new(checkpoint.footprint(backend, precision.kind()), 0))
    }

    fn load<B: Backend>(
        checkpoint: &Components,
        source: &LoadSource<'_>,
        lease: Lease,
        backend: &B,
    ) -> Result<Self, String> {
        Self::new(checkpoint, source, lease, backend)
    }
}

impl LoadedModel for ImageModel {
    fn device(&self) -> DeviceIndex {
        self.device
    }

    fn lease(&self) -> &Lease {
        &self.lease
    }
}
