//! Embedding, reranking and classification models as a kind of models.

use std::path::Path;
use std::sync::Arc;

use super::model::EncoderModel;
use super::workload::EmbeddingWorkload;
use crate::checkpoint::Checkpoint;
use crate::kinds::{Adaptable, LoadSource, LoadedModel, MemoryNeed, Model};
use crate::model_adapter::ModelAdapter;
use crate::model_info::ModelKind;
use crate::precision::Precision;
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::{Description, KindMetrics};
use crate::settings::Settings;
use outpost_models::ModelError;
use outpost_models::backend::Backend;
use outpost_models::peft::{LoadedAdapter, PeftAdapter};
use outpost_models::weights::Footprint;

impl Model for EncoderModel {
    const KINDS: &'static [ModelKind] = &[ModelKind::Embedding, ModelKind::Reranker, ModelKind::Classifier];

    type Checkpoint = Checkpoint;

    type Workload = EmbeddingWorkload;

    const METRICS: KindMetrics = KindMetrics {
        waiting: Some(Description { name: "text_tokens_queued", help: "Queued tokens of texts to embed or rank" }),
        ..KindMetrics::NONE
    };

    fn open(path: &Path) -> Result<Checkpoint, String> {
        Checkpoint::open(path)
    }

    fn memory<B: Backend>(
        checkpoint: &Checkpoint,
        backend: &B,
        _: Precision,
        _: &Settings,
    ) -> Result<MemoryNeed, String> {
        checkpoint.encoder_memory(backend)
    }

    fn load<B: Backend>(
        checkpoint: &Checkpoint,
        source: &LoadSource<'_>,
        lease: Lease,
        backend: &B,
    ) -> Result<Self, String> {
        Self::new(checkpoint, source, lease, backend)
    }
}

impl LoadedModel for EncoderModel {
    fn id(&self) -> &str {
        self.id()
    }

    fn device(&self) -> DeviceIndex {
        self.device
    }

    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn adaptable(&self) -> Option<&dyn Adaptable> {
        Some(self)
    }
}

impl Adaptable for EncoderModel {
    fn adapter(&self) -> Option<&ModelAdapter> {
        (**self).adapter()
    }

    fn network_users(&self) -> usize {
        (**self).network_users()
    }

    fn shares_network_with(&self, other: &dyn LoadedModel) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| (**self).shares_network_with(other))
    }

    fn max_step_tokens(&self, _: &Settings) -> usize {
        self.max_batch_tokens()
    }

    fn adapter_footprint(&self, adapter: &PeftAdapter) -> Result<Footprint, ModelError> {
        self.network.adapter_footprint(adapter)
    }

    fn read_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter, ModelError> {
        self.network.load_adapter(adapter)
    }

    fn with_adapter(
        &self,
        id: &str,
        adapter: ModelAdapter,
        folder: Option<&Path>,
    ) -> Result<Arc<dyn LoadedModel>, String> {
        Ok(Arc::new(self.adapted(id, adapter, folder)?))
    }
}
