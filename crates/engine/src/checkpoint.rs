//! An opened checkpoint: a GGUF file, or a Hugging Face folder of safetensors.

use std::path::Path;

use crate::preprocessor::TemplateSources;
use crate::tokenizer;
use crate::tokenizer::files::TextFiles;
use outpost_models::decoder_config::DecoderConfig;
use outpost_models::gguf::{GgufFile, Header};
use outpost_models::model_files::is_gguf;
use outpost_models::safetensors::ModelFolder;
use outpost_models::weights::{DecoderCheckpoint, DraftingCheckpoint};

pub enum Checkpoint {
    Gguf(Box<GgufFile>),
    HuggingFace(Box<ModelFolder>),
}

/// Checks that a GGUF header describes a text model that can be served. Returns whether it has a chat template. Cheap, so
/// listings can use it.
pub fn check_gguf(header: &Header) -> Result<bool, String> {
    DecoderConfig::from_gguf(header).map_err(|error| error.to_string())?;
    tokenizer::check(&header.metadata)?;
    Ok(TemplateSources::from_gguf(&header.metadata).is_some())
}

/// Checks that a folder holds a text model that can be served. Returns whether it has a chat template. Reads only headers
/// and small files.
pub fn check_hugging_face(folder: &ModelFolder) -> Result<bool, String> {
    DecoderConfig::from_folder(folder).map_err(|error| error.to_string())?;
    let files = TextFiles::read(&folder.path)?;
    tokenizer::check_hugging_face(&files)?;
    Ok(TemplateSources::from_folder(&files)?.is_some())
}

impl Checkpoint {
    /// Opens the model whose main file is `path`.
    pub fn open(path: &Path) -> Result<Self, String> {
        if is_gguf(path) {
            let file = GgufFile::open(path).map_err(|error| error.to_string())?;
            if let Some(kind) = file.header.converted_type() {
                tracing::info!(file = %path.display(), "weights in {kind} become Q8_0, which takes 8.5 bits a weight");
            }
            return Ok(Self::Gguf(Box::new(file)));
        }
        let folder = path.parent().ok_or("the model file has no parent folder")?;
        let folder = ModelFolder::open(folder).map_err(|error| error.to_string())?;
        if folder.has_fp8() {
            tracing::info!(folder = %folder.path.display(), "weights in FP8 become Q8_0, which takes 8.5 bits a weight");
        }
        Ok(Self::HuggingFace(Box::new(folder)))
    }

    /// Like [`Self::open`], and checks that the model can be served as a text model.
    pub fn open_text(path: &Path) -> Result<Self, String> {
        let checkpoint = Self::open(path)?;
        match &checkpoint {
            Self::Gguf(file) => check_gguf(&file.header)?,
            Self::HuggingFace(folder) => check_hugging_face(folder)?,
        };
        Ok(checkpoint)
    }

    /// The weights of a chat model, with those of its layer for multi-token prediction if `mtp` is set.
    pub fn drafting(&self, mtp: bool) -> DraftingCheckpoint<'_> {
        DraftingCheckpoint { checkpoint: self.weights(), mtp }
    }

    pub fn weights(&self) -> &dyn DecoderCheckpoint {
        match self {
            Self::Gguf(file) => file.as_ref(),
            Self::HuggingFace(folder) => folder.as_ref(),
        }
    }
}
