//! Finds a CLIP tokenizer for a single-file pipeline, which does not contain one.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::model_files::FolderListing;
use crate::safetensors::read_json;

const FOLDER: &str = "tokenizer";
const FILES: [&str; 2] = ["vocab.json", "tokenizer.json"];
/// A token that every CLIP vocabulary contains.
const START_TOKEN: &str = "<|startoftext|>";

/// Tokenizer folders of other pipelines. Files are not opened, so the tokenizers may not be CLIP tokenizers.
pub fn neighbour_tokenizers(models: &Path) -> Vec<PathBuf> {
    let models = FolderListing::read(models).folders.into_iter();
    models.map(|path| path.join(FOLDER)).filter(|folder| has_files(folder)).collect()
}

fn has_files(folder: &Path) -> bool {
    FILES.iter().any(|file| folder.join(file).is_file())
}

/// The tokenizer folder for a text encoder with this vocabulary size: the model's own, else the first CLIP tokenizer of
/// another pipeline that has the same size.
pub fn find_tokenizer(model: &Path, models: &Path, vocabulary: usize) -> Option<PathBuf> {
    let own_folder = model.join(FOLDER);
    if has_files(&own_folder) {
        return Some(own_folder);
    }
    neighbour_tokenizers(models).into_iter().find(|folder| clip_vocabulary_size(folder) == Some(vocabulary))
}

/// The vocabulary size of a CLIP tokenizer; `None` for other tokenizers.
fn clip_vocabulary_size(folder: &Path) -> Option<usize> {
    let [vocab, tokenizer] = FILES.map(|file| folder.join(file));
    let has_vocab = vocab.is_file();
    let json = read_json(if has_vocab { &vocab } else { &tokenizer }).ok()?;
    let vocabulary = if has_vocab { Some(&json) } else { json.pointer("/model/vocab") };
    let vocabulary = vocabulary.and_then(Value::as_object)?;
    vocabulary.contains_key(START_TOKEN).then_some(vocabulary.len())
}
