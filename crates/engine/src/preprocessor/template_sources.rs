//! The chat templates in a model's files.

use serde_json::Value;

use crate::text::tools::ToolPromptStyle;
use crate::tokenizer::files::{TOOL_USE_FILE, TextFiles};
use outpost_models::gguf::Metadata;

/// A model's chat templates as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TemplateSources {
    pub default: String,
    /// For conversations with tools, if the model has a separate one.
    pub tool_use: Option<String>,
}

impl TemplateSources {
    /// `None`: the file has no chat template.
    pub fn from_gguf(metadata: &Metadata) -> Option<Self> {
        let text = |key: &str| metadata.text(key).map(str::to_owned);
        let default = text("tokenizer.chat_template")?;
        Some(Self { default, tool_use: text("tokenizer.chat_template.tool_use") })
    }

    /// Reads `chat_template.jinja` and the additional templates next to it, else `chat_template` in
    /// `tokenizer_config.json`: a string, or a list of named templates. `None`: the folder has no chat template.
    pub fn from_folder(files: &TextFiles) -> Result<Option<Self>, String> {
        if let Some(default) = files.text("chat_template.jinja")? {
            let tool_use = files.text(TOOL_USE_FILE)?.map(str::to_owned);
            return Ok(Some(Self { default: default.to_owned(), tool_use }));
        }
        let config = files.json("tokenizer_config.json")?;
        let (default, tool_use) = match config.get("chat_template") {
            Some(Value::String(template)) => (Some(template.clone()), None),
            Some(Value::Array(templates)) => (named(templates, "default"), named(templates, "tool_use")),
            _ => (None, None),
        };
        Ok(default.map(|default| Self { default, tool_use }))
    }

    /// The template for other conversations, and how tools are described to it.
    pub fn default_template(&self) -> (&str, ToolPromptStyle) {
        (&self.default, ToolPromptStyle::of(&self.default))
    }

    /// The separate template for conversations with tools, and how tools are described to it. `None` if there is none
    /// or its call format is unknown.
    pub fn tool_use_template(&self) -> Option<(&str, ToolPromptStyle)> {
        let template = self.tool_use.as_deref()?;
        Some((template, ToolPromptStyle::of(template))).filter(|(_, wording)| *wording != ToolPromptStyle::Described)
    }

    /// All templates concatenated, to find the special tokens that they write.
    pub fn joined(&self) -> String {
        [self.default.as_str(), self.tool_use.as_deref().unwrap_or_default()].concat()
    }
}

fn named(templates: &[Value], name: &str) -> Option<String> {
    let found = templates.iter().find(|one| one.get("name").and_then(Value::as_str) == Some(name))?;
    found.get("template")?.as_str().map(str::to_owned)
}
