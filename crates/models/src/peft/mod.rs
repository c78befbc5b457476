//! LoRA adapters of decoders and encoders in peft's format (<https://huggingface.co/docs/peft>): `adapter_config.json`, and the
//! matrices in `adapter_model.safetensors`.
//!
//! An adapter is read from a folder or from memory. It is checked as a whole when it is opened. A tensor or an option that
//! is not supported is an error, because it would change the results.

mod config;
mod fitted_adapter;
mod loaded_adapter;
mod tensor_names;
mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::backend::DType;
use super::error::{ModelError, Result};
use super::safetensors::{Header, TensorInfo, open, parse_header, parse_json, read_header, read_json};
use super::weights::{Rows, Storage, StoredTensor};
pub use config::CONFIG_FILE;
use config::PeftConfig;
pub(crate) use fitted_adapter::FittedAdapter;
pub use loaded_adapter::LoadedAdapter;
pub use tensor_names::{
    GEMMA4_MODULES, GRANITE_HYBRID_MODULES, HUNYUAN_MOE_MODULES, LATENT_MODULES, LFM2_MODULES, LLAMA_MODULES, Module,
    NEMOTRON_MODULES, QWEN3_NEXT_MODULES, QWEN35_MODULES, SHARED_EXPERT_MODULES, find_module, projections_of,
};
use tensor_names::{ParsedName, Role};
pub use write::{NewModule, PeftFiles, write};

/// The file with the matrices in an adapter's folder.
pub const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// Maximum size of the weights.
const MAX_BYTES: u64 = 4 << 30;

/// An opened adapter. Its matrices are not read yet.
#[derive(Debug)]
pub struct PeftAdapter {
    config: PeftConfig,
    content: Content,
    /// Bytes of the weights' file.
    length: u64,
    modules: Vec<AdaptedModule>,
}

/// Where the weights are.
#[derive(Debug)]
enum Content {
    File(File),
    Memory(Arc<[u8]>),
}

/// The two matrices for one module of a layer.
#[derive(Debug)]
pub struct AdaptedModule {
    pub layer: usize,
    pub module: &'static Module,
    /// `[rank, inputs]`
    pub down: TensorInfo,
    /// `[outputs, rank]`
    pub up: TensorInfo,
    pub rank: usize,
    /// The factor of the product of both matrices.
    pub scale: f32,
}

fn invalid<T>(message: String) -> Result<T> {
    Err(ModelError::Checkpoint(message))
}

impl PeftAdapter {
    /// Opens the adapter in a folder that peft has saved.
    ///
    /// # Errors
    /// If a file is missing or damaged, or the adapter has a tensor or an option that is not supported.
    pub fn open(folder: &Path) -> Result<Self> {
        let config = read_json(&folder.join(CONFIG_FILE))?;
        let path = folder.join(WEIGHTS_FILE);
        let mut file = open(&path)?;
        let header = read_header(&mut file, &path)?;
        Self::new(&config, header, Content::File(file))
    }

    /// Reads an adapter from the contents of both files.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_bytes(config: &[u8], weights: Arc<[u8]>) -> Result<Self> {
        let config = parse_json(config)
            .map_err(|error| ModelError::Checkpoint(format!("{CONFIG_FILE}: it is damaged: {error}")))?;
        let header = parse_header(&weights)?;
        Self::new(&config, header, Content::Memory(weights))
    }

    fn new(config: &Value, header: Header, content: Content) -> Result<Self> {
        let config = PeftConfig::read(config)?;
        let Header { length, tensors, .. } = header;
        if length > MAX_BYTES {
            return invalid(format!("{WEIGHTS_FILE} has {length} bytes; at most {MAX_BYTES} are allowed"));
        }
        let mut pairs: BTreeMap<(usize, &'static str), Pair> = BTreeMap::new();
        for tensor in tensors.into_iter().filter(|tensor| !tensor_names::is_unused(&tensor.name)) {
            let ParsedName { layer, module, role, path } = tensor_names::parse(&tensor.name)?;
            let new = || Pair { module, path: path.to_owned(), down: None, up: None };
            let pair = pairs.entry((layer, module.path)).or_insert_with(new);
            let slot = match role {
                Role::Down => &mut pair.down,
                Role::Up => &mut pair.up,
            };
            let name = tensor.name.clone();
            if let Some(other) = slot.replace(tensor) {
                return invalid(format!("its tensors {} and {name} are for the same module", other.name));
            }
        }
        if pairs.is_empty() {
            return invalid(format!("{WEIGHTS_FILE} has no tensors"));
        }
        let modules = pairs.into_iter().map(|((layer, _), pair)| pair.into_module(layer, &config));
        let modules = modules.collect::<Result<_>>()?;
        Ok(Self { config, content, length, modules })
    }

    /// The name or path of the model that it was trained for.
    pub fn base_model(&self) -> Option<&str> {
        self.config.base_model.as_deref()
    }

    /// Bytes of the weights' file.
    pub fn file_bytes(&self) -> u64 {
        self.length
    }

    /// The number of weights.
    pub fn parameters(&self) -> u64 {
        self.modules.iter().map(|module| module.down.elements + module.up.elements).sum()
    }

    /// The type of most matrices: `F32`, `BF16`.
    pub fn dtype(&self) -> &str {
        self.modules.first().map_or("", |module| &module.down.dtype)
    }

    /// The largest rank.
    pub fn rank(&self) -> usize {
        self.modules.iter().map(|module| module.rank).max().unwrap_or(0)
    }

    pub fn modules(&self) -> &[AdaptedModule] {
        &self.modules
    }

    /// All rows of one of its matrices, in the file's type.
    pub fn rows<'a>(&'a self, matrix: &'a TensorInfo) -> Result<Rows<'a>> {
        let storage = match &self.content {
            Content::File(file) => Storage::File(file),
            Content::Memory(bytes) => Storage::Memory(bytes),
        };
        let TensorInfo { name, shape, start, .. } = matrix;
        StoredTensor { name, storage, start: *start, shape, stored: float(matrix)?.into() }.rows(0, shape[0])
    }
}

/// The type of a matrix, which must be a float type.
fn float(matrix: &TensorInfo) -> Result<DType> {
    matrix.float().ok_or_else(|| {
        let TensorInfo { name, dtype, .. } = matrix;
        ModelError::Checkpoint(format!("its tensor {name} has the type {dtype}; F32, F16 and BF16 are supported"))
    })
}

/// The tensors of a module, as far as they have been found.
struct Pair {
    module: &'static Module,
    /// Its path in the whole model.
    path: String,
    down: Option<TensorInfo>,
    up: Option<TensorInfo>,
}

impl Pair {
    /// Checks the shapes against each other and against the rank of the configuration.
    fn into_module(self, layer: usize, config: &PeftConfig) -> Result<AdaptedModule> {
        let Self { module, path, down, up } = self;
        let (down, up) = match (down, up) {
            (Some(down), Some(up)) => (down, up),
            (Some(one), None) | (None, Some(one)) => {
                return invalid(format!("its tensor {} has no counterpart", one.name));
            }
            (None, None) => return invalid(format!("it has no tensors for {}", module.path)),
        };
        float(&down)?;
        float(&up)?;
        let rank = config.rank(&path);
        for (matrix, axis) in [(&down, 0), (&up, 1)] {
            let TensorInfo { name, shape, elements, .. } = matrix;
            if shape.len() != 2 || shape[axis] != rank || *elements == 0 {
                return invalid(format!(
                    "its tensor {name} has the shape {shape:?}, which does not fit the rank {rank} of r or rank_pattern in \
                     {CONFIG_FILE}"
                ));
            }
        }
        Ok(AdaptedModule { layer, module, down, up, rank, scale: config.scale(&path)? })
    }
}
