//! A model's files, opened: a GGUF file, or a Hugging Face folder of safetensors.

use std::path::Path;

use serde_json::Value;

use super::tokens::{self, Hub, Tokens};
use crate::models::gguf::{GgufFile, Header};
use crate::models::hyper::Hyper;
use crate::models::safetensors::{Folder, read_json};
use crate::models::weights::Decoder;

/// Where transformers puts the template for tools beside `chat_template.jinja`.
pub(super) const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";

pub(super) enum Checkpoint {
    Gguf(Box<GgufFile>),
    Hub(Box<Folder>),
}

/// Whether a GGUF header describes a model that can be served; cheap, for listings.
pub(super) fn check_gguf(header: &Header) -> Result<(), String> {
    Hyper::of_gguf(header).map_err(|error| error.to_string())?;
    tokens::check(&header.metadata)?;
    gguf_templates(header).map(drop)
}

/// Whether a folder holds a model that can be served; reads headers and small files only.
pub(super) fn check_hub(folder: &Folder) -> Result<(), String> {
    Hyper::of_folder(folder).map_err(|error| error.to_string())?;
    Hub::read(&folder.path, &folder.config)?;
    hub_templates(&folder.path).map(drop)
}

/// The chat templates of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Templates {
    pub default: String,
    /// For conversations with tools, where the model has one apart.
    pub tool_use: Option<String>,
}

fn gguf_templates(header: &Header) -> Result<Templates, String> {
    let text = |key: &str| header.metadata.text(key).map(str::to_owned);
    let default = text("tokenizer.chat_template").ok_or_else(|| {
        "the file has no chat template (tokenizer.chat_template): it is not a model made for chat".to_owned()
    })?;
    Ok(Templates { default, tool_use: text("tokenizer.chat_template.tool_use") })
}

/// `chat_template.jinja` and those in the folder beside it, else `chat_template` in
/// `tokenizer_config.json`: a text, or a list of named ones.
fn hub_templates(folder: &Path) -> Result<Templates, String> {
    if let Some(default) = hub_file(folder, "chat_template.jinja")? {
        return Ok(Templates { default, tool_use: hub_file(folder, TOOL_USE_FILE)? });
    }
    let config = folder.join("tokenizer_config.json");
    let config = if config.is_file() { read_json(&config).map_err(|error| error.to_string())? } else { Value::Null };
    let (default, tool_use) = match config.get("chat_template") {
        Some(Value::String(template)) => (Some(template.clone()), None),
        Some(Value::Array(templates)) => (named(templates, "default"), named(templates, "tool_use")),
        _ => (None, None),
    };
    let default =
        default.ok_or_else(|| "the folder has no chat template: it is not a model made for chat".to_owned())?;
    Ok(Templates { default, tool_use })
}

fn hub_file(folder: &Path, name: &str) -> Result<Option<String>, String> {
    let path = folder.join(name);
    if !path.is_file() {
        return Ok(None);
    }
    std::fs::read_to_string(path).map(Some).map_err(|error| format!("{name} cannot be read: {error}"))
}

fn named(templates: &[Value], name: &str) -> Option<String> {
    let found = templates.iter().find(|one| one.get("name").and_then(Value::as_str) == Some(name))?;
    found.get("template")?.as_str().map(str::to_owned)
}

impl Checkpoint {
    /// Opens the model that this file stands for.
    pub fn open(path: &Path) -> Result<Self, String> {
        if path.extension().is_some_and(|ending| ending == "gguf") {
            return Ok(Self::Gguf(Box::new(GgufFile::open(path).map_err(|error| error.to_string())?)));
        }
        let folder = path.parent().ok_or("the model is in no folder")?;
        Ok(Self::Hub(Box::new(Folder::open(folder).map_err(|error| error.to_string())?)))
    }

    /// The same, and checks that it can be served as a chat model.
    pub fn open_chat(path: &Path) -> Result<Self, String> {
        let checkpoint = Self::open(path)?;
        match &checkpoint {
            Self::Gguf(file) => check_gguf(&file.header)?,
            Self::Hub(folder) => check_hub(folder)?,
        }
        Ok(checkpoint)
    }

    pub fn weights(&self) -> &dyn Decoder {
        match self {
            Self::Gguf(file) => file.as_ref(),
            Self::Hub(folder) => folder.as_ref(),
        }
    }

    pub fn templates(&self) -> Result<Templates, String> {
        match self {
            Self::Gguf(file) => gguf_templates(&file.header),
            Self::Hub(folder) => hub_templates(&folder.path),
        }
    }

    /// `rows` is the number of embeddings; `templates` are those of [`Self::templates`].
    pub fn tokens(&self, rows: usize, templates: &Templates) -> Result<Tokens, String> {
        let all = [templates.default.as_str(), templates.tool_use.as_deref().unwrap_or_default()].concat();
        match self {
            Self::Gguf(file) => Tokens::of_gguf(&file.header.metadata, rows, &all),
            Self::Hub(folder) => Tokens::of_hub(Hub::read(&folder.path, &folder.config)?, rows, &all),
        }
    }
}
