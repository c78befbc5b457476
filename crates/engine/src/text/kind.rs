//! Chat models as a kind of models.

use std::path::Path;
use std::sync::Arc;

use super::model::TextModel;
use super::workload::TextWorkload;
use crate::checkpoint::Checkpoint;
use crate::kinds::{Adaptable, LoadSource, LoadedModel, MemoryNeed, Model};
use crate::model_adapter::ModelAdapter;
use crate::model_info::ModelKind;
use crate::precision::Precision;
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::KindMetrics;
use crate::settings::Settings;
use outpost_models::ModelError;
use outpost_models::backend::Backend;
use outpost_models::kv::{KvShape, blocks_for};
use outpost_models::peft::{LoadedAdapter, PeftAdapter};
use outpost_models::step_memory::scratch_bytes;
use outpost_models::weights::Footprint;

/// The context for which the KV cache is counted, in tokens, unless the model has a shorter one.
const COUNTED_CONTEXT: usize = 8192;

impl Model for TextModel {
    /// A model of an unknown architecture fails to load, with the reason.
    const KINDS: &'static [ModelKind] = &[ModelKind::Text, ModelKind::Unknown];

    type Checkpoint = Checkpoint;

    type Workload = TextWorkload;

    /// Those of text generation are by model.
    const METRICS: KindMetrics = KindMetrics::NONE;

    fn open(path: &Path) -> Result<Checkpoint, String> {
        Checkpoint::open_text(path)
    }

    fn memory<B: Backend>(
        checkpoint: &Checkpoint,
        backend: &B,
        _: Precision,
        settings: &Settings,
    ) -> Result<MemoryNeed, String> {
        let weights = checkpoint.weights();
        let config = weights.decoder_config().map_err(|error| error.to_string())?;
        let scratch = scratch_bytes(&config, backend, &settings.step_limits());
        let (layers, kv_heads, head_width) = (config.layer_count, config.kv_heads, config.head_width);
        let shape = KvShape { layers, kv_heads, head_width, kv_type: settings.kv_type };
        let context = config.context.min(COUNTED_CONTEXT);
        let kv = shape.block_bytes() * blocks_for(context) as u64;
        Ok(MemoryNeed { kv, context, ..MemoryNeed::new(Footprint::new(weights, backend), scratch) })
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

impl LoadedModel for TextModel {
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

impl Adaptable for TextModel {
    fn adapter(&self) -> Option<&ModelAdapter> {
        (**self).adapter()
    }

    fn network_users(&self) -> usize {
        (**self).network_users()
    }

    fn shares_network_with(&self, other: &dyn LoadedModel) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| (**self).shares_network_with(other))
    }

    fn max_step_tokens(&self, settings: &Settings) -> usize {
        settings.step_limits().tokens
    }

    fn adapter_footprint(&self, adapter: &PeftAdapter) -> Result<Footprint, ModelError> {
        self.network.adapter_footprint(adapter)
    }

    fn read_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter, ModelError> {
        self.network.load_adapter(adapter)
    }

    fn with_adapter(&self, id: &str, adapter: ModelAdapter, _: Option<&Path>) -> Result<Arc<dyn LoadedModel>, String> {
        Ok(Arc::new(self.adapted(id, adapter)))
    }
}
