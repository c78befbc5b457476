//! The files from which a model's tokenizers and templates are built.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::template_sources::TemplateSources;
use super::tokenizer_info::PromptTokenizerSpec;
use crate::embedding::EncoderTokenizerSpec;
use crate::tokenizer::Vocabulary;
use crate::tokenizer::files::{TextFiles, named_token};
use outpost_models::gguf::{GgufFile, MAX_HEADER_BYTES, Metadata};
use outpost_models::model_files::{is_ggml, is_gguf};
use outpost_models::whisper::GgmlFile;

/// The kind of preprocessor, and the paths of its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Spec {
    /// `rows` is the number of rows of the token embedding; token IDs must be below it.
    Chat {
        path: PathBuf,
        rows: usize,
    },
    Encoder {
        path: PathBuf,
        tokenizer: EncoderTokenizerSpec,
    },
    /// The tokenizers of an image pipeline.
    Image {
        texts: Vec<PromptTokenizerSpec>,
    },
}

/// A model's files in memory. Of a GGUF file, only the header.
pub enum ModelFiles {
    Gguf(Metadata),
    Folder(TextFiles),
    /// The bytes of the tokens of a `ggml-*.bin`, by ID.
    Ggml(Vec<Vec<u8>>),
}

impl ModelFiles {
    /// `path`: the model's main file.
    pub fn read(path: &Path) -> Result<Self, String> {
        if is_gguf(path) {
            return GgufFile::read_metadata(path).map(Self::Gguf).map_err(|error| error.to_string());
        }
        if is_ggml(path) {
            let file = GgmlFile::open(path).map_err(|error| error.to_string())?;
            return Ok(Self::Ggml(file.vocabulary().to_vec()));
        }
        TextFiles::read(path.parent().ok_or("the model file has no parent folder")?).map(Self::Folder)
    }

    /// The text of the special token that the files name so: `unknown` or `padding`.
    pub fn special_token(&self, name: &str, vocabulary: &Vocabulary) -> Result<Option<String>, String> {
        match self {
            Self::Gguf(metadata) => {
                let id = metadata.integer(&format!("tokenizer.ggml.{name}_token_id"));
                let id = id.and_then(|id| u32::try_from(id).ok());
                Ok(Some(vocabulary.text(id)).filter(|text| !text.is_empty()))
            }
            Self::Folder(files) => {
                let key = if name == "padding" { "pad_token" } else { "unk_token" };
                let config = files.json("tokenizer_config.json")?;
                Ok(named_token(&config, key).map(str::to_owned))
            }
            Self::Ggml(_) => Ok(None),
        }
    }

    /// The chat templates; `None` for a base model, which has none.
    pub fn templates(&self) -> Result<Option<TemplateSources>, String> {
        match self {
            Self::Gguf(metadata) => Ok(TemplateSources::from_gguf(metadata)),
            Self::Folder(files) => TemplateSources::from_folder(files),
            Self::Ggml(_) => Ok(None),
        }
    }
}

impl Spec {
    /// Reads the files. No file is opened afterwards.
    pub fn read(&self) -> Result<Vec<ModelFiles>, String> {
        match self {
            Self::Chat { path, .. } | Self::Encoder { path, .. } => ModelFiles::read(path).map(|source| vec![source]),
            Self::Image { texts } => {
                texts.iter().map(|text| TextFiles::read(&text.folder).map(ModelFiles::Folder)).collect()
            }
        }
    }

    /// The path of the files, for logs.
    pub fn files(&self) -> String {
        match self {
            Self::Chat { path, .. } | Self::Encoder { path, .. } => path.display().to_string(),
            Self::Image { texts } => texts.first().map_or_else(String::new, |text| text.folder.display().to_string()),
        }
    }

    /// An upper bound on the bytes to read; of a GGUF file only the header counts.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Chat { path, .. } | Self::Encoder { path, .. } if is_gguf(path) || is_ggml(path) => {
                std::fs::metadata(path).map_or(0, |file| file.len().min(MAX_HEADER_BYTES))
            }
            Self::Chat { path, .. } | Self::Encoder { path, .. } => path.parent().map_or(0, TextFiles::size_on_disk),
            Self::Image { texts } => texts.iter().map(|text| TextFiles::size_on_disk(&text.folder)).sum(),
        }
    }
}
