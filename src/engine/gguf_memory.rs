//! The memory that a GGUF model will take, before it is loaded. It is computed by the functions that load a model, so that
//! a prediction cannot disagree with a later refusal.

use std::path::Path;

use super::checkpoint::Checkpoint;
use super::discovery::inspect_file;
use super::model_info::{ModelInfo, ModelKind};
use super::registry::text_needs;
use super::runtime::catch_panic::catch_load_panic;
use super::settings::Settings;
use crate::models::backend::Cpu;
use crate::models::kv::{KvShape, blocks_for};

/// The context for which the KV cache is counted, in tokens, unless the model has a shorter one.
const COUNTED_CONTEXT: usize = 8192;

/// Memory on the CPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    pub weights: u64,
    /// Only while the model is loaded.
    pub loading: u64,
    pub scratch: u64,
    /// KV cache of one sequence of `context` tokens.
    pub kv: u64,
    pub context: usize,
}

impl MemoryNeed {
    /// For the loaded model and one sequence.
    pub fn total(&self) -> u64 {
        self.scratch + self.weights + self.kv.max(self.loading)
    }
}

/// Describes the GGUF file at `path` and the memory that it needs. Reads only its header, so the rest of the file may be
/// missing, if its length is right.
///
/// # Errors
/// Why the model cannot be served.
pub fn gguf_memory(path: &Path, settings: &Settings) -> Result<(ModelInfo, MemoryNeed), String> {
    let info = inspect_file(path).ok_or("its name does not end with .gguf")?;
    if let Some(problem) = info.problem {
        return Err(problem);
    }
    let need = catch_load_panic(|| match info.kind {
        ModelKind::Text => text_memory(path, settings),
        ModelKind::Embedding | ModelKind::Reranker => encoder_memory(path, settings),
        _ => Err(format!("the architecture {} is not supported", info.architecture)),
    })?;
    Ok((info, need))
}

fn text_memory(path: &Path, settings: &Settings) -> Result<MemoryNeed, String> {
    let (checkpoint, backend) = (Checkpoint::open_text(path)?, Cpu::new(settings.threads));
    let (footprint, scratch) = text_needs(&checkpoint, &backend, settings)?;
    let config = checkpoint.weights().decoder_config().map_err(|error| error.to_string())?;
    let (layers, kv_heads, head_width) = (config.layer_count, config.kv_heads, config.head_width);
    let shape = KvShape { layers, kv_heads, head_width, kv_type: settings.kv_type };
    let context = config.context.min(COUNTED_CONTEXT);
    let kv = shape.block_bytes() * blocks_for(context) as u64;
    Ok(MemoryNeed { weights: footprint.weights, loading: footprint.loading, scratch, kv, context })
}

fn encoder_memory(path: &Path, settings: &Settings) -> Result<MemoryNeed, String> {
    let (footprint, scratch) = Checkpoint::open(path)?.encoder_needs(&Cpu::new(settings.threads))?;
    Ok(MemoryNeed { weights: footprint.weights, loading: footprint.loading, scratch, kv: 0, context: 0 })
}
