//! Describes a Hugging Face folder: `config.json`, and the headers of its safetensors files.
//!
//! The format (<https://huggingface.co/docs/safetensors>) is an eight-byte length, a JSON header and the data.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::model_card::license;
use crate::kinds::{Kind, ModelFiles};
use crate::model_info::ModelInfo;
use outpost_models::model_files::is_safetensors;
use outpost_models::safetensors::{read_config, read_header, shards};

pub(super) fn describe(path: &Path, info: &mut ModelInfo) {
    let Some(folder) = path.parent() else { return };
    if let Err(problem) = fill(folder, info) {
        info.problem.get_or_insert(problem);
    }
}

fn fill(folder: &Path, info: &mut ModelInfo) -> Result<(), String> {
    let config = read_config(folder).map_err(|error| error.to_string())?;
    let architecture = config.pointer("/architectures/0").or(config.get("model_type")).and_then(Value::as_str);
    info.architecture = architecture.unwrap_or("unknown").to_owned();
    info.license = license(folder);
    let context = config.get("max_position_embeddings").and_then(Value::as_u64);
    info.context_window = context.and_then(|context| u32::try_from(context).ok());
    if !Kind::describe(&ModelFiles::HuggingFace { folder, config: &config }, info) {
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
            let (kind, count) = tensor.weights();
            *kinds.entry(kind.to_owned()).or_default() += count;
        }
    }
    info.parameters = kinds.values().sum();
    info.quantization = kinds.into_iter().max_by_key(|(_, elements)| *elements).map(|(kind, _)| kind);
    Ok(())
}
