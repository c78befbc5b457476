//! Tools, tool calls, and the output format that a request demands.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    pub name: String,
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`, as chat templates expect it.
    #[serde(with = "crate::preprocessor::sandbox_protocol::json")]
    pub definition: Value,
    /// Requires that the arguments match the whole schema: a part that cannot be enforced is an error.
    pub strict: bool,
    /// Of a custom tool, whose arguments are always `{"input": "…"}`: what the input is. `None` for functions.
    pub input: Option<InputFormat>,
}

/// The format of a custom tool's input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputFormat {
    /// Any text.
    Text,
    /// Text that this regular expression matches as a whole.
    Regex(String),
    /// Text of this grammar, in Lark notation.
    Lark(String),
}

impl Tool {
    /// What output with this tool depends on, in one line.
    fn key(&self) -> String {
        let input = match &self.input {
            None => String::new(),
            Some(InputFormat::Text) => "text".to_owned(),
            Some(InputFormat::Regex(regex)) => format!("regex {}", Value::from(regex.as_str())),
            Some(InputFormat::Lark(grammar)) => format!("lark {}", Value::from(grammar.as_str())),
        };
        format!("{} {} {input}", self.strict, self.definition)
    }

    /// The JSON schema of the arguments, if the tool takes any.
    pub fn parameters(&self) -> Option<&Value> {
        self.definition.pointer("/function/parameters").filter(|parameters| !parameters.is_null())
    }
}

/// The output that one step adds to a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// The index of the call within its choice, from 0.
    pub index: u32,
    /// Set in the first delta of the call.
    pub name: Option<String>,
    /// The next part of the arguments' JSON.
    pub arguments: String,
}

/// The output format of a request: text format and tools.
#[derive(Clone, Debug, Default)]
pub struct OutputSpec {
    pub text: TextFormat,
    /// Tools that may be called; also described to the model.
    pub tools: Arc<[Tool]>,
    pub calling: CallMode,
    /// Allows several calls in one choice.
    pub parallel: bool,
}

/// The format of text output.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum TextFormat {
    #[default]
    Free,
    /// Any JSON object.
    Object,
    /// JSON that is valid under this schema. `strict`: what cannot be enforced is an error.
    Schema { schema: Value, strict: bool },
    /// Text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of this grammar, in the Lark notation of llguidance.
    Lark(String),
}

/// Controls whether tools are called (`tool_choice`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallMode {
    /// The model decides.
    #[default]
    Auto,
    /// The output is one or more calls.
    Required,
    /// The output is one call of this tool.
    Named(String),
}

impl OutputSpec {
    /// True for free text, which needs no grammar.
    pub fn is_free(&self) -> bool {
        matches!(self.text, TextFormat::Free) && self.tools.is_empty()
    }

    /// A cache key, unique to this output format. One part per line, as JSON is written without line breaks.
    pub fn key(&self) -> String {
        let text = match &self.text {
            TextFormat::Free => "free".to_owned(),
            TextFormat::Object => "object".to_owned(),
            TextFormat::Schema { schema, strict } => format!("schema {strict} {schema}"),
            TextFormat::Regex(regex) => format!("regex {}", Value::from(regex.as_str())),
            TextFormat::Choice(texts) => format!("choice {}", Value::from(texts.as_slice())),
            TextFormat::Lark(grammar) => format!("lark {}", Value::from(grammar.as_str())),
        };
        let head = format!("{:?} {}", self.calling, self.parallel);
        let tools = self.tools.iter().map(Tool::key);
        [head, text].into_iter().chain(tools).collect::<Vec<_>>().join("\n")
    }
}
