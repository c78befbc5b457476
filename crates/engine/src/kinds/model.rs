//! What the engine has to know of a kind of models.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::queue::QueuedWorkload;
use crate::model_adapter::ModelAdapter;
use crate::model_info::{ModelInfo, ModelKind};
use crate::precision::Precision;
use crate::preprocessor::Isolation;
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::KindMetrics;
use crate::settings::Settings;
use outpost_models::ModelError;
use outpost_models::gguf::Header;
use outpost_models::peft::{LoadedAdapter, PeftAdapter};
use outpost_models::weights::Footprint;

/// A model in memory.
pub trait LoadedModel: Any + Send + Sync {
    fn id(&self) -> &str;

    /// The device that runs it.
    fn device(&self) -> DeviceIndex;

    /// The share of the memory budget of its network.
    fn lease(&self) -> &Lease;

    /// Its network, if models of this kind can have adapters.
    fn adaptable(&self) -> Option<&dyn Adaptable> {
        None
    }
}

/// A loaded model whose network may compute for several models: itself, and LoRA adapters of it.
pub trait Adaptable {
    /// The adapter, unless the model is a network.
    fn adapter(&self) -> Option<&ModelAdapter>;

    /// Number of models, loaded or in use, that compute with its network.
    fn network_users(&self) -> usize;

    /// True if both models compute with the same network, such as a base model and its adapter.
    fn shares_network_with(&self, other: &dyn LoadedModel) -> bool;

    /// Max tokens that it computes at once.
    fn max_step_tokens(&self, settings: &Settings) -> usize;

    /// The memory for an adapter's weights.
    fn adapter_footprint(&self, adapter: &PeftAdapter) -> Result<Footprint, ModelError>;

    /// Reads an adapter's weights.
    fn read_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter, ModelError>;

    /// The model `id`, which is an adapter of this one, from a `folder` of the models folder.
    fn with_adapter(
        &self,
        id: &str,
        adapter: ModelAdapter,
        folder: Option<&Path>,
    ) -> Result<Arc<dyn LoadedModel>, String>;
}

impl dyn LoadedModel {
    /// Adapters are loaded after their base model, and unloaded before it.
    pub fn is_adapter(&self) -> bool {
        self.adaptable().is_some_and(|model| model.adapter().is_some())
    }

    /// True if both models compute with the same network, such as a base model and its adapter.
    pub fn shares_network_with(&self, other: &Self) -> bool {
        self.adaptable().is_some_and(|model| model.shares_network_with(other))
    }

    /// Number of models, loaded or in use, that compute with its network.
    pub fn network_users(&self) -> usize {
        self.adaptable().map_or(1, Adaptable::network_users)
    }

    /// The model as one of kind `M`; `None`: it is of another kind.
    pub fn downcast_ref<M: LoadedModel>(&self) -> Option<&M> {
        (self as &dyn Any).downcast_ref()
    }
}

/// The model as one of kind `M`; `None`: it is of another kind.
pub fn downcast<M: LoadedModel>(model: Arc<dyn LoadedModel>) -> Option<Arc<M>> {
    (model as Arc<dyn Any + Send + Sync>).downcast().ok()
}

/// A kind of models.
pub trait Model: LoadedModel + Sized {
    /// What discovery says that its models do.
    const KINDS: &'static [ModelKind];

    /// A checkpoint whose headers are read and checked, and whose weights are not read yet.
    type Checkpoint;

    /// What computes the requests for its models.
    type Workload: QueuedWorkload;

    /// The metrics that it has besides those of all kinds.
    const METRICS: KindMetrics;

    /// Describes a model of a format that several kinds have, if it is of this kind. Returns `false` if it is not. Reads only
    /// headers and small files.
    fn describe(_files: &ModelFiles<'_>, _info: &mut ModelInfo) -> bool {
        false
    }

    /// Opens and checks the checkpoint with the main file `path`.
    ///
    /// # Errors
    /// Why it cannot be used.
    fn open(path: &Path) -> Result<Self::Checkpoint, String>;
}

/// A backend that runs models of kind `M`: one with all operations that their network needs.
pub trait Runs<M: Model> {
    /// The memory that a model needs. `settings`: adapted to the device.
    ///
    /// # Errors
    /// Why the checkpoint cannot be used.
    fn memory(
        &self,
        checkpoint: &M::Checkpoint,
        options: LoadOptions,
        settings: &Settings,
    ) -> Result<MemoryNeed, String>;

    /// Reads the weights. The model keeps the lease of its memory.
    ///
    /// # Errors
    /// Why the checkpoint cannot be used.
    fn load(&self, checkpoint: &M::Checkpoint, source: &LoadSource<'_>, lease: Lease) -> Result<M, String>;
}

/// The files of a model in a format that several kinds have.
pub enum ModelFiles<'a> {
    /// The header of a GGUF file.
    Gguf(&'a Header),
    /// A folder of safetensors in Hugging Face's layout, and its `config.json`.
    HuggingFace { folder: &'a Path, config: &'a Value },
}

/// What of a model is loaded, and how.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// The precision of weights.
    pub precision: Precision,
    /// Whether a chat model's own layer for multi-token prediction drafts for it, if it has one.
    pub mtp: bool,
}

/// A model to load.
pub struct LoadSource<'a> {
    pub id: &'a str,
    /// Its main file.
    pub path: &'a Path,
    /// The device that will run it.
    pub device: DeviceIndex,
    pub options: LoadOptions,
    pub(crate) isolation: &'a Isolation,
    /// Unique to this load.
    pub key: u64,
}

/// Memory of a device that a model needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    pub weights: u64,
    /// Only while the model is loaded.
    pub loading: u64,
    /// Buffers in which it computes.
    pub scratch: u64,
    /// KV cache of one sequence of `context` tokens.
    pub kv: u64,
    pub context: usize,
}

impl MemoryNeed {
    /// That of a model without a KV cache.
    pub fn new(Footprint { weights, loading }: Footprint, scratch: u64) -> Self {
        Self { weights, loading, scratch, kv: 0, context: 0 }
    }

    /// For the loaded model and one sequence.
    pub fn total(&self) -> u64 {
        self.scratch.saturating_add(self.weights).saturating_add(self.kv.max(self.loading))
    }
}
