//! The memory that a model will take, before it is loaded. It is computed by the functions that load a model, so that a
//! prediction cannot disagree with a later refusal.

use std::path::Path;

use super::device_backend::DeviceBackend;
use super::discovery::inspect;
use super::kinds::{Kind, MemoryNeed};
use super::model_info::ModelInfo;
use super::runtime::catch_panic::catch_load_panic;
use super::settings::Settings;
use outpost_models::weights::Footprint;

/// Describes the model at `path`, a file or a folder as in the models folder, and the memory that it needs on the default device
/// of `settings`, to which they must be [adapted](Settings::for_planning). Reads only small files and headers, so the rest of the
/// weights may be missing, if the lengths of files are right.
///
/// # Errors
/// Why the model cannot be served.
pub fn model_memory(path: &Path, settings: &Settings) -> Result<(ModelInfo, MemoryNeed), String> {
    let device = DeviceBackend::open(&settings.devices.usual, settings)?;
    let found = inspect(path).ok_or("it is not a model in a format that is supported")?;
    let info = found.info;
    if let Some(problem) = info.problem {
        return Err(problem);
    }
    let need = match Kind::find(info.kind) {
        // The memory of an adapter is that of its file. Its base model is another model.
        _ if found.adapter.is_some() => MemoryNeed::new(Footprint { weights: info.bytes, loading: 0 }, 0),
        Some(kind) => catch_load_panic(|| (kind.memory)(&found.path, &device, settings))?,
        None => return Err(format!("the architecture {} is not supported", info.architecture)),
    };
    Ok((info, need))
}
