//! A model's folder as Hugging Face lays it out: `config.json`, and its tensors in one file or in
//! shards that `model.safetensors.index.json` lists.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{SafetensorsError, TensorInfo, read_header};

const LONGEST_JSON: u64 = 64 << 20;
const INDEX: &str = "model.safetensors.index.json";

/// The open files of a model and what lies where in them.
#[derive(Debug)]
pub struct Folder {
    pub path: PathBuf,
    pub config: Value,
    files: Vec<File>,
    /// By name: the file's place in `files`, and the row.
    tensors: HashMap<String, (usize, TensorInfo)>,
}

impl Folder {
    /// Opens the folder's files and checks their headers; reads no weights.
    pub fn open(path: &Path) -> Result<Self, SafetensorsError> {
        let config = read_json(&path.join("config.json"))?;
        let mut folder = Self { path: path.to_owned(), config, files: Vec::new(), tensors: HashMap::new() };
        for shard in shards(path)? {
            let mut file = open(&shard)?;
            for tensor in read_header(&mut file, &shard)?.tensors {
                let name = tensor.name.clone();
                if folder.tensors.insert(name.clone(), (folder.files.len(), tensor)).is_some() {
                    return Err(SafetensorsError::new(&shard, format!("the tensor {name} is in two files")));
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

/// The files that make up a model: the index's, or the only one.
pub fn shards(folder: &Path) -> Result<Vec<PathBuf>, SafetensorsError> {
    let index = folder.join(INDEX);
    if index.exists() {
        return listed(folder, &index);
    }
    let whole = folder.join("model.safetensors");
    if whole.is_file() {
        return Ok(vec![whole]);
    }
    match tensor_files(folder).as_slice() {
        [only] => Ok(vec![only.clone()]),
        files => {
            let problem =
                format!("the folder has {} .safetensors files, no model.safetensors and no {INDEX}", files.len());
            Err(SafetensorsError::new(folder, problem))
        }
    }
}

fn tensor_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "safetensors")).collect()
}

/// The index's files, each once. A name that would lead out of the folder is refused.
fn listed(folder: &Path, index: &Path) -> Result<Vec<PathBuf>, SafetensorsError> {
    let json = read_json(index)?;
    let map = json.get("weight_map").and_then(Value::as_object);
    let names: Option<BTreeSet<&str>> = map.and_then(|map| map.values().map(Value::as_str).collect());
    let names = names.filter(|names| !names.is_empty());
    let names = names.ok_or_else(|| SafetensorsError::new(index, "it has no weight_map of file names"))?;
    let inside = |name: &str| name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0']);
    match names.iter().find(|name| !inside(name)) {
        Some(name) => Err(SafetensorsError::new(index, format!("{name:?} is no file of the folder"))),
        None => Ok(names.iter().map(|name| folder.join(name)).collect()),
    }
}

/// Opens a regular file; opening a FIFO would wait for ever.
fn open(path: &Path) -> Result<File, SafetensorsError> {
    let unreadable = |error: std::io::Error| SafetensorsError::new(path, format!("the file cannot be read: {error}"));
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(SafetensorsError::new(path, "not a regular file"));
    }
    File::open(path).map_err(unreadable)
}

/// A JSON file of a sane size.
pub fn read_json(path: &Path) -> Result<Value, SafetensorsError> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    file.take(LONGEST_JSON)
        .read_to_end(&mut bytes)
        .map_err(|error| SafetensorsError::new(path, format!("the file cannot be read: {error}")))?;
    serde_json::from_slice(&bytes).map_err(|error| SafetensorsError::new(path, format!("it is damaged: {error}")))
}
