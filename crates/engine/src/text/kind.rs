//! Chat models as a kind of models.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::model::TextModel;
use super::workload::TextWorkload;
use crate::checkpoint::{Checkpoint, check_gguf, check_hugging_face};
use crate::kinds::{Adaptable, LoadOptions, LoadSource, LoadedModel, MemoryNeed, Model, ModelFiles, Runs};
use crate::model_adapter::ModelAdapter;
use crate::model_info::{ModelInfo, ModelKind};
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::KindMetrics;
use crate::settings::Settings;
use crate::tokenizer::has_fim_tokens;
use outpost_models::ModelError;
use outpost_models::backend::Recurrent;
use outpost_models::decoder_family;
use outpost_models::peft::{LoadedAdapter, PeftAdapter};
use outpost_models::safetensors::ModelFolder;
use outpost_models::state_layout::StateGroup;
use outpost_models::step_memory::scratch_bytes;
use outpost_models::weights::{DecoderCheckpoint as _, Footprint};

/// The context for which the KV cache is counted, in tokens, unless the model has a shorter one.
const COUNTED_CONTEXT: usize = 8192;

impl Model for TextModel {
    /// A model of an unknown architecture fails to load, with the reason.
    const KINDS: &'static [ModelKind] = &[ModelKind::Text, ModelKind::Unknown];

    type Checkpoint = Checkpoint;

    type Workload = TextWorkload;

    /// Those of text generation are by model.
    const METRICS: KindMetrics = KindMetrics::NONE;

    /// A GGUF file of an architecture that no kind has is described, too: the problem says that it is not supported.
    fn describe(files: &ModelFiles<'_>, info: &mut ModelInfo) -> bool {
        let checked = match files {
            ModelFiles::Gguf(header) => {
                let is_known = decoder_family::find_architecture(&info.architecture).is_some();
                info.kind = if is_known { ModelKind::Text } else { ModelKind::Unknown };
                check_gguf(header)
            }
            ModelFiles::HuggingFace { folder, config } => {
                let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
                // The part for texts of a model for texts and pictures has no name of its own.
                let is_unnamed = config.pointer("/architectures/0").is_none()
                    || info.architecture.ends_with("ForConditionalGeneration");
                let is_known = is_unnamed && decoder_family::find_model_type(model_type).is_some();
                if !is_known && !info.architecture.ends_with("ForCausalLM") {
                    return false;
                }
                info.kind = ModelKind::Text;
                let folder = ModelFolder::open(folder).map_err(|error| error.to_string());
                folder.and_then(|folder| check_hugging_face(&folder))
            }
        };
        match checked {
            Ok(has_template) => info.has_chat_template = has_template,
            Err(problem) => info.problem = Some(problem),
        }
        if let ModelFiles::Gguf(header) = files {
            let is_usable = info.kind == ModelKind::Text && info.problem.is_none();
            info.infills = is_usable && has_fim_tokens(&header.metadata);
        }
        true
    }

    fn open(path: &Path) -> Result<Checkpoint, String> {
        Checkpoint::open_text(path)
    }
}

impl<B: Recurrent> Runs<TextModel> for B {
    fn memory(&self, checkpoint: &Checkpoint, options: LoadOptions, settings: &Settings) -> Result<MemoryNeed, String> {
        let weights = &checkpoint.drafting(options.mtp);
        let config = weights.decoder_config().map_err(|error| error.to_string())?;
        let scratch = scratch_bytes(&config, self, &settings.step_limits());
        let context = config.context.min(COUNTED_CONTEXT);
        let bytes = |group: &StateGroup| group.block_bytes * group.max_blocks(context, settings.prefill_chunk) as u64;
        let kv = config.state_groups(settings.kv_type, B::RELEASES_KV_BLOCKS).iter().map(bytes).sum();
        Ok(MemoryNeed { kv, context, ..MemoryNeed::new(Footprint::new(weights, self), scratch) })
    }

    fn load(&self, checkpoint: &Checkpoint, source: &LoadSource<'_>, lease: Lease) -> Result<TextModel, String> {
        TextModel::new(checkpoint, source, lease, self)
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
