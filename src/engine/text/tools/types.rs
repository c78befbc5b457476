//! Tools, calls of them, and what a request demands of an answer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    pub name: String,
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`, as templates take it.
    #[serde(with = "crate::engine::preprocessor::wire::json")]
    pub definition: Value,
}

impl Tool {
    /// The schema of the arguments, if the tool takes any.
    pub fn parameters(&self) -> Option<&Value> {
        self.definition.pointer("/function/parameters").filter(|parameters| !parameters.is_null())
    }
}

/// A call in a message of the conversation so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON, as text.
    pub arguments: String,
}

/// What a step made of a call in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Counts the calls of one answer from 0.
    pub index: u32,
    /// Set in the call's first piece.
    pub name: Option<String>,
    /// The next part of the arguments' JSON.
    pub arguments: String,
}

/// What an answer must look like.
#[derive(Clone, Debug, Default)]
pub struct OutputSpec {
    pub text: TextFormat,
    /// What may be called; told to the model, too.
    pub tools: Arc<[Tool]>,
    pub calling: CallMode,
    /// Whether one answer may have several calls.
    pub parallel: bool,
}

/// What text must look like.
#[derive(Clone, Debug, Default)]
pub enum TextFormat {
    #[default]
    Free,
    /// Any JSON object.
    Object,
    /// JSON that obeys this schema.
    Schema(Value),
}

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallMode {
    /// The model decides.
    #[default]
    Auto,
    /// The answer is a call, or several.
    Required,
    /// The answer is one call of this tool.
    Named(String),
}

impl OutputSpec {
    /// Whether anything is demanded that must be enforced.
    pub fn is_free(&self) -> bool {
        matches!(self.text, TextFormat::Free) && self.tools.is_empty()
    }

    /// The same for the same demands, and for no other: one a line, as JSON has no line breaks inside.
    pub fn key(&self) -> String {
        let text = match &self.text {
            TextFormat::Free => "free".to_owned(),
            TextFormat::Object => "object".to_owned(),
            TextFormat::Schema(schema) => format!("schema {schema}"),
        };
        let head = format!("{:?} {}", self.calling, self.parallel);
        let tools = self.tools.iter().map(|tool| tool.definition.to_string());
        [head, text].into_iter().chain(tools).collect::<Vec<_>>().join("\n")
    }
}
