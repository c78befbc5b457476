//! Speech models as a kind of models.

use std::path::Path;

use super::checkpoint::SpeechCheckpoint;
use super::model::SpeechModel;
use crate::kinds::{LoadSource, LoadedModel, MemoryNeed, Model};
use crate::model_info::ModelKind;
use crate::precision::Precision;
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::settings::Settings;
use outpost_models::backend::Backend;

impl Model for SpeechModel {
    const KINDS: &'static [ModelKind] = &[ModelKind::Speech];

    type Checkpoint = SpeechCheckpoint;

    fn open(path: &Path) -> Result<SpeechCheckpoint, String> {
        SpeechCheckpoint::open(path)
    }

    fn memory<B: Backend>(
        checkpoint: &SpeechCheckpoint,
        backend: &B,
        precision: Precision,
        _: &Settings,
    ) -> Result<MemoryNeed, String> {
        Ok(MemoryNeed::new(checkpoint.footprint(backend, precision), 0))
    }

    fn load<B: Backend>(
        checkpoint: &SpeechCheckpoint,
        source: &LoadSource<'_>,
        lease: Lease,
        backend: &B,
    ) -> Result<Self, String> {
        Self::new(checkpoint, source, lease, backend)
    }
}

impl LoadedModel for SpeechModel {
    fn device(&self) -> DeviceIndex {
        self.device
    }

    fn lease(&self) -> &Lease {
        &self.lease
    }
}
