//! An opened Whisper checkpoint: a Hugging Face folder, or a `ggml-*.bin` of whisper.cpp.

use std::path::Path;

use serde_json::Value;

use crate::precision::Precision;
use outpost_models::backend::{PagedAttention, TimeConvolutions};
use outpost_models::model_files::is_ggml;
use outpost_models::safetensors::{ModelFolder, read_json};
use outpost_models::weights::Footprint;
use outpost_models::whisper::{GgmlFile, LogMel, WhisperConfig, WhisperModel, WhisperWeights, alignment_heads};

/// The encoder's positions of a window of 30 seconds.
const AUDIO_POSITIONS: usize = 1500;

/// A checkpoint whose weights are not read yet.
pub struct WhisperCheckpoint {
    files: Files,
    config: WhisperConfig,
    /// `null` if there is none.
    generation_config: Value,
}

enum Files {
    HuggingFace(Box<ModelFolder>),
    Ggml(Box<GgmlFile>),
}

impl WhisperCheckpoint {
    /// Opens and checks a checkpoint without reading weights. `path`: its main file.
    ///
    /// # Errors
    /// If a file is damaged, or the model is not supported.
    pub fn open(path: &Path) -> Result<Self, String> {
        let read = || {
            if is_ggml(path) {
                let file = GgmlFile::open(path)?;
                let config = *file.config();
                return Ok(Self { files: Files::Ggml(Box::new(file)), config, generation_config: Value::Null });
            }
            let folder = path.parent().unwrap_or(path);
            let generation = folder.join("generation_config.json");
            // transformers, too, does without one that is damaged.
            let generation_config = read_json(&generation).unwrap_or_default();
            let folder = ModelFolder::open(folder)?;
            let config = WhisperConfig::from_config_json(&folder.config)?;
            Ok(Self { files: Files::HuggingFace(Box::new(folder)), config, generation_config })
        };
        let opened = read().map_err(|error: outpost_models::ModelError| error.to_string())?;
        match opened.config.audio_positions {
            AUDIO_POSITIONS => Ok(opened),
            other => Err(format!("its encoder has {other} positions; windows of 30 seconds need {AUDIO_POSITIONS}")),
        }
    }

    pub fn config(&self) -> &WhisperConfig {
        &self.config
    }

    /// The settings of `generation_config.json`; `null` if there are none.
    pub fn generation_config(&self) -> &Value {
        &self.generation_config
    }

    pub(super) fn weights(&self) -> WhisperWeights<'_> {
        match &self.files {
            Files::HuggingFace(folder) => WhisperWeights::from_folder(folder),
            Files::Ggml(file) => WhisperWeights::from_ggml(file),
        }
    }

    pub(super) fn log_mel(&self) -> LogMel {
        let filters = match &self.files {
            Files::HuggingFace(_) => None,
            Files::Ggml(file) => Some(file.filters()),
        };
        LogMel::new(&self.config, filters)
    }

    /// The heads of cross-attention that follow the audio, as `(layer, head)`.
    pub(super) fn alignment_heads(&self) -> Vec<(usize, usize)> {
        let index = |value: &Value| value.as_u64().and_then(|index| usize::try_from(index).ok());
        let head = |value: &Value| Some((index(value.get(0)?)?, index(value.get(1)?)?));
        let exists =
            |(layer, head): &(usize, usize)| *layer < self.config.decoder_layers && *head < self.config.decoder_heads;
        let listed = self.generation_config.get("alignment_heads").and_then(Value::as_array);
        let listed: Vec<_> = listed.into_iter().flatten().filter_map(head).filter(exists).collect();
        if listed.is_empty() { alignment_heads(&self.config) } else { listed }
    }

    /// Memory for the weights, and for reading them.
    pub fn footprint<B: PagedAttention + TimeConvolutions>(&self, backend: &B, precision: Precision) -> Footprint {
        WhisperModel::footprint(&self.weights(), &self.config, precision.kind(), backend)
    }
}
