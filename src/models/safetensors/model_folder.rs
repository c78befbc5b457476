//! A model's folder as Hugging Face lays it out: `config.json`, and its tensors in one file or in
//! shards that `model.safetensors.index.json` lists.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{TensorInfo, file_error, read_header};
use crate::models::error::ModelError;

/// Parsed, JSON takes up to 16 times its bytes. The longest index of a published model has 9 MB.
const MAX_JSON_BYTES: u64 = 16 << 20;
const EXTENSION: &str = ".safetensors";
const INDEX: &str = ".safetensors.index.json";
/// What transformers and diffusers call the whole of a model's weights.
const STEMS: [&str; 2] = ["model", "diffusion_pytorch_model"];

/// The open files of a model and what lies where in them.
#[derive(Debug)]
pub struct ModelFolder {
    pub path: PathBuf,
    pub config: Value,
    /// What whoever wrote the files says of them.
    pub metadata: Map<String, Value>,
    files: Vec<File>,
    /// By name: the file's place in `files`, and the row.
    tensors: HashMap<String, (usize, TensorInfo)>,
}

impl ModelFolder {
    /// Opens the folder's files and checks their headers; reads no weights.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let config = read_json(&path.join("config.json"))?;
        Self::open_shards(path, config, shards(path)?)
    }

    /// The same of one file without a folder, which has no config.
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

    /// A tensor's row, and the file that has it.
    pub fn tensor(&self, name: &str) -> Option<(&TensorInfo, &File)> {
        let (place, info) = self.tensors.get(name)?;
        Some((info, self.files.get(*place)?))
    }

    /// What stands before the names of a decoder's tensors: nothing, where the folder holds no head beside it.
    pub fn prefix(&self) -> &'static str {
        if self.tensors.contains_key("embed_tokens.weight") { "" } else { "model." }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

/// The files that make up a model: an index's, or the only one. Of the same weights in several types, those without a
/// type in their name.
pub fn shards(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let (files, indices) = (files_with(folder, EXTENSION), files_with(folder, INDEX));
    let plain = |stem: &str, ending: &str| Some(folder.join(format!("{stem}{ending}"))).filter(|path| path.exists());
    for stem in STEMS {
        if let Some(index) = plain(stem, INDEX) {
            return indexed_shards(folder, &index);
        }
        if let Some(whole) = plain(stem, EXTENSION) {
            return Ok(vec![whole]);
        }
    }
    match (indices.as_slice(), files.as_slice()) {
        ([only], _) => indexed_shards(folder, only),
        ([], [only]) => Ok(vec![only.clone()]),
        _ => {
            let problem = format!("the folder has {} .safetensors files, and no index says which", files.len());
            Err(file_error(folder, problem))
        }
    }
}

fn files_with(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(ending));
    entries.filter(named).collect()
}

/// The index's files, each once. A name that would lead out of the folder is refused.
fn indexed_shards(folder: &Path, index: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let json = read_json(index)?;
    let map = json.get("weight_map").and_then(Value::as_object);
    let names: Option<BTreeSet<&str>> = map.and_then(|map| map.values().map(Value::as_str).collect());
    let names = names.filter(|names| !names.is_empty());
    let names = names.ok_or_else(|| file_error(index, "it has no weight_map of file names"))?;
    let inside = |name: &str| name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0']);
    match names.iter().find(|name| !inside(name)) {
        Some(name) => Err(file_error(index, format!("{name:?} is no file of the folder"))),
        None => Ok(names.iter().map(|name| folder.join(name)).collect()),
    }
}

/// Opens a regular file; opening a FIFO would wait for ever.
fn open(path: &Path) -> Result<File, ModelError> {
    let unreadable = |error: std::io::Error| file_error(path, format!("the file cannot be read: {error}"));
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(file_error(path, "not a regular file"));
    }
    File::open(path).map_err(unreadable)
}

/// A JSON file of a sane size.
pub fn read_json(path: &Path) -> Result<Value, ModelError> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_JSON_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| file_error(path, format!("the file cannot be read: {error}")))?;
    parse_json(&bytes).map_err(|error| file_error(path, format!("it is damaged: {error}")))
}

/// JSON as Python writes it: numbers that are none, which JSON does not have, become `null`.
pub fn parse_json(bytes: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(bytes).or_else(|error| match plain(bytes) {
        Some(plain) => serde_json::from_slice(&plain),
        None => Err(error),
    })
}

/// Whether a name from outside is that of a file or folder in the one that it is joined to: no way leads elsewhere.
pub fn is_file_name(name: &str) -> bool {
    let odd = |c: char| c.is_control() || matches!(c, '/' | '\\');
    !name.is_empty() && name.len() <= 255 && !name.starts_with('.') && !name.contains(odd)
}

/// The same text with `null` for each number that is none; `None` if it has none of those.
fn plain(json: &[u8]) -> Option<Vec<u8>> {
    const ODD: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut plain, mut rest, mut found, mut quoted) = (Vec::with_capacity(json.len()), json, false, false);
    while let Some((&byte, after)) = rest.split_first() {
        let odd = ODD.iter().find(|odd| !quoted && rest.starts_with(odd));
        if let Some(odd) = odd {
            plain.extend_from_slice(b"null");
            (rest, found) = (rest.get(odd.len()..).unwrap_or_default(), true);
            continue;
        }
        plain.push(byte);
        rest = after;
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => {
                plain.extend(rest.first());
                rest = rest.get(1..).unwrap_or_default();
            }
            _ => {}
        }
    }
    found.then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn numbers_that_are_none_are_null_outside_of_texts() {
        let json = br#"{"a": -Infinity, "NaN": ["\"NaN", Infinity, "\\", NaN]}"#;
        assert_eq!(plain(json).unwrap(), br#"{"a": null, "NaN": ["\"NaN", null, "\\", null]}"#);
        assert!(plain(br#"{"a": "-Infinity"}"#).is_none());
    }
}
