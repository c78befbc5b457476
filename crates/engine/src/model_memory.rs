//! The memory that a model will take, before it is loaded. It is computed by the functions that load a model, so that a
//! prediction cannot disagree with a later refusal.

use std::path::Path;

use super::checkpoint::Checkpoint;
use super::device_worker::{DeviceBackend, open as open_device};
use super::discovery::inspect;
use super::image;
use super::model_info::{ModelInfo, ModelKind};
use super::precision::Precision;
use super::registry::text_needs;
use super::runtime::catch_panic::catch_load_panic;
use super::settings::Settings;
use super::speech::SpeechCheckpoint;
use super::transcription::WhisperCheckpoint;
use outpost_models::backend::Backend;
use outpost_models::kv::KvGroup;
use outpost_models::weights::Footprint;

/// The context for which the KV cache is counted, in tokens, unless the model has a shorter one.
const COUNTED_CONTEXT: usize = 8192;

/// Memory of a device, in bytes.
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
        self.scratch.saturating_add(self.weights).saturating_add(self.kv.max(self.loading))
    }

    fn of(footprint: Footprint, scratch: u64) -> Self {
        Self { weights: footprint.weights, loading: footprint.loading, scratch, kv: 0, context: 0 }
    }
}

/// Describes the model at `path`, a file or a folder as in the models folder, and the memory that it needs on the default device
/// of `settings`, to which they must be [adapted](Settings::for_planning). Reads only small files and headers, so the rest of the
/// weights may be missing, if the lengths of files are right.
///
/// # Errors
/// Why the model cannot be served.
pub fn model_memory(path: &Path, settings: &Settings) -> Result<(ModelInfo, MemoryNeed), String> {
    match open_device(&settings.devices.usual, settings)? {
        DeviceBackend::Cpu(cpu) => memory_on(&cpu, path, settings),
        DeviceBackend::Candle(candle) => memory_on(&candle, path, settings),
    }
}

fn memory_on<B: Backend>(backend: &B, path: &Path, settings: &Settings) -> Result<(ModelInfo, MemoryNeed), String> {
    let found = inspect(path).ok_or("it is not a model in a format that is supported")?;
    let (info, path) = (found.info, found.path.as_path());
    if let Some(problem) = info.problem {
        return Err(problem);
    }
    let need = catch_load_panic(|| match info.kind {
        // The memory of an adapter is that of its file. Its base model is another model.
        _ if found.adapter.is_some() => Ok(MemoryNeed::of(Footprint { weights: info.bytes, loading: 0 }, 0)),
        ModelKind::Text => text_memory(path, backend, settings),
        ModelKind::Embedding | ModelKind::Reranker | ModelKind::Classifier => {
            let (footprint, scratch) = Checkpoint::open(path)?.encoder_needs(backend)?;
            Ok(MemoryNeed::of(footprint, scratch))
        }
        ModelKind::Image => Ok(MemoryNeed::of(image::footprint(&image::open(path)?, backend, Precision::Full), 0)),
        ModelKind::Transcription => {
            Ok(MemoryNeed::of(WhisperCheckpoint::open(path)?.footprint(backend, Precision::Full), 0))
        }
        ModelKind::Speech => Ok(MemoryNeed::of(SpeechCheckpoint::open(path)?.footprint(backend, Precision::Full), 0)),
        ModelKind::Unknown => Err(format!("the architecture {} is not supported", info.architecture)),
    })?;
    Ok((info, need))
}

fn text_memory<B: Backend>(path: &Path, backend: &B, settings: &Settings) -> Result<MemoryNeed, String> {
    let checkpoint = Checkpoint::open_text(path)?;
    let (footprint, scratch) = text_needs(&checkpoint, backend, settings)?;
    let config = checkpoint.weights().decoder_config().map_err(|error| error.to_string())?;
    let context = config.context.min(COUNTED_CONTEXT);
    let groups = config.kv_groups(settings.kv_type);
    let bytes = |group: &KvGroup| group.block_bytes * group.max_blocks(context, settings.prefill_chunk) as u64;
    let kv = groups.iter().map(bytes).sum();
    Ok(MemoryNeed { kv, context, ..MemoryNeed::of(footprint, scratch) })
}
