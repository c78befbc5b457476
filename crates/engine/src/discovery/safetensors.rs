//! Describes a Hugging Face folder: `config.json`, and the headers of its safetensors files.
//!
//! The format (<https://huggingface.co/docs/safetensors>) is an eight-byte length, a JSON header and the data.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::checkpoint;
use crate::embedding;
use crate::model_info::{ModelInfo, ModelKind};
use crate::speech::SpeechCheckpoint;
use crate::transcription::WhisperCheckpoint;
use outpost_models::decoder_family;
use outpost_models::encoder::Family;
use outpost_models::model_files::is_safetensors;
use outpost_models::safetensors::{ModelFolder, read_header, read_json, shards};

const MAX_MODEL_CARD_BYTES: u64 = 4 << 20;

pub(super) fn describe(path: &Path, info: &mut ModelInfo) {
    let Some(folder) = path.parent() else { return };
    if let Err(problem) = fill(path, folder, info) {
        info.problem.get_or_insert(problem);
    }
}

fn fill(path: &Path, folder: &Path, info: &mut ModelInfo) -> Result<(), String> {
    let config = json(&folder.join("config.json"))?;
    let architecture = config.pointer("/architectures/0").or(config.get("model_type")).and_then(Value::as_str);
    info.architecture = architecture.unwrap_or("unknown").to_owned();
    info.license = license(folder);
    let context = config.get("max_position_embeddings").and_then(Value::as_u64);
    info.context_window = context.and_then(|context| u32::try_from(context).ok());
    let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    if folder.join("modules.json").is_file() || Family::from_model_type(model_type).is_some() {
        info.kind = embedding::kind(&config);
        let opened = ModelFolder::open(folder).map_err(|error| error.to_string());
        match opened.and_then(|opened| embedding::check_hugging_face(&opened, &info.id)) {
            Ok(encoder) => {
                info.context_window = u32::try_from(encoder.limit).ok();
                let dimensions = u32::try_from(encoder.dimensions).ok();
                info.embedding_dimensions = dimensions.filter(|_| info.kind == ModelKind::Embedding);
                info.labels = encoder.labels;
            }
            Err(problem) => info.problem = Some(problem),
        }
    } else if model_type == "whisper" {
        info.kind = ModelKind::Transcription;
        info.context_window = None;
        info.problem = WhisperCheckpoint::open(&folder.join("config.json")).err();
    } else if SpeechCheckpoint::is_config(&config) {
        info.kind = ModelKind::Speech;
        info.architecture = "kokoro".to_owned();
        info.problem = SpeechCheckpoint::open(path).err();
    } else if info.architecture.ends_with("ForCausalLM")
        || (config.pointer("/architectures/0").is_none() && decoder_family::find_model_type(model_type).is_some())
    {
        info.kind = ModelKind::Text;
        let opened = ModelFolder::open(folder).map_err(|error| error.to_string());
        match opened.and_then(|folder| checkpoint::check_hugging_face(&folder)) {
            Ok(has_template) => info.has_chat_template = has_template,
            Err(problem) => info.problem = Some(problem),
        }
    } else {
        info.problem = Some(format!("the architecture {} is not supported", info.architecture));
    }
    let files = shards(folder).map_err(|error| error.to_string())?;
    count_weights(&files, info)
}

/// Counts all weights in the safetensors files among `files`.
pub(super) fn count_weights(files: &[PathBuf], info: &mut ModelInfo) -> Result<(), String> {
    let mut kinds: HashMap<String, u64> = HashMap::new();
    info.bytes = 0;
    for path in files.iter().filter(|path| is_safetensors(path)) {
        let mut file = File::open(path).map_err(|error| format!("the file cannot be read: {error}"))?;
        let header = read_header(&mut file, path).map_err(|error| error.to_string())?;
        info.bytes += header.length;
        for tensor in header.tensors {
            *kinds.entry(tensor.dtype).or_default() += tensor.elements;
        }
    }
    info.parameters = kinds.values().sum();
    info.quantization = kinds.into_iter().max_by_key(|(_, elements)| *elements).map(|(kind, _)| kind);
    Ok(())
}

fn json(path: &Path) -> Result<Value, String> {
    read_json(path).map_err(|error| error.to_string())
}

/// The model card's `license:` line.
pub(super) fn license(folder: &Path) -> Option<String> {
    let card = String::from_utf8_lossy(&read_prefix(&folder.join("README.md"))).into_owned();
    let front = card.strip_prefix("---")?.split("\n---").next()?.to_owned();
    let line = front.lines().find_map(|line| line.strip_prefix("license:"))?;
    let name = line.trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

/// The beginning of a file; empty if it cannot be read.
fn read_prefix(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && let Ok(file) = File::open(path)
    {
        let _ = file.take(MAX_MODEL_CARD_BYTES).read_to_end(&mut bytes);
    }
    bytes
}
