//! An opened Whisper checkpoint.

use std::path::Path;

use serde_json::Value;

use crate::engine::precision::Precision;
use crate::models::backend::Backend;
use crate::models::safetensors::{ModelFolder, read_json};
use crate::models::weights::Footprint;

/// A checkpoint whose weights are not read yet.
pub struct WhisperCheckpoint {
    folder: ModelFolder,
    generation_config: Value,
}

impl WhisperCheckpoint {
    /// Opens and checks a checkpoint without reading weights. `path`: its main file.
    pub fn open(path: &Path) -> Result<Self, String> {
        let folder = path.parent().ok_or("the model file has no parent folder")?;
        let generation = folder.join("generation_config.json");
        let generation_config = match generation.is_file() {
            true => read_json(&generation).map_err(|error| error.to_string())?,
            false => Value::Null,
        };
        let folder = ModelFolder::open(folder).map_err(|error| error.to_string())?;
        Ok(Self { folder, generation_config })
    }

    pub fn generation_config(&self) -> &Value {
        &self.generation_config
    }

    fn number(&self, key: &str) -> usize {
        self.folder.config.get(key).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
    }

    pub fn vocabulary(&self) -> usize {
        self.number("vocab_size")
    }

    pub fn decoder_positions(&self) -> usize {
        self.number("max_target_positions")
    }

    pub fn is_multilingual(&self) -> bool {
        self.vocabulary() >= 51865
    }

    pub fn footprint<B: Backend>(&self, _backend: &B, _precision: Precision) -> Result<Footprint, String> {
        Err("not yet".to_owned())
    }
}
