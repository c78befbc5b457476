//! The files in a model's folder from which its tokenizer and chat template are built, in memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use outpost_models::safetensors::parse_json;

/// Where transformers saves the tool template next to `chat_template.jinja`.
pub const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";

/// Larger files are refused; bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// The limit for files parsed into JSON values, which take up to 16 times the file's size in memory; bytes.
const MAX_JSON_BYTES: u64 = 8 << 20;

/// The files and their size limits.
const FILES: [(&str, u64); 10] = [
    (TOOL_USE_FILE, MAX_FILE_BYTES),
    ("chat_template.jinja", MAX_FILE_BYTES),
    ("config.json", MAX_JSON_BYTES),
    ("generation_config.json", MAX_JSON_BYTES),
    ("merges.txt", MAX_FILE_BYTES),
    ("special_tokens_map.json", MAX_JSON_BYTES),
    ("tokenizer.json", MAX_FILE_BYTES),
    ("tokenizer_config.json", MAX_JSON_BYTES),
    ("vocab.json", MAX_FILE_BYTES),
    ("vocab.txt", MAX_FILE_BYTES),
];

/// The files of a folder by name.
#[derive(Debug, Default)]
pub struct TextFiles(BTreeMap<&'static str, Vec<u8>>);

impl TextFiles {
    /// Reads those of the files that the folder has.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let read = |(name, largest): &(&'static str, u64)| {
            Some(read_file(&folder.join(name), name, *largest).transpose()?.map(|bytes| (*name, bytes)))
        };
        FILES.iter().filter_map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The total size of those of the files that the folder has; bytes.
    pub fn size_on_disk(folder: &Path) -> u64 {
        FILES.iter().filter_map(|(name, _)| Some(fs::metadata(folder.join(name)).ok()?.len())).sum()
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// A file's text; `None` if the folder does not have it.
    pub fn text(&self, name: &str) -> Result<Option<&str>, String> {
        let text = self.bytes(name).map(std::str::from_utf8).transpose();
        text.map_err(|error| format!("{name} is not valid UTF-8: {error}"))
    }

    /// A file's JSON; `null` if the folder does not have it.
    pub fn json(&self, name: &str) -> Result<Value, String> {
        let Some(bytes) = self.bytes(name) else { return Ok(Value::Null) };
        parse_json(bytes).map_err(|error| format!("{name}: it is damaged: {error}"))
    }
}

/// A token that `tokenizer_config.json` names, as a string or as an object with `content`.
pub fn named_token<'a>(config: &'a Value, key: &str) -> Option<&'a str> {
    let token = config.get(key)?;
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// A regular file's content; `None` if it does not exist.
fn read_file(path: &Path, name: &str, largest: u64) -> Result<Option<Vec<u8>>, String> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(None) };
    if !metadata.is_file() {
        return Err(format!("{name}: not a regular file"));
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(largest + 1).read_to_end(&mut bytes));
    match read {
        Ok(read) if read as u64 <= largest => Ok(Some(bytes)),
        Ok(_) => Err(format!("{name}: the file has {} bytes; the limit is {largest}", metadata.len())),
        Err(error) => Err(format!("{name}: the file cannot be read: {error}")),
    }
}
