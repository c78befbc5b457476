//! Finds a CLIP tokenizer for a single-file pipeline, which has none.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::models::safetensors::read_json;

const FOLDER: &str = "tokenizer";
const FILES: [&str; 2] = ["vocab.json", "tokenizer.json"];
/// A token of every CLIP tokenizer.
const START: &str = "<|startoftext|>";

/// Tokenizer folders of other pipelines, which may be CLIP's; files are not opened.
pub fn neighbour_tokenizers(models: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(models).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut folders: Vec<PathBuf> = entries.map(|path| path.join(FOLDER)).filter(|folder| has_files(folder)).collect();
    folders.sort();
    folders
}

fn has_files(folder: &Path) -> bool {
    FILES.iter().any(|file| folder.join(file).is_file())
}

/// The tokenizer's folder for an encoder with this vocabulary: the model's own, else the first neighbour that is CLIP's
/// and has the same size.
pub fn find_tokenizer(own: &Path, models: &Path, vocabulary: usize) -> Option<PathBuf> {
    let own = own.join(FOLDER);
    if has_files(&own) {
        return Some(own);
    }
    neighbour_tokenizers(models).into_iter().find(|folder| clip_vocabulary_size(folder) == Some(vocabulary))
}

/// The size of a CLIP tokenizer's vocabulary; `None` if it is not CLIP's.
fn clip_vocabulary_size(folder: &Path) -> Option<usize> {
    let [old, new] = FILES.map(|file| folder.join(file));
    let json = read_json(if old.is_file() { &old } else { &new }).ok()?;
    let words = if old.is_file() { Some(&json) } else { json.pointer("/model/vocab") };
    let words = words.and_then(Value::as_object)?;
    words.contains_key(START).then_some(words.len())
}
