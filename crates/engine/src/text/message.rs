//! A message of a conversation.

use serde::{Deserialize, Serialize};

use super::tools::ToolCall;

/// One message of a conversation, as the chat template sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: String,
    /// Empty if an assistant message consists of tool calls only.
    pub content: String,
    /// The reasoning of an assistant message; empty if there is none.
    pub reasoning: String,
    pub name: Option<String>,
    /// The tool calls of an assistant message.
    pub tool_calls: Vec<ToolCall>,
    /// The tool call whose result this message is.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        self.content.len() + self.reasoning.len()
    }

    /// A message with text only.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }
}
