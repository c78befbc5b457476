//! The row of a Hugging Face folder: `config.json` and safetensors, of which only headers are read.
//!
//! Format: <https://huggingface.co/docs/safetensors>: eight bytes of length, a JSON header, data.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{Kind, ModelInfo};

const LONGEST_HEADER: u64 = 64 << 20;
const LONGEST_CONFIG: u64 = 4 << 20;

pub(super) fn describe(path: &Path, info: &mut ModelInfo) {
    let Some(folder) = path.parent() else { return };
    if let Err(problem) = fill(folder, info) {
        info.problem = Some(problem);
    }
}

fn fill(folder: &Path, info: &mut ModelInfo) -> Result<(), String> {
    let config = json(&folder.join("config.json"))?;
    let architecture = config.pointer("/architectures/0").or(config.get("model_type")).and_then(Value::as_str);
    info.architecture = architecture.unwrap_or("unknown").to_owned();
    info.license = license(folder);
    let number =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
    info.context_window = number(&config, "max_position_embeddings");
    if folder.join("modules.json").is_file() || info.architecture.starts_with("Bert") {
        info.kind = Kind::Embedding;
        info.embedding_dimensions = number(&config, "hidden_size");
        let sentences = json(&folder.join("sentence_bert_config.json")).unwrap_or_default();
        info.context_window = number(&sentences, "max_seq_length").or(info.context_window);
    } else if info.architecture.ends_with("ForCausalLM") {
        info.kind = Kind::Text;
        info.problem = Some("chat models in safetensors are not supported: use a GGUF file of the model".to_owned());
    } else {
        info.problem = Some(format!("the architecture {} is not supported", info.architecture));
    }
    weigh(folder, info)
}

fn weigh(folder: &Path, info: &mut ModelInfo) -> Result<(), String> {
    let mut kinds: HashMap<String, u64> = HashMap::new();
    info.bytes = 0;
    for path in super::entries(folder).iter().filter(|path| path.extension().is_some_and(|one| one == "safetensors")) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (length, tensors) = header(path).map_err(|problem| format!("{name}: {problem}"))?;
        info.bytes += length;
        for (kind, elements) in tensors {
            *kinds.entry(kind).or_default() += elements;
        }
    }
    info.parameters = kinds.values().sum();
    info.quantization = kinds.into_iter().max_by_key(|(_, elements)| *elements).map(|(kind, _)| kind);
    Ok(())
}

#[derive(Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The file's length, and each tensor's type and size.
fn header(path: &Path) -> Result<(u64, Vec<(String, u64)>), String> {
    let unreadable = |error: std::io::Error| format!("the file cannot be read: {error}");
    let mut file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(|_| format!("the file is truncated: it has {length} bytes"))?;
    let size = u64::from_le_bytes(prefix);
    let data = length - 8;
    if size > data.min(LONGEST_HEADER) {
        return Err(format!("the header says it has {size} bytes, the file has {length}"));
    }
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_exact(&mut bytes).map_err(unreadable)?;
    let mut rows: serde_json::Map<String, Value> =
        serde_json::from_slice(&bytes).map_err(|error| format!("the header is damaged: {error}"))?;
    rows.remove("__metadata__");
    let tensors = rows.into_iter().map(|(name, row)| tensor(&name, row, data - size));
    Ok((length, tensors.collect::<Result<_, _>>()?))
}

fn tensor(name: &str, row: Value, data: u64) -> Result<(String, u64), String> {
    let tensor: Tensor = serde_json::from_value(row).map_err(|error| format!("tensor {name}: {error}"))?;
    let [start, end] = tensor.data_offsets;
    if start > end || end > data {
        return Err(format!("the file is truncated: tensor {name} ends at byte {end} of {data}"));
    }
    let elements = tensor.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
    match elements {
        // A byte holds eight numbers at most, so that sums of these stay small.
        Some(elements) if elements / 8 <= end - start => Ok((tensor.dtype, elements)),
        _ => Err(format!("tensor {name} has the impossible shape {:?}", tensor.shape)),
    }
}

fn json(path: &Path) -> Result<Value, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    serde_json::from_slice(&head(path)).map_err(|error| format!("{name} is damaged: {error}"))
}

/// The model card's `license:` line.
fn license(folder: &Path) -> Option<String> {
    let card = String::from_utf8_lossy(&head(&folder.join("README.md"))).into_owned();
    let front = card.strip_prefix("---")?.split("\n---").next()?.to_owned();
    let line = front.lines().find_map(|line| line.strip_prefix("license:"))?;
    let name = line.trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

/// A small file; nothing where it cannot be read.
fn head(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && let Ok(file) = File::open(path)
    {
        let _ = file.take(LONGEST_CONFIG).read_to_end(&mut bytes);
    }
    bytes
}
