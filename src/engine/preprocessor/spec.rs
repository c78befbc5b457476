//! Which files a model's tokenizers and templates are made of.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::facts::TextSpec;
use crate::engine::checkpoint::is_gguf;
use crate::engine::tokenizer::files::TextFiles;
use crate::models::gguf::{GgufFile, MAX_HEADER_BYTES, Metadata};

/// What is interpreted, and where its files are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Spec {
    /// `rows` is the number of embeddings: no token may lie beyond.
    Chat {
        path: PathBuf,
        rows: usize,
    },
    Encoder {
        path: PathBuf,
        lower_case: bool,
    },
    /// The tokenizers of a pipeline.
    Image {
        texts: Vec<TextSpec>,
    },
}

/// Files in memory. Only a GGUF file's header is parsed.
pub enum Source {
    Gguf(Metadata),
    Folder(TextFiles),
}

impl Source {
    /// `path`: the file that stands for a model.
    fn read(path: &Path) -> Result<Self, String> {
        if is_gguf(path) {
            let file = GgufFile::open(path).map_err(|error| error.to_string())?;
            return Ok(Self::Gguf(file.header.metadata));
        }
        TextFiles::read(path.parent().ok_or("the model is in no folder")?).map(Self::Folder)
    }
}

impl Spec {
    /// Reads the files; the last time that any is opened.
    pub fn read(&self) -> Result<Vec<Source>, String> {
        match self {
            Self::Chat { path, .. } | Self::Encoder { path, .. } => Source::read(path).map(|source| vec![source]),
            Self::Image { texts } => {
                texts.iter().map(|text| TextFiles::read(&text.folder).map(Source::Folder)).collect()
            }
        }
    }

    /// Where the files are.
    pub fn files(&self) -> String {
        match self {
            Self::Chat { path, .. } | Self::Encoder { path, .. } => path.display().to_string(),
            Self::Image { texts } => texts.first().map_or_else(String::new, |text| text.folder.display().to_string()),
        }
    }

    /// Bytes of the files at most; a GGUF file's header is a part of it.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Chat { path, .. } | Self::Encoder { path, .. } if is_gguf(path) => {
                std::fs::metadata(path).map_or(0, |file| file.len().min(MAX_HEADER_BYTES))
            }
            Self::Chat { path, .. } | Self::Encoder { path, .. } => path.parent().map_or(0, TextFiles::size_on_disk),
            Self::Image { texts } => texts.iter().map(|text| TextFiles::size_on_disk(&text.folder)).sum(),
        }
    }
}
