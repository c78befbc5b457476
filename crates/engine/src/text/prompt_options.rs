//! How a conversation becomes a prompt, besides its messages and tools.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The options of a prompt. The default is where the assistant's next message begins, as the template does it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptOptions {
    pub end: PromptEnd,
    /// Further variables of the chat template, such as `enable_thinking`.
    pub variables: Vec<TemplateVariable>,
}

impl PromptOptions {
    /// True if the variables switch reasoning off. Later ones take precedence.
    pub fn disables_reasoning(&self) -> bool {
        let mut switches = self.variables.iter().filter(|variable| variable.name == "enable_thinking");
        switches.next_back().is_some_and(|variable| variable.value == false)
    }
}

/// Where a prompt ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PromptEnd {
    /// Where the assistant's next message begins (the generation prompt).
    #[default]
    NextMessage,
    /// After the last message.
    LastMessage,
    /// Within the last message, after its text, so that the model continues it.
    LastMessageText,
}

/// A variable of a chat template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TemplateVariable {
    pub name: String,
    #[serde(with = "crate::preprocessor::sandbox_protocol::json")]
    pub value: Value,
}

impl TemplateVariable {
    pub fn new(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// The names that a template's variables cannot have: the server sets them.
pub const RESERVED_VARIABLES: [&str; 6] =
    ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];
