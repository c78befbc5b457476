//! Speech models as a kind of models.

use std::path::Path;

use super::checkpoint::SpeechCheckpoint;
use super::job::{SPOKEN, SpeechJob};
use super::model::SpeechModel;
use crate::jobs::JobWorkload;
use crate::kinds::{LoadSource, LoadedModel, MemoryNeed, Model, ModelFiles};
use crate::model_info::{ModelInfo, ModelKind};
use crate::precision::Precision;
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::{Description, KindMetrics};
use crate::settings::Settings;
use outpost_models::backend::Backend;

impl Model for SpeechModel {
    const KINDS: &'static [ModelKind] = &[ModelKind::Speech];

    type Checkpoint = SpeechCheckpoint;

    type Workload = JobWorkload<SpeechJob>;

    const METRICS: KindMetrics = KindMetrics {
        waiting: Some(Description { name: "speech_parts_queued", help: "Queued parts of texts to speak" }),
        seconds: Some(SPOKEN),
        ..KindMetrics::NONE
    };

    fn describe(files: &ModelFiles<'_>, info: &mut ModelInfo) -> bool {
        let ModelFiles::HuggingFace { folder, config } = files else { return false };
        if !SpeechCheckpoint::is_config(config) {
            return false;
        }
        info.kind = ModelKind::Speech;
        info.architecture = "kokoro".to_owned();
        info.problem = SpeechCheckpoint::open(&folder.join("config.json")).err();
        true
    }

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
