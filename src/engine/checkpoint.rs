//! A chat model's files, opened: a GGUF file, or a Hugging Face folder of safetensors.

use std::path::Path;

use serde_json::Value;

use super::tokens::{self, Hub, Tokens};
use crate::models::gguf::{GgufFile, Header};
use crate::models::hyper::Hyper;
use crate::models::safetensors::{Folder, read_json};
use crate::models::weights::Weights;

pub(super) enum Checkpoint {
    Gguf(Box<GgufFile>),
    Hub(Box<Folder>),
}

/// Whether a GGUF header describes a model that can be served; cheap, for listings.
pub(super) fn check_gguf(header: &Header) -> Result<(), String> {
    Hyper::of_gguf(header).map_err(|error| error.to_string())?;
    tokens::check(&header.metadata)?;
    gguf_template(header).map(drop)
}

/// Whether a folder holds a model that can be served; reads headers and small files only.
pub(super) fn check_hub(folder: &Folder) -> Result<(), String> {
    Hyper::of_folder(folder).map_err(|error| error.to_string())?;
    Hub::read(&folder.path, &folder.config)?;
    hub_template(&folder.path).map(drop)
}

fn gguf_template(header: &Header) -> Result<String, String> {
    header.metadata.text("tokenizer.chat_template").map(str::to_owned).ok_or_else(|| {
        "the file has no chat template (tokenizer.chat_template): it is not a model made for chat".to_owned()
    })
}

/// `chat_template.jinja`, else `chat_template` in `tokenizer_config.json`: a text, or a list of
/// named ones, of which the default is taken.
fn hub_template(folder: &Path) -> Result<String, String> {
    let own = folder.join("chat_template.jinja");
    if own.is_file() {
        return std::fs::read_to_string(&own).map_err(|error| format!("chat_template.jinja cannot be read: {error}"));
    }
    let config = folder.join("tokenizer_config.json");
    let config = if config.is_file() { read_json(&config).map_err(|error| error.to_string())? } else { Value::Null };
    let template = match config.get("chat_template") {
        Some(Value::String(template)) => Some(template.clone()),
        Some(Value::Array(templates)) => named(templates, "default"),
        _ => None,
    };
    template.ok_or_else(|| "the folder has no chat template: it is not a model made for chat".to_owned())
}

fn named(templates: &[Value], name: &str) -> Option<String> {
    let found = templates.iter().find(|one| one.get("name").and_then(Value::as_str) == Some(name))?;
    found.get("template")?.as_str().map(str::to_owned)
}

impl Checkpoint {
    /// Opens the model that this file stands for, and checks that it can be served.
    pub fn open(path: &Path) -> Result<Self, String> {
        if path.extension().is_some_and(|ending| ending == "gguf") {
            let file = GgufFile::open(path).map_err(|error| error.to_string())?;
            check_gguf(&file.header)?;
            return Ok(Self::Gguf(Box::new(file)));
        }
        let folder = path.parent().ok_or("the model is in no folder")?;
        let folder = Folder::open(folder).map_err(|error| error.to_string())?;
        check_hub(&folder)?;
        Ok(Self::Hub(Box::new(folder)))
    }

    pub fn weights(&self) -> &dyn Weights {
        match self {
            Self::Gguf(file) => file.as_ref(),
            Self::Hub(folder) => folder.as_ref(),
        }
    }

    pub fn template(&self) -> Result<String, String> {
        match self {
            Self::Gguf(file) => gguf_template(&file.header),
            Self::Hub(folder) => hub_template(&folder.path),
        }
    }

    /// `rows` is the number of embeddings; `template` that of [`Self::template`].
    pub fn tokens(&self, rows: usize, template: &str) -> Result<Tokens, String> {
        match self {
            Self::Gguf(file) => Tokens::of_gguf(&file.header.metadata, rows, template),
            Self::Hub(folder) => Tokens::of_hub(Hub::read(&folder.path, &folder.config)?, rows, template),
        }
    }
}
