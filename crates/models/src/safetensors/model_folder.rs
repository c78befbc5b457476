//! Model folders of Hugging Face: `config.json`, and tensors in one file or in the shards that
//! `model.safetensors.index.json` lists.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{TensorInfo, file_error, read_header};
use crate::error::ModelError;
use crate::model_files::{FolderListing, Names, is_safetensors};

/// Maximum size of a JSON file. Parsed JSON takes up to 16 times its size. The largest index of a published model has
/// 9 MB.
const MAX_JSON_BYTES: u64 = 16 << 20;
const EXTENSION: &str = ".safetensors";
const INDEX: &str = ".safetensors.index.json";
/// File stems of weights in transformers and diffusers.
const STEMS: [&str; 2] = ["model", "diffusion_pytorch_model"];

/// The beginnings of the names of other weights beside those of a model: of an adapter, and of the same model in the layout of
/// its authors.
const OTHER_WEIGHTS: [&str; 2] = ["adapter_model", "consolidated"];

/// The open files of a model and their tensors.
#[derive(Debug)]
pub struct ModelFolder {
    pub path: PathBuf,
    pub config: Value,
    /// The free-form metadata of all files.
    pub metadata: Map<String, Value>,
    files: Vec<File>,
    /// By name: the index in `files`, and the entry.
    tensors: HashMap<String, (usize, TensorInfo)>,
}

impl ModelFolder {
    /// Opens the folder's files and checks their headers; reads no weights.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let config = read_config(path)?;
        Self::open_shards(path, config, shards(path)?)
    }

    /// Opens a single file, without a `config.json`.
    pub fn open_file(path: &Path) -> Result<Self, ModelError> {
        Self::open_shards(path, Value::Null, vec![path.to_owned()])
    }

    fn open_shards(path: &Path, config: Value, shards: Vec<PathBuf>) -> Result<Self, ModelError> {
        let (files, tensors, metadata) = (Vec::new(), HashMap::new(), Map::new());
        let mut folder = Self { path: path.to_owned(), config, metadata, files, tensors };
        for shard in shards {
            let mut file = open(&shard)?;
            let header = read_header(&mut file, &shard)?;
            folder.metadata.extend(header.metadata);
            for tensor in header.tensors {
                let name = tensor.name.clone();
                if folder.tensors.insert(name.clone(), (folder.files.len(), tensor)).is_some() {
                    return Err(file_error(&shard, format!("the tensor {name} is in two files")));
                }
            }
            folder.files.push(file);
        }
        Ok(folder)
    }

    /// A tensor's entry, and its file.
    pub fn tensor(&self, name: &str) -> Option<(&TensorInfo, &File)> {
        let (file, info) = self.tensors.get(name)?;
        Some((info, self.files.get(*file)?))
    }

    /// The prefix of a decoder's tensor names. It is empty if the folder has no output head.
    pub fn prefix(&self) -> &'static str {
        const PREFIXES: [&str; 4] = ["", "model.language_model.", OLD_TEXT_PREFIX, "backbone."];
        let has = |name: String| self.tensors.contains_key(&name);
        let is_used =
            |prefix: &&str| has(format!("{prefix}embed_tokens.weight")) || has(format!("{prefix}embeddings.weight"));
        PREFIXES.into_iter().find(is_used).unwrap_or("model.")
    }

    /// Whether the folder has a model for texts and pictures, of which only the part for texts is used.
    pub fn is_multimodal(&self) -> bool {
        self.config.get("vision_config").is_some()
    }

    /// Whether a tensor is in FP8.
    pub fn has_fp8(&self) -> bool {
        self.tensors.values().any(|(_, info)| info.fp8().is_some())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

/// The beginning of the names of a decoder's tensors in multimodal models before transformers 5.
pub const OLD_TEXT_PREFIX: &str = "language_model.model.";

/// The `model_type` of multimodal models whose part for texts can be used by itself.
pub const MULTIMODAL_TYPES: [&str; 7] =
    ["cohere2_vision", "gemma3", "gemma4", "gemma4_unified", "mistral3", "qwen3_5", "qwen3_5_moe"];

/// The keys that published files of Gemma 3 leave out of `text_config` if they have transformers' default.
fn gemma3_defaults() -> Map<String, Value> {
    Map::from_iter([
        ("num_attention_heads".to_owned(), Value::from(8)),
        ("num_key_value_heads".to_owned(), Value::from(4)),
        ("query_pre_attn_scalar".to_owned(), Value::from(256)),
        ("max_position_embeddings".to_owned(), Value::from(131_072)),
        ("rms_norm_eps".to_owned(), Value::from(1e-6)),
    ])
}

/// The configuration of a folder. That of the part for texts takes the place of a model for texts and pictures.
///
/// # Errors
/// If `config.json` is missing or damaged.
pub fn read_config(folder: &Path) -> Result<Value, ModelError> {
    let mut config = read_json(&folder.join("config.json"))?;
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if MULTIMODAL_TYPES.contains(&kind.as_str())
        && let Some(Value::Object(text)) = config.get("text_config").cloned()
        && let Some(config) = config.as_object_mut()
    {
        // The head belongs to the whole model.
        let tied = config.get("tie_word_embeddings").cloned();
        let defaults = if kind == "gemma3" { gemma3_defaults() } else { Map::new() };
        config.extend(defaults.into_iter().chain(text));
        config.extend(tied.map(|tied| ("tie_word_embeddings".to_owned(), tied)));
    }
    Ok(config)
}

/// The weight files of a model: the single file, or else those of the index, as transformers chooses them. An index beside a
/// single file is left from earlier shards. If there are weights of several types, the files without a type in their name.
pub fn shards(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let listing = FolderListing::read(folder);
    for stem in STEMS {
        if let Some(file) = listing.file(&format!("{stem}{EXTENSION}")) {
            return Ok(vec![file.clone()]);
        }
        if let Some(index) = listing.file(&format!("{stem}{INDEX}")) {
            return indexed_shards(folder, index);
        }
    }
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let indices: Vec<&PathBuf> = listing.files.iter().filter(|path| name(path).ends_with(INDEX)).collect();
    let all = listing.safetensors();
    let is_other = |path: &Path| OTHER_WEIGHTS.iter().any(|other| name(path).starts_with(other));
    let own: Vec<&PathBuf> = all.iter().copied().filter(|path| !is_other(path)).collect();
    match (indices.as_slice(), own.as_slice(), all.as_slice()) {
        ([only], ..) => indexed_shards(folder, only),
        ([], [only], _) | ([], [], [only]) => Ok(vec![(*only).clone()]),
        ([], ..) if all.is_empty() => Err(file_error(folder, "the folder has no .safetensors files")),
        _ => {
            let problem = format!(
                "the folder has {} .safetensors files, but neither model{EXTENSION} nor an index: {}",
                all.len(),
                Names(&all)
            );
            Err(file_error(folder, problem))
        }
    }
}

/// The distinct files of an index. A name outside of the folder is an error.
fn indexed_shards(folder: &Path, index: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let json = read_json(index)?;
    let map = json.get("weight_map").and_then(Value::as_object);
    let names: Option<BTreeSet<&str>> = map.and_then(|map| map.values().map(Value::as_str).collect());
    let names = names.filter(|names| !names.is_empty());
    let names = names.ok_or_else(|| file_error(index, "it has no weight_map of file names"))?;
    let inside = |name: &str| is_safetensors(Path::new(name)) && !name.contains(['/', '\\', '\0']);
    match names.iter().find(|name| !inside(name)) {
        Some(name) => Err(file_error(index, format!("{name:?} is not a file name in the folder"))),
        None => Ok(names.iter().map(|name| folder.join(name)).collect()),
    }
}

/// Opens a regular file. Opening a FIFO would block.
pub fn open(path: &Path) -> Result<File, ModelError> {
    let unreadable = |error: std::io::Error| file_error(path, format!("the file cannot be read: {error}"));
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(file_error(path, "not a regular file"));
    }
    File::open(path).map_err(unreadable)
}

/// Reads a JSON file of at most [`MAX_JSON_BYTES`].
pub fn read_json(path: &Path) -> Result<Value, ModelError> {
    let unreadable = |error: std::io::Error| file_error(path, format!("the file cannot be read: {error}"));
    let (file, mut bytes) = (open(path)?, Vec::new());
    let size = file.metadata().map_err(unreadable)?.len();
    file.take(MAX_JSON_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_JSON_BYTES {
        return Err(file_error(path, format!("the file has {size} bytes; the limit is {MAX_JSON_BYTES}")));
    }
    parse_json(&bytes).map_err(|error| file_error(path, format!("it is damaged: {error}")))
}

/// Parses JSON as Python writes it: NaN and infinities, which JSON does not have, become `null`.
pub fn parse_json(bytes: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(bytes).or_else(|error| match replace_non_finite(bytes) {
        Some(json) => serde_json::from_slice(&json),
        None => Err(error),
    })
}

/// Checks that an untrusted name is a plain file name, so that joining it to a folder stays inside that folder.
pub fn is_file_name(name: &str) -> bool {
    let is_forbidden = |c: char| c.is_control() || matches!(c, '/' | '\\');
    !name.is_empty() && name.len() <= 255 && !name.starts_with('.') && !name.contains(is_forbidden)
}

/// Replaces NaN and infinities by `null`; `None` if there are none.
fn replace_non_finite(json: &[u8]) -> Option<Vec<u8>> {
    const NON_FINITE: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut out, mut rest, mut found, mut quoted) = (Vec::with_capacity(json.len()), json, false, false);
    while let Some((&byte, after)) = rest.split_first() {
        let literal = NON_FINITE.iter().find(|literal| !quoted && rest.starts_with(literal));
        if let Some(literal) = literal {
            out.extend_from_slice(b"null");
            (rest, found) = (rest.get(literal.len()..).unwrap_or_default(), true);
            continue;
        }
        out.push(byte);
        rest = after;
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => {
                out.extend(rest.first());
                rest = rest.get(1..).unwrap_or_default();
            }
            _ => {}
        }
    }
    found.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::replace_non_finite;

    #[test]
    fn non_finite_numbers_become_null_outside_of_strings() {
        let json = br#"{"a": -Infinity, "NaN": ["\"NaN", Infinity, "\\", NaN]}"#;
        assert_eq!(replace_non_finite(json).unwrap(), br#"{"a": null, "NaN": ["\"NaN", null, "\\", null]}"#);
        assert!(replace_non_finite(br#"{"a": "-Infinity"}"#).is_none());
    }
}
