//! Transcription models as a kind of models.

use std::path::Path;

use serde_json::Value;

use super::batch::TRANSCRIBED;
use super::checkpoint::WhisperCheckpoint;
use super::model::TranscriptionModel;
use super::workload::TranscriptionWorkload;
use crate::kinds::{LoadOptions, LoadSource, LoadedModel, MemoryNeed, Model, ModelFiles, Runs};
use crate::model_info::{ModelInfo, ModelKind};
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::{Description, KindMetrics};
use crate::settings::Settings;
use outpost_models::backend::{PagedAttention, TimeConvolutions};

impl Model for TranscriptionModel {
    const KINDS: &'static [ModelKind] = &[ModelKind::Transcription];

    type Checkpoint = WhisperCheckpoint;

    type Workload = TranscriptionWorkload;

    const METRICS: KindMetrics = KindMetrics {
        waiting: Some(Description { name: "transcriptions_running", help: "Transcriptions that wait or run" }),
        seconds: Some(TRANSCRIBED),
        ..KindMetrics::NONE
    };

    fn describe(files: &ModelFiles<'_>, info: &mut ModelInfo) -> bool {
        let ModelFiles::HuggingFace { folder, config } = files else { return false };
        if config.get("model_type").and_then(Value::as_str) != Some("whisper") {
            return false;
        }
        info.kind = ModelKind::Transcription;
        info.context_window = None;
        info.problem = WhisperCheckpoint::open(&folder.join("config.json")).err();
        true
    }

    fn open(path: &Path) -> Result<WhisperCheckpoint, String> {
        WhisperCheckpoint::open(path)
    }
}

impl<B: PagedAttention + TimeConvolutions> Runs<TranscriptionModel> for B {
    fn memory(&self, checkpoint: &WhisperCheckpoint, options: LoadOptions, _: &Settings) -> Result<MemoryNeed, String> {
        Ok(MemoryNeed::new(checkpoint.footprint(self, options.precision), 0))
    }

    fn load(
        &self,
        checkpoint: &WhisperCheckpoint,
        source: &LoadSource<'_>,
        lease: Lease,
    ) -> Result<TranscriptionModel, String> {
        TranscriptionModel::new(checkpoint, source, lease, self)
    }
}

impl LoadedModel for TranscriptionModel {
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
