//! The small files of a model's folder that its tokenizer and its chat template are made of, in memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::models::safetensors::parse_json;

/// Where transformers puts the template for tools beside `chat_template.jinja`.
pub(super) const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";

const NAMES: [&str; 10] = [
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];
/// A larger file is refused; bytes.
const LARGEST: u64 = 64 << 20;
/// The same of files that become JSON values, which take up to 16 times their bytes in memory.
const LARGEST_JSON: u64 = 8 << 20;

/// The files by their names. Those that the folder does not have are missing.
#[derive(Debug, Default)]
pub(super) struct TextFiles(BTreeMap<&'static str, Vec<u8>>);

impl TextFiles {
    /// Reads the files that the folder has.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let read = |name: &&'static str| Some(file(&folder.join(name), name).transpose()?.map(|bytes| (*name, bytes)));
        NAMES.iter().filter_map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Bytes of the files that the folder has.
    pub fn size_on_disk(folder: &Path) -> u64 {
        NAMES.iter().filter_map(|name| Some(fs::metadata(folder.join(name)).ok()?.len())).sum()
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// A file's text.
    pub fn text(&self, name: &str) -> Result<Option<&str>, String> {
        let text = self.bytes(name).map(std::str::from_utf8).transpose();
        text.map_err(|error| format!("{name} is not valid UTF-8: {error}"))
    }

    /// A file's JSON; `null` where the folder does not have the file.
    pub fn json(&self, name: &str) -> Result<Value, String> {
        let Some(bytes) = self.bytes(name) else { return Ok(Value::Null) };
        parse_json(bytes).map_err(|error| format!("{name}: it is damaged: {error}"))
    }
}

/// A regular file's content; `None` where there is none.
fn file(path: &Path, name: &str) -> Result<Option<Vec<u8>>, String> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(None) };
    if !metadata.is_file() {
        return Err(format!("{name}: not a regular file"));
    }
    let is_small = name != "tokenizer.json" && name.ends_with(".json") && !name.starts_with("vocab");
    let largest = if is_small { LARGEST_JSON } else { LARGEST };
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(largest + 1).read_to_end(&mut bytes));
    match read {
        Ok(read) if read as u64 <= largest => Ok(Some(bytes)),
        Ok(_) => Err(format!("{name}: the file has {} bytes; the limit is {largest}", metadata.len())),
        Err(error) => Err(format!("{name}: the file cannot be read: {error}")),
    }
}
