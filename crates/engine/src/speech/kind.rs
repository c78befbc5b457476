//! Speech models as a kind of models.

use std::path::Path;

use super::checkpoint::SpeechCheckpoint;
use super::job::{SPOKEN, SpeechJob};
use super::model::SpeechModel;
use crate::jobs::JobWorkload;
use crate::kinds::{LoadOptions, LoadSource, LoadedModel, MemoryNeed, Model, ModelFiles, Runs};
use crate::model_info::{ModelInfo, ModelKind};
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::{Description, KindMetrics};
use crate::settings::Settings;
use outpost_models::backend::TimeConvolutions;

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
}

impl<B: TimeConvolutions> Runs<SpeechModel> for B {
    fn memory(&self, checkpoint: &SpeechCheckpoint, options: LoadOptions, _: &Settings) -> Result<MemoryNeed, String> {
        Ok(MemoryNeed::new(checkpoint.footprint(self, options.precision), 0))
    }

    fn load(
        &self,
        checkpoint: &SpeechCheckpoint,
        source: &LoadSource<'_>,
        lease: Lease,
    ) -> Result<SpeechModel, String> {
        SpeechModel::new(checkpoint, source, lease, self)
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
