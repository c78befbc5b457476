//! Embedding, reranking and classification models as a kind of models.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::decoder_ranking::is_known_ranker;
use super::model::{EncoderInfo, EncoderModel, check_gguf, check_hugging_face, gguf_is_cross_encoder, has_head, kind};
use super::sentence_transformers::{MODULES_FILE, pooling_type};
use super::workload::EmbeddingWorkload;
use crate::checkpoint::Checkpoint;
use crate::kinds::{Adaptable, LoadOptions, LoadSource, LoadedModel, MemoryNeed, Model, ModelFiles, Runs};
use crate::model_adapter::ModelAdapter;
use crate::model_info::{ModelInfo, ModelKind};
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::{Description, KindMetrics};
use crate::settings::Settings;
use outpost_models::ModelError;
use outpost_models::backend::Recurrent;
use outpost_models::decoder_config::is_bidirectional;
use outpost_models::encoder::{Family, STATIC_MODEL_TYPE};
use outpost_models::peft::{LoadedAdapter, PeftAdapter};
use outpost_models::safetensors::ModelFolder;
use outpost_models::weights::Footprint;

/// Architectures of embedding models in GGUF.
const GGUF_ARCHITECTURES: &[&str] = &[
    "bert",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "gemma-embedding",
];

impl Model for EncoderModel {
    const KINDS: &'static [ModelKind] = &[ModelKind::Embedding, ModelKind::Reranker, ModelKind::Classifier];

    type Checkpoint = Checkpoint;

    type Workload = EmbeddingWorkload;

    const METRICS: KindMetrics = KindMetrics {
        waiting: Some(Description { name: "text_tokens_queued", help: "Queued tokens of texts to embed or rank" }),
        ..KindMetrics::NONE
    };

    fn describe(files: &ModelFiles<'_>, info: &mut ModelInfo) -> bool {
        let checked = match files {
            ModelFiles::Gguf(header) => {
                let pools = pooling_type(&header.metadata).is_some_and(|pooling| pooling > 0);
                let named = header.metadata.text("general.name").unwrap_or_default();
                let ranks = is_known_ranker(&info.id) || is_known_ranker(named);
                if !pools && !ranks && !GGUF_ARCHITECTURES.contains(&info.architecture.as_str()) {
                    return false;
                }
                let is_cross_encoder = ranks || gguf_is_cross_encoder(&header.metadata);
                info.kind = if is_cross_encoder { ModelKind::Reranker } else { ModelKind::Embedding };
                info.embedding_dimensions = info.width.filter(|_| !is_cross_encoder);
                check_gguf(header, &info.id)
            }
            ModelFiles::HuggingFace { folder, config } => {
                let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
                let has_modules = folder.join(MODULES_FILE).is_file();
                let is_encoder = Family::from_model_type(model_type).is_some() || model_type == STATIC_MODEL_TYPE;
                let is_known = is_known_ranker(&info.id);
                if !has_modules && !is_encoder && !is_bidirectional(config) && !is_known && !has_head(config) {
                    return false;
                }
                info.kind = match kind(config) {
                    ModelKind::Embedding if is_known => ModelKind::Reranker,
                    kind => kind,
                };
                let folder = ModelFolder::open(folder).map_err(|error| error.to_string());
                folder.and_then(|folder| check_hugging_face(&folder, &info.id))
            }
        };
        match checked {
            Ok(EncoderInfo { limit, dimensions, ranks, labels }) => {
                info.context_window = u32::try_from(limit).ok();
                if ranks && info.kind == ModelKind::Embedding {
                    info.kind = ModelKind::Reranker;
                }
                let is_embedding = info.kind == ModelKind::Embedding;
                info.embedding_dimensions = u32::try_from(dimensions).ok().filter(|_| is_embedding);
                info.labels = labels;
            }
            Err(problem) => info.problem = Some(problem),
        }
        true
    }

    fn open(path: &Path) -> Result<Checkpoint, String> {
        Checkpoint::open(path)
    }
}

impl<B: Recurrent> Runs<EncoderModel> for B {
    fn memory(&self, checkpoint: &Checkpoint, _: LoadOptions, _: &Settings) -> Result<MemoryNeed, String> {
        checkpoint.encoder_memory(self)
    }

    fn load(&self, checkpoint: &Checkpoint, source: &LoadSource<'_>, lease: Lease) -> Result<EncoderModel, String> {
        EncoderModel::new(checkpoint, source, lease, self)
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
